//! Which transaction, relations and blocks a record is of.

use walden_format::record::RelFileLocator;

use super::{Fixed, Model};
use crate::columns::{Class, Coder, Kind, narrow};
use crate::move_to_front::Recent;
use crate::predict::names::Topic;
use crate::zigzag::{unzigzag, zigzag};
use crate::{Corrupt, corrupt};

impl Model {
    /// A transaction: the same as lately, or a little beyond the highest.
    pub fn xid<S: Coder>(&mut self, coder: &mut S, fixed: &Fixed, xid: u32) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let symbol = || match self.xids.rank(xid) {
            0 => 1 + RANKS + zigzag(u64::from(xid).wrapping_sub(u64::from(self.highest_xid))),
            rank => rank,
        };
        let symbol = coder.symbol_of(fixed.xid, symbol)?;
        if symbol <= RANKS {
            return self.xids.again(symbol).ok_or_else(|| corrupt("a transaction's rank can't be"));
        }
        let xid = u64::from(self.highest_xid).wrapping_add(unzigzag(symbol - 1 - RANKS)) as u32;
        self.xids.add(xid);
        self.highest_xid = self.highest_xid.max(xid);
        Ok(xid)
    }

    /// The number of a relation in the order in which they were met.
    pub fn relation<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        shape: usize,
        relation: Option<RelFileLocator>,
    ) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let known = relation.and_then(|relation| self.relation_numbers.get(&relation).copied());
        let symbol = || match known {
            None => 0,
            Some(number) => match self.shapes[shape].relations.rank(number) {
                0 => 1 + RANKS + u64::from(number),
                rank => rank,
            },
        };
        let symbol = coder.symbol_of(self.shapes[shape].relation, symbol)?;
        if (1..=RANKS).contains(&symbol) {
            return self.shapes[shape]
                .relations
                .again(symbol)
                .ok_or_else(|| corrupt("a relation's rank can't be"));
        }
        let number = if symbol == 0 {
            let locator = relation.unwrap_or_default();
            let words = [locator.tablespace, locator.database, locator.relation].map(u32::to_le_bytes);
            let mut bytes = Vec::new();
            coder.bytes(fixed.relation_bytes, words.as_flattened(), 12, &mut bytes)?;
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let locator = RelFileLocator { tablespace: word(0), database: word(4), relation: word(8) };
            self.relations.push(locator);
            self.relation_numbers.insert(locator, self.relations.len() as u32 - 1);
            self.relations.len() as u32 - 1
        } else {
            narrow(symbol - 1 - RANKS)?
        };
        if number as usize >= self.relations.len() {
            return Err(corrupt("a relation's number can't be"));
        }
        self.shapes[shape].relations.add(number);
        Ok(number)
    }

    /// A block: one of the relation's lately used, the next after one of them, or any.
    pub fn block<S: Coder>(
        &mut self,
        coder: &mut S,
        shape: usize,
        relation: u32,
        fork: u8,
        block: u32,
    ) -> Result<u32, Corrupt> {
        const RANKS: u64 = Recent::MOST as u64;
        let at = relation as usize;
        if at >= self.blocks.len() {
            self.blocks.resize_with(at + 1, Vec::new);
        }
        let forks = &mut self.blocks[at];
        let known = forks.iter().position(|(known, _)| *known == fork);
        let number = known.unwrap_or_else(|| {
            forks.push((fork, Recent::default()));
            forks.len() - 1
        });
        let (_, recent) = &mut forks[number];
        let last = recent.values.last().copied();
        let symbol = || match recent.rank(block) {
            0 if last.is_some_and(|last| last.wrapping_add(1) == block) => 1 + RANKS,
            0 => 0,
            rank => rank,
        };
        let symbol = coder.symbol_of(self.shapes[shape].block, symbol)?;
        if (1..=RANKS).contains(&symbol) {
            return recent.again(symbol).ok_or_else(|| corrupt("a block's rank can't be"));
        }
        let number = if symbol == 0 {
            let like = [relation, fork.into(), 0];
            let column =
                self.predictors.names.column(coder, Topic::NewBlock, like, Kind::Rows(Class::Blocks, 4))?;
            u32::from_le_bytes(coder.array(column, &block.to_le_bytes())?)
        } else {
            last.ok_or_else(|| corrupt("there is no last block"))?.wrapping_add(1)
        };
        recent.add(number);
        Ok(number)
    }
}
