//! Rows: what tables and indexes are made of, attribute by attribute.
//!
//! Rows of one relation with the same head (number of attributes, null bitmap) have a *layout*. A layout's schema is told
//! from its rows by encoding ([`crate::tuple::schema`]) and stored when the layout is met first.

use super::names::Recall;
use super::survey::{Plan, PlanHead};
use crate::columns::{Class, Coder, Column, Kind};
use crate::tuple::schema::{EXTERNAL_BYTES, Field, Span, Varlena, aligned, read};
use crate::value::changes::Changes;
use crate::value::expand::Expander;
use crate::value::vectors::Vectors;
use crate::{Corrupt, corrupt};

pub mod varlena;

use self::varlena::{chunk, varlena};

/// Which rows are of one layout: the relation's number in the model, and what else tells rows apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayoutKey(pub u32, pub u64);

impl LayoutKey {
    fn mixed(self) -> u32 {
        self.0 << 8 ^ (self.1 >> 32) as u32 ^ (self.1 as u32).rotate_left(16)
    }
}

/// What is known of rows, on both sides.
#[derive(Default)]
pub struct Rows {
    numbers: Recall<LayoutKey, u32>,
    layouts: Vec<Layout>,
    schemas: Option<Column>,
    spans: Vec<Span>,
    old_spans: Vec<Span>,
    last_spans: Vec<Span>,
    /// Has all items coded one after another.
    #[cfg(test)]
    pub one_by_one: bool,
    /// What encoding knows of rows to come.
    pub plan: Plan,
    /// Values that were compressed.
    pub expander: Expander,
    /// Texts and their words.
    pub vectors: Vectors,
}

struct Layout {
    form: Column,
    /// Which fields differ from those of the row before.
    changed: Column,
    lengths: Column,
    bytes: Column,
    schema: Option<Schema>,
    last: Last,
}

/// The last row of a layout that said all of its values of any length, for those that do not.
#[derive(Default)]
pub struct Last {
    /// The row; empty if it is not kept.
    row: Vec<u8>,
    /// As encoding has met it.
    pub steady: RepeatCounter,
}

/// How many rows at last had the values of the row before.
#[derive(Clone, Copy, Default)]
pub struct RepeatCounter(u32);

impl Last {
    /// As much of a row as is kept: all of it or nothing.
    pub fn kept(row: &[u8]) -> &[u8] {
        const LONGEST: usize = 512;
        if row.len() <= LONGEST { row } else { &[] }
    }

    /// What was kept.
    pub fn row(&self) -> &[u8] {
        &self.row
    }

    /// Keeps another row.
    pub fn keep(&mut self, row: &[u8]) {
        self.row.clear();
        self.row.extend_from_slice(Last::kept(row));
    }
}

impl RepeatCounter {
    /// Counts a row; whether it has the values of the last one not by chance, and is told so.
    pub fn tells(&mut self, is_again: bool) -> bool {
        /// Fewer do not yet tell that the next one has them, too: rows that are told so and others, by turns, would be coded
        /// one by one.
        const FEW: u32 = 8;
        self.0 = if is_again { self.0.saturating_add(1) } else { 0 };
        self.0 > FEW
    }
}

/// How rows of a layout are read, and where their fields go.
pub struct Schema {
    /// The fields.
    pub fields: Vec<Field>,
    /// Of each of them, its columns.
    pub columns: Vec<FieldColumns>,
    /// How fields of fixed width change, where rows are updated.
    changes: Vec<Option<Box<Changes>>>,
    /// How chunks are told, if rows may be chunks of values in a TOAST table.
    chunks: Option<Column>,
}

impl Schema {
    /// The columns of lengths of its values of any length.
    pub fn lengths(&self) -> impl Iterator<Item = Column> {
        let any_length =
            |(field, columns): (&Field, &FieldColumns)| (*field == Field::Varlena).then_some(columns.length);
        self.fields.iter().zip(&self.columns).filter_map(any_length)
    }

