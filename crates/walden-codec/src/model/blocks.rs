//! The blocks of a record: which they are, their data, and their images.
//!
//! An image displaces the data of its block: what changed is only to be seen by comparing pages. So encoding tells the data
//! from the page before and the image, codes it as if there were no image, and both sides replay the record without images
//! on the pages that they know. What the image has beside that (hint bits, mostly) is all that is left to say of it.

use walden_format::lsn::Lsn;
use walden_format::record::{Fork, Image, RECORD_HEADER, Record, RecordHeader, decode};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::pglz::same_start;
use walden_redo::replay::rehearse;
use walden_redo::store::BlockKey;
use walden_redo::{PageBox, displaced, image, recompress};

use super::expand::{Expander, Method};
use super::heap::{self, Heads, MultiInsert, Old, Relation, TupleCoder};
use super::keys::RowPlace;
use super::names::Topic;
use super::pages::{self, PageKind, Place};
use super::{Fixed, HAS_DATA, HAS_IMAGE, MAX_ROW_BYTES, Model, SAME_RELATION, Shape, ShapeBlock};
use super::{gin, index};
use crate::columns::{Class, Coder, Column, Kind, narrow};
use crate::{Corrupt, corrupt};

/// A block, as far as it is known.
#[derive(Default)]
pub(super) struct Block {
    place: Place,
    image: Option<ImageHeader>,
    /// The image's page, where encoding has one.
    page: Option<PageBox>,
    /// Whether its page before the record is known and helps with its image.
    is_known: bool,
    /// A copy of that page, until the record is replayed on it.
    before: Option<PageBox>,
    /// Its data, or what takes the image's place.
    data: Vec<u8>,
    told: bool,
}

impl Block {
    /// Nothing known of it any more. The room of its data stays.
    fn clear(&mut self) {
        (self.image, self.page, self.before) = (None, None, None);
        (self.is_known, self.told) = (false, false);
        self.data.clear();
    }
}

/// An image's place in its page.
#[derive(Clone, Copy)]
struct ImageHeader {
    info: u8,
    len: u16,
    offset: u16,
    /// For a compressed image with a hole.
    hole_len: Option<u16>,
    form: ImageForm,
}

/// What is coded of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ImageForm {
    /// The page.
    Page,
    /// The page, which is to be compressed again.
    Again(Method),
    /// The bytes of the compressed image.
    AsIs,
}

