//! Byte counts by class and relation: every byte is counted once, and relations are those of the WAL.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::ops::ControlFlow;

use walden_codec::coder::{Breakdown, Bytes};
use walden_codec::container::{FileForm, Reader};
use walden_format::lsn::Lsn;
use walden_format::record::{Record, RelFileLocator};
use walden_format::stream::{Decoder, StreamInfo, Visitor};

use crate::material::{File, consecutive, limits, mixture, options, segment, write};

/// Returns the length of the members' frames, and the byte counts.
fn count(file: &[u8]) -> (u64, Breakdown) {
    let mut reader = Reader::open(Cursor::new(file), limits()).unwrap();
    reader.count_bytes();
    let (mut stored, mut breakdown) = (0, Breakdown::default());
    while let Some(head) = reader.next().unwrap() {
        stored += reader.decode(&head, &mut std::io::sink()).unwrap().stored;
        breakdown.merge(&reader.take_breakdown().unwrap());
    }
    (stored, breakdown)
}

fn sum(bytes: impl Iterator<Item = Bytes>) -> Bytes {
    bytes.fold(Bytes::default(), |sum, bytes| Bytes {
        raw: sum.raw + bytes.raw,
        stored: sum.stored + bytes.stored,
    })
}

/// Bytes of a segment's records by the relation of their first block, and all relations.
#[derive(Default)]
struct ByRelation(BTreeMap<RelFileLocator, u64>, BTreeSet<RelFileLocator>);

impl Visitor for ByRelation {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.1.extend(record.blocks.iter().map(|block| block.relation));
        if let Some(block) = record.blocks.first() {
            *self.0.entry(block.relation).or_default() += u64::from(record.header.total_len);
        }
        ControlFlow::Continue(())
    }
}

fn relations_of(segments: &[File]) -> ByRelation {
    let mut relations = ByRelation::default();
    for (_, segment) in segments {
        let info = StreamInfo::from_first_page(segment[..40].try_into().unwrap()).unwrap();
        let start = Lsn(u64::from_le_bytes(segment[8..16].try_into().unwrap()));
        let mut decoder = Decoder::new(info, start, start.plus(segment.len() as u64));
        // Whatever the result, the records end with the WAL.
        let _ = decoder.push(segment, &mut relations);
    }
    relations
}

#[test]
fn every_byte_is_counted_once_by_class_and_once_by_relation() {
    for (form, level, files) in [
        (FileForm::Pack, 3, mixture()),
        (FileForm::Pack, 7, consecutive().to_vec()),
        (FileForm::Segment, 6, vec![("segment", segment("15.18", "000000010000000000000009"))]),
    ] {
        let (file, _) = write(options(form, level), &files);
        let (stored, breakdown) = count(&file);
        let (classes, relations) = (
            sum(breakdown.classes().map(|(_, bytes)| bytes)),
            sum(breakdown.relations().map(|(_, bytes)| bytes)),
        );
        assert_eq!(classes, relations);
        let total = sum([classes, breakdown.directory(), breakdown.bytes()].into_iter());
        assert_eq!(total, breakdown.total());
        // Frame headers, names, times and hashes of members are not counted.
        let overhead = stored - total.stored;
        let members = files.len() as u64;
        assert!((100 * members..500 * members).contains(&overhead), "{overhead} bytes for {members} members");
        let mixed = files.iter().any(|(name, _)| *name == "folder/noise");
        assert_eq!(breakdown.bytes().raw > 3000, mixed);
    }
}

#[test]
fn relations_are_those_of_the_log_and_large_ones_are_large() {
    let segments = [("segment", segment("15.18", "000000010000000000000009"))];
    let (file, _) = write(options(FileForm::Segment, 3), &segments);
    let (_, breakdown) = count(&file);
    let ByRelation(bytes, all) = relations_of(&segments);
    let counted: BTreeMap<_, _> =
        breakdown.relations().filter_map(|(relation, bytes)| Some((relation?, bytes))).collect();
    assert!(counted.len() > 5);
    assert!(counted.keys().all(|relation| all.contains(relation)));
    let largest = bytes.iter().max_by_key(|(_, bytes)| **bytes).unwrap().0;
    let mut by_size: Vec<_> = counted.iter().collect();
    by_size.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.raw));
    let rank = by_size.iter().position(|(relation, _)| *relation == largest).unwrap();
    assert!(rank < 5, "{largest} is number {rank} of {}", by_size.len());
    let without = breakdown.relations().find(|(relation, _)| relation.is_none()).unwrap().1;
    assert!(without.raw < breakdown.total().raw / 2, "{without:?} belong to no relation");
}
