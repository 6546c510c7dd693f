use proptest::prelude::{ProptestConfig, any, prop, proptest};
use proptest::strategy::Strategy;
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::rmgr;
use walden_format::version::Major;
use walden_redo::LastRecord;
use walden_redo::{PageBox, PageStore};

use crate::columns::Coder;
use crate::columns::{Decoder, Encoder};
use crate::entropy::{Packer, Unpacker};
use crate::predict::Predictors;
use crate::predict::relation::{BlockAddress, Relation};
use crate::tuple::items::{item, line_pointer};
use walden_format::record::Fork;
use walden_redo::BlockKey;
use walden_redo::page::Tid;
use walden_redo::page::tid::TID_BYTES;
use walden_redo::page::{LinePointer, Page};

use crate::Corrupt;
use crate::page::kind::PageKind;
use crate::page::survey;
use crate::predict::run::PageItems;
use crate::predict::{Predictor, TupleCoder, heap, index};

const TABLE: Relation =
    Relation { number: 0, locator: RelFileLocator { tablespace: 1, database: 2, relation: 3 } };
const INDEX: Relation =
    Relation { number: 1, locator: RelFileLocator { tablespace: 1, database: 2, relation: 4 } };
/// The known page of the table.
const KNOWN: u32 = 2;

/// State of the index.
#[derive(Clone, Copy, Debug)]
struct Index {
    has_table: bool,
    is_fast: bool,
}

/// State before the first page, and after each.
struct Known {
    predictors: Predictors,
    store: PageStore,
    /// Whether items are coded one by one rather than in runs.
    one_by_one: bool,
}

/// A predictor without runs.
struct OneByOne<P>(P);

impl<S: Coder, P: Predictor<S>> Predictor<S> for OneByOne<P> {
    fn fits(&mut self, coder: &mut TupleCoder<'_, S>, item: &[u8]) -> bool {
        self.0.fits(coder, item)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.0.code(coder, source, out)
    }

    fn start_item(&mut self, line_pointer: u16) {
        self.0.start_item(line_pointer);
    }

    fn code_run(
        &mut self,
        _: &mut TupleCoder<'_, S>,
        _: &[u8],
        _: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        Ok(())
    }
}

/// Codes a page as [`TupleCoder::page`] does, but its items one by one.
fn page_one_by_one<S: Coder>(
    coder: &mut TupleCoder<'_, S>,
    address: BlockAddress,
    source: Option<&Page>,
    target: &mut Page,
) -> Result<(), Corrupt> {
    let kind = coder.page_kind(address, source)?;
    if kind == PageKind::Bytes {
        return Ok(());
    }
    let special = coder.page_frame(address, source, target)?;
    match kind {
        PageKind::Heap => {
            let mut tuples = OneByOne(heap::PageTuples::new(address));
            coder.items(address, &mut tuples, source, (target, special))
        }
        PageKind::Index => {
            let mut tuples = OneByOne(index::PageTuples::new(coder, address.relation, source)?);
            coder.items(address, &mut tuples, source, (target, special))
        }
        _ => panic!("a page of heap or index tuples"),
    }
}

impl Known {
    fn new(one_by_one: bool, Index { has_table, is_fast }: Index) -> Known {
        let mut store = PageStore::default();
        let slot = store.slot(BlockKey { relation: TABLE.locator, fork: Fork::MAIN, block: KNOWN });
        let kind = rmgr::kind(Major::V18, 0, 0);
        let tuples: Vec<Given> = (0..100).map(|number| (0, number, 9, false)).collect();
        store.put(slot, PageBox::from(&page_of(&tuples, 0, heap_tuple)), LastRecord { lsn: Lsn(1), kind });
        let mut predictors = Predictors::default();
        predictors.keys.is_fast = is_fast;
        if has_table {
            predictors.keys.set_table(INDEX.number, TABLE);
        }
        Known { predictors, store, one_by_one }
    }

    fn page<S: Coder>(&mut self, coder: &mut S, relation: Relation, source: Option<&Page>) -> Page {
        let Known { predictors, store, one_by_one } = self;
        let mut made = Page::default();
        let address = BlockAddress { relation, fork: 0, block: 9 };
        let mut tuple_coder = predictors.tuple_coder(coder, store);
        if *one_by_one {
            page_one_by_one(&mut tuple_coder, address, source, &mut made).expect("a page");
        } else {
            tuple_coder.page(address, source, &mut made).expect("a page");
        }
        made
    }
}

