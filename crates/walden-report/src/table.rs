//! Tables that fit a terminal.

use std::borrow::Cow;

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width and colours of terminal output.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Width in columns to which text is wrapped.
    pub width: usize,
    /// Width of a table in columns beyond which names are shortened: the width of the terminal. `usize::MAX`
    /// for a file or a pipe, so that programs can search the output for complete names.
    pub table_width: usize,
    /// Whether to use colours and bold. The output stream removes them if they cannot be shown.
    pub colour: bool,
}

impl Look {
    /// Formats a heading.
    pub fn heading(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    /// Formats text of less importance.
    pub fn faint(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    /// Formats a bar.
    pub fn bar(self, text: &str) -> String {
        self.paint(AnsiColor::Cyan.on_default(), text)
    }

    /// Formats one of several series, distinguished by colour.
    pub fn colour(self, colour: AnsiColor, text: &str) -> String {
        self.paint(colour.on_default(), text)
    }

    /// Formats text that points at a setting or object.
    pub fn pointer(self, text: &str) -> String {
        self.paint(AnsiColor::Yellow.on_default(), text)
    }

    /// Formats a warning or error.
    pub fn alarm(self, text: &str) -> String {
        self.paint(AnsiColor::Red.on_default().bold(), text)
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Escapes the control characters of text from a file or a server, except line breaks, so that the text
/// cannot control the terminal.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |char: char| char.is_control() && char != '\n';
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut shown = String::new();
    for char in text.chars() {
        if is_harmful(char) { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    shown.into()
}

/// A row of a table: label, indentation, numbers, and the share that its bar shows.
#[derive(Clone, Debug)]
pub struct Row {
    /// Level of indentation, from 0.
    pub depth: usize,
    /// The label in the first column.
    pub label: String,
    /// Numbers, one per column after the first.
    pub cells: Vec<String>,
    /// Length of the bar, from 0 to 1.
    pub share: Option<f64>,
}

/// Minimum width of labels; a bar is drawn only if they keep it.
const MIN_LABEL: usize = 24;
const MAX_BAR: usize = 20;
/// Widest labels to which numbers are aligned. Longer labels, such as complete statements, shift only the
/// numbers of their own row.
const MAX_ALIGNED: usize = 200;

/// Formats a table with a heading and named columns, of which the first has labels, and bars at the right if
/// the width allows them.
pub fn table(look: Look, title: &str, head: (&str, &[&str]), rows: &[Row]) -> String {
    format!("{}\n{}", look.heading(title), aligned(look, (2, head.0, head.1), rows, |head| look.faint(head)))
}

/// Formats a table whose heading is in the line of the column names.
pub fn titled_table(look: Look, head: (&str, &[&str]), rows: &[Row]) -> String {
    aligned(look, (0, head.0, head.1), rows, |head| look.heading(head))
}

/// Formats the lines of a table. `head` has the indentation of its first name, and the names.
fn aligned(
    look: Look,
    head: (usize, &str, &[&str]),
    rows: &[Row],
    paint_head: impl Fn(&str) -> String,
) -> String {
    let (indent, label_head, columns) = head;
    let labels: Vec<String> = rows.iter().map(|row| harmless(&row.label).replace('\n', "\\n")).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().filter_map(|row| row.cells.get(index)).map(|cell| cell.width());
            cells.chain([column.width()]).max().unwrap_or(0)
        })
        .collect();
    let numbers: usize = widths.iter().map(|width| width + 2).sum();
    let longest = rows
        .iter()
        .zip(&labels)
        .map(|(row, label)| label.width() + 2 * row.depth)
        .max()
        .unwrap_or(0)
        .max(label_head.width());
    let available = look.width.saturating_sub(numbers + 2);
    let bars = rows.iter().any(|row| row.share.is_some());
    let bar = if bars { available.saturating_sub(longest.max(MIN_LABEL) + 2).min(MAX_BAR) } else { 0 };
    let bar = if bar < 5 { 0 } else { bar };
    let beside = numbers + 2 + if bar > 0 { bar + 2 } else { 0 };
    let room = look.table_width.max(look.width).saturating_sub(beside).max(10);
    let label = longest.min(room).clamp(10, MAX_ALIGNED);

    let mut line = format!("{:indent$}{}", "", pad_right(label_head, label + 2 - indent));
    for (column, width) in columns.iter().zip(&widths) {
        line.push_str(&format!("  {}", pad_left(column, *width)));
    }
    let mut text = paint_head(line.trim_end()) + "\n";
    for (row, name) in rows.iter().zip(&labels) {
        let shown = shorten(&format!("{}{name}", "  ".repeat(row.depth)), room);
        let mut line = format!("  {}", pad_right(&shown, label));
        for (cell, width) in row.cells.iter().zip(&widths) {
            line.push_str(&format!("  {}", pad_left(cell, *width)));
        }
        let line = if row.depth > 0 { look.faint(&line) } else { line };
        text.push_str(line.trim_end());
        if let (Some(share), true, 0) = (row.share, bar > 0, row.depth) {
            text.push_str("  ");
            text.push_str(&look.bar(&bar_of(share, bar)));
        }
        while text.ends_with(' ') {
            text.pop();
        }
        text.push('\n');
    }
    text
}

/// Formats a bar with a resolution of eighths of characters.
fn bar_of(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn pad_right(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

fn pad_left(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// Shortens text to `width` columns by omitting its middle, where names differ least.
pub fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let head = take_columns(text.chars(), kept - kept / 3);
    let tail: String = take_columns(text.chars().rev(), kept / 3).chars().rev().collect();
    format!("{head}…{tail}")
}

fn take_columns(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// Wraps text into lines of at most `width` columns. Indents lines after the first by `indent` blanks.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let begins = text.len() - text.trim_start_matches(' ').len();
    let mut lines: Vec<String> = vec![" ".repeat(begins)];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.trim().is_empty() && last.width() + 1 + word.width() > width {
            lines.push(format!("{}{word}", " ".repeat(indent)));
        } else {
            if !last.trim().is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Look = Look { width: 60, table_width: 60, colour: false };

    #[test]
    fn names_cannot_control_the_terminal() {
        let row = Row { depth: 0, label: "a\u{1b}[2J\rb\nc".into(), cells: Vec::new(), share: None };
        let text = table(PLAIN, "Title", ("label", &[]), &[row]);
        assert!(text.ends_with("\n  a\\u{1b}[2J\\rb\\nc\n"), "{text:?}");
        assert_eq!(harmless("two\nlines of ü"), "two\nlines of ü");
    }

    #[test]
    fn a_table_keeps_to_its_width() {
        let row = |depth, label: &str, share| Row {
            depth,
            label: label.into(),
            cells: vec!["12.3 MB".into(), "50.0 %".into()],
            share,
        };
        let rows = [
            row(0, "short", Some(1.0)),
            row(1, &"very_long_name_".repeat(9), None),
            row(0, "größer ✓", Some(0.0)),
        ];
        for width in [40, 60, 80, 200] {
            let look = Look { width, table_width: width, ..PLAIN };
            for line in table(look, "Title", ("label", &["bytes", "share"]), &rows).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn names_are_shortened_by_a_terminal_only() {
        let label = "very_long_name_".repeat(9);
        let row = Row { depth: 1, label: label.clone(), cells: vec!["12.3 MB".into()], share: Some(0.5) };
        let lines = |table_width| {
            let look = Look { table_width, ..PLAIN };
            let text = table(look, "Title", ("label", &["bytes"]), std::slice::from_ref(&row));
            text.lines().last().unwrap().to_owned()
        };
        assert_eq!(lines(usize::MAX), format!("    {label}  12.3 MB"));
        assert!(lines(60).contains('…') && lines(60).width() == 60, "{}", lines(60));
        // A terminal may be wider than the width to which text is wrapped.
        assert!(lines(100).contains('…') && lines(100).width() == 100, "{}", lines(100));
        assert_eq!(lines(200), lines(usize::MAX));
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghijk", 7), "abcd…jk");
    }

    #[test]
    fn text_is_wrapped() {
        assert_eq!(wrap("one two three four", 9, 2), "one two\n  three\n  four");
        assert_eq!(wrap("  one two", 7, 4), "  one\n    two");
    }
}
