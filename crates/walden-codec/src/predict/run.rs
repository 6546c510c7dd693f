//! Runs: consecutive items of a page that are coded in the same way, and therefore together.
//!
//! Columns are independent of each other. If the columns of several items are known, the values for the first
//! column can be coded for all items, then those for the next column. The columns receive the same values as
//! if the items were coded one by one, in a fraction of the time.
//!
//! The end of a run is not stored. It is the only decision that the two directions make differently: encoding
//! examines the items of the page ([`Run::find_on_page`]), decoding the next values of the columns
//! ([`Run::find_in_columns`]). They need not agree, because an item outside of a run has the same values in
//! the columns. [`Run::code`] codes the values of a run in both directions.
//!
//! A common procedure would need data that only one direction has. When encoding, the columns have no values
//! of later items until these were coded one by one, and that is the time that runs save. A symbol for the
//! end of each run would work, but would cost bytes and require the same search in every later version.

use walden_recompress::pglz::same_start;
use walden_redo::page::varlena::{MAX_SHORT_CONTENT, ShortHeader};
use walden_redo::page::{PAGE_BYTES, Page, max_align};

use super::attributes::varlena::SHORT;
use super::attributes::{FORM_REPEATED, FORM_SCHEMA, LastTuple, Layouts, MAX_VALUES, RepeatCounter, Schema};
use crate::Corrupt;
use crate::columns::{Coder, Column};
use crate::leb128::get_leb128;
use crate::tuple::items::{item, line_pointer, normal, put_line_pointer, right_before};
use crate::tuple::schema::{Field, Span, Varlena, aligned, read};

/// A page's items while they are coded.
pub struct PageItems<'p> {
    /// The page that is being reconstructed.
    pub target: &'p mut Page,
    /// When encoding: the original page.
    pub source: Option<&'p Page>,
    /// Offset number of the next item.
    pub number: u16,
    /// Offset of the last item.
    pub last: usize,
    /// Column of line pointer forms, and the symbol for an item directly before the last item.
    pub next: (Column, u8),
}

impl PageItems<'_> {
    /// Returns the number of remaining items.
    pub fn left(&self) -> usize {
        (self.target.items() + 1).saturating_sub(self.number).into()
    }
}

/// Consecutive items, each placed directly before the previous one on the page.
#[derive(Default)]
pub struct Run {
    /// Offset and length of each item on its page.
    pub items: Vec<(usize, usize)>,
    /// Content lengths of the variable-length values in bytes, without headers: first all values of the first
    /// item, then all values of the next item. May end with some values of a further item that does not fit
    /// the page.
    values: Vec<usize>,
    /// Offset and length of the current field in each item.
    pub places: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// Symbols of the headers of heap tuples.
    pub headers: Vec<u8>,
    /// Whether the variable-length values equal the values of the layout's last tuple.
    pub is_repeated: bool,
    /// When encoding: counts the tuples before the next one that repeated these values.
    repeats: RepeatCounter,
}

/// Layout of the items of a run.
pub struct RunLayout {
    /// Number of the layout.
    pub layout: usize,
    /// Offset of the attributes in an item.
    pub origin: usize,
    /// Alignment of item lengths.
    pub end_align: usize,
}

