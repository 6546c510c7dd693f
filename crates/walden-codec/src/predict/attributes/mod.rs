//! Codes attributes of heap and index tuples, field by field.
//!
//! Tuples of one relation with the same number of attributes and the same null bitmap share a *layout*.
//! Encoding infers the schema of a layout from its tuples ([`crate::tuple::schema`]) and stores it with the
//! first tuple of the layout.

pub mod varlena;

use walden_format::record::RelFileLocator;
use walden_redo::page::varlena::TOAST_POINTER_CONTENT;

use self::varlena::{Chunks, ValueCoder};
use super::expect_block_data;
use super::keyed_columns::CachedMap;
use super::survey::{Survey, TupleKind};
use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::tuple::schema::{Field, Span, Varlena, aligned, read};
use crate::value::changes::Changes;
use crate::value::expand::Recompressor;
use crate::value::vectors::Vectors;
use crate::{Corrupt, corrupt};

/// Key of a layout: the number of the relation in the model, and everything else that the layout depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayoutKey(pub u32, pub u64);

impl LayoutKey {
    fn hash(self) -> u32 {
        self.0 << 8 ^ (self.1 >> 32) as u32 ^ (self.1 as u32).rotate_left(16)
    }
}

/// Layouts of tuples and the state of attribute coding: the same in both directions, except for the survey.
#[derive(Default)]
pub struct Layouts {
    numbers: CachedMap<LayoutKey, u32>,
    layouts: Vec<Layout>,
    schemas: Option<Column>,
    spans: Vec<Span>,
    old_spans: Vec<Span>,
    last_spans: Vec<Span>,
    /// When encoding: samples of upcoming tuples.
    pub survey: Survey,
    /// Values that the server compressed.
    pub recompressor: Recompressor,
    /// Texts and their words.
    pub vectors: Vectors,
}

struct Layout {
    tuple_forms: Column,
    /// Column with the fields that differ from the fields of the replaced tuple.
    changed: Column,
    tuple_lengths: Column,
    tuple_bytes: Column,
    schema: Option<Schema>,
    last: LastTuple,
}

/// The last tuple of a layout whose variable-length values were all coded. Later tuples may repeat its
/// values.
#[derive(Default)]
pub struct LastTuple {
    /// The tuple's attributes; empty if they are not kept.
    attributes: Vec<u8>,
    /// When encoding: counts repetitions.
    pub repeats: RepeatCounter,
}

/// Number of consecutive tuples that repeated the values of the previous tuple.
#[derive(Clone, Copy, Default)]
pub struct RepeatCounter(u32);

impl LastTuple {
    /// Returns the part of attributes that is kept: all or nothing.
    pub fn kept(attributes: &[u8]) -> &[u8] {
        const MAX_BYTES: usize = 512;
        if attributes.len() <= MAX_BYTES { attributes } else { &[] }
    }

    /// Returns the kept attributes.
    pub fn attributes(&self) -> &[u8] {
        &self.attributes
    }

    /// Keeps the attributes of another tuple.
    pub fn keep(&mut self, attributes: &[u8]) {
        self.attributes.clear();
        self.attributes.extend_from_slice(LastTuple::kept(attributes));
    }
}

impl RepeatCounter {
    /// Counts a tuple. Returns whether this tuple, like enough tuples before it, repeats the values of its
    /// predecessor.
    pub fn observe(&mut self, is_repeated: bool) -> bool {
        /// Repetitions after which the next tuple is expected to repeat the values, too. With a lower number,
        /// tuples that alternate between repeated and new values would be coded one by one.
        const FEW: u32 = 8;
        self.0 = if is_repeated { self.0.saturating_add(1) } else { 0 };
        self.0 > FEW
    }
}

