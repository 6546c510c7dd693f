//! Decides which simulations write a full-page image of a block, and computes its size.

use walden_format::lsn::Lsn;
use walden_format::payload::heap::PruneFlags;
use walden_format::record::{BlockHeader, BlockRef, Fork, RECORD_HEADER, Record, RelFileLocator};
use walden_format::rmgr::info::{btree, heap, heap2, xlog};
use walden_format::rmgr::{ImageClass, rmid};
use walden_format::transam::FIRST_NORMAL_OID;
use walden_format::version::Major;
use walden_recompress::Method;
use walden_redo::page::brin::{BRIN_PAGETYPE_META, BRIN_PAGETYPE_REVMAP, BrinSpecialSpace};
use walden_redo::page::{Page, SpecialArea};
use walden_redo::{PAGE_BYTES, reconstruct};
use walden_redo::{Role, Touched};

use super::State;
use crate::images::{ImageSize, RawImage, is_standard};
use crate::means::{Mean, Means};
use crate::outcome::Basis;

/// Assumed bytes of the image of a catalog's page of unknown content: images of a new database have 5042
/// bytes on average (15). Loaded tables have full pages, and account for most unknown pages in large amounts
/// of WAL.
const ASSUMED_CATALOG_IMAGE: u32 = 5 << 10;
/// The additional error of that estimate, because a page may be full.
pub(super) const ASSUMED_CATALOG_ERROR: u64 = 1792;

/// Flag of a record's info byte: `wal_consistency_checking` includes its resource manager.
const XLR_CHECK_CONSISTENCY: u8 = 0x02;

/// The reason why a block may have a full-page image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Never,
    Forced,
    Checkpoint,
    Hint,
}

/// A block of the current record.
pub(super) struct Block {
    pub class: Class,
    pub slot: usize,
    /// Bit mask of the simulations that write an image.
    pub image_mask: u64,
    /// Whether `wal_consistency_checking` logs an image in simulations that write no other image.
    pub is_checked: bool,
    /// Whether the page was last changed since the redo pointer in force at the start of the window.
    pub is_recent: bool,
    /// The page's LSN before the record; 0 if it is new or unknown.
    pub lsn: Lsn,
    /// Bytes of block data if there is no image.
    pub data: (u32, Basis),
    /// That data, if an image of the trace has displaced it, it could be reconstructed, and segments are
    /// written.
    pub displaced: Option<Vec<u8>>,
    /// The image, if the trace or a simulation has one.
    pub image: Option<BlockImage>,
}

/// The full-page image of a block.
#[derive(Default)]
pub(super) struct BlockImage {
    /// Bytes and compression method of the trace's own image.
    pub own: Option<(u32, Option<Method>)>,
    pub raw: Option<RawImage>,
    /// Whether the block belongs to a catalog, and neither its page nor an image of the page is known.
    pub is_assumed_catalog: bool,
    pub sizes: [Option<ImageSize>; 4],
}

impl Block {
    /// Returns the size of its image under a method used by a simulation with an image.
    pub(super) fn size(&self, method: Option<Method>) -> Option<ImageSize> {
        self.image.as_ref()?.sizes[method_index(method)]
    }
}

