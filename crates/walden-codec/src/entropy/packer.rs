//! Compresses columns.

use super::content::Content;
use super::headed::WithHeader;
use super::layout::Layout;
use super::level::{self, Method, SECOND_LEVEL, SMALL, SMALL_LEVEL, effort_of};
use super::mixing::range_coder;
use super::part::{
    CODER_DICTIONARY, CODER_LEARNED, CODER_MIXED, CODER_MIXED_COLUMNS, CODER_MIXED_DICTIONARY, CODER_STORED,
    CODER_ZSTD, CODER_ZSTD_PREFIX, MAX_MIXING_RATIO, put_part,
};
use super::state::State;
use super::{DIRECTORY, FORM_BYTES, dictionary, zstd_coder};
use crate::column_kind::{Class, Form};
use crate::leb128::put_leb128;

/// Compresses columns. Keeps state after each chunk that improves the compression of the next chunk.
pub struct Packer {
    method: Method,
    state: State,
    zstd: zstd_coder::Compressor,
}

/// A column to code by context mixing: its number, form and bytes.
type MixedColumn<'c> = (u32, Form, &'c mut Vec<u8>);

/// Content compressed by zstd.
struct Compressed {
    coder: u8,
    raw: usize,
    stored: Vec<u8>,
}

impl Compressed {
    /// Returns whether the content is so small that context mixing would only cost time.
    fn is_tiny(&self) -> bool {
        self.stored.len() * 400 < self.raw
    }

    fn put(self, state: &mut State, class: usize, content: &[u8], out: &mut Vec<u8>) {
        put_part(self.coder, self.raw, &self.stored, out);
        if self.coder != CODER_DICTIONARY && level::has_prefix(class) {
            state.remember(class, content);
        }
    }
}

impl Packer {
    /// Creates a packer of a level from 1 to 9, or 0 for bytes without columns. `goes_on` is whether another
    /// chunk, or another part of a class, may follow.
    pub fn new(level: u8, goes_on: bool) -> Packer {
        Packer {
            method: Method::for_level(level),
            state: State::new(goes_on),
            zstd: zstd_coder::Compressor::default(),
        }
    }

    /// Appends a directory of columns as a part.
    pub fn directory(&mut self, directory: &[u8], out: &mut Vec<u8>) {
        self.content(DIRECTORY, directory, out);
    }

    /// Appends bytes as one part.
    pub fn part(&mut self, content: &[u8], out: &mut Vec<u8>) {
        self.content(FORM_BYTES, content, out);
    }

    /// Appends the columns of a class as a part, and clears them.
    pub fn class(&mut self, class: Class, columns: &mut [&mut Content], out: &mut Vec<u8>) {
        let laid_out = self.lay_out(columns);
        match self.method {
            Method::Zstd(_) => {
                // Compression needs the memory of the columns.
                columns.iter_mut().for_each(|column| column.clear());
                self.compress(class as usize, &laid_out).put(&mut self.state, class as usize, &laid_out, out);
            }
            Method::Mixing(effort) if class == Class::Text => self.text(effort, &laid_out, out),
            Method::Mixing(effort) => {
                let mut copies: Vec<Vec<u8>> =
                    columns.iter().map(|column| column.pieces().collect::<Vec<_>>().concat()).collect();
                let mut mixed: Vec<MixedColumn<'_>> = columns
                    .iter()
                    .zip(&mut copies)
                    .map(|(column, bytes)| (column.number, column.form, bytes))
                    .collect();
                self.smaller(effort, class as usize, &laid_out, &mut mixed, out);
            }
        }
        columns.iter_mut().for_each(|column| column.clear());
    }

    fn lay_out(&mut self, columns: &[&mut Content]) -> WithHeader {
        let forms = columns.iter().map(|column| (column.form, column.len()));
        let mut layout = Layout::new(forms);
        columns.iter().for_each(|column| layout.push(column));
        layout.finish()
    }

    /// Codes all text as one content by context mixing: similar text is spread over columns.
    fn text(&mut self, effort: u8, content: &[u8], out: &mut Vec<u8>) {
        let class = Class::Text as usize;
        let compressed = self.compress(class, content);
        if compressed.is_tiny() {
            return compressed.put(&mut self.state, class, content, out);
        }
        let (coder, mut content) = match dictionary::encode(content) {
            Some(coded) => (CODER_MIXED_DICTIONARY, coded.to_vec()),
            None => (CODER_MIXED, content.to_vec()),
        };
        let raw = content.len();
        let (stored, _) = self.mix(effort, class, &mut [(0, Form::Bytes, &mut content)]);
        put_part(coder + effort, raw, &stored, out);
    }

    fn content(&mut self, class: usize, content: &[u8], out: &mut Vec<u8>) {
        match self.method {
            Method::Zstd(_) => self.compress(class, content).put(&mut self.state, class, content, out),
            Method::Mixing(effort) => {
                let mut copy = content.to_vec();
                self.smaller(effort, class, content, &mut [(0, Form::Bytes, &mut copy)], out);
            }
        }
    }

