//! Lays out the columns of a class as one content for a general compressor. Rows are stored as they are or
//! transposed into planes, and planes as they are, as deltas, or as a constant:
//!
//! ```text
//! forms       LEB128: bytes of forms that follow
//!             per column of rows: 1 byte: 0 as rows, 1 transposed into planes
//!             per plane: 1 byte: 0 plain, 1 deltas between consecutive bytes, 2 one byte for all rows
//! columns     in order: bytes as they are, or planes
//! ```

use super::content::Content;
use super::headed::WithHeader;
use super::plane_cost::Costs;
use super::transpose::{Plane, Planes, find_varying, transpose};
use crate::column_kind::Form;
use crate::leb128::{MAX_LEB128_BYTES, get_leb128, put_leb128};
use crate::{Corrupt, corrupt};

const LAYOUT_ROWS: u8 = 0;
const LAYOUT_TRANSPOSED: u8 = 1;

const PLANE_PLAIN: u8 = 0;
const PLANE_DELTA: u8 = 1;
const PLANE_CONSTANT: u8 = 2;

/// Minimum number of rows for which planes pay.
const MIN_ROWS: usize = 4;

/// Lays columns out.
#[derive(Default)]
pub struct Layout {
    forms: Vec<u8>,
    /// Space for the forms, then the columns.
    body: Vec<u8>,
    body_at: usize,
    /// Buffers.
    joined: Vec<u8>,
    varying: Vec<u8>,
    planes: Vec<u8>,
    delta: Vec<u8>,
    costs: Costs,
}

impl Layout {
    /// Creates a layout without columns, with memory for columns of these forms and lengths.
    pub fn new(columns: impl Iterator<Item = (Form, usize)> + Clone) -> Layout {
        let body_at = max_header(columns.clone());
        let mut body = Vec::with_capacity(body_at + columns.map(|(_, bytes)| bytes).sum::<usize>());
        body.resize(body_at, 0);
        Layout { body, body_at, ..Layout::default() }
    }

    /// Appends a column: rows as planes, unless there are few.
    pub fn push(&mut self, column: &Content) {
        match column.form {
            Form::Rows(width) => {
                let mut joined = std::mem::take(&mut self.joined);
                self.push_rows(column.joined(&mut joined), width.into());
                self.joined = joined;
            }
            Form::Symbols | Form::Bytes => {
                column.pieces().for_each(|piece| self.body.extend_from_slice(piece));
            }
        }
    }

    fn push_rows(&mut self, bytes: &[u8], width: usize) {
        let rows = bytes.len() / width;
        if rows < MIN_ROWS || !bytes.len().is_multiple_of(width) {
            self.forms.push(LAYOUT_ROWS);
            self.body.extend_from_slice(bytes);
            return;
        }
        self.forms.push(LAYOUT_TRANSPOSED);
        self.push_planes(bytes, width);
    }

    fn push_planes(&mut self, bytes: &[u8], width: usize) {
        let rows = bytes.len() / width;
        let Layout { forms, body, varying, planes, delta, costs, .. } = self;
        find_varying(bytes, width, varying);
        transpose(bytes, width, varying, planes);
        costs.start(rows);
        let mut planes = planes.chunks_exact(rows);
        for (&first, &varies) in bytes.iter().zip(&*varying) {
            let Some(plane) = (varies != 0).then(|| planes.next()).flatten() else {
                forms.push(PLANE_CONSTANT);
                body.push(first);
                continue;
            };
            delta.clear();
            delta.push(first);
            delta.extend(plane.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])));
            if costs.measure(delta) < costs.measure(plane) {
                forms.push(PLANE_DELTA);
                body.extend_from_slice(delta);
            } else {
                forms.push(PLANE_PLAIN);
                body.extend_from_slice(plane);
            }
        }
    }

    /// Returns the content with all columns.
    pub fn finish(self) -> WithHeader {
        let Layout { forms, body, body_at, .. } = self;
        let mut head = Vec::with_capacity(forms.len() + MAX_LEB128_BYTES);
        put_leb128(&mut head, forms.len() as u64);
        head.extend_from_slice(&forms);
        WithHeader::new(&head, body, body_at)
    }
}

/// Returns the maximum number of bytes for the forms of columns and their length.
fn max_header(columns: impl Iterator<Item = (Form, usize)>) -> usize {
    let bytes = columns.map(|(form, _)| match form {
        Form::Rows(width) => usize::from(width) + 1,
        _ => 0,
    });
    bytes.sum::<usize>() + MAX_LEB128_BYTES
}

/// Returns the maximum number of bytes for columns when laid out.
pub fn max_bytes(columns: impl Iterator<Item = (Form, usize)> + Clone) -> usize {
    max_header(columns.clone()) + columns.map(|(_, bytes)| bytes).sum::<usize>()
}

/// Reads columns from the output of a [`Layout`].
pub struct Columns<'a> {
    forms: &'a [u8],
    body: &'a [u8],
}

