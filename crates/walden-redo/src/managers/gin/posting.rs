//! Data pages: the posting tree of a key, with the TIDs of the heap tuples that have the key.
//!
//! A leaf has its TIDs in segments of compressed posting lists. Records of a leaf specify which segments are
//! deleted, inserted or replaced, and which segments get more TIDs; replay must compress the added TIDs
//! exactly as the server does (`gindatapage.c`, `ginpostinglist.c`). A TID is handled as one number here, as
//! in `itemptr_to_uint64`.

use walden_format::payload::gin::{
    GinAddedItems, GinInsertDataInternal, GinRecompressDataLeaf, GinSegmentChange, SegmentAction as Action,
};
use walden_format::reader::Reader;

use super::{Children, SHORT, read_block_id};
use crate::page::gin::{
    GIN_DATA, GIN_MAX_DATA_BYTES, GIN_POSTING_ITEM_BYTES, GinPageOpaqueData, MAX_PACKED_OFFSET_NUMBER,
    PostingSegment, flags, number_to_tid, put_segment, tid_to_number,
};
use crate::page::tid::{TID_BYTES, Tid, block_to_bytes};
use crate::page::{Misfit, PAGE_BYTES, Page, SpecialArea};
use crate::pool::PageBox;

/// Largest segment in bytes; a larger one is split (`GinPostingListSegmentMaxSize`).
const MAX_SEGMENT: usize = 384;
/// Size in bytes of the segments that a split makes (`GinPostingListSegmentTargetSize`).
const TARGET_SEGMENT: usize = 256;
/// A smaller segment is merged with the next segment (`GinPostingListSegmentMinSize`).
const MIN_SEGMENT: usize = 128;

/// Writes segments to an empty leaf.
pub(super) fn fill(page: &mut Page, segments: &[u8]) -> Result<(), Misfit> {
    let mut end = GIN_DATA;
    put(page, &mut end, segments)?;
    page.set_lower(end);
    Ok(())
}

/// Applies a record's actions to a leaf's segments (`ginRedoRecompress`).
pub(super) fn recompress(page: &mut Page, actions: &[u8]) -> Result<(), Misfit> {
    let end = segments_end(page)?;
    let old = page.0;
    let mut old = Reader::new(&old[GIN_DATA..end]);
    let mut actions = Reader::new(actions);
    let (mut number, mut end) = (0, GIN_DATA);
    let header = GinRecompressDataLeaf::from_bytes(&actions.array().ok_or(SHORT)?);
    for _ in 0..header.actions {
        let GinSegmentChange { segment, action } =
            GinSegmentChange::from_bytes(&actions.array().ok_or(SHORT)?);
        while number < u16::from(segment) {
            put(page, &mut end, read_segment(&mut old)?)?;
            number += 1;
        }
        match Action::from_byte(action) {
            Some(Action::Delete) => {
                read_segment(&mut old)?;
            }
            Some(Action::Insert) => {
                put(page, &mut end, read_segment(&mut actions)?)?;
                continue;
            }
            Some(Action::Replace) => {
                put(page, &mut end, read_segment(&mut actions)?)?;
                read_segment(&mut old)?;
            }
            Some(Action::AddItems) => {
                let GinAddedItems { count } = GinAddedItems::from_bytes(&actions.array().ok_or(SHORT)?);
                let added = actions.take(usize::from(count) * TID_BYTES).ok_or(SHORT)?;
                let added =
                    added.chunks_exact(TID_BYTES).map(read_tid).collect::<Result<Vec<u64>, Misfit>>()?;
                let tids = merge(&decode(read_segment(&mut old)?)?, &added);
                let (segment, packed) = compress(&tids, PAGE_BYTES)?;
                if packed != tids.len() {
                    return Err(Misfit("a segment becomes larger than a page"));
                }
                put(page, &mut end, &segment)?;
            }
            Some(Action::Unmodified) | None => {
                return Err(Misfit("an action on a segment that is not known"));
            }
        }
        number += 1;
    }
    if actions.left() != 0 {
        return Err(Misfit("there is more data than actions on segments"));
    }
    put(page, &mut end, old.rest())?;
    page.set_lower(end);
    Ok(())
}

