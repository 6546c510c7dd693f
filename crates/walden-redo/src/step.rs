//! A record during replay: its blocks, and the changes that its resource manager may make to their pages.

use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Record};
use walden_format::version::Major;

use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use crate::store::{PageStore, Slot, State, Unknown};

/// A block that a record refers to, in the order of [`Record::blocks`].
#[derive(Clone, Debug)]
pub struct Touched {
    /// The block's entry in the page store.
    pub slot: Slot,
    /// The role of the page in the record.
    pub role: Role,
    /// The state of the page before the record.
    pub was: State,
    /// The page before the change; `None` if it is not known.
    pub page: Option<PageBox>,
    /// The page that the record's full-page image restores.
    pub image: Option<PageBox>,
    /// Whether no record has referred to the block before.
    pub fresh: bool,
    /// Whether the page before is of a visibility map with [`PageStore::may_lack_bits`]; set only for a block
    /// with an image.
    pub may_lack_bits: bool,
    id: u8,
    changed: bool,
    keeps_lsn: bool,
}

/// The role of a block in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The block's page is known, and the record changes it.
    Redo,
    /// The block's page was restored from the record's image.
    Restored,
    /// The record initializes the block's page.
    Init,
    /// The block's page is not known.
    Unknown(State),
    /// The block's page comes from a base backup that was taken after the record.
    Ahead,
}

impl Default for Touched {
    /// Returns a placeholder for a block.
    fn default() -> Touched {
        let (slot, state) = (Slot::NONE, State::Unknown(Unknown::NotSeen));
        let (role, was, page, image) = (Role::Unknown(state), state, None, None);
        let (id, fresh, may_lack_bits, changed, keeps_lsn) = (0, false, false, false, false);
        Touched { slot, role, was, page, image, fresh, may_lack_bits, id, changed, keeps_lsn }
    }
}

impl Touched {
    /// Describes a block of a record that is replayed without a store, with its page, if known.
    pub(crate) fn alone(block: &BlockRef, page: Option<PageBox>) -> Touched {
        let role = match &page {
            _ if block.will_init => Role::Init,
            Some(_) => Role::Redo,
            None => Role::Unknown(State::Unknown(Unknown::NotSeen)),
        };
        let page = if block.will_init { Some(PageBox::default()) } else { page };
        Touched { role, was: State::Exact, page, id: block.id, ..Touched::default() }
    }

    /// Fills the entry before the record's changes, without an image.
    #[inline(always)]
    pub(crate) fn fill(
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
        (self.may_lack_bits, self.changed, self.keeps_lsn) = (false, false, false);
    }

    /// Returns whether the record changed the page's LSN; to be called after the record. True for an unknown
    /// page.
    pub fn sets_lsn(&self) -> bool {
        !self.keeps_lsn && (self.changed || !matches!(self.role, Role::Redo | Role::Init))
    }

    /// Returns whether the record left a known page unchanged; to be called after the record.
    pub fn is_untouched(&self) -> bool {
        self.role == Role::Redo && !self.changed
    }

    /// Completes the page after the resource manager: sets the LSN of a changed page, or makes the page
    /// unknown after an error.
    pub(crate) fn settle(&mut self, record: &Record<'_>, outcome: Result<(), State>) {
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
                    "the record did not state the content of the new page",
                ))));
            }
            (Role::Redo | Role::Init, Ok(())) => self.stamp(record),
            (Role::Unknown(_), Err(state @ State::Untracked)) => self.role = Role::Unknown(state),
            (Role::Unknown(_) | Role::Ahead, _) => {}
        }
    }

    /// Sets the LSN of a changed page.
    #[inline]
    pub(crate) fn stamp(&mut self, record: &Record<'_>) {
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

/// Returns each block of a record with its page before and its image, as an observer would see them, for
/// callers without a store. Takes the pages out of `pages`.
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

/// A record during replay, as its resource manager sees it.
pub(crate) struct Step<'s, 'r> {
    /// The record that is replayed.
    pub record: &'s Record<'r>,
    pub(crate) touched: &'s mut [Touched],
    pub(crate) store: Option<&'s mut PageStore>,
}

impl<'r> Step<'_, 'r> {
    /// Returns PostgreSQL's major version that wrote the record.
    pub fn version(&self) -> Major {
        self.record.version
    }

    /// Returns the record's kind: the upper 4 bits of its info byte.
    pub fn kind(&self) -> u8 {
        self.record.rmgr_info()
    }

    /// Returns the record's main data.
    pub fn main(&self) -> &'r [u8] {
        self.record.main_data()
    }

    /// Returns the record's fields. A record without fields, or with unreadable fields, fits no page.
    pub fn payload(&self) -> Result<Payload<'r>, Misfit> {
        payload::parse(self.record).map_err(|_| Misfit("the record's fields cannot be read"))
    }

    /// Returns a block reference of the record by its block id.
    pub fn block(&self, id: u8) -> Option<&'r BlockRef> {
        self.record.block(id)
    }

    /// Returns the data of a block; empty if the record has no data for the block.
    pub fn data(&self, id: u8) -> &'r [u8] {
        self.record.block(id).map_or(&[], |block| self.record.block_data(block))
    }

    /// Returns the page of block `id` to change; `None` if the record has no block with this id, or if the
    /// page was restored from the record's image or is unknown. The page gets the record's LSN.
    pub fn page(&mut self, id: u8) -> Option<&mut Page> {
        self.touched(id).and_then(Touched::changing)
    }

    /// Returns the page of block `id` to change even if it was restored from the record's image. PostgreSQL
    /// makes some changes only after it writes the record, so that the image lacks these changes.
    pub fn page_or_image(&mut self, id: u8) -> Option<&mut Page> {
        let touched = self.touched(id)?;
        if touched.role == Role::Restored { touched.page.as_deref_mut() } else { touched.changing() }
    }

    /// Returns a new page of zeros to initialize as block `id`; `None` if the record has no block with this
    /// id.
    pub fn init(&mut self, id: u8) -> Option<&mut Page> {
        self.touched(id).and_then(Touched::making)
    }

    /// Returns a page to change or to initialize, depending on the record.
    pub fn page_or_init(&mut self, id: u8) -> Option<&mut Page> {
        let touched = self.touched(id)?;
        if touched.role == Role::Init { touched.making() } else { touched.changing() }
    }

    /// Keeps a page's LSN unchanged.
    pub fn keep_lsn(&mut self, id: u8) {
        if let Some(touched) = self.touched(id) {
            touched.keeps_lsn = true;
        }
    }

    /// Makes the page of block `id` unknown, but not the record's other pages.
    pub fn lose(&mut self, id: u8, misfit: Misfit) {
        if let Some(touched) = self.touched(id)
            && matches!(touched.role, Role::Redo | Role::Init)
        {
            touched.lose(State::Unknown(Unknown::Misfit(misfit)));
        }
    }

    /// Returns the store with the pages to which the record does not refer; `None` in a rehearsal, which must
    /// not change them.
    pub fn store(&mut self) -> Option<&mut PageStore> {
        self.store.as_deref_mut()
    }

    #[inline]
    fn touched(&mut self, id: u8) -> Option<&mut Touched> {
        // Ids usually count from 0 without gaps.
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
