//! Round trips of files, in both forms, in any order.

use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::process::Command;

use proptest::prelude::*;
use walden_codec::coder::Form;
use walden_codec::container::{Error, FileForm, Meta, Needs, ReadLimits, Reader, Writer};

use crate::material::{
    consecutive, first_pages, limits, meta, mixture, noise, options, read, segment, write,
};

#[test]
fn every_member_comes_back_at_every_level() {
    let files = mixture();
    // The highest levels are slow in unoptimized builds.
    for level in [1, 5, 7, 9] {
        let (pack, _) = write(options(FileForm::Pack, level), &files);
        let back = read(&pack);
        assert_eq!(back.len(), files.len());
        for ((name, bytes), (name_back, bytes_back)) in files.iter().zip(&back) {
            assert_eq!(name, name_back);
            assert!(bytes == bytes_back, "level {level}: {name} came back otherwise");
        }
    }
    for file in &files {
        let (single, _) = write(options(FileForm::Segment, 3), std::slice::from_ref(file));
        let back = read(&single);
        assert!(back.len() == 1 && back[0].0 == file.0 && back[0].1 == file.1, "{}", file.0);
    }
}

/// Images, tuples and TOAST values that a server compressed with pglz, lz4 or zstd take no more space than
/// uncompressed ones. The reference is xz, which cannot compress them again. The last segment has
/// transactions with thousands of subtransactions.
#[test]
fn what_a_server_compressed_gets_smaller() {
    let files = [
        ("15.18-lz4", "00000001000000000000000D", 92),
        ("15.18-lz4", "00000001000000000000000F", 70),
        ("15.18-zstd", "00000001000000000000000A", 65),
        ("15.18-zstd", "00000001000000000000000B", 35),
    ];
    for (folder, name, percent) in files {
        let file = (name, segment(folder, name));
        let (coded, _) = write(options(FileForm::Segment, 5), std::slice::from_ref(&file));
        let mut by_xz = Vec::new();
        liblzma::read::XzEncoder::new(&file.1[..], 9).read_to_end(&mut by_xz).unwrap();
        assert!(coded.len() * 100 < by_xz.len() * percent, "{name}: {}, xz {}", coded.len(), by_xz.len());
        assert!(read(&coded)[0].1 == file.1, "{name} came back otherwise");
    }
}

#[test]
fn records_are_not_decoded_at_level_0() {
    let [_, (name, bytes), _] = consecutive();
    let hash = *blake3::hash(&bytes).as_bytes();
    let (added, _) = write(options(FileForm::Segment, 0), &[(name, &bytes)]);
    let mut writer = Writer::new(Vec::new(), options(FileForm::Segment, 0));
    writer.add_checked(meta(name), &bytes, hash).expect("written");
    for file in [added, writer.finish().expect("written")] {
        assert!(file.len() < bytes.len() / 2, "{}", file.len());
        let mut reader = Reader::open(Cursor::new(&file[..]), limits()).expect("a header");
        let head = reader.next().expect("a head").expect("a member");
        assert_eq!(head.form, Form::Bytes);
        assert_eq!(reader.compare(&head, &bytes, &hash).expect("the same").end.hash, hash);
        assert!(reader.next().expect("an end").is_none());
    }
}

#[test]
fn a_segment_that_was_checked_is_written_as_any_other_and_compared_with_what_comes_back() {
    let [_, (name, bytes), _] = consecutive();
    let hash = *blake3::hash(&bytes).as_bytes();
    let (expected, _) = write(options(FileForm::Segment, 3), &[(name, &bytes)]);
    let mut writer = Writer::new(Vec::new(), options(FileForm::Segment, 3));
    writer.add_checked(meta(name), &bytes, hash).expect("written");
    let file = writer.finish().expect("written");
    assert!(file == expected, "the same bytes");
    let compare = |original: &[u8], hash| {
        let mut reader = Reader::open(Cursor::new(&file[..]), limits()).expect("a header");
        let head = reader.next().expect("a head").expect("a member");
        reader.compare(&head, original, hash).map(|member| member.end.hash)
    };
    assert_eq!(compare(&bytes, &hash).expect("the same"), hash);
    let mut other = bytes.clone();
    for at in [0, 8192, bytes.len() / 2 + 77, bytes.len() - 1] {
        other[at] ^= 1;
        assert!(matches!(compare(&other, &hash), Err(Error::Damage(_))), "byte {at}");
        other[at] ^= 1;
    }
    assert!(compare(&bytes[..bytes.len() - 1], &hash).is_err(), "one byte less");
    assert!(compare(&[&bytes[..], &[0]].concat(), &hash).is_err(), "one byte more");
    assert!(compare(&bytes, &[7; 32]).is_err(), "another hash");
}

