use super::level::{SECOND_LEVEL, effort_of};
use super::part::{
    CODER_DICTIONARY, CODER_LEARNED, CODER_MIXED, CODER_MIXED_COLUMNS, CODER_MIXED_DICTIONARY, CODER_STORED,
    CODER_ZSTD, CODER_ZSTD_PREFIX, MAX_MIXING_RATIO, Part, put_part,
};
use super::*;
use crate::column_kind::{Class, Form, Kind};
use crate::columns::{Coder, Column, Decoder, Encoder};
use crate::leb128::put_leb128;

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % bound
    }
}

const KINDS: [Kind; 8] = [
    Kind::Symbols(Class::Shapes),
    Kind::Rows(Class::Blocks, 4),
    Kind::Rows(Class::Fixed, 1),
    Kind::Rows(Class::Fixed, 24),
    Kind::Rows(Class::Fixed, 900),
    Kind::Bytes(Class::Text),
    Kind::Symbols(Class::Blocks),
    Kind::Bytes(Class::Raw),
];

/// Returns bytes for a column: of any length, including none, and more or less like real ones.
fn content(kind: Kind, numbers: &mut Numbers) -> Vec<u8> {
    let rows = [0, 1, 3, 40, 700][numbers.below(5) as usize];
    let mut bytes = Vec::new();
    for row in 0..rows {
        match kind {
            Kind::Symbols(_) => {
                let bits = numbers.below(20);
                put_leb128(&mut bytes, numbers.below(1 << bits));
            }
            Kind::Rows(_, width) => {
                let row: Vec<u8> = (0..width)
                    .map(|at| match at % 4 {
                        0 => (row + u64::from(at)) as u8,
                        1 => at as u8,
                        2 => numbers.below(3) as u8,
                        _ => numbers.below(256) as u8,
                    })
                    .collect();
                bytes.extend(row);
            }
            Kind::Bytes(_) => {
                bytes
                    .extend([&b"select "[..], b"\0\0\x10", b"name", &[row as u8]][numbers.below(4) as usize]);
            }
        }
    }
    bytes
}

/// Returns chunks at a level, and the content of their columns.
fn chunks(level: u8, seed: u64, count: usize) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut numbers = Numbers(seed);
    let (mut encoder, mut packer) = (Encoder::default(), Packer::new(level, true));
    let columns: Vec<Column> = KINDS.iter().map(|&kind| encoder.column(kind).unwrap()).collect();
    let chunk = |_| {
        let contents: Vec<Vec<u8>> = KINDS.iter().map(|&kind| content(kind, &mut numbers)).collect();
        for (&column, bytes) in columns.iter().zip(&contents) {
            encoder.bytes(column, bytes, bytes.len(), &mut Vec::new()).unwrap();
        }
        (encoder.chunk(&mut packer), contents)
    };
    (0..count).map(chunk).collect()
}

#[test]
fn columns_are_decoded_at_every_level_chunk_after_chunk() {
    for level in 1..=9 {
        for seed in 0..3 {
            let (mut decoder, mut unpacker) = (Decoder::default(), Unpacker::new(true));
            let mut columns = Vec::new();
            for (chunk, contents) in chunks(level, seed, 4) {
                decoder.chunk(&mut unpacker, &chunk, 1 << 24).unwrap();
                if columns.is_empty() {
                    columns.extend(KINDS.iter().map(|&kind| decoder.column(kind).unwrap()));
                }
                for (&column, bytes) in columns.iter().zip(&contents) {
                    let mut back = Vec::new();
                    decoder.bytes(column, &[], bytes.len(), &mut back).unwrap();
                    assert_eq!(back, *bytes, "level {level}, seed {seed}");
                }
                decoder.finish().unwrap();
            }
        }
    }
}

#[test]
fn columns_of_incomplete_rows_are_decoded() {
    let bytes: Vec<u8> = (0..1003).map(|at| (at / 3) as u8).collect();
    for level in [1, 5, 7, 8] {
        let mut content = Content::from_bytes(Class::Fixed, Form::Rows(4), &bytes);
        let mut out = Vec::new();
        Packer::new(level, true).class(Class::Fixed, &mut [&mut content], &mut out);
        let (mut rest, mut back) = (&out[..], Vec::new());
        let entry = ColumnEntry { number: 0, form: Form::Rows(4), bytes: bytes.len() };
        let mut at = 0;
        let place = |_: &ColumnEntry, start| at = start;
        Unpacker::new(true).class(Class::Fixed, &[entry], &mut rest, &mut back, place).unwrap();
        assert_eq!((&back[at..at + bytes.len()], rest), (&bytes[..], &[][..]));
    }
}

