//! Columns laid out for a general compressor: rows as they are, or turned into planes, and planes into differences.
//!
//! The columns of a class, laid out:
//!
//! ```text
//! forms       LEB128: bytes of forms that follow
//!             per column of rows: 1 byte: 0 as they are, 1 planes (all first bytes of rows, all second ones, ...)
//!             per plane: 1 byte: 0 as it is, 1 each byte less the one before, 2 one byte for all
//! columns     one after another: bytes as they are, or planes
//! ```

use super::general::{Compressor, Effort};
use super::headed::Headed;
use crate::columns::{Content, Form, MAX_NUMBER_BYTES, get_number, put_number};
use crate::{Corrupt, corrupt};

const LAYOUT_ROWS: u8 = 0;
const LAYOUT_PLANES: u8 = 1;

const PLANE_SAME: u8 = 0;
const PLANE_DIFFERENCE: u8 = 1;
const PLANE_STILL: u8 = 2;

/// Below this many rows, planes are too short to be worth their forms.
const MIN_ROWS: usize = 4;

/// Bytes of rows that are turned into planes, or back, at a time: they stay in the fastest cache.
const TURNED: usize = 16 << 10;

/// Lays columns out.
#[derive(Default)]
pub struct Layout {
    forms: Vec<u8>,
    /// After as many bytes as forms may take, the columns.
    body: Vec<u8>,
    body_at: usize,
    /// For use within.
    joined: Vec<u8>,
    varying: Vec<u8>,
    planes: Vec<u8>,
    difference: Vec<u8>,
    costs: Costs,
}

impl Layout {
    /// Nothing yet, with room for such columns.
    pub fn new(columns: impl Iterator<Item = (Form, usize)> + Clone) -> Layout {
        let body_at = most_head(columns.clone());
        let mut body = Vec::with_capacity(body_at + columns.map(|(_, bytes)| bytes).sum::<usize>());
        body.resize(body_at, 0);
        Layout { body, body_at, ..Layout::default() }
    }

    /// Appends a column with the layout that promises fewest bytes.
    pub fn push(&mut self, column: &Content, zstd: &mut Compressor) {
        match column.form {
            Form::Rows(width) => {
                let mut joined = std::mem::take(&mut self.joined);
                self.push_rows(column.joined(&mut joined), width.into(), zstd);
                self.joined = joined;
            }
            Form::Symbols | Form::Bytes => {
                column.pieces().for_each(|piece| self.body.extend_from_slice(piece));
            }
        }
    }

    fn push_rows(&mut self, bytes: &[u8], width: usize, zstd: &mut Compressor) {
        let rows = bytes.len() / width;
        if rows < MIN_ROWS || !bytes.len().is_multiple_of(width) {
            self.forms.push(LAYOUT_ROWS);
            self.body.extend_from_slice(bytes);
            return;
        }
        let (forms, body) = (self.forms.len(), self.body.len());
        self.forms.push(LAYOUT_PLANES);
        self.push_planes(bytes, width);
        if rows_are_better(bytes, &self.body[body..], zstd) {
            self.forms.truncate(forms);
            self.body.truncate(body);
            self.forms.push(LAYOUT_ROWS);
            self.body.extend_from_slice(bytes);
        }
    }

    fn push_planes(&mut self, bytes: &[u8], width: usize) {
        let rows = bytes.len() / width;
        let Layout { forms, body, varying, planes, difference, costs, .. } = self;
        find_varying(bytes, width, varying);
        turn(bytes, width, varying, planes);
        costs.start(rows);
        let mut planes = planes.chunks_exact(rows);
        for (&first, &varies) in bytes.iter().zip(&*varying) {
            let Some(plane) = (varies != 0).then(|| planes.next()).flatten() else {
                forms.push(PLANE_STILL);
                body.push(first);
                continue;
            };
            difference.clear();
            difference.push(first);
            difference.extend(plane.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])));
            if costs.of(difference) < costs.of(plane) {
                forms.push(PLANE_DIFFERENCE);
                body.extend_from_slice(difference);
            } else {
                forms.push(PLANE_SAME);
                body.extend_from_slice(plane);
            }
        }
    }

    /// All columns, as they are compressed.
    pub fn finish(self) -> Headed {
        let Layout { forms, body, body_at, .. } = self;
        let mut head = Vec::with_capacity(forms.len() + MAX_NUMBER_BYTES);
        put_number(&mut head, forms.len() as u64);
        head.extend_from_slice(&forms);
        Headed::new(&head, body, body_at)
    }
}

