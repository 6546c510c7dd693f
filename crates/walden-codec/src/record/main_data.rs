//! Main data of records: numbers in it that are near others, and subtransactions.

use std::ops::Range;

use walden_format::record::Record;
use walden_format::rmgr::rmid;
use walden_format::version::Major;

use super::shape::Shape;
use super::{MAX_ROW_BYTES, Model};
use crate::Corrupt;
use crate::columns::{Class, Coder, Kind};
use crate::predict::names::Topic;
use crate::zigzag::{against, difference, unzigzag, zigzag};

/// Numbers in main data that are near others.
pub struct NearRow {
    pub rmid: u8,
    pub mask: u8,
    pub info: u8,
    pub since: Major,
    pub until: Major,
    /// Where they are, and what they are near.
    pub places: &'static [(usize, Near)],
}

impl NearRow {
    pub fn places(rmid: u8, info: u8, version: Major) -> &'static [(usize, Near)] {
        let fits = |row: &&NearRow| {
            row.rmid == rmid && row.info == info & row.mask && (row.since..=row.until).contains(&version)
        };
        NEAR.iter().find(fits).map_or(&[], |row| row.places)
    }
}

#[derive(Clone, Copy)]
pub enum Near {
    /// When the last transaction ended; 8 bytes.
    Time,
    /// The highest transaction; 4 bytes.
    Transaction,
}

const fn near(
    rmid: u8,
    (mask, info): (u8, u8),
    (since, until): (Major, Major),
    places: &'static [(usize, Near)],
) -> NearRow {
    NearRow { rmid, mask, info, since, until, places }
}

const ALL: (Major, Major) = (Major::V9_5, Major::V19);

const UNTIL_16: (Major, Major) = (Major::V14, Major::V16);

const SINCE_17: (Major, Major) = (Major::V17, Major::V19);

#[rustfmt::skip]
const NEAR: &[NearRow] = &[
    // COMMIT, ABORT, COMMIT_PREPARED, ABORT_PREPARED
    near(rmid::XACT, (0x70, 0x00), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x20), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x30), ALL, &[(0, Near::Time)]),
    near(rmid::XACT, (0x70, 0x40), ALL, &[(0, Near::Time)]),
    // ASSIGNMENT
    near(rmid::XACT, (0x70, 0x50), ALL, &[(0, Near::Transaction)]),
    // RUNNING_XACTS
    near(rmid::STANDBY, (0xF0, 0x10), ALL, &[(12, Near::Transaction), (16, Near::Transaction), (20, Near::Transaction)]),
    // PRUNE, FREEZE_PAGE
    near(rmid::HEAP2, (0x70, 0x10), UNTIL_16, &[(0, Near::Transaction)]),
    near(rmid::HEAP2, (0x70, 0x30), UNTIL_16, &[(0, Near::Transaction)]),
    // PRUNE_ON_ACCESS, PRUNE_VACUUM_SCAN
    near(rmid::HEAP2, (0x70, 0x10), SINCE_17, &[(2, Near::Transaction)]),
    near(rmid::HEAP2, (0x70, 0x20), SINCE_17, &[(2, Near::Transaction)]),
    // VISIBLE
    near(rmid::HEAP2, (0x70, 0x40), ALL, &[(0, Near::Transaction)]),
    // DELETE
    near(rmid::BTREE, (0xF0, 0x70), ALL, &[(0, Near::Transaction)]),
];

/// A number that another is near.
#[derive(Clone, Copy)]
enum Base {
    Word(u32),
    Long(u64),
}

impl Base {
    /// Makes the number that the bytes begin with its distance from this one, near ones small.
    fn subtract(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => change(bytes, |value| against(u32::from_le_bytes(value), base).to_le_bytes()),
            Base::Long(base) => {
                change(bytes, |value| zigzag(u64::from_le_bytes(value).wrapping_sub(base)).to_le_bytes());
            }
        }
    }

    /// The way back.
    fn add(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => {
                change(bytes, |value| difference(u32::from_le_bytes(value), base).to_le_bytes())
            }
            Base::Long(base) => {
                change(bytes, |value| base.wrapping_add(unzigzag(u64::from_le_bytes(value))).to_le_bytes());
            }
        }
    }
}

fn change<const N: usize>(bytes: &mut [u8], way: impl Fn([u8; N]) -> [u8; N]) {
    if let Some(bytes) = bytes.first_chunk_mut() {
        *bytes = way(*bytes);
    }
}