impl State {
    /// Classifies a block before the record is replayed, and decides which simulations write an image of the
    /// block.
    #[inline(always)]
    pub(super) fn classify_block(
        &mut self,
        record: &Record<'_>,
        block: &BlockRef,
        touched: &Touched,
    ) -> Block {
        let slot = touched.slot.index();
        self.changes.reserve(slot, touched.fresh);
        if shows_hints(record, block) {
            self.changes.note_hintable(slot);
        }
        let class = self.image_class(record, block, touched);
        let has_image = has_applied_image(block);
        let is_recent = self.is_recent(touched, class, has_image);
        self.check_image_rule(touched, class, has_image);
        self.diagnostics.blocks += 1;
        let is_known = touched.page.is_some() || has_image || block.will_init;
        self.diagnostics.pages_unknown += u64::from(!is_known);
        let (mut image_mask, mut mask_if_stale) = match class {
            Class::Never => (0, 0),
            Class::Forced => (self.all, 0),
            // Until 14, an FPI_FOR_HINT record always has its image (`XLogSaveBufferForHint`).
            Class::Hint if self.plan.version < Major::V15 => (0, self.all),
            Class::Checkpoint | Class::Hint => (0, self.full_page_writes),
        };
        while mask_if_stale != 0 {
            let at = mask_if_stale.trailing_zeros() as usize;
            mask_if_stale &= mask_if_stale - 1;
            image_mask |= u64::from(self.changes.is_stale(slot, at, is_recent)) << at;
        }
        let before = touched.image.as_deref().or(touched.page.as_deref());
        let lsn = before.map_or(Lsn(0), Page::lsn);
        let image = block.image.map(|image| {
            let own = (image.record_bytes(), Method::from_compression(image.compression));
            let len = image.uncompressed_len(PAGE_BYTES as u32);
            self.raw_means.entry((block.relation, block.fork)).or_default().add(len);
            let raw = RawImage { len, has_hole: image.hole_len > 0, lsn, basis: Basis::Exact };
            BlockImage { own: Some(own), raw: Some(raw), is_assumed_catalog: false, sizes: [None; 4] }
        });
        let data = (u32::from(block.data_len), Basis::Exact);
        self.is_without_images &= image_mask == 0 && block.image.is_none();
        let is_checked = block.image.is_some_and(|image| {
            let is_record_checked = record.header.info & XLR_CHECK_CONSISTENCY != 0;
            !image.apply || is_record_checked && self.plan.version >= Major::V10
        });
        Block { class, slot, image_mask, is_checked, is_recent, lsn, data, displaced: None, image }
    }

    fn image_class(&self, record: &Record<'_>, block: &BlockRef, touched: &Touched) -> Class {
        if block.will_init {
            return Class::Never;
        }
        match self.kinds.image_class(self.kind.into(), block.id) {
            ImageClass::Forced => Class::Forced,
            ImageClass::Hint => Class::Hint,
            // The heap page keeps its LSN in this case, and has no image (`log_heap_visible`, since 19
            // `log_heap_prune_and_freeze`).
            ImageClass::Checkpoint if !self.plan.log_hints && only_marks_page(record, block) => Class::Never,
            ImageClass::Checkpoint if is_never_logged(record, block, touched) => Class::Forced,
            ImageClass::Checkpoint if self.is_requested(record, block, touched) => Class::Forced,
            ImageClass::Checkpoint => Class::Checkpoint,
        }
    }

    /// Whether an extension requested the image of a page (`GENERIC_XLOG_FULL_IMAGE`), which it does for new
    /// pages: no checkpoint explains it, or the page was never logged before. An image that redo does not
    /// apply exists for a consistency check.
    fn is_requested(&self, record: &Record<'_>, block: &BlockRef, touched: &Touched) -> bool {
        if record.header.rmid != rmid::GENERIC || !has_applied_image(block) {
            return false;
        }
        let Some(image) = &touched.image else { return false };
        let is_recent = self.real_redo > Lsn(0) && image.lsn() > self.real_redo;
        image.lsn() == Lsn(0) || is_recent || !self.plan.full_page_writes
    }

    /// Whether a page that no counted record has changed yet was changed since the redo pointer at the start
    /// of the window.
    fn is_recent(&mut self, touched: &Touched, class: Class, has_image: bool) -> bool {
        let Some(redo) = self.plan.redo else {
            // The window starts within a cycle: a missing image shows that the page had been changed.
            let is_visible = self.plan.full_page_writes && class == Class::Checkpoint;
            if !is_visible && touched.fresh {
                self.diagnostics.first_touches_unknown += 1;
            }
            return is_visible && !has_image && self.redo_cursor == 0;
        };
        match &touched.page {
            Some(page) if touched.role != Role::Ahead => page.lsn() > redo,
            _ => {
                self.plan.full_page_writes
                    && class == Class::Checkpoint
                    && !has_image
                    && self.real_redo == redo
            }
        }
    }

