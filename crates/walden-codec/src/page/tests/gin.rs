use crate::Corrupt;
use crate::columns::Coder;
use crate::columns::{Decoder, Encoder};
use crate::entropy::{Packer, Unpacker};
use crate::page::kind::PageKind;
use crate::predict::Predictors;
use crate::predict::relation::{BlockAddress, Relation};
use crate::tuple::gin::*;
use walden_format::record::RelFileLocator;
use walden_redo::PageStore;
use walden_redo::StoreOptions;
use walden_redo::page::Tid;
use walden_redo::page::gin::{GIN_DATA, GinPageOpaqueData, flags};
use walden_redo::page::{Page, SpecialArea};

/// Flags of an entry leaf.
const ENTRY_LEAF: u16 = flags::GIN_LEAF;
/// Flags of a posting tree leaf.
const POSTING_LEAF: u16 = flags::GIN_DATA | flags::GIN_LEAF | flags::GIN_COMPRESSED;

fn empty_page(lower: usize, upper: usize, flags: u16) -> Box<Page> {
    let mut page = Box::<Page>::default();
    page.init(GinPageOpaqueData::BYTES);
    page.set_lower(lower);
    page.set_upper(upper);
    GinPageOpaqueData::new(flags).write(&mut page);
    page
}

fn tids(count: u32) -> Vec<Tid> {
    let block = |at: u32| at / 3 + (at / 50) * 5 + (at / 400) * 70_000;
    (0..count).map(|at| Tid { block: block(at), offset_number: (at % 3 * 20 + at / 90 + 1) as u16 }).collect()
}

fn page_of_tids(count: u32, segments: impl Fn(&[Tid]) -> Vec<usize>) -> Box<Page> {
    let tids = tids(count);
    let mut list = Vec::new();
    assert!(put_segments(&tids, &segments(&tids), &mut list));
    let mut page = empty_page(GIN_DATA + list.len(), GinPageOpaqueData::AT, POSTING_LEAF);
    page.0[GIN_DATA..GIN_DATA + list.len()].copy_from_slice(&list);
    page
}

fn page_of_entries() -> Box<Page> {
    let key = |text: &str| {
        let mut bytes = vec![(text.len() as u8 + 1) << 1 | 1];
        bytes.extend(text.bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        Key { flags: 0x4000, bytes }
    };
    let mut items: Vec<Vec<u8>> = (1..60)
        .map(|at| new_entry(&key(&format!("word {}", at + 1000)), &tids(at)).expect("an entry"))
        .collect();
    items.insert(7, tree_entry(&key("word 1007 and more"), 77).expect("an entry"));
    items.push(new_entry(&Key { flags: 0, bytes: vec![1, 2, 3, 4, 0, 0, 0, 0] }, &tids(2)).unwrap());
    // An item that cannot be an entry.
    items.push(vec![0x80, 0, 0, 1, 9, 9, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut page = empty_page(24 + 4 * items.len(), 0, ENTRY_LEAF);
    let mut at = GinPageOpaqueData::AT;
    for (number, item) in items.iter().enumerate() {
        at -= item.len().next_multiple_of(8);
        page.0[at..at + item.len()].copy_from_slice(item);
        let pointer = at as u32 | 1 << 15 | (item.len() as u32) << 17;
        page.0[24 + 4 * number..28 + 4 * number].copy_from_slice(&pointer.to_le_bytes());
    }
    page.0[14..16].copy_from_slice(&(at as u16).to_le_bytes());
    page
}

fn pages() -> Vec<Box<Page>> {
    vec![
        page_of_tids(900, |tids| filled(tids, FILLS[0])),
        page_of_tids(1200, |tids| filled(tids, FILLS[1])),
        page_of_tids(30, |_| vec![20, 1, 9]),
        page_of_entries(),
    ]
}

/// Codes pages in sequence and returns the reconstructed pages.
fn code<S: Coder>(coder: &mut S, sources: &[Option<&Page>]) -> Result<Vec<Box<Page>>, Corrupt> {
    let mut predictors = Predictors::default();
    let mut store = PageStore::new(StoreOptions::default());
    let relation = Relation { number: 3, locator: RelFileLocator::default() };
    let mut tuple_coder = predictors.tuple_coder(coder, &mut store);
    let page = |(block, source): (usize, &Option<&Page>)| {
        let mut made = Box::<Page>::default();
        let address = BlockAddress { relation, fork: 0, block: block as u32 };
        tuple_coder.page(address, *source, &mut made).map(|_| made)
    };
    sources.iter().enumerate().map(page).collect()
}

#[test]
fn pages_come_back() {
    let pages = pages();
    let kinds: Vec<_> = pages.iter().map(|page| PageKind::detect(page, 0)).collect();
    let (tids, entries) = (PageKind::PostingTids, PageKind::GinEntries);
    assert_eq!(kinds, [tids, tids, tids, entries]);
    let mut coder = Encoder::default();
    let sources: Vec<Option<&Page>> = pages.iter().map(|page| Some(&**page)).collect();
    code(&mut coder, &sources).unwrap();
    let chunk = coder.chunk(&mut Packer::new(1, true));
    let mut coder = Decoder::default();
    coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).unwrap();
    let made = code(&mut coder, &vec![None; pages.len()]).unwrap();
    coder.finish().unwrap();
    for (page, made) in pages.iter().zip(&made) {
        assert!(page.0 == made.0);
    }
}

#[test]
fn what_would_not_come_back_is_of_no_kind_of_gins() {
    let page = page_of_tids(900, |tids| filled(tids, FILLS[0]));
    for at in (GIN_DATA..page.lower()).step_by(11) {
        let mut other = page.clone();
        other.0[at] ^= 0x90;
        if let Some((tids, counts)) = segments(&other) {
            let mut list = Vec::new();
            assert!(put_segments(&tids, &counts, &mut list));
            assert_eq!(list, other.0[GIN_DATA..other.lower()]);
        }
    }
    let mut other = page.clone();
    GinPageOpaqueData::new(flags::GIN_DATA).write(&mut other);
    assert_eq!(PageKind::detect(&other, 0), PageKind::Bytes);
}
