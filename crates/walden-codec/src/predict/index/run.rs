//! Runs of index tuples on a page. No tuple of a run is predicted from its heap tuple.

use walden_format::record::Fork;
use walden_redo::BlockKey;
use walden_redo::PageStore;

use super::{Context, IndexContext, TID_OTHER, TupleColumns, TupleFlags};
use crate::Corrupt;
use crate::columns::{Coder, count_repeated};
use crate::predict::TupleCoder;
use crate::predict::attributes::{FORM_REPEATED, FORM_SCHEMA};
use crate::predict::relation::Relation;
use crate::predict::run::{PageItems, Run, RunLayout, code_fixed};
use walden_redo::page::Tid;
use walden_redo::page::index_tuple::INDEX_TUPLE_HEADER_BYTES;
use walden_redo::page::tid::TID_BYTES;

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the index tuples that follow the last tuple and are coded like it, if there are any.
    pub(super) fn index_tuple_run(
        &mut self,
        index: IndexContext,
        last: &[u8],
        items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        let IndexContext { relation, context } = index;
        let Some(flags) = TupleFlags::parse(last) else { return Ok(()) };
        let table = self.keys.index(relation.number).table.filter(|_| context != Context::Near);
        let Some(columns) = self.tuple_columns(relation, table.is_some()) else { return Ok(()) };
        let Some((layout, form)) = self.layouts.layout_of_run(flags.layout(relation)) else { return Ok(()) };
        let layout = RunLayout { layout, origin: INDEX_TUPLE_HEADER_BYTES, end_align: 8 };
        let mut constant = vec![(form, FORM_SCHEMA), items.next, (columns.flags, flags.symbol())];
        constant.extend(columns.expected.map(|column| (column, TID_OTHER as u8)));
        let mut run = std::mem::take(self.run);
        run.clear();
        match items.source {
            Some(_) => self.find_tuples_on_page(&mut run, index, flags, (items, &layout)),
            None => {
                run.is_repeated = self.coder.remaining(form).first() == Some(&FORM_REPEATED);
                constant[0].1 = run.form();
                let most = count_repeated(self.coder, &constant, items.left());
                self.find_tuples_in_columns(&mut run, (table, &columns), (items, &layout), most);
            }
        }
        for &(offset, len) in &run.items {
            flags.put(&mut items.target.0[offset..offset + len]);
        }
        constant[0].1 = run.form();
        run.code((self.coder, self.layouts), items, &layout, &constant)?;
        run.places.clear();
        run.places.extend(run.items.iter().map(|(offset, _)| (*offset, TID_BYTES)));
        code_fixed(self.coder, columns.tids, &run.places, TID_BYTES, &mut items.target.0)?;
        if table.is_some() {
            self.keys.index(relation.number).missed(run.items.len() as u32);
        }
        *self.run = run;
        Ok(())
    }

    /// When encoding: finds the tuples of a run on the page.
    fn find_tuples_on_page(
        &mut self,
        run: &mut Run,
        IndexContext { relation, context }: IndexContext,
        flags: TupleFlags,
        (items, layout): (&PageItems<'_>, &RunLayout),
    ) {
        let Some(page) = items.source else { return };
        let table = self.keys.index(relation.number).table.filter(|_| context != Context::Near);
        let mut known = KnownTuples { table, unknown: None };
        let order = self.keys.order.as_ref();
        let order = order.filter(|order| order.index == relation.number && context != Context::Near);
        let is_next = |tid| order.zip(tid).is_some_and(|(order, tid)| order.distance(tid).is_some());
        run.find_on_page(self.layouts, (items, page), layout, |tuple| {
            let tid = Tid::read(tuple);
            flags.is_of(tuple) && !known.may_have(self.store, tid) && !is_next(tid)
        });
    }

    /// When decoding: finds the tuples of a run in the columns, at most `most`.
    fn find_tuples_in_columns(
        &mut self,
        run: &mut Run,
        (table, columns): (Option<Relation>, &TupleColumns),
        (items, layout): (&PageItems<'_>, &RunLayout),
        most: usize,
    ) {
        let mut known = KnownTuples { table, unknown: None };
        let tids = self.coder.remaining(columns.tids).chunks_exact(TID_BYTES).take(most);
        let most = tids.take_while(|tid| !known.may_have(self.store, Tid::read(tid))).count();
        run.find_in_columns((self.coder, self.layouts), items, layout, most);
    }
}

/// Heap tuples from which keys may be predicted: those on known pages.
struct KnownTuples {
    table: Option<Relation>,
    /// The last block that was found to be unknown.
    unknown: Option<u32>,
}

impl KnownTuples {
    fn may_have(&mut self, store: &mut PageStore, tid: Option<Tid>) -> bool {
        let (Some(table), Some(Tid { block, .. })) = (self.table, tid) else { return false };
        let key = BlockKey { relation: table.locator, fork: Fork::MAIN, block };
        if self.unknown != Some(block) && store.find(key).is_some() {
            return true;
        }
        self.unknown = Some(block);
        false
    }
}
