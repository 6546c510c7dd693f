//! One record after another into the page store.

use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Record};
use walden_format::rmgr::{self, info, rmid};
use walden_format::version::Major;

use crate::displaced::Displaced;
use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use crate::store::{BlockKey, LastRecord, PageStore, Slot, State, Unknown};
use crate::{brin, btree, generic, gin, gist, hash, heap, image, sequence, spgist, storage};

/// What a resource manager knows of its pages.
pub(crate) struct Manager {
    /// Makes the changes of a record. An error makes all pages unknown that it had to change.
    pub redo: fn(&mut Step<'_, '_>) -> Result<(), Misfit>,
    /// Makes equal what may differ between a page and its replay.
    pub mask: fn(&mut Page, Major, Fork),
    /// The data that a block of the record would have if no image had displaced it; nothing if it can't be told.
    pub displaced: fn(&Displaced<'_>, &BlockRef) -> Option<Vec<u8>>,
}

/// The resource manager of a number, if its records can be replayed.
pub(crate) fn manager(number: u8) -> Option<&'static Manager> {
    Some(match number {
        rmid::XLOG => &XLOG,
        rmid::HEAP => &heap::HEAP,
        rmid::HEAP2 => &heap::HEAP2,
        rmid::SEQ => &sequence::SEQUENCE,
        rmid::GENERIC => &generic::GENERIC,
        rmid::BTREE => &btree::BTREE,
        rmid::GIN => &gin::GIN,
        rmid::BRIN => &brin::BRIN,
        rmid::HASH => &hash::HASH,
        rmid::GIST => &gist::GIST,
        rmid::SPGIST => &spgist::SPGIST,
        _ => return None,
    })
}

/// Whether a resource manager's records change nothing but the pages of their blocks. Those of tables may change the visibility
/// map beside them, and the log's own say whether hints are logged.
fn changes_its_pages_alone(number: u8) -> bool {
    !matches!(number, rmid::XLOG | rmid::HEAP | rmid::HEAP2)
}

/// The log's own records change pages by images alone.
static XLOG: Manager = Manager { redo: redo_xlog, mask: |_, _, _| (), displaced: |_, _| Some(Vec::new()) };

fn redo_xlog(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    if step.kind() == info::xlog::FPI_FOR_HINT
        && let Some(store) = step.store()
    {
        store.log_hints();
    }
    Ok(())
}

/// Sees records and pages as they are replayed.
pub trait Observer {
    /// Whether it looks at what replay itself has no use for: images of `wal_consistency_checking`, and pages before they
    /// are made anew.
    const ALL_IMAGES: bool = false;

    /// Before a record changes anything: the pages as they were.
    fn before(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let _ = (record, touched);
    }

    /// After a record: the pages as they are.
    ///
    /// What is done to a page here stays so.
    fn after(&mut self, record: &Record<'_>, touched: &mut [Touched]) {
        let _ = (record, touched);
    }
}

impl Observer for () {}

/// A block that a record refers to, in the order of [`Record::blocks`].
#[derive(Debug)]
pub struct Touched {
    /// The block's place in the store.
    pub slot: Slot,
    /// What happens to it.
    pub role: Role,
    /// What was known of it before the record.
    pub was: State,
    /// The page, if it is known.
    pub page: Option<PageBox>,
    /// The record's image of it, restored.
    pub image: Option<PageBox>,
    /// No record touched the block before.
    pub fresh: bool,
    id: u8,
    changed: bool,
    keeps_lsn: bool,
}

/// What a record does to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Its page is known and to be changed.
    Redo,
    /// Its page is the record's image.
    Restored,
    /// Its page is made anew.
    Init,
    /// Its page is not known.
    Unknown(State),
    /// Its page comes from a base backup that was taken after the record.
    Ahead,
}

/// Some blocks of a record, by their places in [`Record::blocks`], of which there are 33 at most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockSet(u64);

impl BlockSet {
    /// Adds one. No beyond the 64th, which no record has.
    pub fn add(&mut self, index: usize) {
        self.0 |= 1_u64.checked_shl(index as u32).unwrap_or(0);
    }

    /// Whether it is one of them.
    #[inline]
    pub fn has(self, index: usize) -> bool {
        index < 64 && self.0 >> index & 1 != 0
    }
}

/// Replays records, in the log's order.
#[derive(Debug, Default)]
pub struct Replay {
    /// The pages.
    pub store: PageStore,
    touched: Vec<Touched>,
}

impl Replay {
    /// Replays into a store.
    pub fn new(store: PageStore) -> Replay {
        Replay { store, touched: Vec::new() }
    }

