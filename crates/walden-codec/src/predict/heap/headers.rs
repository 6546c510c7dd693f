//! Codes the headers of heap tuples, by relation.

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use walden_format::payload::heap::UpdateFlags;
use walden_redo::page::heap_tuple::{LOGGED_FIELDS, LOGGED_FIELDS_BYTES};

use crate::predict::attributes::LayoutKey;
use crate::predict::keyed_columns::{KeyedColumns, Topic};
use crate::tuple::heap::{HeapHeader, HeapTuple, completed_update, fields, has_nulls, layout};
use crate::{Corrupt, corrupt};

/// Known headers: the same in both directions.
#[derive(Default)]
pub struct HeapHeaders {
    /// By relation number.
    relations: Vec<RelationHeaders>,
    /// Buffers for whole tuples of updates: as completed, and as coded.
    pub whole_tuples: [Vec<u8>; 2],
    /// Header of the completed tuple, if there is one.
    pub completed_header: Option<HeapHeader>,
}

/// Known headers of a relation.
#[derive(Default)]
struct RelationHeaders {
    headers: Dictionary<HeapHeader>,
    /// By the offset of the attributes.
    bitmaps: Vec<(u8, Dictionary<Vec<u8>>)>,
}

impl RelationHeaders {
    fn bitmaps(&self, offset: u8) -> Option<&Dictionary<Vec<u8>>> {
        self.bitmaps.iter().find(|bitmaps| bitmaps.0 == offset).map(|bitmaps| &bitmaps.1)
    }

    fn add_bitmap(&mut self, offset: u8, bitmap: Vec<u8>) -> u64 {
        let known = self.bitmaps.iter().position(|bitmaps| bitmaps.0 == offset);
        let at = known.unwrap_or_else(|| {
            self.bitmaps.push((offset, Dictionary::default()));
            self.bitmaps.len() - 1
        });
        self.bitmaps[at].1.add(bitmap)
    }
}

/// Values of one relation, numbered in the order of first use.
struct Dictionary<V>(Vec<V>);

impl<V> Default for Dictionary<V> {
    fn default() -> Self {
        Dictionary(Vec::new())
    }
}

impl<V> Dictionary<V> {
    /// Returns the number of a value.
    fn find<Q: ?Sized + PartialEq<V>>(&self, value: &Q) -> Option<u64> {
        self.0.iter().position(|other| value == other).map(|at| at as u64)
    }

    fn get(&self, number: u64) -> Option<&V> {
        self.0.get(usize::try_from(number).ok()?)
    }

    /// Adds a value and returns its number.
    fn add(&mut self, value: V) -> u64 {
        self.0.push(value);
        self.0.len() as u64 - 1
    }
}

/// Symbol for a null bitmap without a number.
const NO_BITMAP: u64 = 0;

/// Symbol for a new null bitmap. Known bitmaps have the symbols after it.
const NEW_BITMAP: u64 = 1;

/// Maximum number of numbered headers of a relation.
const MAX_HEADERS: usize = 512;

/// Maximum number of numbered null bitmaps, because each bitmap is compared with all earlier bitmaps. Tuples
/// with further bitmaps are coded as a whole.
const MAX_BITMAPS: usize = 4096;

impl HeapHeaders {
    fn relation(&mut self, number: u32) -> &mut RelationHeaders {
        let at = number as usize;
        if at >= self.relations.len() {
            self.relations.resize_with(at + 1, RelationHeaders::default);
        }
        &mut self.relations[at]
    }

    /// Codes a tuple's header.
    pub fn header<S: Coder>(
        &mut self,
        coder: &mut S,
        keyed_columns: &mut KeyedColumns,
        relation: u32,
        source: Option<&HeapHeader>,
    ) -> Result<HeapHeader, Corrupt> {
        let kind = Kind::Symbols(Class::TupleHeaders);
        let column = keyed_columns.column(coder, Topic::TupleHeaders, [relation, 0, 0], kind)?;
        let known_headers = self.relation(relation);
        let known = source.and_then(|header| known_headers.headers.find(header));
        match coder.symbol(column, known.map_or(0, |number| number + 1))? {
            0 => {
                let kind = Kind::Rows(Class::TupleHeaders, LOGGED_FIELDS_BYTES as u16);
                let column = keyed_columns.column(coder, Topic::NewTupleHeaders, [relation, 0, 0], kind)?;
                let header = coder.array(column, source.unwrap_or(&HeapHeader::default()))?;
                if known_headers.headers.0.len() < MAX_HEADERS {
                    known_headers.headers.add(header);
                }
                Ok(header)
            }
            number => {
                known_headers.headers.get(number - 1).copied().ok_or_else(|| {
                    corrupt("cannot decode a tuple header: expected the number of a known one")
                })
            }
        }
    }