/// Inserts the downlink of a split child's left half; the child's old downlink then points to the right half
/// (`ginRedoInsertData`).
pub(super) fn insert_downlink(page: &mut Page, children: Children, data: &[u8]) -> Result<(), Misfit> {
    let GinInsertDataInternal { offset, item } = GinInsertDataInternal::read(data).ok_or(SHORT)?;
    let number = usize::from(offset);
    let count = downlinks(page)?;
    if number == 0 || number > count || (count + 1) * GIN_POSTING_ITEM_BYTES > GIN_MAX_DATA_BYTES {
        return Err(Misfit("the page has not enough free space for the downlink, or no such position"));
    }
    let (at, end) =
        (GIN_DATA + (number - 1) * GIN_POSTING_ITEM_BYTES, GIN_DATA + count * GIN_POSTING_ITEM_BYTES);
    page.0[at..at + 4].copy_from_slice(&block_to_bytes(children.right));
    page.0.copy_within(at..end, at + GIN_POSTING_ITEM_BYTES);
    page.0[at..at + GIN_POSTING_ITEM_BYTES].copy_from_slice(&item);
    set_downlinks(page, count + 1)
}

/// Deletes a downlink from an inner page (`GinPageDeletePostingItem`).
pub(super) fn delete_downlink(page: &mut Page, number: u16) -> Result<(), Misfit> {
    let (number, count) = (usize::from(number), downlinks(page)?);
    if number == 0 || number > count {
        return Err(Misfit("the page has no such downlink"));
    }
    let (at, end) =
        (GIN_DATA + (number - 1) * GIN_POSTING_ITEM_BYTES, GIN_DATA + count * GIN_POSTING_ITEM_BYTES);
    page.0.copy_within(at + GIN_POSTING_ITEM_BYTES..end, at);
    set_downlinks(page, count - 1)
}

/// Reconstructs the block data of an insertion into an inner page. The left half of the split child kept its
/// block number, which identifies the new downlink.
pub(super) fn downlink_data(children: Children, after: &Page) -> Option<Vec<u8>> {
    let count = downlinks(after).ok()?;
    let items = after.0[GIN_DATA..GIN_DATA + count * GIN_POSTING_ITEM_BYTES].as_chunks().0;
    let is_left = |(_, item): &(u16, &[u8; GIN_POSTING_ITEM_BYTES])| {
        read_block_id(&mut Reader::new(&item[..])) == Some(children.left)
    };
    let (offset, &item) = (1..).zip(items).find(is_left)?;
    Some(GinInsertDataInternal { offset, item }.to_bytes().to_vec())
}

/// Reconstructs the block data of an insertion into a leaf.
///
/// Repeats the server's algorithm on the page before, with the TIDs that are only on the page after. The
/// result differs from the server's only if some of the inserted TIDs already existed: the server then
/// replaces a segment that gets TIDs added here.
pub(super) fn inserted(before: &Page, after: &Page) -> Option<Vec<u8>> {
    let actions = || {
        let (old, new) = (all_tids(before).ok()?, all_tids(after).ok()?);
        let mut added = Vec::with_capacity(new.len().saturating_sub(old.len()));
        let mut old = old.iter().peekable();
        for &tid in &new {
            while old.next_if(|&&old| old < tid).is_some() {}
            if old.next_if_eq(&&tid).is_none() {
                added.push(tid);
            }
        }
        let mut segments = Segment::all(before).ok()?;
        add_tids(&mut segments, &added).ok()?;
        repack(&mut segments).ok()?;
        actions(&segments)
    };
    verified(actions(), before, after).or_else(|| rewritten(before, after))
}

/// Reconstructs the block data of a `VACUUM_DATA_LEAF_PAGE`: segments that lost TIDs are compressed again
/// (`ginVacuumPostingTreeLeaf`).
pub(super) fn vacuumed(before: &Page, after: &Page) -> Option<Vec<u8>> {
    let actions = || {
        let left = all_tids(after).ok()?;
        let mut segments = Segment::all(before).ok()?;
        for segment in &mut segments {
            let tids = decode(&segment.bytes).ok()?;
            let kept: Vec<u64> = tids.iter().copied().filter(|tid| left.binary_search(tid).is_ok()).collect();
            if kept.is_empty() {
                segment.action = Action::Delete;
            } else if kept.len() < tids.len() {
                segment.action = Action::Replace;
                segment.bytes = compress(&kept, segment.bytes.len()).ok()?.0;
            }
        }
        actions(&segments)
    };
    verified(actions(), before, after).or_else(|| rewritten(before, after))
}