/// How many bytes the forms of columns take at most, with their number.
fn most_head(columns: impl Iterator<Item = (Form, usize)>) -> usize {
    let most = columns.map(|(form, _)| match form {
        Form::Rows(width) => usize::from(width) + 1,
        _ => 0,
    });
    most.sum::<usize>() + MAX_NUMBER_BYTES
}

/// How many bytes columns have at most when laid out.
pub fn most_bytes(columns: impl Iterator<Item = (Form, usize)> + Clone) -> usize {
    most_head(columns.clone()) + columns.map(|(_, bytes)| bytes).sum::<usize>()
}

/// The way back.
pub struct Columns<'a> {
    forms: &'a [u8],
    body: &'a [u8],
}

impl<'a> Columns<'a> {
    /// Of what [`Layout`] laid out.
    pub fn new(content: &'a [u8]) -> Result<Columns<'a>, Corrupt> {
        let mut rest = content;
        let forms = usize::try_from(get_number(&mut rest)?).unwrap_or(usize::MAX);
        let (forms, body) = rest.split_at_checked(forms).ok_or_else(|| corrupt("a column is cut short"))?;
        Ok(Columns { forms, body })
    }

    /// Takes a column of so many bytes off.
    pub fn take(&mut self, form: Form, bytes: usize) -> Result<Taken<'a>, Corrupt> {
        let Form::Rows(width) = form else { return Ok(Taken::Bytes(self.body(bytes)?)) };
        let width = usize::from(width);
        match self.form()? {
            LAYOUT_ROWS => return Ok(Taken::Bytes(self.body(bytes)?)),
            LAYOUT_PLANES if width > 0 && bytes >= width && bytes.is_multiple_of(width) => {}
            _ => return Err(corrupt("a column's layout is unknown")),
        }
        let rows = bytes / width;
        let planes = (0..width).map(|_| self.plane(rows)).collect::<Result<Vec<_>, _>>()?;
        Ok(Taken::Planes(Planes { planes, width }))
    }

    /// How many bytes the columns have together that will be taken off as planes.
    pub fn bytes_in_planes(&self, columns: impl Iterator<Item = (Form, usize)>) -> usize {
        let mut forms = self.forms.iter();
        let in_planes = |(form, bytes): (Form, usize)| {
            let Form::Rows(width) = form else { return 0 };
            match forms.next() {
                Some(&LAYOUT_PLANES) => {
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
            PLANE_SAME => Plane::Same(self.body(rows)?),
            PLANE_DIFFERENCE => Plane::Difference(self.body(rows)?, 0),
            PLANE_STILL => Plane::Still(self.body(1)?[0]),
            _ => return Err(corrupt("a plane's form is unknown")),
        })
    }

    /// Bytes that are not taken off yet.
    pub fn bytes_left(&self) -> usize {
        self.body.len()
    }

    /// Checks that nothing is left.
    pub fn finish(&self) -> Result<(), Corrupt> {
        let empty = self.forms.is_empty() && self.body.is_empty();
        if empty { Ok(()) } else { Err(corrupt("bytes that belong to no column")) }
    }

    fn form(&mut self) -> Result<u8, Corrupt> {
        let (&form, rest) = self.forms.split_first().ok_or_else(|| corrupt("a column is cut short"))?;
        self.forms = rest;
        Ok(form)
    }

    fn body(&mut self, bytes: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) =
            self.body.split_at_checked(bytes).ok_or_else(|| corrupt("a column is cut short"))?;
        self.body = rest;
        Ok(taken)
    }
}

/// A column, taken off.
pub enum Taken<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// What they are to be made of.
    Planes(Planes<'a>),
}

/// The planes of rows.
pub struct Planes<'a> {
    planes: Vec<Plane<'a>>,
    width: usize,
}

impl Planes<'_> {
    /// The rows, in the place of anything.
    pub fn turn_back(self, rows: &mut [u8]) {
        turn_back(self.planes, self.width, rows);
    }
}

impl Taken<'_> {
    /// Appends the column to `out`.
    pub fn put(self, bytes: usize, out: &mut Vec<u8>) {
        match self {
            Taken::Bytes(bytes) => out.extend_from_slice(bytes),
            Taken::Planes(planes) => {
                let start = out.len();
                out.resize(start + bytes, 0);
                planes.turn_back(&mut out[start..]);
            }
        }
    }
}

