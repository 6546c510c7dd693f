//! Tuples of pending lists.

use crate::columns::{Class, Coder, Column, Kind};
use crate::predict::TupleCoder;
use crate::predict::names::Topic;
use crate::predict::relation::Relation;
use crate::tuple::gin::{HEADER, SIZE, Tuples, info_of, put_word, word_of};
use crate::tuple::tid::RowPlace;
use crate::{Corrupt, corrupt};

impl<S: Coder> TupleCoder<'_, S> {
    /// Codes the tuples that a record puts into a pending list.
    pub fn pending(
        &mut self,
        relation: Relation,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        /// How a tuple is told: by the next word, not at all, or not even of the same row as the last one.
        const NEXT: u64 = 0;
        const OTHER: u64 = 1;
        const OTHER_ROW: u64 = 2;
        let like = |what: u32| [relation.number, what, 0];
        let symbols = Kind::Symbols(Class::IndexTuples);
        let mut tuples = source.map(|data| Tuples { data });
        let counts = self.names.column(self.coder, Topic::Pending, like(0), symbols)?;
        let count = tuples.as_ref().map_or(0, |tuples| Tuples { data: tuples.data }.count() as u64);
        let count = self.coder.symbol(counts, count)?;
        let first = source.and_then(|data| Tuples { data }.next());
        let rows = Kind::Rows(Class::IndexTuples, RowPlace::BYTES as u16);
        let rows = self.names.column(self.coder, Topic::Pending, like(1), rows)?;
        let column = self.names.column(self.coder, Topic::Pending, like(2), symbols)?;
        // The row: the one that was put into a table last, or any.
        let row = first.and_then(RowPlace::of);
        let latest = self.keys.latest.filter(|latest| source.is_none_or(|_| row == Some(*latest)));
        let mut row = match self.coder.symbol(column, latest.is_some().into())? {
            0 => self.place(rows, row)?,
            _ => self.keys.latest.ok_or_else(|| corrupt("there is no latest row"))?,
        };
        // Its words, and where in them: 0 for none, else 1 + which vector, and how many words are left out.
        let key = first.and_then(word_of);
        let known = key.and_then(|key| {
            let mut vectors = self.rows.vectors.words().enumerate();
            vectors.find_map(|(rank, words)| Some((rank, words.search(key).ok()?)))
        });
        let column = self.names.column(self.coder, Topic::Pending, like(3), symbols)?;
        let rank = self.coder.symbol(column, known.map_or(0, |(rank, _)| rank as u64 + 1))?;
        let mut at = 0;
        if rank > 0 {
            let column = self.names.column(self.coder, Topic::Pending, like(4), symbols)?;
            at = self.coder.symbol(column, known.map_or(0, |(_, at)| at as u64))?;
        }
        let mut at = usize::try_from(at).unwrap_or(usize::MAX);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let forms = self.names.column(self.coder, Topic::Pending, like(5), symbols)?;
        let sizes = self.names.column(self.coder, Topic::Pending, like(6), symbols)?;
        let keys = Kind::Bytes(Class::Text);
        let keys = self.names.column(self.coder, Topic::Pending, like(7), keys)?;
        for _ in 0..count {
            let tuple = tuples.as_mut().and_then(Iterator::next);
            let start = out.len();
            let vector = rank.checked_sub(1).and_then(|rank| self.rows.vectors.words().nth(rank));
            let word = vector.and_then(|words| words.get(at));
            let told = word.is_some_and(|word| put_word(row, word, out));
            let same_row = tuple.and_then(RowPlace::of) == Some(row);
            let form = match tuple {
                Some(tuple) if told && out[start..] == *tuple => NEXT,
                _ if same_row => OTHER,
                _ => OTHER_ROW,
            };
            match self.coder.symbol(forms, form)? {
                NEXT if told => at += 1,
                form @ (OTHER | OTHER_ROW) => {
                    out.truncate(start);
                    if form == OTHER_ROW {
                        row = self.place(rows, tuple.and_then(RowPlace::of))?;
                    }
                    let info =
                        self.coder.symbol(sizes, tuple.map_or(0, |tuple| u64::from(info_of(tuple))))?;
                    let info = u16::try_from(info).map_err(|_| corrupt("a tuple's size can't be"))?;
                    let len = usize::from(info & SIZE).checked_sub(HEADER);
                    let len = len.ok_or_else(|| corrupt("a tuple's size can't be"))?;
                    out.extend_from_slice(&row.to_bytes());
                    out.extend_from_slice(&info.to_le_bytes());
                    self.coder.bytes(keys, tuple.map_or(&[], |tuple| &tuple[HEADER..]), len, out)?;
                    // The words that follow may be those after it.
                    let vector = rank.checked_sub(1).and_then(|rank| self.rows.vectors.words().nth(rank));
                    if let Some((words, key)) = vector.zip(word_of(&out[start..])) {
                        at = match words.search(key) {
                            Ok(found) => found + 1,
                            Err(next) => next,
                        };
                    }
                }
                _ => return Err(corrupt("a pending tuple can't be told")),
            }
            self.pending.add(relation.number, &out[start..]);
        }
        Ok(())
    }

    fn place(&mut self, column: Column, source: Option<RowPlace>) -> Result<RowPlace, Corrupt> {
        let bytes = source.map_or([0; RowPlace::BYTES], RowPlace::to_bytes);
        Ok(RowPlace::from_bytes(self.coder.array(column, &bytes)?))
    }
}