    /// Applies the full-page image rule to the trace itself, if the page before the record is known.
    fn check_image_rule(&mut self, touched: &Touched, class: Class, has_image: bool) {
        if class != Class::Checkpoint || !self.plan.full_page_writes || self.real_redo == Lsn(0) {
            return;
        }
        let Some(page) = touched.page.as_deref().filter(|_| touched.role != Role::Ahead) else { return };
        let expected = page.lsn() <= self.real_redo;
        self.diagnostics.decisions += 1;
        match (expected, has_image) {
            (true, false) => self.diagnostics.missing_images += 1,
            (false, true) => self.diagnostics.unexpected_images += 1,
            _ => {}
        }
    }

    /// Determines the data that an image displaced, if a simulation does not write the image, or writes the
    /// data with it (`logical`).
    pub(super) fn measure_displaced_data(&mut self, record: &Record<'_>, touched: &[Touched], index: usize) {
        let keeps_data = index == 0
            && !self.records_unchanged
            && self.distinct_levels.iter().any(|level| self.variants[*level as usize].keeps_data);
        let (block, state) = (&record.blocks[index], &mut self.blocks[index]);
        let is_displaced_by_all = state.image_mask == self.all && !keeps_data;
        if state.class != Class::Checkpoint || block.data_len > 0 || is_displaced_by_all {
            return;
        }
        let mean = data_mean(&mut self.data_means, self.kind, block);
        state.data = match reconstruct::block_data_at(record, touched, index) {
            Some(data) => {
                let len = data.len() as u32;
                state.displaced = self.segments.is_some().then_some(data);
                (len, Basis::Reconstructed)
            }
            None => (mean.get().unwrap_or(0), Basis::Estimated),
        };
    }

    /// Computes the size of a block's image under each compression method of the simulations that write it,
    /// for a consistency check or another reason.
    pub(super) fn compute_image_sizes(
        &mut self,
        record: &Record<'_>,
        block: &BlockRef,
        touched: &Touched,
        index: usize,
    ) {
        let state = &mut self.blocks[index];
        let image = state.image.get_or_insert_default();
        let page = touched.page.as_deref();
        let mean = self.raw_means.entry((block.relation, block.fork)).or_default();
        let is_assumed = image.raw.is_none() && page.is_none() && mean.get().is_none();
        image.is_assumed_catalog = is_assumed && block.relation.relation < FIRST_NORMAL_OID;
        let assumed = if image.is_assumed_catalog { ASSUMED_CATALOG_IMAGE } else { PAGE_BYTES as u32 };
        let raw = *image.raw.get_or_insert_with(|| match page {
            Some(page) => RawImage { lsn: state.lsn, ..raw_image_of(record, block, page) },
            None => RawImage {
                len: mean.get().unwrap_or(assumed),
                has_hole: true,
                lsn: state.lsn,
                basis: Basis::Estimated,
            },
        });
        let mut image_mask = if state.is_checked { self.all } else { state.image_mask };
        while image_mask != 0 {
            let at = image_mask.trailing_zeros() as usize;
            image_mask &= image_mask - 1;
            let method = self.simulations[at].settings.wal_compression;
            let size = &mut image.sizes[method_index(method)];
            if size.is_some() {
                continue;
            }
            *size = Some(match (image.own, method) {
                (Some((bytes, own)), _) if own == method => ImageSize { bytes, basis: Basis::Exact },
                (_, None) => raw.size(),
                (_, Some(method)) => self.compressor.image_size(method, block.relation, raw, page),
            });
        }
    }
}

