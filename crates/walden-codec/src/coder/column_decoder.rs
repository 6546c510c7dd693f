//! Decodes only the columns of segments, for comparison with an independent decoder of `docs/format.md`.

use super::{Encoded, max_column_weight};
use crate::Corrupt;
use crate::column_kind::{Class, Form};
use crate::columns;
use crate::entropy::Unpacker;

/// Decodes columns, without the model of records.
#[derive(Default)]
pub struct ColumnDecoder {
    state: Option<(columns::Decoder, Unpacker)>,
}

/// One column of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnContent<'c> {
    /// Number of the column, in the order in which columns are created since the keyframe.
    pub number: usize,
    /// Class of the column. Columns of a class are compressed together.
    pub class: Class,
    /// 0: symbols; 1: bytes; *n*: rows of *n* - 1 bytes.
    pub form: u64,
    /// Bytes of the column in this segment.
    pub bytes: &'c [u8],
}

impl ColumnDecoder {
    /// Decodes the columns of a segment of `bytes` bytes. All earlier segments since its keyframe must be
    /// decoded first.
    ///
    /// # Errors
    /// Returns an error for content that no encoder writes.
    pub fn decode(&mut self, encoded: &Encoded, bytes: usize) -> Result<Vec<ColumnContent<'_>>, Corrupt> {
        if encoded.keyframe {
            self.state = None;
        }
        let fresh = || (columns::Decoder::default(), Unpacker::new(true));
        let (columns, unpacker) = self.state.get_or_insert_with(fresh);
        columns.chunk(unpacker, &encoded.content, max_column_weight(bytes))?;
        let content = |(number, (class, form, bytes)): (usize, (Class, Form, _))| ColumnContent {
            number,
            class,
            form: form.code(),
            bytes,
        };
        Ok(columns.contents().enumerate().map(content).filter(|column| !column.bytes.is_empty()).collect())
    }
}