/// Returns the actions if they change the leaf `before` to the leaf `after`.
fn verified(actions: Option<Vec<u8>>, before: &Page, after: &Page) -> Option<Vec<u8>> {
    let actions = actions?;
    let mut page = PageBox::from(before);
    recompress(&mut page, &actions).ok()?;
    let same =
        page.lower() == after.lower() && page.0[GIN_DATA..page.lower()] == after.0[GIN_DATA..after.lower()];
    same.then_some(actions)
}

/// Returns actions that change `before` to `after`; the server's actions may be others.
fn rewritten(before: &Page, after: &Page) -> Option<Vec<u8>> {
    let (mut old, new) = (Segment::all(before).ok()?, Segment::all(after).ok()?);
    let same = |(a, b): &(&Segment, &Segment)| a.bytes == b.bytes;
    let start = old.iter().zip(&new).take_while(same).count();
    let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(same).count();
    let insert_at = old.len() - end;
    let mut changed = new[start..new.len() - end].iter();
    for segment in &mut old[start..insert_at] {
        match changed.next() {
            Some(new) => (segment.action, segment.bytes) = (Action::Replace, new.bytes.clone()),
            None => segment.action = Action::Delete,
        }
    }
    let inserted = changed.map(|new| Segment { action: Action::Insert, ..new.clone() });
    old.splice(insert_at..insert_at, inserted);
    verified(actions(&old), before, after)
}

/// A segment in memory (`leafSegmentInfo`).
#[derive(Clone, Debug)]
struct Segment {
    action: Action,
    /// The compressed segment with its header; empty if `tids` has to be compressed first.
    bytes: Vec<u8>,
    /// All TIDs of the segment; empty if `bytes` has them.
    tids: Vec<u64>,
    /// TIDs that [`Action::AddItems`] adds.
    added: Vec<u64>,
}

impl Segment {
    fn all(page: &Page) -> Result<Vec<Segment>, Misfit> {
        let mut data = Reader::new(&page.0[GIN_DATA..segments_end(page)?]);
        let mut segments = Vec::new();
        while data.left() > 0 {
            let bytes = read_segment(&mut data)?.to_vec();
            segments.push(Segment { action: Action::Unmodified, bytes, tids: Vec::new(), added: Vec::new() });
        }
        Ok(segments)
    }

    fn new(tids: &[u64]) -> Segment {
        Segment { action: Action::Insert, bytes: Vec::new(), tids: tids.to_vec(), added: Vec::new() }
    }

    /// Returns all TIDs of the segment.
    fn tids(&self) -> Result<Vec<u64>, Misfit> {
        if self.tids.is_empty() { decode(&self.bytes) } else { Ok(self.tids.clone()) }
    }
}

/// Distributes new TIDs to the segments (`addItemsToLeaf`).
fn add_tids(segments: &mut Vec<Segment>, mut new: &[u64]) -> Result<(), Misfit> {
    if segments.is_empty() {
        segments.push(Segment::new(new));
        return Ok(());
    }
    for index in 0..segments.len() {
        let here = match segments.get(index + 1) {
            Some(next) => {
                let first = read_tid(&next.bytes)?;
                new.partition_point(|&tid| tid < first)
            }
            None => new.len(),
        };
        if here == 0 {
            continue;
        }
        let is_last = index + 1 == segments.len();
        let segment = &mut segments[index];
        let (tids, added) = (decode(&segment.bytes)?, &new[..here]);
        if is_last && tids.last() < added.first() && segment.bytes.len() >= TARGET_SEGMENT {
            segments.push(Segment::new(added));
            break;
        }
        (segment.action, segment.bytes) = (Action::AddItems, Vec::new());
        (segment.tids, segment.added) = (merge(&tids, added), added.to_vec());
        new = &new[here..];
    }
    Ok(())
}

