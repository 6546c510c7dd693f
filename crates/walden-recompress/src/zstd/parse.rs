//! Decodes a frame into its sequences, for tests. The frame must come from libzstd: its content is trusted.

use super::Sequence;

/// Returns the sequences of a frame of one block; `None` if the block is not compressed.
pub(super) fn sequences(frame: &[u8]) -> Option<Vec<Sequence>> {
    assert_eq!(frame[..4], [0x28, 0xB5, 0x2F, 0xFD]);
    let header = [6, 7][usize::from(frame[4] >> 6)];
    let word = u32::from_le_bytes([frame[header], frame[header + 1], frame[header + 2], 0]);
    assert_eq!(word & 1, 1, "the last block");
    let block = &frame[header + 3..];
    match word >> 1 & 3 {
        0 => None,
        2 => {
            assert_eq!(block.len(), (word >> 3) as usize);
            Some(section(&block[literals(block)..]))
        }
        kind => panic!("a block of kind {kind}"),
    }
}

/// Returns the length of the literals section.
fn literals(block: &[u8]) -> usize {
    let mut word = [0; 8];
    let len = block.len().min(8);
    word[..len].copy_from_slice(&block[..len]);
    let word = u64::from_le_bytes(word);
    let (kind, format) = (word & 3, word >> 2 & 3);
    if kind < 2 {
        let (header, len) = match format {
            0 | 2 => (1, word >> 3 & 0x1F),
            1 => (2, word >> 4 & 0xFFF),
            _ => (3, word >> 4 & 0xF_FFFF),
        };
        return header + if kind == 0 { len as usize } else { 1 };
    }
    let (header, bits) = [(3, 10), (3, 10), (4, 14), (5, 18)][format as usize];
    header + (word >> (4 + bits) & ((1 << bits) - 1)) as usize
}

#[rustfmt::skip]
const LITERALS: ([i16; 36], u32) = ([
    4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
], 6);
#[rustfmt::skip]
const OFFSETS: ([i16; 29], u32) = ([
    1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
], 5);
#[rustfmt::skip]
const COPIED: ([i16; 53], u32) = ([
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
], 6);

fn section(section: &[u8]) -> Vec<Sequence> {
    let (count, mut at) = match section[0] {
        few @ 0..128 => (usize::from(few), 1),
        high @ 128..255 => (usize::from(high - 128) << 8 | usize::from(section[1]), 2),
        255 => (0x7F00 + usize::from(section[1]) + (usize::from(section[2]) << 8), 3),
    };
    if count == 0 {
        assert_eq!(section.len(), at);
        return Vec::new();
    }
    let modes = section[at];
    at += 1;
    let mut tables = Vec::new();
    for (shift, known, log) in
        [(6, &LITERALS.0[..], LITERALS.1), (4, &OFFSETS.0[..], OFFSETS.1), (2, &COPIED.0[..], COPIED.1)]
    {
        tables.push(match modes >> shift & 3 {
            0 => table(known, log),
            1 => {
                at += 1;
                (0, vec![State { symbol: section[at - 1], bits: 0, next: 0 }])
            }
            2 => {
                let (shares, log, len) = shares(&section[at..]);
                at += len;
                table(&shares, log)
            }
            mode => panic!("mode {mode}"),
        });
    }
    let mut bits = BackwardBits::new(&section[at..]);
    let [literals, offsets, copied] = &tables[..] else { unreachable!() };
    let mut states = [bits.take(literals.0), bits.take(offsets.0), bits.take(copied.0)];
    let mut sequences = Vec::new();
    for left in (0..count).rev() {
        let now = [&literals.1[states[0]], &offsets.1[states[1]], &copied.1[states[2]]];
        let offset = 1 << now[1].symbol | bits.take(u32::from(now[1].symbol));
        let (base, open) = value(&COPIED_OPEN, 3, now[2].symbol);
        let copied_len = base + bits.take(open);
        let (base, open) = value(&LITERALS_OPEN, 0, now[0].symbol);
        let literals_len = base + bits.take(open);
        sequences.push(Sequence {
            literals: literals_len as u32,
            offset: offset as u32,
            copied: copied_len as u32,
        });
        if left > 0 {
            let [l, o, c] = now.map(|state| (state.next, state.bits));
            states[0] = l.0 + bits.take(l.1);
            states[2] = c.0 + bits.take(c.1);
            states[1] = o.0 + bits.take(o.1);
        }
    }
    assert_eq!(bits.left, 0, "all bits are read");
    sequences
}

