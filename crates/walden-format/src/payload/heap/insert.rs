//! New tuples: `INSERT` and `MULTI_INSERT`.

use super::{InsertFlags, Parsed, Tuple, XlHeapInsert, XlHeapMultiInsert, page_data, tuple};
use crate::payload::listing::listing;
use crate::payload::{Fields, Items, Payload, PayloadError};
use crate::record::Record;
use crate::rmgr::info::heap2::INIT_PAGE;

/// `INSERT` (`xl_heap_insert`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insert<'a> {
    /// `offnum`: offset number of the tuple.
    pub offset: u16,
    /// `flags`: `XLH_INSERT_*`.
    pub flags: InsertFlags,
    /// The heap tuple, from block 0's data; `None` if the block has an image.
    pub tuple: Option<Tuple<'a>>,
}

pub(crate) fn insert<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let XlHeapInsert { offset, flags } = fields.structure("xl_heap_insert")?;
    let tuple = page_data(record, fields).map(|mut data| tuple(&mut data)).transpose()?;
    Ok(Payload::Insert(Insert { offset, flags, tuple }))
}

listing!(Insert<'_>: |it, list| list
    .field("off", it.offset)
    .field("flags", it.flags)
    .some("tuple", it.tuple.map(|tuple| tuple.len())));

/// `MULTI_INSERT` (`xl_heap_multi_insert`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MultiInsert<'a> {
    /// `flags`: `XLH_INSERT_*`.
    pub flags: InsertFlags,
    /// `ntuples`: number of tuples.
    pub count: u16,
    /// The tuples' line pointers; `None` if the record initializes the page: then the line pointers are 1, 2,
    /// 3 and so on.
    pub offsets: Option<Items<'a, u16>>,
    /// The heap tuples, from block 0's data; `None` if the block has an image.
    pub tuples: Option<Tuples<'a>>,
}

pub(crate) fn multi_insert<'a>(record: &Record<'a>, fields: &mut Fields<'a>) -> Parsed<'a> {
    let XlHeapMultiInsert { flags, count } = fields.structure("xl_heap_multi_insert")?;
    let new_page = record.header.info & INIT_PAGE != 0;
    let offsets = if new_page { None } else { Some(fields.items("offsets", count)?) };
    let tuples = match page_data(record, fields) {
        Some(data) => Some(Tuples::checked(data, count)?),
        None => None,
    };
    Ok(Payload::MultiInsert(MultiInsert { flags, count, offsets, tuples }))
}

listing!(MultiInsert<'_>: |it, list| list
    .field("ntuples", it.count)
    .field("flags", it.flags)
    .some("offsets", it.offsets)
    .some("tuples", it.tuples.map(|tuples| format!("{} bytes", tuples.data.left()))));

/// The tuples of a [`MultiInsert`], as an iterator. Copy it to iterate again.
#[derive(Clone, Copy)]
pub struct Tuples<'a> {
    data: Fields<'a>,
    left: u16,
}

impl<'a> Tuples<'a> {
    /// Checks all tuples first, so that the iterator cannot fail.
    fn checked(data: Fields<'a>, count: u16) -> Result<Tuples<'a>, PayloadError> {
        let mut walk = Tuples { data, left: count };
        for _ in 0..count {
            walk.read()?;
        }
        walk.data.end("tuples")?;
        Ok(Tuples { data, left: count })
    }

    fn read(&mut self) -> Result<Tuple<'a>, PayloadError> {
        let data_len = self.data.u16("datalen")?;
        Ok(Tuple {
            infomask2: self.data.u16("t_infomask2")?,
            infomask: self.data.u16("t_infomask")?,
            header_len: self.data.u8("t_hoff")?,
            data: self.data.bytes("tuple", data_len)?,
        })
    }
}

impl<'a> Iterator for Tuples<'a> {
    type Item = Tuple<'a>;

    fn next(&mut self) -> Option<Tuple<'a>> {
        self.left = self.left.checked_sub(1)?;
        self.read().ok()
    }
}

impl PartialEq for Tuples<'_> {
    fn eq(&self, other: &Self) -> bool {
        Iterator::eq(*self, *other)
    }
}

impl std::fmt::Debug for Tuples<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