/// Compresses segments with new TIDs, splits those that became too large and merges those that are too small
/// (`leafRepackItems`).
fn repack(segments: &mut Vec<Segment>) -> Result<(), Misfit> {
    let mut index = 0;
    while index < segments.len() {
        if segments[index].bytes.is_empty() {
            let segment = &mut segments[index];
            let mut packed = 0;
            if segment.tids.len() <= MAX_SEGMENT {
                (segment.bytes, packed) = compress(&segment.tids, MAX_SEGMENT)?;
            }
            if packed != segment.tids.len() {
                (segment.bytes, packed) = compress(&segment.tids, TARGET_SEGMENT)?;
                if segment.action != Action::Insert {
                    segment.action = Action::Replace;
                }
                let rest = Segment::new(&segment.tids[packed..]);
                segment.tids.truncate(packed);
                segments.insert(index + 1, rest);
            }
        }
        if segments[index].bytes.len() < MIN_SEGMENT && index + 1 < segments.len() {
            let merged = merge(&segments[index].tids()?, &segments[index + 1].tids()?);
            segments[index + 1] = Segment { action: Action::Replace, ..Segment::new(&merged) };
            if segments[index].action == Action::Insert {
                segments.remove(index);
                continue;
            }
            segments[index].action = Action::Delete;
        }
        index += 1;
    }
    Ok(())
}

/// Encodes the actions as in the record (`computeLeafRecompressWALData`); `None` if a `uint8` cannot count
/// the segments.
fn actions(segments: &[Segment]) -> Option<Vec<u8>> {
    let changed = segments.iter().filter(|segment| segment.action != Action::Unmodified).count();
    let mut data = GinRecompressDataLeaf { actions: u16::try_from(changed).ok()? }.to_bytes().to_vec();
    let mut number = 0;
    for segment in segments {
        let mut action = segment.action;
        if action == Action::AddItems && segment.added.len() * TID_BYTES > segment.bytes.len() {
            action = Action::Replace;
        }
        if action != Action::Unmodified {
            let change = GinSegmentChange { segment: u8::try_from(number).ok()?, action: action as u8 };
            data.extend(change.to_bytes());
        }
        match action {
            Action::Unmodified | Action::Delete => {}
            Action::Insert | Action::Replace => data.extend(&segment.bytes),
            Action::AddItems => {
                let added = GinAddedItems { count: u16::try_from(segment.added.len()).ok()? };
                data.extend(added.to_bytes());
                for &tid in &segment.added {
                    data.extend(tid_bytes(tid)?);
                }
            }
        }
        if action != Action::Insert {
            number += 1;
        }
    }
    Some(data)
}

/// Returns all TIDs of a leaf.
fn all_tids(page: &Page) -> Result<Vec<u64>, Misfit> {
    let mut data = Reader::new(&page.0[GIN_DATA..segments_end(page)?]);
    let mut tids = Vec::new();
    while data.left() > 0 {
        tids.extend(decode(read_segment(&mut data)?)?);
    }
    Ok(tids)
}

/// Returns the offset of the end of a leaf's segments.
fn segments_end(page: &Page) -> Result<usize, Misfit> {
    if GinPageOpaqueData::from_page(page)?.flags & flags::GIN_COMPRESSED == 0 {
        return Err(Misfit("a posting tree's page in the format before 9.4"));
    }
    let end = page.lower();
    if (GIN_DATA..=GIN_DATA + GIN_MAX_DATA_BYTES).contains(&end) {
        Ok(end)
    } else {
        Err(Misfit("the page's header is not sound"))
    }
}

/// Returns the number of downlinks of an inner page.
fn downlinks(page: &Page) -> Result<usize, Misfit> {
    let count = usize::from(GinPageOpaqueData::from_page(page)?.max_offset);
    if count * GIN_POSTING_ITEM_BYTES <= GIN_MAX_DATA_BYTES {
        Ok(count)
    } else {
        Err(Misfit("the page has too many downlinks"))
    }
}

fn set_downlinks(page: &mut Page, count: usize) -> Result<(), Misfit> {
    GinPageOpaqueData::change(page, |opaque| opaque.max_offset = count as u16)?;
    page.set_lower(GIN_DATA + count * GIN_POSTING_ITEM_BYTES);
    Ok(())
}

