//! The size of a record in each simulation.

use walden_format::record::{BlockHeader, ImageHeader, RECORD_HEADER, Record, block_id};
use walden_format::rmgr::info::xact;
use walden_format::rmgr::info::xlog::{CHECKPOINT_ONLINE, CHECKPOINT_REDO, FPI_FOR_HINT, SWITCH};
use walden_format::rmgr::rmid;
use walden_redo::Touched;

use super::State;
use super::block::{Block, Class, data_mean, hint_record_bytes, is_brin_map};
use crate::images::{RawImage, is_standard};
use crate::level::Level;
use crate::outcome::{Basis, Bucket};
use crate::simulate::RecordBytes;

impl State {
    /// Counts a replayed record and writes it in each simulation.
    #[inline(always)]
    pub(super) fn count_record(&mut self, record: &Record<'_>, touched: &[Touched]) {
        self.last_end = record.end;
        self.records += 1;
        self.transactions += u64::from(record.header.rmid == rmid::XACT);
        self.sessions.observe(record);
        self.background.observe(record);
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

    /// Counts a segment switch, with the unused bytes behind it, and switches the simulations' segments.
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

    /// Writes the record in each simulation on its own.
    #[inline(never)]
    fn write_per_simulation(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if self.records_unchanged {
            self.compute_variants(record, touched);
        }
        let mut fixed = i64::from(record.header.total_len);
        let mut consistency_bytes = 0_u64;
        for (index, (block, touched)) in record.blocks.iter().zip(touched).enumerate() {
            let state = &mut self.blocks[index];
            fixed -= i64::from(block.data_len);
            if let Some(image) = block.image {
                let bytes = u64::from(image.record_bytes());
                fixed -= bytes as i64;
                if !image.apply {
                    consistency_bytes += bytes;
                }
            } else if touched.is_untouched() {
                // Registered only for locking on replay (`REGBUF_NO_IMAGE`, `REGBUF_NO_CHANGE`).
                state.image_mask = 0;
            }
            let has_own = state.image.as_ref().is_some_and(|image| image.own.is_some());
            if state.class == Class::Checkpoint && !has_own && block.data_len > 0 {
                data_mean(&mut self.data_means, self.kind, block).add(block.data_len.into());
            }
            if state.image_mask != 0 {
                self.compute_image_sizes(record, block, touched, index);
            }
        }
        if self.skip_threshold.is_some() {
            self.note_unlogged(record, touched);
        }
        let mut written = 0;
        for at in 0..self.simulations.len() {
            if self.write(record, touched, at, fixed, consistency_bytes) {
                written |= 1 << at;
            }
        }
        // Only now, as whether a simulation writes an image depends on the change before.
        for (state, touched) in self.blocks.iter().zip(touched) {
            if touched.sets_lsn() {
                self.changes.note(state.slot, written);
            }
        }
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

    /// Observes files that `minimal` would not log, and logs those that are small when their transaction commits.
    fn note_unlogged(&mut self, record: &Record<'_>, touched: &[Touched]) {
        if self.is_unlogged_file {
            for (block, touched) in record.blocks.iter().zip(touched) {
                let Some(page) = touched.page.as_deref() else { continue };
                let raw = RawImage::of(page, is_standard(block.fork, is_brin_map(record, page)));
                let place = (block.fork, block.block);
                self.unlogged.note_page(block.relation, place, touched.slot.index(), raw.len);
            }
        }
        let ended = self.unlogged.observe(record, self.skip_threshold.unwrap_or(0));
        for small in ended {
            self.log_small(&small.pages);
        }
    }

    /// Logs the pages of a small file, `XLR_MAX_BLOCK_ID` to a record (`log_newpage_range`).
    fn log_small(&mut self, pages: &[(usize, u32)]) {
        const HEADER: u64 = RECORD_HEADER as u64;
        const FIRST_BLOCK: u64 = BlockHeader::WIDTH as u64;
        const NEXT_BLOCK: u64 = BlockHeader::SAME_REL_WIDTH as u64;
        const IMAGE_HEADER: u64 = ImageHeader::WIDTH as u64;
        for (at, simulation) in self.simulations.iter_mut().enumerate() {
            if self.levels[at] != Level::Minimal {
                continue;
            }
            for batch in pages.chunks(block_id::MAX.into()) {
                let raw: u64 = batch.iter().map(|(_, len)| u64::from(*len) + IMAGE_HEADER).sum();
                let mut bytes = RecordBytes {
                    plain: HEADER + FIRST_BLOCK + (batch.len() as u64 - 1) * NEXT_BLOCK,
                    ..RecordBytes::default()
                };
                bytes.images[1] = raw;
                bytes.compressed_images =
                    simulation.settings.wal_compression.map_or(0, |_| batch.len() as u64);
                // These few images are not compressed for their exact size.
                let basis = match simulation.settings.wal_compression {
                    None => Basis::Reconstructed,
                    Some(_) => Basis::Estimated,
                };
                bytes.add_basis(basis, bytes.plain + raw);
                simulation.insert(&bytes, self.now);
                batch.iter().for_each(|(slot, _)| self.changes.note(*slot, 1 << at));
            }
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

    /// Writes the record in one simulation, if that writes it at all.
    fn write(
        &mut self,
        record: &Record<'_>,
        touched: &[Touched],
        at: usize,
        fixed: i64,
        consistency_bytes: u64,
    ) -> bool {
        if !self.is_written_by(record, at) {
            self.simulations[at].count_dropped_record();
            return false;
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
            // The data is logged in addition to an image for a consistency check.
            let stays = !image || (index == 0 && variant.keeps_data) || state.class == Class::Forced;
            if stays {
                plain += i64::from(data);
                bytes.add_basis(data_basis, data.into());
            }
            if image && let Some(size) = state.size(simulation.settings.wal_compression) {
                let bucket = match state.class {
                    Class::Forced => 1,
                    Class::Hint => 2,
                    _ => 0,
                };
                bytes.images[bucket] += u64::from(size.bytes);
                bytes.image_count += u64::from(bucket == 0);
                bytes.compressed_images += u64::from(simulation.settings.wal_compression.is_some());
                bytes.add_basis(size.basis, size.bytes.into());
            }
            let bound = simulation.settings.log_hints() && !self.plan.log_hints && !block.will_init;
            if bound
                && self.changes.is_changed(state.slot, at)
                && self.changes.is_stale(state.slot, at, state.is_recent)
            {
                // A reader may have set hint bits since its last change, which would have been logged before this record.
                simulation.add_hint_bound(hint_record_bytes(record, block, &touched[index]));
            }
        }
        bytes.plain = plain.max(0) as u64;
        bytes.images[3] = consistency_bytes;
        bytes.add_basis(Basis::Exact, consistency_bytes);
        simulation.insert(&bytes, self.now);
        if variant.extra_records > 0 {
            let mut more = RecordBytes { plain: variant.extra_records.into(), ..RecordBytes::default() };
            more.add_basis(Basis::Estimated, variant.extra_records.into());
            simulation.insert(&more, self.now);
        }
        true
    }
}
