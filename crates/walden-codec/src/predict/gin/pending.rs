//! Codes tuples of pending lists: predicted from the words of the text inserted directly before.

use walden_redo::page::index_tuple::{INDEX_SIZE_MASK, header, t_info};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::Relation;
use crate::predict::{Predictor, TupleCoder, expect_block_data};
use crate::tuple::gin::{HEADER, Tuples, is_pending, put_word, word_of};
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;
use walden_redo::page::tid::TID_BYTES;

/// Block data of a record that adds tuples to a pending list.
pub struct PendingTuples {
    /// The index.
    pub relation: Relation,
}

/// A tuple predicted from the next word.
const NEXT_WORD: u64 = 0;
/// An unpredicted tuple.
const OTHER: u64 = 1;
/// An unpredicted tuple with a TID other than the previous tuple's.
const OTHER_TID: u64 = 2;

/// Columns of pending tuples.
struct PendingColumns {
    tids: Column,
    forms: Column,
    sizes: Column,
    keys: Column,
}

/// Prediction of the next tuple.
struct Expected {
    /// TID of the previous tuple.
    tid: Tid,
    /// The text whose words are expected, by its rank from the latest.
    text: Option<usize>,
    /// Index of the next word.
    word: usize,
}

impl<S: Coder> Predictor<S> for PendingTuples {
    fn fits(&mut self, _: &mut TupleCoder<'_, S>, data: &[u8]) -> bool {
        is_pending(data)
    }

    fn code(
        &mut self,
        coder: &mut TupleCoder<'_, S>,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let relation = self.relation;
        let symbols = Kind::Symbols(Class::IndexTuples);
        let counts = coder.pending_column(relation, Topic::PendingCount, symbols)?;
        let count = source.map_or(0, |data| Tuples { data }.count() as u64);
        let count = coder.coder.symbol(counts, count)?;
        let tids = coder.pending_column(
            relation,
            Topic::PendingTids,
            Kind::Rows(Class::IndexTuples, TID_BYTES as u16),
        )?;
        let first = source.and_then(|data| Tuples { data }.next());
        let mut expected = coder.expected_word(relation, tids, first)?;
        let columns = PendingColumns {
            tids,
            forms: coder.pending_column(relation, Topic::PendingForms, symbols)?,
            sizes: coder.pending_column(relation, Topic::PendingSizes, symbols)?,
            keys: coder.pending_column(relation, Topic::PendingKeys, Kind::Bytes(Class::Text))?,
        };
        let mut tuples = source.map(|data| Tuples { data });
        let origin = out.len();
        for _ in 0..count {
            let tuple = tuples.as_mut().and_then(Iterator::next);
            let start = out.len();
            coder.pending_tuple(&columns, &mut expected, tuple, out)?;
            expect_block_data(out.len() - origin)?;
            coder.pending.add(relation.number, &out[start..]);
        }
        Ok(())
    }
}

impl<S: Coder> TupleCoder<'_, S> {
    fn pending_column(&mut self, relation: Relation, topic: Topic, kind: Kind) -> Result<Column, Corrupt> {
        self.keyed_columns.column(self.coder, topic, [relation.number, 0, 0], kind)
    }

    /// Codes the prediction of the first tuple: the last inserted heap tuple, and a word of a text.
    fn expected_word(
        &mut self,
        relation: Relation,
        tids: Column,
        first: Option<&[u8]>,
    ) -> Result<Expected, Corrupt> {
        let symbols = Kind::Symbols(Class::IndexTuples);
        let column = self.pending_column(relation, Topic::PendingLatest, symbols)?;
        let tid = first.and_then(Tid::read);
        let latest = self.keys.latest.filter(|latest| first.is_none() || tid == Some(*latest));
        let tid = match self.coder.symbol(column, latest.is_some().into())? {
            0 => self.pending_tid(tids, tid)?,
            _ => self
                .keys
                .latest
                .ok_or_else(|| corrupt("cannot decode a pending tuple: expected an earlier heap insert"))?,
        };
        // 0 for no text, else 1 + its rank; then the index of the word.
        let known = first.and_then(word_of).and_then(|word| {
            let mut texts = self.layouts.vectors.words().enumerate();
            texts.find_map(|(rank, words)| Some((rank, words.search(word).ok()?)))
        });
        let column = self.pending_column(relation, Topic::PendingVectors, symbols)?;
        let text = self.coder.symbol(column, known.map_or(0, |(rank, _)| rank as u64 + 1))?;
        let mut word = 0;
        if text > 0 {
            let column = self.pending_column(relation, Topic::PendingWords, symbols)?;
            word = self.coder.symbol(column, known.map_or(0, |(_, word)| word as u64))?;
        }
        let text = usize::try_from(text).unwrap_or(usize::MAX).checked_sub(1);
        Ok(Expected { tid, text, word: usize::try_from(word).unwrap_or(usize::MAX) })
    }

    /// Codes a tuple of a pending list and appends it to `out`.
    fn pending_tuple(
        &mut self,
        columns: &PendingColumns,
        expected: &mut Expected,
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let start = out.len();
        let words = expected.text.and_then(|rank| self.layouts.vectors.words().nth(rank));
        let word = words.and_then(|words| words.get(expected.word));
        let is_predicted = word.is_some_and(|word| put_word(expected.tid, word, out));
        let form = match source {
            Some(tuple) if is_predicted && out[start..] == *tuple => NEXT_WORD,
            _ if source.and_then(Tid::read) == Some(expected.tid) => OTHER,
            _ => OTHER_TID,
        };
        let form = match self.coder.symbol(columns.forms, form)? {
            NEXT_WORD if is_predicted => {
                expected.word += 1;
                return Ok(());
            }
            form @ (OTHER | OTHER_TID) => form,
            _ => return Err(corrupt("cannot decode a pending tuple: expected a known form")),
        };
        out.truncate(start);
        if form == OTHER_TID {
            expected.tid = self.pending_tid(columns.tids, source.and_then(Tid::read))?;
        }
        let info = self.coder.symbol(columns.sizes, source.and_then(t_info).unwrap_or(0).into())?;
        let info = u16::try_from(info)
            .map_err(|_| corrupt("cannot decode a pending tuple: expected a t_info with at least 8 bytes"))?;
        let len = usize::from(info & INDEX_SIZE_MASK).checked_sub(HEADER);
        let len = len.ok_or_else(|| {
            corrupt("cannot decode a pending tuple: expected a t_info with at least 8 bytes")
        })?;
        out.extend_from_slice(&header(expected.tid, info));
        self.coder.bytes(columns.keys, source.map_or(&[], |tuple| &tuple[HEADER..]), len, out)?;
        // The next words may be those after this one.
        let words = expected.text.and_then(|rank| self.layouts.vectors.words().nth(rank));
        if let Some((words, word)) = words.zip(word_of(&out[start..])) {
            expected.word = match words.search(word) {
                Ok(found) => found + 1,
                Err(next) => next,
            };
        }
        Ok(())
    }

    fn pending_tid(&mut self, column: Column, source: Option<Tid>) -> Result<Tid, Corrupt> {
        let bytes = source.map_or([0; TID_BYTES], Tid::to_bytes);
        Ok(Tid::from_bytes(&self.coder.array(column, &bytes)?))
    }
}
