//! Runs: items of a page that are coded in the same way, as many as there are at once.
//!
//! Columns are independent of each other. Where it is known of some items in which columns they are, all that they have in
//! the first column can be coded, then all that they have in the next one: the columns get the same as if one item were
//! coded after the other, in a fraction of the time.
//!
//! Where a run ends is not stored. It is the one thing that each direction finds out in its own way: encoding looks at the
//! items of the page ([`Run::find_on_page`]), decoding at what comes next in the columns ([`Run::find_in_columns`]). They
//! need not agree, as an item outside of a run has the same in the columns. What a run has is coded by [`Run::code`] in both
//! directions.
//!
//! One way for both would need what only one direction has. The columns of items that are still to be coded exist when encoding only
//! once these items were coded one by one, which is the time that runs save. The end of each run as a symbol would be one way, at
//! the price of bytes and of a search that must be the same in every later version.

use walden_redo::compress::pglz::same_start;
use walden_redo::page::varlena::{MAX_SHORT_CONTENT, ShortHeader};
use walden_redo::page::{PAGE_BYTES, Page, max_align};

use super::attributes::varlena::SHORT;
use super::attributes::{FORM_REPEATED, FORM_SCHEMA, LastTuple, Layouts, MAX_VALUES, RepeatCounter, Schema};
use crate::Corrupt;
use crate::cases::Case;
use crate::columns::{Coder, Column};
use crate::leb128::get_leb128;
use crate::tuple::items::{item, line_pointer, normal, put_line_pointer, right_before};
use crate::tuple::schema::{Field, Span, Varlena, aligned, read};

/// A page's items while they are coded, up to where this has come.
pub struct PageItems<'p> {
    /// The page that they make.
    pub target: &'p mut Page,
    /// The page as it is, when encoding.
    pub source: Option<&'p Page>,
    /// The line pointer of the next one.
    pub number: u16,
    /// Where the last one begins.
    pub last: usize,
    /// The column of the line pointers' forms, and the symbol of an item right before the last one.
    pub next: (Column, u8),
}

impl PageItems<'_> {
    /// How many are left.
    pub fn left(&self) -> usize {
        (self.target.items() + 1).saturating_sub(self.number).into()
    }
}

/// Items that follow each other, each right before the one before it on the page.
#[derive(Default)]
pub struct Run {
    /// Where each is on its page, and how long it is.
    pub items: Vec<(usize, usize)>,
    /// Bytes in their values of any length, without headers: those of the first, then those of the next. Perhaps some of
    /// an item after them that does not fit the page.
    values: Vec<usize>,
    /// Where the field that is coded is in each item, and how long it is.
    pub places: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// Symbols of the headers of heap tuples.
    pub headers: Vec<u8>,
    /// Whether their values of any length are those of the layout's last tuple.
    pub is_repeated: bool,
    /// How often the tuples before the next one repeated these values; counted by encoding only.
    repeats: RepeatCounter,
}

/// How the items of a run are laid out.
pub struct RunLayout {
    /// Their layout's number.
    pub layout: usize,
    /// Where their attributes begin.
    pub origin: usize,
    /// What their lengths are multiples of.
    pub end_align: usize,
}

impl Run {
    /// Forgets the items.
    pub fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
        self.headers.clear();
        self.is_repeated = false;
    }

    /// The form of their attributes.
    pub fn form(&self) -> u8 {
        if self.is_repeated { FORM_REPEATED } else { FORM_SCHEMA }
    }

    /// Finds the items of the run on the page, when encoding: up to the first that is not right before the last one, is not read by
    /// the schema, repeats values where the run does not, or has a value that is coded by its structure. `is_similar` compares what
    /// precedes an item's attributes.
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
            let is_repeated =
                layouts.cases.has(Case::KeptTuples) && schema.repeats_values(&self.spans, kept, attributes);
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

    /// Finds the items of the run in the columns, when decoding, at most `most`: as long as lengths are those of plain values, and
    /// items fit between the last one and `pd_lower`. Nothing is taken from the columns.
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
            // Where two are of one length, many are: as many as have the same lengths in all columns.
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

    /// Reads the lengths of the next item's values in the columns; its length, if they are of a run's.
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

    /// Codes the line pointers and the attributes of the items. `constant` are columns in which all have the same symbol.
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
        let keeps = !self.is_repeated
            && layouts.schema(layout.layout).has_values()
            && layouts.cases.has(Case::KeptTuples);
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

    /// Codes the attributes of the items in place: one field of all of them after the other.
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

/// Places of items of a length, each right before the one before it, from `last` on: at most so many, down to `lower`.
fn places((last, lower): (usize, usize), len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = max_align(len);
    let count = (last.saturating_sub(lower) / step.max(1)).min(most);
    (1..=count).map(move |number| (last - number * step, len))
}

/// Codes a field of one width in all items, in place.
pub fn code_fixed<S: Coder>(
    coder: &mut S,
    column: Column,
    places: &[(usize, usize)],
    width: usize,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Corrupt> {
    // Bytes of a width that the compiler knows are moved in an instruction or two.
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
