//! Codes the heap tuple header fields that only pages have: inserting and deleting transaction, command, and
//! `t_ctid`.
//!
//! Redo derives these fields from the record's transaction and the offset number (`heap_xlog_insert` in
//! `heapam.c` or `heapam_xlog.c`), so only pages that are coded item by item need them. Tuples of a bulk load
//! differ only in `t_ctid`.

use walden_redo::page::Page;
use walden_redo::page::heap_tuple::{
    HEAP_TUPLE_HEADER_BYTES, HeapTupleHeader, HeapTupleHeaderMut, LOGGED_FIELDS,
};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column, count_repeated};
use crate::leb128::narrow;
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::zigzag::{zigzag_delta, zigzag_value};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;

/// Fields of the page's last tuple, and the columns of these fields.
#[derive(Default)]
pub struct Visibility {
    xmin: u32,
    xmax: u32,
    /// `t_cid` of the last run.
    cid: u8,
    columns: [Option<Column>; 5],
}

/// Length of `t_xmin`, `t_xmax`, `t_cid` and `t_ctid` in bytes.
pub const VISIBILITY_BYTES: usize = LOGGED_FIELDS.start;

/// Topics of the columns.
const TOPICS: [Topic; 5] = [Topic::Xmins, Topic::Xmaxs, Topic::Cids, Topic::CtidBlocks, Topic::CtidNumbers];
const XMIN: usize = 0;
const XMAX: usize = 1;
const CID: usize = 2;
const CTID_BLOCK: usize = 3;
const CTID_NUMBER: usize = 4;

/// Symbol for a `t_xmax` of zero.
const NO_XMAX: u64 = 0;
/// Symbol for the `t_xmax` of the last tuple.
const LAST_XMAX: u64 = 1;
/// First symbol for a delta between `t_xmax` and `t_xmin`.
const XMAX_DISTANCES: u64 = 2;

/// Symbol for a `t_ctid` of the tuple itself. From 1 on: the delta between the block and the tuple's own
/// block.
const ITSELF: u64 = 0;

impl Visibility {
    /// Codes `t_xmin`, `t_xmax`, `t_cid` and `t_ctid` of a tuple on its page.
    pub fn code<S: Coder>(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        address: BlockAddress,
        number: u16,
        source: Option<&[u8]>,
    ) -> Result<[u8; VISIBILITY_BYTES], Corrupt> {
        let source = source.and_then(HeapTupleHeader::parse);
        let relation = address.relation.number;
        let last_xmin = self.xmin;
        let xmin = zigzag_delta(source.map_or(0, |header| header.xmin()), last_xmin);
        let xmin = zigzag_value(narrow(self.symbol(coder, relation, XMIN, xmin.into())?)?, last_xmin);
        let xmax = match source.map_or(0, |header| header.xmax()) {
            0 => NO_XMAX,
            xmax if xmax == self.xmax => LAST_XMAX,
            xmax => XMAX_DISTANCES + u64::from(zigzag_delta(xmax, xmin)),
        };
        let xmax = match self.symbol(coder, relation, XMAX, xmax)? {
            NO_XMAX => 0,
            LAST_XMAX => self.xmax,
            distance => zigzag_value(narrow(distance - XMAX_DISTANCES)?, xmin),
        };
        let cid = source.map_or(0, |header| header.cid());
        let cid: u32 = narrow(self.symbol(coder, relation, CID, cid.into())?)?;
        let own = Tid { block: address.block, offset_number: number };
        let ctid = self.ctid(coder, relation, own, source.map(|header| header.ctid()))?;
        (self.xmin, self.xmax) = (xmin, xmax);
        Ok(header(xmin, xmax, cid, ctid))
    }

    fn ctid<S: Coder>(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        relation: u32,
        own: Tid,
        source: Option<Tid>,
    ) -> Result<Tid, Corrupt> {
        let source = source.unwrap_or(Tid { block: 0, offset_number: 0 });
        let block = if source == own { ITSELF } else { 1 + u64::from(zigzag_delta(source.block, own.block)) };
        match self.symbol(coder, relation, CTID_BLOCK, block)? {
            ITSELF => Ok(own),
            distance => {
                let number = self.symbol(coder, relation, CTID_NUMBER, source.offset_number.into())?;
                let number = u16::try_from(number)
                    .map_err(|_| corrupt("cannot decode a t_ctid: expected an offset number of 16 bits"))?;
                Ok(Tid { block: zigzag_value(narrow(distance - 1)?, own.block), offset_number: number })
            }
        }
    }

    fn symbol<S: Coder>(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        relation: u32,
        what: usize,
        symbol: u64,
    ) -> Result<u64, Corrupt> {
        let column = match self.columns[what] {
            Some(column) => column,
            None => {
                let (key, kind) = ([relation, 0, 0], Kind::Symbols(Class::TupleHeaders));
                let column = coder.keyed_columns.column(coder.coder, TOPICS[what], key, kind)?;
                *self.columns[what].insert(column)
            }
        };
        coder.coder.symbol(column, symbol)
    }

