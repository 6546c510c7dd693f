//! Compressed sizes: each predictor that these segments need reduces them.

use walden_codec::coder::{Decoder, Encoder, Form, Limits};

use crate::material::{consecutive, first_pages, segment};

/// Encodes segments that follow each other, decodes them, and returns their compressed size.
fn compressed_size(level: u8, segments: &[Vec<u8>]) -> usize {
    let (encoder, decoder) = (Encoder::new(level, Limits::default()), Decoder::new(Limits::default()));
    let (mut encoder, mut decoder) = match segments.len() {
        1 => (encoder.alone(), decoder.alone()),
        _ => (encoder, decoder),
    };
    let one = |original: &Vec<u8>| {
        let encoded = encoder.encode(original);
        assert_eq!(encoded.form, Form::Records);
        let mut decoded = Vec::new();
        decoder.decode(&encoded, original.len(), &mut |more| decoded.extend_from_slice(more)).unwrap();
        assert!(decoded == *original, "level {level}");
        encoded.content.len()
    };
    segments.iter().map(one).sum()
}

#[test]
fn compressed_sizes_do_not_grow() {
    let of = |version, name, pages| first_pages(&segment(version, name), pages);
    let [first, second, third] = consecutive().map(|file| file.1);
    // The maximum is 1 % above the size when this test was written.
    let segments = [
        ("compressed images", 3, 74_540, vec![segment("15.18-lz4", "00000001000000000000000F")]),
        ("compressed images", 4, 64_292, vec![segment("15.18-zstd", "00000001000000000000000A")]),
        ("compressed images", 5, 35_616, vec![of("15.18-pglz", "000000010000000000000009", 14)]),
        ("context mixing", 7, 19_826, vec![of("18.6", "00000001000000000000000C", 24)]),
        ("a pack", 5, 5_649, vec![first, second, third]),
        (
            "RUM, whose fragments move bytes",
            3,
            40_269,
            vec![segment("15.20-rum", "000000010000000000000011")],
        ),
        ("GiST and SP-GiST", 3, 37_339, vec![segment("15.20-points", "000000010000000000000007")]),
    ];
    for (what, level, max, segments) in segments {
        let size = compressed_size(level, &segments);
        assert!(size <= max, "{what}, level {level}: {size} bytes, expected at most {max}");
    }
}
