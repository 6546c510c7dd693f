mod gin;
mod runs;

use walden_redo::page::heap_tuple::HEAP_TUPLE_HEADER_BYTES;

use super::*;
use crate::columns::{Decoder, Encoder};
use crate::entropy::{Packer, Unpacker};
use crate::page::kind::MAX_SAMPLES;
use crate::predict::Predictors;
use crate::predict::relation::Relation;
use walden_redo::PageStore;

const ITEMS: u16 = 180;

/// Returns whether the item is not a tuple. Such items are outside of the sample that determines the page's
/// kind.
fn is_odd(number: u16) -> bool {
    number % (ITEMS / MAX_SAMPLES + 1) == 2
}

fn page() -> Page {
    let mut page = Page::default();
    page.init(0);
    for number in 1..=ITEMS {
        let mut tuple = [0; HEAP_TUPLE_HEADER_BYTES + 9];
        tuple[0..2].copy_from_slice(&number.to_le_bytes());
        tuple[18] = 1;
        tuple[22] = HEAP_TUPLE_HEADER_BYTES as u8 + 1;
        tuple[HEAP_TUPLE_HEADER_BYTES + 1..][..2].copy_from_slice(&(number * 31).to_le_bytes());
        let item = if is_odd(number) { &tuple[..5] } else { &tuple[..] };
        page.insert_item(item, number).expect("there is room");
    }
    page
}

fn coded<S: Coder>(coder: &mut S, source: Option<&Page>) -> (PageKind, Page) {
    let relation = Relation { number: 0, locator: RelFileLocator::default() };
    let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
    let mut tuple_coder = predictors.tuple_coder(coder, &mut store);
    let mut made = Page::default();
    let address = BlockAddress { relation, fork: 0, block: 7 };
    let kind = tuple_coder.page(address, source, &mut made).expect("a page");
    (kind, made)
}

#[test]
fn items_that_are_not_what_the_page_seems_to_have_are_left_out() {
    let page = page();
    let mut coder = Encoder::default();
    let (kind, made) = coded(&mut coder, Some(&page));
    assert_eq!(kind, PageKind::Heap);
    for number in 1..=ITEMS {
        assert_eq!(line_pointer(&made, number), line_pointer(&page, number));
        assert_eq!(item(&made, number) == item(&page, number), !is_odd(number), "item {number}");
    }
    let chunk = coder.chunk(&mut Packer::new(1, true));
    let mut coder = Decoder::default();
    coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
    let (kind, decoded) = coded(&mut coder, None);
    assert_eq!(kind, PageKind::Heap);
    assert!(decoded.0 == made.0, "both sides make the same of it");
    coder.finish().expect("nothing is left");
}
