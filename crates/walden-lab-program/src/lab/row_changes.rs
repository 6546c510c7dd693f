//! Decodes the row changes of a table from the WAL: numbers of inserted, updated and deleted rows, and
//! lengths of their values.
//!
//! The WAL must contain all records of the table, and no images of its pages. Then each record has the row
//! itself, or the bytes that differ from the old row. A row is kept in memory until it is deleted.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use walden_format::lsn::Lsn;
use walden_format::payload::{self, Payload, heap};
use walden_format::record::{Fork, Record};
use walden_format::rmgr::rmid;
use walden_format::stream::Visitor;
use walden_lab::experiments::report::Phase;
use walden_lab::experiments::statements::{Column, Relation};
use walden_lab::oracle_model::{Blocks, RowChanges, number_length, padded};
use walden_redo::page::heap_tuple::{HEAP_TUPLE_HEADER_BYTES, infomask};
use walden_redo::page::varlena::{
    LONG_HEADER_BYTES, LongHeader, ShortHeader, TOAST_POINTER_BYTES, TOAST_POINTER_HEADER,
};
use walden_source::inventory::Inventory;
use walden_source::scan::{ScanOptions, SegmentEnd, scan_in_order};

/// A tuple's address: block and line pointer.
type Place = (u32, u16);

/// The current version of a row.
struct Row {
    /// The block that the row would have in a table that is filled in order.
    block: u32,
    /// The attributes, without the preceding bytes of the tuple.
    attributes: Box<[u8]>,
    /// A bit per attribute, if some are null.
    nulls: Box<[u8]>,
    header_len: u8,
}

/// Returns the row changes in each phase.
pub fn row_changes(wal: &Path, table: &Relation, phases: &[Phase]) -> Result<Vec<RowChanges>> {
    let (Some(first), Some(last)) = (phases.first(), phases.last()) else { return Ok(Vec::new()) };
    let inventory = Inventory::search(&[wal.to_owned()])?;
    let mut watcher = Watcher {
        table,
        phases,
        rows: HashMap::new(),
        blocks: Blocks::default(),
        changes: vec![RowChanges::default(); phases.len()],
        touched: vec![Vec::new(); phases.len()],
        fault: None,
    };
    let holds = |run: &&walden_source::inventory::Run| run.start() <= first.from && first.from < run.end();
    let Some(run) = inventory.runs.iter().find(holds) else {
        bail!("cannot decode row changes: expected {} in the log", first.from)
    };
    let options = ScanOptions::new(1).from(Some(first.from)).to(Some(last.to));
    let (_, end) = scan_in_order(run, options, &mut watcher, |_| {});
    if let SegmentEnd::Damaged(damage) = end {
        bail!("{damage}");
    }
    if let Some((lsn, fault)) = watcher.fault {
        bail!("{lsn}: {fault}");
    }
    for (changes, touched) in watcher.changes.iter_mut().zip(&watcher.touched) {
        changes.blocks = touched.iter().map(|word| u64::from(word.count_ones())).sum();
    }
    Ok(watcher.changes)
}

struct Watcher<'a> {
    table: &'a Relation,
    phases: &'a [Phase],
    rows: HashMap<Place, Row>,
    blocks: Blocks,
    changes: Vec<RowChanges>,
    /// A bit per block, for each phase.
    touched: Vec<Vec<u64>>,
    fault: Option<(Lsn, String)>,
}

impl Visitor for Watcher<'_> {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let relevant = matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2)
            && record.blocks.iter().any(|block| {
                block.fork == Fork::MAIN
                    && (block.relation.relation, block.relation.database)
                        == (self.table.file, self.table.database)
            });
        if !relevant {
            return ControlFlow::Continue(());
        }
        match self.change(record) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.fault = Some((record.lsn, format!("{error:#}")));
                ControlFlow::Break(())
            }
        }
    }
}

