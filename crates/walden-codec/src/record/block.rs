//! A block of a record, as far as it is known.

use walden_format::record::ImageHeader;
use walden_redo::{PageBox, PageStore};

use crate::predict::relation::BlockAddress;
use crate::value::expand::Method;
use crate::{Corrupt, corrupt};

/// A block, as far as it is known.
#[derive(Default)]
pub struct Block {
    /// Which block it is.
    pub address: BlockAddress,
    /// The header of its image.
    pub image: Option<PageImage>,
    /// The image's page, when encoding, unless it cannot be restored.
    pub page: Option<PageBox>,
    /// Whether its page before the record is known and helps with its image.
    pub has_base: bool,
    /// A copy of that page, until the record is replayed on it.
    pub rehearsal_base: Option<PageBox>,
    /// Its data, or what its image displaced.
    pub data: Vec<u8>,
    /// Whether `data` is what its image displaced.
    pub has_displaced_data: bool,
}

impl Block {
    /// Forgets everything but the allocation of its data; the store gets its pages back.
    pub fn clear(&mut self, store: &mut PageStore) {
        self.image = None;
        for page in [self.page.take(), self.rehearsal_base.take()].into_iter().flatten() {
            store.recycle(page);
        }
        (self.has_base, self.has_displaced_data) = (false, false);
        self.data.clear();
    }

    /// Whether it has an image that is coded as a page.
    pub fn has_page_image(&self) -> bool {
        self.image.is_some_and(|image| image.form != ImageForm::AsIs)
    }
}

/// An image, as far as it is known before its bytes.
#[derive(Clone, Copy)]
pub struct PageImage {
    /// Its header.
    pub header: ImageHeader,
    /// What is coded of it.
    pub form: ImageForm,
}

/// What is coded of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ImageForm {
    /// The page.
    Page,
    /// The page, which is to be compressed again.
    Compressed(Method),
    /// The bytes of the compressed image.
    AsIs,
}

impl ImageForm {
    /// Of a compressed image: 0, or 1 + the number of a method that reproduces it.
    pub fn from_number(number: u64) -> Result<ImageForm, Corrupt> {
        let Some(number) = number.checked_sub(1) else { return Ok(ImageForm::AsIs) };
        let method = Method::ALL.get(usize::try_from(number).unwrap_or(usize::MAX));
        Ok(ImageForm::Compressed(
            *method.ok_or_else(|| corrupt("cannot decode an image: expected a known compression method"))?,
        ))
    }
}