    /// Codes a tuple's null bitmap and the padding after it, which records also have. Returns its number, or
    /// `None` if the bitmap has none or the tuple is too short for it.
    pub fn bitmap<S: Coder>(
        &mut self,
        coder: &mut S,
        keyed_columns: &mut KeyedColumns,
        relation: u32,
        header: &HeapHeader,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, Corrupt> {
        let symbols = Kind::Symbols(Class::TupleHeaders);
        let column =
            keyed_columns.column(coder, Topic::NullBitmaps, bitmap_column(relation, header), symbols)?;
        let known_headers = self.relation(relation);
        let known = known_headers.bitmaps(fields(header).header_len);
        let bytes = fields(header).null_bitmap_len();
        let bitmap = source.zip(bytes).and_then(|(body, bytes)| body.get(..bytes));
        let is_full = known.is_some_and(|known| known.0.len() >= MAX_BITMAPS);
        let symbol = bitmap.map_or(NO_BITMAP, |bitmap| {
            let unknown = if is_full { NO_BITMAP } else { NEW_BITMAP };
            known.and_then(|known| known.find(bitmap)).map_or(unknown, |number| NEW_BITMAP + 1 + number)
        });
        match coder.symbol(column, symbol)? {
            NO_BITMAP => Ok(None),
            NEW_BITMAP if is_full => {
                Err(corrupt("cannot decode a null bitmap: expected one of the 4096 that are known"))
            }
            NEW_BITMAP => {
                let bytes = bytes.ok_or_else(|| {
                    corrupt("cannot decode a tuple header: expected t_hoff after the null bitmap")
                })?;
                let kind = Kind::Bytes(Class::TupleHeaders);
                let column = keyed_columns.column(
                    coder,
                    Topic::NewNullBitmaps,
                    [relation, fields(header).header_len.into(), 0],
                    kind,
                )?;
                let start = out.len();
                coder.bytes(column, bitmap.unwrap_or_default(), bytes, out)?;
                Ok(Some(known_headers.add_bitmap(fields(header).header_len, out[start..].to_vec())))
            }
            symbol => {
                let number = symbol - NEW_BITMAP - 1;
                let bitmap = known.and_then(|known| known.get(number));
                let bitmap = bitmap.ok_or_else(|| {
                    corrupt("cannot decode a null bitmap: expected the number of a known one")
                })?;
                out.extend_from_slice(bitmap);
                Ok(Some(number))
            }
        }
    }
}

impl HeapHeaders {
    /// When encoding: restores the parts that an update omits. Returns false if they are unknown.
    pub fn complete_update(&mut self, data: &[u8], old: Option<HeapTuple<'_>>, flags: UpdateFlags) -> bool {
        self.completed_header =
            old.and_then(|old| completed_update(data, old, flags, &mut self.whole_tuples[0]));
        self.completed_header.is_some()
    }

    /// Returns the common parts of heap tuples that are similar to a page item; `None` if there are no
    /// columns for it yet.
    pub fn similar<'i>(
        &mut self,
        keyed_columns: &mut KeyedColumns,
        relation: u32,
        item: &'i [u8],
    ) -> Option<SimilarHeaders<'i>> {
        let HeapTuple { header, bitmap, .. } = HeapTuple::parse(item)?;
        let number = self.relation(relation).bitmaps(fields(header).header_len)?.find(bitmap)?;
        let symbol = u8::try_from(NEW_BITMAP + 1 + number).ok().filter(|symbol| symbol.is_ascii())?;
        Some(SimilarHeaders {
            relation,
            column: keyed_columns.existing(Topic::TupleHeaders, [relation, 0, 0])?,
            bitmap: (keyed_columns.existing(Topic::NullBitmaps, bitmap_column(relation, header))?, symbol),
            layout: layout_key(relation, header, Some(number)),
            template: item.get(..fields(header).header_len.into())?,
        })
    }

    /// Returns the layout of a tuple on its page, and its attributes.
    pub fn layout_of<'a>(&self, relation: u32, tuple: HeapTuple<'a>) -> (LayoutKey, &'a [u8]) {
        let bitmaps = self
            .relations
            .get(relation as usize)
            .and_then(|known| known.bitmaps(fields(tuple.header).header_len));
        let bitmap = bitmaps.and_then(|bitmaps| bitmaps.find(tuple.bitmap));
        (layout_key(relation, tuple.header, bitmap), tuple.attributes)
    }
}

/// Tuples of a relation with the same null bitmap and with headers that imply the same layout.
pub struct SimilarHeaders<'i> {
    relation: u32,
    /// The part of such an item before its attributes.
    pub template: &'i [u8],
    /// Column of headers.
    pub column: Column,
    /// Column of bitmaps, and its symbol for the common bitmap.
    pub bitmap: (Column, u8),
    /// The common layout.
    pub layout: LayoutKey,
}

