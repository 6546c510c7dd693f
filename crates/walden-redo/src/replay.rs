//! Replays records into the page store.

use walden_format::record::{BlockRef, Fork, Record};
use walden_format::rmgr::{self, rmid};
use walden_format::stream::NeededPart;

use crate::managers::{changes_its_pages_alone, heap, manager, shows_logged_hints, storage};
use crate::page::Misfit;
use crate::pool::PageBox;
use crate::step::{Role, Step, Touched};
use crate::store::{BlockKey, LastRecord, PageStore, Slot, State, Unknown};

const NOT_SEEN: State = State::Unknown(Unknown::NotSeen);

/// Receives each record and its pages during replay.
pub trait Observer {
    /// Whether the observer needs pages that replay itself does not use: images of
    /// `wal_consistency_checking`, and pages before they are initialized.
    const ALL_IMAGES: bool = false;

    /// Receives the pages before the record changes them.
    fn before(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let _ = (record, touched);
    }

    /// Receives the pages after the record.
    ///
    /// Changes to a page are kept.
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        let _ = (record, touched);
    }
}

impl Observer for () {}

/// A set of a record's blocks, by their index in [`Record::blocks`], which has at most 33.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockSet(u64);

impl BlockSet {
    /// Adds the block at an index. Indexes from 64 on, which no record has, are ignored.
    pub fn add(&mut self, index: usize) {
        self.0 |= 1_u64.checked_shl(index as u32).unwrap_or(0);
    }

    /// Returns whether the set has the block at an index.
    #[inline]
    pub fn has(self, index: usize) -> bool {
        index < 64 && self.0 >> index & 1 != 0
    }
}

/// Replays records in the order of the WAL.
#[derive(Debug, Default)]
pub struct Replay {
    /// The pages as they are after the last record.
    pub store: PageStore,
    touched: Vec<Touched>,
}

impl Replay {
    /// Starts with the pages of a store.
    pub fn new(store: PageStore) -> Replay {
        Replay { store, touched: Vec::new() }
    }

    /// Replays a record; `observer` sees its pages before and after.
    ///
    /// If the store keeps only a share of the pages, or a later record overwrites some
    /// ([`crate::StoreOptions::overwrites`]), the others count as unknown, and the observer does not see
    /// records that change none of the pages that the store wants.
    pub fn apply<O: Observer>(&mut self, record: &Record<'_>, observer: &mut O) {
        self.apply_except(record, BlockSet::default(), observer);
    }

    /// Replays a record except for the blocks in `excluded`, whose pages are unknown afterwards. Returns
    /// whether the record fit the pages of the other blocks.
    ///
    /// Each page is replayed independently of the others, so the pages of the other blocks are the same as
    /// after [`Replay::apply`].
    pub fn apply_except<O: Observer>(
        &mut self,
        record: &Record<'_>,
        excluded: BlockSet,
        observer: &mut O,
    ) -> bool {
        if record.blocks.is_empty() {
            storage::replay(record, &mut self.store);
            observer.before(record, &[]);
            observer.after(record, &mut []);
            return true;
        }
        let mut wanted = BlockSet(u64::MAX);
        if !self.store.wants_all() {
            // A record of pages outside of this share may show that hints are logged.
            if !self.store.are_hints_logged() && shows_logged_hints(record) {
                self.store.hint_logging().note_shown();
            }
            wanted = self.wanted_blocks(record);
            if wanted == BlockSet::default() && !self.may_clear_map(record) {
                return true;
            }
        }
        let (mut buffer, count) = (std::mem::take(&mut self.touched), record.blocks.len());
        if buffer.len() < count {
            buffer.resize_with(count, Touched::default);
        }
        let touched = &mut buffer[..count];
        for (index, (block, touched)) in record.blocks.iter().zip(&mut *touched).enumerate() {
            match excluded.has(index) {
                _ if !wanted.has(index) => {
                    touched.fill(block, (Slot::NONE, false), Role::Unknown(NOT_SEEN), NOT_SEEN, None);
                }
                true => self.exclude(block, touched),
                false => self.touch(record, block, O::ALL_IMAGES, touched),
            }
        }
        observer.before(record, touched);
        let is_overwritten = |block: &BlockRef| block.image.is_some() || block.will_init;
        if record.blocks.iter().any(is_overwritten) {
            self.apply_images(touched);
        }
        let nothing_known = touched.iter().all(|touched| matches!(touched.role, Role::Unknown(_)));
        let outcome = match manager(record.header.rmid) {
            Some(_) if nothing_known && changes_its_pages_alone(record.header.rmid) => Ok(()),
            Some(manager) => {
                let mut step = Step { record, touched, store: Some(&mut self.store) };
                (manager.redo)(&mut step).map_err(|misfit| State::Unknown(Unknown::Misfit(misfit)))
            }
            None => Err(State::Untracked),
        };
        if matches!(outcome, Err(State::Unknown(_))) {
            self.store.note_misfit_record();
        }
        for touched in &mut *touched {
            match (touched.role, outcome) {
                (Role::Redo, Ok(())) => touched.stamp(record),
                (Role::Unknown(_), Ok(())) => {}
                _ => touched.settle(record, outcome),
            }
        }
        observer.after(record, touched);
        let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
        let last = LastRecord { lsn: record.lsn, kind };
        for touched in touched {
            if touched.slot == Slot::NONE {
                continue;
            }
            match (touched.page.take(), touched.role) {
                (Some(page), Role::Ahead) => self.store.put_back(touched.slot, page),
                (Some(page), _) => self.store.put(touched.slot, page, last),
                (None, Role::Unknown(state)) => self.store.give_up(touched.slot, state, last),
                (None, _) => self.store.give_up(touched.slot, NOT_SEEN, last),
            }
            if let Some(image) = touched.image.take() {
                self.store.recycle(image);
            }
        }
        self.touched = buffer;
        outcome.is_ok()
    }

