//! Rows: what tables and indexes are made of, attribute by attribute.
//!
//! Rows of one relation with the same head (number of attributes, null bitmap) have a *layout*. A layout's schema is told
//! from its rows by encoding ([`super::schema`]) and stored when the layout is met first.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

use walden_format::record::RelFileLocator;

use super::alike::Run;
use super::changes::Changes;
use super::expand::{Ahead, CHUNK, Expander, Method, starts};
use super::names::Recall;
use super::schema::{EXTERNAL_BYTES, Field, Samples, Span, Varlena, aligned, read};
use super::vectors::{Literal, Vectors};
use crate::columns::{Class, Coder, Column, Kind};
use crate::{Corrupt, corrupt};

/// Longest row that is looked at: no page has a longer one.
const MAX_ROW_BYTES: usize = 8192;

/// Which rows are of one layout: the relation's number in the model, and what else tells rows apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LayoutKey(pub u32, pub u64);

impl LayoutKey {
    fn mixed(self) -> u32 {
        self.0 << 8 ^ (self.1 >> 32) as u32 ^ (self.1 as u32).rotate_left(16)
    }
}

/// Rows that encoding has seen ahead: by layout, and values in TOAST tables.
#[derive(Default)]
pub struct Plan {
    layouts: FxHashMap<PlanKey, Planned>,
    /// Pages met of each relation.
    pages: FxHashMap<RelFileLocator, u32>,
    toast: Ahead,
    /// Whether rows were added that told something, since that was asked last.
    news: bool,
}

/// A layout by what is known ahead. The row's head is only a hash: a schema that does not fit is not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PlanKey {
    relation: RelFileLocator,
    head: u64,
}

#[derive(Default)]
struct Planned {
    samples: Samples,
    schema: Option<Option<Vec<Field>>>,
}

/// What a [`PlanKey`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct PlanHead<'a> {
    /// The relation.
    pub relation: RelFileLocator,
    /// What tells rows apart beside their null bitmap.
    pub layout: u32,
    /// The null bitmap.
    pub bitmap: &'a [u8],
}

impl PlanHead<'_> {
    fn key(self) -> PlanKey {
        let mut hasher = FxHasher::default();
        (self.layout, self.bitmap).hash(&mut hasher);
        PlanKey { relation: self.relation, head: hasher.finish() }
    }
}

impl Plan {
    /// Of a relation, so many pages are looked at, and then each of so many.
    const PAGES: (u32, u32) = (32, 8);

    /// Whether the rows of another page of a relation should be added: they soon tell nothing new.
    pub fn wants_page(&mut self, relation: RelFileLocator) -> bool {
        let (all, each) = Plan::PAGES;
        let met = self.pages.entry(relation).or_default();
        *met += 1;
        *met <= all || met.is_multiple_of(each)
    }

    /// Adds a row.
    pub fn add(&mut self, head: PlanHead<'_>, row: &[u8]) {
        if row.len() <= MAX_ROW_BYTES {
            self.news |= self.layouts.entry(head.key()).or_default().samples.add(row);
        }
        if self.toast.add(head.relation, row) {
            // A value is looked for in all pages.
            self.pages.remove(&head.relation);
            self.news = true;
        }
    }

    /// Whether rows that were added since this was asked last told something.
    pub fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Forgets the rows, and keeps what was found out.
    pub fn clear(&mut self) {
        self.layouts.clear();
        self.pages.clear();
        self.toast.clear();
        self.news = false;
    }

