//! Items in the records of index access methods: reads their lists, and reconstructs them by comparing pages.

use walden_format::payload::offset_numbers;
use walden_format::reader::Reader;

use crate::manager::MAX_BLOCK_DATA_BYTES;
use crate::page::{Misfit, Page, index_tuple, max_align};
use crate::step::Step;

/// Returns a field that the record must have.
#[inline]
pub(crate) fn field<T>(value: Option<T>) -> Result<T, Misfit> {
    value.ok_or(Misfit("the record's data is too short"))
}

/// Reads `count` numbers of line pointers.
pub(crate) fn numbers(reader: &mut Reader<'_>, count: impl Into<usize>) -> Result<Vec<u16>, Misfit> {
    let bytes = field(reader.take(count.into() * 2))?;
    Ok(offset_numbers(bytes).collect())
}

/// Reads numbers of line pointers up to the end of the data.
pub(crate) fn all_numbers(data: &[u8]) -> Result<Vec<u16>, Misfit> {
    if !data.len().is_multiple_of(2) {
        return Err(Misfit("the record's data ends within a number"));
    }
    numbers(&mut Reader::new(data), data.len() / 2)
}

/// Reads an index tuple.
pub(crate) fn read_index_tuple<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    sized_index_tuple(reader, |size| size)
}

/// Reads an index tuple and the padding after it.
pub(crate) fn read_padded_index_tuple<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Misfit> {
    sized_index_tuple(reader, max_align)
}

fn sized_index_tuple<'a>(reader: &mut Reader<'a>, bytes: fn(usize) -> usize) -> Result<&'a [u8], Misfit> {
    let size = index_tuple::size(reader.rest()).ok_or(Misfit("an index tuple has no sound size"))?;
    field(reader.take(bytes(size)))
}

/// Returns a page to initialize, which the record must announce; `None` if the page is newer than the record.
pub(crate) fn new_page<'s>(step: &'s mut Step<'_, '_>, id: u8) -> Result<Option<&'s mut Page>, Misfit> {
    match step.block(id) {
        Some(block) if block.will_init => Ok(step.init(id)),
        _ => Err(Misfit("the record does not announce the page that it makes")),
    }
}

/// Returns the items that were added to a page last, in their order: the line pointer number that each got
/// when it was added (later insertions may have moved it) and its bytes.
///
/// A new item is placed below all other items (`PageAddItemExtended`), so the items with the lowest offsets
/// are the newest. `None` if the page has fewer items, or if they are too long for a block's data.
pub(crate) fn newest_items(page: &Page, count: impl Into<usize>) -> Option<Vec<(u16, &[u8])>> {
    let mut items = Vec::with_capacity(page.items().into());
    for number in 1..=page.items() {
        items.push((page.line_pointer(number)?.offset(), number));
    }
    items.sort_unstable();
    let newest = items.get_mut(..count.into())?;
    newest.reverse();
    let bytes: usize = newest.iter().filter_map(|&(_, number)| page.item(number)).map(<[u8]>::len).sum();
    if bytes > MAX_BLOCK_DATA_BYTES {
        return None;
    }
    let shown_at = |index: usize| {
        let (_, number) = newest[index];
        let moved_on_by = newest[index + 1..].iter().filter(|later| later.1 < number).count();
        Some((number - moved_on_by as u16, page.item(number)?))
    };
    (0..newest.len()).map(shown_at).collect()
}

/// Returns the numbers of the items that were deleted from a page, given that its first `kept` items remain;
/// `None` if the page changed in another way.
pub(crate) fn missing_items(before: &Page, after: &Page, kept: u16) -> Option<Vec<u16>> {
    let mut missing = Vec::new();
    let mut next = 1;
    for number in 1..=before.items() {
        if next <= kept && before.item(number)? == after.item(next)? {
            next += 1;
        } else {
            missing.push(number);
        }
    }
    (next == kept + 1).then_some(missing)
}

/// Records with arbitrary content on pages with arbitrary content.
#[cfg(test)]
pub(crate) mod hostile {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use walden_format::lsn::Lsn;
    use walden_format::record::{Fork, RecordHeader, RelFileLocator, decode};
    use walden_format::rmgr;
    use walden_format::version::Major;

    use crate::check::Check;
    use crate::page::{PAGE_BYTES, Page};
    use crate::replay::Replay;
    use crate::store::{BlockKey, LastRecord};

