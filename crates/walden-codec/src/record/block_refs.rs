//! Which relations and blocks a record is about.
//!
//! A relation is coded by its number, in a column of the record's shape: records of a shape are of few relations, and entropy coding
//! learns which follow each other. A block is coded by its rank among the last ones of its relation's fork, as changes of a block come
//! in groups.

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;

use super::Current;
use super::shape::Shape;
use crate::cases::Case;
use crate::columns::{Class, Coder, Kind, narrow};
use crate::move_to_front::MoveToFrontList;
use crate::predict::names::{Names, Topic};
use crate::predict::relation::{Place, Relation};
use crate::{Corrupt, corrupt};

/// The relations and blocks of the records before.
#[derive(Default)]
pub struct BlockRefs {
    /// By number, in the order in which they were met.
    relations: Vec<RelFileLocator>,
    numbers: FxHashMap<RelFileLocator, u32>,
    /// By relation and fork, its latest blocks.
    blocks: Vec<Vec<(u8, MoveToFrontList)>>,
}

impl BlockRefs {
    /// Codes the number of a relation, or its name if it is met first.
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
        let number = match current.coder.symbol_with(shape.relation, symbol)? {
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
        self.numbers.insert(relation, number);
        Ok(number)
    }

    /// Codes which block of a relation's fork it is: its rank among the latest ones, or its number.
    pub fn block<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        names: &mut Names,
        shape: &Shape,
        (relation, fork): (u32, u8),
        block: u32,
    ) -> Result<Place, Corrupt> {
        const NEW: u64 = 0;
        let locator = self.relations.get(relation as usize);
        let locator = *locator
            .ok_or_else(|| corrupt("cannot decode a relation: expected the number of a known one"))?;
        current.coder.set_relation(Some(locator));
        let recent = self.recent_blocks(relation, fork);
        let has_ranks = current.cases.has(Case::BlockRanks);
        let symbol = || if has_ranks { recent.rank(block) } else { NEW };
        let block = match current.coder.symbol_with(shape.block, symbol)? {
            NEW => {
                let like = [relation, fork.into(), 0];
                let kind = Kind::Rows(Class::Blocks, 4);
                let column = names.column(current.coder, Topic::NewBlock, like, kind)?;
                let block = u32::from_le_bytes(current.coder.array(column, &block.to_le_bytes())?);
                recent.push(block);
                block
            }
            rank => recent
                .promote(rank)
                .ok_or_else(|| corrupt("cannot decode a block number: expected the rank of a recent one"))?,
        };
        Ok(Place { relation: Relation { number: relation, locator }, fork, block })
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
