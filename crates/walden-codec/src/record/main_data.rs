//! Codes main data: transactions and times in it are deltas against earlier transactions and times. Also
//! codes the fields that follow the block headers.

use std::ops::Range;

use walden_format::assemble::{push_origin, push_toplevel_xid};
use walden_format::payload::xact::subtransactions_range;
use walden_format::rmgr::rmid;

use super::near_numbers::NearNumber;
use super::shape::Shape;
use super::{Current, MAX_ROW_BYTES, Model};
use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::leb128::narrow;
use crate::predict::keyed_columns::Topic;
use crate::zigzag::{zigzag_delta, zigzag_delta_u64, zigzag_value, zigzag_value_u64};

/// State of main data coding.
#[derive(Default)]
pub struct MainData {
    /// Time of the last commit or abort.
    last_time: u64,
    residual: Vec<u8>,
}

/// Base of a delta.
#[derive(Clone, Copy)]
enum Base {
    Word(u32),
    Long(u64),
}

impl Base {
    /// Replaces the number at the start of the bytes by its delta against this base.
    fn subtract_from(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => {
                replace(bytes, |value| zigzag_delta(u32::from_le_bytes(value), base).to_le_bytes())
            }
            Base::Long(base) => {
                replace(bytes, |value| zigzag_delta_u64(u64::from_le_bytes(value), base).to_le_bytes());
            }
        }
    }

    /// Reverses [`Self::subtract_from`].
    fn add_to(self, bytes: &mut [u8]) {
        match self {
            Base::Word(base) => {
                replace(bytes, |delta| zigzag_value(u32::from_le_bytes(delta), base).to_le_bytes())
            }
            Base::Long(base) => {
                replace(bytes, |delta| zigzag_value_u64(u64::from_le_bytes(delta), base).to_le_bytes());
            }
        }
    }
}

/// Replaces the first `N` bytes, if there are that many.
fn replace<const N: usize>(bytes: &mut [u8], with: impl Fn([u8; N]) -> [u8; N]) {
    if let Some(bytes) = bytes.first_chunk_mut() {
        *bytes = with(*bytes);
    }
}

/// Predicted values for numbers in the main data of a record.
struct Prediction<'s> {
    shape: &'s Shape,
    xid: u32,
    highest_xid: u32,
    last_time: u64,
}

impl Prediction<'_> {
    fn base(&self, near: NearNumber) -> Base {
        match near {
            NearNumber::Time => Base::Long(self.last_time),
            NearNumber::Transaction => Base::Word(self.highest_xid),
        }
    }

    /// XORs the first field with the record's transaction, if it is probably equal to it.
    fn xor_xid(&self, main: &mut [u8]) {
        if self.shape.main_data_starts_with_xid {
            replace(main, |first| (u32::from_le_bytes(first) ^ self.xid).to_le_bytes());
        }
    }

    /// Returns the range of the subtransaction list in the main data.
    fn subtransactions(&self, main: &[u8]) -> Range<usize> {
        subtransactions_range(self.shape.rmid, self.shape.info, main)
    }

    /// Replaces the main data by its residual.
    fn make_residual(&self, main: &mut [u8]) {
        let list = self.subtransactions(main);
        self.xor_xid(main);
        let len = main.len();
        for &(at, what) in self.shape.near.iter().filter(|(at, _)| *at < len) {
            self.base(what).subtract_from(&mut main[at..]);
        }
        // Each subtransaction is close to the previous one, the first to the record's transaction.
        let mut before = self.xid;
        for bytes in main[list].as_chunks_mut::<4>().0 {
            let number = u32::from_le_bytes(*bytes);
            Base::Word(before).subtract_from(bytes);
            before = number;
        }
    }

    /// Reverses [`Self::make_residual`].
    fn undo_residual(&self, main: &mut [u8]) {
        let len = main.len();
        for &(at, what) in self.shape.near.iter().filter(|(at, _)| *at < len) {
            self.base(what).add_to(&mut main[at..]);
        }
        self.xor_xid(main);
        let list = self.subtransactions(main);
        let mut before = self.xid;
        for bytes in main[list].as_chunks_mut::<4>().0 {
            Base::Word(before).add_to(bytes);
            before = u32::from_le_bytes(*bytes);
        }
    }
}

impl Model {
    /// Codes `len` bytes of main data and appends them to `out`.
    pub(super) fn main_data<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        (shape, xid): (usize, u32),
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        if len == 0 {
            return Ok(());
        }
        let coder = &mut *current.coder;
        let source = current.source.map_or(&[][..], |record| record.main_data());
        let kind = match u16::try_from(len) {
            Ok(width) if width <= MAX_ROW_BYTES => Kind::Rows(Class::MainData, width),
            _ => Kind::Bytes(Class::MainData),
        };
        let column =
            self.predictors.keyed_columns.column(coder, Topic::Main, [shape as u32, len as u32, 0], kind)?;
        let shape = self.shapes.get(shape);
        // Only records of the transaction resource manager list subtransactions.
        if shape.near.is_empty() && !shape.main_data_starts_with_xid && shape.rmid != rmid::XACT {
            return coder.bytes(column, source, len, out);
        }
        let MainData { last_time, residual } = &mut self.main_data;
        let (highest_xid, last_time_before) = (self.transactions.highest, *last_time);
        let prediction = Prediction { shape, xid, highest_xid, last_time: last_time_before };
        residual.clear();
        residual.extend_from_slice(source);
        prediction.make_residual(residual);
        let start = out.len();
        coder.bytes(column, residual, len, out)?;
        let main = &mut out[start..];
        prediction.undo_residual(main);
        if let [(0, NearNumber::Time), ..] = shape.near
            && let Some(time) = main.first_chunk()
        {
            *last_time = u64::from_le_bytes(*time);
        }
        Ok(())
    }

    /// Codes the replication origin and the toplevel transaction, and returns them as stored in the record.
    pub(super) fn origin_and_toplevel<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: usize,
    ) -> Result<Vec<u8>, Corrupt> {
        let &Shape { has_origin, has_toplevel, .. } = self.shapes.get(shape);
        let mut bytes = Vec::new();
        if has_origin {
            let kind = Kind::Symbols(Class::Transactions);
            let column = self.predictors.keyed_columns.column(current.coder, Topic::Origins, [0; 3], kind)?;
            let origin = current.source.and_then(|record| record.origin).unwrap_or(0);
            let origin = current.coder.symbol(column, origin.into())?;
            push_origin(&mut bytes, narrow(origin)?);
        }
        if has_toplevel {
            let toplevel = current.source.and_then(|record| record.toplevel_xid).unwrap_or(0);
            let toplevel = self.transactions.xid(current, toplevel)?;
            push_toplevel_xid(&mut bytes, toplevel);
        }
        Ok(bytes)
    }
}