    fn schema(&mut self, head: PlanHead<'_>, end_align: usize) -> Option<&Vec<Field>> {
        let Planned { samples, schema } = self.layouts.get_mut(&head.key())?;
        schema.get_or_insert_with(|| samples.schema(end_align)).as_ref()
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
    /// Room for the next items that are coded alike.
    pub run: Run,
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

/// How a varlena is told that has a header of one byte, in the lowest two bits; above them its length without header.
pub const SHORT: u64 = 0;
/// A header of one byte holds no more; 1 alone would be a reference.
pub const MAX_SHORT_BYTES: u64 = 126;

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

/// A varlena: its kind and length together, then its content.
fn varlena<S: Coder>(
    coder: &mut S,
    columns: &FieldColumns,
    (expander, vectors): (&mut Expander, &mut Vectors),
    source: Option<(&[u8], Span)>,
    origin: usize,
    out: &mut Vec<u8>,
) -> Result<(), Corrupt> {
    // Of a length: no reference, but told and short.
    const EXTERNAL: u64 = 1;
    // Of no length: told, or really of none.
    const LONG: u64 = 2;
    // Of a length that no compressed value has: coded as it was before compression, by which method.
    const COMPRESSED: u64 = 3;
    let mut expanded = None;
    let mut told = None;
    let (symbol, bytes) = match source {
        None => (0, &[][..]),
        Some((row, span)) => {
            let bytes = &row[span.start..span.end];
            match span.kind {
                Varlena::Short => {
                    told = vectors.tell_short(&bytes[1..]);
                    match told {
                        Some(_) => (EXTERNAL | 1 << 2, &bytes[1..]),
                        None => (SHORT | ((bytes.len() - 1) as u64) << 2, &bytes[1..]),
                    }
                }
                Varlena::External => (EXTERNAL, &bytes[2..]),
                Varlena::Long => {
                    told = vectors.parse(&bytes[4..]);
                    let len = if told.is_some() { 0 } else { bytes.len() - 4 };
                    (LONG | (len as u64) << 2, &bytes[4..])
                }
                Varlena::Compressed => {
                    expanded = expander.expand(&bytes[4..]);
                    let len = match &expanded {
                        Some((_, method)) => method.number() as usize,
                        None => bytes.len() - 4,
                    };
                    (COMPRESSED | (len as u64) << 2, &bytes[4..])
                }
            }
        }
    };
    let symbol = coder.symbol(columns.length, symbol)?;
    let len = usize::try_from(symbol >> 2).unwrap_or(usize::MAX);
    let kind = symbol & 3;
    match kind {
        SHORT => {
            if len as u64 > MAX_SHORT_BYTES {
                return Err(corrupt("a short value can't be so long"));
            }
            out.push((len as u8 + 1) << 1 | 1);
            coder.bytes(columns.content, bytes, len, out)
        }
        EXTERNAL if len > 0 => {
            let value = vectors.code(coder, columns.content, told)?.unwrap_or_default();
            if value.is_empty() || value.len() as u64 > MAX_SHORT_BYTES {
                return Err(corrupt("a short value can't be so long"));
            }
            out.push((value.len() as u8 + 1) << 1 | 1);
            out.extend_from_slice(&value);
            Ok(())
        }
        EXTERNAL => {
            out.extend_from_slice(&[1, 18]);
            coder.bytes(columns.external, bytes, EXTERNAL_BYTES - 2, out)
        }
        COMPRESSED if len < Method::OF_VALUES.len() => {
            pad(out, origin, 4);
            let content = whole(coder, columns, vectors, expanded.as_ref().map(|(content, _)| &content[..]))?;
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            expander.shrink(&content, Method::OF_VALUES[len], out)?;
            let header = header(out.len() - start)? | 2;
            out[start..start + 4].copy_from_slice(&header.to_le_bytes());
            Ok(())
        }
        LONG if len == 0 => {
            pad(out, origin, 4);
            let value = vectors.code(coder, columns.content, told)?.unwrap_or_default();
            out.extend_from_slice(&header(value.len().saturating_add(4))?.to_le_bytes());
            out.extend_from_slice(&value);
            Ok(())
        }
        _ => {
            pad(out, origin, 4);
            let compressed = kind == COMPRESSED;
            out.extend((header(len.saturating_add(4))? | if compressed { 2 } else { 0 }).to_le_bytes());
            let column = if compressed { columns.compressed } else { columns.content };
            coder.bytes(column, bytes, len, out)
        }
    }
}

/// A varlena's header of four bytes, for so many bytes with it.
fn header(whole: usize) -> Result<u32, Corrupt> {
    let whole = u32::try_from(whole).ok().filter(|&whole| whole < 1 << 30);
    Ok(whole.ok_or_else(|| corrupt("a value can't be so long"))? << 2)
}

/// A value as it was before compression.
fn whole<S: Coder>(
    coder: &mut S,
    columns: &FieldColumns,
    vectors: &mut Vectors,
    source: Option<&[u8]>,
) -> Result<Vec<u8>, Corrupt> {
    let told = source.and_then(|content| vectors.parse(content));
    // Of no length: told.
    let source = source.filter(|_| told.is_none());
    let len = coder.symbol(columns.expanded, source.map_or(0, |content| content.len() as u64))?;
    if len == 0 {
        return vectors
            .code(coder, columns.content, told)?
            .ok_or_else(|| corrupt("a compressed value can't be empty"));
    }
    let mut content = Vec::new();
    coder.bytes(
        columns.content,
        source.unwrap_or_default(),
        usize::try_from(len).unwrap_or(usize::MAX),
        &mut content,
    )?;
    Ok(content)
}

/// A chunk of a value that is said as a whole, if it is one: the first one says it.
#[allow(clippy::too_many_arguments)]
fn chunk<S: Coder>(
    coder: &mut S,
    column: Column,
    columns: &FieldColumns,
    (expander, vectors): (&mut Expander, &mut Vectors),
    ahead: &Ahead,
    (relation, locator): (u32, Option<RelFileLocator>),
    source: Option<(&[u8], Span)>,
    origin: usize,
    out: &mut Vec<u8>,
) -> Result<bool, Corrupt> {
    const OTHER: u64 = 0;
    const TOLD: u64 = 1;
    // Of a value compressed by pglz, of one that is not compressed, of one by the other methods.
    const FIRST: [u64; 3] = [2, 4, 5];
    const FIRST_PLAIN: u64 = 3;
    let mut value = None;
    let mut plain: Option<Literal> = None;
    let mut form = OTHER;
    if let Some((row, span)) = source.filter(|(_, span)| span.kind == Varlena::Long) {
        let content = &row[span.start + 4..span.end];
        if expander.chunk(relation, row).is_some_and(|chunk| chunk == content) {
            form = TOLD;
        } else if let Some(stored) =
            starts(row).zip(locator).and_then(|(number, locator)| ahead.value(locator, number))
            && stored.starts_with(content)
            && content.len() == stored.len().min(CHUNK)
        {
            value = expander.expand(stored);
            if value.is_none() {
                plain = vectors.parse(stored);
            }
            form = match (&value, &plain) {
                (Some((_, method)), _) => FIRST[method.number() as usize],
                (_, Some(_)) => FIRST_PLAIN,
                _ => OTHER,
            };
        }
    }
    let form = coder.symbol(column, form)?;
    if form == OTHER {
        return Ok(false);
    }
    if form != TOLD {
        let mut stored = Vec::new();
        if let Some(method) = FIRST.iter().position(|first| *first == form) {
            let content = whole(coder, columns, vectors, value.as_ref().map(|(content, _)| &content[..]))?;
            expander.shrink(&content, Method::OF_VALUES[method], &mut stored)?;
        } else if form != FIRST_PLAIN {
            return Err(corrupt("a chunk can't be told so"));
        } else {
            stored = vectors
                .code(coder, columns.content, plain)?
                .ok_or_else(|| corrupt("a value can't be told"))?;
        }
        let number = starts(&out[origin..]).ok_or_else(|| corrupt("a value can't start there"))?;
        expander.keep(relation, number, &stored);
    }
    let chunk =
        expander.chunk(relation, &out[origin..]).ok_or_else(|| corrupt("a value's chunk is not known"))?;
    pad(out, origin, 4);
    out.extend_from_slice(&header(chunk.len() + 4)?.to_le_bytes());
    out.extend_from_slice(chunk);
    Ok(true)
}

#[cfg(test)]
mod tests {
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
