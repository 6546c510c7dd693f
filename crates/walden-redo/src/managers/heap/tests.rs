use proptest::prelude::*;
use walden_format::lsn::Lsn;
use walden_format::record::{RecordHeader, RelFileLocator, decode};
use walden_format::rmgr::info::heap::{DELETE, HOT_UPDATE, INIT_PAGE, INSERT};
use walden_format::rmgr::info::heap2::{MULTI_INSERT, PRUNE, VISIBLE};
use walden_format::rmgr::rmid;

use super::*;
use crate::check::Check;
use crate::page::heap_tuple::{HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, infomask2};
use crate::page::{LinePointer, PAGE_BYTES, PAGE_HEADER_BYTES, Tid, flags};
use crate::store::BlockKey;
use crate::{PageBox, Replay};

const TABLE: RelFileLocator = RelFileLocator { tablespace: 1663, database: 1, relation: 2 };
const XID: u32 = 700;

/// A block of a record that a test assembles.
#[derive(Clone, Debug)]
struct Block {
    id: u8,
    fork: Fork,
    number: u32,
    will_init: bool,
    image: Option<PageBox>,
    image_use: ImageUse,
    data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
enum ImageUse {
    #[default]
    Restored,
    /// Restored; all bytes after the header are a hole.
    WithHole,
    /// Only for `wal_consistency_checking`.
    Compared,
}

impl Block {
    fn new(id: u8, number: u32) -> Block {
        let image_use = ImageUse::default();
        Block { id, fork: Fork::MAIN, number, will_init: false, image: None, image_use, data: Vec::new() }
    }

    fn map(id: u8) -> Block {
        Block { fork: Fork::VISIBILITY_MAP, ..Block::new(id, 0) }
    }
}

/// Replays records one after the other, and checks them.
struct Log {
    replay: Replay,
    check: Check,
    end: Lsn,
    version: Major,
}

impl Log {
    fn new(version: Major) -> Log {
        Log { replay: Replay::default(), check: Check::default(), end: Lsn(0), version }
    }

    /// Makes a page known.
    fn knows(&mut self, fork: Fork, number: u32, page: &Page) {
        let image = Some(PageBox::from(page));
        self.write((rmid::XLOG, 0xB0), &[Block { image, fork, ..Block::new(0, number) }], &[]);
    }

