//! A page of one's own in memory.

use std::ops::{Deref, DerefMut};

use zerocopy::{transmute_mut, transmute_ref};

use crate::page::{PAGE_BYTES, Page};

/// A page as words: a vector of them becomes a page without being copied, and has a page's alignment.
type Words = [u64; PAGE_BYTES / size_of::<u64>()];

/// A page on the heap, which a page store lends out and takes back.
#[derive(Clone)]
pub struct PageBox(Box<Words>);

impl PageBox {
    /// A page with any content, to be filled.
    pub fn any() -> PageBox {
        PageBox::default()
    }

    fn of(words: Vec<u64>) -> PageBox {
        // Every caller's vector has a page's words.
        PageBox(words.into_boxed_slice().try_into().unwrap_or_else(|_| Box::new([0; _])))
    }
}

impl Default for PageBox {
    /// Zeros.
    fn default() -> PageBox {
        PageBox::of(vec![0; PAGE_BYTES / size_of::<u64>()])
    }
}

impl From<&Page> for PageBox {
    /// A copy, without clearing the memory first: replay copies a page for most records.
    fn from(page: &Page) -> PageBox {
        let words: &Words = transmute_ref!(page);
        PageBox::of(words.to_vec())
    }
}

impl Deref for PageBox {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        transmute_ref!(&*self.0)
    }
}

impl DerefMut for PageBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Page {
        transmute_mut!(&mut *self.0)
    }
}

impl std::fmt::Debug for PageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
