//! Compares replayed pages with PostgreSQL's full-page images.
//!
//! An image shows the page as PostgreSQL had it after the record. If the page before the record is known, the
//! check replays the record without its images (see [`crate::reconstruct`]) and compares the result with the
//! image. Both pages are masked as by `wal_consistency_checking`, which excludes changes that are never
//! logged. If that setting was on, every record has an image of each page that it changes.

pub mod files;
mod maps;
pub mod shares;

use std::collections::BTreeMap;

use walden_format::lsn::Lsn;
use walden_format::record::{Fork, Record};
use walden_format::rmgr::info::xlog::FPI_FOR_HINT;
use walden_format::rmgr::{self, Kind, rmid};
use walden_format::version::Major;

use crate::check::maps::{EarlyClears, MapDifference, Resolved};
use crate::family::Family;
use crate::managers::heap;
use crate::managers::manager;
use crate::mask;
use crate::page::{ItemState, LINE_POINTER_BYTES, Misfit, PAGE_BYTES, PAGE_HEADER_BYTES, Page, header};
use crate::pool::PageBox;
use crate::reconstruct::{self, RecordWithoutImages, is_forced_image};
use crate::replay::{Observer, rehearse};
use crate::step::{Role, Touched};
use crate::store::{BlockKey, LastRecord, State, Unknown};

/// Maximum number of differences kept; all are counted.
const MAX_DIFFERENCES: usize = 1000;

/// The number of compared images of a kind of record, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Counts {
    /// Replay produced the same bytes (ignoring LSN, checksum and the unused space of the page).
    pub exact: u64,
    /// Equal except for changes that PostgreSQL does not log.
    pub masked: u64,
    /// Visibility maps that have more bits than the replayed maps, because `CREATE DATABASE` logged the maps
    /// without bits. PostgreSQL's own redo lacks these bits, too.
    pub copied_maps: u64,
    /// Visibility maps that lack bits which the next record of the table's block clears: PostgreSQL cleared
    /// these bits before it wrote that record.
    pub cleared_early: u64,
    /// Compared, and replay differs: a bug, or damage.
    pub different: u64,
    /// Not compared: the page before the record is unknown.
    pub unknown_before: u64,
    /// Not compared: a record that cannot be replayed changed the page before, or the image's own record
    /// cannot be replayed.
    pub untracked: u64,
    /// Not compared: the record's data cannot be reconstructed from the image.
    pub unpredicted: u64,
    /// Nothing to compare: the image is the change itself.
    pub whole_pages: u64,
}

impl Counts {
    /// Returns the number of images compared.
    pub fn compared(&self) -> u64 {
        self.exact + self.masked + self.explained() + self.different
    }

    /// Returns the number of images that differ from the replayed page in the same way as from PostgreSQL's
    /// own redo.
    pub fn explained(&self) -> u64 {
        self.copied_maps + self.cleared_early
    }

    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Exact => self.exact += 1,
            Verdict::Masked => self.masked += 1,
            Verdict::CopiedMap => self.copied_maps += 1,
            Verdict::ClearedEarly => self.cleared_early += 1,
            Verdict::Different => self.different += 1,
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Counts) {
        self.exact += other.exact;
        self.masked += other.masked;
        self.copied_maps += other.copied_maps;
        self.cleared_early += other.cleared_early;
        self.different += other.different;
        self.unknown_before += other.unknown_before;
        self.untracked += other.untracked;
        self.unpredicted += other.unpredicted;
        self.whole_pages += other.whole_pages;
    }
}

/// A page that differs from the replayed one.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The block that differs.
    pub key: BlockKey,
    /// The kind of relation that the page belongs to.
    pub family: Family,
    /// LSN of the start of the record after which the page was compared.
    pub lsn: Lsn,
    /// Resource manager and kind of that record.
    pub kind: Kind,
    /// PostgreSQL's major version that wrote the WAL.
    pub version: Major,
    /// Offset of the first byte that differs from the start of the page.
    pub offset: usize,
    /// Name of the page field at `offset`.
    pub field: String,
    /// PostgreSQL's bytes from `offset` on, at most 8.
    pub expected: Vec<u8>,
    /// The replayed page's bytes there.
    pub found: Vec<u8>,
}

