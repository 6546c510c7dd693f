//! Items of a page that are coded alike, as many as there are at once.
//!
//! Columns know nothing of each other. Where it is known of some items in which columns they are, all that they have in the
//! first column can be coded, then all that they have in the next one: the columns get the same as if one item were coded
//! after the other, in a fraction of the time. Where a run of such items ends is nowhere written: encoding sees it in the
//! items, decoding in the columns, and they need not agree.

use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::pglz::same_start;

use super::attributes::varlena::{MAX_SHORT_BYTES, SHORT};
use super::attributes::{FORM_AGAIN, FORM_SCHEMA, Last, MAX_VALUES, RepeatCounter, Rows};
use crate::Corrupt;
use crate::columns::{Coder, Column, get_number};
use crate::tuple::items::{NORMAL, item, join, pointer, put_pointer, right_before, split, with_gap};
use crate::tuple::schema::{Field, Span, Varlena, aligned, read};

/// A page's items while they are coded, up to where this has come.
pub struct Items<'p> {
    /// The page that they make.
    pub made: &'p mut Page,
    /// The page as it is, when encoding.
    pub source: Option<&'p Page>,
    /// The next one's number.
    pub number: u16,
    /// Where the last one is.
    pub last: usize,
    /// The column of the line pointers' forms, and the symbol of an item right before the last one.
    pub next: (Column, u8),
}

impl Items<'_> {
    /// Those that are left.
    pub fn left(&self) -> usize {
        (self.made.items() + 1).saturating_sub(self.number).into()
    }
}

/// Items that follow each other, each right before the one before it.
#[derive(Default)]
pub struct Run {
    /// Where each is on its page, and how long it is.
    pub items: Vec<(usize, usize)>,
    /// Bytes in their values of any length, without headers: those of the first, then those of the next. Perhaps some of
    /// an item after them that there is no room for.
    pub values: Vec<usize>,
    /// Where the field that is coded is in each item, and how long it is.
    pub places: Vec<(usize, usize)>,
    pub spans: Vec<Span>,
    /// Symbols of the heads of rows.
    pub heads: Vec<u8>,
    /// Whether their values of any length are those of the layout's last row.
    pub again: bool,
    /// And whether that is so of the next ones, as encoding has met them.
    pub steady: RepeatCounter,
}

/// How items are coded alike.
pub struct Like {
    /// Their layout's number.
    pub layout: usize,
    /// Where their attributes begin.
    pub origin: usize,
    /// What their lengths are multiples of.
    pub end_align: usize,
}

