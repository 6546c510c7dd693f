//! Codes main data that moves leaf tuples of an SP-GiST index (`spgxlogMoveLeafs`, `spgxlogPickSplit`). The
//! tuples are copied from those that the page loses, in the order of their chain.

use walden_format::payload::spgist::MovedLeafs;

use super::leaf::next_in_chain;
use super::moved_tuples::Cause;
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::predict::{TupleCoder, expect_block_data};
use crate::{Corrupt, corrupt};

/// Columns of the fields before the leaf tuples.
struct HeadColumns {
    structure: Column,
    pages: Column,
    from: Column,
    to: Column,
    inner_lengths: Column,
    inner_tuples: Column,
}

/// Returns offset numbers as stored in records.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|&number| u16::from_le_bytes(number))
}

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the main data and appends it to `out`.
    pub fn moved_leafs(
        &mut self,
        page: BlockAddress,
        info: u8,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let wrong = || corrupt("cannot decode leaf tuples: expected a record that moves them");
        let width = MovedLeafs::width(info).ok_or_else(wrong)?;
        let columns = self.head_columns((page.relation.number, info), width)?;
        let parts = source.and_then(|main| MovedLeafs::read(info, main)?.split(main));
        let [structure, from, to, pages, inner, leafs] = parts.unwrap_or_default();
        let start = out.len();
        self.coder.bytes(columns.structure, structure, width, out)?;
        let moved = MovedLeafs::read(info, &out[start..]).ok_or_else(wrong)?;
        let mut target_pages = Vec::new();
        if moved.has_inner_tuple {
            self.coder.bytes(columns.pages, pages, moved.inserts, &mut target_pages)?;
        }
        let from = self.removed_numbers(columns.from, page, moved.deletes, parts.map(|_| from))?;
        from.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        let mut last = [0; 2];
        let mut to = numbers(to);
        for at in 0..moved.inserts {
            let last = &mut last[usize::from(target_pages.get(at).is_some_and(|&page| page != 0))];
            *last = self.line_pointer(columns.to, *last, to.next())?;
            out.extend_from_slice(&last.to_le_bytes());
        }
        out.extend_from_slice(&target_pages);
        if moved.has_inner_tuple {
            let len = self.coder.symbol(columns.inner_lengths, inner.len() as u64)?;
            let len = u16::try_from(len).map_err(|_| wrong())?;
            self.coder.bytes(columns.inner_tuples, inner, len.into(), out)?;
        }
        expect_block_data(out.len())?;
        self.moved_tuples(Cause::Split, (page, Some(&from)), parts.map(|_| leafs), out)?;
        self.keys.skip_expected(page.relation.number);
        Ok(())
    }

    fn head_columns(&mut self, (relation, info): (u32, u8), width: usize) -> Result<HeadColumns, Corrupt> {
        let mut column = |topic: Topic, kind: Kind| {
            self.keyed_columns.column(self.coder, topic, [relation, info.into(), 0], kind)
        };
        let number = Kind::Rows(Class::MainData, MovedLeafs::NUMBER_BYTES as u16);
        Ok(HeadColumns {
            structure: column(Topic::MovedHeads, Kind::Rows(Class::MainData, width as u16))?,
            pages: column(Topic::MovedPages, Kind::Bytes(Class::MainData))?,
            from: column(Topic::MovedFrom, number)?,
            to: column(Topic::MovedTo, number)?,
            inner_lengths: column(Topic::InnerLengths, Kind::Symbols(Class::MainData))?,
            inner_tuples: column(Topic::InnerTuples, Kind::Bytes(Class::MainData))?,
        })
    }

    /// Codes the offset numbers of the tuples that a page loses: mostly the tuples of a chain, in its order.
    fn removed_numbers(
        &mut self,
        column: Column,
        page: BlockAddress,
        count: usize,
        source: Option<&[u8]>,
    ) -> Result<Vec<u16>, Corrupt> {
        let slot = self.store.find(page.key());
        let mut source = source.map(numbers);
        let mut all = Vec::new();
        let mut expected = 0;
        for _ in 0..count {
            let number = self.line_pointer(column, expected, source.as_mut().and_then(Iterator::next))?;
            all.push(number);
            let page = slot.and_then(|slot| self.store.page(slot));
            expected = page.map_or(0, |page| next_in_chain(page, number));
        }
        Ok(all)
    }

    /// Codes an offset number as the distance from an expected one.
    fn line_pointer(&mut self, column: Column, expected: u16, source: Option<u16>) -> Result<u16, Corrupt> {
        let distance = source.unwrap_or(0).wrapping_sub(expected);
        let distance = self.coder.array(column, &distance.to_le_bytes())?;
        Ok(u16::from_le_bytes(distance).wrapping_add(expected))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use walden_format::lsn::Lsn;
    use walden_format::payload::spgist::XlSpgistAddLeaf;
    use walden_format::record::RelFileLocator;
    use walden_format::rmgr::info::spgist::{MOVE_LEAFS, PICKSPLIT};
    use walden_format::rmgr::{self, rmid};
    use walden_format::version::Major;
    use walden_redo::page::SpecialArea;
    use walden_redo::page::spgist::SpGistPageOpaqueData;
    use walden_redo::{LastRecord, PageBox, PageStore};

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::predict::Predictors;
    use crate::predict::index::leaf::NewLeaf;
    use crate::predict::relation::Relation;

    const LEAF_BYTES: usize = 32;

    fn address() -> BlockAddress {
        let locator = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };
        BlockAddress { relation: Relation { number: 0, locator }, fork: 0, block: 7 }
    }

    fn leaf(next: u16, seed: u8) -> Vec<u8> {
        let mut leaf = vec![seed; LEAF_BYTES];
        leaf[..4].copy_from_slice(&((LEAF_BYTES as u32) << 2).to_le_bytes());
        leaf[4..6].copy_from_slice(&next.to_le_bytes());
        leaf[12..16].fill(0);
        leaf
    }

    /// Returns a store with a page of leaf tuples in one chain.
    fn store(leafs: u16) -> PageStore {
        let mut page = PageBox::default();
        page.init(SpGistPageOpaqueData::BYTES);
        for number in 1..=leafs {
            let next = if number < leafs { number + 1 } else { 0 };
            page.insert_item(&leaf(next, number as u8), number).unwrap();
        }
        let mut store = PageStore::default();
        let slot = store.slot(address().key());
        let kind = rmgr::kind(Major::V15, rmid::SPGIST, PICKSPLIT);
        store.put(slot, page, LastRecord { lsn: Lsn(1), kind });
        store
    }

    /// Returns main data that moves the page's leaf tuples in the order of their chain, with changed links,
    /// and a new tuple.
    fn main_data(info: u8, leafs: u16, seeds: &[u8]) -> Vec<u8> {
        let inserted = leafs + 1;
        let mut main = vec![0; MovedLeafs::width(info).unwrap()];
        if info == PICKSPLIT {
            main[2..4].copy_from_slice(&leafs.to_le_bytes());
            main[4..6].copy_from_slice(&inserted.to_le_bytes());
        } else {
            main[..2].copy_from_slice(&leafs.to_le_bytes());
        }
        (1..=leafs).for_each(|number| main.extend(number.to_le_bytes()));
        (0..inserted).for_each(|number| main.extend((number * 3 % 50).to_le_bytes()));
        if info == PICKSPLIT {
            main.extend((0..inserted).map(|number| (number % 2) as u8));
            main.extend([1, 0, 0, 0, 16, 0]);
            main.extend([9; 10]);
        }
        (1..=leafs).for_each(|number| main.extend(leaf(number * 7, number as u8)));
        main.extend(leaf(3, seeds[0]));
        main
    }

    fn decoded<T>(
        coder: &mut Encoder,
        mut store: PageStore,
        decode: impl FnOnce(&mut TupleCoder<'_, Decoder>) -> Result<T, Corrupt>,
    ) -> Result<T, Corrupt> {
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut coder, mut predictors) = (Decoder::default(), Predictors::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20)?;
        decode(&mut predictors.tuple_coder(&mut coder, &mut store))
    }

    proptest! {
        #[test]
        fn moved_leafs_come_back(leafs in 1..150_u16, seed in any::<u8>(), is_split in any::<bool>()) {
            let info = if is_split { PICKSPLIT } else { MOVE_LEAFS };
            let main = main_data(info, leafs, &[seed]);
            let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
            let (mut out, mut pages) = (Vec::new(), store(leafs));
            let mut tuples = predictors.tuple_coder(&mut coder, &mut pages);
            tuples.moved_leafs(address(), info, Some(&main), &mut out).unwrap();
            prop_assert_eq!(&out, &main);
            let back = decoded(&mut coder, store(leafs), |coder| {
                let mut out = Vec::new();
                coder.moved_leafs(address(), info, None, &mut out)?;
                Ok(out)
            });
            prop_assert_eq!(back.unwrap(), main);
        }

        /// Any numbers before the tuple, even if they do not fit the page.
        #[test]
        fn new_leafs_come_back(
            leafs in 0..100_u16,
            places in proptest::collection::vec(prop_oneof![0..120_u16, any::<u16>()], 3),
        ) {
            let add = XlSpgistAddLeaf {
                is_new_page: false,
                stores_nulls: false,
                leaf_offset: places[0],
                head_offset: places[1],
                parent_offset: 0,
                parent_node: 0,
            };
            let main = [&add.to_bytes()[..], &leaf(places[2] & 0x3FFF, 5)].concat();
            let new = NewLeaf::parse(&main).unwrap();
            let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
            let (mut out, mut pages) = (Vec::new(), store(leafs));
            let mut tuples = predictors.tuple_coder(&mut coder, &mut pages);
            tuples.new_leaf(address(), Some(&new), &mut out).unwrap();
            prop_assert_eq!(&out, &main);
            let back = decoded(&mut coder, store(leafs), |coder| {
                let mut out = Vec::new();
                coder.new_leaf(address(), None, &mut out)?;
                Ok(out)
            });
            prop_assert_eq!(back.unwrap(), main);
        }

        /// Decoding of arbitrary columns terminates, with no more bytes than a record's main data can have.
        #[test]
        fn any_columns_end(
            structure in proptest::collection::vec(any::<u8>(), 28),
            numbers in proptest::collection::vec(any::<u16>(), 0..200),
            lengths in proptest::collection::vec(0..70_000_u64, 0..4),
            copies in proptest::collection::vec((0..300_u64, 0..9000_u64, any::<u32>()), 0..40),
            wide in any::<bool>(),
        ) {
            let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
            let (mut out, mut pages) = (Vec::new(), store(100));
            let mut tuples = predictors.tuple_coder(&mut coder, &mut pages);
            let columns = tuples.head_columns((0, PICKSPLIT), structure.len()).unwrap();
            // Usually fewer tuples than the column has numbers for.
            let structure = [&structure[..2], &[structure[2], 0, structure[4], 0], &structure[6..]].concat();
            tuples.coder.bytes(columns.structure, &structure, 28, &mut out).unwrap();
            tuples.coder.bytes(columns.pages, &[1; 300], 300, &mut out).unwrap();
            tuples.coder.bytes(columns.inner_tuples, &[7; 300], 300, &mut out).unwrap();
            for number in numbers {
                tuples.coder.array(columns.from, &number.to_le_bytes()).unwrap();
                tuples.coder.array(columns.to, &number.to_le_bytes()).unwrap();
            }
            let kind = Kind::Symbols(Class::BlockData);
            let key = [0, Cause::Split as u32, 0];
            let moved = tuples.keyed_columns.column(tuples.coder, Topic::MovedLengths, key, kind).unwrap();
            for length in lengths {
                tuples.coder.symbol(columns.inner_lengths, length % 300).unwrap();
                tuples.coder.symbol(moved, length).unwrap();
            }
            let columns = tuples.copy_columns(0, Cause::Split as u32).unwrap();
            columns.put_any(tuples.coder, &copies, wide);
            let back = decoded(&mut coder, store(100), |coder| {
                let mut out = Vec::new();
                coder.moved_leafs(address(), PICKSPLIT, None, &mut out)?;
                Ok(out)
            });
            if let Ok(back) = back {
                prop_assert!(back.len() <= 2 * usize::from(u16::MAX));
            }
        }
    }

    #[test]
    fn a_page_that_is_not_known_is_an_error() {
        let main = main_data(PICKSPLIT, 9, &[1]);
        let (mut coder, mut predictors) = (Encoder::default(), Predictors::default());
        let mut pages = store(9);
        let mut tuples = predictors.tuple_coder(&mut coder, &mut pages);
        tuples.moved_leafs(address(), PICKSPLIT, Some(&main), &mut Vec::new()).unwrap();
        let back = decoded(&mut coder, PageStore::default(), |coder| {
            coder.moved_leafs(address(), PICKSPLIT, None, &mut Vec::new())
        });
        assert!(back.unwrap_err().0.contains("expected a known page"));
    }
}