impl Model {
    /// The main data, after what is told by the transaction.
    pub fn main<S: Coder>(
        &mut self,
        coder: &mut S,
        shape: usize,
        xid: u32,
        input: Option<&Record<'_>>,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        if len == 0 {
            return Ok(());
        }
        let source = input.map_or(&[][..], |record| record.main_data());
        let kind = match u16::try_from(len) {
            Ok(width) if width <= MAX_ROW_BYTES => Kind::Rows(Class::MainData, width),
            _ => Kind::Bytes(Class::MainData),
        };
        let column = self.predictors.names.column(coder, Topic::Main, [shape as u32, len as u32, 0], kind)?;
        let Shape { near, main_data_starts_with_xid, rmid: manager, .. } = self.shapes[shape];
        // Only records of transactions may list subtransactions.
        if near.is_empty() && !main_data_starts_with_xid && manager != rmid::XACT {
            return coder.bytes(column, source, len, out);
        }
        let mix = |bytes: &mut [u8]| {
            if main_data_starts_with_xid && let Some(bytes) = bytes.first_chunk_mut() {
                *bytes = (u32::from_le_bytes(*bytes) ^ xid).to_le_bytes();
            }
        };
        let mut residual = std::mem::take(&mut self.residual);
        residual.clear();
        residual.extend_from_slice(source);
        mix(&mut residual);
        for &(at, what) in near.iter().filter(|(at, _)| *at < source.len()) {
            self.base(what).subtract(&mut residual[at..]);
        }
        let list = subtransactions(&self.shapes[shape], source);
        let mut before = xid;
        for bytes in residual[list].as_chunks_mut::<4>().0 {
            let number = u32::from_le_bytes(*bytes);
            Base::Word(before).subtract(bytes);
            before = number;
        }
        let start = out.len();
        coder.bytes(column, &residual, len, out)?;
        self.residual = residual;
        for &(at, what) in near.iter().filter(|(at, _)| *at < len) {
            self.base(what).add(&mut out[start + at..]);
        }
        mix(&mut out[start..]);
        let list = subtransactions(&self.shapes[shape], &out[start..]);
        let mut before = xid;
        for bytes in out[start..][list].as_chunks_mut::<4>().0 {
            Base::Word(before).add(bytes);
            before = u32::from_le_bytes(*bytes);
        }
        if let [(0, Near::Time), ..] = near
            && let Some(time) = out[start..].first_chunk()
        {
            self.last_time = u64::from_le_bytes(*time);
        }
        Ok(())
    }

    /// The number that another in the main data is near.
    fn base(&self, near: Near) -> Base {
        match near {
            Near::Time => Base::Long(self.last_time),
            Near::Transaction => Base::Word(self.highest_xid),
        }
    }
}

/// Whether the main data of a kind of record probably begins with its transaction.
pub fn main_data_starts_with_xid(manager: u8, info: u8) -> bool {
    // DELETE, LOCK, UPDATE, HOT_UPDATE: xmax comes first.
    manager == rmid::HEAP && matches!(info & 0x70, 0x10 | 0x60 | 0x20 | 0x40)
}

/// Where the main data has subtransactions, 4 bytes each: each is near the one before, and the first one near the record's.
fn subtransactions(shape: &Shape, main: &[u8]) -> Range<usize> {
    const HAS_INFO: u8 = 0x80;
    const HAS_DATABASE: u32 = 1;
    const HAS_SUBTRANSACTIONS: u32 = 2;
    let word = |at: usize| {
        main.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
    };
    let count_at = match (shape.rmid, shape.info & 0x70) {
        // ASSIGNMENT: the transaction comes first.
        (rmid::XACT, 0x50) => 4,
        // COMMIT, ABORT, and those of what was prepared: after the time and what else there is.
        (rmid::XACT, 0x00 | 0x20 | 0x30 | 0x40)
            if shape.info & HAS_INFO != 0 && word(8) & HAS_SUBTRANSACTIONS != 0 =>
        {
            if word(8) & HAS_DATABASE != 0 { 20 } else { 12 }
        }
        _ => return 0..0,
    };
    let start = (count_at + 4).min(main.len());
    let room = (main.len() - start) / 4;
    start..start + 4 * room.min(word(count_at) as usize)
}