impl Run {
    pub fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
        self.heads.clear();
        self.again = false;
    }

    /// The form of their attributes.
    pub fn form(&self) -> u8 {
        if self.again { FORM_AGAIN } else { FORM_SCHEMA }
    }

    /// Finds the items on a page, when encoding; `is_like` says of one whether what comes before its attributes is.
    pub fn find(
        &mut self,
        rows: &Rows,
        (items, page): (&Items<'_>, &Page),
        like: &Like,
        mut is_like: impl FnMut(&[u8]) -> bool,
    ) {
        let schema = rows.schema(like.layout);
        let (mut kept, mut steady) = (rows.last(like.layout).row(), rows.last(like.layout).steady);
        let mut last = items.last;
        for number in (items.number..).take(items.left()) {
            let (offset, ..) = split(pointer(page, number));
            let Some(item) = item(page, number).filter(|item| item.len() >= like.origin) else { break };
            let is_next = right_before(last, item.len()) == Some(offset) && offset >= items.made.lower();
            if !is_next || !is_like(item) {
                break;
            }
            let row = &item[like.origin..];
            if !read(&schema.fields, row, like.end_align, &mut self.spans) {
                break;
            }
            let mut counted = steady;
            let is_again = counted.tells(schema.has_again(&self.spans, kept, row));
            if !self.items.is_empty() && self.again != is_again {
                break;
            }
            let is_plain = |span: &Span| {
                span.kind == Varlena::Short
                    && (is_again || rows.vectors.tell_short(&row[span.start + 1..span.end]).is_none())
            };
            if !schema.values(&self.spans).all(is_plain) {
                break;
            }
            self.values.extend(schema.values(&self.spans).map(|span| span.end - span.start - 1));
            self.items.push((offset, item.len()));
            (self.again, steady, kept, last) = (is_again, counted, Last::kept(row), offset);
        }
        self.steady = steady;
    }

    /// Finds the items in the columns, when decoding, at most so many.
    pub fn foresee<S: Coder>(
        &mut self,
        (coder, rows): (&S, &Rows),
        items: &Items<'_>,
        like: &Like,
        most: usize,
    ) {
        let schema = rows.schema(like.layout);
        // Right before each other from `last` on, as many of a length as there is room for, or as are wanted.
        let as_many = |last: usize, len: usize, most: usize| {
            let step = with_gap(len);
            let count = (last.saturating_sub(items.made.lower()) / step.max(1)).min(most);
            (1..=count).map(move |number| (last - number * step, len))
        };
        if self.again {
            let row = rows.last(like.layout).row();
            if read(&schema.fields, row, like.end_align, &mut self.spans)
                && schema.values(&self.spans).all(|span| span.kind == Varlena::Short)
            {
                self.items.extend(as_many(items.last, like.origin + row.len(), most));
            }
            return;
        }
        let mut lengths = [&[][..]; MAX_VALUES];
        schema.lengths().zip(&mut lengths).for_each(|(column, ahead)| *ahead = coder.ahead(column));
        let values = schema.lengths().count();
        let (lengths, mut before) = (&mut lengths[..values], [&[][..]; MAX_VALUES]);
        let (mut last, mut last_len) = (items.last, 0);
        while self.items.len() < most {
            before[..values].copy_from_slice(lengths);
            let (mut at, mut next) = (0_usize, lengths.iter_mut());
            for field in &schema.fields {
                at = match *field {
                    Field::Fixed { width, align } => aligned(at, align.into()) + usize::from(width),
                    Field::Varlena => {
                        let length = next.next().and_then(|ahead| get_number(ahead).ok());
                        let Some(len) = length.filter(|len| len & 3 == SHORT && len >> 2 <= MAX_SHORT_BYTES)
                        else {
                            return;
                        };
                        self.values.push((len >> 2) as usize);
                        at + 1 + (len >> 2) as usize
                    }
                };
            }
            let len = like.origin + aligned(at, like.end_align);
            let Some((offset, _)) = as_many(last, len, 1).next() else { return };
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
            let before_same = self.items.len();
            self.items.extend(as_many(last, len, left));
            let same = self.items.len() - before_same;
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

    /// Codes the line pointers and the attributes of what was found.
    pub fn code<S: Coder>(
        &mut self,
        (coder, rows): (&mut S, &mut Rows),
        items: &mut Items<'_>,
        like: &Like,
        same: &[(Column, u8)],
    ) -> Result<(), Corrupt> {
        let Run { items: found, values, places, spans, again, steady, .. } = self;
        for &(column, value) in same {
            coder.repeat(column, value, found.len())?;
        }
        for (&(offset, len), number) in found.iter().zip(items.number..) {
            if let Some(source) = items.source {
                items.made.0[offset..offset + len].copy_from_slice(&source.0[offset..offset + len]);
            }
            put_pointer(items.made, number, join(offset, NORMAL, len)?);
        }
        let page = &mut items.made.0;
        places.clear();
        places.extend(found.iter().map(|(offset, _)| (offset + like.origin, 0)));
        let schema = rows.schema(like.layout);
        let last = Some(rows.last(like.layout).row());
        let last = last.filter(|last| *again && read(&schema.fields, last, like.end_align, spans));
        let (mut value, all) = (0, schema.lengths().count());
        for (index, (field, columns)) in schema.fields.iter().zip(&schema.columns).enumerate() {
            match (*field, last) {
                (Field::Fixed { width, align }, _) => {
                    let (width, align) = (usize::from(width), usize::from(align));
                    for (place, (offset, _)) in places.iter_mut().zip(&*found) {
                        let origin = offset + like.origin;
                        *place = (origin + aligned(place.0 + place.1 - origin, align), width);
                    }
                    fixed(coder, columns.content, places, width, page)?;
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
                        page[at] = (len as u8 + 1) << 1 | 1;
                        *place = (at + 1, len);
                    }
                    coder.in_place(columns.content, places.iter().copied(), page)?;
                    value += 1;
                }
            }
        }
        let keeps = !*again && schema.has_values();
        let last = rows.last_mut(like.layout);
        last.steady = *steady;
        if let Some(&(offset, len)) = found.last() {
            if keeps {
                last.keep(&items.made.0[offset + like.origin..offset + len]);
            }
            items.last = offset;
        }
        items.number += found.len() as u16;
        Ok(())
    }
}

/// Codes a field of one width in all items.
pub fn fixed<S: Coder>(
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
