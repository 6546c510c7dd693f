//! Builds records for tests.

use proptest::prelude::*;
use walden_format::lsn::Lsn;
use walden_format::record::{RECORD_HEADER, RecordHeader, decode};
use walden_format::version::Major;

use crate::page::{Misfit, PAGE_BYTES, PAGE_HEADER_BYTES, Page};
use crate::pool::PageBox;
use crate::replay::rehearse;

/// A block of a record: its page before, `None` if the record initializes it, and its data.
pub(crate) type TestBlock = (Option<Page>, Vec<u8>);

/// Replays a record of 18 whose blocks are numbered from 0 and come from one relation.
pub(crate) fn replayed(
    (rmid, info): (u8, u8),
    main: &[u8],
    blocks: &[TestBlock],
) -> Result<Vec<Option<PageBox>>, Misfit> {
    let mut bytes = vec![0; RECORD_HEADER];
    for (id, (page, data)) in blocks.iter().enumerate() {
        let flags = if data.is_empty() { 0 } else { 0x20 } | if page.is_none() { 0x40 } else { 0 };
        bytes.extend([id as u8, flags]);
        bytes.extend((data.len() as u16).to_le_bytes());
        bytes.extend([1; 12]);
        bytes.extend((id as u32).to_le_bytes());
    }
    if !main.is_empty() {
        bytes.push(254);
        bytes.extend((main.len() as u32).to_le_bytes());
    }
    blocks.iter().for_each(|(_, data)| bytes.extend(data));
    bytes.extend(main);
    let total_len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&total_len.to_le_bytes());
    (bytes[16], bytes[17]) = (info, rmid);
    let header = RecordHeader::parse(&bytes).expect("the header is there");
    let mut refs = Vec::new();
    let place = (Lsn(8), Lsn(16));
    let record = decode(&bytes, header, place, Major::V18, PAGE_BYTES as u32, &mut refs)
        .unwrap_or_else(|error| panic!("a record made here is sound: {error:?}"));
    rehearse(&record, blocks.iter().map(|(page, _)| page.as_ref().map(PageBox::from)))
}

/// Generates pages with a special area of 8 bytes, valid or not.
pub(crate) fn any_page() -> impl Strategy<Value = Page> {
    let ends = (0..300usize, prop_oneof![9 => 0..8192usize, 1 => 0..65536usize]);
    let content = prop_oneof![Just(vec![0]), prop::collection::vec(any::<u8>(), 1..64)];
    (ends, content, any::<[u8; 8]>(), prop_oneof![9 => Just(8184u16), 1 => any::<u16>()]).prop_map(
        |((items, upper), content, special_area, special)| {
            let mut page = Page::default();
            page.init(8);
            let repeated = content.iter().cycle().copied();
            page.0[PAGE_HEADER_BYTES..].iter_mut().zip(repeated).for_each(|(byte, content)| *byte = content);
            page.0[PAGE_BYTES - 8..].copy_from_slice(&special_area);
            page.set_lower(PAGE_HEADER_BYTES + 4 * items);
            page.set_upper(upper);
            page.put_u16(16, special);
            page
        },
    )
}

/// Generates bytes of a record, mostly small numbers.
pub(crate) fn any_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => Just(0), 2 => 0..16u8, 1 => any::<u8>()], 0..most)
}

/// Generates up to 4 blocks with arbitrary pages and data.
pub(crate) fn any_blocks() -> impl Strategy<Value = Vec<TestBlock>> {
    prop::collection::vec((prop::option::weighted(0.8, any_page()), any_bytes(80)), 0..4)
}
