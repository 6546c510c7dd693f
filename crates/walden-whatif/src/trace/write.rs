//! Computes the size of a record in each simulation.

use walden_format::lsn::Lsn;
use walden_format::record::{BlockHeader, Fork, RECORD_HEADER, Record, block_id};
use walden_format::rmgr::info::xlog::{CHECKPOINT_ONLINE, CHECKPOINT_REDO, FPI_FOR_HINT, SWITCH};
use walden_format::rmgr::info::{heap, xact};
use walden_format::rmgr::rmid;
use walden_redo::{PAGE_BYTES, Page, PageStore, Slot, Touched};

use super::State;
use super::block::{
    ASSUMED_CATALOG_ERROR, Block, Class, FPI_FOR_HINT_BYTES, data_mean, has_applied_image, hint_record_bytes,
    method_index,
};
use crate::images::{ImageSize, RawImage};
use crate::level::{Level, SmallFile};
use crate::outcome::{Basis, Bucket};
use crate::simulate::RecordBytes;

/// Pages of the free space map of a table of up to 32 MB: one for each level (`FSM_TREE_DEPTH`).
const FREE_SPACE_MAP_PAGES: usize = 3;

impl State {
    /// Counts a replayed record and writes it in each simulation.
    #[inline(always)]
    pub(super) fn count_record(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.last_end = record.end;
        self.records += 1;
        self.transactions += u64::from(record.header.rmid == rmid::XACT);
        self.sessions.observe(record);
        self.background.observe(record);
        self.splits.observe(record);
        self.prunes.observe(record);
        if self.is_checkpoint_record(record) {
            self.actual.add(Bucket::Checkpoints, record.header.total_len.into());
            self.actual.add(Bucket::Alignment, record.alignment.into());
            return;
        }
        if record.header.rmid == rmid::XLOG && record.rmgr_info() == SWITCH {
            self.count_switch(record);
            return;
        }
        let is_unchanged = self.records_unchanged && self.is_without_images;
        if is_unchanged {
            self.actual.add(Bucket::Records, record.header.total_len.into());
            self.actual.add(Bucket::Alignment, record.alignment.into());
        } else {
            self.add_actual_bytes(record);
        }
        if !self.objects.is_empty() {
            self.objects.count_record(record, touched);
        }
        if is_unchanged {
            self.write_unchanged(record, touched);
        } else {
            self.write_per_simulation(record, touched);
        }
        let is_commit = record.header.rmid == rmid::XACT
            && matches!(record.rmgr_info() & xact::OPMASK, xact::COMMIT | xact::COMMIT_PREPARED);
        if is_commit {
            let now = self.now;
            self.simulations.iter_mut().for_each(|simulation| simulation.commit(now));
        }
    }

    /// Counts a segment switch, including the unused bytes after it, and switches the simulations' segments.
    fn count_switch(&mut self, record: &Record<'_>) {
        self.actual.add(Bucket::Records, record.header.total_len.into());
        let end = self.plan.segment_size.offset_of(record.end);
        if end > 0 {
            let unused = self.plan.segment_size.bytes() - end;
            self.actual.add(Bucket::Switches, unused);
            self.last_end = record.end.plus(unused);
        }
        let is_of_shutdown = self.plan.shutdown_switches.binary_search(&record.lsn).is_ok();
        if !self.plan.drop_switches || is_of_shutdown {
            self.simulations.iter_mut().for_each(|simulation| simulation.switch_segment(self.now));
        }
    }

