//! Special areas: what an access method keeps at the end of each of its pages.

use super::{Misfit, PAGE_BYTES, Page};

/// The content of a page's special area.
///
/// A page that does not have exactly this area is not one of the access method's, and is never changed as if it were.
pub trait SpecialArea: Copy {
    /// Bytes of the area.
    const BYTES: usize;
    /// Where the area is on each page that has it.
    const AT: usize = PAGE_BYTES - Self::BYTES;

    /// Reads the fields at [`SpecialArea::AT`], whatever the page is.
    fn read(page: &Page) -> Self;

    /// Writes the fields there.
    fn write(self, page: &mut Page);

    /// Whether the area's page id is that of the access method, where it has one.
    ///
    /// # Errors
    /// Says whose page it is not.
    #[inline]
    fn check_id(self) -> Result<Self, Misfit> {
        Ok(self)
    }

    /// The area of a page of this access method.
    ///
    /// # Errors
    /// If the special area has another size or page id.
    #[inline]
    fn of(page: &Page) -> Result<Self, Misfit> {
        page.special_exactly(Self::BYTES)?;
        Self::read(page).check_id()
    }

    /// Changes the area of a page of this access method.
    ///
    /// # Errors
    /// As [`SpecialArea::of`].
    #[inline]
    fn change(page: &mut Page, change: impl FnOnce(&mut Self)) -> Result<(), Misfit> {
        let mut area = Self::of(page)?;
        change(&mut area);
        area.write(page);
        Ok(())
    }

    /// Makes a page an empty one with this area.
    #[inline]
    fn init(self, page: &mut Page) {
        page.init(Self::BYTES);
        self.write(page);
    }
}