/// Appends segments at `end`, and advances it.
fn put(page: &mut Page, end: &mut usize, segments: &[u8]) -> Result<(), Misfit> {
    let start = *end;
    if start + segments.len() > GIN_DATA + GIN_MAX_DATA_BYTES {
        return Err(Misfit("the page has not enough free space for the segment"));
    }
    *end = start + segments.len();
    page.0[start..*end].copy_from_slice(segments);
    Ok(())
}

/// Reads a segment of the length in its header (`SizeOfGinPostingList`).
fn read_segment<'r>(data: &mut Reader<'r>) -> Result<&'r [u8], Misfit> {
    let segment =
        PostingSegment::read(data.rest()).ok_or(Misfit("there is no whole segment of this number"))?;
    data.take(segment.size()).ok_or(Misfit("a segment ends too early"))
}

/// Decodes the TIDs of a segment (`ginPostingListDecode`).
fn decode(segment: &[u8]) -> Result<Vec<u64>, Misfit> {
    let segment = PostingSegment::read(segment).ok_or(SHORT)?;
    let mut tids = vec![checked_number(segment.first)?];
    segment.others(|tid| tids.push(tid)).ok_or(Misfit("a segment cannot be read"))?;
    Ok(tids)
}

/// Compresses TIDs until the segment has `most` bytes. Returns the segment and the number of TIDs in it
/// (`ginCompressPostingList`).
fn compress(tids: &[u64], most: usize) -> Result<(Vec<u8>, usize), Misfit> {
    let (&first, others) = tids.split_first().ok_or(Misfit("a segment has no TIDs"))?;
    let first = number_to_tid(first).filter(|_| tids.is_sorted_by(|one, next| one < next));
    let mut segment = Vec::new();
    let packed = first.and_then(|first| put_segment(first, others.iter().copied(), most, &mut segment));
    Ok((segment, packed.ok_or(Misfit("TIDs do not ascend"))?))
}

/// Merges two sorted lists of TIDs without duplicates (`ginMergeItemPointers`).
fn merge(a: &[u64], b: &[u64]) -> Vec<u64> {
    let mut tids = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    while let (Some(&one), Some(&other)) = (a.peek(), b.peek()) {
        tids.push(one.min(other));
        a.next_if(|_| one <= other);
        b.next_if(|_| other <= one);
    }
    tids.extend(a.chain(b));
    tids
}

/// Returns a TID as one number (`itemptr_to_uint64`), unless its offset number is too large.
fn checked_number(tid: Tid) -> Result<u64, Misfit> {
    if tid.offset_number > MAX_PACKED_OFFSET_NUMBER {
        return Err(Misfit("a TID has an impossible offset number"));
    }
    Ok(tid_to_number(tid))
}

/// Reads a TID as one number.
fn read_tid(bytes: &[u8]) -> Result<u64, Misfit> {
    checked_number(Tid::read(bytes).ok_or(SHORT)?)
}