/// An [`Observer`] that compares each full-page image with the replayed page.
#[derive(Debug, Default)]
pub struct Check {
    /// Counts by kind of record and family of page.
    pub counts: BTreeMap<(Kind, Family), Counts>,
    /// Number of replayed records.
    pub records: u64,
    /// The first differences in the order of the WAL.
    pub differences: Vec<Difference>,
    /// How often the reconstructed data of a block was exact, different and unknown ([`reconstruct::Match`]),
    /// for records that have both an image and data.
    pub reconstructed: BTreeMap<Kind, [u64; 3]>,
    /// Pages that became unknown because a record did not fit, as the number of occurrences of each reason.
    pub misfits: BTreeMap<(Kind, &'static str), u64>,
    early_clears: EarlyClears,
}

/// The result of comparing two pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Equal bytes, ignoring LSN, checksum and hole.
    Exact,
    /// Equal under the mask.
    Masked,
    /// A visibility map whose replayed page lacks bits that were not logged ([`Counts::copied_maps`]).
    CopiedMap,
    /// A visibility map that lacks bits which a later record should clear ([`Counts::cleared_early`]). The
    /// map is counted when that record is found, or at the end of the WAL.
    ClearedEarly,
    /// Different.
    Different,
}

impl Check {
    /// Returns the counts, summed over all kinds of records.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.counts.values().for_each(|counts| total.merge(counts));
        total
    }

    /// Compares PostgreSQL's page with the replayed one, and counts the outcome.
    pub fn judge(&mut self, place: &Place, expected: &Page, found: &Page, rmid: Option<u8>) -> Verdict {
        let family = place.family_of(expected);
        let (verdict, at) = compare(expected, found, place, rmid.or(family.manager()));
        let Some(offset) = at else {
            self.count(place, family, verdict);
            return verdict;
        };
        let bytes = |page: &Page| page.0[offset..(offset + 8).min(PAGE_BYTES)].to_vec();
        let difference = Difference {
            key: place.key,
            family,
            lsn: place.last.lsn,
            kind: place.last.kind,
            version: place.version,
            offset,
            field: field_at(expected, offset),
            expected: bytes(expected),
            found: bytes(found),
        };
        self.judge_map(place, (expected, found), difference)
    }

    /// Checks whether a differing page is a visibility map that differs in the same way from PostgreSQL's own
    /// redo ([`maps`]).
    fn judge_map(
        &mut self,
        place: &Place,
        (expected, found): (&Page, &Page),
        difference: Difference,
    ) -> Verdict {
        let is_map = place.key.fork == Fork::VISIBILITY_MAP;
        let bits = is_map.then(|| MapDifference::compare(expected, found, place.key.block)).flatten();
        let difference = match bits {
            Some(bits) if bits.only_lacks() && place.may_lack_bits => {
                self.count(place, difference.family, Verdict::CopiedMap);
                return Verdict::CopiedMap;
            }
            Some(bits) if bits.may_be_early(place.may_lack_bits) => {
                match self.early_clears.wait(*place, difference, bits, found) {
                    Ok(()) => return Verdict::ClearedEarly,
                    Err(difference) => difference,
                }
            }
            _ => difference,
        };
        self.count(place, difference.family, Verdict::Different);
        self.note_difference(difference);
        Verdict::Different
    }

    /// Receives a record before it is replayed.
    fn note(&mut self, record: &Record<'_>) {
        self.records += 1;
        if !self.early_clears.is_empty() {
            let resolved = self.early_clears.observe(record);
            self.resolve(resolved);
        }
    }

    /// Compares the images that replay restores. `touched` has the pages of all blocks before the record.
    fn check_images(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.check_reconstructed(record, touched);
        self.check_restored(record, touched);
    }

    /// Adds the results for other pages. Both checks have received the same records.
    fn merge(&mut self, other: Check) {
        for (key, counts) in other.counts {
            self.counts.entry(key).or_default().merge(&counts);
        }
        self.records = self.records.max(other.records);
        other.differences.into_iter().for_each(|difference| self.note_difference(difference));
        for (kind, counts) in other.reconstructed {
            let sums = self.reconstructed.entry(kind).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for (misfit, count) in other.misfits {
            *self.misfits.entry(misfit).or_default() += count;
        }
    }

    /// Ends the comparison: no later record can explain a difference.
    pub fn finish(&mut self) {
        let resolved = self.early_clears.finish();
        self.resolve(resolved);
    }

    fn resolve(&mut self, resolved: Vec<Resolved>) {
        for resolved in resolved {
            match resolved {
                Resolved::ClearedEarly(place, family) => self.count(&place, family, Verdict::ClearedEarly),
                Resolved::Different(place, difference) => {
                    self.count(&place, difference.family, Verdict::Different);
                    self.note_difference(difference);
                }
            }
        }
    }

    fn count(&mut self, place: &Place, family: Family, verdict: Verdict) {
        self.counts.entry((place.last.kind, family)).or_default().add(verdict);
    }

    /// Compares a page of a data file. `is_masked` is whether the replayed page was changed to match
    /// beforehand.
    pub(crate) fn judge_file(&mut self, place: &Place, expected: &Page, found: &Page, is_masked: bool) {
        if self.judge(place, expected, found, None) == Verdict::Exact && is_masked {
            let counts = self.counts.entry((place.last.kind, place.family_of(expected))).or_default();
            (counts.exact, counts.masked) = (counts.exact - 1, counts.masked + 1);
        }
    }

    /// Keeps the first differences in the order of the WAL.
    pub(crate) fn note_difference(&mut self, difference: Difference) {
        let place = |one: &Difference| (one.lsn, one.key);
        let at = self.differences.partition_point(|known| place(known) <= place(&difference));
        if at < MAX_DIFFERENCES {
            self.differences.insert(at, difference);
            self.differences.truncate(MAX_DIFFERENCES);
        }
    }

    fn skip(&mut self, place: &Place, page: &Page, field: impl Fn(&mut Counts) -> &mut u64) {
        let family = place.family_of(page);
        *field(self.counts.entry((place.last.kind, family)).or_default()) += 1;
    }

    /// Checks the images that a record has instead of data.
    fn check_restored(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let restored = |touched: &Touched| touched.role == Role::Restored && touched.image.is_some();
        if !touched.iter().any(restored) {
            return;
        }
        let is_xlog = record.header.rmid == rmid::XLOG;
        let predicted = if is_xlog { Prediction::Unknown } else { predict(record, touched) };
        for (index, (block, touched)) in record.blocks.iter().zip(touched).enumerate() {
            let Some(image) = touched.image.as_deref().filter(|_| restored(touched)) else { continue };
            let place = Place::new(record, BlockKey::from_block(block), touched);
            if block.fork == Fork::FREE_SPACE_MAP {
                self.skip(&place, image, |counts| &mut counts.untracked);
                continue;
            }
            if is_forced_image(record, block.id) {
                self.skip(&place, image, |counts| &mut counts.whole_pages);
                continue;
            }
            let Some(before) = touched.page.as_deref() else {
                self.skip(&place, image, |counts| match touched.was {
                    State::Untracked => &mut counts.untracked,
                    _ => &mut counts.unknown_before,
                });
                continue;
            };
            if is_xlog && record.rmgr_info() == FPI_FOR_HINT {
                self.judge(&place, image, before, None);
                continue;
            }
            match &predicted {
                Prediction::Pages(pages) => match pages.get(index) {
                    Some(Some(page)) => drop(self.judge(&place, image, page, Some(record.header.rmid))),
                    _ => self.skip(&place, image, |counts| &mut counts.unpredicted),
                },
                Prediction::Misfit(misfit) => {
                    *self.misfits.entry((place.last.kind, misfit.0)).or_default() += 1;
                    self.skip(&place, image, |counts| &mut counts.different);
                }
                Prediction::Unknown => self.skip(&place, image, |counts| &mut counts.unpredicted),
                Prediction::Untracked => self.skip(&place, image, |counts| &mut counts.untracked),
            }
        }
    }

    /// Counts how the data reconstructed from images compares with the record's data. Only
    /// `wal_consistency_checking` writes images in addition to data.
    fn check_reconstructed(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for index in 0..touched.len() {
            let Some(outcome) = reconstruct::compare(record, touched, index) else { continue };
            let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
            self.reconstructed.entry(kind).or_default()[outcome as usize] += 1;
        }
    }

    /// Checks the images that `wal_consistency_checking` adds to the data.
    fn check_beside(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        for (block, touched) in record.blocks.iter().zip(touched) {
            let beside = block.image.is_some_and(|image| !image.apply);
            let (true, Some(image)) = (beside, touched.image.take()) else { continue };
            let place = Place::new(record, BlockKey::from_block(block), touched);
            match (touched.role, touched.page.as_deref()) {
                (Role::Redo | Role::Init, Some(page)) => {
                    let verdict = self.judge(&place, &image, page, Some(record.header.rmid));
                    if matches!(verdict, Verdict::Different | Verdict::ClearedEarly) {
                        // Only the first record after an error counts as a difference, not every later one.
                        touched.page = Some(image);
                        continue;
                    }
                }
                (Role::Unknown(State::Untracked), _) => {
                    self.skip(&place, &image, |counts| &mut counts.untracked)
                }
                (Role::Unknown(State::Unknown(Unknown::Misfit(misfit))), _) => {
                    *self.misfits.entry((place.last.kind, misfit.0)).or_default() += 1;
                    self.skip(&place, &image, |counts| &mut counts.different);
                }
                _ => self.skip(&place, &image, |counts| &mut counts.unknown_before),
            }
            if touched.page.is_none() {
                touched.page = Some(image);
            } else {
                touched.image = Some(image);
            }
        }
    }
}