    /// Where values of any length are, of a row's fields.
    pub fn values<'s>(&self, spans: &'s [Span]) -> impl Iterator<Item = &'s Span> {
        self.fields.iter().zip(spans).filter(|(field, _)| **field == Field::Varlena).map(|(_, span)| span)
    }

    /// Whether its rows have values of any length, and none of them is in a TOAST table's chunk.
    pub fn has_values(&self) -> bool {
        self.chunks.is_none() && self.fields.contains(&Field::Varlena)
    }

    /// Whether all values of any length of a row, if there are any, are where the last one has the same.
    pub fn has_again(&self, spans: &[Span], last: &[u8], row: &[u8]) -> bool {
        let is_same = |span: &Span| row[span.start..span.end] == last[span.start..span.end];
        row.len() == last.len() && self.has_values() && self.values(spans).all(is_same)
    }
}

/// The columns of a field.
#[derive(Clone, Copy)]
pub struct FieldColumns {
    /// A varlena's length and kind.
    pub length: Column,
    /// Its bytes.
    pub content: Column,
    external: Column,
    compressed: Column,
    /// Lengths before compression.
    expanded: Column,
}

/// Rows with more values of any length are coded one by one.
pub const MAX_VALUES: usize = 16;

/// Fields beyond this are never said to be unchanged.
const MAX_UNCHANGED: usize = 56;

/// A row as bytes, read by no schema.
const FORM_BYTES: u64 = 0;

pub const FORM_SCHEMA: u8 = 1;

/// A schema comes first.
const FORM_NEW_SCHEMA: u64 = 2;

/// With the values of any length of the layout's last row.
pub const FORM_AGAIN: u8 = 3;

impl Rows {
    /// The fields of a layout; none if it has no schema.
    pub fn fields(&mut self, key: LayoutKey) -> &[Field] {
        let number = self.numbers.known(key, key.mixed());
        let schema = number.and_then(|number| self.layouts[number as usize].schema.as_ref());
        schema.map_or(&[], |schema| &schema.fields)
    }

    /// A layout's number, by which [`Self::schema`] finds it, and how its rows' form is told, if rows of it can be coded many
    /// at once.
    pub fn alike(&mut self, key: LayoutKey) -> Option<(usize, Column)> {
        #[cfg(test)]
        if self.one_by_one {
            return None;
        }
        let number = self.numbers.known(key, key.mixed())? as usize;
        let Layout { form, schema, .. } = &self.layouts[number];
        let schema = schema.as_ref().filter(|schema| schema.chunks.is_none())?;
        (schema.lengths().count() <= MAX_VALUES).then_some((number, *form))
    }

    /// The last row of a layout.
    pub fn last(&self, number: usize) -> &Last {
        &self.layouts[number].last
    }

    /// The same, for another.
    pub fn last_mut(&mut self, number: usize) -> &mut Last {
        &mut self.layouts[number].last
    }

    /// The schema of a layout that has one.
    pub fn schema(&self, number: usize) -> &Schema {
        self.layouts[number].schema.as_ref().expect("said by `alike`")
    }

    /// Reads a table's row of a layout; no if it is not known how.
    pub fn read(&mut self, key: LayoutKey, row: &[u8], spans: &mut Vec<Span>) -> bool {
        let fields = self.fields(key);
        !fields.is_empty() && read(fields, row, 1, spans)
    }