fn tid_bytes(tid: u64) -> Option<[u8; TID_BYTES]> {
    number_to_tid(tid).map(Tid::to_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::managers::gin::init;
    use crate::testing::{any_bytes, any_page};

    fn leaf(tids: &[u64], segment_bytes: usize) -> Page {
        let mut page = Page::default();
        init(&mut page, flags::GIN_DATA | flags::GIN_LEAF | flags::GIN_COMPRESSED);
        let (mut rest, mut end) = (tids, GIN_DATA);
        while !rest.is_empty() {
            let (segment, packed) = compress(rest, segment_bytes).unwrap();
            put(&mut page, &mut end, &segment).unwrap();
            rest = &rest[packed..];
        }
        page.set_lower(end);
        page
    }

    fn apply(segments: &[Segment], page: &Page) -> Page {
        let mut after = page.clone();
        recompress(&mut after, &actions(segments).unwrap()).unwrap();
        after
    }

    fn any_tids(most: usize) -> impl Strategy<Value = Vec<u64>> {
        let steps = prop_oneof![6 => 1..20u64, 3 => 1000..3000u64, 1 => 1..(1u64 << 30)];
        prop::collection::vec(steps, 1..most).prop_map(|steps| {
            let mut last = 0;
            steps.iter().map(|step| (last += step, last).1).collect()
        })
    }

    #[test]
    fn segments_are_as_postgresql_writes_them() {
        let tids = [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 2, 0], [0, 0, 1, 0, 1, 0]];
        let tids: Vec<u64> = tids.iter().map(|tid| read_tid(tid).unwrap()).collect();
        let segment = vec![0, 0, 0, 0, 1, 0, 3, 0, 1, 0xFF, 0x0F, 0];
        assert_eq!(compress(&tids, 100).unwrap(), (segment.clone(), 3));
        assert_eq!(decode(&segment).unwrap(), tids);
        // One byte remains, and a difference needs two.
        assert_eq!(compress(&tids, 10).unwrap(), (vec![0, 0, 0, 0, 1, 0, 1, 0, 1, 0], 2));
    }

    #[test]
    fn downlinks_come_and_go() {
        let mut page = Page::default();
        init(&mut page, flags::GIN_DATA);
        let children = |left, right| Children { left, right };
        page.0[GIN_DATA..GIN_DATA + 4].copy_from_slice(&block_to_bytes(7));
        set_downlinks(&mut page, 1).unwrap();
        let before = page.clone();
        let data = [1, 0, 0, 0, 7, 0, 0, 0, 3, 0, 9, 0];
        insert_downlink(&mut page, children(7, 8), &data).unwrap();
        assert_eq!(downlinks(&page), Ok(2));
        assert_eq!(page.0[GIN_DATA + GIN_POSTING_ITEM_BYTES..][..4], block_to_bytes(8));
        assert_eq!(downlink_data(children(7, 8), &page), Some(data.to_vec()));
        assert!(insert_downlink(&mut page, children(7, 8), &[3; 12]).is_err());
        delete_downlink(&mut page, 2).unwrap();
        assert_eq!(page.lower(), before.lower());
        assert!(delete_downlink(&mut page, 2).is_err());
    }

    proptest! {
        #[test]
        fn what_is_compressed_is_read_again(tids in any_tids(300)) {
            let (segment, packed) = compress(&tids, MAX_SEGMENT).unwrap();
            prop_assert!(segment.len() <= MAX_SEGMENT);
            prop_assert_eq!(&decode(&segment).unwrap(), &tids[..packed]);
        }

        #[test]
        fn the_data_of_an_insertion_is_reconstructed_from_the_page_after(old in any_tids(600), new in any_tids(200), size in 60..384usize) {
            let before = leaf(&old, size);
            let new: Vec<u64> = new.into_iter().filter(|tid| old.binary_search(tid).is_err()).collect();
            prop_assume!(!new.is_empty());
            let mut segments = Segment::all(&before).unwrap();
            add_tids(&mut segments, &new).unwrap();
            repack(&mut segments).unwrap();
            let bytes: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
            prop_assume!(bytes <= GIN_MAX_DATA_BYTES);
            let after = apply(&segments, &before);
            prop_assert_eq!(all_tids(&after).unwrap(), merge(&old, &new));
            prop_assert_eq!(inserted(&before, &after), actions(&segments));
        }

        #[test]
        fn the_data_of_a_vacuum_is_reconstructed_from_the_page_after(old in any_tids(600), keep in 1..5u64) {
            let before = leaf(&old, TARGET_SEGMENT);
            let left: Vec<u64> = old.iter().copied().filter(|tid| tid % keep != 0).collect();
            // Another writer's choice: the segments are split elsewhere.
            let after = leaf(&left, MAX_SEGMENT);
            let data = vacuumed(&before, &after).unwrap();
            let mut page = before.clone();
            recompress(&mut page, &data).unwrap();
            prop_assert_eq!(all_tids(&page).unwrap(), left);
        }

        #[test]
        fn no_actions_panic(mut page in any_page(), data in any_bytes(60), other in any_page()) {
            let _ = (inserted(&page, &other), vacuumed(&page, &other));
            let _ = recompress(&mut page, &data);
            let _ = insert_downlink(&mut page, Children { left: 1, right: 2 }, &data);
            let _ = delete_downlink(&mut page, 1);
        }
    }
}