/// Returns the mean data length of a block in records of this kind.
#[inline]
pub(super) fn data_mean<'a>(
    means: &'a mut Means<(u16, u8, RelFileLocator)>,
    kind: u16,
    block: &BlockRef,
) -> &'a mut Mean {
    let hint = block.relation.relation ^ u32::from(kind) << 16;
    means.entry((kind, block.id, block.relation), hint)
}

pub(super) fn method_index(method: Option<Method>) -> usize {
    match method {
        None => 0,
        Some(Method::Pglz) => 1,
        Some(Method::Lz4) => 2,
        Some(Method::Zstd) => 3,
    }
}

/// Whether a record only marks a table's page as all visible. Since 19, an image in such a record shows that
/// hints are logged, or that the page was never logged.
fn only_marks_page(record: &Record<'_>, block: &BlockRef) -> bool {
    if record.header.rmid != rmid::HEAP2 {
        return false;
    }
    if record.version < Major::V19 {
        return record.rmgr_info() & heap2::OPMASK == heap2::VISIBLE && block.id == 1;
    }
    let sets_bits_alone = |flags: PruneFlags| flags.sets_all_visible() && !flags.has_lists();
    block.id == 0 && !has_applied_image(block) && prune_flags(record).is_some_and(sets_bits_alone)
}

/// Since 19 the image of a page that was never logged is forced when it is pruned
/// (`log_heap_prune_and_freeze`).
fn is_never_logged(record: &Record<'_>, block: &BlockRef, touched: &Touched) -> bool {
    let may_be_forced = record.version >= Major::V19 && block.id == 0 && has_applied_image(block);
    may_be_forced
        && prune_flags(record).is_some()
        && touched.image.as_ref().is_some_and(|image| image.lsn() == Lsn(0))
}

/// Whether a block has an image that redo applies.
pub(super) fn has_applied_image(block: &BlockRef) -> bool {
    block.image.is_some_and(|image| image.apply)
}

/// Returns the flags of a prune record since 17; `None` for other records.
fn prune_flags(record: &Record<'_>) -> Option<PruneFlags> {
    let is_prune = record.header.rmid == rmid::HEAP2
        && matches!(record.rmgr_info(), heap2::PRUNE_ON_ACCESS..=heap2::PRUNE_VACUUM_CLEANUP);
    if is_prune { PruneFlags::read(record.main_data(), record.version) } else { None }
}

/// Bytes of an `FPI_FOR_HINT` record without the image.
pub(super) const FPI_FOR_HINT_BYTES: u64 = (RECORD_HEADER + BlockHeader::WIDTH) as u64;

/// Whether a record shows that hint bits are set on a block's page: its rows are updated, its index entries'
/// rows are dead, or the trace has an image for hint bits of the page. Pages that only receive new rows are
/// not counted, because no record shows that they are read.
fn shows_hints(record: &Record<'_>, block: &BlockRef) -> bool {
    let kind = record.rmgr_info();
    let is_shown = match record.header.rmid {
        rmid::HEAP => kind & heap::OPMASK != heap::INSERT,
        rmid::BTREE => matches!(kind, btree::DELETE | btree::VACUUM),
        rmid::XLOG => kind == xlog::FPI_FOR_HINT,
        _ => false,
    };
    is_shown && block.fork == Fork::MAIN
}

/// Bytes of an `FPI_FOR_HINT` record of a block, uncompressed and with padding.
pub(super) fn hint_record_bytes(record: &Record<'_>, block: &BlockRef, touched: &Touched) -> u64 {
    let image = match (block.image, touched.page.as_deref()) {
        (Some(image), _) => image.uncompressed_len(PAGE_BYTES as u32),
        (None, Some(page)) => raw_image_of(record, block, page).len,
        (None, None) => PAGE_BYTES as u32,
    };
    (FPI_FOR_HINT_BYTES + u64::from(image)).next_multiple_of(8)
}

