//! A script of statements that revert the changes, the newest first.
//!
//! Statements arrive in the order of the WAL and are printed in the opposite order, so a temporary file holds
//! them meanwhile: each statement is followed by a description of the change that it reverts, the [`Step`]
//! and both lengths.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use walden_format::lsn::Lsn;

use crate::dependents::{Dependents, Kind, RowId, STEP_BYTES, Step};
use crate::encoding::is_exact;
use crate::print::{gap_comment, said, subject};
use crate::print_error::{CREATE, PrintError, READ, WRITE, spill};
use crate::{
    CreatedTable, Entry, Event, EventKind, Gap, NamesAtEnd, Operation, Outcome, RowChange, RowChanges,
    Summary, Table, is_large_object_catalog, sql,
};

type Result<T> = std::result::Result<T, PrintError>;

const DROPPED: &str = "its table was dropped since";
/// Bytes of a length.
const LENGTH_BYTES: usize = 8;
/// Number of bytes after a statement and its description: the step, the length of the statement and the
/// length of the description.
const TRAILER_BYTES: usize = STEP_BYTES + 2 * LENGTH_BYTES;

/// Number of tables up to which the order of a transaction's rows is recorded. The pairs of more tables would
/// fill the memory and the script.
const MAX_ORDERED_TABLES: usize = 64;

/// The tables of the rows that a transaction has written.
#[derive(Default, Debug)]
struct Written {
    tables: BTreeSet<u32>,
    /// The table of the last row.
    last: u32,
}

/// A script that reverts changes, while the changes are read.
#[derive(Debug)]
pub struct Script {
    /// The server has these.
    names: NamesAtEnd,
    /// Why there may be changes that the script does not have.
    gaps: Vec<Gap>,
    /// Other warnings about the WAL that was read.
    notes: Vec<String>,
    file: BufWriter<File>,
    bytes: u64,
    statements: u64,
    /// Number of changes that cannot be reverted.
    missing: u64,
    truncations: u64,
    /// Starts and ends of periods in which a table was unlogged.
    unlogged: u64,
    /// How many times a table's rows were moved.
    epochs: HashMap<u32, u32>,
    /// Statements that updates of identity columns need, and those that undo them, by the OIDs of the tables.
    alterations: BTreeSet<(u32, [String; 2])>,
    /// The tables of the statements, by their OIDs.
    tables: BTreeMap<u32, Arc<Table>>,
    /// The tables of the rows that each transaction has written so far.
    written: HashMap<u32, Written>,
    /// Pairs of tables: a transaction wrote a row of the first table before one of the second table. If the
    /// first row refers to the second one, reverting the second one must not cascade to the first.
    written_before: BTreeSet<(u32, u32)>,
    /// Tables of transactions that wrote rows of more than [`MAX_ORDERED_TABLES`] tables. Each pair of these
    /// tables counts as [`Script::written_before`].
    written_together: BTreeSet<u32>,
    /// Whether statements change large objects.
    has_large_objects: bool,
    /// Whether statements create large objects again that were removed.
    creates_large_objects: bool,
    /// Tables that the selected changes created and that still exist.
    created: Vec<CreatedTable>,
    /// Created tables that were dropped as well, so that nothing is left to revert.
    short_lived: BTreeSet<u32>,
}

/// A statement or a comment in the file.
struct Line {
    step: Step,
    /// Where the text is.
    start: u64,
    length: usize,
    /// Length of the description of the change, after the text.
    subject: usize,
}

/// Returns a note about sequences whose values were drawn or set, which is not transactional.
fn values_note(sequences: &[String]) -> Option<String> {
    const MAX_NAMED: usize = 10;
    let named: Vec<&str> = sequences.iter().take(MAX_NAMED).map(String::as_str).collect();
    let others = match sequences.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    (!named.is_empty()).then(|| {
        format!(
            "nextval() or setval() changed sequences, which keep their values: {}{others}",
            named.join(", ")
        )
    })
}