impl Run {
    /// Removes all items.
    pub fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
        self.headers.clear();
        self.is_repeated = false;
    }

    /// Returns the form of the items' attributes.
    pub fn form(&self) -> u8 {
        if self.is_repeated { FORM_REPEATED } else { FORM_SCHEMA }
    }

    /// When encoding: finds the items of the run on the page. The run ends before the first item that is not
    /// directly before the previous one, that the schema cannot read, that differs from the run in repeating
    /// values, or that has a value coded by its structure. `is_similar` compares the part of an item before
    /// its attributes.
    pub fn find_on_page(
        &mut self,
        layouts: &Layouts,
        (items, page): (&PageItems<'_>, &Page),
        layout: &RunLayout,
        mut is_similar: impl FnMut(&[u8]) -> bool,
    ) {
        let schema = layouts.schema(layout.layout);
        let (mut kept, mut repeats) =
            (layouts.last(layout.layout).attributes(), layouts.last(layout.layout).repeats);
        let mut last = items.last;
        for number in (items.number..).take(items.left()) {
            let offset = usize::from(line_pointer(page, number).offset());
            let Some(item) = item(page, number).filter(|item| item.len() >= layout.origin) else { break };
            let is_next = right_before(last, item.len()) == Some(offset) && offset >= items.target.lower();
            if !is_next || !is_similar(item) {
                break;
            }
            let attributes = &item[layout.origin..];
            if !read(&schema.fields, attributes, layout.end_align, &mut self.spans) {
                break;
            }
            let mut counted = repeats;
            let is_repeated = schema.repeats_values(&self.spans, kept, attributes);
            let is_repeated = counted.observe(is_repeated);
            if !self.items.is_empty() && self.is_repeated != is_repeated {
                break;
            }
            let is_plain = |span: &Span| {
                let value = &attributes[span.start..span.end];
                span.kind == Varlena::Short
                    && (is_repeated || layouts.vectors.parse_short(&value[1..]).is_none())
            };
            if !schema.values(&self.spans).all(is_plain) {
                break;
            }
            self.values.extend(schema.values(&self.spans).map(|span| span.end - span.start - 1));
            self.items.push((offset, item.len()));
            (self.is_repeated, repeats) = (is_repeated, counted);
            (kept, last) = (LastTuple::kept(attributes), offset);
        }
        self.repeats = repeats;
    }

    /// When decoding: finds the items of the run in the columns, at most `most`. The run ends before an item
    /// whose length column has a special value, or that does not fit between the previous item and
    /// `pd_lower`. Consumes no values of the columns.
    pub fn find_in_columns<S: Coder>(
        &mut self,
        (coder, layouts): (&S, &Layouts),
        items: &PageItems<'_>,
        layout: &RunLayout,
        most: usize,
    ) {
        let schema = layouts.schema(layout.layout);
        let lower = items.target.lower();
        if self.is_repeated {
            let attributes = layouts.last(layout.layout).attributes();
            if read(&schema.fields, attributes, layout.end_align, &mut self.spans)
                && schema.values(&self.spans).all(|span| span.kind == Varlena::Short)
            {
                self.items.extend(places((items.last, lower), layout.origin + attributes.len(), most));
            }
            return;
        }
        let mut lengths = [&[][..]; MAX_VALUES];
        schema.lengths().zip(&mut lengths).for_each(|(column, ahead)| *ahead = coder.remaining(column));
        let values = schema.lengths().count();
        let (lengths, mut before) = (&mut lengths[..values], [&[][..]; MAX_VALUES]);
        let (mut last, mut last_len) = (items.last, 0);
        while self.items.len() < most {
            before[..values].copy_from_slice(lengths);
            let Some(len) = self.next_len(schema, lengths, layout) else { return };
            let Some((offset, _)) = places((last, lower), len, 1).next() else { return };
            self.items.push((offset, len));
            last = offset;
            if std::mem::replace(&mut last_len, len) != len {
                continue;
            }
            // Two consecutive items of equal length indicate a longer sequence. Count the items that repeat
            // these lengths in all columns.
            let mut left = most - self.items.len();
            for (before, ahead) in before.iter().zip(&*lengths) {
                let bytes = before.len() - ahead.len();
                let most = ahead.len().min(left * bytes);
                left = same_start(&ahead[..most], before) / bytes;
            }
            let count = self.items.len();
            self.items.extend(places((last, lower), len, left));
            let same = self.items.len() - count;
            last = self.items.last().map_or(last, |item| item.0);
            let from = self.values.len() - values;
            self.values.reserve(same * values);
            for number in 0..same * values {
                self.values.push(self.values[from + number]);
            }
            for (before, ahead) in before.iter().zip(&mut *lengths) {
                *ahead = &ahead[same * (before.len() - ahead.len())..];
            }
        }
    }

    /// Reads the lengths of the next item's values from the columns. Returns the item's length, if it can
    /// belong to a run.
    fn next_len(&mut self, schema: &Schema, lengths: &mut [&[u8]], layout: &RunLayout) -> Option<usize> {
        let (mut at, mut next) = (0_usize, lengths.iter_mut());
        for field in &schema.fields {
            at = match *field {
                Field::Fixed { width, align } => aligned(at, align.into()) + usize::from(width),
                Field::Varlena => {
                    let length = next.next().and_then(|ahead| get_leb128(ahead).ok());
                    let len =
                        length.filter(|len| len & 3 == SHORT && len >> 2 <= MAX_SHORT_CONTENT as u64)?;
                    self.values.push((len >> 2) as usize);
                    at + 1 + (len >> 2) as usize
                }
            };
        }
        Some(layout.origin + aligned(at, layout.end_align))
    }

    /// Codes the line pointers and the attributes of the items. `constant` lists columns in which all items
    /// have one symbol.
    pub fn code<S: Coder>(
        &mut self,
        (coder, layouts): (&mut S, &mut Layouts),
        items: &mut PageItems<'_>,
        layout: &RunLayout,
        constant: &[(Column, u8)],
    ) -> Result<(), Corrupt> {
        for &(column, symbol) in constant {
            coder.repeat(column, symbol, self.items.len())?;
        }
        for (&(offset, len), number) in self.items.iter().zip(items.number..) {
            if let Some(source) = items.source {
                items.target.0[offset..offset + len].copy_from_slice(&source.0[offset..offset + len]);
            }
            put_line_pointer(items.target, number, normal(offset, len)?);
        }
        self.attributes((coder, layouts), items.target, layout)?;
        let keeps = !self.is_repeated && layouts.schema(layout.layout).has_values();
        let last = layouts.last_mut(layout.layout);
        last.repeats = self.repeats;
        if let Some(&(offset, len)) = self.items.last() {
            if keeps {
                last.keep(&items.target.0[offset + layout.origin..offset + len]);
            }
            items.last = offset;
        }
        items.number += self.items.len() as u16;
        Ok(())
    }

    /// Codes the attributes of the items in place, field by field.
    fn attributes<S: Coder>(
        &mut self,
        (coder, layouts): (&mut S, &Layouts),
        page: &mut Page,
        layout: &RunLayout,
    ) -> Result<(), Corrupt> {
        let Run { items, values, places, spans, is_repeated, .. } = self;
        let page = &mut page.0;
        places.clear();
        places.extend(items.iter().map(|(offset, _)| (offset + layout.origin, 0)));
        let schema = layouts.schema(layout.layout);
        let last = Some(layouts.last(layout.layout).attributes());
        let last = last.filter(|last| *is_repeated && read(&schema.fields, last, layout.end_align, spans));
        let (mut value, all) = (0, schema.lengths().count());
        for (index, (field, columns)) in schema.fields.iter().zip(&schema.columns).enumerate() {
            match (*field, last) {
                (Field::Fixed { width, align }, _) => {
                    let (width, align) = (usize::from(width), usize::from(align));
                    for (place, (offset, _)) in places.iter_mut().zip(&*items) {
                        let origin = offset + layout.origin;
                        *place = (origin + aligned(place.0 + place.1 - origin, align), width);
                    }
                    code_fixed(coder, columns.content, places, width, page)?;
                }
                (Field::Varlena, Some(last)) => {
                    let value = &last[spans[index].start..spans[index].end];
                    for place in &mut *places {
                        let at = place.0 + place.1;
                        page[at..at + value.len()].copy_from_slice(value);
                        *place = (at, value.len());
                    }
                }
                (Field::Varlena, None) => {
                    for (place, &len) in places.iter_mut().zip(values.iter().skip(value).step_by(all)) {
                        coder.symbol(columns.length, (len as u64) << 2 | SHORT)?;
                        let at = place.0 + place.1;
                        page[at] = ShortHeader::byte(len);
                        *place = (at + 1, len);
                    }
                    coder.in_place(columns.content, places.iter().copied(), page)?;
                    value += 1;
                }
            }
        }
        Ok(())
    }
}

/// Returns the offset and length of up to `most` items of equal length, each directly before the previous
/// one, from `last` down to `lower`.
fn places((last, lower): (usize, usize), len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = max_align(len);
    let count = (last.saturating_sub(lower) / step.max(1)).min(most);
    (1..=count).map(move |number| (last - number * step, len))
}

/// Codes a fixed-width field of all items in place.
pub fn code_fixed<S: Coder>(
    coder: &mut S,
    column: Column,
    places: &[(usize, usize)],
    width: usize,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Corrupt> {
    // A width known to the compiler is copied in one or two instructions.
    macro_rules! of_width {
        ($($known:literal)*) => {
            match width {
                $($known => coder.in_place(column, places.iter().map(|place| (place.0, $known)), page),)*
                _ => coder.in_place(column, places.iter().copied(), page),
            }
        };
    }
    of_width!(2 3 4 6 7 8 12 15 16)
}