    fn write(&mut self, (rmid, info): (u8, u8), blocks: &[Block], main: &[u8]) {
        let mut bytes = vec![0; 24];
        for block in blocks {
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            let parts = flag(block.image.is_some(), 0x10)
                | flag(!block.data.is_empty(), 0x20)
                | flag(block.will_init, 0x40);
            bytes.extend([block.id, block.fork.0 | parts]);
            bytes.extend((block.data.len() as u16).to_le_bytes());
            if block.image.is_some() {
                // The length, the hole's offset, and the flag that the image is to be restored, which is
                // another bit before 15.
                let restored = if self.version >= Major::V15 { 2 } else { 4 };
                bytes.extend(match block.image_use {
                    ImageUse::Restored => [0, 32, 0, 0, restored],
                    ImageUse::WithHole => {
                        [PAGE_HEADER_BYTES as u8, 0, PAGE_HEADER_BYTES as u8, 0, restored | 1]
                    }
                    ImageUse::Compared => [0, 32, 0, 0, 0],
                });
            }
            let words = [TABLE.tablespace, TABLE.database, TABLE.relation, block.number];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        if !main.is_empty() {
            bytes.extend([255, main.len() as u8]);
        }
        for block in blocks {
            let stored = if block.image_use == ImageUse::WithHole { PAGE_HEADER_BYTES } else { PAGE_BYTES };
            bytes.extend(block.image.iter().flat_map(|page| &page.0[..stored]));
            bytes.extend(&block.data);
        }
        bytes.extend(main);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[4..8].copy_from_slice(&XID.to_le_bytes());
        bytes[16..18].copy_from_slice(&[info, rmid]);
        let place = (Lsn(self.end.0 + 0x1000), Lsn(self.end.0 + 0x10_0000));
        self.end = place.1;
        let (header, mut decoded) = (RecordHeader::parse(&bytes).unwrap(), Vec::new());
        let record = decode(&bytes, header, place, self.version, PAGE_BYTES as u32, &mut decoded).unwrap();
        self.replay.apply(&record, &mut self.check);
    }

    fn page(&mut self, fork: Fork, block: u32) -> Option<PageBox> {
        let slot = self.replay.store.slot(BlockKey { relation: TABLE, fork, block });
        let mut page = PageBox::default();
        self.replay.store.read(slot, &mut page).then_some(page)
    }

    fn map(&mut self) -> PageBox {
        self.page(Fork::VISIBILITY_MAP, 0).unwrap()
    }
}

/// Returns the logged fields of a header without a null bitmap, and the attributes.
fn logged(attributes: &[u8]) -> Vec<u8> {
    [&[5, 0, 0, 8, 24, 0], attributes].concat()
}

fn insert(log: &mut Log, number: u16, attributes: &[u8]) {
    let [low, high] = number.to_le_bytes();
    let init = number == 1;
    let data = logged(attributes);
    let info = if init { INSERT | INIT_PAGE } else { INSERT };
    log.write((rmid::HEAP, info), &[Block { data, will_init: init, ..Block::new(0, 7) }], &[low, high, 0]);
}

fn map_page(byte: u8) -> Page {
    let mut page = Page::default();
    page.init(0);
    page.0[PAGE_HEADER_BYTES..].fill(byte);
    page
}

#[test]
fn an_update_takes_beginning_and_end_from_the_old_row_version() {
    let mut log = Log::new(Major::V17);
    insert(&mut log, 1, b"begin-old-end");
    // Old xmax, line pointer, infobits, flags (prefix and suffix), new xmax, line pointer.
    let main = [&XID.to_le_bytes()[..], &[1, 0, 0x10, 0x60], &[0; 4], &[2, 0]].concat();
    let data = [&[6, 0, 4, 0][..], &logged(b"newer")].concat();
    log.write((rmid::HEAP, HOT_UPDATE), &[Block { data, ..Block::new(0, 7) }], &main);
    let page = log.page(Fork::MAIN, 7).unwrap();
    assert_eq!(&page.normal_item(2).unwrap()[24..], b"begin-newer-end");
    let old = HeapTupleHeader::parse(page.normal_item(1).unwrap()).unwrap();
    assert_eq!((old.xmin(), old.xmax(), old.ctid()), (XID, XID, Tid { block: 7, offset_number: 2 }));
    assert_eq!(old.infomask2() & infomask2::HEAP_HOT_UPDATED, infomask2::HEAP_HOT_UPDATED);
    assert_eq!(page.prune_xid(), XID);
    assert_eq!(page.lsn(), log.end);
}

#[test]
fn an_image_displaces_the_shortened_row_version_of_an_update() {
    let mut log = Log::new(Major::V17);
    insert(&mut log, 1, b"begin-old-end");
    let before = log.page(Fork::MAIN, 7).unwrap();
    let main = |flags| [&XID.to_le_bytes()[..], &[1, 0, 0x10, flags], &[0; 4], &[2, 0]].concat();
    let data = logged(b"begin-newer-end");
    log.write((rmid::HEAP, HOT_UPDATE), &[Block { data, ..Block::new(0, 7) }], &main(0));
    let image = log.page(Fork::MAIN, 7);
    let mut log = Log::new(Major::V17);
    log.knows(Fork::MAIN, 7, &before);
    log.write((rmid::HEAP, HOT_UPDATE), &[Block { image, ..Block::new(0, 7) }], &main(0));
    assert_eq!((log.check.total().exact, log.check.total().compared()), (1, 1));
}

/// Logical decoding requires the whole new row version, so that nothing is omitted from it
/// (`log_heap_update`).
#[test]
fn for_logical_decoding_the_new_row_version_is_whole() {
    const CONTAINS_NEW_TUPLE: u8 = 1 << 4;
    let mut log = Log::new(Major::V17);
    insert(&mut log, 1, b"begin-old-end");
    let main = [&XID.to_le_bytes()[..], &[1, 0, 0x10, CONTAINS_NEW_TUPLE], &[0; 4], &[2, 0]].concat();
    let block = Block { data: logged(b"begin-newer-end"), ..Block::new(0, 7) };
    let mut ahead = Log::new(Major::V17);
    insert(&mut ahead, 1, b"begin-old-end");
    ahead.write((rmid::HEAP, HOT_UPDATE), std::slice::from_ref(&block), &main);
    let block = Block { image: ahead.page(Fork::MAIN, 7), image_use: ImageUse::Compared, ..block };
    log.write((rmid::HEAP, HOT_UPDATE), &[block], &main);
    assert_eq!(log.check.reconstructed.values().copied().collect::<Vec<_>>(), [[1, 0, 0]]);
}

#[test]
fn a_map_is_cleared_with_its_lsn_only_where_the_record_refers_to_it() {
    for registered in [false, true] {
        let mut log = Log::new(Major::V17);
        log.knows(Fork::VISIBILITY_MAP, 0, &map_page(0xFF));
        let known = log.map().lsn();
        insert(&mut log, 1, b"a");
        let mut blocks = vec![Block::new(0, 7)];
        blocks.extend(registered.then(|| Block::map(1)));
        log.write((rmid::HEAP, DELETE), &blocks, &[9, 0, 0, 0, 1, 0, 0, 1]);
        let map = log.map();
        // Block 7 has the upper two bits of the second byte.
        assert_eq!(map.0[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + 3], [0xFF, 0x3F, 0xFF]);
        assert_eq!(map.lsn(), if registered { log.end } else { known });
    }
}

/// Writes `VISIBLE` of a block, with the map's page as PostgreSQL has it after the record, for comparison.
fn visible(log: &mut Log, heap_block: u32, map: &Page) {
    let image = Some(PageBox::from(map));
    let map = Block { image, image_use: ImageUse::Compared, ..Block::map(0) };
    log.write((rmid::HEAP2, VISIBLE), &[map, Block::new(1, heap_block)], &[0, 0, 0, 0, 3]);
}

/// Builds a map in which the given blocks have both bits.
fn map_of(blocks: &[u32]) -> Page {
    let mut page = map_page(0);
    for block in blocks {
        page.0[PAGE_HEADER_BYTES + *block as usize / 4] |= 3 << (block % 4 * 2);
    }
    page
}

/// `CREATE DATABASE` logs a map without bits, so PostgreSQL's redo lacks the bits that the map had.
#[test]
fn bits_that_create_database_does_not_log_are_no_difference() {
    let copied = |image_use| {
        let mut log = Log::new(Major::V17);
        let image = Some(PageBox::from(&map_of(&[4, 5])));
        log.write((rmid::XLOG, 0xB0), &[Block { image, image_use, ..Block::map(0) }], &[]);
        log
    };
    let mut log = copied(ImageUse::WithHole);
    assert_eq!(log.map().0[PAGE_HEADER_BYTES..], map_page(0).0[PAGE_HEADER_BYTES..]);
    visible(&mut log, 7, &map_of(&[4, 5, 7]));
    log.check.finish();
    let total = log.check.total();
    assert_eq!((total.copied_maps, total.different, total.compared()), (1, 0, 1));
    // A surplus bit is still an error.
    visible(&mut log, 9, &map_of(&[4, 5, 9]));
    log.check.finish();
    assert_eq!((log.check.total().copied_maps, log.check.total().different), (1, 1));
    // So is a missing bit, if the map was logged with its bits, immediately or later.
    let mut log = copied(ImageUse::Restored);
    visible(&mut log, 7, &map_of(&[4, 5, 6, 7]));
    assert_eq!((log.check.total().copied_maps, log.check.total().different), (0, 1));
    let mut log = copied(ImageUse::WithHole);
    log.knows(Fork::VISIBILITY_MAP, 0, &map_of(&[4, 5]));
    visible(&mut log, 7, &map_of(&[4, 5, 6, 7]));
    assert_eq!((log.check.total().copied_maps, log.check.total().different), (0, 1));
}

/// Before 17.11 and 18.6, a bit is cleared before its record is written, and another record may come in
/// between.
#[test]
fn a_bit_that_is_cleared_before_its_record_is_no_difference() {
    const CLEARS: [u8; 8] = [9, 0, 0, 0, 1, 0, 0, 1];
    const KEEPS: [u8; 8] = [9, 0, 0, 0, 1, 0, 0, 0];
    let raced = || {
        let mut log = Log::new(Major::V17);
        log.knows(Fork::VISIBILITY_MAP, 0, &map_of(&[7, 40]));
        insert(&mut log, 1, b"a");
        // The bits of block 7 are already cleared when those of block 30 are set.
        visible(&mut log, 30, &map_of(&[30, 40]));
        assert_eq!(log.check.total().compared(), 0, "not known yet");
        log
    };
    let outcome = |log: &mut Log| {
        log.check.finish();
        (log.check.total().cleared_early, log.check.total().different)
    };
    let mut log = raced();
    // A record of another block comes first.
    log.write((rmid::HEAP, DELETE), &[Block::new(0, 40)], &CLEARS);
    log.write((rmid::HEAP, DELETE), &[Block::new(0, 7)], &CLEARS);
    assert_eq!(outcome(&mut log), (1, 0));
    // The next record of the block does not clear the bits, refers to the map, or does not exist.
    let mut log = raced();
    log.write((rmid::HEAP, DELETE), &[Block::new(0, 7)], &KEEPS);
    log.write((rmid::HEAP, DELETE), &[Block::new(0, 7)], &CLEARS);
    assert_eq!(outcome(&mut log), (0, 1));
    let mut log = raced();
    log.write((rmid::HEAP, DELETE), &[Block::new(0, 7), Block::map(1)], &CLEARS);
    assert_eq!(outcome(&mut log), (0, 1));
    let mut log = raced();
    assert_eq!(outcome(&mut log), (0, 1));
    assert_eq!(log.check.differences.len(), 1);
}

#[test]
fn a_visible_page_keeps_its_lsn_unless_hints_are_logged() {
    for hints in [false, true] {
        let mut log = Log::new(Major::V16);
        if hints {
            log.replay.store.hint_logging().note_shown();
        }
        log.knows(Fork::VISIBILITY_MAP, 0, &map_page(0));
        insert(&mut log, 1, b"a");
        let inserted = log.end;
        log.write((rmid::HEAP2, VISIBLE), &[Block::map(0), Block::new(1, 7)], &[0, 0, 0, 0, 3]);
        let page = log.page(Fork::MAIN, 7).unwrap();
        assert_eq!(page.flags() & flags::PD_ALL_VISIBLE, flags::PD_ALL_VISIBLE);
        assert_eq!(page.lsn(), if hints { log.end } else { inserted });
        let map = log.map();
        assert_eq!((map.0[PAGE_HEADER_BYTES + 1], map.lsn()), (0xC0, log.end));
    }
}

#[test]
fn since_19_inserts_and_prunes_set_the_map_themselves() {
    let mut log = Log::new(Major::V19);
    log.knows(Fork::VISIBILITY_MAP, 0, &map_page(0));
    let tuple = [&[2, 0][..], &logged(b"a")].concat();
    let blocks = [Block { will_init: true, data: tuple, ..Block::new(0, 4) }, Block::map(1)];
    log.write((rmid::HEAP2, MULTI_INSERT | INIT_PAGE), &blocks, &[0x20, 0, 1, 0]);
    assert_eq!((log.map().0[PAGE_HEADER_BYTES + 1], log.map().lsn()), (0x03, log.end));
    insert(&mut log, 1, b"b");
    let inserted = log.end;
    assert_eq!(log.page(Fork::MAIN, 7).unwrap().prune_xid(), XID);
    // Only the map's all-visible bit.
    log.write((rmid::HEAP2, PRUNE), &[Block::new(0, 7), Block::map(1)], &[0x00, 0x01]);
    let page = log.page(Fork::MAIN, 7).unwrap();
    assert_eq!((page.prune_xid(), page.lsn()), (0, inserted));
    assert_eq!(log.map().0[PAGE_HEADER_BYTES + 1], 0x43);
}

/// A record that only sets the map's bits has an image of the table's page if hints are logged, or if the
/// page was never logged.
#[test]
fn since_19_an_image_with_bits_alone_shows_that_hints_are_logged() {
    for (lsn, shows) in [(Lsn(0), false), (Lsn(5), true)] {
        let mut log = Log::new(Major::V19);
        log.knows(Fork::VISIBILITY_MAP, 0, &map_page(0));
        let mut page = map_page(0);
        page.set_lsn(lsn);
        let heap = Block { image: Some(PageBox::from(&page)), ..Block::new(0, 7) };
        log.write((rmid::HEAP2, PRUNE), &[heap, Block::map(1)], &[0x00, 0x01]);
        assert_eq!(log.replay.store.are_hints_logged(), shows);
        assert_eq!(log.page(Fork::MAIN, 7).unwrap().lsn(), log.end);
    }
}

#[test]
fn a_cut_table_has_no_bits_behind_its_end() {
    let mut log = Log::new(Major::V17);
    for (blocks, last) in [(9, [0xFF, 0xFF, 0x03, 0]), (8, [0xFF, 0xFF, 0, 0])] {
        log.knows(Fork::VISIBILITY_MAP, 0, &map_page(0xFF));
        log.knows(Fork::VISIBILITY_MAP, 1, &map_page(0xFF));
        visibility_map::truncate(&mut log.replay.store, TABLE, blocks);
        assert_eq!(log.map().0[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + 4], last);
        assert!(log.page(Fork::VISIBILITY_MAP, 1).is_none());
    }
    visibility_map::truncate(&mut log.replay.store, TABLE, 0);
    assert!(log.page(Fork::VISIBILITY_MAP, 0).is_none());
}

#[test]
fn an_image_tells_what_a_prune_did() {
    let mut log = Log::new(Major::V17);
    (1..=4).for_each(|number| insert(&mut log, number, &[number as u8; 30]));
    let before = log.page(Fork::MAIN, 7).unwrap();
    // With a cleanup lock: 3 becomes dead, 2 and 4 unused.
    let lists: Vec<u8> = [1u16, 3, 2, 2, 4].iter().flat_map(|number| number.to_le_bytes()).collect();
    let main = [0, 0x04 | 0x40 | 0x80];
    log.write((rmid::HEAP2, PRUNE), &[Block { data: lists, ..Block::new(0, 7) }], &main);
    let image = log.page(Fork::MAIN, 7);
    assert_eq!(image.as_ref().unwrap().items(), 3);
    let mut log = Log::new(Major::V17);
    log.knows(Fork::MAIN, 7, &before);
    log.write((rmid::HEAP2, PRUNE), &[Block { image, ..Block::new(0, 7) }], &main);
    assert_eq!((log.check.total().exact, log.check.total().compared()), (1, 1));
}

/// Generates a table's page with some heap tuples and line pointers, some of them wrong.
fn any_page() -> impl Strategy<Value = Page> {
    let items = prop::collection::vec((0u8..4, 0usize..80), 0..12);
    let wrong = prop::collection::vec((0usize..PAGE_BYTES, any::<u8>()), 0..3);
    (items, wrong, 0u8..3).prop_map(|(items, wrong, how_wrong)| {
        let mut page = Page::default();
        page.init(0);
        for (number, (state, len)) in (1..).zip(items) {
            if state == 1 {
                let item = page.add_heap_item(HEAP_TUPLE_HEADER_BYTES + len, number).unwrap();
                item.fill(number as u8);
                item[22] = 24;
            } else {
                page.add_heap_item(0, number).unwrap();
                let pointer =
                    [LinePointer::UNUSED, LinePointer::UNUSED, LinePointer::redirect(1), LinePointer::dead()];
                page.set_line_pointer(number, pointer[usize::from(state)]).unwrap();
            }
        }
        for (at, byte) in wrong {
            // In most cases the header or a line pointer is wrong.
            let at = [at, PAGE_HEADER_BYTES + at % 48, at % PAGE_HEADER_BYTES][usize::from(how_wrong)];
            page.0[at] = byte;
        }
        page
    })
}

fn any_version() -> impl Strategy<Value = Major> {
    prop::sample::select(Major::all().collect::<Vec<_>>())
}

/// Generates bytes in which small numbers are frequent, as in line pointers.
fn any_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => Just(0), 3 => 0u8..12, 1 => any::<u8>()], 0..most)
}

