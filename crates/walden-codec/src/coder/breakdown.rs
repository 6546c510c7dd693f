//! Distribution of a compressed file's bytes by column class and by relation.

use std::collections::BTreeMap;

use walden_format::record::RelFileLocator;

use super::{Class, Encoded};
use crate::column_kind::CLASSES;
use crate::meter::{ByClass, Metered};

/// Bytes before and after entropy coding.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// Bytes of columns.
    pub raw: u64,
    /// Bytes in the compressed file.
    pub stored: u64,
}

impl Bytes {
    fn add(&mut self, other: Bytes) {
        self.raw += other.raw;
        self.stored += other.stored;
    }
}

/// Numbers of bytes of compressed files, by column class and by relation. The totals of both are equal.
///
/// The coder compresses the columns of a class together. The compressed bytes of a class are therefore
/// divided among relations in proportion to their bytes before entropy coding.
#[derive(Clone, Default, Debug)]
pub struct Breakdown {
    classes: [Bytes; CLASSES.len()],
    relations: BTreeMap<Option<RelFileLocator>, Bytes>,
    directory: Bytes,
    bytes: Bytes,
}

impl Breakdown {
    /// Returns each column class that has any bytes, in the order of the format.
    pub fn classes(&self) -> impl Iterator<Item = (Class, Bytes)> {
        CLASSES.into_iter().zip(self.classes).filter(|(_, bytes)| *bytes != Bytes::default())
    }

    /// Returns each relation whose blocks' columns have any bytes. `None` is for columns without a
    /// relation: headers, transactions, commits and the like.
    pub fn relations(&self) -> impl Iterator<Item = (Option<RelFileLocator>, Bytes)> {
        self.relations.iter().map(|(relation, bytes)| (*relation, *bytes))
    }

    /// Returns the bytes of the directories, which list columns and their lengths.
    pub fn directory(&self) -> Bytes {
        self.directory
    }

    /// Returns the bytes of files and pieces that were compressed as bytes: they have no columns.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Returns the total numbers of bytes.
    pub fn total(&self) -> Bytes {
        let mut total = self.directory;
        total.add(self.bytes);
        self.classes.iter().for_each(|bytes| total.add(*bytes));
        total
    }

    /// Adds the bytes of another breakdown.
    pub fn merge(&mut self, other: &Breakdown) {
        self.directory.add(other.directory);
        self.bytes.add(other.bytes);
        self.classes.iter_mut().zip(other.classes).for_each(|(bytes, other)| bytes.add(other));
        for (relation, bytes) in &other.relations {
            self.relations.entry(*relation).or_default().add(*bytes);
        }
    }

    /// Adds a file or a piece with an original of `bytes` bytes. `metered` has the bytes of its columns, if
    /// it has columns.
    pub(crate) fn add(&mut self, encoded: &Encoded, bytes: u64, metered: Option<&Metered>) {
        let stored = encoded.content.len() as u64;
        match metered {
            Some(segment) => self.add_segment(segment),
            None => self.bytes.add(Bytes { raw: bytes, stored }),
        }
    }

    fn add_segment(&mut self, segment: &Metered) {
        let (raw, stored) = segment.directory;
        self.directory.add(Bytes { raw, stored });
        for (class, bytes) in self.classes.iter_mut().enumerate() {
            let raw = segment.raw.values().map(|raw| raw[class]).sum();
            bytes.add(Bytes { raw, stored: segment.stored[class] });
        }
        let mut by_relation: Vec<(Option<RelFileLocator>, ByClass)> =
            segment.raw.iter().map(|(relation, raw)| (*relation, *raw)).collect();
        by_relation.sort_unstable_by_key(|(relation, _)| *relation);
        for class in 0..CLASSES.len() {
            let total: u64 = by_relation.iter().map(|(_, raw)| raw[class]).sum();
            // Rounding the sum so far, not each share, makes the shares add up exactly.
            let share = |raw: u64| {
                (u128::from(segment.stored[class]) * u128::from(raw) / u128::from(total.max(1))) as u64
            };
            let mut before = 0;
            for (relation, raw) in by_relation.iter().filter(|(_, raw)| raw[class] > 0) {
                let raw = raw[class];
                let stored = share(before + raw) - share(before);
                self.relations.entry(*relation).or_default().add(Bytes { raw, stored });
                before += raw;
            }
        }
    }
}
