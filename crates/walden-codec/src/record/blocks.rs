//! Codes the blocks of a record: their addresses, data and images.
//!
//! A full-page image replaces the data of its block, so the change itself is not in the WAL. Encoding
//! predicts the data from the page before the record and the image, and codes it as if there were no image.
//! Both directions then replay the record without images on the known pages. The delta of the image has the
//! remaining differences, mostly hint bits.

use walden_format::assemble::{self, push_long_main_data_header, push_short_main_data_header};
use walden_format::payload::heap::{XlHeapUpdate, is_update};
use walden_format::record::block_flags::{FORK_MASK, HAS_DATA, HAS_IMAGE, SAME_REL};
use walden_format::record::{BlockHeader, Record, RecordHeader, block_id, decode};
use walden_redo::page::heap_tuple::LOGGED_FIELDS;
use walden_redo::page::{PAGE_BYTES, Tid};
use walden_redo::{PageBox, reconstruct, rehearse};

use super::block::Block;
use super::block_data::{DataSource, gist_split, inserted_tuples};
use super::leaf_tuples::MainForm;
use super::shape::{Shape, ShapeBlock};
use super::{Current, Fields, Model};
use crate::Corrupt;
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;

impl Model {
    /// Codes the blocks of a record, and main data that depends on them. Writes the record without its header
    /// to `out`.
    pub(super) fn blocks<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        (shape, xid, main_form): (usize, u32, MainForm),
        main: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        // The blocks are reused for all records, because moving them costs more than filling them.
        let mut all = std::mem::take(&mut self.blocks);
        let count = self.shapes.get(shape).blocks.len();
        if all.len() < count {
            all.resize_with(count, Block::default);
        }
        let blocks = &mut all[..count];
        self.block_headers(current, shape, blocks)?;
        self.leaf_tuples(current, (shape, main_form), blocks, main)?;
        let fields = Fields { shape, xid, main };
        let displaced = self.read_base_pages(current.source, blocks);
        self.data_of_blocks(current, fields, blocks, &displaced)?;
        current.coder.set_relation(None);
        let extra = self.origin_and_toplevel(current, fields.shape)?;
        let replayed = self.replay_without_images(current, fields, blocks, &extra);
        self.put_headers(fields, blocks, &extra, Images::With, out);
        for (index, block) in blocks.iter_mut().enumerate() {
            let source = current.source.and_then(|record| record.blocks.get(index)?.image.as_ref());
            let replayed = replayed.get(index).and_then(Option::as_deref);
            current.coder.set_relation(Some(block.address.relation.locator));
            self.image(current, block, replayed, source, out)?;
            if self.shapes.get(fields.shape).blocks[index].flags & HAS_DATA != 0 {
                out.extend_from_slice(&block.data);
            }
        }
        current.coder.set_relation(None);
        out.extend_from_slice(fields.main);
        if let Some(block) = blocks.first() {
            self.note_inserted(fields, block.address);
        }
        let store = &mut self.replay.store;
        blocks.iter_mut().for_each(|block| block.clear(store));
        replayed.into_iter().flatten().for_each(|page| store.recycle(page));
        self.blocks = all;
        Ok(())
    }

    /// Codes the addresses of blocks and the headers of their images.
    fn block_headers<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        shape: usize,
        blocks: &mut [Block],
    ) -> Result<(), Corrupt> {
        let mut relation = 0;
        for (index, block) in blocks.iter_mut().enumerate() {
            let ShapeBlock { flags, image_info, .. } = self.shapes.get(shape).blocks[index];
            let source = current.source.and_then(|record| record.blocks.get(index));
            if flags & SAME_REL == 0 {
                let locator = source.map(|block| block.relation);
                relation = self.block_refs.relation(current, self.shapes.get(shape), locator)?;
            }
            let number = source.map_or(0, |block| block.block);
            let keyed_columns = &mut self.predictors.keyed_columns;
            let fork = (relation, flags & FORK_MASK);
            block.address =
                self.block_refs.block(current, keyed_columns, self.shapes.get(shape), fork, number)?;
            if flags & HAS_IMAGE != 0 {
                let image = source.and_then(|block| block.image.as_ref());
                self.image_header(current, image_info, image, block)?;
            }
        }
        Ok(())
    }

    /// Copies the pages before the record that help to code an image. When encoding, returns the data that
    /// the images of the record replaced, if it is to be coded.
    fn read_base_pages(&mut self, source: Option<&Record<'_>>, blocks: &mut [Block]) -> Vec<Option<Vec<u8>>> {
        if !blocks.iter().any(Block::has_page_image) {
            return Vec::new();
        }
        for block in blocks.iter_mut() {
            block.rehearsal_base = self.copy_of_known_page(block.address);
            block.has_base = block.rehearsal_base.is_some();
        }
        match source {
            Some(record) if blocks.iter().any(|block| block.has_base) => displaced_data(record, blocks),
            _ => Vec::new(),
        }
    }

    /// Codes the data of blocks, or the data that their images replaced.
    fn data_of_blocks<S: Coder>(
        &mut self,
        current: &mut Current<'_, S>,
        fields: Fields<'_>,
        blocks: &mut [Block],
        displaced: &[Option<Vec<u8>>],
    ) -> Result<(), Corrupt> {
        for index in 0..blocks.len() {
            let ShapeBlock { id, flags, .. } = self.shapes.get(fields.shape).blocks[index];
            let bytes = if flags & HAS_DATA != 0 {
                current.source.and_then(|record| Some(record.block_data(record.blocks.get(index)?)))
            } else if blocks[index].has_page_image() && blocks[index].has_base {
                let data = displaced.get(index).and_then(Option::as_deref);
                let key = [fields.shape as u32, index as u32, 0];
                let kind = Kind::Symbols(Class::ImageHeaders);
                let column =
                    self.predictors.keyed_columns.column(current.coder, Topic::Displaced, key, kind)?;
                if current.coder.symbol(column, data.is_some().into())? == 0 {
                    continue;
                }
                blocks[index].has_displaced_data = true;
                data
            } else {
                continue;
            };
            // The old tuple of an update is on the second page, if there is one.
            let old_address = blocks.get(1).map_or(blocks[0].address, |block| block.address);
            current.coder.set_relation(Some(blocks[index].address.relation.locator));
            let address = blocks[index].address;
            let split_address = self.split_address(fields, blocks).unwrap_or(address);
            let source = DataSource { index, id, address, old_address, split_address, bytes };
            self.block_data(current, fields, &source, &mut blocks[index].data)?;
        }
        Ok(())
    }

    /// Returns the page that a GiST record splits: the first page of the result.
    fn split_address(&self, fields: Fields<'_>, blocks: &[Block]) -> Option<BlockAddress> {
        let shape = self.shapes.get(fields.shape);
        gist_split(shape, fields.main)?;
        let index = shape.blocks.iter().position(|block| block.id == 1)?;
        Some(blocks[index].address)
    }

    /// Writes the part of a record before the data of blocks. The record header is left empty.
    fn put_headers(
        &self,
        fields: Fields<'_>,
        blocks: &[Block],
        extra: &[u8],
        images: Images,
        out: &mut Vec<u8>,
    ) {
        let shape = self.shapes.get(fields.shape);
        assemble::start(out);
        for (block, &ShapeBlock { id, flags, .. }) in blocks.iter().zip(&shape.blocks) {
            let (flags, image) = match images {
                Images::With => (flags, block.image),
                Images::Without => {
                    let has_data = if block.data.is_empty() { 0 } else { HAS_DATA };
                    (flags & !(HAS_IMAGE | HAS_DATA) | has_data, None)
                }
            };
            let header = BlockHeader {
                id,
                flags,
                data_len: if flags & HAS_DATA != 0 { block.data.len() as u16 } else { 0 },
                image: image.map(|image| image.header),
                relation: block.address.relation.locator,
                block: block.address.block,
            };
            header.write(out);
        }
        out.extend_from_slice(extra);
        match shape.main {
            0 => {}
            block_id::DATA_SHORT => push_short_main_data_header(out, fields.main.len() as u8),
            _ => push_long_main_data_header(out, fields.main.len() as u32),
        }
    }

    /// Returns the pages after the record as they would be without its images, for images that replaced data.
    fn replay_without_images<S: Coder>(
        &self,
        current: &Current<'_, S>,
        fields: Fields<'_>,
        blocks: &mut [Block],
        extra: &[u8],
    ) -> Vec<Option<PageBox>> {
        if !blocks.iter().any(|block| block.has_displaced_data) {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        self.put_headers(fields, blocks, extra, Images::Without, &mut bytes);
        blocks.iter().for_each(|block| bytes.extend_from_slice(&block.data));
        bytes.extend_from_slice(fields.main);
        self.put_record_header(fields.shape, fields.xid, &mut bytes);
        let Some(header) = RecordHeader::parse(&bytes) else { return Vec::new() };
        let headers = blocks.iter().filter_map(|block| block.image);
        let images: usize = headers.map(|image| image.header.width() + usize::from(image.header.len)).sum();
        let displaced = blocks.iter().filter(|block| block.has_displaced_data);
        let displaced: usize = displaced.map(|block| block.data.len()).sum();
        let range = (current.lsn, (current.end)(bytes.len() + images - displaced));
        let mut refs = Vec::new();
        let Ok(record) = decode(&bytes, header, range, self.version, PAGE_BYTES as u32, &mut refs) else {
            return Vec::new();
        };
        rehearse(&record, blocks.iter_mut().map(|block| block.rehearsal_base.take())).unwrap_or_default()
    }

    /// Notes the heap tuples that the record added to its first page: index tuples for them are expected
    /// next.
    fn note_inserted(&mut self, fields: Fields<'_>, address: BlockAddress) {
        let &Shape { rmid, info, .. } = self.shapes.get(fields.shape);
        let BlockAddress { relation, block, .. } = address;
        let keys = &mut self.predictors.keys;
        inserted_tuples(rmid, info, fields.main, |number| {
            keys.inserted(relation.number, Tid { block, offset_number: number });
        });
    }
}

