//! The part of a heap tuple's header that only pages have: by whom it was inserted and deleted, and where it is.

use walden_redo::page::Page;

use crate::columns::{Class, Coder, Column, Kind, all_repeated, narrow};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::Place;
use crate::tuple::heap::{HEAD_BYTES, HEADER_BYTES};
use crate::tuple::items::u32_at;
use crate::tuple::tid::RowPlace;
use crate::zigzag::{against, difference};
use crate::{Corrupt, corrupt};

/// What the last row of the page had, and where that is coded.
#[derive(Default)]
pub struct Visible {
    xmin: u32,
    xmax: u32,
    /// Of the last rows that were alike.
    cid: u8,
    columns: [Option<Column>; 5],
}

/// Bytes of it.
pub const VISIBLE: usize = HEADER_BYTES - HEAD_BYTES;

impl Visible {
    /// `t_xmin`, `t_xmax`, `t_cid`, `t_ctid`.
    pub fn code<S: Coder>(
        &mut self,
        tuple_coder: &mut TupleCoder<'_, S>,
        place: Place,
        number: u16,
        source: Option<&[u8]>,
    ) -> Result<[u8; VISIBLE], Corrupt> {
        let word = |at: usize| source.map_or(0, |item| u32_at(item, at));
        let half = |at: usize| source.map_or(0, |item| u16::from_le_bytes([item[at], item[at + 1]]));
        let columns = &mut self.columns;
        let mut symbol = |what: usize, value: u64| {
            let column = match columns[what] {
                Some(column) => column,
                None => {
                    let like = [place.relation.number, what as u32, 0];
                    let kind = Kind::Symbols(Class::RowHeaders);
                    *columns[what].insert(tuple_coder.names.column(
                        tuple_coder.coder,
                        Topic::Visibility,
                        like,
                        kind,
                    )?)
                }
            };
            tuple_coder.coder.symbol(column, value)
        };
        let xmin = difference(narrow(symbol(0, against(word(0), self.xmin).into())?)?, self.xmin);
        // 0: none; 1: as the last one; else the distance from xmin.
        let xmax = match word(4) {
            0 => 0,
            xmax if xmax == self.xmax => 1,
            xmax => 2 + u64::from(against(xmax, xmin)),
        };
        let xmax = match symbol(1, xmax)? {
            0 => 0,
            1 => self.xmax,
            away => difference(narrow(away - 2)?, xmin),
        };
        let cid: u32 = narrow(symbol(2, word(8).into())?)?;
        let (block, pointer) = (u32::from(half(12)) << 16 | u32::from(half(14)), half(16));
        // 0: itself; else the distance of the block, and the line pointer.
        let here = block == place.block && pointer == number;
        let (block, pointer) =
            match symbol(3, if here { 0 } else { 1 + u64::from(against(block, place.block)) })? {
                0 => (place.block, number),
                away => {
                    let pointer = symbol(4, pointer.into())?;
                    let pointer = u16::try_from(pointer).map_err(|_| corrupt("a row's place can't be"))?;
                    (difference(narrow(away - 1)?, place.block), pointer)
                }
            };
        (self.xmin, self.xmax) = (xmin, xmax);
        Ok(header(xmin, xmax, cid, RowPlace { block, number: pointer }))
    }

