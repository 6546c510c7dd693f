//! Items of a page that are coded alike, as many as there are at once.
//!
//! Columns know nothing of each other. Where it is known of some items in which columns they are, all that they have in the
//! first column can be coded, then all that they have in the next one: the columns get the same as if one item were coded
//! after the other, in a fraction of the time. Where a run of such items ends is nowhere written: encoding sees it in the
//! items, decoding in the columns, and they need not agree.

use walden_format::record::Fork;
use walden_redo::page::{PAGE_BYTES, Page};
use walden_redo::pglz::same_start;
use walden_redo::store::BlockKey;

use super::heap::{Alike, HEADER_BYTES, Relation, TupleCoder};
use super::index::{self, Context, TupleForm};
use super::keys::RowPlace;
use super::pages::{
    NEXT, NORMAL, Place, VISIBLE, Visible, item, join, pointer, put_pointer, right_before, split, with_gap,
};
use super::rows::{FORM_AGAIN, FORM_SCHEMA, Last, MAX_SHORT_BYTES, MAX_VALUES, RepeatCounter, Rows, SHORT};
use super::schema::{Field, Span, Varlena, aligned, read};
use crate::columns::{Coder, Column, all_repeated, get_number};
use crate::{Corrupt, corrupt};

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
    /// The column of the line pointers' forms.
    pub pointers: Column,
}

impl Items<'_> {
    /// Those that are left.
    fn left(&self) -> usize {
        (self.made.items() + 1).saturating_sub(self.number).into()
    }
}

/// Items that follow each other, each right before the one before it.
#[derive(Default)]
pub struct Run {
    /// Where each is on its page, and how long it is.
    items: Vec<(usize, usize)>,
    /// Bytes in their values of any length, without headers: those of the first, then those of the next. Perhaps some of
    /// an item after them that there is no room for.
    values: Vec<usize>,
    /// Where the field that is coded is in each item, and how long it is.
    places: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// Symbols of the heads of rows.
    heads: Vec<u8>,
    /// Whether their values of any length are those of the layout's last row.
    again: bool,
    /// And whether that is so of the next ones, as encoding has met them.
    steady: RepeatCounter,
}

/// How items are coded alike.
struct Like {
    /// Their layout's number.
    layout: usize,
    /// Where their attributes begin.
    origin: usize,
    /// What their lengths are multiples of.
    end_align: usize,
}

