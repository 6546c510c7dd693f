//! Finds the statements of a script that would fail because an earlier statement is omitted.
//!
//! A statement reverts a change of a row, and expects the row as the change left it. If the statement for a
//! later change of the row is omitted, the row differs at this point, and the statement, and thus the whole
//! script, would fail. So statements for earlier changes of the row are omitted, too, as are statements for
//! rows that a truncate has removed.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use walden_redo::page::Tid;

use crate::{Cell, Row, Table};

const TRUNCATED: &str = "a truncate removed the row since";
const NOT_AS_IT_WAS: &str = "a later change of the row is not reverted";
const OCCUPIED: &str = "a row that has its key is left in the table, as a later change is not reverted";

/// The kind of change that a step of a script reverts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A row that was inserted: it is deleted.
    Insert,
    Update,
    /// A row that was deleted: it is inserted.
    Delete,
    Truncate,
    /// A comment.
    Other,
}

const KINDS: [Kind; 5] = [Kind::Insert, Kind::Update, Kind::Delete, Kind::Truncate, Kind::Other];

/// Hashes that identify a row; 0 for an unknown key or place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RowId {
    /// Hash of the table and of the row's primary key; 0 if the table has no key.
    key: u64,
    /// Hash of the table and of the row's TID.
    place: u64,
}

impl RowId {
    /// Returns the hashes of a row, by the key that its table has where the script is run, and by its TID.
    /// `epoch` changes whenever the table's rows are moved.
    pub fn new(table: &Table, row: Option<&Row>, tid: Option<Tid>, epoch: u32) -> RowId {
        let key = row.and_then(|row| key(table, row)).unwrap_or_default();
        let place = tid.map(|tid| hash(&(table.oid, epoch, tid.block, tid.offset_number)));
        RowId { key, place: place.unwrap_or_default() }
    }

