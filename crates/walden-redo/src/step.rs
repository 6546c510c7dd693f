//! A record while it is replayed: its blocks, and what its resource manager may do to their pages.

use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Record};
use walden_format::version::Major;

use crate::page::{Misfit, Page};
use crate::pool::PageBox;
use crate::store::{PageStore, Slot, State, Unknown};

/// A block that a record refers to, in the order of [`Record::blocks`].
#[derive(Debug)]
pub struct Touched {
    /// The block's entry in the page store.
    pub slot: Slot,
    /// What the record does with the page.
    pub role: Role,
    /// What was known of it before the record.
    pub was: State,
    /// The page before the change; `None` if it is not known.
    pub page: Option<PageBox>,
    /// The page that the record's full-page image restores.
    pub image: Option<PageBox>,
    /// Whether no record has referred to the block before.
    pub fresh: bool,
    /// The page before is one of a visibility map of which [`PageStore::may_lack_bits`]; for a block with an image alone.
    pub may_lack_bits: bool,
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
    /// The record initializes its page.
    Init,
    /// Its page is not known.
    Unknown(State),
    /// Its page comes from a base backup that was taken after the record.
    Ahead,
}

impl Default for Touched {
    /// No block yet.
    fn default() -> Touched {
        let (slot, state) = (Slot::NONE, State::Unknown(Unknown::NotSeen));
        let (role, was, page, image) = (Role::Unknown(state), state, None, None);
        let (id, fresh, may_lack_bits, changed, keeps_lsn) = (0, false, false, false, false);
        Touched { slot, role, was, page, image, fresh, may_lack_bits, id, changed, keeps_lsn }
    }
}

impl Touched {
    /// A block of a record that is replayed on its own, without a store: with its page, if that is known.
    pub(crate) fn alone(block: &BlockRef, page: Option<PageBox>) -> Touched {
        let role = match &page {
            _ if block.will_init => Role::Init,
            Some(_) => Role::Redo,
            None => Role::Unknown(State::Unknown(Unknown::NotSeen)),
        };
        let page = if block.will_init { Some(PageBox::default()) } else { page };
        Touched { role, was: State::Exact, page, id: block.id, ..Touched::default() }
    }

    /// Before the record's changes, without an image.
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

    /// After the record: whether it gave the page its LSN. Of a page that is not known that is taken to be so.
    pub fn sets_lsn(&self) -> bool {
        !self.keeps_lsn && (self.changed || !matches!(self.role, Role::Redo | Role::Init))
    }

    /// After the record: whether it left the page as it was, which is known.
    pub fn is_untouched(&self) -> bool {
        self.role == Role::Redo && !self.changed
    }

    /// After the resource manager: notes the change in the page, or gives it up.
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
    /// The record that is replayed.
    pub record: &'s Record<'r>,
    pub(crate) touched: &'s mut [Touched],
    pub(crate) store: Option<&'s mut PageStore>,
}

impl<'r> Step<'_, 'r> {
    /// PostgreSQL's major version that wrote the record.
    pub fn version(&self) -> Major {
        self.record.version
    }

    /// The record's kind: the upper 4 bits of its info byte.
    pub fn kind(&self) -> u8 {
        self.record.rmgr_info()
    }

    /// The record's main data.
    pub fn main(&self) -> &'r [u8] {
        self.record.main_data()
    }

    /// The record's fields. A record that has none, or that cannot be read, fits no page.
    pub fn payload(&self) -> Result<Payload<'r>, Misfit> {
        payload::parse(self.record).map_err(|_| Misfit("the record's fields cannot be read"))
    }

    /// A block reference of the record, by its block id.
    pub fn block(&self, id: u8) -> Option<&'r BlockRef> {
        self.record.block(id)
    }

    /// The data of a block; empty if the record has none for it.
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