impl Run {
    fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
        self.heads.clear();
        self.again = false;
    }

    /// The form of their attributes.
    fn form(&self) -> u8 {
        if self.again { FORM_AGAIN } else { FORM_SCHEMA }
    }

    /// Finds the items on a page, when encoding; `is_like` says of one whether what comes before its attributes is.
    fn find(
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
    fn foresee<S: Coder>(&mut self, (coder, rows): (&S, &Rows), items: &Items<'_>, like: &Like, most: usize) {
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
    fn code<S: Coder>(
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
fn fixed<S: Coder>(
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

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the rows after the last one that are coded like it, as far as there are any.
    pub fn rows_alike(
        &mut self,
        place: Place,
        visible: &mut Visible,
        last: &[u8],
        items: &mut Items<'_>,
    ) -> Result<(), Corrupt> {
        let Some(heads) = self.heads.alike(self.names, place.relation.number, last) else { return Ok(()) };
        let Some((layout, form)) = self.rows.alike(heads.layout) else { return Ok(()) };
        let like = Like { layout, origin: heads.like.len(), end_align: 1 };
        let mut run = std::mem::take(&mut self.rows.run);
        run.clear();
        let mut symbols = std::mem::take(&mut run.heads);
        let mut same = [(form, FORM_SCHEMA), (items.pointers, NEXT as u8), heads.bitmap];
        if let Some(page) = items.source {
            run.find(self.rows, (items, page), &like, |row| {
                let symbol = heads.symbol(self.heads, row);
                symbols.extend(symbol);
                symbol.is_some()
            });
        } else {
            run.again = self.coder.ahead(form).first() == Some(&FORM_AGAIN);
            same[0].1 = run.form();
            let most = all_repeated(self.coder, &same, items.left());
            let ahead = self.coder.ahead(heads.column);
            let mut last = None;
            let is_like = |symbol: &&u8| {
                let is = last == Some(**symbol) || heads.head(self.heads, **symbol).is_some();
                last = Some(**symbol);
                is
            };
            symbols.extend(ahead.iter().take(most).take_while(is_like));
            run.foresee((self.coder, self.rows), items, &like, symbols.len());
        }
        symbols.truncate(run.items.len());
        same[0].1 = run.form();
        self.headers(place, visible, &heads, (&run.items, &mut symbols), items)?;
        run.heads = symbols;
        run.code((self.coder, self.rows), items, &like, &same)?;
        self.rows.run = run;
        Ok(())
    }

    /// Codes what these rows have before their attributes, and writes it to the page.
    fn headers(
        &mut self,
        place: Place,
        visible: &mut Visible,
        heads: &Alike<'_>,
        (rows, symbols): (&[(usize, usize)], &mut [u8]),
        items: &mut Items<'_>,
    ) -> Result<(), Corrupt> {
        self.coder.in_place(heads.column, std::iter::once((0, symbols.len())), symbols)?;
        let bytes = heads.like.len();
        // What a row is before its attributes, and the symbol of what is after who sees it.
        let (mut head, mut head_symbol) = (heads.like.to_vec(), None);
        let mut alike = 0;
        for (at, &(offset, _)) in rows.iter().enumerate() {
            let row = RowPlace { block: place.block, number: items.number + at as u16 };
            if alike == 0 {
                alike = visible.code_alike(self.coder, row, &rows[at..], items.source)?;
                if alike > 0 {
                    head[..VISIBLE].copy_from_slice(&visible.alike(row));
                } else {
                    let source = items.source.map(|page| &page.0[offset..]);
                    head[..VISIBLE].copy_from_slice(&visible.code(self, place, row.number, source)?);
                }
            }
            if head_symbol != Some(symbols[at]) {
                let known =
                    heads.head(self.heads, symbols[at]).ok_or_else(|| corrupt("a row's head can't be"))?;
                head_symbol = Some(symbols[at]);
                head[VISIBLE..HEADER_BYTES].copy_from_slice(&known);
            }
            let target = &mut items.made.0[offset..offset + bytes];
            // Without null bitmap, a row's attributes begin at a place that the compiler knows.
            match (<&mut [u8; 24]>::try_from(&mut *target), head.first_chunk()) {
                (Ok(target), Some(head)) => *target = *head,
                _ => target.copy_from_slice(&head),
            }
            if alike > 0 {
                // Where it is, is all that tells it from the others.
                target[VISIBLE - RowPlace::BYTES..VISIBLE].copy_from_slice(&row.to_bytes());
                alike -= 1;
            }
        }
        Ok(())
    }

    /// Codes the index tuples after the last one, which no row told, that are coded like it, as far as there are any.
    pub fn tuples_alike(
        &mut self,
        (relation, context): (Relation, Context),
        last: &[u8],
        items: &mut Items<'_>,
    ) -> Result<(), Corrupt> {
        let Some(form) = TupleForm::of(last) else { return Ok(()) };
        let table = self.keys.index(relation.number).table.filter(|_| context != Context::Near);
        let Some(columns) = self.tuple_columns(relation, table.is_some()) else { return Ok(()) };
        let Some((layout, row_form)) = self.rows.alike(form.layout(relation)) else { return Ok(()) };
        let mut same =
            vec![(row_form, FORM_SCHEMA), (items.pointers, NEXT as u8), (columns.forms, form.symbol())];
        same.extend(columns.expected.map(|column| (column, index::PLACE_OTHER as u8)));
        let like = Like { layout, origin: index::HEADER, end_align: 8 };
        let mut run = std::mem::take(&mut self.rows.run);
        run.clear();
        // A key may be told by its row, where that is known.
        let mut unknown = None;
        let mut is_known = |place: Option<RowPlace>| {
            let (Some(table), Some(RowPlace { block, .. })) = (table, place) else { return false };
            let key = BlockKey { relation: table.locator, fork: Fork::MAIN, block };
            if unknown != Some(block) && self.store.find(key).is_some() {
                return true;
            }
            unknown = Some(block);
            false
        };
        if let Some(page) = items.source {
            let order = self.keys.order.as_ref();
            let order = order.filter(|order| order.index == relation.number && context != Context::Near);
            let is_next =
                |place| order.zip(place).is_some_and(|(order, place)| order.distance(place).is_some());
            run.find(self.rows, (items, page), &like, |tuple| {
                let place = RowPlace::of(tuple);
                form.is_of(tuple) && !is_known(place) && !is_next(place)
            });
        } else {
            run.again = self.coder.ahead(row_form).first() == Some(&FORM_AGAIN);
            same[0].1 = run.form();
            let most = all_repeated(self.coder, &same, items.left());
            let places = self.coder.ahead(columns.places).chunks_exact(RowPlace::BYTES);
            let most = places.take(most).take_while(|place| !is_known(RowPlace::of(place))).count();
            run.foresee((self.coder, self.rows), items, &like, most);
        }
        for &(offset, len) in &run.items {
            form.put(&mut items.made.0[offset..offset + len]);
        }
        same[0].1 = run.form();
        run.code((self.coder, self.rows), items, &like, &same)?;
        run.places.clear();
        run.places.extend(run.items.iter().map(|(offset, _)| (*offset, RowPlace::BYTES)));
        fixed(self.coder, columns.places, &run.places, RowPlace::BYTES, &mut items.made.0)?;
        if table.is_some() {
            self.keys.index(relation.number).missed(run.items.len() as u32);
        }
        self.rows.run = run;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop, proptest};
    use proptest::strategy::Strategy;
    use walden_format::lsn::Lsn;
    use walden_format::record::RelFileLocator;
    use walden_format::rmgr;
    use walden_format::version::Major;
    use walden_redo::store::LastRecord;
    use walden_redo::{PageBox, PageStore};

    use super::*;
    use crate::columns::{Decoder, Encoder};
    use crate::entropy::{Packer, Unpacker};
    use crate::model::heap::Heads;
    use crate::model::keys::Keys;
    use crate::model::names::Names;
    use crate::model::pages::plan;
    use crate::model::rows::Rows;

    const TABLE: Relation =
        Relation { number: 0, locator: RelFileLocator { tablespace: 1, database: 2, relation: 3 } };
    const INDEX: Relation =
        Relation { number: 1, locator: RelFileLocator { tablespace: 1, database: 2, relation: 4 } };
    /// The table's page that is known.
    const KNOWN: u32 = 2;

    /// What is known of the index.
    #[derive(Clone, Copy, Debug)]
    struct Index {
        has_table: bool,
        in_haste: bool,
    }

    /// What there is to know before the first page, and after each.
    struct Known {
        names: Names,
        heads: Heads,
        rows: Rows,
        keys: Keys,
        store: PageStore,
    }

    impl Known {
        fn new(one_by_one: bool, Index { has_table, in_haste }: Index) -> Known {
            let mut store = PageStore::default();
            let slot = store.slot(BlockKey { relation: TABLE.locator, fork: Fork::MAIN, block: KNOWN });
            let kind = rmgr::kind(Major::V18, 0, 0);
            let rows: Vec<Given> = (0..100).map(|number| (0, number, 9, false)).collect();
            store.put(slot, PageBox::from(&page_of(&rows, 0, row)), LastRecord { lsn: Lsn(1), kind });
            let mut keys = Keys::default();
            keys.in_haste = in_haste;
            if has_table {
                keys.index(INDEX.number).belongs_to(TABLE);
            }
            let mut rows = Rows::default();
            rows.one_by_one = one_by_one;
            Known { names: Names::default(), heads: Heads::default(), rows, keys, store }
        }

        fn page<S: Coder>(&mut self, coder: &mut S, relation: Relation, source: Option<&Page>) -> Page {
            let Known { names, heads, rows, keys, store } = self;
            let mut made = Page::default();
            let place = Place { relation, fork: 0, block: 9 };
            let mut tuple_coder = TupleCoder { coder, names, heads, rows, keys, store };
            tuple_coder.page(place, source, &mut made).expect("a page");
            made
        }
    }

    /// What an item of a page is made of: which of a few forms, a number, a length, and whether something precedes it.
    type Given = (u8, u32, u8, bool);

    fn given() -> impl Strategy<Value = Vec<Given>> {
        let some = (0..12_u8, any::<u32>(), 0..30_u8, prop::bool::weighted(0.05));
        prop::collection::vec(some, 1..60)
    }

    fn value(bytes: &mut Vec<u8>, len: usize) {
        if len < 127 {
            bytes.push((len as u8 + 1) << 1 | 1);
        } else {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend((((len + 4) as u32) << 2).to_le_bytes());
        }
        bytes.extend((0..len).map(|at| b'a' + (at * 7 % 23) as u8));
    }

    /// A row of three numbers and a text: with two it could be a chunk in a TOAST table.
    fn row((form, number, len, _): Given) -> Vec<u8> {
        let mut row = vec![0; 36];
        // Who sees it: often the same as of the row before, sometimes not.
        let one_of = |bits: u32, values: [u8; 4]| values[(number >> bits & 3) as usize];
        row[0..2].copy_from_slice(&[one_of(24, [7, 7, 7, 9]), 1]);
        row[4] = one_of(26, [0, 0, 5, 5]);
        row[8] = one_of(28, [0, 0, 114, 200]);
        row[18..23].copy_from_slice(&[3, 0, 2, 8 + form % 3, 24]);
        if form == 11 {
            (row[20], row[22], row[23]) = (3, 32, 5);
            row.resize(44, 0);
        }
        let at = row.len() - 12;
        row[at..][..4].copy_from_slice(&number.to_le_bytes());
        row[at + 4..][..4].copy_from_slice(&(number % 7).to_le_bytes());
        let len = if form == 10 { 130 + 20 * usize::from(len) } else { len.into() };
        value(&mut row, len);
        row
    }

    /// A tuple with a number as its key, or a number and a text.
    fn tuple((form, number, len, _): Given) -> Vec<u8> {
        let mut tuple = vec![0; 8];
        tuple[2..4].copy_from_slice(&(number as u16 % 5).to_le_bytes());
        tuple[4..6].copy_from_slice(&(number as u16 % 200 + 1).to_le_bytes());
        tuple.extend(u64::from(number).to_le_bytes());
        let has_text = form == 11;
        if has_text {
            value(&mut tuple, len.into());
            tuple.resize(tuple.len().next_multiple_of(8), 0);
        }
        let info = tuple.len() as u16 | if has_text { 0x4000 } else { 0 };
        tuple[6..8].copy_from_slice(&info.to_le_bytes());
        tuple
    }

    fn page_of(items: &[Given], special: usize, item: fn(Given) -> Vec<u8>) -> Page {
        let mut page = Page::default();
        page.init(special);
        for &given in items {
            if given.3 {
                // A place that no item takes.
                let _ = page.insert_item(&[7; 24], page.items() + 1);
                let number = page.items();
                put_pointer(&mut page, number, 3 << 15);
            }
            let mut item = item(given);
            if special == 0 && given.1 >> 30 < 3 {
                // A row that nobody moved.
                item[12..18].copy_from_slice(&RowPlace { block: 9, number: page.items() + 1 }.to_bytes());
            }
            if page.insert_item(&item, page.items() + 1).is_err() {
                break;
            }
        }
        page
    }

    /// Both ways write the same, and each is read by both.
    fn check(pages: &[(Relation, Page)], index: Index) {
        let chunks = [false, true].map(|one_by_one| {
            let mut known = Known::new(one_by_one, index);
            for (relation, page) in pages {
                plan(&mut known.rows.plan, relation.locator, 0, page);
            }
            let mut coder = Encoder::default();
            for (relation, page) in pages {
                let made = known.page(&mut coder, *relation, Some(page));
                assert!((1..=page.items()).all(|number| item(&made, number) == item(page, number)));
            }
            coder.chunk(&mut Packer::new(1, true))
        });
        assert!(chunks[0] == chunks[1], "the columns do not tell how they were filled");
        for one_by_one in [false, true] {
            let mut known = Known::new(one_by_one, index);
            let mut coder = Decoder::default();
            coder.chunk(&mut Unpacker::new(true), &chunks[0], 1 << 20).expect("its own chunk");
            for (relation, page) in pages {
                let made = known.page(&mut coder, *relation, None);
                assert!((1..=page.items()).all(|number| item(&made, number) == item(page, number)));
            }
            coder.finish().expect("nothing is left");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn many_at_once_are_coded_as_one_after_another(
            pages in prop::collection::vec((given(), any::<[bool; 3]>()), 1..4),
            (has_table, in_haste) in any::<(bool, bool)>(),
        ) {
            let pages = pages.iter().map(|(items, [of_index, are_in_turn, have_same])| {
                let items = if *are_in_turn { in_turn(items) } else { items.clone() };
                let items = if *have_same { with_same(&items) } else { items };
                if *of_index {
                    (INDEX, page_of(&items, 16, tuple))
                } else {
                    (TABLE, page_of(&items, 0, row))
                }
            });
            check(&pages.collect::<Vec<_>>(), Index { has_table, in_haste });
        }
    }

    /// With numbers one after another, but for some: keys that are near each other, rows that are seen alike.
    fn in_turn(items: &[Given]) -> Vec<Given> {
        let number = |at: usize, number: u32| if number < u32::MAX / 50 { number } else { at as u32 };
        items.iter().enumerate().map(|(at, item)| (0, number(at, item.1), item.2, item.3)).collect()
    }

    /// With the same text, but for some.
    fn with_same(items: &[Given]) -> Vec<Given> {
        items.iter().map(|item| (item.0, item.1, if item.2 == 7 { 3 } else { 20 }, item.3)).collect()
    }

    #[test]
    fn rows_with_the_same_text_do_not_say_it_again() {
        let index = Index { has_table: false, in_haste: false };
        let page = |len: &dyn Fn(u32) -> u8| {
            let items: Vec<Given> = (0..40).map(|number| (0, number * 31, len(number), false)).collect();
            page_of(&items, 0, row)
        };
        let same = page(&|_| 20);
        let pages = [
            page(&|number| number as u8 % 20),
            same.clone(),
            same,
            page(&|number| if number == 20 { 9 } else { 20 }),
        ];
        let mut known = Known::new(false, index);
        pages.iter().for_each(|page| plan(&mut known.rows.plan, TABLE.locator, 0, page));
        // All but the first; those after ten, nine of which are like the one before; all but the first, which is told so, too;
        // those after the tenth from the second one on that is not.
        let at_once = [(false, 39), (true, 30), (true, 39), (true, 9)];
        let mut coder = Encoder::default();
        for (page, at_once) in pages.iter().zip(at_once) {
            known.page(&mut coder, TABLE, Some(page));
            assert_eq!((known.rows.run.again, known.rows.run.items.len()), at_once);
        }
        check(&pages.map(|page| (TABLE, page)), index);
    }

    #[test]
    fn rows_are_not_asked_for_keys_that_tell_each_other() {
        let items: Vec<Given> = (0..100).map(|number| (0, number, 9, false)).collect();
        let mut page = page_of(&items, 16, tuple);
        for number in 1..=page.items() {
            // All of the page that is known.
            let place = RowPlace { block: KNOWN, number }.to_bytes();
            let at = split(pointer(&page, number)).0;
            page.0[at..at + RowPlace::BYTES].copy_from_slice(&place);
        }
        for in_haste in [false, true] {
            let index = Index { has_table: true, in_haste };
            let mut known = Known::new(false, index);
            plan(&mut known.rows.plan, INDEX.locator, 0, &page);
            known.page(&mut Encoder::default(), INDEX, Some(&page));
            assert_eq!(known.rows.run.items.len() == 99, in_haste, "all but the first at once");
            check(&[(INDEX, page.clone()), (INDEX, page.clone())], index);
        }
    }

    #[test]
    fn most_items_of_a_page_are_coded_at_once() {
        let items: Vec<Given> = (0..100).map(|number| (0, number * 31, (number % 20) as u8, false)).collect();
        for (relation, page) in [(TABLE, page_of(&items, 0, row)), (INDEX, page_of(&items, 16, tuple))] {
            let mut known = Known::new(false, Index { has_table: false, in_haste: false });
            plan(&mut known.rows.plan, relation.locator, 0, &page);
            known.page(&mut Encoder::default(), relation, Some(&page));
            assert_eq!(known.rows.run.items.len(), usize::from(page.items()) - 1, "all but the first");
        }
    }
}