/// Both directions learn contents that context mixing did not code.
#[test]
fn contents_that_zstd_compresses_better_are_coded_by_it() {
    let noise: Vec<u8> = (0..3000_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
    // Repeated from far back, beyond the memory of the fast effort.
    let bytes = [noise.clone(), vec![0; 40], noise].concat();
    for level in [7, 8, 9] {
        let (mut packer, mut unpacker, mut out) = (Packer::new(level, true), Unpacker::new(true), Vec::new());
        for part in [&bytes[..], &bytes[..3], &bytes[..2000], &[7; 100_000]] {
            out.clear();
            packer.part(part, &mut out);
            let mut smallest = Vec::new();
            Packer::new(5, true).part(part, &mut smallest);
            assert!(out.len() <= smallest.len() + 4, "level {level}: {} {}", out.len(), smallest.len());
            assert!(unpacker.part(&mut &out[..], part.len()).unwrap() == part);
        }
    }
    let (mut packer, mut unpacker) = (Packer::new(7, true), Unpacker::new(true));
    let (mut learned, mut after) = (Vec::new(), Vec::new());
    let zstd =
        zstd_coder::Compressor::default().compress(&bytes, &[], effort_of(FORM_BYTES, SECOND_LEVEL)).unwrap();
    let zstd = packer.learned(&[], &zstd).unwrap();
    put_part(CODER_LEARNED, bytes.len(), &zstd, &mut learned);
    packer.mix(0, FORM_BYTES, &mut [(0, Form::Bytes, &mut bytes.clone())]);
    packer.part(&bytes, &mut after);
    assert!(unpacker.part(&mut &learned[..], bytes.len()).unwrap() == bytes);
    assert!(unpacker.part(&mut &after[..], bytes.len()).unwrap() == bytes);
}

/// Context mixing predicts the zeros after the noise so well that its output ends with many zeros.
#[test]
fn contents_that_end_predictably_are_decoded() {
    let mut numbers = Numbers(1);
    let mut bytes: Vec<u8> = (0..8_000).map(|_| numbers.below(256) as u8).collect();
    bytes.resize(2_000_000, 0);
    let (stored, _) = Packer::new(7, false).mix(0, FORM_BYTES, &mut [(0, Form::Bytes, &mut bytes.clone())]);
    assert!(stored.ends_with(&[0; 8]), "the zeros are stored");
    let decode = |stored: &[u8]| {
        let mut out = Vec::new();
        put_part(CODER_MIXED, bytes.len(), stored, &mut out);
        Unpacker::new(false).part(&mut &out[..], bytes.len())
    };
    assert!(decode(&stored).unwrap() == bytes);
    assert!(decode(&stored[..stored.len() - 8]).is_err(), "more than four bytes are missing");
}

/// Context mixing codes constant rows in almost no bytes, so the encoder extends the part.
#[test]
fn the_length_of_a_content_is_limited_by_its_stored_bytes() {
    let columns: [(u32, Form, Vec<u8>); 1] = [(0, Form::Rows(8), vec![7; 800_000])];
    let mut packer = Packer::new(7, false);
    let (stored, _) =
        packer.mix(0, 1, &mut columns.clone().each_mut().map(|(n, form, bytes)| (*n, *form, bytes)));
    assert_eq!(stored.len(), 800_000_usize.div_ceil(MAX_MIXING_RATIO));
    let read = |coder: u8, raw: usize, stored: &[u8]| {
        let mut part = Vec::new();
        put_part(coder, raw, stored, &mut part);
        Part::read(&mut &part[..], usize::MAX).map(|_| ())
    };
    for (coder, ratio) in
        [(CODER_STORED, 1), (CODER_ZSTD, 1 << 15), (CODER_DICTIONARY, 1 << 15)].into_iter().chain(
            [CODER_LEARNED, CODER_MIXED_COLUMNS, CODER_MIXED, CODER_MIXED_DICTIONARY]
                .map(|coder| (coder, 1024)),
        )
    {
        assert_eq!(read(coder, 4 * ratio, &[1; 4]), Ok(()), "coder {coder}");
        assert!(read(coder, 4 * ratio + 1, &[1; 4]).is_err(), "coder {coder}");
        assert!(read(coder, usize::MAX, &[1; 4]).is_err(), "coder {coder}");
    }
}

#[test]
fn a_second_chunk_gains_from_the_first() {
    let text: Vec<u8> =
        (0..20_000_u32).flat_map(|at| (at.wrapping_mul(0x9E37_79B9) >> 7).to_le_bytes()).collect();
    for level in [1, 5, 7, 9] {
        let mut packer = Packer::new(level, true);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        packer.part(&text, &mut first);
        packer.part(&text, &mut second);
        assert!(second.len() * 10 < first.len(), "level {level}: {} then {}", first.len(), second.len());
        let mut unpacker = Unpacker::new(true);
        assert!(unpacker.part(&mut &first[..], text.len()).unwrap() == text);
        assert!(unpacker.part(&mut &second[..], text.len()).unwrap() == text);
    }
}

#[test]
fn a_chunk_that_is_cut_short_is_refused() {
    for level in [1, 5, 7] {
        let (chunk, _) = chunks(level, 1, 1).remove(0);
        for len in (0..chunk.len()).step_by(chunk.len() / 50 + 1) {
            let decoded = Decoder::default().chunk(&mut Unpacker::new(true), &chunk[..len], 1 << 24);
            assert!(decoded.is_err(), "level {level}, {len} of {}", chunk.len());
        }
    }
}

#[test]
fn a_changed_byte_is_refused() {
    for level in [1, 5, 7] {
        let (mut chunk, _) = chunks(level, 1, 1).remove(0);
        for at in (0..chunk.len()).step_by(chunk.len() / 50 + 1) {
            chunk[at] ^= 0x11;
            let decoded = Decoder::default().chunk(&mut Unpacker::new(true), &chunk, 1 << 24);
            assert!(decoded.is_err(), "level {level}, byte {at} of {}", chunk.len());
            chunk[at] ^= 0x11;
        }
    }
}

/// With the right checksum, the compressed bytes themselves may be anything.
#[test]
fn no_stored_bytes_make_decoding_panic() {
    let mut numbers = Numbers(5);
    let bytes = content(Kind::Rows(Class::Fixed, 24), &mut Numbers(1)).repeat(3);
    let plain = [(CODER_STORED, 20), (CODER_ZSTD, 200), (CODER_ZSTD_PREFIX, 200), (CODER_DICTIONARY, 20)];
    let mixed = [CODER_LEARNED, CODER_MIXED_COLUMNS, CODER_MIXED, CODER_MIXED_DICTIONARY];
    // Three efforts of each, and an unknown one.
    let mixed = mixed
        .into_iter()
        .flat_map(|first| [(0, 5), (1, 3), (2, 1), (3, 1)].map(|(effort, tries)| (first + effort, tries)));
    for (coder, tries) in plain.into_iter().chain(mixed).chain([(255, 1)]) {
        let level = if coder < CODER_LEARNED { 5 } else { (coder % CODER_LEARNED).min(2) + 7 };
        let mut column = Content::from_bytes(Class::Fixed, Form::Rows(24), &bytes);
        let mut whole = Vec::new();
        Packer::new(level, true).class(Class::Fixed, &mut [&mut column], &mut whole);
        let part = Part::read(&mut &whole[..], usize::MAX).unwrap();
        for _ in 0..tries {
            let mut packed = part.stored.to_vec();
            for _ in 0..3 {
                let at = numbers.below(packed.len() as u64) as usize;
                packed[at] = numbers.below(256) as u8;
            }
            packed.truncate(numbers.below(packed.len() as u64 + 1) as usize);
            let mut out = Vec::new();
            put_part(coder, part.raw, &packed, &mut out);
            // An error or other bytes.
            let entry = ColumnEntry { number: 0, form: Form::Rows(24), bytes: bytes.len() };
            let _ =
                Unpacker::new(true).class(Class::Fixed, &[entry], &mut &out[..], &mut Vec::new(), |_, _| ());
        }
    }
}

#[test]
fn a_lower_level_is_tried_on_a_sample_of_much_text() {
    let content = vec![7; 1 << 20];
    let sampled = |class: Class, level, bytes: usize| {
        super::level::alternative(class as usize, level, &content[..bytes]).map(|(sample, lower)| {
            assert!(sample.len() * 8 <= bytes, "the sample takes little of the time");
            lower
        })
    };
    assert_eq!((3..=5).map(|level| sampled(Class::Text, level, 1 << 20)).collect::<Vec<_>>(), [Some(2); 3]);
    assert_eq!(sampled(Class::Text, 2, 1 << 20), None);
    assert_eq!(sampled(Class::Text, 12, 1 << 20), None);
    assert_eq!(sampled(Class::Text, 3, 1 << 19), None);
    assert_eq!(sampled(Class::Fixed, 3, 1 << 20), None);
}
