//! Codes the transactions of records.
//!
//! Concurrent sessions alternate, so a record's transaction is mostly one of the last few. A new one is
//! slightly above the highest.

use super::Current;
use crate::columns::Coder;
use crate::move_to_front::MoveToFrontList;
use crate::zigzag::{zigzag_delta_u64, zigzag_value_u64};
use crate::{Corrupt, corrupt};

/// Transactions of earlier records.
#[derive(Default)]
pub struct Transactions {
    recent: MoveToFrontList,
    /// Highest transaction so far.
    pub highest: u32,
}

impl Transactions {
    /// Codes a transaction ID: its rank among the latest transactions, or its delta against the highest ID.
    pub fn xid<S: Coder>(&mut self, current: &mut Current<'_, S>, xid: u32) -> Result<u32, Corrupt> {
        const RANKS: u64 = MoveToFrontList::MAX_VALUES as u64;
        let symbol = || match self.recent.rank(xid) {
            0 => 1 + RANKS + zigzag_delta_u64(xid.into(), self.highest.into()),
            rank => rank,
        };
        let symbol = current.coder.symbol_with(current.columns.transactions, symbol)?;
        if symbol <= RANKS {
            return self
                .recent
                .promote(symbol)
                .ok_or_else(|| corrupt("cannot decode an xid: expected the rank of a recent one"));
        }
        let xid = zigzag_value_u64(symbol - 1 - RANKS, self.highest.into()) as u32;
        self.recent.push(xid);
        self.highest = self.highest.max(xid);
        Ok(xid)
    }
}
