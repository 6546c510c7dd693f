//! Compares two descriptions of a page.

use serde::Serialize;

use super::{Bytes, Description, Fields, Item, Value};
use crate::family::Family;

/// Pages whose line pointers keep their numbers.
const NUMBERED: [Family; 4] = [Family::Heap, Family::Sequence, Family::SpGist, Family::Brin];

/// A difference between two versions of a page.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// The part of the page: `header`, `special`, `content`, or the line pointer's number. For an item that
    /// moved to another line pointer, the new number.
    pub place: Place,
    /// The field; `None` if a whole item was added or removed.
    pub field: Option<&'static str>,
    /// The value before; `None` if the field or item did not exist.
    pub before: Option<Value>,
    /// The value after; `None` if the field or item no longer exists.
    pub after: Option<Value>,
}

/// The part of the page that a change is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The page's kind.
    Page,
    /// The page header.
    Header,
    /// The special area of the access method.
    Special,
    /// Content that does not belong to an item.
    Content,
    /// A line pointer or its item.
    Item(u16),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Page => f.write_str("page"),
            Place::Header => f.write_str("header"),
            Place::Special => f.write_str("special"),
            Place::Content => f.write_str("content"),
            Place::Item(number) => write!(f, "item {number}"),
        }
    }
}

/// Returns the changes from `before` to `after`.
///
/// Line pointers of tables keep their numbers and are compared by number. Most indexes keep their entries in
/// order, so that an insertion changes the numbers of later entries; equal entries are matched first. An
/// item's position on the page is not compared.
pub fn diff(before: &Description, after: &Description) -> Vec<Change> {
    let mut changes = Vec::new();
    if before.kind != after.kind {
        let text = |kind: &str| Some(Value::Text(kind.into()));
        let (before, after) = (text(&before.kind), text(&after.kind));
        changes.push(Change { place: Place::Page, field: Some("kind"), before, after });
    }
    fields(Place::Header, &before.header, &after.header, &mut changes);
    fields(Place::Special, &before.special, &after.special, &mut changes);
    fields(Place::Content, &before.content, &after.content, &mut changes);
    let is_ordered = |description: &Description| {
        NUMBERED.iter().all(|family| !description.kind.starts_with(family.name()))
    };
    if is_ordered(before) && is_ordered(after) {
        in_order(&before.items, &after.items, &mut changes);
    } else {
        by_number(&before.items, &after.items, &mut changes);
    }
    changes
}

fn fields(place: Place, before: &Fields, after: &Fields, changes: &mut Vec<Change>) {
    for field in &before.0 {
        let now = after.get(field.name);
        if now != Some(&field.value) {
            let (before, after) = (Some(field.value.clone()), now.cloned());
            changes.push(Change { place, field: Some(field.name), before, after });
        }
    }
    for field in after.0.iter().filter(|field| before.get(field.name).is_none()) {
        changes.push(Change {
            place,
            field: Some(field.name),
            before: None,
            after: Some(field.value.clone()),
        });
    }
}

fn by_number(before: &[Item], after: &[Item], changes: &mut Vec<Change>) {
    for index in 0..before.len().max(after.len()) {
        match (before.get(index), after.get(index)) {
            (Some(before), Some(after)) => item(before, after, changes),
            (Some(before), None) => changes.push(gone(before)),
            (None, Some(after)) => changes.push(new(after)),
            (None, None) => {}
        }
    }
}

fn item(before: &Item, after: &Item, changes: &mut Vec<Change>) {
    let place = Place::Item(after.number);
    let mut note = |field, before: Value, after: Value| {
        if before != after {
            changes.push(Change { place, field: Some(field), before: Some(before), after: Some(after) });
        }
    };
    note("state", Value::Text(before.state.into()), Value::Text(after.state.into()));
    if before.state == "redirect" && after.state == "redirect" {
        note("to", Value::Number(before.offset.into()), Value::Number(after.offset.into()));
    }
    if before.fields.is_empty() != after.fields.is_empty() {
        let content = |item: &Item| (!item.fields.is_empty()).then(|| whole(item));
        changes.push(Change { place, field: Some("item"), before: content(before), after: content(after) });
        return;
    }
    note("length", Value::Number(before.length.into()), Value::Number(after.length.into()));
    fields(place, &before.fields, &after.fields, changes);
    if before.data != after.data {
        let (before, after) = (Value::Bytes(before.data.clone()), Value::Bytes(after.data.clone()));
        changes.push(Change { place, field: Some("data"), before: Some(before), after: Some(after) });
    }
}

fn in_order(before: &[Item], after: &[Item], changes: &mut Vec<Change>) {
    let same = |(before, after): &(&Item, &Item)| same(before, after);
    let head = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[head..], &after[head..]);
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(same).count();
    let (before, after) = (&before[..before.len() - tail], &after[..after.len() - tail]);
    let mut places = (0, 0);
    for (old, new) in matches(before, after).into_iter().chain([(before.len(), after.len())]) {
        between(&before[places.0..old], &after[places.1..new], changes);
        places = (old + 1, new + 1);
    }
}

