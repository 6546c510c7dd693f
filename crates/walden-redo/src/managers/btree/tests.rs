use proptest::prelude::*;
use walden_format::lsn::Lsn;
use walden_format::record::{RecordHeader, decode};
use walden_format::rmgr::rmid;

use super::*;
use crate::check::Check;
use crate::store::BlockKey;
use crate::{PageBox, Replay};

/// A block of a record that a test assembles.
#[derive(Clone, Debug)]
struct Block {
    id: u8,
    number: u32,
    will_init: bool,
    image: Option<PageBox>,
    data: Vec<u8>,
}

impl Block {
    fn new(id: u8, number: u32) -> Block {
        Block { id, number, will_init: false, image: None, data: Vec::new() }
    }
}

/// Replays records one after the other, and checks them.
#[derive(Default)]
struct Log {
    replay: Replay,
    check: Check,
    end: u64,
}

impl Log {
    /// Makes a page known.
    fn knows(&mut self, number: u32, page: &Page) {
        let image = Some(PageBox::from(page));
        self.write((rmid::XLOG, 0xB0), &[Block { image, ..Block::new(0, number) }], &[]);
    }

    fn write(&mut self, (rmid, info): (u8, u8), blocks: &[Block], main: &[u8]) {
        let mut bytes = vec![0; 24];
        for block in blocks {
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            let (has_image, has_data) =
                (flag(block.image.is_some(), 0x10), flag(!block.data.is_empty(), 0x20));
            bytes.extend([block.id, has_image | has_data | flag(block.will_init, 0x40)]);
            bytes.extend((block.data.len() as u16).to_le_bytes());
            if block.image.is_some() {
                // The length, no hole, and the flag that the image is to be restored.
                bytes.extend([0, 32, 0, 0, 2]);
            }
            bytes.extend([1663u32, 1, 2, block.number].iter().flat_map(|word| word.to_le_bytes()));
        }
        if !main.is_empty() {
            bytes.extend([255, main.len() as u8]);
        }
        for block in blocks {
            bytes.extend(block.image.iter().flat_map(|page| page.0));
            bytes.extend(&block.data);
        }
        bytes.extend(main);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[16..18].copy_from_slice(&[info, rmid]);
        let place = (Lsn(self.end + 0x1000), Lsn(self.end + 0x10_0000));
        self.end = place.1.0;
        let (header, mut decoded) = (RecordHeader::parse(&bytes).unwrap(), Vec::new());
        let record = decode(&bytes, header, place, Major::V17, PAGE_BYTES as u32, &mut decoded).unwrap();
        self.replay.apply(&record, &mut self.check);
    }

    fn page(&mut self, number: u32) -> Option<PageBox> {
        let relation = walden_format::record::RelFileLocator { tablespace: 1663, database: 1, relation: 2 };
        let slot = self.replay.store.slot(BlockKey { relation, fork: Fork::MAIN, block: number });
        self.replay.store.take(slot)
    }
}

/// Builds a leaf tuple with a key of 8 bytes.
fn plain(key: u64, tid: u16) -> Vec<u8> {
    let [low, high] = tid.to_le_bytes();
    [&[0, 0, 0, 0, low, high, 16, 0][..], &key.to_le_bytes()].concat()
}

fn posting(key: u64, tids: &[u16]) -> Vec<u8> {
    let mut builder = PostingBuilder::new();
    builder.start(&plain(key, 0)).unwrap();
    tids.iter().for_each(|tid| builder.push(heap_tids(&plain(key, *tid)).unwrap()).unwrap());
    builder.finish().unwrap().to_vec()
}

/// Builds the rightmost leaf of a tree.
fn leaf(tuples: &[Vec<u8>]) -> Page {
    let mut page = Page::default();
    BTPageOpaqueData { flags: flags::BTP_LEAF, ..BTPageOpaqueData::default() }.init(&mut page);
    tuples.iter().for_each(|tuple| append(&mut page, tuple).unwrap());
    page
}

fn tuples(page: &Page) -> Vec<Vec<u8>> {
    (1..=page.items()).map(|number| item(page, number).unwrap().to_vec()).collect()
}

#[test]
fn a_posting_list_with_one_row_left_is_a_plain_tuple() {
    let mut builder = PostingBuilder::new();
    builder.start(&posting(7, &[3, 5, 9])).unwrap();
    builder.push(heap_tids(&plain(7, 5)).unwrap()).unwrap();
    assert_eq!(builder.finish().unwrap(), plain(7, 5));
}

#[test]
fn a_row_goes_into_the_posting_list_before_the_new_tuple() {
    let mut log = Log::default();
    log.knows(1, &leaf(&[posting(7, &[3, 5, 9]), plain(8, 1)]));
    let data = [&2u16.to_le_bytes()[..], &plain(7, 6)].concat();
    log.write((rmid::BTREE, kind::INSERT_POST), &[Block { data, ..Block::new(0, 1) }], &[2, 0]);
    let page = log.page(1).unwrap();
    assert_eq!(tuples(&page), [posting(7, &[3, 5, 6]), plain(7, 9), plain(8, 1)]);
}