    fn known(self) -> impl Iterator<Item = u64> {
        [self.key, self.place].into_iter().filter(|id| *id != 0)
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

fn key(table: &Table, row: &Row) -> Option<u64> {
    let mut parts = Vec::new();
    for (column, cell) in table.columns.iter().zip(&row.cells) {
        match cell {
            _ if !column.column.is_key => {}
            Cell::Value(value) => parts.push((column.column.number, value.to_string())),
            Cell::Null | Cell::Unknown(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| hash(&(table.oid, parts)))
}

/// A step of a script: a change of a row with the statement that reverts it, or a truncate or rewrite of a
/// table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub kind: Kind,
    /// Whether the script has no statement that reverts the change.
    pub is_left_out: bool,
    /// OID of the table.
    pub table: u32,
    /// The row before the change.
    pub before: RowId,
    /// The row after the change.
    pub after: RowId,
}

/// Bytes of a step in a file.
pub(crate) const STEP_BYTES: usize = 2 + 4 + 4 * 8;

impl Step {
    /// Something that is about a table, or no change.
    pub fn for_table(kind: Kind, table: u32) -> Step {
        Step { kind, is_left_out: false, table, before: RowId::default(), after: RowId::default() }
    }

    pub fn to_bytes(self) -> [u8; STEP_BYTES] {
        let mut bytes = [0; STEP_BYTES];
        bytes[0] = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8;
        bytes[1] = self.is_left_out.into();
        bytes[2..6].copy_from_slice(&self.table.to_le_bytes());
        let ids = [self.before.key, self.before.place, self.after.key, self.after.place];
        for (place, id) in bytes[6..].chunks_exact_mut(8).zip(ids) {
            place.copy_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; STEP_BYTES]) -> Step {
        let (words, _) = bytes[6..].as_chunks::<8>();
        let id = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        Step {
            kind: KINDS.get(usize::from(bytes[0])).copied().unwrap_or(Kind::Other),
            is_left_out: bytes[1] != 0,
            table: u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
            before: RowId { key: id(0), place: id(1) },
            after: RowId { key: id(2), place: id(3) },
        }
    }
}

/// Finds the statements that cannot be run; takes the steps from the newest to the oldest, as the script has
/// them.
#[derive(Debug, Default)]
pub(crate) struct Dependents {
    /// Tables that are empty at this step for a later truncate, with the rows that the script has put into
    /// them by then.
    truncated: HashMap<u32, HashSet<u64>>,
    /// Rows that are not as they were at this step. The value says whether they are not in the table.
    changed: HashMap<u64, bool>,
    /// Keys of rows that stay in their tables.
    occupied: HashSet<u64>,
}

impl Dependents {
    /// Says why the statement of a step cannot be run; nothing if it can, or if there is none.
    pub fn take(&mut self, step: &Step) -> Option<&'static str> {
        let Step { kind, is_left_out, table, before, after } = *step;
        match kind {
            Kind::Other => return None,
            Kind::Truncate => {
                self.truncated.insert(table, HashSet::new());
                return None;
            }
            Kind::Insert | Kind::Update | Kind::Delete => {}
        }
        let has_after = kind != Kind::Delete;
        let mut is_absent = None;
        if has_after {
            for id in after.known() {
                is_absent = self.changed.remove(&id).or(is_absent);
            }
        }
        if is_absent.is_none()
            && has_after
            && let Some(rows) = self.truncated.get_mut(&table)
        {
            let found = after.known().filter(|id| rows.remove(id)).count();
            // The row from before the change is not there either.
            if found == 0 {
                return (!is_left_out).then_some(TRUNCATED);
            }
        }
        let is_key_taken = kind != Kind::Insert
            && (kind == Kind::Delete || before.key != after.key)
            && self.occupied.contains(&before.key);
        let why = match (is_absent, is_key_taken) {
            (Some(_), _) => Some(NOT_AS_IT_WAS),
            (None, true) => Some(OCCUPIED),
            (None, false) => None,
        };
        if why.is_none() && !is_left_out {
            if kind != Kind::Insert
                && let Some(rows) = self.truncated.get_mut(&table)
            {
                rows.extend(before.known());
            }
            return None;
        }
        // The row is as the change left it, unless it was left out of an earlier statement.
        let is_absent = is_absent.unwrap_or_else(|| {
            if has_after && after.key != 0 {
                self.occupied.insert(after.key);
            }
            !has_after
        });
        if kind != Kind::Insert
            && let Some(id) = before.known().next()
        {
            self.changed.insert(id, is_absent);
        }
        why.filter(|_| !is_left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: u32 = 7;

    fn id(key: u64) -> RowId {
        RowId { key, place: 0 }
    }

    fn step(kind: Kind, before: u64, after: u64) -> Step {
        Step { kind, is_left_out: false, table: TABLE, before: id(before), after: id(after) }
    }

    fn left_out(step: Step) -> Step {
        Step { is_left_out: true, ..step }
    }

    /// What becomes of steps, which are in the log's order.
    fn reasons(steps: &[Step]) -> Vec<Option<&'static str>> {
        let mut dependents = Dependents::default();
        let mut reasons: Vec<_> = steps.iter().rev().map(|step| dependents.take(step)).collect();
        reasons.reverse();
        reasons
    }

    #[test]
    fn steps_are_read_as_they_were_written() {
        for kind in KINDS {
            let (before, after) = (RowId { key: 1, place: 2 }, RowId { key: u64::MAX, place: 0 });
            let step = Step { kind, is_left_out: kind == Kind::Update, table: TABLE, before, after };
            assert_eq!(Step::from_bytes(&step.to_bytes()), step);
        }
    }

    #[test]
    fn older_changes_of_a_row_depend_on_the_newer_ones() {
        let (insert, update, delete) =
            (step(Kind::Insert, 0, 1), step(Kind::Update, 1, 1), step(Kind::Delete, 1, 0));
        let other = step(Kind::Update, 2, 2);
        let not = Some(NOT_AS_IT_WAS);
        assert_eq!(reasons(&[insert, update, other, delete]), [None; 4]);
        assert_eq!(reasons(&[insert, update, other, left_out(delete)]), [not, not, None, None]);
        // The row was there before with the same key, and can be again.
        let expected = [None, None, not, not, None];
        assert_eq!(reasons(&[update, delete, insert, update, left_out(delete)]), expected);
        // The row stays, so that none with its key can be inserted.
        let expected = [not, Some(OCCUPIED), not, None, None];
        assert_eq!(reasons(&[update, delete, insert, left_out(update), update]), expected);
        let moved = [step(Kind::Update, 1, 3), left_out(step(Kind::Delete, 3, 0))];
        assert_eq!(reasons(&moved), [not, None]);
    }

    #[test]
    fn places_are_known_where_keys_are_not() {
        let at = |place: u64| RowId { key: 0, place };
        let update = |from, to| Step { before: at(from), after: at(to), ..step(Kind::Update, 0, 0) };
        let steps = [update(1, 2), update(5, 6), left_out(update(2, 3)), update(3, 4)];
        assert_eq!(reasons(&steps), [Some(NOT_AS_IT_WAS), None, None, None]);
    }

    #[test]
    fn rows_that_a_truncate_removed_are_not_changed() {
        let truncate = Step::for_table(Kind::Truncate, TABLE);
        let (insert, update) = (step(Kind::Insert, 0, 1), step(Kind::Update, 1, 1));
        let gone = Some(TRUNCATED);
        assert_eq!(reasons(&[insert, update, truncate, insert]), [gone, gone, None, None]);
        let delete = step(Kind::Delete, 1, 0);
        assert_eq!(reasons(&[insert, update, delete, truncate]), [None; 4]);
        assert_eq!(reasons(&[update, insert, delete, truncate]), [gone, None, None, None]);
        assert_eq!(reasons(&[update, left_out(delete), truncate]), [Some(NOT_AS_IT_WAS), None, None]);
    }
}