/// Schema of a layout, with the columns of its fields.
pub struct Schema {
    pub fields: Vec<Field>,
    /// Columns of each field.
    pub columns: Vec<FieldColumns>,
    /// How fixed-width fields change when tuples are updated.
    changes: Vec<Option<Box<Changes>>>,
    /// Column of chunk forms, if tuples may be chunks of values in a TOAST table.
    chunks: Option<Column>,
}

/// Columns of a field.
#[derive(Clone, Copy)]
pub struct FieldColumns {
    /// Length and kind of a varlena.
    pub length: Column,
    /// Content of the field.
    pub content: Column,
    external: Column,
    compressed: Column,
    /// Lengths before compression.
    expanded: Column,
}

impl Schema {
    /// Returns the length columns of the variable-length values.
    pub fn lengths(&self) -> impl Iterator<Item = Column> {
        let any_length =
            |(field, columns): (&Field, &FieldColumns)| (*field == Field::Varlena).then_some(columns.length);
        self.fields.iter().zip(&self.columns).filter_map(any_length)
    }

    /// Returns the spans of a tuple's variable-length values.
    pub fn values<'s>(&self, spans: &'s [Span]) -> impl Iterator<Item = &'s Span> {
        self.fields.iter().zip(spans).filter(|(field, _)| **field == Field::Varlena).map(|(_, span)| span)
    }

    /// Returns whether the tuples have variable-length values and are not TOAST chunks.
    pub fn has_values(&self) -> bool {
        self.chunks.is_none() && self.fields.contains(&Field::Varlena)
    }

    /// Returns whether a tuple has variable-length values, and the last tuple has the same values at the same
    /// offsets.
    pub fn repeats_values(&self, spans: &[Span], last: &[u8], attributes: &[u8]) -> bool {
        let is_same = |span: &Span| attributes[span.start..span.end] == last[span.start..span.end];
        attributes.len() == last.len() && self.has_values() && self.values(spans).all(is_same)
    }

    /// Codes a schema, with the first tuple of its layout.
    fn code<S: Coder>(coder: &mut S, column: Column, source: &[Field]) -> Result<Schema, Corrupt> {
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        while let Some(field) = code_field(coder, column, source.get(fields.len()))? {
            fields.push(field);
            columns.push(FieldColumns::new(coder, field)?);
        }
        let is_toast = matches!(fields[..], [Field::Fixed { width: 8, .. }, Field::Varlena]);
        let chunks = if is_toast { Some(coder.column(Kind::Symbols(Class::TupleHeaders))?) } else { None };
        let changes = fields.iter().map(|_| None).collect();
        Ok(Schema { fields, columns, changes, chunks })
    }
}

/// Codes the next field of a schema; `None` at its end.
fn code_field<S: Coder>(
    coder: &mut S,
    column: Column,
    source: Option<&Field>,
) -> Result<Option<Field>, Corrupt> {
    const END: u64 = 0;
    const VARLENA: u64 = 1;
    // From here on: 4 * width + binary logarithm of the alignment.
    const FIXED: u64 = 2;
    let code = match source {
        None => END,
        Some(Field::Varlena) => VARLENA,
        Some(Field::Fixed { width, align }) => {
            FIXED + u64::from(*width) * 4 + u64::from(align.trailing_zeros())
        }
    };
    Ok(match coder.symbol(column, code)? {
        END => None,
        VARLENA => Some(Field::Varlena),
        code => {
            let width = u16::try_from((code - FIXED) / 4).ok().filter(|&width| width > 0);
            let width = width.ok_or_else(|| {
                corrupt("cannot decode a schema: expected field widths of 1 to 65535 bytes")
            })?;
            Some(Field::Fixed { width, align: 1 << ((code - FIXED) % 4) })
        }
    })
}

