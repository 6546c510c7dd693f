//! Runs of heap tuples on a page: consecutive tuples with the same null bitmap and number of attributes.

use super::headers::SimilarHeaders;
use super::visibility::{VISIBILITY_BYTES, Visibility};
use crate::columns::{Coder, count_repeated};
use crate::predict::TupleCoder;
use crate::predict::attributes::{FORM_REPEATED, FORM_SCHEMA};
use crate::predict::relation::BlockAddress;
use crate::predict::run::{PageItems, RunLayout};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;
use walden_redo::page::heap_tuple::HEAP_TUPLE_HEADER_BYTES;
use walden_redo::page::tid::TID_BYTES;

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the heap tuples that follow the last tuple and are coded like it, if there are any.
    pub(super) fn heap_tuple_run(
        &mut self,
        address: BlockAddress,
        visibility: &mut Visibility,
        last: &[u8],
        items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        let Some(headers) = self.heap_headers.similar(self.keyed_columns, address.relation.number, last)
        else {
            return Ok(());
        };
        let Some((layout, form)) = self.layouts.layout_of_run(headers.layout) else { return Ok(()) };
        let layout = RunLayout { layout, origin: headers.template.len(), end_align: 1 };
        let mut run = std::mem::take(self.run);
        run.clear();
        let mut symbols = std::mem::take(&mut run.headers);
        let mut constant = [(form, FORM_SCHEMA), items.next, headers.bitmap];
        match items.source {
            Some(page) => run.find_on_page(self.layouts, (items, page), &layout, |tuple| {
                let symbol = headers.symbol(self.heap_headers, tuple);
                symbols.extend(symbol);
                symbol.is_some()
            }),
            None => {
                run.is_repeated = self.coder.remaining(form).first() == Some(&FORM_REPEATED);
                constant[0].1 = run.form();
                let most = count_repeated(self.coder, &constant, items.left());
                let ahead = self.coder.remaining(headers.column);
                let mut last = None;
                let is_similar = |symbol: &&u8| {
                    let is_similar =
                        last == Some(**symbol) || headers.header(self.heap_headers, **symbol).is_some();
                    last = Some(**symbol);
                    is_similar
                };
                symbols.extend(ahead.iter().take(most).take_while(is_similar));
                run.find_in_columns((self.coder, self.layouts), items, &layout, symbols.len());
            }
        }
        symbols.truncate(run.items.len());
        constant[0].1 = run.form();
        self.headers_of_run((address, visibility), &headers, (&run.items, &mut symbols), items)?;
        run.headers = symbols;
        run.code((self.coder, self.layouts), items, &layout, &constant)?;
        *self.run = run;
        Ok(())
    }

    /// Codes the part of the tuples before their attributes, and writes it to the page.
    fn headers_of_run(
        &mut self,
        (address, visibility): (BlockAddress, &mut Visibility),
        headers: &SimilarHeaders<'_>,
        (tuples, symbols): (&[(usize, usize)], &mut [u8]),
        items: &mut PageItems<'_>,
    ) -> Result<(), Corrupt> {
        self.coder.in_place(headers.column, std::iter::once((0, symbols.len())), symbols)?;
        let bytes = headers.template.len();
        // The bytes of a tuple before its attributes, and the symbol of the header fields that follow the
        // visibility fields.
        let (mut header, mut header_symbol) = (headers.template.to_vec(), None);
        // Number of following tuples that are known to have the same visibility fields as the last coded
        // tuple.
        let mut same = 0;
        for (at, &(offset, _)) in tuples.iter().enumerate() {
            let tid = Tid { block: address.block, offset_number: items.number + at as u16 };
            if same == 0 {
                same = visibility.code_run(self.coder, tid, &tuples[at..], items.source)?;
                let bytes = if same > 0 {
                    visibility.run_fields(tid)
                } else {
                    let source = items.source.map(|page| &page.0[offset..]);
                    visibility.code(self, address, tid.offset_number, source)?
                };
                header[..VISIBILITY_BYTES].copy_from_slice(&bytes);
            }
            if header_symbol != Some(symbols[at]) {
                let known = headers.header(self.heap_headers, symbols[at]);
                let known = known.ok_or_else(|| {
                    corrupt("cannot decode a tuple header: expected the number of a known one")
                })?;
                header_symbol = Some(symbols[at]);
                header[VISIBILITY_BYTES..HEAP_TUPLE_HEADER_BYTES].copy_from_slice(&known);
            }
            let target = &mut items.target.0[offset..offset + bytes];
            // Without a null bitmap, the attributes start at an offset known to the compiler.
            match (<&mut [u8; 24]>::try_from(&mut *target), header.first_chunk()) {
                (Ok(target), Some(header)) => *target = *header,
                _ => target.copy_from_slice(&header),
            }
            if same > 0 {
                // Only the TID differs from the previous tuple.
                target[VISIBILITY_BYTES - TID_BYTES..VISIBILITY_BYTES].copy_from_slice(&tid.to_bytes());
                same -= 1;
            }
        }
        Ok(())
    }
}