    /// Codes a row; its length is told by it. `old` is the row that it replaces, of the same layout. It is appended to `out`, from a place that is aligned in the row's own terms.
    pub fn row<S: Coder>(
        &mut self,
        coder: &mut S,
        key: LayoutKey,
        end_align: usize,
        old: Option<&[u8]>,
        source: Option<(&[u8], PlanHead<'_>)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        const SCHEMA: u64 = FORM_SCHEMA as u64;
        const AGAIN: u64 = FORM_AGAIN as u64;
        let layouts = &mut self.layouts;
        let number = self.numbers.get(key, key.mixed(), || {
            layouts.push(Layout {
                form: coder.column(Kind::Symbols(Class::RowHeaders))?,
                changed: coder.column(Kind::Symbols(Class::RowHeaders))?,
                lengths: coder.column(Kind::Symbols(Class::RowHeaders))?,
                bytes: coder.column(Kind::Bytes(Class::Text))?,
                schema: None,
                last: Last::default(),
            });
            Ok(layouts.len() as u32 - 1)
        })?;
        let layout = &mut layouts[number as usize];
        let mut form = FORM_BYTES;
        let mut planned = &Vec::new();
        if let Some((row, head)) = source {
            if let Some(schema) = &layout.schema {
                if read(&schema.fields, row, end_align, &mut self.spans) {
                    let is_again = schema.has_again(&self.spans, &layout.last.row, row);
                    form = if layout.last.steady.tells(is_again) { AGAIN } else { SCHEMA };
                }
            } else if let Some(fields) = self.plan.schema(head, end_align)
                && read(fields, row, end_align, &mut self.spans)
            {
                form = FORM_NEW_SCHEMA;
                planned = fields;
            }
        }
        let relation = source.map(|(_, head)| head.relation);
        let source = source.map(|(row, _)| row);
        let form = coder.symbol(layout.form, form)?;
        match form {
            FORM_BYTES => {
                let len = coder.symbol(layout.lengths, source.map_or(0, |row| row.len() as u64))?;
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                return coder.bytes(layout.bytes, source.unwrap_or_default(), len, out);
            }
            SCHEMA | AGAIN => {}
            FORM_NEW_SCHEMA => {
                let schemas = match self.schemas {
                    Some(column) => column,
                    None => *self.schemas.insert(coder.column(Kind::Symbols(Class::Shapes))?),
                };
                layout.schema = Some(schema(coder, schemas, planned)?);
            }
            _ => return Err(corrupt("a row's form can't be")),
        }
        let schema = layout.schema.as_mut().ok_or_else(|| corrupt("a row's schema is missing"))?;
        let origin = out.len();
        let old = old.filter(|old| read(&schema.fields, old, end_align, &mut self.old_spans));
        let again = (form == AGAIN).then_some(&layout.last.row[..]);
        if again.is_some_and(|last| !read(&schema.fields, last, end_align, &mut self.last_spans)) {
            return Err(corrupt("the last row is not kept"));
        }
        let mut changed = u64::MAX;
        if let Some(old) = old {
            let differs = |(index, (new, old_span)): (usize, (&Span, &Span))| {
                let same =
                    source.is_some_and(|row| row[new.start..new.end] == old[old_span.start..old_span.end]);
                u64::from(!same) << index
            };
            let spans = self.spans.iter().zip(&self.old_spans).take(MAX_UNCHANGED);
            changed = coder.symbol_of(layout.changed, || spans.enumerate().map(differs).sum())?;
        }
        for (index, (field, columns)) in schema.fields.iter().zip(&schema.columns).enumerate() {
            let is_same = index < MAX_UNCHANGED && changed & 1 << index == 0;
            let (like, spans) = match field {
                Field::Varlena if again.is_some() => (again, &self.last_spans),
                _ => (old.filter(|_| is_same), &self.old_spans),
            };
            if let Some((like, span)) = like.zip(spans.get(index)) {
                let align = match (field, span.kind) {
                    (Field::Fixed { align, .. }, _) => usize::from(*align),
                    (Field::Varlena, Varlena::Long | Varlena::Compressed) => 4,
                    (Field::Varlena, _) => 1,
                };
                pad(out, origin, align);
                out.extend_from_slice(&like[span.start..span.end]);
                continue;
            }
            let content = source.and_then(|row| Some((row, *self.spans.get(index)?)));
            match field {
                Field::Fixed { width, align } => {
                    pad(out, origin, usize::from(*align));
                    let bytes = content.map_or(&[][..], |(row, span)| &row[span.start..span.end]);
                    match old.zip(self.old_spans.get(index)) {
                        Some((old, span)) => {
                            let changes = schema.changes[index].get_or_insert_default();
                            changes.code(coder, (*width, *align), &old[span.start..span.end], bytes, out)?;
                        }
                        None => coder.bytes(columns.content, bytes, usize::from(*width), out)?,
                    }
                }
                Field::Varlena => {
                    let told = match (schema.chunks, index) {
                        (Some(column), 1) => {
                            let from = (key.0, relation);
                            let plan = &self.plan.toast;
                            chunk(
                                coder,
                                column,
                                columns,
                                (&mut self.expander, &mut self.vectors),
                                plan,
                                from,
                                content,
                                origin,
                                out,
                            )?
                        }
                        _ => false,
                    };
                    if !told {
                        let values = (&mut self.expander, &mut self.vectors);
                        varlena(coder, columns, values, content, origin, out)?;
                    }
                }
            }
        }
        pad(out, origin, end_align);
        if again.is_none() && schema.has_values() {
            layout.last.keep(&out[origin..]);
        }
        Ok(())
    }
}

/// Zeros up to a multiple of `align` from `origin` on.
fn pad(out: &mut Vec<u8>, origin: usize, align: usize) {
    let len = aligned(out.len() - origin, align);
    out.resize(origin + len, 0);
}

/// A schema, when its layout is met first.
fn schema<S: Coder>(coder: &mut S, column: Column, planned: &[Field]) -> Result<Schema, Corrupt> {
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    loop {
        // 0 ends the schema, 1 is a varlena, more is 2 + width * 4 + the alignment's logarithm.
        let code = match planned.get(fields.len()) {
            None => 0,
            Some(Field::Varlena) => 1,
            Some(Field::Fixed { width, align }) => {
                2 + u64::from(*width) * 4 + u64::from(align.trailing_zeros())
            }
        };
        let field = match coder.symbol(column, code)? {
            0 => {
                let toast = matches!(fields[..], [Field::Fixed { width: 8, .. }, Field::Varlena]);
                let kind = Kind::Symbols(Class::RowHeaders);
                let chunks = if toast { Some(coder.column(kind)?) } else { None };
                let changes = fields.iter().map(|_| None).collect();
                return Ok(Schema { fields, columns, changes, chunks });
            }
            1 => Field::Varlena,
            code => Field::Fixed {
                width: u16::try_from((code - 2) / 4)
                    .ok()
                    .filter(|&width| width > 0)
                    .ok_or_else(|| corrupt("a field's width can't be"))?,
                align: 1 << ((code - 2) % 4),
            },
        };
        fields.push(field);
        let first = coder.column(match field {
            Field::Fixed { width, .. } => Kind::Rows(Class::Fixed, width),
            Field::Varlena => Kind::Bytes(Class::Text),
        })?;
        columns.push(match field {
            Field::Fixed { .. } => FieldColumns {
                length: first,
                content: first,
                external: first,
                compressed: first,
                expanded: first,
            },
            Field::Varlena => FieldColumns {
                length: coder.column(Kind::Symbols(Class::RowHeaders))?,
                content: first,
                external: coder.column(Kind::Rows(Class::Fixed, EXTERNAL_BYTES as u16 - 2))?,
                compressed: coder.column(Kind::Bytes(Class::Raw))?,
                expanded: coder.column(Kind::Symbols(Class::RowHeaders))?,
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};

    #[test]
    fn a_row_with_the_kept_values_may_replace_one_of_another_length() {
        // Two numbers around a text: the second is elsewhere in each row.
        let row = |number: u32, len: u8| {
            let text = [(len + 1) << 1 | 1].into_iter().chain((0..len).map(|at| b'a' + at % 7));
            let mut row: Vec<u8> = number.to_le_bytes().into_iter().chain(text).collect();
            row.resize(row.len().next_multiple_of(4), 0);
            row.extend((number * 7919).to_le_bytes());
            row
        };
        let mut given: Vec<(Vec<u8>, Option<Vec<u8>>)> =
            (0..20).map(|number| (row(number, number as u8), None)).collect();
        given.extend((0..20).map(|number| (row(number, 30), None)));
        // Shorter, longer, as long as it.
        given.extend([2, 90, 30].map(|len| (row(77, 30), Some(row(77, len)))));
        given.extend([2, 90, 30].map(|len| (row(78, 30), Some(row(77, len)))));
        let head = PlanHead { relation: RelFileLocator::default(), layout: 0, bitmap: &[] };
        let key = LayoutKey(0, 0);
        let mut rows = Rows::default();
        given.iter().for_each(|(row, _)| rows.plan.add(head, row));
        let mut coder = Encoder::default();
        for (row, old) in &given {
            let mut out = Vec::new();
            rows.row(&mut coder, key, 1, old.as_deref(), Some((row, head)), &mut out).expect("a row");
            assert_eq!(out, *row);
        }
        let layout = &rows.layouts[0];
        assert!(layout.schema.as_ref().is_some_and(Schema::has_values));
        assert!(layout.last.steady.0 >= 25, "all of the last ones had the kept text");
        let chunk = coder.chunk(&mut Packer::new(1, true));
        let (mut rows, mut coder) = (Rows::default(), Decoder::default());
        coder.chunk(&mut Unpacker::new(true), &chunk, 1 << 20).expect("its own chunk");
        for (row, old) in &given {
            let mut out = Vec::new();
            rows.row(&mut coder, key, 1, old.as_deref(), None, &mut out).expect("a row");
            assert_eq!(out, *row);
        }
        coder.finish().expect("nothing is left");
    }
}
