//! Codes full-page images: their headers, and their pages as deltas.
//!
//! The base of the delta is the page that the record yields without its image. Otherwise it is the page
//! before the record, as it was or with its items decoded against it ([`crate::page`]). Without a known page,
//! it is a page reconstructed item by item. [`crate::page::delta`] codes the delta. An image that the server
//! compressed is coded as its page, if compressing that page yields the same bytes.

use walden_format::record::{Image, ImageHeader, ImageInfo};
use walden_redo::page::{PAGE_BYTES, Page};

use super::block::{Block, ImageForm, PageImage};
use super::{Current, Model};
use crate::columns::Coder;
use crate::page::delta::code_delta;
use crate::page::kind::PageKind;
use crate::predict::relation::BlockAddress;
use crate::{Corrupt, corrupt};

/// Page of an image, as it is coded.
struct ImagePage<'a> {
    address: BlockAddress,
    /// Offset of the hole.
    offset: u16,
    /// Length without the hole in bytes.
    len: u16,
    /// The page that the record yields without its image.
    replayed: Option<&'a Page>,
    /// When encoding: the page, unless it cannot be restored.
    page: Option<&'a Page>,
    /// When encoding: the page without its hole.
    bytes: Option<&'a [u8]>,
}

impl Model {
    /// Codes the header of a block's image. When encoding, restores the image's page.
    pub(super) fn image_header<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        info: u8,
        source: Option<&Image>,
        block: &mut Block,
    ) -> Result<(), Corrupt> {
        let source = source.zip(current.source);
        block.page = source.and_then(|(image, record)| {
            self.replay.store.restore_image(image, record.image_data(image)).ok()
        });
        let image = source.map(|(image, _)| image);
        let column = current.columns.image_headers;
        let mut code = |value: Option<u16>| {
            let value = current.coder.symbol(column, value.unwrap_or(0).into())?;
            u16::try_from(value)
                .map_err(|_| corrupt("cannot decode an image's header: expected fields of 16 bits"))
        };
        let info = ImageInfo(info);
        let compression = info.compression(self.version);
        let len = code(image.map(|image| image.len))?;
        let hole_offset = code(image.map(|image| image.hole_offset))?;
        let hole_len = match ImageHeader::has_hole_len(info, self.version) {
            true => Some(code(image.map(|image| image.hole_len))?),
            false => None,
        };
        let form = match compression.map(walden_recompress::Method::from_compression) {
            // Several methods at once, which no server writes.
            None => ImageForm::AsIs,
            Some(None) => ImageForm::Page,
            Some(Some(compression)) => {
                let recompressor = &mut self.predictors.layouts.recompressor;
                let method = source.zip(block.page.as_deref()).and_then(|((image, record), page)| {
                    let mut raw = Vec::new();
                    put_without_hole(page, hole_offset, len_without_hole(hole_len), &mut raw);
                    recompressor.method_of_page(&raw, record.image_data(image), compression)
                });
                let number = method.map_or(0, |method| 1 + method.number());
                ImageForm::from_number(current.coder.symbol(column, number)?)?
            }
        };
        block.image = Some(PageImage { header: ImageHeader { len, hole_offset, info, hole_len }, form });
        Ok(())
    }

    /// Codes a block's image, if it has one, and appends its bytes to `out`.
    pub(super) fn image<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        block: &Block,
        replayed: Option<&Page>,
        source: Option<&Image>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let Some(PageImage { header, form }) = block.image else { return Ok(()) };
        let bytes = source.zip(current.source).map(|(image, record)| record.image_data(image));
        let page = block.page.as_deref();
        let (address, offset) = (block.address, header.hole_offset);
        let image = ImagePage { address, offset, len: header.len, replayed, page, bytes };
        let method = match form {
            ImageForm::AsIs => {
                let (column, bytes) = (current.columns.image_bytes, bytes.unwrap_or_default());
                return current.coder.bytes(column, bytes, header.len.into(), out);
            }
            ImageForm::Page => return self.image_page(current, &image, out),
            ImageForm::Compressed(method) => method,
        };
        let len = len_without_hole(header.hole_len);
        let mut raw = Vec::new();
        if let Some(page) = page {
            put_without_hole(page, offset, len, &mut raw);
        }
        let raw = bytes.map(|_| &raw[..]);
        let mut decoded = Vec::new();
        self.image_page(current, &ImagePage { len, bytes: raw, ..image }, &mut decoded)?;
        if let Some(bytes) = bytes {
            // Equality was verified when the method was chosen.
            out.extend_from_slice(bytes);
            return Ok(());
        }
        self.predictors.layouts.recompressor.recompress_page(&decoded, method, out)
    }

    /// Codes the page of an image as a delta against the best known base, and appends it to `out` without its
    /// hole.
    fn image_page<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        image: &ImagePage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let columns = current.columns;
        let &ImagePage { address, offset, len, replayed, page, bytes } = image;
        let start = out.len();
        if let Some(page) = replayed {
            put_without_hole(page, offset, len, out);
            return code_delta(current.coder, columns.delta_to_replayed, &mut out[start..], bytes);
        }
        let mut predicted = self.reconstructed.take().unwrap_or_default();
        let delta = match self.known_page(address) {
            Some(base) => {
                predicted.0.copy_from_slice(&base.0);
                let by_item =
                    self.tuple_coder(current.coder).page_against_base(address, page, &mut predicted)?;
                Some(if by_item { columns.delta_to_items } else { columns.delta_to_base })
            }
            None => match self.tuple_coder(current.coder).page(address, page, &mut predicted)? {
                PageKind::Bytes => None,
                _ => Some(columns.delta_to_items),
            },
        };
        let result = match delta {
            Some(columns) => {
                put_without_hole(&predicted, offset, len, out);
                code_delta(current.coder, columns, &mut out[start..], bytes)
            }
            None => current.coder.bytes(columns.image_bytes, bytes.unwrap_or_default(), len.into(), out),
        };
        self.reconstructed = Some(predicted);
        result
    }
}

/// Returns the length of a page without its hole, in bytes.
fn len_without_hole(hole_len: Option<u16>) -> u16 {
    PAGE_BYTES as u16 - hole_len.unwrap_or(0).min(PAGE_BYTES as u16)
}

/// Appends the bytes of a page without its hole: `len` bytes, padded with zeros beyond the page.
fn put_without_hole(page: &Page, offset: u16, len: u16, out: &mut Vec<u8>) {
    let end = out.len() + usize::from(len);
    let (offset, len) = (usize::from(offset).min(PAGE_BYTES), usize::from(len).min(PAGE_BYTES));
    let before = offset.min(len);
    out.extend_from_slice(&page.0[..before]);
    out.extend_from_slice(&page.0[PAGE_BYTES - (len - before)..]);
    out.resize(end, 0);
}
