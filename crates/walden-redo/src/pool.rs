//! A page of one's own in memory.

use std::ops::{Deref, DerefMut};

use zerocopy::FromZeros;

use crate::page::Page;

/// A page on the heap, which a page store lends out and takes back.
#[derive(Clone)]
pub struct PageBox(Box<Page>);

impl PageBox {
    /// A page with any content, to be filled.
    pub fn any() -> PageBox {
        PageBox::default()
    }
}

impl Default for PageBox {
    /// Zeros.
    fn default() -> PageBox {
        PageBox(Page::new_box_zeroed().unwrap_or_else(|_| Box::default()))
    }
}

impl From<&Page> for PageBox {
    fn from(page: &Page) -> PageBox {
        let mut copy = PageBox::any();
        copy.0.0.clone_from(&page.0);
        copy
    }
}

impl Deref for PageBox {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        &self.0
    }
}

impl DerefMut for PageBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Page {
        &mut self.0
    }
}

impl std::fmt::Debug for PageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