    /// Replays a record.
    pub fn apply<O: Observer>(&mut self, record: &Record<'_>, observer: &mut O) {
        self.apply_but(record, BlockSet::default(), observer);
    }

    /// Replays a record but for these of its blocks, of which nothing is known then; whether it fit the pages of the others.
    ///
    /// What becomes of a page is not told by another, so those of the other blocks are as if all had been replayed.
    pub fn apply_but<O: Observer>(&mut self, record: &Record<'_>, left: BlockSet, observer: &mut O) -> bool {
        if record.blocks.is_empty() {
            storage::replay(record, &mut self.store);
            observer.before(record, &[]);
            observer.after(record, &mut []);
            return true;
        }
        let (mut room, count) = (std::mem::take(&mut self.touched), record.blocks.len());
        if room.len() < count {
            room.resize_with(count, Touched::default);
        }
        let touched = &mut room[..count];
        for (index, (block, touched)) in record.blocks.iter().zip(&mut *touched).enumerate() {
            match left.has(index) {
                true => self.leave(block, touched),
                false => self.touch(record, block, O::ALL_IMAGES, touched),
            }
        }
        observer.before(record, touched);
        let anew = |block: &BlockRef| block.image.is_some() || block.will_init;
        if record.blocks.iter().any(anew) {
            self.make_anew(touched);
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
            match (touched.page.take(), touched.role) {
                (Some(page), Role::Ahead) => self.store.put_back(touched.slot, page),
                (Some(page), _) => self.store.put(touched.slot, page, last),
                (None, Role::Unknown(state)) => self.store.give_up(touched.slot, state, last),
                (None, _) => self.store.give_up(touched.slot, State::Unknown(Unknown::NotSeen), last),
            }
            if let Some(image) = touched.image.take() {
                self.store.recycle(image);
            }
        }
        self.touched = room;
        outcome.is_ok()
    }

    /// Has pages be what the record's images and promises make them, before its changes.
    #[inline(never)]
    fn make_anew(&mut self, touched: &mut [Touched]) {
        for touched in touched {
            match touched.role {
                Role::Restored if touched.image.is_some() => {
                    std::mem::swap(&mut touched.page, &mut touched.image);
                }
                Role::Init => touched.page.get_or_insert_with(|| self.store.buffer()).0.fill(0),
                _ => {}
            }
        }
    }