fn any_block(id: u8) -> impl Strategy<Value = Block> {
    let fork = prop::sample::select(vec![Fork::MAIN, Fork::MAIN, Fork::VISIBILITY_MAP]);
    let image = prop::option::weighted(0.3, any_page().prop_map(|page| PageBox::from(&page)));
    (fork, 0u32..2, prop::bool::weighted(0.2), image, any_bytes(80)).prop_map(
        move |(fork, number, will_init, image, data)| Block {
            fork,
            will_init,
            image,
            data,
            ..Block::new(id, number)
        },
    )
}

proptest! {
    #[test]
    fn no_record_harms_however_wrong(
        version in any_version(),
        pages in prop::collection::vec(any_page(), 2),
        records in prop::collection::vec(
            (
                prop::sample::select(vec![rmid::HEAP, rmid::HEAP2, rmid::SEQ, rmid::GENERIC]),
                any::<u8>(),
                prop::option::of(any_block(0)),
                prop::option::of(any_block(1)),
                prop::option::of(any_block(3)),
                any_bytes(40),
            ),
            1..4,
        ),
    ) {
        let mut log = Log::new(version);
        for (number, page) in (0..).zip(&pages) {
            log.knows(Fork::MAIN, number, page);
            log.knows(Fork::VISIBILITY_MAP, number, &map_page(0xA5));
        }
        for (rmid, info, first, second, third, main) in records {
            let blocks: Vec<Block> = [first, second, third].into_iter().flatten().collect();
            log.write((rmid, info & 0xF0), &blocks, &main);
        }
    }

    #[test]
    fn fragments_make_one_page_of_another(
        before in any_page(),
        changes in prop::collection::vec((0usize..PAGE_BYTES, 1usize..20, any::<u8>()), 0..12),
        (lower, upper) in (PAGE_HEADER_BYTES..4000, 4000usize..PAGE_BYTES),
    ) {
        let (mut before, mut after) = (before.clone(), before);
        before.init(0);
        for (at, len, byte) in changes {
            let end = (at + len).min(PAGE_BYTES);
            after.0[at..end].fill(byte);
        }
        after.set_lower(lower);
        after.set_upper(upper);
        after.zero_hole();
        let mut log = Log::new(Major::V17);
        log.knows(Fork::MAIN, 0, &before);
        log.write((rmid::GENERIC, 0), &[Block { image: Some(PageBox::from(&after)), ..Block::new(0, 0) }], &[]);
        let total = log.check.total();
        prop_assert_eq!((total.exact, total.different, total.unpredicted), (1, 0, 0));
    }
}