impl SimilarHeaders<'_> {
    /// Returns the header with a one-byte symbol, if it is similar.
    pub fn header(&self, headers: &HeapHeaders, symbol: u8) -> Option<HeapHeader> {
        let number = u64::from(symbol).checked_sub(1).filter(|_| symbol.is_ascii())?;
        let header = headers.relations.get(self.relation as usize)?.headers.get(number)?;
        self.is_similar(header).then_some(*header)
    }

    /// Returns the symbol of a tuple's header, if it is similar.
    pub fn symbol(&self, headers: &HeapHeaders, item: &[u8]) -> Option<u8> {
        let header = item[LOGGED_FIELDS.start..].first_chunk()?;
        let is_similar = self.is_similar(header)
            && item.get(LOGGED_FIELDS.end..self.template.len()) == self.template.get(LOGGED_FIELDS.end..);
        let number =
            is_similar.then(|| headers.relations.get(self.relation as usize)?.headers.find(header))??;
        u8::try_from(number + 1).ok().filter(|symbol| symbol.is_ascii())
    }

    fn is_similar(&self, header: &HeapHeader) -> bool {
        let own = self.template[LOGGED_FIELDS.start..].first_chunk();
        own.is_some_and(|own| layout(own) == layout(header) && has_nulls(own) == has_nulls(header))
    }
}

/// Returns the key of the column of null bitmap numbers. Without nulls, the bitmap consists only of padding.
fn bitmap_column(relation: u32, header: &HeapHeader) -> [u32; 3] {
    let has_nulls = u32::from(has_nulls(header));
    [relation, fields(header).header_len.into(), has_nulls]
}

/// Returns the layout of heap tuples with a header and a null bitmap number.
pub fn layout_key(relation: u32, header: &HeapHeader, bitmap: Option<u64>) -> LayoutKey {
    LayoutKey(relation, layout(header) | bitmap.map_or(u64::MAX << 32, |number| number << 32))
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::predict::heap::NewTuple;
    use crate::predict::relation::Relation;
    use crate::predict::{Predictor, Predictors};

    /// Returns a tuple of 40 attributes with this null bitmap, as in INSERT.
    fn tuple_data(number: u32) -> Vec<u8> {
        let mut data = vec![40, 0, 1, 0, 32];
        data.extend([number.to_le_bytes(), 1_u32.to_le_bytes()].as_flattened());
        data.push(0);
        data.extend(number.wrapping_mul(7919).to_le_bytes());
        data
    }

    #[test]
    fn more_null_bitmaps_than_are_kept_come_back() {
        const TUPLES: u32 = MAX_BITMAPS as u32 + 1000;
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut coder = Encoder::default();
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        for number in 0..TUPLES {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let mut tuple = NewTuple { relation, old: None };
            tuple.code(&mut tuple_coder, Some(&tuple_data(number)), &mut Vec::new()).expect("any tuple");
        }
        assert_eq!(
            predictors.heap_headers.relation(0).bitmaps(32).map(|known| known.0.len()),
            Some(MAX_BITMAPS)
        );
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let mut coder = Decoder::default();
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        for number in 0..TUPLES {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let mut out = Vec::new();
            NewTuple { relation, old: None }.code(&mut tuple_coder, None, &mut out).expect("a tuple");
            assert_eq!(out, tuple_data(number));
        }
        coder.finish().expect("nothing is left");
    }

    /// Each tuple's bitmap is compared with the known ones, so a file must not contain more of them than an
    /// encoder keeps.
    #[test]
    fn a_null_bitmap_beyond_those_that_are_kept_is_refused() {
        let header: HeapHeader = tuple_data(0)[..5].try_into().expect("five bytes");
        let (mut coder, mut keyed_columns) = (Encoder::default(), KeyedColumns::default());
        let columns = [
            (Topic::NullBitmaps, bitmap_column(0, &header), Kind::Symbols(Class::TupleHeaders)),
            (
                Topic::NewNullBitmaps,
                [0, fields(&header).header_len.into(), 0],
                Kind::Bytes(Class::TupleHeaders),
            ),
        ];
        let [numbers, bytes] = columns
            .map(|(topic, key, kind)| keyed_columns.column(&mut coder, topic, key, kind).expect("a column"));
        let len = fields(&header).null_bitmap_len().expect("a bitmap");
        for number in 0..=MAX_BITMAPS as u32 {
            coder.symbol(numbers, NEW_BITMAP).expect("a symbol");
            let mut bitmap = number.to_le_bytes().to_vec();
            bitmap.resize(len, 0);
            coder.bytes(bytes, &bitmap, len, &mut Vec::new()).expect("bytes");
        }
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut coder, mut keyed_columns) = (Decoder::default(), KeyedColumns::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        let mut headers = HeapHeaders::default();
        let mut next = || headers.bitmap(&mut coder, &mut keyed_columns, 0, &header, None, &mut Vec::new());
        for number in 0..MAX_BITMAPS as u64 {
            assert_eq!(next().expect("a bitmap"), Some(number));
        }
        let error = next().expect_err("one more").to_string();
        assert_eq!(error, "cannot decode a null bitmap: expected one of the 4096 that are known");
    }
}