    /// Takes a block's page out of the store and its image out of the record. `touched` is filled where it stays: to copy it
    /// would take longer than all else here but fetching the page from memory.
    #[inline]
    fn touch(&mut self, record: &Record<'_>, block: &BlockRef, all_images: bool, touched: &mut Touched) {
        let key = BlockKey::of(block);
        let is_restored = block.image.is_some_and(|image| image.apply);
        if (is_restored || block.will_init) && !all_images {
            return self.touch_anew(record, block, key, touched);
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

    /// Has nothing be known of a block's page from then on.
    #[inline(never)]
    fn leave(&mut self, block: &BlockRef, touched: &mut Touched) {
        let key = BlockKey::of(block);
        let slot = self.store.slot(key);
        let (was, fresh) = (self.store.state(slot), self.store.is_fresh(slot));
        let role = Role::Unknown(State::Unknown(Unknown::NotSeen));
        touched.fill(block, (slot, fresh), role, was, None);
    }

    /// The image of a block, and what its page is before the record's changes.
    #[inline(never)]
    fn restore(&mut self, record: &Record<'_>, block: &BlockRef, all_images: bool, touched: &mut Touched) {
        let (slot, role) = (touched.slot, touched.role);
        let mut restored = Ok(());
        if let Some(image) = &block.image {
            // An image for the consistency check alone is as good as any where nothing else is known.
            if image.apply || all_images || touched.page.is_none() {
                let mut page = self.store.buffer();
                restored = image::restore(image, record.image_data(image), &mut page);
                touched.image = restored.is_ok().then_some(page);
            }
            if image.apply || (touched.page.is_none() && !block.will_init) {
                // What a base has of later records, or of several moments, is not the page before this one.
                if role == Role::Ahead || self.store.may_be_torn(slot) {
                    touched.page.take().into_iter().for_each(|page| self.store.recycle(page));
                }
                touched.role = Role::Restored;
            }
        }
        // A page that is made anew is so even where the base is ahead: what it was is not looked at
        // (`XLogInitBufferForRedo`), and the base may have caught it half written.
        if block.will_init && touched.role != Role::Restored {
            touched.role = Role::Init;
        }
        if let (Role::Restored, Err(misfit)) = (touched.role, restored) {
            touched.role = Role::Unknown(State::Unknown(Unknown::Misfit(misfit)));
            touched.page = None;
        }
    }

    /// The same for a page of which nothing stays, where nobody looks at what it was: that is not even read.
    #[inline]
    fn touch_anew(&mut self, record: &Record<'_>, block: &BlockRef, key: BlockKey, touched: &mut Touched) {
        let (slot, mut page) = self.store.take_anew(key);
        let (was, fresh) = (self.store.state(slot), self.store.is_fresh(slot));
        let restored = match &block.image {
            Some(image) if image.apply => {
                image::restore(image, record.image_data(image), &mut page).map(|()| Role::Restored)
            }
            _ => Ok(Role::Init),
        };
        let (role, page) = match restored {
            Ok(role) => (role, Some(page)),
            Err(misfit) => {
                self.store.recycle(page);
                (Role::Unknown(State::Unknown(Unknown::Misfit(misfit))), None)
            }
        };
        touched.fill(block, (slot, fresh), role, was, page);
    }
}

impl Default for Touched {
    /// No block yet.
    fn default() -> Touched {
        let (slot, state) = (Slot::NONE, State::Unknown(Unknown::NotSeen));
        let (role, was, page, image) = (Role::Unknown(state), state, None, None);
        Touched { slot, role, was, page, image, fresh: false, id: 0, changed: false, keeps_lsn: false }
    }
}

impl Touched {
    /// Before the record's changes, without an image.
    #[inline(always)]
    fn fill(
        &mut self,
        block: &BlockRef,
        (slot, fresh): (Slot, bool),
        role: Role,
        was: State,
        page: Option<PageBox>,
    ) {
        (self.slot, self.fresh, self.id) = (slot, fresh, block.id);
        self.role = role;
        self.was = was;
        self.page = page;
        (self.changed, self.keeps_lsn) = (false, false);
    }

    /// After the record: whether it gave the page its LSN. Of a page that is not known that is taken to be so.
    pub fn sets_lsn(&self) -> bool {
        !self.keeps_lsn && (self.changed || !matches!(self.role, Role::Redo | Role::Init))
    }

    /// After the record: whether it left the page as it was, which is known.
    pub fn is_untouched(&self) -> bool {
        self.role == Role::Redo && !self.changed
    }

    /// After the resource manager: notes the change in the page, or gives it up.
    fn settle(&mut self, record: &Record<'_>, outcome: Result<(), State>) {
        match (self.role, outcome) {
            (Role::Restored, _) => {
                if let Some(page) = &mut self.page
                    && !page.is_new()
                    && !self.keeps_lsn
                {
                    page.set_lsn(record.end);
                }
            }
            (Role::Redo | Role::Init, Err(state)) => self.lose(state),
            (Role::Init, Ok(())) if !self.changed => {
                self.lose(State::Unknown(Unknown::Misfit(Misfit(
                    "the record did not say what is on the new page",
                ))));
            }
            (Role::Redo | Role::Init, Ok(())) => self.stamp(record),
            (Role::Unknown(_), Err(state @ State::Untracked)) => self.role = Role::Unknown(state),
            (Role::Unknown(_) | Role::Ahead, _) => {}
        }
    }

    /// Notes the change in the page.
    #[inline]
    fn stamp(&mut self, record: &Record<'_>) {
        if let Some(page) = &mut self.page
            && self.changed
            && !self.keeps_lsn
        {
            page.set_lsn(record.end);
        }
    }

    fn lose(&mut self, state: State) {
        self.role = Role::Unknown(state);
        self.page = None;
    }
}

/// A record with the pages before it and its images, of each block both, as an observer would see them; for those who have
/// no store. They are taken from there.
pub(crate) fn touched_with(
    record: &Record<'_>,
    pages: &mut [(Option<PageBox>, Option<PageBox>)],
) -> Vec<Touched> {
    let touched = |(block, (page, image)): (&BlockRef, &mut (Option<PageBox>, Option<PageBox>))| {
        let role = if image.is_some() { Role::Restored } else { Role::Redo };
        let (page, image) = (page.take(), image.take());
        Touched { role, was: State::Exact, page, image, id: block.id, ..Touched::default() }
    };
    record.blocks.iter().zip(pages).map(touched).collect()
}

/// A record being replayed: what its resource manager sees.
pub(crate) struct Step<'s, 'r> {
    /// The record.
    pub record: &'s Record<'r>,
    touched: &'s mut [Touched],
    store: Option<&'s mut PageStore>,
}

impl<'r> Step<'_, 'r> {
    /// Who wrote the record.
    pub fn version(&self) -> Major {
        self.record.version
    }

    /// The record's kind: the upper 4 bits of its info byte.
    pub fn kind(&self) -> u8 {
        self.record.kind()
    }

    /// The record's main data.
    pub fn main(&self) -> &'r [u8] {
        self.record.main_data()
    }

