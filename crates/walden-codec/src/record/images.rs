//! Full-page images: their headers, and their pages as deltas.

use walden_format::record::{Image, Record};
use walden_format::version::Major;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::{PageBox, image, recompress};

use super::blocks::Block;
use super::{Fixed, Model};
use crate::columns::Coder;
use crate::page::delta::difference;
use crate::page::kind::PageKind;
use crate::value::expand::{Expander, Method};
use crate::{Corrupt, corrupt};

/// An image's place in its page.
#[derive(Clone, Copy)]
pub struct ImageHeader {
    pub info: u8,
    pub len: u16,
    pub offset: u16,
    /// For a compressed image with a hole.
    pub hole_len: Option<u16>,
    pub form: ImageForm,
}

/// What is coded of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ImageForm {
    /// The page.
    Page,
    /// The page, which is to be compressed again.
    Again(Method),
    /// The bytes of the compressed image.
    AsIs,
}

impl Model {
    /// An image's bytes, appended to `out`: its difference from the page that the record makes, from the page before, or from
    /// what its items make.
    pub fn image<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        block: &mut Block,
        after: Option<&Page>,
        source: Option<(&Image, &Record<'_>)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let Some(header) = block.image else { return Ok(()) };
        let bytes = source.map_or(&[][..], |(image, record)| record.image_data(image));
        let page = block.page.take();
        let method = match header.form {
            ImageForm::AsIs => {
                return coder.bytes(fixed.image_bytes, bytes, header.len.into(), out);
            }
            ImageForm::Page => {
                return self.image_page(coder, fixed, block, after, (page, bytes), header.len, out);
            }
            ImageForm::Again(method) => method,
        };
        let whole = PAGE_BYTES as u16 - header.hole_len.unwrap_or(0).min(PAGE_BYTES as u16);
        let mut raw = Vec::new();
        if let Some(page) = &page {
            put_without_hole(page, header.offset, whole, &mut raw);
        }
        let mut same = Vec::new();
        self.image_page(coder, fixed, block, after, (page, &raw), whole, &mut same)?;
        if source.is_some() {
            // They were compared when the method was chosen.
            out.extend_from_slice(bytes);
            return Ok(());
        }
        self.predictors.rows.expander.shrink_page(&same, method, out)
    }

    /// The page of an image, without its hole: `len` bytes, appended to `out`.
    #[allow(clippy::too_many_arguments)]
    fn image_page<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        block: &Block,
        after: Option<&Page>,
        (page, bytes): (Option<PageBox>, &[u8]),
        len: u16,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let offset = block.image.map_or(0, |image| image.offset);
        let start = out.len();
        if let Some(page) = after {
            put_without_hole(page, offset, len, out);
            return difference(coder, fixed.rehearsed, &mut out[start..], bytes);
        }
        let mut made = self.made.take().unwrap_or_default();
        let columns = match self.known(block.place) {
            Some(before) => {
                made.0.copy_from_slice(&before.0);
                let by_item =
                    self.tuple_coder(coder).page_against(block.place, page.as_deref(), &mut made)?;
                if by_item { fixed.made } else { fixed.known }
            }
            None => match self.tuple_coder(coder).page(block.place, page.as_deref(), &mut made)? {
                PageKind::Bytes => {
                    self.made = Some(made);
                    return coder.bytes(fixed.image_bytes, bytes, len.into(), out);
                }
                _ => fixed.made,
            },
        };
        put_without_hole(&made, offset, len, out);
        self.made = Some(made);
        difference(coder, columns, &mut out[start..], bytes)
    }
}

impl ImageHeader {
    #[allow(clippy::too_many_arguments)]
    pub fn code<S: Coder>(
        coder: &mut S,
        fixed: &Fixed,
        version: Major,
        info: u8,
        source: Option<(&Image, &Record<'_>, Option<&Page>)>,
        is_known: bool,
        expander: &mut Expander,
    ) -> Result<ImageHeader, Corrupt> {
        const PGLZ_14: u8 = 0x02;
        const PGLZ: u8 = 0x04;
        const LZ4: u8 = 0x08;
        const ZSTD: u8 = 0x10;
        const ANY: u8 = PGLZ | LZ4 | ZSTD;
        let has_hole = info & 1 != 0;
        // `BKPIMAGE_*`: from 15 on there is a bit for each method.
        let (compressed, compression) = match version >= Major::V15 {
            true if info & ANY == PGLZ => (true, Some(recompress::Method::Pglz)),
            true if info & ANY == LZ4 => (true, Some(recompress::Method::Lz4)),
            true if info & ANY == ZSTD => (true, Some(recompress::Method::Zstd)),
            true => (info & ANY != 0, None),
            false => (info & PGLZ_14 != 0, (info & PGLZ_14 != 0).then_some(recompress::Method::Pglz)),
        };
        let mut small = |value: Option<u16>| {
            let value = coder.symbol(fixed.image_header, value.unwrap_or(0).into())?;
            u16::try_from(value).map_err(|_| corrupt("an image's size can't be"))
        };
        let image = source.map(|(image, ..)| image);
        let len = small(image.map(|image| image.len))?;
        let offset = small(image.map(|image| image.hole_offset))?;
        let hole_len =
            if compressed && has_hole { Some(small(image.map(|image| image.hole_len))?) } else { None };
        let form = if let Some(compression) = compression {
            let again = source.and_then(|(image, record, page)| {
                let whole = PAGE_BYTES as u16 - hole_len.unwrap_or(0).min(PAGE_BYTES as u16);
                let mut raw = Vec::new();
                put_without_hole(page?, offset, whole, &mut raw);
                expander.reproduces(&raw, record.image_data(image), compression, is_known)
            });
            let number = again.map_or(0, |method| 1 + method.number());
            let number = coder.symbol(fixed.image_header, number)?;
            match number.checked_sub(1) {
                None => ImageForm::AsIs,
                Some(number) => {
                    let method = Method::ALL.get(usize::try_from(number).unwrap_or(usize::MAX));
                    ImageForm::Again(*method.ok_or_else(|| corrupt("an image's method is not known"))?)
                }
            }
        } else if compressed {
            ImageForm::AsIs
        } else {
            ImageForm::Page
        };
        Ok(ImageHeader { info, len, offset, hole_len, form })
    }

    /// Bytes of its header in the record.
    pub fn header_len(&self) -> usize {
        5 + if self.hole_len.is_some() { 2 } else { 0 }
    }
}

/// The page of an image, if it is coded as one.
pub fn restored(image: &Image, record: &Record<'_>) -> Option<PageBox> {
    let mut page = PageBox::any();
    image::restore(image, record.image_data(image), &mut page).is_ok().then_some(page)
}

/// Appends a page's bytes as an image of this form would have them: `len`, and zeros for those that a page has not.
fn put_without_hole(page: &Page, offset: u16, len: u16, out: &mut Vec<u8>) {
    let end = out.len() + usize::from(len);
    let (offset, len) = (usize::from(offset).min(PAGE_BYTES), usize::from(len).min(PAGE_BYTES));
    let before = offset.min(len);
    out.extend_from_slice(&page.0[..before]);
    out.extend_from_slice(&page.0[PAGE_BYTES - (len - before)..]);
    out.resize(end, 0);
}