/// Which positions of rows are not the same in all: not 0 for these.
fn find_varying(bytes: &[u8], width: usize, varying: &mut Vec<u8>) {
    // As many rows at a time as make the comparison worth its while.
    let firsts = bytes[..width].repeat((64 / width).max(1));
    let mut differing = vec![0_u8; firsts.len()];
    for rows in bytes.chunks(firsts.len()) {
        for ((differing, byte), first) in differing.iter_mut().zip(rows).zip(&firsts) {
            *differing |= byte ^ first;
        }
    }
    varying.clear();
    varying.resize(width, 0);
    for row in differing.chunks_exact(width) {
        varying.iter_mut().zip(row).for_each(|(varying, differing)| *varying |= differing);
    }
}

/// The planes of the positions that vary, one after another.
fn turn(bytes: &[u8], width: usize, varying: &[u8], planes: &mut Vec<u8>) {
    let rows = bytes.len() / width;
    let positions: Vec<usize> = varying
        .iter()
        .enumerate()
        .filter(|(_, varies)| **varies != 0)
        .map(|(position, _)| position)
        .collect();
    planes.resize(positions.len() * rows, 0);
    let at_once = (TURNED / width).max(1);
    for (number, block) in bytes.chunks(at_once * width).enumerate() {
        for (plane, &position) in planes.chunks_exact_mut(rows).zip(&positions) {
            let places = plane[number * at_once..].iter_mut();
            places.zip(block[position..].iter().step_by(width)).for_each(|(place, &byte)| *place = byte);
        }
    }
}

/// A plane, taken off.
enum Plane<'a> {
    Same(&'a [u8]),
    /// And the byte that the first of these is to be added to.
    Difference(&'a [u8], u8),
    Still(u8),
}

impl Plane<'_> {
    /// The byte that it has in all rows.
    fn still(&self) -> Option<u8> {
        if let Plane::Still(byte) = self { Some(*byte) } else { None }
    }

    /// Its next bytes.
    fn next(&mut self, lane: &mut [u8]) {
        match self {
            Plane::Same(bytes) | Plane::Difference(bytes, _) => {
                let (now, later) = bytes.split_at(lane.len());
                match (lane.first_chunk_mut::<AT_HAND>(), now.first_chunk()) {
                    (Some(lane), Some(now)) => *lane = *now,
                    _ => lane.copy_from_slice(now),
                }
                *bytes = later;
            }
            Plane::Still(byte) => lane.fill(*byte),
        }
        if let Plane::Difference(_, last) = self {
            add_up(lane, last);
        }
    }
}

/// Makes each byte the sum of those up to it, and of what was before the first.
fn add_up(bytes: &mut [u8], sum: &mut u8) {
    /// One in each 16 bits: times this, each of four numbers becomes the sum of those up to it.
    const EACH: u64 = 0x0001_0001_0001_0001;
    const EVEN: u64 = 0xFF * EACH;
    let (eights, rest) = bytes.as_chunks_mut::<8>();
    for bytes in eights {
        let all = u64::from_le_bytes(*bytes);
        let (even, odd) = ((all & EVEN).wrapping_mul(EACH), (all >> 8 & EVEN).wrapping_mul(EACH));
        let before = u64::from(*sum) * EACH;
        let (at_even, at_odd) = (before + even + (odd << 16), before + even + odd);
        *bytes = (at_even & EVEN | (at_odd & EVEN) << 8).to_le_bytes();
        *sum = sum.wrapping_add(((even + odd) >> 48) as u8);
    }
    for byte in rest {
        *sum = sum.wrapping_add(*byte);
        *byte = *sum;
    }
}

/// Rows, and positions in them, that are turned at once.
const LANES: usize = 8;
/// Rows of which the planes are at hand.
const AT_HAND: usize = 64;

/// Rows of planes, in the place of anything.
fn turn_back(mut planes: Vec<Plane<'_>>, width: usize, rows: &mut [u8]) {
    /// So many planes that vary, of as many as are turned at once, are sooner written one by one.
    const FEW: usize = 3;
    let mut lanes = [[0; AT_HAND]; LANES];
    let all = rows.len() / width;
    for first in (0..all).step_by(AT_HAND) {
        let count = AT_HAND.min(all - first);
        // The last planes of a row first: what is written beyond it is where the next row's are not yet.
        for (number, planes) in planes.chunks_mut(LANES).enumerate().rev() {
            planes.iter_mut().zip(&mut lanes).for_each(|(plane, lane)| plane.next(&mut lane[..count]));
            let rows = &mut rows[first * width + number * LANES..];
            let still = planes.iter().map(|plane| plane.still().is_some());
            if still.clone().filter(|still| !still).count() <= FEW {
                let all = std::array::from_fn(|at| planes.get(at).and_then(Plane::still).unwrap_or(0));
                for row in 0..count {
                    put(u64::from_le_bytes(all), &mut rows[row * width..], planes.len());
                }
                for (at, (lane, _)) in lanes.iter().zip(still).enumerate().filter(|(_, (_, still))| !still) {
                    let places = rows[at..].iter_mut().step_by(width);
                    places.zip(&lane[..count]).for_each(|(place, byte)| *place = *byte);
                }
                continue;
            }
            for at in (0..count).step_by(LANES) {
                let eight = |lane: &[u8; AT_HAND]| *lane[at..].first_chunk().expect("a multiple of it");
                let turned = transposed(lanes.each_ref().map(|lane| u64::from_le_bytes(eight(lane))));
                for (row, turned) in turned.into_iter().enumerate().take(count - at) {
                    put(turned, &mut rows[(at + row) * width..], planes.len());
                }
            }
        }
    }
}