/// Compares the items between two unchanged items. Items with the same key count as changed. If `before` and
/// `after` have the same number of items, items without a match are paired by position; otherwise they count
/// as removed or added.
fn between(before: &[Item], after: &[Item], changes: &mut Vec<Change>) {
    let mut rest = after.iter().peekable();
    for old in before {
        match rest.next_if(|new| new.data == old.data && new.fields.get("ctid") == old.fields.get("ctid")) {
            Some(new) => item(old, new, changes),
            None if before.len() == after.len() => match rest.next() {
                Some(new) => item(old, new, changes),
                None => changes.push(gone(old)),
            },
            None => changes.push(gone(old)),
        }
    }
    changes.extend(rest.map(new));
}

/// Returns the longest common subsequence, as pairs of indexes.
fn matches(before: &[Item], after: &[Item]) -> Vec<(usize, usize)> {
    let width = after.len() + 1;
    // A page has at most 2042 line pointers, so this is at most 8 MB.
    let mut longest = vec![0_u16; (before.len() + 1) * width];
    for old in (0..before.len()).rev() {
        for new in (0..after.len()).rev() {
            longest[old * width + new] = if same(&before[old], &after[new]) {
                longest[(old + 1) * width + new + 1] + 1
            } else {
                longest[(old + 1) * width + new].max(longest[old * width + new + 1])
            };
        }
    }
    let (mut old, mut new) = (0, 0);
    let mut pairs = Vec::new();
    while old < before.len() && new < after.len() {
        if same(&before[old], &after[new]) {
            pairs.push((old, new));
            (old, new) = (old + 1, new + 1);
        } else if longest[(old + 1) * width + new] >= longest[old * width + new + 1] {
            old += 1;
        } else {
            new += 1;
        }
    }
    pairs
}

fn same(before: &Item, after: &Item) -> bool {
    before.state == after.state
        && before.length == after.length
        && before.data == after.data
        && before.fields == after.fields
}

fn gone(item: &Item) -> Change {
    Change { place: Place::Item(item.number), field: None, before: Some(whole(item)), after: None }
}

fn new(item: &Item) -> Change {
    Change { place: Place::Item(item.number), field: None, before: None, after: Some(whole(item)) }
}

/// Maximum number of data bytes shown for an added or removed item; a description has all bytes.
const MAX_DATA: usize = 32;

/// Formats an item in one line.
fn whole(item: &Item) -> Value {
    let mut text = item.state.to_owned();
    if item.state == "redirect" {
        text += &format!(" to {}", item.offset);
    }
    for field in &item.fields.0 {
        text += &format!(" {}={}", field.name, field.value);
    }
    match item.data.0.split_at_checked(MAX_DATA) {
        None if item.data.0.is_empty() => {}
        None => text += &format!(" data={}", item.data),
        Some((first, rest)) => {
            text += &format!(" data={}... and {} bytes", Bytes(first.to_vec()), rest.len());
        }
    }
    Value::Text(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: &str, keys: &[u8]) -> Description {
        let item = |(index, key): (usize, &u8)| {
            let mut fields = Fields::default();
            fields.text("ctid", format_args!("(0,{key})"));
            Item {
                number: index as u16 + 1,
                state: "normal",
                offset: 0,
                length: 16,
                fields,
                data: Bytes(vec![*key]),
            }
        };
        let items = keys.iter().enumerate().map(item).collect();
        Description { kind: kind.into(), items, ..Description::default() }
    }

    fn text(before: &Description, after: &Description) -> Vec<String> {
        let text = |change: &Change| {
            let what = match (&change.before, &change.after) {
                (None, _) => "new",
                (_, None) => "gone",
                _ => change.field.unwrap_or(""),
            };
            format!("{} {what}", change.place)
        };
        diff(before, after).iter().map(text).collect()
    }

    #[test]
    fn an_entry_put_between_others_is_one_change() {
        let of = |keys: &[u8]| page("btree leaf", keys);
        assert_eq!(text(&of(&[1, 2, 4, 5]), &of(&[1, 2, 3, 4, 5])), ["item 3 new"]);
        assert_eq!(
            text(&of(&[1, 2, 3, 4, 5, 6]), &of(&[2, 3, 5, 6, 7])),
            ["item 1 gone", "item 4 gone", "item 5 new"]
        );
        let mut dead = of(&[1, 2, 3]);
        dead.items[1].state = "dead";
        assert_eq!(text(&of(&[1, 2, 3]), &dead), ["item 2 state"]);
    }

    #[test]
    fn rows_keep_their_numbers() {
        let of = |keys: &[u8]| page("heap", keys);
        assert_eq!(text(&of(&[1, 2]), &of(&[1, 2, 3])), ["item 3 new"]);
        assert_eq!(text(&of(&[1, 2, 3]), &of(&[1, 9, 3])), ["item 2 ctid", "item 2 data"]);
    }
}
