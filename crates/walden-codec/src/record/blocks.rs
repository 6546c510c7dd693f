//! The blocks of a record: which they are, their data, and their images.
//!
//! An image displaces the data of its block: what changed is only to be seen by comparing pages. So encoding tells the data
//! from the page before and the image, codes it as if there were no image, and both sides replay the record without images
//! on the pages that they know. What the image has beside that (hint bits, mostly) is all that is left to say of it.

use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RECORD_HEADER, Record, RecordHeader, decode};
use walden_format::rmgr::rmid;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::replay::rehearse;
use walden_redo::store::BlockKey;
use walden_redo::{PageBox, displaced};

use super::block_data::inserted;
use super::images::{ImageForm, ImageHeader, restored};
use super::shape::{Shape, ShapeBlock};
use super::{Fixed, HAS_DATA, HAS_IMAGE, Model, SAME_RELATION};
use crate::columns::{Class, Coder, Kind, narrow};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::{Place, Relation};
use crate::tuple::heap;
use crate::tuple::tid::RowPlace;
use crate::{Corrupt, corrupt};

/// A block, as far as it is known.
#[derive(Default)]
pub struct Block {
    pub place: Place,
    pub image: Option<ImageHeader>,
    /// The image's page, where encoding has one.
    pub page: Option<PageBox>,
    /// Whether its page before the record is known and helps with its image.
    pub is_known: bool,
    /// A copy of that page, until the record is replayed on it.
    pub before: Option<PageBox>,
    /// Its data, or what takes the image's place.
    pub data: Vec<u8>,
    pub told: bool,
}

impl Block {
    /// Nothing known of it any more. The room of its data stays.
    pub fn clear(&mut self) {
        (self.image, self.page, self.before) = (None, None, None);
        (self.is_known, self.told) = (false, false);
        self.data.clear();
    }
}

/// A record, as far as it is known before its blocks.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub shape: usize,
    pub xid: u32,
    pub main: &'a [u8],
    /// Where the record starts.
    pub lsn: Lsn,
}