/// Eight rows of eight bytes, the first the lowest, into columns.
#[inline]
fn transposed([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h]: [u64; LANES]) -> [u64; LANES] {
    // Halves of rows change places, then halves of these: what is above the diagonal with what is below it.
    let swap = |upper: &mut u64, lower: &mut u64, bits: u32, mask: u64| {
        let differing = (*upper >> bits ^ *lower) & mask;
        *upper ^= differing << bits;
        *lower ^= differing;
    };
    let halves = |upper: &mut u64, lower: &mut u64| swap(upper, lower, 32, 0xFFFF_FFFF);
    let quarters = |upper: &mut u64, lower: &mut u64| swap(upper, lower, 16, 0xFFFF_0000_FFFF);
    let eighths = |upper: &mut u64, lower: &mut u64| swap(upper, lower, 8, 0x00FF_00FF_00FF_00FF);
    halves(&mut a, &mut e);
    halves(&mut b, &mut f);
    halves(&mut c, &mut g);
    halves(&mut d, &mut h);
    quarters(&mut a, &mut c);
    quarters(&mut b, &mut d);
    quarters(&mut e, &mut g);
    quarters(&mut f, &mut h);
    eighths(&mut a, &mut b);
    eighths(&mut c, &mut d);
    eighths(&mut e, &mut f);
    eighths(&mut g, &mut h);
    [a, b, c, d, e, f, g, h]
}

/// Writes the lowest bytes, so many of them, and others after them if there is room for all eight: that takes no branch.
#[inline]
fn put(turned: u64, place: &mut [u8], count: usize) {
    match place.first_chunk_mut() {
        Some(eight) => *eight = turned.to_le_bytes(),
        None => place[..count].copy_from_slice(&turned.to_le_bytes()[..count]),
    }
}

/// Text compresses better along the row than across rows: tried on a sample.
fn rows_are_better(rows: &[u8], planes: &[u8], zstd: &mut Compressor) -> bool {
    const SAMPLE: usize = 32 << 10;
    let mut sample = |bytes: &[u8]| {
        let middle = bytes.len() / 2;
        let start = middle.saturating_sub(SAMPLE / 2);
        let sample = &bytes[start..(start + SAMPLE).min(bytes.len())];
        // Of all of it, if planes were left out.
        zstd.compress(sample, &[], Effort { level: 1, is_text: false })
            .map_or(sample.len(), |packed| packed.len()) as u64
            * bytes.len() as u64
            / sample.len().max(1) as u64
    };
    rows.len() > SAMPLE && sample(rows) < sample(planes)
}

/// Bits that an order-0 coder would need, about, in 1/16. Only encoding asks, so it may differ between machines.
struct Costs {
    /// How long planes are.
    total: usize,
    /// What a byte that comes so often costs, once it is known.
    by_count: Vec<u64>,
    /// How often each byte comes, in two tables, as the same byte often comes twice in a row. Zeros between planes.
    counts: [[u32; 256]; 2],
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { total: 0, by_count: Vec::new(), counts: [[0; 256]; 2] }
    }
}

impl Costs {
    /// More frequent bytes are few.
    const KNOWN: usize = 1024;
    const UNKNOWN: u64 = u64::MAX;
    /// Planes up to this length have their bytes looked at again, instead of all that there may be.
    const SHORT: usize = 192;

    /// For planes of so many bytes.
    fn start(&mut self, total: usize) {
        if total != self.total {
            self.total = total;
            self.by_count.clear();
            self.by_count.resize(Costs::KNOWN.min(total + 1), Costs::UNKNOWN);
        }
    }

