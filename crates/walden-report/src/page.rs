//! Renders a block's history, the content of a page, and changes of a page for a terminal.

use unicode_width::UnicodeWidthStr;
use walden_format::record::Compression;
use walden_redo::describe::diff::{Change, Place};
use walden_redo::describe::follow::{Entry, PageState};
use walden_redo::describe::{Description, Fields, Item, Value};

use crate::table::{Look, shorten, wrap};

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// Renders the records that touched a block.
pub fn history(look: Look, title: &str, entries: &[Entry]) -> String {
    use Side::{Left, Right};
    let head = [
        ("LSN", Left),
        ("time (UTC)", Left),
        ("xid", Right),
        ("record", Left),
        ("page", Left),
        ("bytes", Right),
        ("data", Right),
        ("image", Left),
    ];
    let rows: Vec<Vec<String>> = entries.iter().map(history_row).collect();
    let mut lines = grid(look, &head, &rows).into_iter();
    let mut text = format!("{}\n{}", look.heading(title), lines.next().unwrap_or_default());
    let mut last = (String::new(), None);
    for (line, entry) in lines.zip(entries) {
        let date = entry.ended.map(|ended| ended.time.to_string().chars().take(10).collect::<String>());
        if let Some(date) = date.filter(|date| *date != last.0) {
            text += &format!("{}\n", look.faint(&format!("  {date}")));
            last.0 = date;
        }
        text += &line;
        if last.1 != Some(entry.state) && state_word(entry) == "unknown" {
            text += &format!("{}\n", look.faint(&wrap(&format!("      {}", entry.state), look.width, 6)));
        }
        last.1 = Some(entry.state);
    }
    text
}

fn history_row(entry: &Entry) -> Vec<String> {
    let kind = format!("{} {}", entry.kind.resource_manager(entry.version), entry.kind.name(entry.version));
    let time = match entry.ended {
        None => String::new(),
        Some(ended) => {
            // The date has its own line.
            let time: String = ended.time.to_string().chars().skip(11).take(12).collect();
            if ended.committed { time } else { format!("{time} aborted") }
        }
    };
    let image = match &entry.image {
        None if entry.init => "new page".into(),
        None => String::new(),
        Some(image) => {
            let compression = match image.compression {
                Compression::None => "",
                Compression::Pglz => " pglz",
                Compression::Lz4 => " lz4",
                Compression::Zstd => " zstd",
            };
            format!("{}{compression}{}", image.len, if image.apply { "" } else { " (check)" })
        }
    };
    vec![
        entry.lsn.to_string(),
        time,
        if entry.xid == 0 { String::new() } else { entry.xid.to_string() },
        kind,
        state_word(entry).into(),
        entry.record_bytes.to_string(),
        entry.data_bytes.map_or(String::new(), |bytes| bytes.to_string()),
        image,
    ]
}

/// Returns the state of the page after a record as one word.
fn state_word(entry: &Entry) -> &'static str {
    match entry.state {
        _ if entry.ahead => "in backup",
        PageState::Exact => "exact",
        PageState::Untracked => "untracked",
        PageState::Gone => "gone",
        _ => "unknown",
    }
}

/// Renders the content of a page.
pub fn description(look: Look, title: &str, page: &Description) -> String {
    let mut text = format!("{}\n", look.heading(title));
    for (name, fields) in [("Header", &page.header), ("Special", &page.special), ("Content", &page.content)] {
        if !fields.is_empty() {
            text += &format!("{}\n{}", look.heading(name), pairs(look, fields));
        }
    }
    if !page.items.is_empty() {
        text += &format!("{}\n{}", look.heading("Items"), items(look, &page.items));
    }
    text
}

/// Renders `name value` pairs, wrapped to the width.
fn pairs(look: Look, fields: &Fields) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for field in &fields.0 {
        let pair = match &field.value {
            Value::Bytes(bytes) => format!("{} {bytes}", field.name),
            value => format!("{} {value}", field.name),
        };
        if !line.is_empty() && line.width() + 2 + pair.width() + 2 > look.width {
            text += &format!("{}\n", wrap(&format!("  {line}"), look.width, 6));
            line.clear();
        }
        if !line.is_empty() {
            line += ", ";
        }
        line += &pair;
    }
    text + &format!("{}\n", wrap(&format!("  {line}"), look.width, 6))
}