impl Model {
    /// Codes the blocks of a record, and puts the record together but for its header.
    ///
    /// `end` tells where a record of a length ends.
    pub fn blocks<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        around: Around<'_>,
        input: Option<&Record<'_>>,
        end: impl Fn(usize) -> Lsn,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        // They stay where they are from record to record: to move them costs more than to fill them.
        let mut room = std::mem::take(&mut self.room_for_blocks);
        let count = self.shapes[around.shape].blocks.len();
        if room.len() < count {
            room.resize_with(count, Block::default);
        }
        let blocks = &mut room[..count];
        let mut relation = 0;
        let mut told = Vec::new();
        for (index, known) in blocks.iter_mut().enumerate() {
            let ShapeBlock { flags, image_info, .. } = self.shapes[around.shape].blocks[index];
            let block = input.and_then(|record| record.blocks.get(index));
            if flags & SAME_RELATION == 0 {
                relation = self.relation(coder, fixed, around.shape, block.map(|block| block.relation))?;
            }
            let fork = flags & 0x0F;
            let block_number = block.map_or(0, |block| block.block);
            let number = self.block(coder, around.shape, relation, fork, block_number)?;
            let locator = *self
                .relations
                .get(relation as usize)
                .ok_or_else(|| corrupt("a relation's number can't be"))?;
            let place = Place { relation: Relation { number: relation, locator }, fork, block: number };
            known.place = place;
            if flags & HAS_IMAGE != 0 {
                let source = block.and_then(|block| block.image.as_ref()).zip(input);
                known.page = source.and_then(|(image, record)| restored(image, record));
                let source = source.map(|(image, record)| (image, record, known.page.as_deref()));
                let is_known = source.is_some() && self.known(place).is_some();
                let expander = &mut self.predictors.rows.expander;
                let header =
                    ImageHeader::code(coder, fixed, self.version, image_info, source, is_known, expander)?;
                known.image = Some(header);
            }
        }
        if blocks.iter().any(|block| block.image.is_some_and(|image| image.form != ImageForm::AsIs)) {
            for block in blocks.iter_mut() {
                block.before = self.known(block.place).map(PageBox::from);
                block.is_known = block.before.is_some();
            }
            if let Some(record) = input.filter(|_| blocks.iter().any(|block| block.is_known)) {
                told = told_data(record, blocks);
            }
        }
        for index in 0..blocks.len() {
            let place = blocks[index].place;
            let ShapeBlock { flags, .. } = self.shapes[around.shape].blocks[index];
            let source = if flags & HAS_DATA != 0 {
                let block = input.and_then(|record| record.blocks.get(index));
                block.zip(input).map(|(block, record)| record.block_data(block))
            } else if blocks[index].image.is_some_and(|image| image.form != ImageForm::AsIs)
                && blocks[index].is_known
            {
                let data = told.get(index).and_then(Option::as_deref);
                let like = [around.shape as u32, index as u32, 0];
                let kind = Kind::Symbols(Class::ImageHeaders);
                let column = self.predictors.names.column(coder, Topic::Told, like, kind)?;
                if coder.symbol(column, data.is_some().into())? == 0 {
                    continue;
                }
                blocks[index].told = true;
                data
            } else {
                continue;
            };
            // An update's old row is on the second page, if there is one.
            let old_place = blocks.get(1).map_or(blocks[0].place, |block| block.place);
            self.block_data(coder, around, index, place, old_place, source, &mut blocks[index].data)?;
        }
        let extra = self.extra(coder, fixed, around.shape, input)?;
        let after = self.rehearsed(around, blocks, &extra, end);
        self.headers(around, blocks, &extra, false, out);
        for (index, block) in blocks.iter_mut().enumerate() {
            if block.image.is_some() {
                let source =
                    input.and_then(|record| Some((record.blocks.get(index)?.image.as_ref()?, record)));
                let after = after.get(index).and_then(Option::as_deref);
                self.image(coder, fixed, block, after, source, out)?;
            }
            if self.shapes[around.shape].blocks[index].flags & HAS_DATA != 0 {
                out.extend_from_slice(&block.data);
            }
        }
        out.extend_from_slice(around.main);
        if let Some(block) = blocks.first() {
            let Shape { rmid: manager, info, .. } = self.shapes[around.shape];
            let Place { relation, block, .. } = block.place;
            inserted(manager, info, around.main, |number| {
                self.predictors.keys.inserted(relation.number, RowPlace { block, number });
            });
        }
        blocks.iter_mut().for_each(Block::clear);
        self.room_for_blocks = room;
        Ok(())
    }

    pub fn known(&mut self, place: Place) -> Option<&Page> {
        let key = BlockKey { relation: place.relation.locator, fork: Fork(place.fork), block: place.block };
        let slot = self.replay.store.find(key)?;
        self.replay.store.page(slot)
    }

    /// Origin and toplevel transaction, as the record has them.
    pub fn extra<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        shape: usize,
        input: Option<&Record<'_>>,
    ) -> Result<Vec<u8>, Corrupt> {
        let mut extra = Vec::new();
        if self.shapes[shape].origin {
            let column = self.predictors.names.column(
                coder,
                Topic::Origin,
                [0; 3],
                Kind::Symbols(Class::Transactions),
            )?;
            let origin = coder.symbol(column, input.and_then(|record| record.origin).unwrap_or(0).into())?;
            extra.push(253);
            extra.extend(narrow::<u16>(origin)?.to_le_bytes());
        }
        if self.shapes[shape].toplevel {
            let toplevel =
                self.xid(coder, fixed, input.and_then(|record| record.toplevel_xid).unwrap_or(0))?;
            extra.push(252);
            extra.extend(toplevel.to_le_bytes());
        }
        Ok(extra)
    }

    /// The headers in a record, after the place of its own; a bare one has data in the place of images that were told.
    pub fn headers(&self, around: Around<'_>, blocks: &[Block], extra: &[u8], bare: bool, out: &mut Vec<u8>) {
        let shape = &self.shapes[around.shape];
        out.clear();
        out.extend_from_slice(&[0; RECORD_HEADER]);
        for (block, &ShapeBlock { id, flags, .. }) in blocks.iter().zip(&shape.blocks) {
            let flags = match bare {
                true => flags & !(HAS_IMAGE | HAS_DATA) | if block.data.is_empty() { 0 } else { HAS_DATA },
                false => flags,
            };
            let [low, high] = if flags & HAS_DATA != 0 { block.data.len() as u16 } else { 0 }.to_le_bytes();
            let start = [id, flags, low, high];
            let number = block.place.block.to_le_bytes();
            let locator = block.place.relation.locator;
            let [tablespace, database, relation] = [
                locator.tablespace.to_le_bytes(),
                locator.database.to_le_bytes(),
                locator.relation.to_le_bytes(),
            ];
            let is_same = flags & SAME_RELATION != 0;
            // What most have is put there at once.
            let image = block.image.filter(|_| !bare);
            match &image {
                None if is_same => out.extend_from_slice([start, number].as_flattened()),
                None => out.extend_from_slice([start, tablespace, database, relation, number].as_flattened()),
                Some(image) => {
                    out.extend_from_slice(&start);
                    out.extend_from_slice(&image.len.to_le_bytes());
                    out.extend_from_slice(&image.offset.to_le_bytes());
                    out.push(image.info);
                    out.extend(image.hole_len.map(u16::to_le_bytes).iter().flatten());
                    if !is_same {
                        out.extend_from_slice([tablespace, database, relation].as_flattened());
                    }
                    out.extend_from_slice(&number);
                }
            }
        }
        out.extend_from_slice(extra);
        match shape.main {
            0 => {}
            255 => out.extend([255, around.main.len() as u8]),
            _ => {
                out.push(254);
                out.extend_from_slice(&(around.main.len() as u32).to_le_bytes());
            }
        }
    }

    /// The pages after the record as they would be without its images.
    pub fn rehearsed(
        &self,
        around: Around<'_>,
        blocks: &mut [Block],
        extra: &[u8],
        end: impl Fn(usize) -> Lsn,
    ) -> Vec<Option<PageBox>> {
        if !blocks.iter().any(|block| block.told) {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        self.headers(around, blocks, extra, true, &mut bytes);
        blocks.iter().for_each(|block| bytes.extend_from_slice(&block.data));
        bytes.extend_from_slice(around.main);
        self.head(around.shape, around.xid, &mut bytes);
        let Some(header) = RecordHeader::parse(&bytes) else { return Vec::new() };
        let headers = blocks.iter().filter_map(|block| block.image);
        let images: usize = headers.map(|image| image.header_len() + usize::from(image.len)).sum();
        let told: usize = blocks.iter().filter(|block| block.told).map(|block| block.data.len()).sum();
        let place = (around.lsn, end(bytes.len() + images - told));
        let mut refs = Vec::new();
        let Ok(record) = decode(&bytes, header, place, self.version, PAGE_BYTES as u32, &mut refs) else {
            return Vec::new();
        };
        rehearse(&record, blocks.iter_mut().map(|block| block.before.take())).unwrap_or_default()
    }

    pub fn tuple_coder<'m, S: Coder>(&'m mut self, coder: &'m mut S) -> TupleCoder<'m, S> {
        self.predictors.tuple_coder(coder, &mut self.replay.store)
    }
}

/// The data that images displaced.
fn told_data(record: &Record<'_>, blocks: &mut [Block]) -> Vec<Option<Vec<u8>>> {
    let mut pages: Vec<_> = blocks.iter_mut().map(|block| (block.before.take(), block.page.take())).collect();
    let mut data = displaced::data(record, &mut pages);
    for (block, pages) in blocks.iter_mut().zip(pages) {
        (block.before, block.page) = pages;
    }
    // Whether an update says all of the new row or only its middle is said by flags, which say "all" where there is an image.
    if record.header.rmid == rmid::HEAP
        && matches!(record.header.info & 0x70, 0x20 | 0x40)
        && let (Some(image), Some(first)) =
            (blocks.first().and_then(|block| block.page.as_deref()), data.first_mut())
        && let Some(number) = record.main_data().get(12..14)
        && let Some(row) = image.item(u16::from_le_bytes([number[0], number[1]]))
        && let Some(row) = row.get(heap::HEADER_BYTES - heap::HEAD_BYTES..)
    {
        *first = Some(row.to_vec());
    }
    data
}