/// Returns the uncompressed image of a page.
pub(super) fn raw_image_of(record: &Record<'_>, block: &BlockRef, page: &Page) -> RawImage {
    RawImage::from_page(page, is_standard(block.fork, is_brin_map(record, page)))
}

/// Whether a page is a BRIN meta or range map page (`BRIN_PAGETYPE_META`, `BRIN_PAGETYPE_REVMAP`), whose
/// content is not between the bounds in its header.
fn is_brin_map(record: &Record<'_>, page: &Page) -> bool {
    let page_type = || BrinSpecialSpace::from_page(page).map(|special| special.page_type);
    record.header.rmid == rmid::BRIN && matches!(page_type(), Ok(BRIN_PAGETYPE_REVMAP | BRIN_PAGETYPE_META))
}

#[cfg(test)]
mod tests {
    use walden_format::record::{RecordHeader, decode};
    use walden_redo::PageBox;

    use super::*;

    /// Returns, for block 0 of a record of Heap2, whether the record only marks its page, and whether its
    /// page was never logged. `image` is the LSN of the page in its image.
    fn classed(version: Major, info: u8, main: &[u8], image: Option<u64>) -> (bool, bool) {
        const HAS_IMAGE: u8 = 0x10;
        const APPLY: u8 = 0x02;
        let mut bytes = vec![0; RECORD_HEADER];
        bytes.extend([0, if image.is_some() { HAS_IMAGE } else { 0 }, 0, 0]);
        if image.is_some() {
            bytes.extend([0, 0x20, 0, 0, APPLY]);
        }
        for field in [1663, 5, 16384, 7] {
            bytes.extend(u32::to_le_bytes(field));
        }
        bytes.extend([255, main.len() as u8]);
        bytes.resize(bytes.len() + if image.is_some() { PAGE_BYTES } else { 0 }, 0);
        bytes.extend(main);
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        bytes[16..18].copy_from_slice(&[info, rmid::HEAP2]);
        let (header, mut blocks) = (RecordHeader::parse(&bytes).unwrap(), Vec::new());
        let place = (Lsn(0x1000), Lsn(0x8000));
        let record = decode(&bytes, header, place, version, PAGE_BYTES as u32, &mut blocks).unwrap();
        let mut touched = Touched::default();
        touched.image = image.map(|lsn| {
            let mut page = Page([0; PAGE_BYTES]);
            page.set_lsn(Lsn(lsn));
            PageBox::from(&page)
        });
        let block = &record.blocks[0];
        (only_marks_page(&record, block), is_never_logged(&record, block, &touched))
    }

    #[test]
    fn since_19_a_record_that_sets_bits_alone_has_an_image_where_it_shows_more() {
        // All visible; all visible and all frozen; all visible, with line pointers that became unused.
        let (visible, frozen, unused) = ([0x00, 0x01], [0x00, 0x03], [0x80, 0x01]);
        for kind in [heap2::PRUNE_ON_ACCESS, heap2::PRUNE_VACUUM_SCAN, heap2::PRUNE_VACUUM_CLEANUP] {
            assert_eq!(classed(Major::V19, kind, &visible, None), (true, false));
            assert_eq!(classed(Major::V19, kind, &frozen, None), (true, false));
            assert_eq!(classed(Major::V19, kind, &unused, None), (false, false));
            // Hints are logged; or the page was never logged, and has an image regardless of settings.
            assert_eq!(classed(Major::V19, kind, &visible, Some(9)), (false, false));
            assert_eq!(classed(Major::V19, kind, &unused, Some(0)), (false, true));
            assert_eq!(classed(Major::V18, kind, &unused, Some(0)), (false, false));
        }
        assert_eq!(classed(Major::V19, heap2::MULTI_INSERT, &visible, None), (false, false));
        assert_eq!(
            classed(Major::V18, heap2::VISIBLE, &[0, 0, 0, 0, 3], None),
            (false, false),
            "the map's block"
        );
    }
}