impl Watcher<'_> {
    fn change(&mut self, record: &Record<'_>) -> Result<()> {
        // Records between phases do not belong to a phase.
        let within = |phase: &Phase| phase.from <= record.lsn && record.lsn < phase.to;
        let phase = self.phases.iter().position(within);
        let block_of = |id: u8| record.block(id).map(|block| block.block);
        let Some(new_block) = block_of(0) else { return Ok(()) };
        match payload::parse(record)? {
            Payload::Insert(insert) => {
                ensure!(insert.tuple.is_some(), "cannot decode an insert: its row is only in an image");
                if let Some(tuple) = insert.tuple {
                    self.insert(phase, (new_block, insert.offset), &tuple)?;
                }
            }
            Payload::MultiInsert(many) => {
                let Some(tuples) = many.tuples else {
                    bail!("cannot decode an insert: its rows are only in an image")
                };
                let mut offsets = many.offsets;
                for (index, tuple) in (1u16..).zip(tuples) {
                    let offset = offsets.as_mut().map_or(Some(index), Iterator::next);
                    let Some(offset) = offset else {
                        bail!("cannot decode an insert: expected a line pointer for each row")
                    };
                    self.insert(phase, (new_block, offset), &tuple)?;
                }
            }
            Payload::Update(update) => {
                let old_place = (block_of(1).unwrap_or(new_block), update.old_offset);
                let Some(new) = update.new else {
                    bail!("cannot decode an update: its row is only in an image")
                };
                self.update(phase, old_place, (new_block, update.new_offset), &new)?;
            }
            Payload::Delete(delete) => self.delete(phase, (new_block, delete.offset))?,
            _ => {}
        }
        Ok(())
    }

    fn insert(&mut self, phase: Option<usize>, place: Place, tuple: &heap::Tuple<'_>) -> Result<()> {
        let (nulls, attributes) = split(tuple)?;
        let mut row = Row {
            block: 0,
            attributes: attributes.into(),
            nulls: nulls.into(),
            header_len: tuple.header_len,
        };
        let lengths = lengths(&self.table.columns, &row)?;
        row.block = self.blocks.place(lengths.iter().copied());
        if let Some(phase) = phase {
            self.touch(phase, row.block);
            let changes = &mut self.changes[phase];
            changes.inserted += 1;
            changes.add(&lengths);
        }
        self.rows.insert(place, row);
        Ok(())
    }

    fn update(
        &mut self,
        phase: Option<usize>,
        from: Place,
        to: Place,
        new: &heap::NewTuple<'_>,
    ) -> Result<()> {
        let Some(old) = self.rows.remove(&from) else {
            bail!("cannot decode an update: expected a row that was inserted in this log")
        };
        let (nulls, middle) = split(&new.tuple)?;
        let (prefix, suffix) = (usize::from(new.prefix), usize::from(new.suffix));
        let length = old.attributes.len();
        ensure!(
            prefix <= length && suffix <= length,
            "cannot decode an update: expected a shared prefix and suffix within the old row"
        );
        let mut attributes = Vec::with_capacity(prefix + middle.len() + suffix);
        attributes.extend_from_slice(&old.attributes[..prefix]);
        attributes.extend_from_slice(middle);
        attributes.extend_from_slice(&old.attributes[length - suffix..]);
        let row = Row {
            block: old.block,
            attributes: attributes.into(),
            nulls: nulls.into(),
            header_len: new.tuple.header_len,
        };
        if let Some(phase) = phase {
            let columns = &self.table.columns;
            let (before, after) = (values(columns, &old)?, values(columns, &row)?);
            let changes = &mut self.changes[phase];
            changes.updated += 1;
            for (before, after) in
                before.iter().zip(&after).filter(|(before, after)| before.bytes != after.bytes)
            {
                changes.changed_columns += 1;
                changes.old_bytes += padded(before.stored);
                changes.new_bytes += padded(after.stored);
            }
            self.touch(phase, row.block);
        }
        self.rows.insert(to, row);
        Ok(())
    }

    fn delete(&mut self, phase: Option<usize>, place: Place) -> Result<()> {
        let Some(row) = self.rows.remove(&place) else {
            bail!("cannot decode a delete: expected a row that was inserted in this log")
        };
        if let Some(phase) = phase {
            let lengths = lengths(&self.table.columns, &row)?;
            let changes = &mut self.changes[phase];
            changes.deleted += 1;
            changes.add(&lengths);
            self.touch(phase, row.block);
        }
        Ok(())
    }

    fn touch(&mut self, phase: usize, block: u32) {
        let (word, bit) = (block as usize / 64, block % 64);
        let words = &mut self.touched[phase];
        if words.len() <= word {
            // Blocks are numbered by the rows that existed, so the bitmap grows with them.
            words.resize(word + 1, 0);
        }
        words[word] |= 1 << bit;
    }
}

/// Sums of whole rows.
trait Whole {
    fn add(&mut self, lengths: &[u32]);
}

impl Whole for RowChanges {
    fn add(&mut self, lengths: &[u32]) {
        self.columns += lengths.len() as u64;
        self.bytes += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
        self.padded_bytes += lengths.iter().map(|length| padded(*length)).sum::<u64>();
    }
}

/// Splits a tuple in a record into the null bitmap and the attributes.
fn split<'a>(tuple: &heap::Tuple<'a>) -> Result<(&'a [u8], &'a [u8])> {
    // A record's tuple starts after the fixed part of the header.
    let before = usize::from(tuple.header_len).saturating_sub(HEAP_TUPLE_HEADER_BYTES);
    let Some((bitmap, attributes)) = tuple.data.split_at_checked(before) else {
        bail!("cannot decode a row: it is shorter than its header")
    };
    Ok((if tuple.infomask & infomask::HEAP_HASNULL != 0 { bitmap } else { &[] }, attributes))
}

/// An attribute: its bytes, and the number of bytes that Oracle would store.
struct Value<'a> {
    bytes: &'a [u8],
    stored: u32,
}