    /// Codes the rows from this number on as far as they are of the last one's transaction, where they were put, and all of the
    /// same command, deleted by nobody or all by who deleted the last one: how many. `rows` is where each of those that
    /// there are is on the page.
    pub fn code_alike<S: Coder>(
        &mut self,
        coder: &mut S,
        RowPlace { block, number }: RowPlace,
        rows: &[(usize, usize)],
        source: Option<&Page>,
    ) -> Result<usize, Corrupt> {
        let [Some(xmins), Some(xmaxs), Some(cids), Some(places), _] = self.columns else { return Ok(0) };
        let xmax_of = |symbol: u8| if symbol == 0 { 0 } else { self.xmax };
        let same = |xmax: u8, cid: u8| [(xmins, 0), (xmaxs, xmax), (cids, cid), (places, 0)];
        let (xmax, cid, alike) = match (source, rows.first()) {
            (Some(page), Some(&(first, _))) => {
                let (xmax, cid) = (page.u32_at(first + 4), page.u32_at(first + 8));
                let (Some(xmax), Ok(cid)) =
                    ([0, 1].into_iter().find(|&symbol| xmax_of(symbol) == xmax), u8::try_from(cid))
                else {
                    return Ok(0);
                };
                let is_alike = |&((at, _), number): &(&(usize, usize), u16)| {
                    page.0[*at..at + VISIBLE]
                        == header(self.xmin, xmax_of(xmax), cid.into(), RowPlace { block, number })
                };
                (xmax, cid, rows.iter().zip(number..).take_while(is_alike).count())
            }
            _ => {
                let (Some(&xmax @ ..=1), Some(&cid)) =
                    (coder.ahead(xmaxs).first(), coder.ahead(cids).first())
                else {
                    return Ok(0);
                };
                (xmax, cid, all_repeated(coder, &same(xmax, cid), rows.len()))
            }
        };
        // A number of one byte.
        if alike == 0 || !cid.is_ascii() {
            return Ok(0);
        }
        for (column, value) in same(xmax, cid) {
            coder.repeat(column, value, alike)?;
        }
        (self.xmax, self.cid) = (xmax_of(xmax), cid);
        Ok(alike)
    }

    /// What one of these has.
    pub fn alike(&self, place: RowPlace) -> [u8; VISIBLE] {
        header(self.xmin, self.xmax, self.cid.into(), place)
    }
}

fn header(xmin: u32, xmax: u32, cid: u32, ctid: RowPlace) -> [u8; VISIBLE] {
    let mut header = [0; VISIBLE];
    header[0..4].copy_from_slice(&xmin.to_le_bytes());
    header[4..8].copy_from_slice(&xmax.to_le_bytes());
    header[8..12].copy_from_slice(&cid.to_le_bytes());
    header[12..18].copy_from_slice(&ctid.to_bytes());
    header
}

#[cfg(test)]
mod tests {
    use walden_format::record::RelFileLocator;
    use walden_redo::PageStore;

    use super::*;
    use crate::columns::Encoder;
    use crate::predict::Predictors;
    use crate::predict::relation::Relation;
    use crate::tuple::items::{pointer, split};

    #[test]
    fn rows_that_are_seen_alike_are_coded_at_once_up_to_the_one_that_is_not() {
        const BLOCK: u32 = 7;
        let relation = Relation { number: 0, locator: RelFileLocator::default() };
        let mut page = Page::default();
        page.init(0);
        // One is deleted, which takes its command's number; one was moved; the last has another transaction.
        let given = |number: u16| match number {
            20 => header(700, 801, 0, RowPlace { block: BLOCK, number }),
            30 => header(700, 0, 114, RowPlace { block: BLOCK + 1, number: 3 }),
            40 => header(701, 0, 114, RowPlace { block: BLOCK, number }),
            _ => header(700, 0, 114, RowPlace { block: BLOCK, number }),
        };
        for number in 1..=40 {
            page.insert_item(&given(number), number).expect("there is room");
        }
        let rows: Vec<_> =
            (1..=40).map(|number| split(pointer(&page, number))).map(|at| (at.0, at.2)).collect();
        let place = Place { relation, fork: 0, block: BLOCK };
        let (mut predictors, mut store) = (Predictors::default(), PageStore::default());
        let mut coder = Encoder::default();
        let mut visible = Visible::default();
        let mut at_once = Vec::new();
        let mut number = 1;
        while number <= 40 {
            let mut tuple_coder = predictors.tuple_coder(&mut coder, &mut store);
            let source = Some(&given(number)[..]);
            assert_eq!(visible.code(&mut tuple_coder, place, number, source).expect("a row"), given(number));
            let rest = &rows[number.into()..];
            let next = RowPlace { block: BLOCK, number: number + 1 };
            let alike = visible.code_alike(&mut coder, next, rest, Some(&page)).expect("rows");
            for number in (number + 1..).take(alike) {
                assert_eq!(visible.alike(RowPlace { block: BLOCK, number }), given(number));
            }
            at_once.push(alike);
            number += 1 + alike as u16;
        }
        assert_eq!(at_once, [18, 9, 9, 0], "2 to 19; 21 to 29; 31 to 39");
    }
}
