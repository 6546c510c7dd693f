//! Disabled cases: decoding with the same set restores the original, and each case changes the output.

use std::collections::HashSet;

use walden_codec::coder::{Decoder, Encoded, Encoder, Form, Limits};
use walden_codec::measure::{Case, Cases};

use crate::material::{consecutive, first_pages, segment};

/// Returns segments and levels with material for most cases.
fn series() -> Vec<(Vec<Vec<u8>>, u8)> {
    let of = |version, name, pages| first_pages(&segment(version, name), pages);
    let [first, second, third] = consecutive().map(|file| file.1);
    vec![
        (vec![segment("15.18-lz4", "00000001000000000000000F")], 3),
        (vec![segment("15.18-zstd", "00000001000000000000000A")], 4),
        (vec![of("15.18-pglz", "000000010000000000000009", 14)], 5),
        (vec![of("18.6", "00000001000000000000000C", 24)], 7),
        (vec![first, second, third], 5),
    ]
}

/// Encodes segments with a set of cases, decodes them with the same set, and compares.
fn round_trip(segments: &[Vec<u8>], level: u8, cases: Cases) -> Vec<Encoded> {
    let encoder = Encoder::new(level, Limits::default()).with_cases(cases);
    let decoder = Decoder::new(Limits::default()).with_cases(cases);
    let (mut encoder, mut decoder) = match segments.len() {
        1 => (encoder.alone(), decoder.alone()),
        _ => (encoder, decoder),
    };
    let one = |original: &Vec<u8>| {
        let encoded = encoder.encode(original);
        let mut decoded = Vec::new();
        decoder
            .decode(&encoded, original.len(), &mut |more| decoded.extend_from_slice(more))
            .unwrap_or_else(|error| panic!("level {level}: {error}"));
        assert!(decoded == *original, "level {level}");
        encoded
    };
    segments.iter().map(one).collect()
}

#[test]
fn what_is_encoded_without_a_case_is_decoded_without_it() {
    // Two of these change only the time. The others do not occur in any golden segment, and have tests of
    // their own.
    const SAME: [Case; 12] = [
        Case::QuietPieces,
        Case::PostingPages,
        Case::TupleRuns,
        Case::CompressedValues,
        Case::ToastChunks,
        Case::Tsvectors,
        Case::TextsOfVectors,
        Case::NearKeys,
        Case::PendingWords,
        Case::MovedBytes,
        Case::WordsInData,
        Case::FrequencyMode,
    ];
    let mut changed = HashSet::new();
    for (segments, level) in series() {
        let with_all = round_trip(&segments, level, Cases::ALL);
        assert!(with_all.iter().all(|encoded| encoded.form == Form::Records));
        for &case in Case::ALL {
            let without = round_trip(&segments, level, Cases::ALL.without(case));
            let is_same = without.iter().zip(&with_all).all(|(without, all)| without.content == all.content);
            if !is_same {
                changed.insert(case);
            }
        }
    }
    let unchanged: Vec<Case> = Case::ALL.iter().copied().filter(|case| !changed.contains(case)).collect();
    assert_eq!(unchanged, SAME);
}

/// Returns the compressed size of a segment at level 3.
fn size_of(segment: &[u8], cases: Cases) -> usize {
    let encoded = round_trip(&[segment.to_vec()], 3, cases);
    assert!(encoded.iter().all(|encoded| encoded.form == Form::Records));
    encoded[0].content.len()
}

/// Copies reduce the size of WAL of an index that moves bytes.
#[test]
fn moved_bytes_are_copied_from_pages_and_from_earlier_fragments() {
    let segment = segment("15.20-rum", "000000010000000000000011");
    let (all, without) =
        (size_of(&segment, Cases::ALL), size_of(&segment, Cases::ALL.without(Case::MovedBytes)));
    assert!(all * 2 < without, "{all} bytes, {without} without copies");
}

/// The same for indexes whose records repeat heap tuples, and whose pages are split.
#[test]
fn tuples_of_gist_and_sp_gist_indexes_are_predicted() {
    let segment = segment("15.20-points", "000000010000000000000007");
    let all = size_of(&segment, Cases::ALL);
    for case in [Case::GistTuples, Case::LeafTuples, Case::MovedTuples] {
        let without = size_of(&segment, Cases::ALL.without(case));
        assert!(all * 5 < without * 4, "{all} bytes, {without} without {}", case.name());
    }
}

#[test]
fn no_case_at_all_is_needed() {
    let none = Case::ALL.iter().fold(Cases::ALL, |cases, &case| cases.without(case));
    for (segments, level) in series() {
        let size = |cases| {
            round_trip(&segments, level, cases).iter().map(|encoded| encoded.content.len()).sum::<usize>()
        };
        let (none, all) = (size(none), size(Cases::ALL));
        assert!(none > all * 5 / 4, "level {level}: {none} bytes without, {all} with all cases");
    }
}
