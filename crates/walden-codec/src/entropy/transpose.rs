//! Transposes rows into planes (all first bytes of the rows, all second bytes, ...) and back.

/// Bytes of rows that are transposed in one go, so that they stay in the fastest cache.
const BLOCK_BYTES: usize = 16 << 10;

/// Transposed rows: one plane for each byte position.
pub struct Planes<'a> {
    /// The planes, one for each byte position of a row.
    pub planes: Vec<Plane<'a>>,
    /// Width of a row in bytes.
    pub width: usize,
}

impl Planes<'_> {
    /// Writes the rows to `rows`: reverses the transposition.
    pub fn transpose_back(self, rows: &mut [u8]) {
        transpose_back(self.planes, self.width, rows);
    }
}

/// Finds the positions whose byte differs between rows: `varying` is not 0 for these.
pub fn find_varying(bytes: &[u8], width: usize, varying: &mut Vec<u8>) {
    // Several narrow rows are compared in one go.
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

/// Transposes the positions that vary into consecutive planes.
pub fn transpose(bytes: &[u8], width: usize, varying: &[u8], planes: &mut Vec<u8>) {
    let rows = bytes.len() / width;
    let positions: Vec<usize> = varying
        .iter()
        .enumerate()
        .filter(|(_, varies)| **varies != 0)
        .map(|(position, _)| position)
        .collect();
    planes.resize(positions.len() * rows, 0);
    let at_once = (BLOCK_BYTES / width).max(1);
    for (number, block) in bytes.chunks(at_once * width).enumerate() {
        for (plane, &position) in planes.chunks_exact_mut(rows).zip(&positions) {
            let places = plane[number * at_once..].iter_mut();
            places.zip(block[position..].iter().step_by(width)).for_each(|(place, &byte)| *place = byte);
        }
    }
}

/// A plane that is read while rows are transposed back.
pub enum Plane<'a> {
    /// Bytes as they are.
    Plain(&'a [u8]),
    /// Differences, and the byte before the first.
    Delta(&'a [u8], u8),
    /// One byte for all rows.
    Constant(u8),
}

impl Plane<'_> {
    /// Returns the byte of all rows, if the plane is constant.
    fn constant(&self) -> Option<u8> {
        if let Plane::Constant(byte) = self { Some(*byte) } else { None }
    }

    /// Copies its next bytes.
    fn next(&mut self, lane: &mut [u8]) {
        match self {
            Plane::Plain(bytes) | Plane::Delta(bytes, _) => {
                let (now, later) = bytes.split_at(lane.len());
                match (lane.first_chunk_mut::<BUFFERED_ROWS>(), now.first_chunk()) {
                    (Some(lane), Some(now)) => *lane = *now,
                    _ => lane.copy_from_slice(now),
                }
                *bytes = later;
            }
            Plane::Constant(byte) => lane.fill(*byte),
        }
        if let Plane::Delta(_, last) = self {
            add_up(lane, last);
        }
    }
}

/// Replaces each byte by the sum of `sum` and all bytes up to it, eight bytes per step.
fn add_up(bytes: &mut [u8], sum: &mut u8) {
    /// The number 1 in each 16 bits. Multiplication by this constant replaces each of four 16-bit numbers by
    /// the sum of the numbers up to it.
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

/// Number of rows and positions that are transposed in one go.
const LANES: usize = 8;
/// Number of rows whose planes are buffered.
const BUFFERED_ROWS: usize = 64;

/// Writes the rows of planes to `rows`.
fn transpose_back(mut planes: Vec<Plane<'_>>, width: usize, rows: &mut [u8]) {
    /// Maximum number of varying planes in a group for which writing them one by one is faster.
    const FEW: usize = 3;
    let mut lanes = [[0; BUFFERED_ROWS]; LANES];
    let all = rows.len() / width;
    for first in (0..all).step_by(BUFFERED_ROWS) {
        let count = BUFFERED_ROWS.min(all - first);
        // Starts with the last planes of a row: bytes written beyond the row are overwritten by the first
        // planes of the next one.
        for (number, planes) in planes.chunks_mut(LANES).enumerate().rev() {
            planes.iter_mut().zip(&mut lanes).for_each(|(plane, lane)| plane.next(&mut lane[..count]));
            let rows = &mut rows[first * width + number * LANES..];
            let is_constant = planes.iter().map(|plane| plane.constant().is_some());
            if is_constant.clone().filter(|is_constant| !is_constant).count() <= FEW {
                let all = std::array::from_fn(|at| planes.get(at).and_then(Plane::constant).unwrap_or(0));
                for row in 0..count {
                    put(u64::from_le_bytes(all), &mut rows[row * width..], planes.len());
                }
                for (at, (lane, _)) in
                    lanes.iter().zip(is_constant).enumerate().filter(|(_, (_, is_constant))| !is_constant)
                {
                    let places = rows[at..].iter_mut().step_by(width);
                    places.zip(&lane[..count]).for_each(|(place, byte)| *place = *byte);
                }
                continue;
            }
            for at in (0..count).step_by(LANES) {
                let eight = |lane: &[u8; BUFFERED_ROWS]| *lane[at..].first_chunk().expect("a multiple of it");
                let transposed = transpose_8x8(lanes.each_ref().map(|lane| u64::from_le_bytes(eight(lane))));
                for (row, transposed) in transposed.into_iter().enumerate().take(count - at) {
                    put(transposed, &mut rows[(at + row) * width..], planes.len());
                }
            }
        }
    }
}

/// Transposes eight rows of eight bytes, lowest byte first.
#[inline]
fn transpose_8x8([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h]: [u64; LANES]) -> [u64; LANES] {
    // Swaps quarters of the matrix across the diagonal, then quarters of the quarters.
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

/// Writes the `count` lowest bytes. If there is space, writes all eight, which needs no branch.
#[inline]
fn put(transposed: u64, place: &mut [u8], count: usize) {
    match place.first_chunk_mut() {
        Some(eight) => *eight = transposed.to_le_bytes(),
        None => place[..count].copy_from_slice(&transposed.to_le_bytes()[..count]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_width_come_back_from_planes_of_all_kinds() {
        for width in 1..=40_usize {
            for rows in [4, 7, 8, 9, 16, 1000 / width + 5, BLOCK_BYTES / width + 3] {
                let byte = |row: usize, position: usize| match (row + position * 5 + width) % 11 {
                    _ if position % 4 == 1 => position as u8,
                    _ if position % 4 == 2 => (row * position) as u8,
                    other => (other * other * 37 + row / 3) as u8,
                };
                let bytes = (0..rows).flat_map(|row| (0..width).map(move |position| byte(row, position)));
                let column: Vec<u8> = bytes.collect();
                let mut planes = Vec::new();
                for position in 0..width {
                    let plane: Vec<u8> = (0..rows).map(|row| byte(row, position)).collect();
                    planes.push((position % 3 == 0, plane));
                }
                let differences: Vec<Vec<u8>> = planes.iter().map(|(_, plane)| differences(plane)).collect();
                let given = planes.iter().zip(&differences).map(|((is_difference, plane), differences)| {
                    match is_difference {
                        true => Plane::Delta(differences, 0),
                        false if plane.iter().all(|byte| *byte == plane[0]) => Plane::Constant(plane[0]),
                        false => Plane::Plain(plane),
                    }
                });
                let mut back = vec![7; column.len()];
                transpose_back(given.collect(), width, &mut back);
                assert!(back == column, "{rows} rows of {width}");
            }
        }
    }

    fn differences(plane: &[u8]) -> Vec<u8> {
        let before = std::iter::once(&0).chain(plane);
        plane.iter().zip(before).map(|(byte, before)| byte.wrapping_sub(*before)).collect()
    }
}