    /// Writes the record in each simulation individually.
    #[inline(never)]
    fn write_per_simulation(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if self.records_unchanged {
            self.compute_variants(record, touched);
        }
        let mut fixed = i64::from(record.header.total_len);
        for (index, (block, touched)) in record.blocks.iter().zip(touched).enumerate() {
            let state = &mut self.blocks[index];
            fixed -= i64::from(block.data_len);
            if let Some(image) = block.image {
                fixed -= i64::from(image.record_bytes());
            }
            if self.plan.log_hints && !block.will_init && self.changes.is_hintable(state.slot) {
                self.hints.observe(state.class == Class::Hint, self.changes.cycles_of_trace(state.slot));
            }
            let has_image = has_applied_image(block);
            if !has_image && touched.is_untouched() {
                // Registered only for locking during replay (`REGBUF_NO_IMAGE`, `REGBUF_NO_CHANGE`).
                state.image_mask = 0;
            }
            if state.class == Class::Checkpoint && !has_image && block.data_len > 0 {
                data_mean(&mut self.data_means, self.kind, block).add(block.data_len.into());
            }
            if state.image_mask != 0 || state.is_checked {
                self.compute_image_sizes(record, block, touched, index);
            }
        }
        if self.is_unlogged_file {
            self.note_unlogged(record, touched);
        }
        let mut written = 0;
        for at in 0..self.simulations.len() {
            if self.write(record, touched, at, fixed) {
                written |= 1 << at;
            }
        }
        if self.segments.is_some() {
            self.write_segments(record, touched, written);
        }
        // Only after the loop, because the decision to write an image depends on the preceding change.
        let not_logged = if self.is_unlogged_file { self.at_minimal() & !written } else { 0 };
        for (state, touched) in self.blocks.iter().zip(touched) {
            if touched.sets_lsn() {
                self.changes.note(state.slot, written);
                self.changes.note_not_logged(state.slot, not_logged);
            }
        }
    }

    /// Returns the simulations under `minimal`, as a bit mask.
    fn at_minimal(&self) -> u64 {
        let levels = self.levels.iter().enumerate();
        levels.filter(|(_, level)| **level == Level::Minimal).fold(0, |mask, (at, _)| mask | 1 << at)
    }

    /// Writes the record unchanged in all simulations.
    #[inline(always)]
    fn write_unchanged(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for ((block, state), touched) in record.blocks.iter().zip(&self.blocks).zip(touched) {
            if state.class == Class::Checkpoint && block.data_len > 0 {
                data_mean(&mut self.data_means, self.kind, block).add(block.data_len.into());
            }
            if touched.sets_lsn() {
                self.changes.note_all(state.slot);
            }
        }
        let (bytes, now) = (record.header.total_len.into(), self.now);
        self.simulations.iter_mut().for_each(|simulation| simulation.insert_unchanged(bytes, now));
        if self.segments.is_some() {
            self.write_segments(record, touched, self.all);
        }
    }

    /// Whether a checkpoint itself wrote the record; each simulation writes its own.
    fn is_checkpoint_record(&self, record: &Record<'_>) -> bool {
        match record.header.rmid {
            rmid::XLOG => matches!(record.rmgr_info(), CHECKPOINT_ONLINE | CHECKPOINT_REDO),
            rmid::STANDBY => self.plan.running.contains(&record.lsn),
            _ => false,
        }
    }

    fn add_actual_bytes(&mut self, record: &Record<'_>) {
        let mut plain = u64::from(record.header.total_len);
        for (block, state) in record.blocks.iter().zip(&self.blocks) {
            let Some(image) = block.image else { continue };
            let bytes = u64::from(image.record_bytes());
            plain -= bytes;
            let bucket = match state.class {
                _ if !image.apply => Bucket::ConsistencyImages,
                Class::Forced => Bucket::ForcedImages,
                Class::Hint => Bucket::HintImages,
                Class::Checkpoint | Class::Never => Bucket::CheckpointImages,
            };
            self.images += u64::from(bucket == Bucket::CheckpointImages);
            self.actual.add(bucket, bytes);
        }
        self.actual.add(Bucket::Records, plain);
        self.actual.add(Bucket::Alignment, record.alignment.into());
    }

    /// Observes the pages of files that `minimal` would not log.
    fn note_unlogged(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for (block, touched) in record.blocks.iter().zip(touched) {
            self.unlogged.note_page(block.relation, (block.fork, block.block), touched.slot);
        }
        let is_insert = record.header.rmid == rmid::HEAP && record.rmgr_info() & heap::OPMASK == heap::INSERT;
        if let Some(block) = record.blocks.first().filter(|_| is_insert) {
            self.unlogged.note_insert(block.relation);
        }
    }