impl FieldColumns {
    fn new<S: Coder>(coder: &mut S, field: Field) -> Result<FieldColumns, Corrupt> {
        match field {
            Field::Fixed { width, .. } => {
                let content = coder.column(Kind::Rows(Class::Fixed, width))?;
                let (length, external) = (content, content);
                Ok(FieldColumns { length, content, external, compressed: content, expanded: content })
            }
            Field::Varlena => {
                let content = coder.column(Kind::Bytes(Class::Text))?;
                Ok(FieldColumns {
                    length: coder.column(Kind::Symbols(Class::TupleHeaders))?,
                    content,
                    external: coder.column(Kind::Rows(Class::Fixed, TOAST_POINTER_CONTENT as u16))?,
                    compressed: coder.column(Kind::Bytes(Class::Raw))?,
                    expanded: coder.column(Kind::Symbols(Class::TupleHeaders))?,
                })
            }
        }
    }
}

/// Maximum number of variable-length values for tuples that are coded in runs.
pub const MAX_VALUES: usize = 16;

/// Number of fields that can be omitted as unchanged.
const MAX_UNCHANGED: usize = 56;

/// Attributes as bytes, without a schema.
const FORM_BYTES: u8 = 0;
/// Attributes by the layout's schema.
pub const FORM_SCHEMA: u8 = 1;
/// Attributes by a new schema, which is coded first.
const FORM_NEW_SCHEMA: u8 = 2;
/// Attributes by the layout's schema, with the variable-length values of the layout's last tuple.
pub const FORM_REPEATED: u8 = 3;

impl Layouts {
    /// Returns the fields of a layout; empty if it has no schema.
    pub fn fields(&mut self, key: LayoutKey) -> &[Field] {
        let number = self.numbers.existing(key, key.hash());
        let schema = number.and_then(|number| self.layouts[number as usize].schema.as_ref());
        schema.map_or(&[], |schema| &schema.fields)
    }

    /// Returns the number of a layout, for [`Self::schema`], and the column of its tuple forms. Returns
    /// `None` if its tuples cannot be coded in runs.
    pub fn layout_of_run(&mut self, key: LayoutKey) -> Option<(usize, Column)> {
        let number = self.numbers.existing(key, key.hash())? as usize;
        let Layout { tuple_forms, schema, .. } = &self.layouts[number];
        let schema = schema.as_ref().filter(|schema| schema.chunks.is_none())?;
        (schema.lengths().count() <= MAX_VALUES).then_some((number, *tuple_forms))
    }

    /// Returns the last tuple of a layout.
    pub fn last(&self, number: usize) -> &LastTuple {
        &self.layouts[number].last
    }

    /// As [`Self::last`], but mutable.
    pub fn last_mut(&mut self, number: usize) -> &mut LastTuple {
        &mut self.layouts[number].last
    }

    /// Returns the schema of a layout that has one.
    pub fn schema(&self, number: usize) -> &Schema {
        self.layouts[number].schema.as_ref().expect("`layout_of_run` says so")
    }

    /// Reads the attributes of a heap tuple into `spans`. Returns false if the layout has no schema that
    /// reads them.
    pub fn read(&mut self, key: LayoutKey, attributes: &[u8], spans: &mut Vec<Span>) -> bool {
        let fields = self.fields(key);
        !fields.is_empty() && read(fields, attributes, 1, spans)
    }