/// A file whose content changes after a number of seeks.
struct Changing {
    now: Cursor<Vec<u8>>,
    then: Option<Vec<u8>>,
    placed: usize,
}

impl Read for Changing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.now.read(buffer)
    }
}

impl Seek for Changing {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self.placed.checked_sub(1) {
            Some(left) => self.placed = left,
            None => {
                if let Some(then) = self.then.take() {
                    self.now = Cursor::new(then);
                }
            }
        }
        self.now.seek(to)
    }
}

/// A segment is read twice. The stored file is one of the two versions, complete, and with the correct hash.
#[test]
fn a_file_that_changes_while_it_is_read_is_stored_as_it_was_or_as_it_is() {
    let [_, (name, now), _] = consecutive();
    let mut flipped = now.clone();
    flipped[now.len() / 3] ^= 0x10;
    let cut = now[..now.len() / 2].to_vec();
    let another = segment("18.6", "00000001000000000000000C");
    for then in [flipped, cut, another] {
        let mut found = [0; 2];
        for placed in 0..8 {
            let mut file = Changing { now: Cursor::new(now.clone()), then: Some(then.clone()), placed };
            let mut writer = Writer::new(Vec::new(), options(FileForm::Segment, 3));
            let added = writer.add(meta(name), false, &mut file).unwrap();
            let back = read(&writer.finish().unwrap());
            let start = added.entry.head.place.map(|place| place.start.0.to_le_bytes());
            assert!(start.is_none_or(|start| back[0].1[8..16] == start), "where it is said to be");
            let which = [&now, &then].iter().position(|version| **version == back[0].1);
            found[which.expect("one of them")] += 1;
        }
        assert!(found[0] > 0 && found[1] > 0, "{found:?}");
    }
}