    /// Appends the content of a class coded by zstd, or its columns coded by context mixing, whichever result
    /// is smaller.
    fn smaller(
        &mut self,
        effort: u8,
        class: usize,
        content: &[u8],
        columns: &mut [MixedColumn<'_>],
        out: &mut Vec<u8>,
    ) {
        let compressed = self.compress(class, content);
        if compressed.is_tiny() {
            return compressed.put(&mut self.state, class, content, out);
        }
        let raw = columns.iter().map(|(_, _, bytes)| bytes.len()).sum();
        let (mixed, chosen) = self.mix(effort, class, columns);
        let level = if compressed.stored.len() < SMALL { SMALL_LEVEL } else { SECOND_LEVEL };
        match self.zstd.compress(content, &[], effort_of(class, level)) {
            Some(zstd) if compressed.stored.len() < mixed.len() && zstd.len() < mixed.len() => {
                let min_bytes = content.len().div_ceil(MAX_MIXING_RATIO);
                let learned = self
                    .learned(&chosen, &zstd)
                    .filter(|learned| learned.len() < mixed.len() && learned.len() >= min_bytes);
                match learned {
                    Some(learned) => put_part(CODER_LEARNED + effort, content.len(), &learned, out),
                    None => put_part(CODER_MIXED_COLUMNS + effort, raw, &mixed, out),
                }
            }
            _ => put_part(CODER_MIXED_COLUMNS + effort, raw, &mixed, out),
        }
    }

    /// Returns the stored bytes of a zstd part that context mixing learns afterwards.
    pub(super) fn learned(&mut self, chosen: &[u8], zstd: &[u8]) -> Option<Vec<u8>> {
        let stored = match chosen {
            [] => Vec::new(),
            _ => self.zstd.compress(chosen, &[], effort_of(FORM_BYTES, SMALL_LEVEL))?,
        };
        let mut learned = Vec::new();
        put_leb128(&mut learned, chosen.len() as u64);
        put_leb128(&mut learned, stored.len() as u64);
        learned.extend(stored);
        learned.extend_from_slice(zstd);
        Some(learned)
    }

    /// Codes columns by context mixing. Returns the coded bytes and the encoder's choices.
    pub(super) fn mix(
        &mut self,
        effort: u8,
        class: usize,
        columns: &mut [MixedColumn<'_>],
    ) -> (Vec<u8>, Vec<u8>) {
        let raw: usize = columns.iter().map(|(_, _, bytes)| bytes.len()).sum();
        let mut encoder = range_coder::Encoder::new();
        if let Ok(mixer) = self.state.mixer(effort) {
            for (number, form, bytes) in columns {
                mixer.column(&mut encoder, class, *number, *form, bytes);
            }
        }
        let chosen = std::mem::take(&mut encoder.chosen);
        (encoder.finish(raw.div_ceil(MAX_MIXING_RATIO)), chosen)
    }

    /// Returns zstd's level for a content: a lower one if that makes a sample smaller. In random text, more
    /// effort finds short matches that cost more than they save.
    fn level_for(&mut self, class: usize, level: i32, content: &[u8]) -> i32 {
        let Some((sample, lower)) = level::alternative(class, level, content) else { return level };
        let mut len =
            |level| self.zstd.compress(sample, &[], effort_of(class, level)).map(|bytes| bytes.len());
        let (at_lower, at_level) = (len(lower), len(level));
        if at_lower.is_some() && at_lower < at_level { lower } else { level }
    }

    /// Compresses a content without context mixing.
    fn compress(&mut self, class: usize, content: &[u8]) -> Compressed {
        let (level, is_mixing) = match self.method {
            Method::Zstd(level) => (level, false),
            Method::Mixing(_) => (SECOND_LEVEL, true),
        };
        if !is_mixing
            && level::has_words(class, level)
            && let Some(coded) = dictionary::encode(content)
            && let level = self.level_for(class, level, &coded)
            && let Some(stored) = self.zstd.compress(&coded, &[], effort_of(class, level))
        {
            return Compressed { coder: CODER_DICTIONARY, raw: coded.len(), stored };
        }
        let level = if is_mixing { level } else { self.level_for(class, level, content) };
        let prefix = match level::has_prefix(class) {
            true => level::prefix_for(content.len(), self.state.before(class)),
            false => &[],
        };
        let coder = if prefix.is_empty() { CODER_ZSTD } else { CODER_ZSTD_PREFIX };
        let mut stored = self.zstd.compress(content, prefix, effort_of(class, level));
        if let Some(first) = &stored
            && is_mixing
            && first.len() < SMALL
            && let Some(second) = self.zstd.compress(content, prefix, effort_of(class, SMALL_LEVEL))
            && second.len() < first.len()
        {
            stored = Some(second);
        }
        match stored {
            Some(stored) if stored.len() < content.len() => Compressed { coder, raw: content.len(), stored },
            _ => Compressed { coder: CODER_STORED, raw: content.len(), stored: content.to_vec() },
        }
    }
}
