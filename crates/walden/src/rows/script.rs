//! `--undo`: statements that revert the changes, the newest first.
//!
//! They come in the log's order and are printed in the opposite one, so they lie in a temporary file meanwhile: each with its length
//! behind it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result};
use walden_rows::{Entry, EventKind, Gap, NamesAtEnd, Outcome, Summary, sql};

use super::print::{gap_comment, said};
use crate::terminal;

/// Bytes behind a statement: its length.
const LENGTH: u64 = 8;

pub(super) struct Script {
    /// The server has these.
    names: NamesAtEnd,
    /// Why there may be changes that the script does not have.
    gaps: Vec<Gap>,
    file: BufWriter<File>,
    bytes: u64,
    statements: u64,
    /// Changes that cannot be reverted.
    missing: u64,
    truncations: u64,
    /// Beginnings and ends of times in which the table was unlogged.
    unlogged: u64,
    /// What updates of identity columns need, and what takes it back.
    alterations: BTreeSet<[String; 2]>,
}

impl Script {
    pub fn new(names: NamesAtEnd, gaps: Vec<Gap>) -> Result<Script> {
        let file = tempfile::tempfile().context("cannot make a temporary file (TMPDIR)")?;
        let file = BufWriter::new(file);
        Ok(Script {
            names,
            gaps,
            file,
            bytes: 0,
            statements: 0,
            missing: 0,
            truncations: 0,
            unlogged: 0,
            alterations: BTreeSet::new(),
        })
    }

    pub fn take(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            // Whoever takes back what was not committed, or not yet, changes rows that nobody changed.
            Entry::Change(change) if change.outcome == Outcome::Unfinished => Ok(()),
            Entry::Change(change) => {
                let table = self.names.rename(&change.table);
                let sql::Statement { text, left_out } = sql::undo(change, &table);
                if let Some(text) = text {
                    self.statements += 1;
                    self.alterations.extend(sql::identity_alterations(change, &table));
                    self.put(&text)?;
                }
                // Of what is put last, the script has the first line.
                if let Some(why) = left_out {
                    self.missing += 1;
                    self.put(&format!("-- NOT REVERTED: {}", said(change, &why)))?;
                }
                Ok(())
            }
            Entry::Event(event) if event.outcome == Outcome::Unfinished => Ok(()),
            Entry::Event(event) => {
                let (count, what) = match event.kind {
                    EventKind::Truncate => {
                        (&mut self.truncations, "the rows that a truncate removed are not in the log")
                    }
                    EventKind::Drop => {
                        (&mut self.truncations, "the rows that a drop removed are not in the log")
                    }
                    EventKind::SetUnlogged { .. } => (
                        &mut self.unlogged,
                        "what was changed while it was unlogged, from here on, is not in the log",
                    ),
                    EventKind::SetLogged { .. } => (
                        &mut self.unlogged,
                        "what was changed while it was unlogged, until here, is not in the log",
                    ),
                    EventKind::Rewrite { .. } => return Ok(()),
                };
                *count += 1;
                let table = sql::in_comment(&event.table.name);
                self.put(&format!("-- NOT REVERTED: {table} at {}: {what}", event.lsn))
            }
        }
    }

    fn put(&mut self, text: &str) -> Result<()> {
        let length = text.len() as u64;
        let written =
            self.file.write_all(text.as_bytes()).and_then(|()| self.file.write_all(&length.to_le_bytes()));
        written.context("cannot write to the temporary file (TMPDIR)")?;
        self.bytes += length + LENGTH;
        Ok(())
    }

    /// Whether no change is left out for something of its row that is not known.
    pub fn reverts_all_changes(&self) -> bool {
        self.missing == 0
    }

    /// Prints the script.
    pub fn finish(self, relation: &str, summary: &Summary) -> Result<()> {
        terminal::print_data(self.header(relation, summary).as_bytes())?;
        let alterations = self.alterations;
        let file = self.file.into_inner().context("cannot write to the temporary file (TMPDIR)")?;
        let mut batch = sql::Batch::default();
        let mut end = self.bytes;
        while end > 0 {
            let mut length = [0; LENGTH as usize];
            file.read_exact_at(&mut length, end - LENGTH)?;
            let length = u64::from_le_bytes(length);
            let mut text = vec![0; length as usize];
            end -= LENGTH + length;
            file.read_exact_at(&mut text, end)?;
            batch.push(std::str::from_utf8(&text)?);
            if batch.is_full() {
                terminal::print_data(batch.take().as_bytes())?;
            }
        }
        terminal::print_data(batch.take().as_bytes())?;
        terminal::print_data(sql::ending(alterations.iter().map(|[_, back]| back.as_str())).as_bytes())
    }

    fn header(&self, relation: &str, summary: &Summary) -> String {
        let counts = &summary.counts;
        let relation: String = relation.chars().filter(|c| !c.is_control()).collect();
        let gaps: String = self.gaps.iter().map(gap_comment).collect();
        let complete = match self.missing + self.truncations + self.unlogged {
            0 if self.gaps.is_empty() => {
                "-- Complete: every committed change of the selection is reverted.\n".to_owned()
            }
            0 => "-- NOT COMPLETE: only the changes that are known are reverted.\n".to_owned(),
            _ => format!(
                "-- NOT COMPLETE: {} changes and {} truncations or drops are not reverted in full{}; look for NOT REVERTED.\n",
                self.missing,
                self.truncations,
                if self.unlogged > 0 { ", nor what was changed while the table was unlogged" } else { "" }
            ),
        };
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
        let alterations: String = self.alterations.iter().map(|[first, _]| format!("{first}\n")).collect();
        format!(
            "-- Reverts the changes of {relation} from {} to {}: {} statements for {} changes.\n\
             {complete}{gaps}{unfinished}{aborted}\
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