#[test]
fn keyframes_are_where_nothing_before_is_needed() {
    let (_, entries) = write(options(FileForm::Pack, 1), &mixture());
    let found: Vec<_> = entries.iter().map(|entry| (entry.head.form, entry.head.keyframe)).collect();
    let expected = [
        (Form::Records, true),
        (Form::Records, false),
        (Form::Bytes, true),
        // After bytes.
        (Form::Records, true),
        (Form::Bytes, true),
        (Form::Records, true),
        (Form::Bytes, true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_gap_another_timeline_and_a_distance_make_keyframes() {
    let [first, second, third] = consecutive();
    // Bytes of WAL, in segments of 1 MB.
    let keyframes = |files: &[(&str, Vec<u8>)], segments: u64| {
        let keyframe = segments << 20;
        let (_, entries) = write(options(FileForm::Pack, 1).keyframe(keyframe), files);
        entries.iter().map(|entry| entry.head.keyframe).collect::<Vec<_>>()
    };
    let all = [first.clone(), second.clone(), third.clone()];
    assert_eq!(keyframes(&all, 100), [true, false, false]);
    assert_eq!(keyframes(&all, 2), [true, false, true]);
    assert_eq!(keyframes(&all, 1), [true, true, true]);
    assert_eq!(keyframes(&[first.clone(), third], 100), [true, true]);
    // The timeline is in each page's header. Only one page of this segment is not zero.
    let mut promoted = second.1;
    promoted[4] = 2;
    assert_eq!(keyframes(&[first, (second.0, promoted)], 100), [true, true]);
}

#[test]
fn a_member_of_a_pack_is_decoded_from_its_keyframe_on() {
    let files = mixture();
    let (pack, entries) = write(options(FileForm::Pack, 1), &files);
    let mut reader = Reader::open(Cursor::new(&pack), limits()).unwrap();
    let (index, fault) = reader.entries();
    assert!(fault.is_none());
    assert_eq!(index, entries);
    for (name, bytes) in files.iter().rev().chain(&files) {
        let head = reader.member(name.as_bytes()).unwrap().unwrap();
        let mut original = Vec::new();
        reader.decode(&head, &mut original).unwrap();
        assert!(original == *bytes, "{name}");
    }
    assert_eq!(reader.member(b"another").unwrap(), None);
    // Without the member before it, decoding fails rather than returning wrong bytes.
    let mut reader = Reader::open(Cursor::new(&pack), limits()).unwrap();
    let head = reader.seek(&index[1]).unwrap();
    assert!(matches!(reader.decode(&head, &mut std::io::sink()), Err(Error::NeedsKeyframe(_))));
}

#[test]
fn a_pack_is_listed_without_its_index() {
    let (pack, entries) = write(options(FileForm::Pack, 1), &mixture());
    let end = entries.last().map(|entry| entry.offset + entry.stored).unwrap();
    let mut reader = Reader::open(Cursor::new(&pack[..end as usize]), limits()).unwrap();
    let (walked, fault) = reader.entries();
    assert_eq!(walked, entries);
    assert!(matches!(fault, Some(Error::Damage(_))), "nothing says that it ends here");
    let (name, bytes) = &mixture()[1];
    let head = reader.member(name.as_bytes()).unwrap().unwrap();
    let mut original = Vec::new();
    reader.decode(&head, &mut original).unwrap();
    assert!(original == *bytes);
    assert!(matches!(reader.member(b"another"), Err(Error::Damage(_))), "it may be after the end");
}

#[test]
fn the_same_input_gives_the_same_file() {
    let files = mixture();
    assert!(write(options(FileForm::Pack, 3), &files).0 == write(options(FileForm::Pack, 3), &files).0);
}

#[test]
fn large_files_are_coded_in_pieces() {
    // Two pieces and one byte of a third.
    let zeros = vec![0; (32 << 20) + 1];
    let (bytes, entries) = write(options(FileForm::Segment, 1), &[("zeros", &zeros)]);
    assert!(bytes.len() < 10_000 && entries[0].head.form == Form::Bytes);
    assert!(read(&bytes)[0].1 == zeros);
}

#[test]
fn a_segment_that_is_kept_from_being_understood_comes_back() {
    let segment = segment("14.23", "00000001000000000000000B");
    let mut writer = Writer::new(Vec::new(), options(FileForm::Segment, 1));
    let added = writer.add(meta("a"), true, &mut Cursor::new(&segment)).unwrap();
    assert_eq!(added.entry.head.form, Form::Bytes);
    assert!(read(&writer.finish().unwrap())[0].1 == segment);
}

/// The segment is read again, because its pieces were released as they were added to columns.
#[test]
fn anything_comes_back_within_the_least_memory() {
    const MIB: u64 = 1 << 20;
    for (form, level, least) in [
        (FileForm::Segment, 3, 54),
        (FileForm::Pack, 6, 149),
        (FileForm::Segment, 7, 223),
        (FileForm::Pack, 7, 319),
    ] {
        let files = [("segment", segment("15.18", "000000010000000000000009"))];
        let needs = |mib| Needs::within(mib * MIB, 4 << 30);
        let file = write(options(form, level).needs(needs(least)), &files).0;
        let limits = ReadLimits::default().memory(least * MIB);
        let mut reader = Reader::open(Cursor::new(&file), limits).unwrap();
        let head = reader.next().unwrap().unwrap();
        let mut out = Vec::new();
        reader.decode(&head, &mut out).unwrap();
        assert!(out == files[0].1, "{form:?} at level {level}");

        let options = options(form, level).needs(needs(least - 1));
        let mut writer = Writer::new(Vec::new(), options);
        let meta = Meta { name: b"segment".to_vec(), ..Meta::default() };
        let error = writer.add(meta, false, &mut Cursor::new(&files[0].1)).unwrap_err().to_string();
        assert!(error.ends_with(&format!("found {}", least * MIB)), "{error}");
    }
}

#[test]
fn a_segment_whose_pages_cannot_be_kept_comes_back() {
    const NAME: &str = "container::a_segment_whose_pages_cannot_be_kept_comes_back";
    const WITHOUT_FOLDER: &str = "WALDEN_TEST_WITHOUT_A_FOLDER_FOR_TEMPORARY_FILES";
    let without_folder = std::env::var_os(WITHOUT_FOLDER).is_some();
    let options = options(FileForm::Pack, 3).page_memory(0);
    let files =
        [("000000010000000000000009", segment("17.11", "000000010000000000000009")), ("noise", noise(99))];
    let mut writer = Writer::new(Vec::new(), options);
    let mut add =
        |file: &(&str, Vec<u8>)| writer.add(meta(file.0), false, &mut Cursor::new(&file.1)).unwrap();
    let [added, other] = [&files[0], &files[1]].map(&mut add);
    assert_eq!(added.entry.head.form, if without_folder { Form::Bytes } else { Form::Records });
    let failure = added.failure.unwrap_or_default();
    let expected = if without_folder { "cannot write a temporary file of pages in /nonexistent" } else { "" };
    assert!(failure.starts_with(expected) && failure.is_empty() != without_folder, "{failure}");
    assert_eq!(other.failure, None);
    let back = read(&writer.finish().unwrap());
    assert!(back.iter().zip(&files).all(|(back, file)| back.1 == file.1) && back.len() == 2);
    if !without_folder {
        // The folder is set in the environment, so the remaining test runs in another process.
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env(WITHOUT_FOLDER, "1").env("TMPDIR", "/nonexistent");
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[test]
fn segments_cut_anywhere_come_back() {
    let whole = segment("17.11", "000000010000000000000009");
    for pages in [0, 1, 2, 37, 127] {
        let zeros = first_pages(&whole, pages);
        for bytes in [&zeros[..], &whole[..pages * 8192], &whole[..(pages * 8192 + 4321).min(whole.len())]] {
            let (file, _) = write(options(FileForm::Segment, 1), &[("segment", bytes)]);
            assert!(read(&file)[0].1 == bytes, "{pages} pages");
        }
    }
}

/// WAL that ends anywhere, including within a page header, followed by bytes other than zeros.
#[test]
fn a_torn_end_comes_back() {
    let whole = segment("15.18", "000000010000000000000009");
    let noise = noise(whole.len());
    for cut in (8192 * 3 - 100..8192 * 3 + 100).step_by(4).chain([0, 4, 16, 24, 40, 48]) {
        let mut torn = whole.clone();
        torn[cut..].copy_from_slice(&noise[cut..]);
        let (file, _) = write(options(FileForm::Segment, 1), &[("segment", &torn)]);
        assert!(read(&file)[0].1 == torn, "torn at {cut}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_files_come_back(files in prop::collection::vec(("[a-zA-Z0-9./ ]{1,80}", any_file()), 0..6)) {
        let (pack, entries) = write(options(FileForm::Pack, 1), &files);
        prop_assert_eq!(read(&pack), files);
        let (index, fault) = Reader::open(Cursor::new(&pack), limits()).unwrap().entries();
        prop_assert!(fault.is_none());
        prop_assert_eq!(index, entries);
    }

    /// A segment with any bytes changed.
    #[test]
    fn a_changed_segment_comes_back(changes in prop::collection::vec((0_usize..40_000, any::<u8>()), 1..8)) {
        let mut bytes = first_pages(&segment("17.11", "000000010000000000000009"), 5);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let (file, _) = write(options(FileForm::Segment, 1), &[("segment", &bytes)]);
        prop_assert!(read(&file)[0].1 == bytes);
    }
}

fn any_file() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..5000),
        (any::<u8>(), 0_usize..100_000).prop_map(|(byte, count)| vec![byte; count]),
    ]
}
