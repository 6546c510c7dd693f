//! Compares replayed pages with a stopped server's data files.

use std::io;

use walden_format::record::Fork;
use walden_format::version::Major;

use crate::check::{Check, Difference, Place};
use crate::family::Family;
use crate::page::sequence::values;
use crate::page::{PAGE_HEADER_BYTES, Page};
use crate::pool::PageBox;
use crate::store::{BlockKey, PageStore, State};

/// Compares each exact page that a record of the log touched with the page in the files, which `read` gets.
///
/// Free space maps are left out: they are hardly logged. A page that is not in the files is a difference too.
///
/// # Errors
/// Those of `read`.
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
            let place = Place { key, last, version };
            if !read(key, &mut expected)? {
                missing(check, &place, &found);
                continue;
            }
            let is_masked = match Family::of(&expected, fork) {
                Family::Sequence => mask_sequence(&expected, &mut found),
                Family::VisibilityMap if store.is_copied_in_log(relation) => {
                    mask_lost_bits(&expected, &mut found)
                }
                _ => false,
            };
            check.judge_file(&place, &expected, &found, is_masked);
        }
    }
    Ok(())
}

/// A server logs a sequence's values ahead of those that it gives out, once for many (`SEQ_LOG_VALS`). Whether that
/// made a difference.
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

/// `CREATE DATABASE` logs a map's pages as if they had line pointers and items (`RelationCopyStorageUsingBuffer`): by its
/// header all of such a page is unused, so replay starts with a map of no bits, which is always right. Whether bits are
/// missing, and none is too many.
fn mask_lost_bits(expected: &Page, found: &mut Page) -> bool {
    let (expected, found) = (&expected.0[PAGE_HEADER_BYTES..], &mut found.0[PAGE_HEADER_BYTES..]);
    let lost = expected != found
        && expected.iter().zip(found.iter()).all(|(expected, found)| found & !expected == 0);
    if lost {
        found.copy_from_slice(expected);
    }
    lost
}

fn missing(check: &mut Check, place: &Place, found: &Page) {
    let family = Family::of(found, place.key.fork);
    check.counts.entry((place.last.kind, family)).or_default().different += 1;
    check.note(Difference {
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