    /// Observes files that `minimal` would not log, and logs small files before the commit of their
    /// transaction.
    pub(super) fn log_small_files(&mut self, record: &Record<'_>, store: &mut PageStore) {
        let Some(threshold) = self.skip_threshold else { return };
        for small in self.unlogged.observe(record, threshold) {
            for fork in small.pages.chunk_by(|((one, _), _), ((other, _), _)| one == other) {
                // `log_newpage_range`
                for batch in fork.chunks(block_id::MAX.into()) {
                    let slots: Vec<_> = batch.iter().map(|(_, slot)| Some(*slot)).collect();
                    self.log_pages(&small, &slots, store);
                }
            }
            if small.may_have_free_space_map {
                self.log_pages(&small, &[None; FREE_SPACE_MAP_PAGES], store);
            }
        }
    }

    /// Logs pages of a small file in one record (`smgrDoPendingSyncs`), not as standard pages, so that the
    /// images include the hole. Pages without a slot belong to a free space map that the file may not have.
    fn log_pages(&mut self, file: &SmallFile, pages: &[Option<Slot>], store: &mut PageStore) {
        const HEADER: u64 = RECORD_HEADER as u64;
        const FIRST_BLOCK: u64 = BlockHeader::WIDTH as u64;
        const NEXT_BLOCK: u64 = BlockHeader::SAME_REL_WIDTH as u64;
        // A page that was not logged has no LSN.
        let raw =
            RawImage { len: PAGE_BYTES as u32, has_hole: false, lsn: Lsn(0), basis: Basis::Reconstructed };
        let plain = HEADER + FIRST_BLOCK + (pages.len() as u64 - 1) * NEXT_BLOCK;
        // By compression method.
        let mut records: [Option<RecordBytes>; 4] = [None; 4];
        let of_map = if file.may_have_free_space_map { FREE_SPACE_MAP_PAGES } else { 0 };
        let file_bytes = ((file.pages.len() + of_map) * PAGE_BYTES) as u64;
        let empty = Page([0; PAGE_BYTES]);
        for (at, simulation) in self.simulations.iter_mut().enumerate() {
            if self.levels[at] != Level::Minimal || file_bytes >= simulation.settings.skip_threshold {
                continue;
            }
            let method = simulation.settings.wal_compression;
            let bytes = records[method_index(method)].get_or_insert_with(|| {
                let mut bytes = RecordBytes { plain, ..RecordBytes::default() };
                bytes.add_basis(Basis::Reconstructed, plain);
                for slot in pages {
                    let page = slot.map_or(Some(&empty), |slot| store.page(slot));
                    let size = match method {
                        None => raw.size(),
                        // WAL does not contain the command ids of the rows.
                        Some(method) => ImageSize {
                            basis: Basis::Estimated,
                            ..self.compressor.image_size(method, file.relation, raw, page)
                        },
                    };
                    bytes.images[1] += u64::from(size.bytes);
                    bytes.compressed_images += u64::from(method.is_some());
                    bytes.add_basis(size.basis, size.bytes.into());
                }
                bytes
            });
            simulation.insert(bytes, self.now);
            if pages.contains(&None) {
                simulation.add_unshown(bytes.plain + bytes.images[1]);
            }
            pages.iter().flatten().for_each(|slot| self.changes.note(slot.index(), 1 << at));
        }
    }

    /// Whether a simulation writes the record at all.
    fn is_written_by(&self, record: &Record<'_>, at: usize) -> bool {
        let (level, settings) = (self.levels[at], &self.simulations[at].settings);
        let is_stale = |state: &Block| self.changes.is_stale(state.slot, at, state.is_recent);
        let is_hint = record.header.rmid == rmid::XLOG && record.rmgr_info() == FPI_FOR_HINT;
        let is_of_dropped = !settings.dropped.is_empty()
            && !record.blocks.is_empty()
            && record.blocks.iter().all(|block| settings.dropped.contains(&block.relation));
        self.variants[level as usize].is_written
            && !(self.is_unlogged_file && level == Level::Minimal)
            && (!is_hint || settings.log_hints() && self.blocks.iter().any(is_stale))
            && !is_of_dropped
    }

