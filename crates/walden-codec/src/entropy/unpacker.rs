//! Decompresses columns.

use super::layout::{Columns, LaidOut, max_bytes};
use super::mixing::range_coder::{self, BinaryCoder};
use super::part::{
    CODER_DICTIONARY, CODER_LEARNED, CODER_MIXED, CODER_MIXED_COLUMNS, CODER_MIXED_DICTIONARY, CODER_STORED,
    CODER_ZSTD, CODER_ZSTD_PREFIX, Part,
};
use super::state::State;
use super::{DIRECTORY, FORM_BYTES, dictionary, zstd_coder};
use crate::column_kind::{Class, Form};
use crate::{Corrupt, corrupt};

const OTHER_LENGTH: Corrupt = Corrupt("cannot decompress a part: expected the length that it states");

/// Decompresses the output of a [`Packer`](super::Packer).
pub struct Unpacker {
    state: State,
    zstd: zstd_coder::Decompressor,
}

/// A column to decompress, from the directory of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ColumnEntry {
    /// Number of the column, in the order of creation.
    pub number: u32,
    /// Layout of its bytes.
    pub form: Form,
    /// Length in bytes.
    pub bytes: usize,
}

impl Unpacker {
    /// Creates an unpacker. `goes_on` is as in [`Packer::new`](super::Packer::new); true is always correct.
    pub fn new(goes_on: bool) -> Unpacker {
        Unpacker { state: State::new(goes_on), zstd: zstd_coder::Decompressor::default() }
    }

    /// Sets whether parts coded by context mixing are accepted.
    pub fn allow_mixing(mut self, is_allowed: bool) -> Unpacker {
        self.state.allow_mixing(is_allowed);
        self
    }

    /// Decompresses a directory of at most `max` bytes, and advances the input.
    pub fn directory(&mut self, input: &mut &[u8], max: usize) -> Result<Vec<u8>, Corrupt> {
        self.whole(DIRECTORY, input, max)
    }

    /// Decompresses a part of at most `max` bytes, and advances the input.
    pub fn part(&mut self, input: &mut &[u8], max: usize) -> Result<Vec<u8>, Corrupt> {
        self.whole(FORM_BYTES, input, max)
    }

    /// Decompresses the columns of a class, each with its stated length, and advances the input. Appends the
    /// columns to `out` and calls `place` with the offset of each, in order.
    pub fn class(
        &mut self,
        class: Class,
        columns: &[ColumnEntry],
        input: &mut &[u8],
        out: &mut Vec<u8>,
        mut place: impl FnMut(&ColumnEntry, usize),
    ) -> Result<(), Corrupt> {
        let max = max_bytes(columns.iter().map(|column| (column.form, column.bytes)));
        let part = Part::read(input, max)?;
        let start = out.len();
        let mut place_consecutively = || {
            columns.iter().fold(start, |at, column| {
                place(column, at);
                at + column.bytes
            });
        };
        if let CODER_MIXED_COLUMNS..CODER_MIXED = part.coder {
            let bytes = columns.iter().map(|column| column.bytes).sum::<usize>();
            if part.raw != bytes {
                return Err(corrupt("cannot decompress a part: expected the length of its columns"));
            }
            place_consecutively();
            out.resize(start + bytes, 0);
            let mut decoder = range_coder::Decoder::new(part.stored);
            self.mix(part.coder - CODER_MIXED_COLUMNS, class, columns, &mut decoder, &mut out[start..])?;
            return decoder.finish();
        }
        if let Some(effort) = part.learned_effort() {
            place_consecutively();
            let (content, chosen) = part.with_choices(&mut self.zstd)?;
            let mut laid_out = Columns::new(&content)?;
            for column in columns {
                laid_out.next(column.form, column.bytes)?.put(column.bytes, out);
            }
            laid_out.finish()?;
            let mut learner = range_coder::Learner { chosen: &chosen };
            return self.mix(effort, class, columns, &mut learner, &mut out[start..]);
        }
        self.content(class as usize, &part, max, out)?;
        if part.is_prefix() {
            self.state.remember(class as usize, &out[start..]);
        }
        find_columns(start, columns, out, place)
    }