/// Numbers of extra bits of consecutive codes: number of codes, extra bits of each.
const LITERALS_OPEN: [(usize, u32); 16] = [
    (16, 0),
    (4, 1),
    (2, 2),
    (2, 3),
    (1, 4),
    (1, 6),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 10),
    (1, 11),
    (1, 12),
    (1, 13),
    (1, 14),
    (1, 15),
    (1, 16),
];
const COPIED_OPEN: [(usize, u32); 16] = [
    (32, 0),
    (4, 1),
    (2, 2),
    (2, 3),
    (2, 4),
    (1, 5),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 10),
    (1, 11),
    (1, 12),
    (1, 13),
    (1, 14),
    (1, 15),
    (1, 16),
];

/// Returns the lowest value of a code, and the number of its extra bits.
fn value(open: &[(usize, u32)], mut least: usize, code: u8) -> (usize, u32) {
    let mut bits = open.iter().flat_map(|&(codes, bits)| std::iter::repeat_n(bits, codes));
    for bits in bits.by_ref().take(usize::from(code)) {
        least += 1 << bits;
    }
    (least, bits.next().unwrap())
}

#[derive(Clone, Copy, Default)]
struct State {
    symbol: u8,
    bits: u32,
    next: usize,
}

/// Builds the decoder's table.
fn table(shares: &[i16], log: u32) -> (u32, Vec<State>) {
    let len = 1_usize << log;
    let mut states = vec![State::default(); len];
    let mut end = len;
    for (symbol, _) in shares.iter().enumerate().filter(|(_, share)| **share == -1) {
        end -= 1;
        states[end].symbol = symbol as u8;
    }
    let mut at = 0;
    for (symbol, &share) in shares.iter().enumerate() {
        for _ in 0..share.max(0) {
            states[at].symbol = symbol as u8;
            at = (at + len / 2 + len / 8 + 3) % len;
            while at >= end {
                at = (at + len / 2 + len / 8 + 3) % len;
            }
        }
    }
    let mut next: Vec<usize> = shares.iter().map(|share| usize::from(share.unsigned_abs())).collect();
    for state in &mut states {
        let next = &mut next[usize::from(state.symbol)];
        state.bits = log - next.ilog2();
        state.next = (*next << state.bits) - len;
        *next += 1;
    }
    (log, states)
}

/// Reads the normalized counts of a table. Returns them, the table log, and the length of the description.
fn shares(bytes: &[u8]) -> (Vec<i16>, u32, usize) {
    let mut at = 0;
    let bits = |at: usize, count: u32| {
        (0..count as usize)
            .map(|bit| (i32::from(bytes[(at + bit) / 8]) >> ((at + bit) % 8) & 1) << bit)
            .sum::<i32>()
    };
    let log = bits(at, 4) as u32 + 5;
    at += 4;
    let mut left = (1 << log) + 1;
    let mut shares = Vec::new();
    while left > 1 {
        let width = 32 - (left as u32).leading_zeros();
        let spared = (1 << width) - 1 - left;
        let mut value = bits(at, width - 1);
        if value < spared {
            at += width as usize - 1;
        } else {
            value = bits(at, width);
            at += width as usize;
            if value >= 1 << (width - 1) {
                value -= spared;
            }
        }
        let share = value as i16 - 1;
        left -= i32::from(share.abs());
        shares.push(share);
        if share == 0 {
            loop {
                let more = bits(at, 2);
                at += 2;
                shares.extend(std::iter::repeat_n(0, more as usize));
                if more < 3 {
                    break;
                }
            }
        }
    }
    (shares, log, at.div_ceil(8))
}

/// Reads bits from the end of a stream.
struct BackwardBits<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl BackwardBits<'_> {
    fn new(bytes: &[u8]) -> BackwardBits<'_> {
        let mark = bytes[bytes.len() - 1].ilog2() as usize;
        BackwardBits { bytes, left: (bytes.len() - 1) * 8 + mark }
    }

    fn take(&mut self, count: u32) -> usize {
        self.left -= count as usize;
        let bit = |at: usize| usize::from(self.bytes[at / 8] >> (at % 8) & 1);
        (0..count as usize).map(|at| bit(self.left + at) << at).sum()
    }
}