    /// The record's fields. A record that has none, or that can't be read, fits no page.
    pub fn payload(&self) -> Result<Payload<'r>, Misfit> {
        payload::parse(self.record).map_err(|_| Misfit("the record's fields can't be read"))
    }

    /// A block of the record.
    pub fn block(&self, id: u8) -> Option<&'r BlockRef> {
        self.record.block(id)
    }

    /// The data of a block.
    pub fn data(&self, id: u8) -> &'r [u8] {
        self.record.block(id).map_or(&[], |block| self.record.block_data(block))
    }

    /// A page to change: nothing if the record has no such block, if it was restored from the record's image, or if it is
    /// not known. Its LSN will be the record's.
    pub fn page(&mut self, id: u8) -> Option<&mut Page> {
        self.touched(id).and_then(Touched::changing)
    }

    /// A page to change even if it was restored from the record's image: for what PostgreSQL does to a page only after
    /// the record is written, so that the image lacks it.
    pub fn page_or_image(&mut self, id: u8) -> Option<&mut Page> {
        let touched = self.touched(id)?;
        if touched.role == Role::Restored { touched.page.as_deref_mut() } else { touched.changing() }
    }

    /// A new page, all zeros, to make: nothing if the record has no such block.
    pub fn init(&mut self, id: u8) -> Option<&mut Page> {
        self.touched(id).and_then(Touched::making)
    }

    /// A page to change or to make, whichever the record says.
    pub fn page_or_init(&mut self, id: u8) -> Option<&mut Page> {
        let touched = self.touched(id)?;
        if touched.role == Role::Init { touched.making() } else { touched.changing() }
    }

    /// Leaves a page's LSN as it is.
    pub fn keep_lsn(&mut self, id: u8) {
        if let Some(touched) = self.touched(id) {
            touched.keeps_lsn = true;
        }
    }

    /// Makes one page of the record unknown, the others not.
    pub fn lose(&mut self, id: u8, misfit: Misfit) {
        if let Some(touched) = self.touched(id)
            && matches!(touched.role, Role::Redo | Role::Init)
        {
            touched.lose(State::Unknown(Unknown::Misfit(misfit)));
        }
    }

    /// The pages that the record does not refer to; nothing in a rehearsal, which must not change them.
    pub fn store(&mut self) -> Option<&mut PageStore> {
        self.store.as_deref_mut()
    }

    #[inline]
    fn touched(&mut self, id: u8) -> Option<&mut Touched> {
        // Ids mostly count from 0 without gaps.
        let index = usize::from(id);
        if self.touched.get(index).is_some_and(|touched| touched.id == id) {
            return self.touched.get_mut(index);
        }
        self.touched.iter_mut().find(|touched| touched.id == id)
    }
}

impl Touched {
    #[inline]
    fn changing(&mut self) -> Option<&mut Page> {
        if self.role != Role::Redo {
            return None;
        }
        self.changed = true;
        self.page.as_deref_mut()
    }

    #[inline]
    fn making(&mut self) -> Option<&mut Page> {
        if self.role != Role::Init {
            return None;
        }
        self.changed = true;
        self.page.as_deref_mut()
    }
}

/// Replays a record on copies of pages: what they would be if the record had no images.
///
/// `bare` is the record with its data and without images; `before` are the pages of its blocks, as far as known. Comes
/// back with the pages afterwards, and a misfit if the record did not fit them.
pub fn rehearse(
    bare: &Record<'_>,
    before: impl Iterator<Item = Option<PageBox>>,
) -> Result<Vec<Option<PageBox>>, Misfit> {
    let manager = manager(bare.header.rmid).ok_or(Misfit("nobody here can replay the record"))?;
    let mut touched: Vec<Touched> = bare
        .blocks
        .iter()
        .zip(before)
        .map(|(block, page)| {
            let role = match &page {
                _ if block.will_init => Role::Init,
                Some(_) => Role::Redo,
                None => Role::Unknown(State::Unknown(Unknown::NotSeen)),
            };
            let page = if block.will_init { Some(PageBox::default()) } else { page };
            Touched { role, was: State::Exact, page, id: block.id, ..Touched::default() }
        })
        .collect();
    (manager.redo)(&mut Step { record: bare, touched: &mut touched, store: None })?;
    Ok(touched.into_iter().map(|touched| touched.page).collect())
}
