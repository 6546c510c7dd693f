//! Predicts keys of index tuples from their heap tuples, and finds the table of an index.

use super::key_mapping::KeyMapping;
use super::keys::Scratch;
use super::{Context, IndexContext, keys};
use crate::column_kind::{Class, Kind};
use crate::columns::Coder;
use crate::predict::TupleCoder;
use crate::predict::attributes::LayoutKey;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::Relation;
use crate::tuple::heap::HeapTuple;
use crate::tuple::schema::Span;
use crate::{Corrupt, corrupt};
use walden_redo::page::Tid;
use walden_redo::page::index_tuple::INDEX_SIZE_MASK;

/// Maximum length of a key in an index tuple.
const MAX_KEY_BYTES: usize = INDEX_SIZE_MASK as usize;

/// A predicted key.
const KEY_PREDICTED: u64 = 0;

/// An unpredicted key.
const KEY_OTHER: u64 = 1;

/// A key that is predicted by a new mapping, which follows.
const KEY_NEW_MAPPING: u64 = 2;

impl<S: Coder> TupleCoder<'_, S> {
    /// Reads a heap tuple to which an index may refer. Returns its layout, and sets its attributes and their
    /// spans.
    fn heap_tuple_at(
        &mut self,
        table: Relation,
        tid: Tid,
        tuple: &mut Vec<u8>,
        spans: &mut Vec<Span>,
    ) -> Option<LayoutKey> {
        let parts = HeapTuple::parse(keys::heap_tuple(self.store, table, tid)?)?;
        let (layout, attributes) = self.heap_headers.layout_of(table.number, parts);
        tuple.clear();
        tuple.extend_from_slice(attributes);
        self.layouts.read(layout, tuple, spans).then_some(layout)
    }

    /// Codes a key as predicted from its heap tuple and appends it to `out`. Returns false if it is not
    /// predicted. `layouts` has the layout of the index tuple and its null bitmap.
    pub(super) fn predicted_key(
        &mut self,
        (relation, tid): (Relation, Tid),
        layouts: (u32, u64),
        source: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Corrupt> {
        let Some(table) = self.keys.index(relation.number).table else { return Ok(false) };
        let mut scratch = std::mem::take(&mut self.keys.scratch);
        let is_predicted = match self.heap_tuple_at(table, tid, &mut scratch.tuple, &mut scratch.spans) {
            Some(tuple_layout) => self.mapped_key(relation, layouts, tuple_layout, source, &mut scratch)?,
            None => false,
        };
        if is_predicted {
            out.extend_from_slice(&scratch.key);
        }
        self.keys.scratch = scratch;
        Ok(is_predicted)
    }

    /// Codes whether the mapping builds the key from the heap tuple, and a new mapping if one does.
    fn mapped_key(
        &mut self,
        relation: Relation,
        (layout, bitmap): (u32, u64),
        tuple_layout: LayoutKey,
        source: Option<&[u8]>,
        Scratch { tuple, spans, key }: &mut Scratch,
    ) -> Result<bool, Corrupt> {
        // The layouts of keys without truncated attributes differ only in their null attributes.
        let layout = if layout & 0xFFFF == 0 { bitmap as u32 } else { return Ok(false) };
        let (column_key, kind) = ([relation.number, 0, 0], Kind::Symbols(Class::IndexTuples));
        let column = self.keyed_columns.column(self.coder, Topic::IndexKeys, column_key, kind)?;
        let index = self.keys.index(relation.number);
        let known = index.mapping(layout, tuple_layout);
        let is_made = known.is_some_and(|mapping| mapping.key(tuple, spans, MAX_KEY_BYTES, key));
        let mut new = None;
        let symbol = source.map_or(KEY_OTHER, |source| {
            if is_made && key == source {
                return KEY_PREDICTED;
            }
            let fields = self.layouts.fields(tuple_layout);
            new = index.look_for_mapping((layout, tuple_layout), source, (tuple, spans), fields);
            if new.is_some() { KEY_NEW_MAPPING } else { KEY_OTHER }
        });
        match self.coder.symbol(column, symbol)? {
            KEY_PREDICTED if is_made => Ok(true),
            KEY_OTHER => Ok(false),
            KEY_NEW_MAPPING => {
                let kind = Kind::Symbols(Class::Shapes);
                let column = self.keyed_columns.column(self.coder, Topic::Mappings, [0; 3], kind)?;
                let mapping = KeyMapping::code(self.coder, column, new.as_ref())?;
                if !mapping.key(tuple, spans, MAX_KEY_BYTES, key) {
                    return Err(corrupt(
                        "cannot decode a key mapping: expected fields that the heap tuple has",
                    ));
                }
                self.keys.set_mapping(relation.number, (layout, tuple_layout), mapping)?;
                Ok(true)
            }
            _ => Err(corrupt("cannot decode an index key: expected a known form")),
        }
    }

    /// Codes the table of an index, at certain numbers of tuples.
    pub(super) fn look_for_table(
        &mut self,
        IndexContext { relation, context }: IndexContext,
        tid: Tid,
        source: Option<&[u8]>,
    ) -> Result<(), Corrupt> {
        let index = self.keys.index(relation.number);
        if context != Context::Record || index.table.is_some() {
            return Ok(());
        }
        if let Some(key) = source {
            index.remember(tid, key);
        }
        if !index.is_time() {
            return Ok(());
        }
        let samples: Vec<(Tid, Vec<u8>)> = match source {
            Some(_) => index.recent().map(|(tid, key)| (tid, key.to_vec())).collect(),
            None => Vec::new(),
        };
        let found = self.table_of(relation, &samples);
        self.table(relation, found)
    }

    /// Codes the table of an index, if it was found.
    pub(super) fn table(&mut self, relation: Relation, found: Option<Relation>) -> Result<(), Corrupt> {
        let column =
            self.keyed_columns.column(self.coder, Topic::Tables, [0; 3], Kind::Symbols(Class::Shapes))?;
        let symbol = self.coder.symbol(column, found.map_or(0, |table| 1 + u64::from(table.number)))?;
        if symbol > 0 {
            let table = self.keys.table_by_number(symbol - 1).ok_or_else(|| {
                corrupt("cannot decode an index's table: expected the number of a known one")
            })?;
            self.keys.set_table(relation.number, table);
        }
        Ok(())
    }

    /// Returns the table whose heap tuples have these keys.
    pub(super) fn table_of(&mut self, relation: Relation, samples: &[(Tid, Vec<u8>)]) -> Option<Relation> {
        const MIN_SAMPLES: usize = 3;
        if samples.len() < MIN_SAMPLES {
            return None;
        }
        'tables: for table in self.keys.candidates(relation) {
            let mut tuples = Vec::new();
            for (tid, key) in samples {
                let (mut tuple, mut spans) = (Vec::new(), Vec::new());
                if let Some(layout) = self.heap_tuple_at(table, *tid, &mut tuple, &mut spans) {
                    tuples.push((layout, &key[..], tuple, spans));
                }
            }
            if tuples.len() < MIN_SAMPLES || tuples.len() * 2 < samples.len() {
                continue;
            }
            let layouts: Vec<LayoutKey> = tuples.iter().map(|tuple| tuple.0).collect();
            for layout in layouts {
                let same = tuples.iter().filter(|tuple| tuple.0 == layout);
                let same = same.map(|(_, key, tuple, spans)| (*key, &tuple[..], &spans[..]));
                if KeyMapping::infer(same, self.layouts.fields(layout)).is_none() {
                    continue 'tables;
                }
            }
            return Some(table);
        }
        None
    }
}
