//! Compares replayed pages with a stopped server's data files.

use std::io;

use walden_format::record::Fork;
use walden_format::version::Major;

use crate::check::{Check, Difference, Place};
use crate::family::Family;
use crate::page::Page;
use crate::page::sequence::values;
use crate::pool::PageBox;
use crate::store::{BlockKey, PageStore, State};

/// Compares each exact page that a WAL record changed with the page that `read` returns from the data files.
///
/// Skips free space maps, which are hardly ever WAL-logged. A page that is missing from the files counts as a
/// difference.
///
/// # Errors
/// Returns the errors of `read`.
pub fn compare(
    store: &mut PageStore,
    version: Major,
    check: &mut Check,
    mut read: impl FnMut(BlockKey, &mut Page) -> io::Result<bool>,
) -> io::Result<()> {
    let (mut expected, mut found) = (PageBox::default(), PageBox::default());
    for (relation, fork) in store.forks() {
        if fork == Fork::FREE_SPACE_MAP {
            continue;
        }
        for (block, slot) in store.blocks_of(relation, fork) {
            let (State::Exact, Some(last)) = (store.state(slot), store.last(slot)) else { continue };
            let key = BlockKey { relation, fork, block };
            if !store.read(slot, &mut found) {
                continue;
            }
            let place = Place { key, last, version, may_lack_bits: store.may_lack_bits(key) };
            if !read(key, &mut expected)? {
                missing(check, &place, &found);
                continue;
            }
            let is_sequence = Family::detect(&expected, fork) == Family::Sequence;
            let is_masked = is_sequence && mask_sequence(&expected, &mut found);
            check.judge_file(&place, &expected, &found, is_masked);
        }
    }
    check.finish();
    Ok(())
}

/// Copies the expected sequence values into the replayed page, and returns whether they differed. A server
/// logs values in advance, `SEQ_LOG_VALS` at a time, so a replayed sequence may be ahead of the data file.
fn mask_sequence(expected: &Page, found: &mut Page) -> bool {
    if let (Some(expected), Ok(found)) = (expected.item(1), found.normal_item_mut(1))
        && let (Some(expected), Some(found)) = (expected.get(values::START..), found.get_mut(values::START..))
        && expected.len() == found.len()
        && expected != found
    {
        found.copy_from_slice(expected);
        return true;
    }
    false
}

fn missing(check: &mut Check, place: &Place, found: &Page) {
    let family = Family::detect(found, place.key.fork);
    check.counts.entry((place.last.kind, family)).or_default().different += 1;
    check.note_difference(Difference {
        key: place.key,
        family,
        lsn: place.last.lsn,
        kind: place.last.kind,
        version: place.version,
        offset: 0,
        field: "the page is not in the data files".into(),
        expected: Vec::new(),
        found: found.0[..8].to_vec(),
    });
}
