//! Index tuples of a page that are coded alike.

use walden_format::record::Fork;
use walden_redo::store::BlockKey;

use super::{Context, PLACE_OTHER, TupleForm};
use crate::Corrupt;
use crate::columns::{Coder, all_repeated};
use crate::predict::TupleCoder;
use crate::predict::attributes::{FORM_AGAIN, FORM_SCHEMA};
use crate::predict::relation::Relation;
use crate::predict::run::{Items, Like, fixed};
use crate::tuple::index;
use crate::tuple::tid::RowPlace;

impl<S: Coder> TupleCoder<'_, S> {
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
        let mut same = vec![(row_form, FORM_SCHEMA), items.next, (columns.forms, form.symbol())];
        same.extend(columns.expected.map(|column| (column, PLACE_OTHER as u8)));
        let like = Like { layout, origin: index::HEADER, end_align: 8 };
        let mut run = std::mem::take(self.run);
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
        *self.run = run;
        Ok(())
    }
}