    /// Returns the part of a record that [`Replay::apply`] reads.
    pub fn needed_part(&self, record: &Record<'_>) -> NeededPart {
        let may_show_hints = record.header.rmid == rmid::HEAP2 && !self.store.are_hints_logged();
        let is_whole = manager(record.header.rmid).is_none()
            || record.blocks.is_empty()
            || may_show_hints
            || self.wanted_blocks(record) != BlockSet::default();
        match is_whole {
            true => NeededPart::All,
            false if !self.may_clear_map(record) => NeededPart::Headers,
            // The flags that clear a map's bits are in the main data.
            false if record.header.rmid == rmid::HEAP => NeededPart::MainData,
            false => NeededPart::All,
        }
    }

    /// Returns the blocks whose changes by a record matter to the store.
    #[inline]
    fn wanted_blocks(&self, record: &Record<'_>) -> BlockSet {
        let mut wanted = BlockSet::default();
        for (index, block) in record.blocks.iter().enumerate() {
            if self.store.wants(BlockKey::from_block(block), record.lsn) {
                wanted.add(index);
            }
        }
        wanted
    }

    /// Returns whether a record may change a visibility map to which it does not refer.
    fn may_clear_map(&self, record: &Record<'_>) -> bool {
        heap::visibility_map::may_clear(record, |map| self.store.wants(map, record.lsn))
    }

    /// Restores the record's images and zeroes the pages that it initializes, before its changes.
    #[inline(never)]
    fn apply_images(&mut self, touched: &mut [Touched]) {
        for touched in touched {
            match touched.role {
                Role::Restored if touched.image.is_some() => {
                    std::mem::swap(&mut touched.page, &mut touched.image);
                }
                Role::Init => match &mut touched.page {
                    Some(page) => page.0.fill(0),
                    None => touched.page = Some(PageBox::default()),
                },
                _ => {}
            }
        }
    }

    /// Takes a block's page out of the store and its image out of the record. Fills `touched` in place:
    /// copying it would take longer than anything else here except for fetching the page from memory.
    #[inline]
    fn touch(&mut self, record: &Record<'_>, block: &BlockRef, all_images: bool, touched: &mut Touched) {
        let key = BlockKey::from_block(block);
        let is_restored = block.image.is_some_and(|image| image.apply);
        if (is_restored || block.will_init) && !all_images {
            return self.touch_overwritten(record, block, key, touched);
        }
        let slot = self.store.slot(key);
        let (was, fresh) = (self.store.state(slot), self.store.is_fresh(slot));
        let page = self.store.take(slot);
        let role = match &page {
            Some(page) if page.lsn() >= record.end => Role::Ahead,
            Some(_) => Role::Redo,
            None => Role::Unknown(was),
        };
        touched.fill(block, (slot, fresh), role, was, page);
        if block.image.is_some() || block.will_init {
            self.restore(record, block, all_images, touched);
        }
    }

