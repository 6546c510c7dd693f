//! Heap tuples of a page that are coded alike.

use super::headers::Alike;
use super::visibility::{VISIBLE, Visible};
use crate::columns::{Coder, all_repeated};
use crate::predict::TupleCoder;
use crate::predict::attributes::{FORM_AGAIN, FORM_SCHEMA};
use crate::predict::relation::Place;
use crate::predict::run::{Items, Like};
use crate::tuple::heap::HEADER_BYTES;
use crate::tuple::tid::RowPlace;
use crate::{Corrupt, corrupt};

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
        let mut run = std::mem::take(self.run);
        run.clear();
        let mut symbols = std::mem::take(&mut run.heads);
        let mut same = [(form, FORM_SCHEMA), items.next, heads.bitmap];
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
        *self.run = run;
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
}