    fn of(&mut self, plane: &[u8]) -> u64 {
        let (pairs, last) = plane.as_chunks::<2>();
        for [first, second] in pairs {
            self.counts[0][usize::from(*first)] += 1;
            self.counts[1][usize::from(*second)] += 1;
        }
        for &last in last {
            self.counts[0][usize::from(last)] += 1;
        }
        let mut sum = 0;
        if plane.len() <= Costs::SHORT {
            plane.iter().for_each(|&byte| sum += self.of_byte(byte));
        } else {
            (0..=255).for_each(|byte| sum += self.of_byte(byte));
        }
        sum
    }

    /// What all bytes with this value cost, which are forgotten.
    #[inline]
    fn of_byte(&mut self, byte: u8) -> u64 {
        let [first, second] = &mut self.counts;
        let at = usize::from(byte);
        let count = std::mem::take(&mut first[at]) + std::mem::take(&mut second[at]);
        if count == 0 {
            return 0;
        }
        let total = self.total as f32;
        let cost = || (count as f32 * (total / count as f32).log2() * 16.0) as u64;
        match self.by_count.get_mut(count as usize) {
            Some(known) if *known != Costs::UNKNOWN => *known,
            Some(unknown) => {
                *unknown = cost();
                *unknown
            }
            None => cost(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Class;

    fn laid_out(columns: &[(Form, Vec<u8>)]) -> Vec<u8> {
        let mut layout = Layout::new(columns.iter().map(|(form, bytes)| (*form, bytes.len())));
        let mut zstd = Compressor::default();
        let column = |(form, bytes): &(Form, Vec<u8>)| Content::of(Class::Text, *form, bytes);
        columns.iter().for_each(|of| layout.push(&column(of), &mut zstd));
        layout.finish().to_vec()
    }

    #[test]
    fn each_layout_comes_back() {
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
        assert!(content.len() <= most_bytes(columns.iter().map(|(form, bytes)| (*form, bytes.len()))));
        let mut back = Columns::new(&content).unwrap();
        for (form, bytes) in &columns {
            let mut taken = vec![7];
            back.take(*form, bytes.len()).unwrap().put(bytes.len(), &mut taken);
            assert_eq!(taken[1..], *bytes);
        }
        back.finish().unwrap();
    }

    #[test]
    fn rows_of_every_width_come_back_from_planes_of_all_kinds() {
        for width in 1..=40_usize {
            for rows in [4, 7, 8, 9, 16, 1000 / width + 5, TURNED / width + 3] {
                let byte = |row: usize, position: usize| match (row + position * 5 + width) % 11 {
                    _ if position % 4 == 1 => position as u8,
                    _ if position % 4 == 2 => (row * position) as u8,
                    other => (other * other * 37 + row / 3) as u8,
                };
                let bytes = (0..rows).flat_map(|row| (0..width).map(move |position| byte(row, position)));
                let column = (Form::Rows(width as u16), bytes.collect::<Vec<u8>>());
                let mut planes = Vec::new();
                for position in 0..width {
                    let plane: Vec<u8> = (0..rows).map(|row| byte(row, position)).collect();
                    planes.push((position % 3 == 0, plane));
                }
                let differences: Vec<Vec<u8>> = planes.iter().map(|(_, plane)| differences(plane)).collect();
                let given = planes.iter().zip(&differences).map(|((is_difference, plane), differences)| {
                    match is_difference {
                        true => Plane::Difference(differences, 0),
                        false if plane.iter().all(|byte| *byte == plane[0]) => Plane::Still(plane[0]),
                        false => Plane::Same(plane),
                    }
                });
                let mut back = vec![7; column.1.len()];
                turn_back(given.collect(), width, &mut back);
                assert!(back == column.1, "{rows} rows of {width}");
            }
        }
    }

    fn differences(plane: &[u8]) -> Vec<u8> {
        let before = std::iter::once(&0).chain(plane);
        plane.iter().zip(before).map(|(byte, before)| byte.wrapping_sub(*before)).collect()
    }

    #[test]
    fn still_planes_take_a_byte() {
        // Forms: their number, the layout, three planes.
        assert_eq!(laid_out(&[(Form::Rows(3), [7, 8, 9].repeat(1000))]).len(), 1 + 1 + 3 + 3);
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let column =
            (Form::Rows(2), (0..500).collect::<Vec<u16>>().iter().flat_map(|at| at.to_le_bytes()).collect());
        let content = laid_out(std::slice::from_ref(&column));
        for len in 0..content.len() {
            let taken =
                Columns::new(&content[..len]).and_then(|mut back| back.take(Form::Rows(2), 1000).map(drop));
            assert!(taken.is_err());
        }
    }
}