impl Script {
    /// Creates a script for these changes.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub fn new(changes: &RowChanges) -> Result<Script> {
        let (names, gaps, mut notes) = (changes.names_at_end(), changes.gaps.clone(), changes.notes.clone());
        let (short_lived, created): (Vec<CreatedTable>, Vec<CreatedTable>) =
            changes.created_tables().into_iter().partition(|table| names.is_dropped(table.oid));
        notes.retain(|note| gaps.iter().all(|gap| gap.why != *note));
        let file = tempfile::tempfile().map_err(spill(CREATE))?;
        let file = BufWriter::new(file);
        let sequences = changes.changed_sequences();
        notes.extend(values_note(&sequences.by_values));
        let mut script = Script {
            names,
            gaps,
            notes,
            file,
            bytes: 0,
            statements: 0,
            missing: 0,
            truncations: 0,
            unlogged: 0,
            epochs: HashMap::new(),
            alterations: BTreeSet::new(),
            tables: BTreeMap::new(),
            written: HashMap::new(),
            written_before: BTreeSet::new(),
            written_together: BTreeSet::new(),
            has_large_objects: false,
            creates_large_objects: false,
            created,
            short_lived: short_lived.into_iter().map(|table| table.oid).collect(),
        };
        for (lsn, name, what) in sequences.by_commands {
            let comment = format!("-- NOT REVERTED: {name} at {lsn}: {what}");
            script.missing += 1;
            script.put(Step::for_table(Kind::Other, 0), &comment, "")?;
        }
        Ok(script)
    }

    /// Adds an entry; entries arrive in WAL order.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub fn take(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            // Uncommitted changes have no effect on the table, so there is nothing to revert.
            entry if entry.outcome() == Outcome::Unfinished => Ok(()),
            entry if self.short_lived.contains(&entry.table().oid) => Ok(()),
            Entry::Change(change) => {
                let change = self.names.relabel(change);
                self.change(&change)
            }
            Entry::Event(event) => self.event(event),
        }
    }

    /// Notes that a transaction has written a row of a table.
    fn note_written(&mut self, xid: u32, oid: u32) {
        let written = self.written.entry(xid).or_default();
        if written.last == oid {
            self.written_before.insert((oid, oid));
            return;
        }
        written.last = oid;
        if written.tables.len() <= MAX_ORDERED_TABLES {
            self.written_before.extend(written.tables.iter().map(|&before| (before, oid)));
        }
        if !written.tables.insert(oid) {
            return;
        }
        match written.tables.len().cmp(&(MAX_ORDERED_TABLES + 1)) {
            Ordering::Less => {}
            Ordering::Equal => self.written_together.extend(&written.tables),
            Ordering::Greater => {
                self.written_together.insert(oid);
            }
        }
    }

    fn change(&mut self, change: &RowChange) -> Result<()> {
        let table = self.names.rename(change);
        let epoch = self.epochs.get(&table.oid).copied().unwrap_or_default();
        let sql::Statement { text, left_out, is_partial } = match self.names.is_dropped(table.oid) {
            true => sql::Statement { text: None, left_out: Some(DROPPED.to_owned()), is_partial: false },
            false => sql::undo(change, &table),
        };
        let step = Step {
            kind: match change.operation {
                Operation::Insert => Kind::Insert,
                Operation::Update => Kind::Update,
                Operation::Delete => Kind::Delete,
            },
            is_left_out: left_out.is_some() && !is_partial,
            table: table.oid,
            before: RowId::new(&table, change.before.row(), change.old_tid, epoch),
            after: RowId::new(&table, change.after.row(), change.new_tid, epoch),
        };
        self.statements += u64::from(text.is_some());
        if let Some(text) = text.as_ref().filter(|_| is_large_object_catalog(table.oid)) {
            self.has_large_objects = true;
            self.creates_large_objects |= sql::creates_large_object(text);
        } else if text.is_some() {
            self.tables.entry(table.oid).or_insert_with(|| Arc::clone(&table));
            if change.operation != Operation::Delete {
                self.note_written(change.top_xid, table.oid);
            }
            let alterations = sql::identity_alterations(change, &table);
            self.alterations.extend(alterations.into_iter().map(|pair| (table.oid, pair)));
        }
        // Without a statement, it is still known which row was before the change.
        self.put(step, &text.unwrap_or_default(), &subject(change))?;
        // The script is printed backwards, so the comment precedes the statement.
        if let Some(why) = left_out {
            self.missing += 1;
            let comment = format!("-- NOT REVERTED: {}", said(change, &why));
            self.put(Step::for_table(Kind::Other, table.oid), &comment, "")?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        let oid = event.table.oid;
        if let Some(column) = &event.column {
            return self.column_event(event, column);
        }
        *self.epochs.entry(oid).or_default() += 1;
        let (count, kind, what) = match event.kind {
            EventKind::Truncate => {
                (&mut self.truncations, Kind::Truncate, "the rows that a truncate removed are not in the WAL")
            }
            EventKind::Drop => {
                (&mut self.truncations, Kind::Other, "the rows that a drop removed are not in the WAL")
            }
            EventKind::SetUnlogged { .. } => (
                &mut self.unlogged,
                Kind::Other,
                "changes while it was unlogged, from here on, are not in the WAL",
            ),
            EventKind::SetLogged { .. } => (
                &mut self.unlogged,
                Kind::Other,
                "changes while it was unlogged, until here, are not in the WAL",
            ),
            _ => return self.rewrite(event),
        };
        *count += 1;
        let table = sql::in_comment(&event.table.name);
        let comment = format!("-- NOT REVERTED: {table} at {}: {what}", event.lsn);
        self.put(Step::for_table(kind, oid), &comment, "")
    }

    /// Reports a change of a column, which no statement reverts. Where values are printed as before, none is
    /// needed.
    fn column_event(&mut self, event: &Event, column: &str) -> Result<()> {
        let is_virtual = event
            .table
            .stored
            .iter()
            .any(|known| known.is_virtual && !known.is_dropped && known.name == column);
        let (what, why) = match event.kind {
            EventKind::AddColumn => ("ADD COLUMN", "the column stays"),
            EventKind::DropColumn if is_virtual => ("DROP COLUMN", "the column and its expression are lost"),
            EventKind::DropColumn => (
                "DROP COLUMN",
                "the column and its values are lost; recovery to this position has them, and walden rows with --to this \
                 position shows those of rows that changed",
            ),
            EventKind::SetExpression => ("SET EXPRESSION", "the column keeps its new expression"),
            EventKind::DropExpression => ("DROP EXPRESSION", "the column stays an ordinary one"),
            EventKind::AlterColumn { keeps_values: false } => (
                "a change of the type of column",
                "the column keeps it, and rows that the script does not change keep converted values",
            ),
            _ => return Ok(()),
        };
        let comment = format!(
            "-- NOT REVERTED: {} at {}: {what} {}: {why}",
            sql::in_comment(&event.table.name),
            event.lsn,
            sql::in_comment(column)
        );
        self.missing += 1;
        self.put(Step::for_table(Kind::Other, event.table.oid), &comment, "")
    }

    /// Reports the columns whose values a rewrite has changed.
    fn rewrite(&mut self, event: &Event) -> Result<()> {
        let columns = self.names.computed_by(event);
        if columns.is_empty() {
            return Ok(());
        }
        let columns: Vec<String> = columns.into_iter().map(sql::in_comment).collect();
        let comment = format!(
            "-- NOT REVERTED: {} at {}: ALTER COLUMN ... TYPE has most likely recomputed the values of {}",
            sql::in_comment(&event.table.name),
            event.lsn,
            columns.join(", ")
        );
        self.missing += 1;
        self.put(Step::for_table(Kind::Other, event.table.oid), &comment, "")
    }

    fn put(&mut self, step: Step, text: &str, subject: &str) -> Result<()> {
        let lengths = [text.len() as u64, subject.len() as u64];
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.write_all(subject.as_bytes()))
            .and_then(|()| self.file.write_all(&step.to_bytes()))
            .and_then(|()| lengths.iter().try_for_each(|length| self.file.write_all(&length.to_le_bytes())));
        written.map_err(spill(WRITE))?;
        self.bytes += lengths.iter().sum::<u64>() + TRAILER_BYTES as u64;
        Ok(())
    }

    /// Prints the script. `relation` describes the tables and changes that were selected. Returns whether the
    /// script reverts all changes of the WAL that was read.
    ///
    /// # Errors
    /// Errors of the output and of the temporary file.
    pub fn finish(mut self, relation: &str, summary: &Summary, out: &mut impl Write) -> Result<bool> {
        let mut print = |text: &str| out.write_all(text.as_bytes()).map_err(PrintError::Output);
        self.file.flush().map_err(spill(WRITE))?;
        let dependents = self.dependents()?;
        self.missing += dependents.len() as u64;
        self.statements -= dependents.len() as u64;
        let table = |oid: &u32| self.tables.get(oid).map(Arc::as_ref);
        let together = &self.written_together;
        let ordered = self
            .written_before
            .iter()
            .filter(|(before, oid)| !(together.contains(before) && together.contains(oid)));
        let acting = ordered.filter_map(|(before, oid)| Some((table(before)?, table(oid)?)));
        let together = together.iter().filter_map(table);
        // A single row refers at most to itself.
        let foreign_keys = (self.statements > 1 && !self.tables.is_empty())
            .then(|| sql::defer_foreign_keys(self.tables.values().map(Arc::as_ref), acting, together));
        print(&self.header(relation, summary))?;
        if let Some([first, _]) = &foreign_keys {
            print(&format!("{first}\n"))?;
        }
        let file = self.file.get_ref();
        let mut batch = sql::Batch::default();
        let mut end = self.bytes;
        while end > 0 {
            let line = line_before(file, end)?;
            let mut text = vec![0; line.length + line.subject];
            file.read_exact_at(&mut text, line.start).map_err(spill(READ))?;
            let text = std::str::from_utf8(&text).map_err(|_| PrintError::Changed(line.start))?;
            let (text, subject) =
                text.split_at_checked(line.length).ok_or(PrintError::Changed(line.start))?;
            match dependents.get(&end) {
                Some(why) => batch.push(&format!("-- NOT REVERTED: {subject}: {why}")),
                None if text.is_empty() => {}
                None => batch.push(text),
            }
            end = line.start;
            if batch.is_full() {
                print(&batch.take())?;
            }
        }
        print(&batch.take())?;
        let back = self.alterations.iter().map(|(_, [_, back])| back.as_str());
        let back = back.chain(foreign_keys.iter().map(|[_, back]| back.as_str()));
        print(&sql::ending(back))?;
        Ok(self.missing + self.truncations + self.unlogged == 0)
    }

    /// The statements that cannot be run, with the reason, by the ends of their lines in the file.
    fn dependents(&self) -> Result<HashMap<u64, &'static str>> {
        let mut found = HashMap::new();
        // Statements that are left out and truncates are what others depend on.
        if self.missing + self.truncations == 0 {
            return Ok(found);
        }
        let mut dependents = Dependents::default();
        let mut end = self.bytes;
        while end > 0 {
            let line = line_before(self.file.get_ref(), end)?;
            if let Some(why) = dependents.take(&line.step)
                && line.length > 0
            {
                found.insert(end, why);
            }
            end = line.start;
        }
        Ok(found)
    }

    /// Numbers of changes that the script does not revert, with the verb of the sentence.
    fn not_reverted(&self) -> String {
        let one_or_many = |count, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {many}")),
        };
        let unlogged = (self.unlogged > 0).then(|| "changes while the table was unlogged".to_owned());
        let parts = [
            one_or_many(self.missing, "change", "changes"),
            one_or_many(self.truncations, "truncation or drop", "truncations or drops"),
            unlogged,
        ];
        let is_one = self.missing + self.truncations == 1 && self.unlogged == 0;
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{} {}", parts.join(" and "), if is_one { "is" } else { "are" })
    }

    fn header(&self, relation: &str, summary: &Summary) -> String {
        let counts = &summary.counts;
        let relation = one_line(relation);
        let gaps: String = self.gaps.iter().map(gap_comment).collect();
        let complete = match self.missing + self.truncations + self.unlogged {
            0 if self.gaps.is_empty() => {
                "-- Complete: every committed change of the selection is reverted.\n".to_owned()
            }
            0 => "-- NOT COMPLETE: only the changes that are known are reverted.\n".to_owned(),
            _ => {
                format!(
                    "-- NOT COMPLETE: {} not reverted in full; search for NOT REVERTED.\n",
                    self.not_reverted()
                )
            }
        };
        let notes: String = self.notes.iter().map(|note| format!("-- Note: {}\n", one_line(note))).collect();
        let unfinished = match counts.unfinished {
            0 => String::new(),
            many => format!(
                "-- {many} changes are of transactions whose end is not in the range, and are not reverted: for those that committed \
                 later, read the log up to there.\n"
            ),
        };
        let aborted = match counts.aborted {
            0 => String::new(),
            many => {
                format!(
                    "-- {many} changes were rolled back by their own transactions, or ended by a crash, and are left out.\n"
                )
            }
        };
        let mut large_objects = match self.has_large_objects {
            true => {
                "-- Large objects are restored in pg_largeobject: run the script as a superuser.\n".to_owned()
            }
            false => String::new(),
        };
        if self.creates_large_objects {
            large_objects.push_str(
                "-- Large objects that were removed are created again with their content and owner, and NOT with their comments and \
                 security labels.\n",
            );
        }
        let created =
            self.created.iter().filter_map(|table| Some((table.lsn, self.names.table_name(table.oid)?)));
        let created: String = created.map(|(lsn, name)| created_comment(lsn, &name)).collect();
        let alterations: String =
            self.alterations.iter().map(|(_, [first, _])| format!("{first}\n")).collect();
        format!(
            "-- Reverts the changes of {relation} from {} to {}: {} statements for {} changes.\n\
             {complete}{gaps}{notes}{unfinished}{aborted}{created}{large_objects}\
             -- It changes nothing if a row is not as the log left it. Stop at the first error: psql -v ON_ERROR_STOP=1\n\
             -- Triggers fire and foreign keys are checked, unless you uncomment this as a superuser:\n\
             -- SET session_replication_role = replica;\n\
             BEGIN;\n{}{alterations}",
            summary.from,
            summary.reached,
            self.statements,
            counts.changes,
            sql::SETTINGS
        )
    }
}

/// A table that the script leaves, as a comment.
fn created_comment(lsn: Lsn, name: &str) -> String {
    let removal = if is_exact(name) { format!("; to remove it: DROP TABLE {name};") } else { String::new() };
    format!("-- Created at {lsn}: the table {name} stays, without the rows{removal}\n")
}

/// Text for a comment, which ends at the end of its line.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// The line that ends at a position of the file.
fn line_before(file: &File, end: u64) -> Result<Line> {
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, end - TRAILER_BYTES as u64).map_err(spill(READ))?;
    let (step, lengths) = trailer.split_first_chunk().ok_or(PrintError::Changed(end))?;
    let (lengths, _) = lengths.as_chunks::<LENGTH_BYTES>();
    let [length, subject] = [0, 1].map(|at: usize| lengths.get(at).map_or(0, |of| u64::from_le_bytes(*of)));
    let start = end - TRAILER_BYTES as u64 - length - subject;
    let (length, subject) = (length as usize, subject as usize);
    Ok(Line { step: Step::from_bytes(step), start, length, subject })
}
