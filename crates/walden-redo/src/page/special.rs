//! Special areas: the data of the access method at the end of each of its pages.

use super::{Misfit, PAGE_BYTES, Page};

/// The content of a page's special area.
///
/// A page whose special area has another size does not belong to the access method, and is never changed as
/// if it did.
pub trait SpecialArea: Copy {
    /// Bytes of the area.
    const BYTES: usize;
    /// Offset of the area on each page that has it.
    const AT: usize = PAGE_BYTES - Self::BYTES;

    /// Reads the fields at [`SpecialArea::AT`] of any page.
    fn read(page: &Page) -> Self;

    /// Writes the fields there.
    fn write(self, page: &mut Page);

    /// Checks that the area has the page id of the access method, if the access method has page ids.
    ///
    /// # Errors
    /// The page belongs to another access method.
    #[inline]
    fn check_id(self) -> Result<Self, Misfit> {
        Ok(self)
    }

    /// Returns the area of a page of this access method.
    ///
    /// # Errors
    /// The special area has another size or page id.
    #[inline]
    fn from_page(page: &Page) -> Result<Self, Misfit> {
        page.special_exactly(Self::BYTES)?;
        Self::read(page).check_id()
    }

    /// Changes the area of a page of this access method.
    ///
    /// # Errors
    /// The errors of [`SpecialArea::from_page`].
    #[inline]
    fn change(page: &mut Page, change: impl FnOnce(&mut Self)) -> Result<(), Misfit> {
        let mut area = Self::from_page(page)?;
        change(&mut area);
        area.write(page);
        Ok(())
    }

    /// Initializes an empty page with this area.
    #[inline]
    fn init(self, page: &mut Page) {
        page.init(Self::BYTES);
        self.write(page);
    }
}