/// Parameters of a page item: form, number, length, and whether there is an unused place before it.
type Given = (u8, u32, u8, bool);

fn given() -> impl Strategy<Value = Vec<Given>> {
    let some = (0..12_u8, any::<u32>(), 0..30_u8, prop::bool::weighted(0.05));
    prop::collection::vec(some, 1..60)
}

fn value(bytes: &mut Vec<u8>, len: usize) {
    if len < 127 {
        bytes.push((len as u8 + 1) << 1 | 1);
    } else {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend((((len + 4) as u32) << 2).to_le_bytes());
    }
    bytes.extend((0..len).map(|at| b'a' + (at * 7 % 23) as u8));
}

/// Returns a heap tuple of three numbers and a text. With two numbers it could be a TOAST chunk.
fn heap_tuple((form, number, len, _): Given) -> Vec<u8> {
    let mut heap_tuple = vec![0; 36];
    // Visibility fields: often those of the previous tuple, sometimes others.
    let one_of = |bits: u32, values: [u8; 4]| values[(number >> bits & 3) as usize];
    heap_tuple[0..2].copy_from_slice(&[one_of(24, [7, 7, 7, 9]), 1]);
    heap_tuple[4] = one_of(26, [0, 0, 5, 5]);
    heap_tuple[8] = one_of(28, [0, 0, 114, 200]);
    heap_tuple[18..23].copy_from_slice(&[3, 0, 2, 8 + form % 3, 24]);
    if form == 11 {
        (heap_tuple[20], heap_tuple[22], heap_tuple[23]) = (3, 32, 5);
        heap_tuple.resize(44, 0);
    }
    let at = heap_tuple.len() - 12;
    heap_tuple[at..][..4].copy_from_slice(&number.to_le_bytes());
    heap_tuple[at + 4..][..4].copy_from_slice(&(number % 7).to_le_bytes());
    let len = if form == 10 { 130 + 20 * usize::from(len) } else { len.into() };
    value(&mut heap_tuple, len);
    heap_tuple
}

/// Returns an index tuple with a number as its key, or a number and a text.
fn index_tuple((form, number, len, _): Given) -> Vec<u8> {
    let mut tuple = vec![0; 8];
    tuple[2..4].copy_from_slice(&(number as u16 % 5).to_le_bytes());
    tuple[4..6].copy_from_slice(&(number as u16 % 200 + 1).to_le_bytes());
    tuple.extend(u64::from(number).to_le_bytes());
    let has_text = form == 11;
    if has_text {
        value(&mut tuple, len.into());
        tuple.resize(tuple.len().next_multiple_of(8), 0);
    }
    let info = tuple.len() as u16 | if has_text { 0x4000 } else { 0 };
    tuple[6..8].copy_from_slice(&info.to_le_bytes());
    tuple
}

fn page_of(items: &[Given], special: usize, item: fn(Given) -> Vec<u8>) -> Page {
    let mut page = Page::default();
    page.init(special);
    for &given in items {
        if given.3 {
            // An offset that no item uses.
            let _ = page.insert_item(&[7; 24], page.items() + 1);
            let number = page.items();
            page.set_line_pointer(number, LinePointer::dead()).expect("the item's");
        }
        let mut item = item(given);
        if special == 0 && given.1 >> 30 < 3 {
            // A tuple that was not moved.
            item[12..18].copy_from_slice(&Tid { block: 9, offset_number: page.items() + 1 }.to_bytes());
        }
        if page.insert_item(&item, page.items() + 1).is_err() {
            break;
        }
    }
    page
}

/// Checks that both ways write the same columns, and that both read them.
fn check(pages: &[(Relation, Page)], index: Index) {
    let chunks = [false, true].map(|one_by_one| {
        let mut known = Known::new(one_by_one, index);
        for (relation, page) in pages {
            survey(&mut known.predictors.layouts.survey, relation.locator, 0, page);
        }
        let mut coder = Encoder::default();
        for (relation, page) in pages {
            let made = known.page(&mut coder, *relation, Some(page));
            assert!((1..=page.items()).all(|number| item(&made, number) == item(page, number)));
        }
        coder.chunk(&mut Packer::new(1, true))
    });
    assert!(chunks[0] == chunks[1], "the columns do not tell how they were filled");
    for one_by_one in [false, true] {
        let mut known = Known::new(one_by_one, index);
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunks[0], 1 << 20).expect("its own chunk");
        for (relation, page) in pages {
            let made = known.page(&mut coder, *relation, None);
            assert!((1..=page.items()).all(|number| item(&made, number) == item(page, number)));
        }
        coder.finish().expect("nothing is left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn many_at_once_are_coded_as_one_after_another(
        pages in prop::collection::vec((given(), any::<[bool; 3]>()), 1..4),
        (has_table, is_fast) in any::<(bool, bool)>(),
    ) {
        let pages = pages.iter().map(|(items, [of_index, are_in_turn, have_same])| {
            let items = if *are_in_turn { in_turn(items) } else { items.clone() };
            let items = if *have_same { with_same(&items) } else { items };
            if *of_index {
                (INDEX, page_of(&items, 16, index_tuple))
            } else {
                (TABLE, page_of(&items, 0, heap_tuple))
            }
        });
        check(&pages.collect::<Vec<_>>(), Index { has_table, is_fast });
    }
}