    /// Notes the image of a visibility map that redo restores.
    fn note_map_image(&mut self, block: &BlockRef) {
        if let Some(image) = block.image.filter(|image| image.apply) {
            self.store.note_map_image(BlockKey::from_block(block), image.info.has_hole());
        }
    }

    /// Makes a block's page unknown.
    #[inline(never)]
    fn exclude(&mut self, block: &BlockRef, touched: &mut Touched) {
        let key = BlockKey::from_block(block);
        let slot = self.store.slot(key);
        let (was, fresh) = (self.store.state(slot), self.store.is_fresh(slot));
        let role = Role::Unknown(NOT_SEEN);
        touched.fill(block, (slot, fresh), role, was, None);
    }

    /// Restores the image of a block, and sets the page before the record's changes.
    #[inline(never)]
    fn restore(&mut self, record: &Record<'_>, block: &BlockRef, all_images: bool, touched: &mut Touched) {
        let (slot, role) = (touched.slot, touched.role);
        if block.fork == Fork::VISIBILITY_MAP {
            touched.may_lack_bits = self.store.may_lack_bits(BlockKey::from_block(block));
            self.note_map_image(block);
        }
        let mut restored = Ok(());
        if let Some(image) = &block.image {
            // If nothing else is known, an image for the consistency check is used like any other.
            if image.apply || all_images || touched.page.is_none() {
                let page = self.store.restore_image(image, record.image_data(image));
                restored = page.as_ref().map(|_| ()).map_err(|misfit| *misfit);
                touched.image = page.ok();
            }
            if image.apply || (touched.page.is_none() && !block.will_init) {
                // A base that already has later changes, or is torn, is not the page before this record.
                if role == Role::Ahead || self.store.may_be_torn(slot) {
                    touched.page.take().into_iter().for_each(|page| self.store.recycle(page));
                }
                touched.role = Role::Restored;
            }
        }
        // Redo does not read a page that it initializes (`XLogInitBufferForRedo`), so the page is initialized
        // even if the base is ahead; the base may have been copied while it was being written.
        if block.will_init && touched.role != Role::Restored {
            touched.role = Role::Init;
        }
        if let (Role::Restored, Err(misfit)) = (touched.role, restored) {
            touched.role = Role::Unknown(State::Unknown(Unknown::Misfit(misfit)));
            touched.page = None;
        }
    }

    /// Prepares a page like [`Replay::touch`] if the record overwrites it completely and the observer does
    /// not need the old page, which is then not read.
    #[inline]
    fn touch_overwritten(
        &mut self,
        record: &Record<'_>,
        block: &BlockRef,
        key: BlockKey,
        touched: &mut Touched,
    ) {
        if block.fork == Fork::VISIBILITY_MAP {
            self.note_map_image(block);
        }
        let (slot, spare) = self.store.take_to_overwrite(key);
        let (was, fresh) = (self.store.state(slot), self.store.is_fresh(slot));
        let (role, page) = match &block.image {
            Some(image) if image.apply => {
                match self.store.restore_image_into(image, record.image_data(image), spare) {
                    Ok(page) => (Role::Restored, Some(page)),
                    Err(misfit) => (Role::Unknown(State::Unknown(Unknown::Misfit(misfit))), None),
                }
            }
            _ => (Role::Init, spare),
        };
        touched.fill(block, (slot, fresh), role, was, page);
    }
}

/// Replays a record on copies of pages, to find the pages that the record would produce without images.
///
/// `bare` is the record with its data and without images; `before` are the pages of its blocks, as far as
/// known. Returns the pages after the record.
///
/// # Errors
/// The record does not fit the pages, or its resource manager cannot be replayed.
pub fn rehearse(
    bare: &Record<'_>,
    before: impl Iterator<Item = Option<PageBox>>,
) -> Result<Vec<Option<PageBox>>, Misfit> {
    let manager =
        manager(bare.header.rmid).ok_or(Misfit("the record's resource manager cannot be replayed"))?;
    let mut touched: Vec<Touched> =
        bare.blocks.iter().zip(before).map(|(block, page)| Touched::alone(block, page)).collect();
    (manager.redo)(&mut Step { record: bare, touched: &mut touched, store: None })?;
    Ok(touched.into_iter().map(|touched| touched.page).collect())
}
