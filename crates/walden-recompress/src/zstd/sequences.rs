//! The sequences section of a block: three FSE-coded codes for each sequence (literals length, offset, match
//! length), and their extra bits.

use super::bits::BitWriter;
use super::fse::{self, MAX_SYMBOLS, Table};
use super::{Release, Sequence};

/// Indexes of the three codes, in the order of their tables.
const LITERALS: usize = 0;
const OFFSET: usize = 1;
const COPIED: usize = 2;

/// Minimum length of a match.
pub(super) const SHORTEST: u32 = 3;

/// Parameters of one of the three codes.
struct Kind {
    /// The predefined normalized counts, and the table log of the predefined table.
    known: &'static [i16],
    known_log: u32,
    /// The largest table log.
    most_log: u32,
}

#[rustfmt::skip]
const KINDS: [Kind; 3] = [
    Kind {
        known: &[
            4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1,
            -1, -1, -1, -1,
        ],
        known_log: 6,
        most_log: 9,
    },
    Kind {
        known: &[
            1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
        ],
        known_log: 5,
        most_log: 8,
    },
    Kind {
        known: &[
            1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
        ],
        known_log: 6,
        most_log: 9,
    },
];

/// Extra bits of literals length codes from code 16 on; lower codes are the value itself.
const LITERALS_OPEN: [u8; 20] = [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// Extra bits of match length codes from code 32 on.
const COPIED_OPEN: [u8; 21] = [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Extra bits by code.
const LITERALS_BITS: [u8; 64] = open_bits(16, &LITERALS_OPEN);
const COPIED_BITS: [u8; 64] = open_bits(32, &COPIED_OPEN);
/// Codes by value; above, each power of two has a code.
const LITERALS_CODES: [u8; 64] = codes(&LITERALS_BITS);
const COPIED_CODES: [u8; 128] = codes(&COPIED_BITS);

/// Encodes sequences; its tables are reused from call to call.
pub(super) struct Sequences {
    known: [Table; 3],
    made: [Table; 3],
    codes: Vec<[u8; 3]>,
}

impl Default for Sequences {
    fn default() -> Sequences {
        Sequences {
            known: KINDS.map(|kind| Table::build(kind.known, kind.known_log)),
            made: Default::default(),
            codes: Vec::new(),
        }
    }
}

/// The origin of a code's table in the decoder (`Symbol_Compression_Modes`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Known = 0,
    One = 1,
    Described = 2,
}

impl Sequences {
    /// Appends the section. Returns false if the library would store the block raw; the target may then have
    /// part of it.
    pub(super) fn section(&mut self, release: Release, sequences: &[Sequence], target: &mut Vec<u8>) -> bool {
        match sequences.len() {
            few @ 0..128 => target.push(few as u8),
            some @ 128..0x7F00 => target.extend_from_slice(&[(some >> 8) as u8 | 0x80, some as u8]),
            many => {
                target.push(0xFF);
                target.extend_from_slice(&((many - 0x7F00) as u16).to_le_bytes());
            }
        }
        let Some((last, before)) = sequences.split_last() else { return true };
        let mut counts = [[0_u32; MAX_SYMBOLS]; 3];
        self.codes.clear();
        self.codes.extend(sequences.iter().map(codes_of));
        for codes in &self.codes {
            for (counts, &code) in counts.iter_mut().zip(codes) {
                counts[usize::from(code)] += 1;
            }
        }

        let modes_at = target.len();
        target.push(0);
        let mut modes = [Mode::Known; 3];
        // The size of the last table's description.
        let mut described = None;
        for (kind, counts) in counts.iter_mut().enumerate() {
            let mode = mode_of(counts, sequences.len(), &KINDS[kind]);
            let start = target.len();
            let code_of_last = usize::from(self.codes[before.len()][kind]);
            match mode {
                Mode::Known => {}
                Mode::One => {
                    self.made[kind].fill_one(code_of_last);
                    target.push(code_of_last as u8);
                }
                Mode::Described => {
                    let table = &mut self.made[kind];
                    if !describe(release, counts, sequences.len(), code_of_last, &KINDS[kind], table, target)
                    {
                        return false;
                    }
                    described = Some(target.len() - start);
                }
            }
            modes[kind] = mode;
        }
        let [literals, offset, copied] = modes.map(|mode| mode as u8);
        target[modes_at] = literals << 6 | offset << 4 | copied << 2;

        let stream_at = target.len();
        self.stream(&modes, last, before, target);
        // Decoders up to 1.3.4 reject a section with so short a table and stream. (Up to 1.4.9, RLE tables
        // after it counted as well; the sequences of this level are never so short.)
        described.is_none_or(|len| len + target.len() - stream_at >= 4)
    }

    fn stream(&self, modes: &[Mode; 3], last: &Sequence, before: &[Sequence], target: &mut Vec<u8>) {
        let table =
            |kind: usize| if modes[kind] == Mode::Known { &self.known[kind] } else { &self.made[kind] };
        let [literals, offset, copied] = [table(LITERALS), table(OFFSET), table(COPIED)];
        let mut bits = BitWriter::new(target);
        // The extra bits.
        let open = |sequence: &Sequence, codes: &[usize; 3], bits: &mut BitWriter| {
            bits.add(sequence.literals, u32::from(LITERALS_BITS[codes[LITERALS] & 63]));
            bits.add(sequence.copied - SHORTEST, u32::from(COPIED_BITS[codes[COPIED] & 63]));
            bits.flush();
            bits.add(sequence.offset, codes[OFFSET] as u32);
            bits.flush();
        };
        let codes = self.codes[before.len()].map(usize::from);
        let mut literals_state = literals.begin(codes[LITERALS]);
        let mut offset_state = offset.begin(codes[OFFSET]);
        let mut copied_state = copied.begin(codes[COPIED]);
        open(last, &codes, &mut bits);
        for (sequence, codes) in before.iter().zip(&self.codes).rev() {
            let codes = codes.map(usize::from);
            offset.encode(codes[OFFSET], &mut offset_state, &mut bits);
            copied.encode(codes[COPIED], &mut copied_state, &mut bits);
            literals.encode(codes[LITERALS], &mut literals_state, &mut bits);
            bits.flush();
            open(sequence, &codes, &mut bits);
        }
        copied.end(copied_state, &mut bits);
        offset.end(offset_state, &mut bits);
        literals.end(literals_state, &mut bits);
        bits.flush();
        bits.finish_marked();
    }
}

/// Selects the table's mode (`ZSTD_selectEncodingType`): a described table only for many sequences with
/// different codes.
fn mode_of(counts: &[u32; MAX_SYMBOLS], total: usize, kind: &Kind) -> Mode {
    let most = counts.iter().copied().max().unwrap_or(0) as usize;
    if most == total {
        if total <= 2 { Mode::Known } else { Mode::One }
    } else if total < 1 << kind.known_log || most < total >> (kind.known_log - 1) {
        Mode::Known
    } else {
        Mode::Described
    }
}

/// Builds the FSE table of a kind of code and appends the table's description. The code of the last sequence
/// needs no transition, so this occurrence is not counted if the code occurs again.
fn describe(
    release: Release,
    counts: &mut [u32; MAX_SYMBOLS],
    total: usize,
    last: usize,
    kind: &Kind,
    table: &mut Table,
    target: &mut Vec<u8>,
) -> bool {
    let highest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let mut total = total as u32;
    let log = fse::best_log(kind.most_log, total, highest, 2);
    if counts[last] > 1 {
        counts[last] -= 1;
        total -= 1;
    }
    let Some(shares) = fse::normalize(&counts[..=highest], total, log, release.less_than_one(total)) else {
        return false;
    };
    fse::describe(&shares[..=highest], log, target);
    table.fill(&shares[..=highest], log);
    true
}

fn codes_of(sequence: &Sequence) -> [u8; 3] {
    let copied = sequence.copied - SHORTEST;
    [
        LITERALS_CODES
            .get(sequence.literals as usize)
            .copied()
            .unwrap_or_else(|| sequence.literals.ilog2() as u8 + 19),
        sequence.offset.ilog2() as u8,
        COPIED_CODES.get(copied as usize).copied().unwrap_or_else(|| copied.ilog2() as u8 + 36),
    ]
}

const fn open_bits(first: usize, bits: &[u8]) -> [u8; 64] {
    let mut all = [0; 64];
    let mut at = 0;
    while at < bits.len() {
        all[first + at] = bits[at];
        at += 1;
    }
    all
}

const fn codes<const VALUES: usize>(bits: &[u8; 64]) -> [u8; VALUES] {
    let mut codes = [0; VALUES];
    let (mut code, mut value) = (0, 0);
    while value < VALUES {
        let end = value + (1 << bits[code]);
        while value < end && value < VALUES {
            codes[value] = code as u8;
            value += 1;
        }
        code += 1;
    }
    codes
}