    /// Codes the attributes of a tuple and appends them to `out`. The attributes must start at an aligned
    /// offset of the tuple.
    ///
    /// The length of the attributes, a multiple of `end_align`, is derived. `old` has the attributes of the
    /// replaced tuple, if it has the same layout.
    pub fn tuple<S: Coder>(
        &mut self,
        coder: &mut S,
        (key, end_align): (LayoutKey, usize),
        old: Option<&[u8]>,
        source: Option<(&[u8], TupleKind<'_>)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let number = self.layout(coder, key)?;
        let (form, fields) = match source {
            Some((attributes, kind)) => self.choose_form(number, end_align, attributes, kind),
            None => (FORM_BYTES, Vec::new()),
        };
        let locator = source.map(|(_, kind)| kind.relation);
        let source = source.map(|(attributes, _)| attributes);
        let layout = &mut self.layouts[number];
        let form = match u8::try_from(coder.symbol(layout.tuple_forms, form.into())?) {
            Ok(FORM_BYTES) => {
                let len = coder.symbol(layout.tuple_lengths, source.map_or(0, |bytes| bytes.len() as u64))?;
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                return coder.bytes(layout.tuple_bytes, source.unwrap_or_default(), len, out);
            }
            Ok(form @ (FORM_SCHEMA | FORM_REPEATED)) => form,
            Ok(form @ FORM_NEW_SCHEMA) => {
                let column = match self.schemas {
                    Some(column) => column,
                    None => *self.schemas.insert(coder.column(Kind::Symbols(Class::Shapes))?),
                };
                layout.schema = Some(Schema::code(coder, column, &fields)?);
                form
            }
            _ => return Err(corrupt("cannot decode a tuple: expected a known form")),
        };
        let tuple = Tuple { number, end_align, is_repeated: form == FORM_REPEATED, old, source };
        self.code_fields(coder, tuple, (key.0, locator), out)
    }

    /// Returns the number of a layout.
    fn layout<S: Coder>(&mut self, coder: &mut S, key: LayoutKey) -> Result<usize, Corrupt> {
        let layouts = &mut self.layouts;
        let number = self.numbers.get(key, key.hash(), || {
            layouts.push(Layout {
                tuple_forms: coder.column(Kind::Symbols(Class::TupleHeaders))?,
                changed: coder.column(Kind::Symbols(Class::TupleHeaders))?,
                tuple_lengths: coder.column(Kind::Symbols(Class::TupleHeaders))?,
                tuple_bytes: coder.column(Kind::Bytes(Class::Text))?,
                schema: None,
                last: LastTuple::default(),
            });
            Ok(layouts.len() as u32 - 1)
        })?;
        Ok(number as usize)
    }

    /// When encoding: returns the form in which attributes are coded, and the fields of a new schema. Sets
    /// `spans` to the spans of the fields.
    fn choose_form(
        &mut self,
        number: usize,
        end_align: usize,
        attributes: &[u8],
        kind: TupleKind<'_>,
    ) -> (u8, Vec<Field>) {
        let layout = &mut self.layouts[number];
        if let Some(schema) = &layout.schema {
            if !read(&schema.fields, attributes, end_align, &mut self.spans) {
                return (FORM_BYTES, Vec::new());
            }
            let is_repeated = schema.repeats_values(&self.spans, &layout.last.attributes, attributes);
            let is_repeated = layout.last.repeats.observe(is_repeated);
            return (if is_repeated { FORM_REPEATED } else { FORM_SCHEMA }, Vec::new());
        }
        match self.survey.schema(kind, end_align) {
            Some(fields) if read(fields, attributes, end_align, &mut self.spans) => {
                (FORM_NEW_SCHEMA, fields.clone())
            }
            _ => (FORM_BYTES, Vec::new()),
        }
    }

    /// Codes the attributes of a tuple field by field and appends them to `out`. `relation` has the
    /// relation's number and, when encoding, its locator.
    fn code_fields<S: Coder>(
        &mut self,
        coder: &mut S,
        tuple: Tuple<'_>,
        relation: (u32, Option<RelFileLocator>),
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let Layouts { layouts, spans, old_spans, last_spans, survey, recompressor, vectors, .. } = self;
        let Tuple { number, end_align, is_repeated, old, source } = tuple;
        let Layout { changed, schema, last, .. } = &mut layouts[number];
        let schema = schema
            .as_mut()
            .ok_or_else(|| corrupt("cannot decode a tuple: expected a schema for its layout"))?;
        let keeps = !is_repeated && schema.has_values();
        let Schema { fields, columns, changes, chunks } = schema;
        let origin = out.len();
        let old = old.filter(|old| read(fields, old, end_align, old_spans));
        let repeated = is_repeated.then_some(last.attributes());
        if repeated.is_some_and(|last| !read(fields, last, end_align, last_spans)) {
            return Err(corrupt("cannot decode a tuple: expected an earlier one to repeat"));
        }
        let changed = match old {
            Some(old) => coder.symbol_with(*changed, || changed_fields((source, spans), (old, old_spans)))?,
            None => u64::MAX,
        };
        for (index, (field, columns)) in fields.iter().zip(&*columns).enumerate() {
            let is_unchanged = index < MAX_UNCHANGED && changed & 1 << index == 0;
            let copied = match field {
                Field::Varlena if is_repeated => repeated.zip(last_spans.get(index)),
                _ => old.filter(|_| is_unchanged).zip(old_spans.get(index)),
            };
            if let Some((from, span)) = copied {
                pad(out, origin, alignment(*field, span.kind));
                out.extend_from_slice(&from[span.start..span.end]);
                continue;
            }
            let content = source.and_then(|attributes| Some((attributes, *spans.get(index)?)));
            match *field {
                Field::Fixed { width, align } => {
                    pad(out, origin, align.into());
                    let old = old.zip(old_spans.get(index));
                    let old = old.map(|(old, span)| &old[span.start..span.end]);
                    let new = content.map(|(attributes, span)| &attributes[span.start..span.end]);
                    let new = new.unwrap_or_default();
                    match old {
                        Some(old) => {
                            let changes = changes[index].get_or_insert_default();
                            changes.code(coder, (width, align), old, new, out)?;
                        }
                        None => coder.bytes(columns.content, new, width.into(), out)?,
                    }
                }
                Field::Varlena => {
                    let chunks = chunks.filter(|_| index == 1);
                    let chunks = chunks.map(|column| Chunks { column, ahead: &survey.toast, relation });
                    ValueCoder { coder, recompressor, vectors, columns, origin }
                        .varlena_or_chunk(chunks, content, out)?;
                }
            }
            // A value may be much longer than its code.
            expect_block_data(out.len() - origin)?;
        }
        pad(out, origin, end_align);
        if keeps {
            last.keep(&out[origin..]);
        }
        Ok(())
    }
}

/// A tuple whose attributes are coded by its layout's schema.
#[derive(Clone, Copy)]
struct Tuple<'a> {
    /// Number of the layout.
    number: usize,
    /// Alignment of the tuple's length.
    end_align: usize,
    /// Whether the variable-length values equal the values of the last tuple.
    is_repeated: bool,
    /// Attributes of the replaced tuple.
    old: Option<&'a [u8]>,
    /// When encoding: the attributes.
    source: Option<&'a [u8]>,
}