    /// Codes a run of tuples and returns their number. All tuples of a run have the `t_xmin` of the last
    /// tuple, their own TID as `t_ctid`, the same `t_cid`, and either no `t_xmax` or the `t_xmax` of the last
    /// tuple. `tuples` has the offset and length of each remaining tuple.
    pub fn code_run<S: Coder>(
        &mut self,
        coder: &mut S,
        first: Tid,
        tuples: &[(usize, usize)],
        source: Option<&Page>,
    ) -> Result<usize, Corrupt> {
        let [Some(xmins), Some(xmaxs), Some(cids), Some(ctids), _] = self.columns else { return Ok(0) };
        let constant = |xmax: u8, cid: u8| [(xmins, 0), (xmaxs, xmax), (cids, cid), (ctids, ITSELF as u8)];
        let found = match source {
            Some(page) => self.find_run_on_page(first, tuples, page),
            None => match (coder.remaining(xmaxs).first(), coder.remaining(cids).first()) {
                (Some(&xmax @ ..=1), Some(&cid)) => {
                    Some((xmax, cid, count_repeated(coder, &constant(xmax, cid), tuples.len())))
                }
                _ => None,
            },
        };
        // A run repeats one byte per column, so it cannot have a command id (`cid`) above 127, whose LEB128
        // code has more bytes.
        let Some((xmax, cid, count)) = found.filter(|&(_, cid, count)| count > 0 && cid.is_ascii()) else {
            return Ok(0);
        };
        for (column, symbol) in constant(xmax, cid) {
            coder.repeat(column, symbol, count)?;
        }
        (self.xmax, self.cid) = (self.xmax_of(xmax), cid);
        Ok(count)
    }

    /// When encoding: returns the `t_xmax` symbol and the command id of the first tuple, and the number of
    /// tuples that have the same fields.
    fn find_run_on_page(
        &self,
        first: Tid,
        tuples: &[(usize, usize)],
        page: &Page,
    ) -> Option<(u8, u8, usize)> {
        let &(at, _) = tuples.first()?;
        let header_of_first = HeapTupleHeader::parse(page.0.get(at..)?)?;
        let (xmax, cid) = (header_of_first.xmax(), header_of_first.cid());
        let xmax =
            [NO_XMAX as u8, LAST_XMAX as u8].into_iter().find(|&symbol| self.xmax_of(symbol) == xmax)?;
        let cid = u8::try_from(cid).ok()?;
        let is_same = |&(&(at, _), number): &(&(usize, usize), u16)| {
            let tid = Tid { offset_number: number, ..first };
            page.0[at..at + VISIBILITY_BYTES] == header(self.xmin, self.xmax_of(xmax), cid.into(), tid)
        };
        Some((xmax, cid, tuples.iter().zip(first.offset_number..).take_while(is_same).count()))
    }

    fn xmax_of(&self, symbol: u8) -> u32 {
        if u64::from(symbol) == NO_XMAX { 0 } else { self.xmax }
    }

    /// Returns the fields of a tuple of the last run.
    pub fn run_fields(&self, tid: Tid) -> [u8; VISIBILITY_BYTES] {
        header(self.xmin, self.xmax, self.cid.into(), tid)
    }
}

fn header(xmin: u32, xmax: u32, cid: u32, ctid: Tid) -> [u8; VISIBILITY_BYTES] {
    let mut bytes = [0; HEAP_TUPLE_HEADER_BYTES];
    if let Ok(mut header) = HeapTupleHeaderMut::parse(&mut bytes) {
        header.set_xmin(xmin);
        header.set_xmax(xmax);
        // `t_cid` and `t_xvac` share one field of four bytes (`t_field3` in `htup_details.h`).
        header.set_xvac(cid);
        header.set_ctid(ctid);
    }
    std::array::from_fn(|at| bytes[at])
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;

    use super::*;
    use crate::columns::Encoder;
    use crate::predict::Predictors;
    use crate::predict::relation::Relation;
    use crate::tuple::items::line_pointer;

    #[test]
    fn tuples_of_the_same_visibility_are_coded_at_once_up_to_the_one_that_differs() {
        const BLOCK: u32 = 7;
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut page = Page::default();
        page.init(0);
        // One tuple is deleted, which overwrites its `t_cid`; one was moved; the last has another
        // transaction.
        let given = |number: u16| match number {
            20 => header(700, 801, 0, Tid { block: BLOCK, offset_number: number }),
            30 => header(700, 0, 114, Tid { block: BLOCK + 1, offset_number: 3 }),
            40 => header(701, 0, 114, Tid { block: BLOCK, offset_number: number }),
            _ => header(700, 0, 114, Tid { block: BLOCK, offset_number: number }),
        };
        for number in 1..=40 {
            page.insert_item(&given(number), number).expect("there is room");
        }
        let pointers = (1..=40).map(|number| line_pointer(&page, number));
        let tuples: Vec<(usize, usize)> =
            pointers.map(|pointer| (pointer.offset().into(), pointer.len().into())).collect();
        let address = BlockAddress { relation, fork: 0, block: BLOCK };
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        let mut coder = Encoder::default();
        let mut visibility = Visibility::default();
        let mut at_once = Vec::new();
        let mut number = 1;
        while number <= 40 {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let mut tuple = [0; HEAP_TUPLE_HEADER_BYTES];
            tuple[..VISIBILITY_BYTES].copy_from_slice(&given(number));
            let source = Some(&tuple[..]);
            assert_eq!(
                visibility.code(&mut tuple_coder, address, number, source).expect("a tuple"),
                given(number)
            );
            let rest = &tuples[number.into()..];
            let next = Tid { block: BLOCK, offset_number: number + 1 };
            let of_run = visibility.code_run(&mut coder, next, rest, Some(&page)).expect("tuples");
            for number in (number + 1..).take(of_run) {
                assert_eq!(visibility.run_fields(Tid { block: BLOCK, offset_number: number }), given(number));
            }
            at_once.push(of_run);
            number += 1 + of_run as u16;
        }
        assert_eq!(at_once, [18, 9, 9, 0], "2 to 19; 21 to 29; 31 to 39");
    }
}