#[test]
fn a_split_posting_list_stays_left_and_its_last_row_goes_right() {
    let mut log = Log::default();
    log.knows(1, &leaf(&[plain(6, 1), posting(7, &[3, 5, 9]), plain(8, 1)]));
    let main = [&0u32.to_le_bytes()[..], &[3, 0, 3, 0, 1, 0]].concat();
    let left = Block { data: [plain(7, 4), plain(7, 9)].concat(), ..Block::new(0, 1) };
    let right = Block { will_init: true, data: [plain(8, 1), plain(7, 9)].concat(), ..Block::new(1, 2) };
    log.write((rmid::BTREE, kind::SPLIT_R), &[left.clone(), right.clone()], &main);
    let (one, other) = (log.page(1).unwrap(), log.page(2).unwrap());
    assert_eq!(tuples(&one), [plain(7, 9), plain(6, 1), posting(7, &[3, 4, 5])]);
    assert_eq!(tuples(&other), [plain(7, 9), plain(8, 1)]);
    let opaque = BTPageOpaqueData::from_page(&one).unwrap();
    assert_eq!((opaque.next, opaque.flags), (2, flags::BTP_LEAF | flags::BTP_INCOMPLETE_SPLIT));

    // If the left page has an image instead of its data, the data is reconstructed.
    let mut log = Log::default();
    log.knows(1, &leaf(&[plain(6, 1), posting(7, &[3, 5, 9]), plain(8, 1)]));
    let image = Block { image: Some(one), data: Vec::new(), ..left };
    log.write((rmid::BTREE, kind::SPLIT_R), &[image, right], &main);
    let total = log.check.total();
    assert_eq!((total.exact, total.compared()), (1, 1));
}

fn any_tuple() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (0..9u64, 0..9u16).prop_map(|(key, tid)| plain(key, tid)),
        (0..9u64, prop::collection::btree_set(any::<u16>(), 2..9))
            .prop_map(|(key, tids)| posting(key, &tids.into_iter().collect::<Vec<u16>>())),
        prop::collection::vec(any::<u8>(), 1..24),
    ]
}

prop_compose! {
    /// Generates a leaf with a few wrong bytes.
    fn any_page()(
        tuples in prop::collection::vec(any_tuple(), 0..20),
        wrong in prop::collection::vec((prop_oneof![0..120usize, 8000..PAGE_BYTES], any::<u8>()), 0..4),
    ) -> PageBox {
        let mut page = leaf(&tuples);
        wrong.into_iter().for_each(|(at, byte)| page.0[at] = byte);
        PageBox::from(&page)
    }
}

prop_compose! {
    fn any_block(id: u8)(
        will_init in any::<bool>(),
        image in prop::option::weighted(0.3, any_page()),
        data in prop_oneof![
            prop::collection::vec(any_tuple(), 0..5).prop_map(|tuples| tuples.concat()),
            prop::collection::vec(0..9u16, 0..20)
                .prop_map(|numbers| numbers.into_iter().flat_map(u16::to_le_bytes).collect()),
        ],
    ) -> Block {
        let data = if image.is_some() { Vec::new() } else { data };
        Block { id, number: id.into(), will_init, image, data }
    }
}

proptest! {
    /// No record does harm, however invalid it is.
    #[test]
    fn any_record_on_any_page(
        kind in 0..16u8,
        main in prop::collection::vec(0..12u8, 0..40),
        before in prop::collection::vec(any_page(), 5),
        blocks in (any_block(0), any_block(1), any_block(2), any_block(3), any_block(4)),
        count in 0..=5usize,
    ) {
        let mut log = Log::default();
        (0..).zip(&before).for_each(|(number, page)| log.knows(number, page));
        let blocks = [blocks.0, blocks.1, blocks.2, blocks.3, blocks.4];
        log.write((rmid::BTREE, kind << 4), &blocks[..count], &main);
    }

    #[test]
    fn the_mask_takes_any_page(page in any_page()) {
        let mut page = page;
        mask_page(&mut page, Major::V17, Fork::MAIN);
    }

    #[test]
    fn the_tid_that_a_posting_list_took_in_is_found(
        tids in prop::collection::btree_set(0..999u16, 3..40),
        at in 1..39usize,
    ) {
        let mut tids: Vec<u16> = tids.into_iter().collect();
        let new = tids.remove(at % (tids.len() - 2) + 1);
        let before = posting(1, &tids);
        let tid = Tid::read(&plain(1, new)).unwrap();
        let at = tids.partition_point(|&tid| tid < new) as u16;
        let mut after = before.clone();
        let last = tuple::swap_posting(&mut after, tid, at).unwrap();
        prop_assert_eq!(Some(last), Tid::read(&plain(1, *tids.last().unwrap())));
        prop_assert_eq!(tuple::unswap_posting(&before, &after), Some((at, tid)));
    }
}