    const RELATION: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 16384 };

    /// A record of one resource manager, the pages before it, and its images.
    #[derive(Clone, Debug)]
    pub struct Case {
        kind: u8,
        main: Vec<u8>,
        blocks: Vec<Block>,
    }

    #[derive(Clone, Debug)]
    struct Block {
        data: Vec<u8>,
        before: Page,
        image: Option<Page>,
        will_init: bool,
    }

    /// Generates cases whose pages mostly end with one of `specials`, and whose data is mostly small numbers.
    pub fn cases(specials: &'static [&'static [u8]]) -> impl Strategy<Value = Case> {
        let byte = || prop_oneof![4 => 0_u8..4, 1 => any::<u8>()];
        let block =
            (vec(byte(), 0..60), pages(specials), proptest::option::of(pages(specials)), any::<bool>());
        let block = block.prop_map(|(data, before, image, will_init)| {
            let will_init = will_init && image.is_none();
            Block { data, before, image, will_init }
        });
        (0_u8..16, vec(byte(), 0..90), vec(block, 1..7)).prop_map(|(kind, main, blocks)| Case {
            kind: kind << 4,
            main,
            blocks,
        })
    }

    fn pages(specials: &'static [&'static [u8]]) -> impl Strategy<Value = Page> {
        let items = vec((1_u16..9, vec(prop_oneof![0_u8..4, any::<u8>()], 0..24)), 0..9);
        let flips = vec((prop_oneof![0..80_usize, 0..PAGE_BYTES], any::<u8>()), 0..3);
        (proptest::sample::select(specials), items, flips).prop_map(|(special, items, flips)| {
            let mut page = Page::default();
            page.init(special.len());
            for (number, item) in items {
                let _ = page.insert_item(&item, number);
            }
            page.0[PAGE_BYTES - special.len()..].copy_from_slice(special);
            flips.into_iter().for_each(|(at, byte)| page.0[at] = byte);
            page.set_lsn(Lsn(1));
            page
        })
    }

    /// Replays the case, and compares its images with the result of replay without them.
    pub fn replay(rmid: u8, case: &Case) {
        let bytes = case.record(rmid);
        for version in [Major::V15, Major::V18] {
            let kind = rmgr::kind(version, rmid, case.kind);
            let mut replay = Replay::default();
            for (number, block) in (0..).zip(&case.blocks) {
                let slot =
                    replay.store.slot(BlockKey { relation: RELATION, fork: Fork::MAIN, block: number });
                replay.store.put(slot, crate::PageBox::from(&block.before), LastRecord { lsn: Lsn(1), kind });
            }
            let mut blocks = Vec::new();
            let header = RecordHeader::parse(&bytes).unwrap();
            let place = (Lsn(0x100), Lsn(0x200));
            let record = decode(&bytes, header, place, version, PAGE_BYTES as u32, &mut blocks).unwrap();
            replay.apply(&record, &mut Check::default());
        }
    }

    impl Case {
        fn record(&self, rmid: u8) -> Vec<u8> {
            let (mut headers, mut bodies) = (vec![0; 24], Vec::new());
            for (number, block) in (0_u32..).zip(&self.blocks) {
                let data = if block.image.is_some() { &[] } else { &block.data[..] };
                let flags = u8::from(block.image.is_some()) << 4
                    | u8::from(!data.is_empty()) << 5
                    | u8::from(block.will_init) << 6;
                headers.extend([number as u8, flags, data.len() as u8, 0]);
                if let Some(image) = &block.image {
                    headers.extend((PAGE_BYTES as u16).to_le_bytes());
                    headers.extend([0, 0, 2]);
                    bodies.extend(image.0);
                }
                for word in [RELATION.tablespace, RELATION.database, RELATION.relation, number] {
                    headers.extend(word.to_le_bytes());
                }
                bodies.extend(data);
            }
            if !self.main.is_empty() {
                headers.extend([255, self.main.len() as u8]);
            }
            let mut bytes = [&headers, &bodies, &self.main[..]].concat();
            let total = bytes.len() as u32;
            bytes[..4].copy_from_slice(&total.to_le_bytes());
            bytes[16..18].copy_from_slice(&[self.kind, rmid]);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(items: &[(u16, &[u8])]) -> Page {
        let mut page = Page::default();
        page.init(16);
        for (number, item) in items {
            page.insert_item(item, *number).unwrap();
        }
        page
    }

    #[test]
    fn the_newest_items_are_in_the_order_in_which_they_came() {
        let page = page_of(&[
            (1, b"old-one-"),
            (2, b"old-two-"),
            (2, b"new-one-"),
            (1, b"new-two-"),
            (5, b"new-3---"),
        ]);
        let newest = newest_items(&page, 3_u16).unwrap();
        assert_eq!(newest, [(2, &b"new-one-"[..]), (1, b"new-two-"), (5, b"new-3---")]);
        assert!(newest_items(&page, 6_u16).is_none());
    }

    #[test]
    fn items_that_exceed_a_blocks_data_are_not_found() {
        let mut page = page_of(&[(1, &[7; 4096])]);
        let pointer = page.line_pointer(1).unwrap();
        for number in 2..=17 {
            page.insert_item(&[8; 8], number).unwrap();
            page.set_line_pointer(number, pointer).unwrap();
        }
        assert!(newest_items(&page, 15_u16).is_some());
        assert!(newest_items(&page, 17_u16).is_none());
    }

    #[test]
    fn missing_items_are_found_whatever_came_behind() {
        let before = page_of(&[(1, b"aaaaaaaa"), (2, b"bbbbbbbb"), (3, b"cccccccc"), (4, b"dddddddd")]);
        let after = page_of(&[(1, b"bbbbbbbb"), (2, b"dddddddd"), (3, b"eeeeeeee")]);
        assert_eq!(missing_items(&before, &after, 2), Some(vec![1, 3]));
        assert_eq!(missing_items(&before, &after, 3), None);
        assert_eq!(missing_items(&before, &before, 4), Some(vec![]));
    }

    #[test]
    fn index_tuples_are_as_long_as_they_say() {
        let tuple = [0, 0, 1, 0, 2, 0, 12, 0x40, 1, 2, 3, 4, 0, 0, 0, 0];
        assert_eq!(read_index_tuple(&mut Reader::new(&tuple)), Ok(&tuple[..12]));
        assert_eq!(read_padded_index_tuple(&mut Reader::new(&tuple)), Ok(&tuple[..]));
        assert!(read_padded_index_tuple(&mut Reader::new(&tuple[..15])).is_err());
        assert!(read_index_tuple(&mut Reader::new(&[0; 8])).is_err());
    }
}