impl<'a> Columns<'a> {
    /// Starts at the first column.
    pub fn new(content: &'a [u8]) -> Result<Columns<'a>, Corrupt> {
        let mut input = content;
        let forms = usize::try_from(get_leb128(&mut input)?).unwrap_or(usize::MAX);
        let (forms, body) =
            input.split_at_checked(forms).ok_or_else(|| corrupt("cannot read a column: it is cut short"))?;
        Ok(Columns { forms, body })
    }

    /// Reads the next column, of `bytes` bytes.
    pub fn next(&mut self, form: Form, bytes: usize) -> Result<LaidOut<'a>, Corrupt> {
        let Form::Rows(width) = form else { return Ok(LaidOut::Bytes(self.body(bytes)?)) };
        let width = usize::from(width);
        match self.form()? {
            LAYOUT_ROWS => return Ok(LaidOut::Bytes(self.body(bytes)?)),
            LAYOUT_TRANSPOSED if width > 0 && bytes >= width && bytes.is_multiple_of(width) => {}
            _ => return Err(corrupt("cannot read a column: expected layout 0 or 1")),
        }
        let rows = bytes / width;
        let planes = (0..width).map(|_| self.plane(rows)).collect::<Result<Vec<_>, _>>()?;
        Ok(LaidOut::Planes(Planes { planes, width }))
    }

    /// Returns the total length of the transposed columns.
    pub fn transposed_bytes(&self, columns: impl Iterator<Item = (Form, usize)>) -> usize {
        let mut forms = self.forms.iter();
        let in_planes = |(form, bytes): (Form, usize)| {
            let Form::Rows(width) = form else { return 0 };
            match forms.next() {
                Some(&LAYOUT_TRANSPOSED) => {
                    forms.by_ref().take(width.into()).for_each(drop);
                    bytes
                }
                _ => 0,
            }
        };
        columns.map(in_planes).sum()
    }

    fn plane(&mut self, rows: usize) -> Result<Plane<'a>, Corrupt> {
        Ok(match self.form()? {
            PLANE_PLAIN => Plane::Plain(self.body(rows)?),
            PLANE_DELTA => Plane::Delta(self.body(rows)?, 0),
            PLANE_CONSTANT => Plane::Constant(self.body(1)?[0]),
            _ => return Err(corrupt("cannot read a plane: expected form 0 to 2")),
        })
    }

    /// Returns the number of column bytes that were not read yet.
    pub fn bytes_left(&self) -> usize {
        self.body.len()
    }

    /// Checks that everything was read.
    pub fn finish(&self) -> Result<(), Corrupt> {
        let empty = self.forms.is_empty() && self.body.is_empty();
        if empty { Ok(()) } else { Err(corrupt("cannot read columns: expected no bytes after the last")) }
    }

    fn form(&mut self) -> Result<u8, Corrupt> {
        let (&form, after) =
            self.forms.split_first().ok_or_else(|| corrupt("cannot read a column: it is cut short"))?;
        self.forms = after;
        Ok(form)
    }

    fn body(&mut self, bytes: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, after) = self
            .body
            .split_at_checked(bytes)
            .ok_or_else(|| corrupt("cannot read a column: it is cut short"))?;
        self.body = after;
        Ok(taken)
    }
}

/// A column in the layout.
pub enum LaidOut<'a> {
    Bytes(&'a [u8]),
    Planes(Planes<'a>),
}

impl LaidOut<'_> {
    /// Appends the column to `out`.
    pub fn put(self, bytes: usize, out: &mut Vec<u8>) {
        match self {
            LaidOut::Bytes(bytes) => out.extend_from_slice(bytes),
            LaidOut::Planes(planes) => {
                let start = out.len();
                out.resize(start + bytes, 0);
                planes.transpose_back(&mut out[start..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_kind::Class;

    fn laid_out(columns: &[(Form, Vec<u8>)]) -> Vec<u8> {
        let mut layout = Layout::new(columns.iter().map(|(form, bytes)| (*form, bytes.len())));
        let column = |(form, bytes): &(Form, Vec<u8>)| Content::from_bytes(Class::Text, *form, bytes);
        columns.iter().for_each(|of| layout.push(&column(of)));
        layout.finish().to_vec()
    }

    #[test]
    fn each_layout_is_read_back() {
        let count = |at: u32| at.to_le_bytes();
        let columns = [
            (Form::Rows(4), (7..2000).flat_map(count).collect()),
            (Form::Rows(3), [1, 2, 3].repeat(900)),
            (Form::Rows(4), (0..3).flat_map(count).collect()),
            (Form::Rows(4), vec![1, 2, 3, 4, 5]),
            (Form::Rows(9), b"some text and more of it ".repeat(9000)),
            (Form::Symbols, vec![1, 2, 0x81, 3]),
            (Form::Bytes, Vec::new()),
        ];
        let content = laid_out(&columns);
        assert!(content.len() <= max_bytes(columns.iter().map(|(form, bytes)| (*form, bytes.len()))));
        let mut back = Columns::new(&content).unwrap();
        for (form, bytes) in &columns {
            let mut taken = vec![7];
            back.next(*form, bytes.len()).unwrap().put(bytes.len(), &mut taken);
            assert_eq!(taken[1..], *bytes);
        }
        back.finish().unwrap();
    }

    #[test]
    fn constant_planes_take_a_byte() {
        // Forms: their length, the layout, three planes.
        assert_eq!(laid_out(&[(Form::Rows(3), [7, 8, 9].repeat(1000))]).len(), 1 + 1 + 3 + 3);
    }

    #[test]
    fn columns_that_are_cut_short_are_refused() {
        let column =
            (Form::Rows(2), (0..500).collect::<Vec<u16>>().iter().flat_map(|at| at.to_le_bytes()).collect());
        let content = laid_out(std::slice::from_ref(&column));
        for len in 0..content.len() {
            let taken =
                Columns::new(&content[..len]).and_then(|mut back| back.next(Form::Rows(2), 1000).map(drop));
            assert!(taken.is_err());
        }
    }
}