/// Renders short values in columns, and lists and data in separate lines below.
fn items(look: Look, items: &[Item]) -> String {
    let mut names: Vec<&'static str> = Vec::new();
    for field in items.iter().flat_map(|item| &item.fields.0) {
        if !is_long(&field.value) && !names.contains(&field.name) {
            names.push(field.name);
        }
    }
    let head = [("no", Side::Right), ("state", Side::Left), ("offset", Side::Right), ("len", Side::Right)];
    let head: Vec<_> = head.into_iter().chain(names.iter().map(|name| (*name, Side::Right))).collect();
    let row = |item: &Item| {
        let (state, offset) = match item.state {
            "redirect" => (format!("redirect to {}", item.offset), String::new()),
            state => {
                (state.to_owned(), if item.length > 0 { item.offset.to_string() } else { String::new() })
            }
        };
        let cell = |name: &&str| match item.fields.get(name) {
            Some(Value::Bool(true)) => "yes".into(),
            Some(Value::Bool(false)) | None => String::new(),
            Some(value) => value.to_string(),
        };
        let first = [item.number.to_string(), state, offset, item.length.to_string()];
        first.into_iter().chain(names.iter().map(cell)).collect()
    };
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    let mut lines = grid(look, &head, &rows).into_iter();
    let mut text = lines.next().unwrap_or_default();
    for (line, item) in lines.zip(items) {
        text += &line;
        for field in item.fields.0.iter().filter(|field| is_long(&field.value)) {
            let value = field.value.to_string();
            if value != "-" {
                let line = wrap(&format!("      {} {value}", field.name), look.width, 10);
                text += &format!("{}\n", look.faint(&line));
            }
        }
        if !item.data.0.is_empty() {
            let line = shorten(&format!("      data {}", readable(&item.data.0)), look.width);
            text += &format!("{}\n", look.faint(&line));
        }
    }
    text
}

fn is_long(value: &Value) -> bool {
    matches!(value, Value::List(_) | Value::Bytes(_))
}

/// Renders printable ASCII as it is, and other bytes as dots.
fn readable(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '.' }).collect()
}

/// Renders the changes of a page.
pub fn changes(look: Look, title: &str, changes: &[Change]) -> String {
    let mut text = format!("{}\n", look.heading(title));
    if changes.is_empty() {
        text += "  nothing\n";
    }
    let mut rest = changes;
    while let Some(change) = rest.first() {
        let alike = rest.windows(2).take_while(|pair| is_same_next(&pair[0], &pair[1])).count() + 1;
        let place = match (change.place, rest[alike - 1].place) {
            (Place::Item(first), Place::Item(last)) if first < last => format!("items {first}-{last}"),
            (place, _) => place.to_string(),
        };
        rest = &rest[alike..];
        let show = |value: &Option<Value>| match value {
            None => "none".into(),
            Some(Value::Bytes(bytes)) => format!("\"{}\"", readable(&bytes.0)),
            Some(value) => value.to_string(),
        };
        let (mark, line) = match (change.field, &change.before, &change.after) {
            (None, None, after) => ('+', format!("{place}: {}", show(after))),
            (None, before, _) => ('-', format!("{place}: {}", show(before))),
            (Some(field), before, after) => {
                ('~', format!("{place}: {field} {} -> {}", show(before), show(after)))
            }
        };
        text += &format!("{}\n", wrap(&format!("  {mark} {line}"), look.width, 6));
    }
    text
}

/// Returns whether `next` is the same change of the next item, so that both are shown in one line.
fn is_same_next(one: &Change, next: &Change) -> bool {
    match (one.place, next.place) {
        (Place::Item(number), Place::Item(following)) if following == number + 1 => {
            one.field.is_some()
                && (one.field, &one.before, &one.after) == (next.field, &next.before, &next.after)
        }
        _ => false,
    }
}

/// Aligns columns, the head first. Shortens the last column if a line is too wide.
fn grid(look: Look, head: &[(&str, Side)], rows: &[Vec<String>]) -> Vec<String> {
    let width = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.width());
        cells.chain([head[index].0.width()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::from(" ");
        for (index, cell) in cells.enumerate() {
            let blanks = " ".repeat(widths[index].saturating_sub(cell.width()));
            match head[index].1 {
                Side::Left => line += &format!(" {cell}{blanks} "),
                Side::Right => line += &format!(" {blanks}{cell} "),
            }
        }
        shorten_end(line.trim_end(), look.width)
    };
    let top = look.faint(&line(&mut head.iter().map(|column| column.0)));
    let rest = rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
    [top].into_iter().chain(rest).map(|line| line + "\n").collect()
}

fn shorten_end(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look { width: 60, table_width: 60, colour: false };

    #[test]
    fn the_same_change_of_many_items_is_one_line() {
        let change = |number, field, before: u64| Change {
            place: Place::Item(number),
            field: Some(field),
            before: Some(Value::Number(before)),
            after: Some(Value::Number(9)),
        };
        let all =
            [change(1, "a", 1), change(2, "a", 1), change(3, "a", 1), change(4, "a", 2), change(4, "b", 2)];
        let text = changes(PLAIN, "Title", &all);
        let lines = ["Title", "  ~ items 1-3: a 1 -> 9", "  ~ item 4: a 2 -> 9", "  ~ item 4: b 2 -> 9"];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        assert_eq!(changes(PLAIN, "Title", &[]), "Title\n  nothing\n");
    }

    #[test]
    fn lines_keep_to_the_width() {
        let rows = [vec!["x".repeat(50), "y".repeat(50)], vec!["1".into(), "2".into()]];
        for line in grid(PLAIN, &[("one", Side::Left), ("two", Side::Right)], &rows) {
            assert!(line.trim_end().width() <= 60, "{line}");
        }
    }
}
