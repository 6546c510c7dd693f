//! Which relations and blocks a record is about.

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

/// Ranks in move-to-front lists.
const RANKS: u64 = MoveToFrontList::MAX_VALUES as u64;

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
    /// Codes the number of a relation: its rank among the latest ones of records of the shape, its number, or its name.
    pub fn relation<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: &mut Shape,
        relation: Option<RelFileLocator>,
    ) -> Result<u32, Corrupt> {
        const NEW: u64 = 0;
        let known = relation.and_then(|relation| self.numbers.get(&relation).copied());
        let symbol = || match known {
            None => NEW,
            Some(number) if !current.cases.has(Case::RelationRanks) => 1 + RANKS + u64::from(number),
            Some(number) => match shape.relations.rank(number) {
                0 => 1 + RANKS + u64::from(number),
                rank => rank,
            },
        };
        let number = match current.coder.symbol_with(shape.relation, symbol)? {
            rank @ 1..=RANKS => {
                return shape
                    .relations
                    .promote(rank)
                    .ok_or_else(|| corrupt("cannot decode a relation: expected the rank of a recent one"));
            }
            NEW => self.new_relation(current, relation.unwrap_or_default())?,
            number => narrow(number - 1 - RANKS)?,
        };
        if number as usize >= self.relations.len() {
            return Err(corrupt("cannot decode a relation: expected the number of a known one"));
        }
        shape.relations.push(number);
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

    /// Codes which block of a relation's fork it is: its rank among the latest ones, the one after the last, or any.
    pub fn block<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        names: &mut Names,
        shape: &Shape,
        (relation, fork): (u32, u8),
        block: u32,
    ) -> Result<Place, Corrupt> {
        const NEW: u64 = 0;
        const AFTER_LAST: u64 = 1 + RANKS;
        let locator = self.relations.get(relation as usize);
        let locator = *locator
            .ok_or_else(|| corrupt("cannot decode a relation: expected the number of a known one"))?;
        current.coder.set_relation(Some(locator));
        let recent = self.recent_blocks(relation, fork);
        let last = recent.last();
        let cases = current.cases;
        let is_next = |last: u32| last.wrapping_add(1) == block && cases.has(Case::NextBlocks);
        let symbol = || match if cases.has(Case::BlockRanks) { recent.rank(block) } else { 0 } {
            0 if last.is_some_and(is_next) => AFTER_LAST,
            0 => NEW,
            rank => rank,
        };
        let block = match current.coder.symbol_with(shape.block, symbol)? {
            rank @ 1..=RANKS => recent
                .promote(rank)
                .ok_or_else(|| corrupt("cannot decode a block number: expected the rank of a recent one"))?,
            symbol => {
                let block = match symbol {
                    NEW => {
                        let like = [relation, fork.into(), 0];
                        let kind = Kind::Rows(Class::Blocks, 4);
                        let column = names.column(current.coder, Topic::NewBlock, like, kind)?;
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