impl Observer for Check {
    const ALL_IMAGES: bool = true;

    fn before(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.note(record);
        self.check_images(record, touched);
    }

    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        self.check_beside(record, touched);
    }
}

/// The pages of a record with images, replayed without the images.
enum Prediction {
    Pages(Vec<Option<PageBox>>),
    /// The record without images does not fit the pages.
    Misfit(Misfit),
    Unknown,
    /// The record's resource manager is not replayed.
    Untracked,
}

fn predict(record: &Record<'_>, touched: &[Touched]) -> Prediction {
    if manager(record.header.rmid).is_none() {
        return Prediction::Untracked;
    }
    let Some(mut without_images) = RecordWithoutImages::reconstruct(record, touched) else {
        return Prediction::Unknown;
    };
    let Some(bare) = without_images.record(record) else { return Prediction::Unknown };
    let before = |touched: &Touched| touched.page.clone().filter(|_| touched.role != Role::Ahead);
    match rehearse(&bare, touched.iter().map(before)) {
        Ok(pages) => Prediction::Pages(pages),
        Err(misfit) => Prediction::Misfit(misfit),
    }
}

/// A page and the record after which it is compared.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The page.
    pub key: BlockKey,
    /// The record.
    pub last: LastRecord,
    /// PostgreSQL's major version that wrote it.
    pub version: Major,
    /// The page is one of a visibility map whose bits were not all logged
    /// ([`crate::PageStore::may_lack_bits`]).
    pub may_lack_bits: bool,
}