/// Returns the number of bytes that Oracle would store for each attribute.
fn lengths(columns: &[Column], row: &Row) -> Result<Vec<u32>> {
    Ok(values(columns, row)?.iter().map(|value| value.stored).collect())
}

/// Splits a row into its attributes. Attributes beyond the row's end are null.
fn values<'a>(columns: &[Column], row: &'a Row) -> Result<Vec<Value<'a>>> {
    let mut values = Vec::with_capacity(columns.len());
    let mut at = 0;
    for (index, column) in columns.iter().enumerate() {
        let present = row.nulls.get(index / 8).is_none_or(|byte| byte & (1 << (index % 8)) != 0);
        if !present || at >= row.attributes.len() {
            values.push(Value { bytes: &[], stored: 0 });
            continue;
        }
        let (start, length, header) = extent(column, &row.attributes, at, row.header_len)?;
        let Some(bytes) = row.attributes.get(start..start + length) else {
            bail!("cannot decode a row: it ends within a value")
        };
        let stored = match (column.integer, bytes) {
            (true, &[a, b]) => number_length(i16::from_le_bytes([a, b]).into()),
            (true, &[a, b, c, d]) => number_length(i32::from_le_bytes([a, b, c, d]).into()),
            (true, &[a, b, c, d, e, f, g, h]) => number_length(i64::from_le_bytes([a, b, c, d, e, f, g, h])),
            _ => (length - header) as u32,
        };
        values.push(Value { bytes, stored });
        at = start + length;
    }
    Ok(values)
}

/// Returns the offset of a value, its length with the header, and the length of the header.
fn extent(column: &Column, attributes: &[u8], at: usize, header_len: u8) -> Result<(usize, usize, usize)> {
    // Alignment counts from the tuple's start.
    let align = |at: usize| {
        let alignment = usize::from(column.alignment.max(1));
        (at + usize::from(header_len)).next_multiple_of(alignment) - usize::from(header_len)
    };
    if let Ok(length @ 1..) = usize::try_from(column.length) {
        return Ok((align(at), length, 0));
    }
    ensure!(column.length == -1, "cannot decode a row: expected columns of fixed length or varlena");
    // A value with a short header is not aligned, and such a header never has the value of a padding byte, 0.
    let start = if attributes.get(at).is_some_and(|byte| *byte != 0) { at } else { align(at) };
    let Some(&first) = attributes.get(start) else { bail!("cannot decode a row: it ends before a value") };
    Ok(match ShortHeader::decode(first) {
        // A reference to a TOAST table; other references do not occur on disk.
        Some(ShortHeader::External) => (start, TOAST_POINTER_BYTES, TOAST_POINTER_HEADER.len()),
        Some(ShortHeader::Value { size }) => (start, size, 1),
        None => {
            let Some(header) = attributes.get(start..).and_then(LongHeader::read) else {
                bail!("cannot decode a row: it ends within the length of a value")
            };
            let length = header.size as usize;
            ensure!(
                length >= LONG_HEADER_BYTES,
                "cannot decode a row: expected a varlena of at least 4 bytes"
            );
            (start, length, LONG_HEADER_BYTES)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: Column = Column { length: 4, alignment: 4, integer: true };
    const TEXT: Column = Column { length: -1, alignment: 4, integer: false };

    fn row(attributes: &[u8], nulls: &[u8]) -> Row {
        Row { block: 0, attributes: attributes.into(), nulls: nulls.into(), header_len: 24 }
    }

    fn stored(columns: &[Column], row: &Row) -> Vec<u32> {
        lengths(columns, row).unwrap()
    }

    #[test]
    fn values_are_as_long_as_oracle_stores_them() {
        // 101, then three characters after a short header, then 100, aligned.
        let short = row(&[101, 0, 0, 0, 9, b'a', b'b', b'c', 100, 0, 0, 0], &[]);
        assert_eq!(stored(&[INT, TEXT, INT], &short), [3, 3, 2]);
        // The second attribute is null.
        assert_eq!(stored(&[INT, TEXT, INT], &row(&[101, 0, 0, 0, 100, 0, 0, 0], &[0b101])), [3, 0, 2]);
        // A long header is aligned: three bytes of padding.
        let mut long = vec![5, b'x', 0, 0];
        long.extend((204u32 << 2).to_le_bytes());
        long.extend([b'y'; 200]);
        assert_eq!(stored(&[TEXT, TEXT], &row(&long, &[])), [1, 200]);
        // A column that was added after the row was written.
        assert_eq!(stored(&[INT, INT], &row(&[0, 0, 0, 0], &[])), [1, 0]);
    }

    #[test]
    fn broken_rows_are_refused() {
        let broken: [&[u8]; 4] = [&[1, 0, 0], &[0, 0, 0, 0], &[255, 1], &[4, 0]];
        for (index, bytes) in broken.iter().enumerate() {
            let columns = if index == 0 { [INT] } else { [TEXT] };
            assert!(values(&columns, &row(bytes, &[])).is_err(), "{bytes:?}");
        }
    }
}