    /// Codes columns in sequence by context mixing.
    fn mix(
        &mut self,
        effort: u8,
        class: Class,
        columns: &[ColumnEntry],
        coder: &mut impl BinaryCoder,
        bytes: &mut [u8],
    ) -> Result<(), Corrupt> {
        let mixer = self.state.mixer(effort)?;
        let mut remaining = bytes;
        for column in columns {
            let (bytes, after) = std::mem::take(&mut remaining).split_at_mut(column.bytes);
            mixer.column(coder, class as usize, column.number, column.form, bytes);
            remaining = after;
        }
        Ok(())
    }

    fn whole(&mut self, class: usize, input: &mut &[u8], max: usize) -> Result<Vec<u8>, Corrupt> {
        let part = Part::read(input, max)?;
        let mut content = Vec::new();
        self.content(class, &part, max, &mut content)?;
        if part.is_prefix() {
            self.state.remember(class, &content);
        }
        Ok(content)
    }

    /// Appends the content of a part to `out`.
    fn content(
        &mut self,
        class: usize,
        part: &Part<'_>,
        max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let start = out.len();
        match part.coder {
            CODER_DICTIONARY => {
                let mut coded = Vec::new();
                self.zstd.decompress(part.stored, &[], part.raw, &mut coded)?;
                if coded.len() != part.raw {
                    return Err(OTHER_LENGTH);
                }
                return dictionary::decode(&coded, max, out);
            }
            CODER_STORED => out.extend_from_slice(part.stored),
            CODER_ZSTD => self.zstd.decompress(part.stored, &[], part.raw, out)?,
            CODER_ZSTD_PREFIX => {
                self.zstd.decompress(part.stored, self.state.before(class), part.raw, out)?;
            }
            CODER_LEARNED..CODER_MIXED_COLUMNS => {
                let (mut content, chosen) = part.with_choices(&mut self.zstd)?;
                let mixer = self.state.mixer(part.coder - CODER_LEARNED)?;
                let mut learner = range_coder::Learner { chosen: &chosen };
                mixer.column(&mut learner, class, 0, Form::Bytes, &mut content);
                out.extend_from_slice(&content);
                return Ok(());
            }
            coder => {
                let content = self.mixed_content(class, part)?;
                if coder >= CODER_MIXED_DICTIONARY {
                    return dictionary::decode(&content, max, out);
                }
                out.extend_from_slice(&content);
            }
        }
        if out.len() - start != part.raw {
            return Err(OTHER_LENGTH);
        }
        Ok(())
    }

    /// Returns the content of a part that context mixing coded as one column.
    fn mixed_content(&mut self, class: usize, part: &Part<'_>) -> Result<Vec<u8>, Corrupt> {
        let first = match part.coder {
            CODER_MIXED_COLUMNS..CODER_MIXED => CODER_MIXED_COLUMNS,
            CODER_MIXED..CODER_MIXED_DICTIONARY => CODER_MIXED,
            _ => CODER_MIXED_DICTIONARY,
        };
        let effort = part
            .coder
            .checked_sub(first)
            .ok_or_else(|| corrupt("cannot decompress a part: expected a known coder"))?;
        let mut decoder = range_coder::Decoder::new(part.stored);
        let mixer = self.state.mixer(effort)?;
        let mut content = vec![0; part.raw];
        mixer.column(&mut decoder, class, 0, Form::Bytes, &mut content);
        decoder.finish()?;
        Ok(content)
    }
}

/// Finds the columns of a class in its content, which starts at `start`. Columns that are not transposed stay
/// in place. Transposed columns are appended as rows.
fn find_columns(
    start: usize,
    columns: &[ColumnEntry],
    out: &mut Vec<u8>,
    mut place: impl FnMut(&ColumnEntry, usize),
) -> Result<(), Corrupt> {
    let forms = columns.iter().map(|column| (column.form, column.bytes));
    let transposed = Columns::new(&out[start..])?.transposed_bytes(forms);
    let end = out.len();
    out.reserve(transposed);
    out.resize(end + transposed, 0);
    let (content, mut rows) = out[start..].split_at_mut(end - start);
    let mut laid_out = Columns::new(content)?;
    let mut rows_at = end;
    for column in columns {
        let before = laid_out.bytes_left();
        match laid_out.next(column.form, column.bytes)? {
            LaidOut::Bytes(_) => place(column, end - before),
            LaidOut::Planes(planes) => {
                let (these, others) = rows.split_at_mut(column.bytes);
                planes.transpose_back(these);
                place(column, rows_at);
                rows = others;
                rows_at += column.bytes;
            }
        }
    }
    laid_out.finish()
}