/// A record, as far as it is known before its blocks.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
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
    pub(super) fn blocks<S: Coder>(
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
                let expander = &mut self.rows.expander;
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
                let column = self.names.column(coder, Topic::Told, like, kind)?;
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
            heap::inserted(manager, info, around.main, |number| {
                self.keys.inserted(relation.number, RowPlace { block, number });
            });
        }
        blocks.iter_mut().for_each(Block::clear);
        self.room_for_blocks = room;
        Ok(())
    }

    fn known(&mut self, place: Place) -> Option<&Page> {
        let key = BlockKey { relation: place.relation.locator, fork: Fork(place.fork), block: place.block };
        let slot = self.replay.store.find(key)?;
        self.replay.store.page(slot)
    }

    /// Origin and toplevel transaction, as the record has them.
    fn extra<S: Coder>(
        &mut self,
        coder: &mut S,
        fixed: &Fixed,
        shape: usize,
        input: Option<&Record<'_>>,
    ) -> Result<Vec<u8>, Corrupt> {
        let mut extra = Vec::new();
        if self.shapes[shape].origin {
            let column =
                self.names.column(coder, Topic::Origin, [0; 3], Kind::Symbols(Class::Transactions))?;
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
    fn headers(&self, around: Around<'_>, blocks: &[Block], extra: &[u8], bare: bool, out: &mut Vec<u8>) {
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
    fn rehearsed(
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

    /// A block's data: what it is made of where that is known, and bytes of a length otherwise.
    #[allow(clippy::too_many_arguments)]
    fn block_data<S: Coder>(
        &mut self,
        coder: &mut S,
        around: Around<'_>,
        index: usize,
        place: Place,
        old_place: Place,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        const BYTES: u64 = 0;
        const MADE: u64 = 1;
        let Shape { rmid: manager, info, .. } = self.shapes[around.shape];
        let id = self.shapes[around.shape].blocks[index].id;
        let form = DataForm::of(manager, info, id, around.main);
        let relation = place.relation;
        let like = [relation.number, around.shape as u32, index as u32];
        if form != DataForm::Bytes {
            let mut old = std::mem::take(&mut self.old);
            old.clear();
            let number = match form {
                DataForm::Row { old: Some(number) } | DataForm::RowPart { old: number, .. } => Some(number),
                _ => None,
            };
            let row = number.and_then(|number| self.known(old_place)?.item(number));
            old.extend_from_slice(row.unwrap_or_default());
            let old_row = Old::of(&old);
            let column = self.names.column(coder, Topic::DataForm, like, Kind::Symbols(Class::BlockData))?;
            let made = source.is_some_and(|data| form.fits(data, old_row, &mut self.heads));
            let made = coder.symbol(column, if made { MADE } else { BYTES })? == MADE;
            if made {
                let mut entry = None;
                let mut tuple_coder = self.tuple_coder(coder);
                match form {
                    DataForm::Row { .. } => tuple_coder.insert(relation, old_row, source, out)?,
                    DataForm::RowPart { prefix, suffix, .. } => {
                        tuple_coder.part(relation, old_row, (prefix, suffix), out)?;
                    }
                    DataForm::Rows(rows) => tuple_coder.multi_insert(relation, rows, source, out)?,
                    DataForm::IndexTuple => {
                        tuple_coder.index_tuple(relation, index::Context::Record, source, out)?;
                    }
                    DataForm::GinPending => tuple_coder.pending(relation, source, out)?,
                    DataForm::GinEntry => entry = Some(tuple_coder.gin_head(relation, source)?),
                    DataForm::Bytes => {}
                }
                if let Some(head) = entry {
                    // The entry that is replaced.
                    let number = gin::replaced(&head);
                    let item = number.and_then(|number| self.known(place)?.item(number));
                    old.extend_from_slice(item.unwrap_or_default());
                    self.tuple_coder(coder).gin_entry(relation, head, &old, source, out)?;
                }
            }
            self.old = old;
            if made {
                return Ok(());
            }
        }
        let column = self.names.column(coder, Topic::DataLength, like, Kind::Symbols(Class::BlockData))?;
        let len = coder.symbol(column, source.map_or(0, |data| data.len() as u64))?;
        let len = u16::try_from(len).map_err(|_| corrupt("a length can't be"))?;
        if len == 0 {
            return Ok(());
        }
        // Rows of one length beside each other only where there are many of them.
        let column = if len <= MAX_ROW_BYTES {
            let like = [relation.number, (around.shape as u32) << 8 | index as u32, len.into()];
            self.names.column(coder, Topic::Data, like, Kind::Rows(Class::Payload, len))?
        } else {
            self.names.column(coder, Topic::LongData, like, Kind::Bytes(Class::Payload))?
        };
        coder.bytes(column, source.unwrap_or_default(), len.into(), out)
    }

    /// An image's bytes, appended to `out`: its difference from the page that the record makes, from the page before, or from
    /// what its items make.
    fn image<S: Coder>(
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
        self.rows.expander.shrink_page(&same, method, out)
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

    fn tuple_coder<'m, S: Coder>(&'m mut self, coder: &'m mut S) -> TupleCoder<'m, S> {
        let Model { names, heads, rows, keys, replay, .. } = self;
        TupleCoder { coder, names, heads, rows, keys, store: &mut replay.store }
    }

    /// Whether what was looked at since this was asked last told something.
    pub fn has_news(&mut self) -> bool {
        self.rows.plan.has_news()
    }

    /// Looks at a record that encoding will meet.
    pub fn plan(&mut self, record: &Record<'_>) {
        let plan = &mut self.rows.plan;
        for block in record.blocks {
            if let Some(image) = &block.image {
                if plan.wants_page(block.relation)
                    && let Some(page) = restored(image, record)
                {
                    pages::plan(plan, block.relation, block.fork.0, &page);
                }
                continue;
            }
            let data = record.block_data(block);
            match DataForm::of(record.header.rmid, record.header.info, block.id, record.main_data()) {
                DataForm::Row { .. } => {
                    if let Some((head, body)) = data.split_first_chunk() {
                        heap::plan(plan, block.relation, head, body);
                    }
                }
                DataForm::Rows(_) => heap::plan_multi_insert(plan, block.relation, data),
                DataForm::IndexTuple => index::plan(plan, block.relation, data),
                DataForm::Bytes | DataForm::RowPart { .. } | DataForm::GinEntry | DataForm::GinPending => {}
            }
        }
    }
}

impl ImageHeader {
    #[allow(clippy::too_many_arguments)]
    fn code<S: Coder>(
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
    fn header_len(&self) -> usize {
        5 + if self.hole_len.is_some() { 2 } else { 0 }
    }
}

/// The page of an image, if it is coded as one.
fn restored(image: &Image, record: &Record<'_>) -> Option<PageBox> {
    let mut page = PageBox::any();
    image::restore(image, record.image_data(image), &mut page).is_ok().then_some(page)
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

/// What a block's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DataForm {
    Bytes,
    /// A row's head and the row; of an update, with the number of the row that it replaces.
    Row {
        old: Option<u16>,
    },
    /// The same without what it has in common with the row that it replaces.
    RowPart {
        old: u16,
        prefix: bool,
        suffix: bool,
    },
    /// So many rows.
    Rows(usize),
    IndexTuple,
    /// An entry of a GIN index.
    GinEntry,
    /// Tuples of a GIN index's pending list.
    GinPending,
}

impl DataForm {
    /// Of a record's block.
    fn of(manager: u8, info: u8, id: u8, main: &[u8]) -> DataForm {
        let half = |at: usize| main.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]));
        match (manager, info & 0x70, id) {
            (rmid::HEAP, 0x00, 0) => DataForm::Row { old: None },
            (rmid::HEAP, 0x20 | 0x40, 0) => {
                // `xl_heap_update`.
                let flags = main.get(7).copied().unwrap_or(0);
                match (flags & 0x20 != 0, flags & 0x40 != 0) {
                    (false, false) => DataForm::Row { old: Some(half(4)) },
                    (prefix, suffix) => DataForm::RowPart { old: half(4), prefix, suffix },
                }
            }
            (rmid::HEAP2, 0x50, 0) => DataForm::Rows(half(2).into()),
            (rmid::BTREE, _, 0) if matches!(info & 0xF0, 0x00 | 0x10) => DataForm::IndexTuple,
            (rmid::HASH, 0x20, 0) => DataForm::IndexTuple,
            (rmid::GIN, 0x20, 0) if half(0) & gin::IS_DATA == 0 => DataForm::GinEntry,
            (rmid::GIN, 0x60, 1) | (rmid::GIN, 0x70, 0) => DataForm::GinPending,
            _ => DataForm::Bytes,
        }
    }

    /// Whether data can be coded in this form, for encoding, which then does.
    fn fits(self, data: &[u8], old: Option<Old<'_>>, heads: &mut Heads) -> bool {
        match self {
            DataForm::Row { .. } => data.len() >= heap::HEAD_BYTES,
            DataForm::RowPart { prefix, suffix, .. } => heads.take_part(data, old, (prefix, suffix)),
            DataForm::Rows(rows) => MultiInsert::is_exactly(data, rows),
            DataForm::IndexTuple => index::is_tuple(data),
            DataForm::GinEntry => gin::is_entry(data),
            DataForm::GinPending => gin::is_pending(data),
            DataForm::Bytes => false,
        }
    }
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

/// Where an image differs from what it is told from.
#[derive(Clone, Copy)]
pub(super) struct Differences {
    gap: Column,
    run: Column,
    bytes: Column,
}

impl Differences {
    pub fn new<S: Coder>(coder: &mut S) -> Result<Differences, Corrupt> {
        Ok(Differences {
            gap: coder.column(Kind::Symbols(Class::ImageDifferences))?,
            run: coder.column(Kind::Symbols(Class::ImageDifferences))?,
            bytes: coder.column(Kind::Bytes(Class::ImageDifferences))?,
        })
    }
}

/// Runs of bytes that differ from those known, each as the bytes to mix in. Makes of what is known what is wanted.
fn difference<S: Coder>(
    coder: &mut S,
    columns: Differences,
    known: &mut [u8],
    source: &[u8],
) -> Result<(), Corrupt> {
    /// Equal bytes that end a run: fewer are cheaper to mix in than to skip.
    const GAP: usize = 4;
    let (encoding, len) = (!source.is_empty(), known.len());
    if encoding && source.len() != len {
        return Err(corrupt("an image has another length than it says"));
    }
    let mut at = 0;
    let mut mixed = Vec::new();
    loop {
        let gap = if encoding { same_start(&source[at..], &known[at..]) } else { 0 };
        let gap = narrow(coder.symbol(columns.gap, gap as u64)?)?;
        at = at
            .checked_add(gap)
            .filter(|&at| at <= len)
            .ok_or_else(|| corrupt("a difference is beyond the page"))?;
        if at == len {
            break;
        }
        let run = if encoding {
            let mut end = at + 1;
            while end < len {
                let until = (end + GAP).min(len);
                match source[end..until].iter().zip(&known[end..until]).position(|(new, old)| new != old) {
                    Some(skip) => end += skip + 1,
                    None => break,
                }
            }
            mixed.clear();
            mixed.extend(source[at..end].iter().zip(&known[at..end]).map(|(new, old)| new ^ old));
            end - at
        } else {
            0
        };
        let run: usize = narrow(coder.symbol(columns.run, run as u64)?)?;
        let end = at
            .checked_add(run)
            .filter(|&end| end <= len && run > 0)
            .ok_or_else(|| corrupt("a difference is beyond the page"))?;
        let mut bytes = Vec::new();
        coder.bytes(columns.bytes, &mixed, run, &mut bytes)?;
        known[at..end].iter_mut().zip(&bytes).for_each(|(byte, mix)| *byte ^= mix);
        at = end;
        if at == len {
            break;
        }
    }
    Ok(())
}