impl Place {
    fn new(record: &Record<'_>, key: BlockKey, touched: &Touched) -> Place {
        let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
        let last = LastRecord { lsn: record.lsn, kind };
        Place { key, last, version: record.version, may_lack_bits: touched.may_lack_bits }
    }

    fn family_of(&self, page: &Page) -> Family {
        Family::after(page, self.key.fork, Some(self.last.kind))
    }
}

/// Compares two pages, and finds the first byte that differs under the mask.
fn compare(expected: &Page, found: &Page, place: &Place, rmid: Option<u8>) -> (Verdict, Option<usize>) {
    let (mut expected, mut found) = (PageBox::from(expected), PageBox::from(found));
    for page in [&mut expected, &mut found] {
        mask::lsn_and_checksum(page);
        // A page without line pointers, such as a map, may have content between `pd_lower` and `pd_upper`.
        if page.lower() > PAGE_HEADER_BYTES {
            page.zero_hole();
        }
    }
    if expected.0 == found.0 {
        return (Verdict::Exact, None);
    }
    if let Some(manager) = rmid.and_then(manager) {
        for page in [&mut expected, &mut found] {
            if matches!(rmid, Some(rmid::HEAP | rmid::HEAP2)) {
                heap::mask_speculative(page, place.key.block);
            }
            (manager.mask)(page, place.version, place.key.fork);
        }
    }
    match expected.0.iter().zip(&found.0).position(|(a, b)| a != b) {
        None => (Verdict::Masked, None),
        at => (Verdict::Different, at),
    }
}

/// Returns the name of the field at an offset of a page.
pub fn field_at(page: &Page, offset: usize) -> String {
    const HEADER: [(usize, &str); 8] = [
        (header::LSN, "pd_lsn"),
        (header::CHECKSUM, "pd_checksum"),
        (header::FLAGS, "pd_flags"),
        (header::LOWER, "pd_lower"),
        (header::UPPER, "pd_upper"),
        (header::SPECIAL, "pd_special"),
        (header::PAGE_SIZE_VERSION, "pd_pagesize_version"),
        (header::PRUNE_XID, "pd_prune_xid"),
    ];
    if offset < PAGE_HEADER_BYTES {
        let row = HEADER.iter().rev().find(|row| row.0 <= offset);
        return row.map_or_else(String::new, |row| row.1.into());
    }
    if offset < page.lower().min(page.upper()) {
        return format!("line pointer {}", (offset - PAGE_HEADER_BYTES) / LINE_POINTER_BYTES + 1);
    }
    if offset >= page.special() {
        return format!("special area, byte {}", offset - page.special());
    }
    let holds = |number: &u16| {
        page.line_pointer(*number).is_some_and(|pointer| {
            let start = usize::from(pointer.offset());
            pointer.state() != ItemState::Redirect
                && (start..start + usize::from(pointer.len())).contains(&offset)
        })
    };
    match (1..=page.items()).find(holds) {
        Some(number) => {
            let start = page.line_pointer(number).map_or(0, |pointer| pointer.offset().into());
            format!("item {number}, byte {}", offset - start)
        }
        None => format!("byte {offset}"),
    }
}