/// Returns a bit mask of the fields that differ from the fields of the replaced tuple.
fn changed_fields((source, spans): (Option<&[u8]>, &[Span]), (old, old_spans): (&[u8], &[Span])) -> u64 {
    let differs = |(index, (new, old_span)): (usize, (&Span, &Span))| {
        let new = source.map(|attributes| &attributes[new.start..new.end]);
        u64::from(new != Some(&old[old_span.start..old_span.end])) << index
    };
    spans.iter().zip(old_spans).take(MAX_UNCHANGED).enumerate().map(differs).sum()
}

/// Returns the alignment of a field's start.
fn alignment(field: Field, kind: Varlena) -> usize {
    match (field, kind) {
        (Field::Fixed { align, .. }, _) => align.into(),
        (Field::Varlena, Varlena::Long | Varlena::Compressed) => 4,
        (Field::Varlena, Varlena::Short | Varlena::External) => 1,
    }
}

/// Appends zeros up to a multiple of `align`, counted from `origin`.
fn pad(out: &mut Vec<u8>, origin: usize, align: usize) {
    let len = aligned(out.len() - origin, align);
    out.resize(origin + len, 0);
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

    /// No record or page has such a tuple, so decoding must not produce one from any file.
    #[test]
    fn a_tuple_of_more_than_a_record_can_have_is_refused() {
        let (kind, key) =
            (TupleKind { relation: RelFileLocator::default(), layout: 0, bitmap: &[] }, LayoutKey(0, 0));
        let (mut layouts, mut coder) = (Layouts::default(), Encoder::default());
        let mut code = |layouts: &mut Layouts, tuple: &[u8]| {
            layouts.tuple(&mut coder, (key, 1), None, Some((tuple, kind)), &mut Vec::new())
        };
        // A number and a text.
        let short: Vec<Vec<u8>> = (0..40_u8)
            .map(|len| {
                let text = [(len + 1) << 1 | 1].into_iter().chain((0..len).map(|at| b'a' + at % 7));
                (u32::from(len) * 7919).to_le_bytes().into_iter().chain(text).collect()
            })
            .collect();
        short.iter().for_each(|tuple| layouts.survey.add(kind, tuple));
        short.iter().for_each(|tuple| code(&mut layouts, tuple).expect("a tuple"));
        let long = |len: u32| {
            let text = (0..len).map(|at| b'a' + (at % 7) as u8);
            let head = [7_u32, (len + 4) << 2].map(u32::to_le_bytes);
            head.into_iter().flatten().chain(text).collect::<Vec<u8>>()
        };
        code(&mut layouts, &long(60_000)).expect("a tuple");
        assert!(layouts.layouts[0].schema.as_ref().is_some_and(Schema::has_values));
        let error = code(&mut layouts, &long(70_000)).expect_err("a tuple of no record");
        assert_eq!(error.to_string(), "cannot decode tuples: expected at most 65535 bytes");
    }

    #[test]
    fn a_row_with_the_kept_values_may_replace_one_of_another_length() {
        // Two numbers around a text: the offset of the second differs between tuples.
        let tuple = |number: u32, len: u8| {
            let text = [(len + 1) << 1 | 1].into_iter().chain((0..len).map(|at| b'a' + at % 7));
            let mut tuple: Vec<u8> = number.to_le_bytes().into_iter().chain(text).collect();
            tuple.resize(tuple.len().next_multiple_of(4), 0);
            tuple.extend((number * 7919).to_le_bytes());
            tuple
        };
        let mut given: Vec<(Vec<u8>, Option<Vec<u8>>)> =
            (0..20).map(|number| (tuple(number, number as u8), None)).collect();
        given.extend((0..20).map(|number| (tuple(number, 30), None)));
        // A shorter, a longer and an equally long old tuple.
        given.extend([2, 90, 30].map(|len| (tuple(77, 30), Some(tuple(77, len)))));
        given.extend([2, 90, 30].map(|len| (tuple(78, 30), Some(tuple(77, len)))));
        let kind = TupleKind { relation: RelFileLocator::default(), layout: 0, bitmap: &[] };
        let key = LayoutKey(0, 0);
        let mut layouts = Layouts::default();
        given.iter().for_each(|(tuple, _)| layouts.survey.add(kind, tuple));
        let mut coder = Encoder::default();
        for (tuple, old) in &given {
            let mut out = Vec::new();
            layouts
                .tuple(&mut coder, (key, 1), old.as_deref(), Some((tuple, kind)), &mut out)
                .expect("a tuple");
            assert_eq!(out, *tuple);
        }
        let layout = &layouts.layouts[0];
        assert!(layout.schema.as_ref().is_some_and(Schema::has_values));
        assert!(layout.last.repeats.0 >= 25, "all of the last ones had the kept text");
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut layouts, mut coder) = (Layouts::default(), Decoder::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        for (tuple, old) in &given {
            let mut out = Vec::new();
            layouts.tuple(&mut coder, (key, 1), old.as_deref(), None, &mut out).expect("a tuple");
            assert_eq!(out, *tuple);
        }
        coder.finish().expect("nothing is left");
    }
}