    /// Adds images of a table's free space map to the bound, once a cycle. Changes of its pages are hints
    /// (`fsm_set_avail` and its callers use `MarkBufferDirtyHint`), so the trace does not show them.
    fn bound_free_space_map(&mut self, record: &Record<'_>, at: usize) {
        /// Blocks of a table for each lowest page of its map (`SlotsPerFSMPage`).
        const SLOTS: u32 = 4069;
        const IMAGE: u64 = FPI_FOR_HINT_BYTES + PAGE_BYTES as u64;
        let kind = record.rmgr_info() & heap::OPMASK;
        let changes_space = match record.header.rmid {
            rmid::HEAP => matches!(kind, heap::INSERT | heap::UPDATE),
            rmid::HEAP2 => true,
            _ => false,
        };
        let Some(block) = record.blocks.first().filter(|block| changes_space && block.fork == Fork::MAIN)
        else {
            return;
        };
        let count = self.simulations.len();
        let simulation = &mut self.simulations[at];
        let of_leaf = self.free_space_maps.entry((block.relation, block.block / SLOTS));
        let last = &mut of_leaf.or_insert_with(|| vec![None; count])[at];
        if last.replace(simulation.cycle) != Some(simulation.cycle) {
            simulation.add_hint_bound(FREE_SPACE_MAP_PAGES as u64 * IMAGE.next_multiple_of(8));
        }
    }

    /// Writes the record in one simulation, unless the simulation omits it. Returns whether it was written.
    fn write(&mut self, record: &Record<'_>, touched: &[Touched], at: usize, fixed: i64) -> bool {
        if !self.is_written_by(record, at) {
            self.simulations[at].count_dropped_record();
            return false;
        }
        if !self.plan.log_hints && self.simulations[at].settings.log_hints() {
            self.bound_free_space_map(record, at);
        }
        let variant = self.variants[self.levels[at] as usize];
        let simulation = &mut self.simulations[at];
        let mut bytes = RecordBytes::default();
        let plain_basis = if variant.estimated { Basis::Estimated } else { Basis::Exact };
        let mut plain = fixed + i64::from(variant.fixed);
        bytes.add_basis(plain_basis, plain.max(0) as u64);
        for (index, (block, state)) in record.blocks.iter().zip(&self.blocks).enumerate() {
            let (mut data, data_basis) = state.data;
            if index == 0 {
                data = data.saturating_add_signed(variant.data);
            }
            let image = state.image_mask >> at & 1 != 0;
            // An image for a consistency check does not replace the data.
            let stays = !image || (index == 0 && variant.keeps_data) || state.class == Class::Forced;
            if stays {
                plain += i64::from(data);
                bytes.add_basis(data_basis, data.into());
            }
            if image && state.image.as_ref().is_some_and(|image| image.is_assumed_catalog) {
                simulation.add_unshown(ASSUMED_CATALOG_ERROR);
            }
            if (image || state.is_checked)
                && let Some(size) = state.size(simulation.settings.wal_compression)
            {
                let bucket = match state.class {
                    _ if !image => 3,
                    Class::Forced => 1,
                    Class::Hint => 2,
                    _ => 0,
                };
                bytes.images[bucket] += u64::from(size.bytes);
                bytes.image_count += u64::from(bucket == 0);
                bytes.compressed_images += u64::from(simulation.settings.wal_compression.is_some());
                bytes.add_basis(size.basis, size.bytes.into());
            }
            // A reader may have set hint bits since its last change, which would have been logged before this
            // record.
            let may_lack_hint = || match self.plan.log_hints {
                true => self.changes.is_hintable(state.slot) && self.changes.may_hide_hint(state.slot, at),
                false => self.changes.may_have_hint(state.slot, at),
            };
            if simulation.settings.log_hints() && !block.will_init && may_lack_hint() {
                simulation.add_hint_bound(hint_record_bytes(record, block, &touched[index]));
            }
        }
        bytes.plain = plain.max(0) as u64;
        simulation.insert(&bytes, self.now);
        if variant.extra_records > 0 {
            let mut more = RecordBytes { plain: variant.extra_records.into(), ..RecordBytes::default() };
            more.add_basis(Basis::Estimated, variant.extra_records.into());
            simulation.insert(&more, self.now);
        }
        true
    }
}