/// Whether a record is written with its images, or as PostgreSQL would have written it without full-page
/// images.
#[derive(Clone, Copy)]
enum Images {
    With,
    Without,
}

/// Returns the data that images replaced, predicted from the pages before the record and the images.
fn displaced_data(record: &Record<'_>, blocks: &mut [Block]) -> Vec<Option<Vec<u8>>> {
    let mut pages: Vec<_> =
        blocks.iter_mut().map(|block| (block.rehearsal_base.take(), block.page.take())).collect();
    let mut data = reconstruct::block_data(record, &mut pages);
    for (block, pages) in blocks.iter_mut().zip(pages) {
        (block.rehearsal_base, block.page) = pages;
    }
    // An update logs the whole new tuple or only its middle, according to flags. With a full-page image the
    // flags always require the whole tuple (`log_heap_update` in `heapam.c`).
    if is_update(record.header.rmid, record.header.info)
        && let (Some(image), Some(first)) =
            (blocks.first().and_then(|block| block.page.as_deref()), data.first_mut())
        && let Some(update) = XlHeapUpdate::read(record.main_data())
        && let Some(tuple) = image.item(update.new_offset)
        && let Some(tuple) = tuple.get(LOGGED_FIELDS.start..)
    {
        *first = Some(tuple.to_vec());
    }
    data
}