/// Replaces most numbers by consecutive ones, so that keys are close to each other and tuples have the same
/// visibility.
fn in_turn(items: &[Given]) -> Vec<Given> {
    let number = |at: usize, number: u32| if number < u32::MAX / 50 { number } else { at as u32 };
    items.iter().enumerate().map(|(at, item)| (0, number(at, item.1), item.2, item.3)).collect()
}

/// Gives most items the same text.
fn with_same(items: &[Given]) -> Vec<Given> {
    items.iter().map(|item| (item.0, item.1, if item.2 == 7 { 3 } else { 20 }, item.3)).collect()
}

#[test]
fn rows_with_the_same_text_do_not_say_it_again() {
    let index = Index { has_table: false, is_fast: false };
    let page = |len: &dyn Fn(u32) -> u8| {
        let items: Vec<Given> = (0..40).map(|number| (0, number * 31, len(number), false)).collect();
        page_of(&items, 0, heap_tuple)
    };
    let same = page(&|_| 20);
    let pages = [
        page(&|number| number as u8 % 20),
        same.clone(),
        same,
        page(&|number| if number == 20 { 9 } else { 20 }),
    ];
    let mut known = Known::new(false, index);
    pages.iter().for_each(|page| survey(&mut known.predictors.layouts.survey, TABLE.locator, 0, page));
    // Page 1: all but the first tuple. Page 2: those after the tenth, because nine tuples must repeat the
    // values first. Page 3: all but the first, which repeats them as well. Page 4: the last nine, because a
    // tuple with another text restarts the count.
    let at_once = [(false, 39), (true, 30), (true, 39), (true, 9)];
    let mut coder = Encoder::default();
    for (page, at_once) in pages.iter().zip(at_once) {
        known.page(&mut coder, TABLE, Some(page));
        assert_eq!(known.predictors.last_run(), at_once);
    }
    check(&pages.map(|page| (TABLE, page)), index);
}

#[test]
fn rows_are_not_asked_for_keys_that_tell_each_other() {
    let items: Vec<Given> = (0..100).map(|number| (0, number, 9, false)).collect();
    let mut page = page_of(&items, 16, index_tuple);
    for number in 1..=page.items() {
        // All index tuples refer to the known page.
        let place = Tid { block: KNOWN, offset_number: number }.to_bytes();
        let at = usize::from(line_pointer(&page, number).offset());
        page.0[at..at + TID_BYTES].copy_from_slice(&place);
    }
    for is_fast in [false, true] {
        let index = Index { has_table: true, is_fast };
        let mut known = Known::new(false, index);
        survey(&mut known.predictors.layouts.survey, INDEX.locator, 0, &page);
        known.page(&mut Encoder::default(), INDEX, Some(&page));
        assert_eq!(known.predictors.last_run().1 == 99, is_fast, "all but the first at once");
        check(&[(INDEX, page.clone()), (INDEX, page.clone())], index);
    }
}

#[test]
fn most_items_of_a_page_are_coded_at_once() {
    let items: Vec<Given> = (0..100).map(|number| (0, number * 31, (number % 20) as u8, false)).collect();
    for (relation, page) in
        [(TABLE, page_of(&items, 0, heap_tuple)), (INDEX, page_of(&items, 16, index_tuple))]
    {
        let mut known = Known::new(false, Index { has_table: false, is_fast: false });
        survey(&mut known.predictors.layouts.survey, relation.locator, 0, &page);
        known.page(&mut Encoder::default(), relation, Some(&page));
        assert_eq!(known.predictors.last_run().1, usize::from(page.items()) - 1, "all but the first");
    }
}
