//! Restores full-page images.

use walden_format::record::{Compression, Image};
use walden_recompress::{DecompressError, Method};

use crate::page::{Misfit, PAGE_BYTES, Page};
use crate::pool::PageBox;

/// Memory is lacking, so the image may be valid: a failure of the store that restores it.
pub(crate) const NO_MEMORY: Misfit = Misfit("memory is lacking to decompress the image");
const CORRUPT: Misfit = Misfit("the image's bytes cannot be restored");

/// Restores an image into `page`; the hole becomes zeros (`RestoreBlockImage`).
///
/// `stored` are the image's bytes in the record. Invalid bytes never write outside the page.
pub fn restore_image(image: &Image, stored: &[u8], page: &mut Page) -> Result<(), Misfit> {
    let parts = Parts::parse(image, stored)?;
    let (hole, hole_end) = (parts.hole_offset, parts.hole_offset + parts.hole_len);
    if let Some((start, end)) = parts.uncompressed(image, stored) {
        page.0[..hole].copy_from_slice(start);
        page.0[hole..hole_end].fill(0);
        page.0[hole_end..].copy_from_slice(end);
        return Ok(());
    }
    let expected = PAGE_BYTES - parts.hole_len;
    let content = &mut page.0[..expected];
    let method = Method::from_compression(image.compression).ok_or(CORRUPT)?;
    match method.try_decompress(stored, content) {
        Ok(got) if got == expected => {}
        Err(DecompressError::NoMemory) => return Err(NO_MEMORY),
        _ => return Err(CORRUPT),
    }
    page.0.copy_within(hole..expected, hole_end);
    page.0[hole..hole_end].fill(0);
    Ok(())
}

/// Restores an image into `spare`, which may have any content, or into a new page. The memory of a new page
/// is not cleared first, because most images are not compressed.
pub(crate) fn restore_page(image: &Image, stored: &[u8], spare: Option<PageBox>) -> Result<PageBox, Misfit> {
    let mut page = match spare {
        Some(spare) => spare,
        None => match Parts::parse(image, stored)?.uncompressed(image, stored) {
            Some((start, end)) => return Ok(PageBox::around_hole(start, end)),
            None => PageBox::default(),
        },
    };
    restore_image(image, stored, &mut page)?;
    Ok(page)
}

/// The position of an image's hole.
#[derive(Clone, Copy)]
struct Parts {
    hole_offset: usize,
    hole_len: usize,
}

impl Parts {
    /// Returns the position of the hole, which must be within a page.
    fn parse(image: &Image, stored: &[u8]) -> Result<Parts, Misfit> {
        let (hole_offset, hole_len) = (usize::from(image.hole_offset), usize::from(image.hole_len));
        if hole_offset + hole_len > PAGE_BYTES {
            return Err(Misfit("the image's hole is larger than a page"));
        }
        if stored.len() != usize::from(image.len) {
            return Err(Misfit("the image is longer than the part of the record in memory"));
        }
        Ok(Parts { hole_offset, hole_len })
    }

    /// Returns the parts before and after the hole, if the image is not compressed and has the correct
    /// length.
    fn uncompressed<'s>(self, image: &Image, stored: &'s [u8]) -> Option<(&'s [u8], &'s [u8])> {
        let is_whole = image.compression == Compression::None && stored.len() + self.hole_len == PAGE_BYTES;
        is_whole.then(|| stored.split_at(self.hole_offset))
    }
}
