//! Page buffers in memory.

use std::ops::{Deref, DerefMut};

use zerocopy::{transmute_mut, transmute_ref};

use crate::page::{PAGE_BYTES, Page};

/// A page as 8-byte words: a vector of words becomes a page without being copied, and has a page's alignment.
type Words = [u64; PAGE_BYTES / size_of::<u64>()];

/// A page in heap memory, which a page store lends and takes back.
#[derive(Clone)]
pub struct PageBox(Box<Words>);

impl PageBox {
    /// Builds a page from its first and last bytes, with zeros between them, without clearing the memory
    /// first. The bytes must not exceed a page.
    pub(crate) fn around_hole(start: &[u8], end: &[u8]) -> PageBox {
        const WORDS: usize = PAGE_BYTES / size_of::<u64>();
        let mut words: Vec<u64> = Vec::with_capacity(WORDS);
        let (whole, last) = start.as_chunks();
        words.extend(whole.iter().map(|word| u64::from_ne_bytes(*word)));
        if !last.is_empty() {
            let mut word = [0; size_of::<u64>()];
            word[..last.len()].copy_from_slice(last);
            words.push(u64::from_ne_bytes(word));
        }
        let (first, whole) = end.as_rchunks();
        words.resize(WORDS - whole.len(), 0);
        words.extend(whole.iter().map(|word| u64::from_ne_bytes(*word)));
        let mut page = PageBox::from_words(words);
        // Copy the first bytes of `end` if they do not fill a word: their word also contains bytes of the
        // hole or of `start`.
        let at = PAGE_BYTES - end.len();
        (*page).0[at..at + first.len()].copy_from_slice(first);
        page
    }

    fn from_words(words: Vec<u64>) -> PageBox {
        // All callers pass exactly as many words as a page has.
        PageBox(words.into_boxed_slice().try_into().unwrap_or_else(|_| Box::new([0; _])))
    }
}

impl Default for PageBox {
    /// Returns a page of zeros.
    fn default() -> PageBox {
        PageBox::from_words(vec![0; PAGE_BYTES / size_of::<u64>()])
    }
}

impl From<&Page> for PageBox {
    /// Copies a page without clearing the memory first: replay copies a page for most records.
    fn from(page: &Page) -> PageBox {
        let words: &Words = transmute_ref!(page);
        PageBox::from_words(words.to_vec())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_start_and_its_end_and_zeros_between_them() {
        let bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| at as u8 | 1).collect();
        for (start, end) in
            [(0, 0), (24, 8160), (29, 32), (29, 8163), (0, 8189), (8192, 0), (3, 8187), (5, 5)]
        {
            let (start, end) = (&bytes[..start], &bytes[PAGE_BYTES - end..]);
            let page = PageBox::around_hole(start, end);
            let hole = PAGE_BYTES - start.len() - end.len();
            assert!(
                (*page).0[..] == [start, &vec![0; hole], end].concat(),
                "{} and {}",
                start.len(),
                end.len()
            );
        }
    }
}
