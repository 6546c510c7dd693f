//! Restores full-page images.

use walden_format::record::{Compression, Image};

use crate::compress::Method;
use crate::page::{Misfit, PAGE_BYTES, Page};

/// Restores an image into `page`; the hole becomes zeros (`RestoreBlockImage`).
///
/// `stored` are the image's bytes as the record has them. Whatever they are, nothing but the page is written.
pub fn restore_image(image: &Image, stored: &[u8], page: &mut Page) -> Result<(), Misfit> {
    let (hole, hole_len) = (usize::from(image.hole_offset), usize::from(image.hole_len));
    let expected = PAGE_BYTES.checked_sub(hole_len).filter(|&expected| hole <= expected);
    let expected = expected.ok_or(Misfit("the image's hole is larger than a page"))?;
    if stored.len() != usize::from(image.len) {
        return Err(Misfit("the image is longer than what is held of the record"));
    }
    if image.compression == Compression::None && stored.len() == expected {
        page.0[..hole].copy_from_slice(&stored[..hole]);
        page.0[hole..hole + hole_len].fill(0);
        page.0[hole + hole_len..].copy_from_slice(&stored[hole..]);
        return Ok(());
    }
    let content = &mut page.0[..expected];
    let got = Method::of(image.compression).and_then(|method| method.decompress(stored, content));
    if got != Some(expected) {
        return Err(Misfit("the image's bytes cannot be restored"));
    }
    page.0.copy_within(hole..expected, hole + hole_len);
    page.0[hole..hole + hole_len].fill(0);
    Ok(())
}
