//! Codes the relations and block numbers of a record.
//!
//! A relation is coded by its number, in a column of the record's shape: records of a shape refer to few
//! relations, and entropy coding learns their order. A block is coded by its rank among the latest blocks of
//! its relation's fork, because changes to a block are clustered.

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;

use super::Current;
use super::shape::Shape;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::leb128::narrow;
use crate::move_to_front::MoveToFrontList;
use crate::predict::keyed_columns::{KeyedColumns, Topic};
use crate::predict::relation::{BlockAddress, Relation};
use crate::{Corrupt, corrupt};

/// Ranks in move-to-front lists.
const RANKS: u64 = MoveToFrontList::MAX_VALUES as u64;

/// Relations and blocks of earlier records.
#[derive(Default)]
pub struct BlockRefs {
    /// By number, in the order of first use.
    relations: Vec<RelFileLocator>,
    /// When encoding: the number of each relation. Decoding does not need this map: a hostile file could
    /// contain relations whose hashes collide.
    numbers: FxHashMap<RelFileLocator, u32>,
    /// Latest blocks, by relation and fork.
    blocks: Vec<Vec<(u8, MoveToFrontList)>>,
}

impl BlockRefs {
    /// Codes the number of a relation, or its locator on first use.
    pub fn relation<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: &Shape,
        relation: Option<RelFileLocator>,
    ) -> Result<u32, Corrupt> {
        const NEW: u64 = 0;
        let known = relation.and_then(|relation| self.numbers.get(&relation).copied());
        let symbol = || match known {
            None => NEW,
            Some(number) => 1 + u64::from(number),
        };
        let number = match current.coder.symbol_with(shape.relations, symbol)? {
            NEW => self.new_relation(current, relation.unwrap_or_default())?,
            symbol => narrow(symbol - 1)?,
        };
        if number as usize >= self.relations.len() {
            return Err(corrupt("cannot decode a relation: expected the number of a known one"));
        }
        Ok(number)
    }

    fn new_relation<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        relation: RelFileLocator,
    ) -> Result<u32, Corrupt> {
        let bytes = current.coder.array(current.columns.relation_bytes, &relation.to_bytes())?;
        let relation = RelFileLocator::from_bytes(bytes);
        let number = self.relations.len() as u32;
        self.relations.push(relation);
        if current.source.is_some() {
            self.numbers.insert(relation, number);
        }
        Ok(number)
    }

    /// Codes the number of a block in a relation's fork: its rank among the latest blocks, the block after
    /// the last one, or a number.
    pub fn block<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        keyed_columns: &mut KeyedColumns,
        shape: &Shape,
        (relation, fork): (u32, u8),
        block: u32,
    ) -> Result<BlockAddress, Corrupt> {
        const NEW: u64 = 0;
        const AFTER_LAST: u64 = 1 + RANKS;
        let locator = self.relations.get(relation as usize);
        let locator = *locator
            .ok_or_else(|| corrupt("cannot decode a relation: expected the number of a known one"))?;
        current.coder.set_relation(Some(locator));
        let recent = self.recent_blocks(relation, fork);
        let last = recent.last();
        let is_next = |last: u32| last.wrapping_add(1) == block;
        let symbol = || match recent.rank(block) {
            0 if last.is_some_and(is_next) => AFTER_LAST,
            0 => NEW,
            rank => rank,
        };
        let block = match current.coder.symbol_with(shape.block_ranks, symbol)? {
            rank @ 1..=RANKS => recent
                .promote(rank)
                .ok_or_else(|| corrupt("cannot decode a block number: expected the rank of a recent one"))?,
            symbol => {
                let block = match symbol {
                    NEW => {
                        let key = [relation, fork.into(), 0];
                        let kind = Kind::Rows(Class::Blocks, 4);
                        let column = keyed_columns.column(current.coder, Topic::NewBlocks, key, kind)?;
                        u32::from_le_bytes(current.coder.array(column, &block.to_le_bytes())?)
                    }
                    _ => last
                        .ok_or_else(|| corrupt("cannot decode a block number: expected an earlier block"))?
                        .wrapping_add(1),
                };
                recent.push(block);
                block
            }
        };
        Ok(BlockAddress { relation: Relation { number: relation, locator }, fork, block })
    }

    fn recent_blocks(&mut self, relation: u32, fork: u8) -> &mut MoveToFrontList {
        let at = relation as usize;
        if at >= self.blocks.len() {
            self.blocks.resize_with(at + 1, Vec::new);
        }
        let forks = &mut self.blocks[at];
        let known = forks.iter().position(|(known, _)| *known == fork);
        let number = known.unwrap_or_else(|| {
            forks.push((fork, MoveToFrontList::default()));
            forks.len() - 1
        });
        &mut forks[number].1
    }
}
