//! State of a block while its record is coded.

use walden_format::record::ImageHeader;
use walden_redo::{PageBox, PageStore};

use crate::predict::relation::BlockAddress;
use crate::value::expand::Method;
use crate::{Corrupt, corrupt};

/// State of a block while its record is coded.
#[derive(Default)]
pub struct Block {
    /// Address of the block.
    pub address: BlockAddress,
    /// Header and form of the block's image.
    pub image: Option<PageImage>,
    /// When encoding: the image's page, unless it cannot be restored.
    pub page: Option<PageBox>,
    /// Whether the page before the record is known and helps to code the image.
    pub has_base: bool,
    /// Copy of the page before the record, until the record is replayed on it.
    pub rehearsal_base: Option<PageBox>,
    /// Data of the block, or the data that its image replaced.
    pub data: Vec<u8>,
    /// Whether `data` is the data that the image replaced.
    pub has_displaced_data: bool,
}

impl Block {
    /// Clears the block but keeps the allocation of its data. Its pages return to the store.
    pub fn clear(&mut self, store: &mut PageStore) {
        self.image = None;
        for page in [self.page.take(), self.rehearsal_base.take()].into_iter().flatten() {
            store.recycle(page);
        }
        (self.has_base, self.has_displaced_data) = (false, false);
        self.data.clear();
    }

    /// Returns whether the block has an image that is coded as a page.
    pub fn has_page_image(&self) -> bool {
        self.image.is_some_and(|image| image.form != ImageForm::AsIs)
    }
}

/// Header and form of an image.
#[derive(Clone, Copy)]
pub struct PageImage {
    /// Header of the image.
    pub header: ImageHeader,
    /// Form in which the image is coded.
    pub form: ImageForm,
}

/// Form in which an image is coded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ImageForm {
    /// The page of an uncompressed image.
    Page,
    /// The page of a compressed image, which decoding compresses again.
    Compressed(Method),
    /// The bytes of a compressed image.
    AsIs,
}

impl ImageForm {
    /// Decodes the form of a compressed image: 0 for [`ImageForm::AsIs`], or 1 + the number of a method that
    /// reproduces it.
    pub fn from_number(number: u64) -> Result<ImageForm, Corrupt> {
        let Some(number) = number.checked_sub(1) else { return Ok(ImageForm::AsIs) };
        let method = Method::ALL.get(usize::try_from(number).unwrap_or(usize::MAX));
        Ok(ImageForm::Compressed(
            *method.ok_or_else(|| corrupt("cannot decode an image: expected a known compression method"))?,
        ))
    }
}
