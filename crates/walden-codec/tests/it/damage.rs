//! Truncation at every byte, flipped bits, removed bytes: the reader never panics, never accepts wrong bytes,
//! and extracts all members that are not damaged.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::process::Command;

use walden_codec::coder::Form;
use walden_codec::container::{Error, FileForm, Loss, ReadLimits, Reader, Walk};

use crate::frames::{frames, mended};
use crate::material::{File, PAGE, consecutive, limits, mixture, options, read, salvage, segment, write};

/// Checks that extracted members are correct and all others are reported as lost. Returns the numbers of the
/// extracted members.
fn check(files: &[File], damaged: &[u8], what: &str) -> (BTreeSet<u64>, Option<Walk>) {
    let (out, walk) = salvage(damaged);
    for (number, bytes) in &out {
        assert!(*bytes == files[*number as usize].1, "{what}: member {number} came out wrong");
    }
    let whole: BTreeSet<u64> = out.into_iter().map(|(number, _)| number).collect();
    if let Some(walk) = &walk {
        assert!(!walk.damage.is_empty(), "{what}: not noticed");
        let after = walk.lost.iter().find(|loss| loss.members.is_none()).map(|loss| loss.number);
        for number in 0..files.len() as u64 {
            let lost = walk.lost.iter().any(|loss| {
                loss.members.is_some_and(|members| (loss.number..loss.number + members).contains(&number))
            });
            let lost = lost || after.is_some_and(|after| number >= after);
            assert!(lost != whole.contains(&number), "{what}: member {number}: {whole:?} {:?}", walk.lost);
        }
    }
    (whole, walk)
}

#[test]
fn a_pack_cut_at_any_byte_gives_the_members_before() {
    let files = mixture();
    let (pack, entries) = write(options(FileForm::Pack, 3), &files);
    for cut in (0..pack.len()).step_by(7) {
        let before = entries.iter().filter(|entry| entry.offset + entry.stored <= cut as u64).count();
        let (whole, walk) = check(&files, &pack[..cut], &format!("cut at {cut}"));
        assert_eq!(whole.len(), before, "cut at {cut}");
        assert!(walk.is_some() || cut < 200, "cut at {cut}");
    }
}

#[test]
fn a_flipped_bit_costs_no_more_than_the_members_up_to_the_next_keyframe() {
    let files = mixture();
    let (mut pack, entries) = write(options(FileForm::Pack, 3), &files);
    for at in (0..pack.len()).step_by(5) {
        let bit = 1 << (at % 8);
        pack[at] ^= bit;
        let (whole, walk) = check(&files, &pack, &format!("bit {} of byte {at}", at % 8));
        assert!(walk.is_some(), "byte {at}");
        let hit = entries
            .iter()
            .position(|entry| (entry.offset..entry.offset + entry.stored).contains(&(at as u64)));
        let spoilt = |number: usize| {
            let Some(hit) = hit else { return false };
            number == hit || number > hit && !(hit + 1..=number).any(|at| entries[at].head.keyframe)
        };
        for number in 0..files.len() {
            assert_eq!(whole.contains(&(number as u64)), !spoilt(number), "byte {at}, member {number}");
        }
        pack[at] ^= bit;
    }
}

#[test]
fn bytes_taken_out_are_noticed() {
    let files = mixture();
    let (pack, entries) = write(options(FileForm::Pack, 3), &files);
    let starts: Vec<usize> = entries.iter().map(|entry| entry.offset as usize).collect();
    // Whole members: all remaining bytes have correct checksums.
    for from in 0..starts.len() {
        for to in from + 1..starts.len() {
            let without = [&pack[..starts[from]], &pack[starts[to]..]].concat();
            let (whole, walk) = check(&files, &without, &format!("members {from} to {to} taken out"));
            assert!(walk.is_some());
            assert!(!whole.contains(&(from as u64)));
        }
    }
    for at in (0..pack.len()).step_by(501) {
        check(&files, &[&pack[..at], &pack[at + 1..]].concat(), &format!("byte {at} taken out"));
        check(&files, &[&pack[..at], &[0], &pack[at..]].concat(), &format!("a byte put in at {at}"));
    }
}

#[test]
fn a_damaged_file_in_segment_form_gives_nothing() {
    // The file had only one member.
    let is_one = |lost: &[Loss]| matches!(lost, [Loss { number: 0, members: Some(1), .. }]);
    for file in mixture() {
        let files = [file];
        let (mut bytes, _) = write(options(FileForm::Segment, 1), &files);
        for at in (0..bytes.len()).step_by(3) {
            bytes[at] ^= 1 << (at % 8);
            let (whole, walk) = check(&files, &bytes, &format!("byte {at} of {}", files[0].0));
            assert!(at < 40 || whole.is_empty() && walk.is_some_and(|walk| is_one(&walk.lost)));
            bytes[at] ^= 1 << (at % 8);
        }
        for cut in 0..bytes.len().min(4000) {
            let (whole, _) = check(&files, &bytes[..cut], &format!("{} cut at {cut}", files[0].0));
            assert!(whole.is_empty());
        }
        bytes.push(0);
        let (_, walk) = salvage(&bytes);
        assert_eq!(walk.unwrap().damage.len(), 1, "a byte after the end");
    }
}

/// A pack within a pack, stored uncompressed. Its members are not mistaken for those of the outer pack.
#[test]
fn frames_of_a_file_inside_are_not_the_files_own() {
    let (inner, _) = write(options(FileForm::Pack, 1), &[("inner", crate::material::noise(2000))]);
    let files = [("inner.wpk", inner), ("after", b"after".to_vec())];
    let (mut outer, entries) = write(options(FileForm::Pack, 1), &files);
    outer[entries[0].offset as usize + 10] ^= 1;
    let (whole, walk) = check(&files, &outer, "the first member's head");
    assert_eq!(whole, BTreeSet::from([1]));
    assert_eq!(walk.unwrap().lost[0].name.as_deref(), Some("inner.wpk"));
}

#[test]
fn errors_say_where_and_what() {
    let files = mixture();
    let (mut pack, entries) = write(options(FileForm::Pack, 1), &files);
    let at = entries[1].offset as usize + 250;
    pack[at] ^= 1;
    let (_, walk) = salvage(&pack);
    let walk = walk.unwrap();
    let text = walk.damage[0].to_string();
    let piece = entries[1].offset as usize + 40 + entries[1].head_bytes.len();
    let start = format!(
        "cannot read a piece at offset {piece} of member 00000001000000000000000B: expected CRC-32C "
    );
    assert!(text.starts_with(&start) && text.contains(", found "), "{text}");
    assert!(walk.damage[0].hint().unwrap().contains("--salvage"));
    let place = walk.lost[0].place.unwrap();
    assert_eq!(
        (place.start.to_string(), place.end().to_string()),
        ("0/00B00000".into(), "0/00C00000".into())
    );
}

/// Content with a correct frame checksum that cannot be decoded.
#[test]
fn errors_of_content_say_which_and_why() {
    let [records, ..] = consecutive();
    let bytes = ("bytes", b"bytes".repeat(100));
    for (file, expected) in
        [(records, "the records of the segment at LSN 0/00A00000"), (bytes, "500 compressed bytes")]
    {
        let (coded, entries) = write(options(FileForm::Segment, 1), std::slice::from_ref(&file));
        let mut all = frames(&coded);
        *all[1].1.last_mut().unwrap() ^= 1;
        let (_, walk) = salvage(&mended(&coded, &all));
        let error = &walk.unwrap().damage[0];
        let piece = 80 + entries[0].head_bytes.len();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot read a piece at offset {piece} of member {}: expected {expected}, \
                 found content that cannot be decoded",
                file.0
            )
        );
        let source = std::error::Error::source(error).unwrap().to_string();
        assert!(source.starts_with("cannot "), "{source}");
    }
}

#[test]
fn other_files_are_told_apart() {
    let open = |bytes: &[u8]| Reader::open(Cursor::new(bytes.to_vec()), limits()).map(|_| ()).unwrap_err();
    assert!(matches!(open(b""), Error::Empty));
    assert!(matches!(open(b"\0"), Error::Foreign));
    assert!(matches!(
        open(b"\x28\xB5\x2F\xFDsomething else, and long enough to be a header"),
        Error::Foreign
    ));
    let (mut file, _) = write(options(FileForm::Segment, 1), &[("a", b"a")]);
    assert!(matches!(open(&file[..20]), Error::Damage(_)));
    // A later version, with a valid header.
    file[10] = 9;
    let checksum = walden_format::crc::crc32c_append(0, &file[..36]);
    file[36..40].copy_from_slice(&checksum.to_le_bytes());
    assert!(matches!(open(&file), Error::Newer(9)));
}

/// Impossible lengths, in frames with correct checksums.
#[test]
fn lengths_are_not_believed() {
    let (file, entries) = write(options(FileForm::Segment, 1), &[("a", b"a")]);
    let head = entries[0].offset as usize;
    let piece = head + 40 + 47;
    let seal = |bytes: &mut [u8], frame: usize| {
        let length = u64::from_le_bytes(bytes[frame + 24..frame + 32].try_into().unwrap());
        if let Some(content) =
            usize::try_from(length).ok().and_then(|length| bytes.get(frame + 40..frame + 40 + length))
        {
            let checksum = walden_format::crc::crc32c_append(0, content);
            bytes[frame + 32..frame + 36].copy_from_slice(&checksum.to_le_bytes());
        }
        let checksum = walden_format::crc::crc32c_append(0, &bytes[frame..frame + 36]);
        bytes[frame + 36..frame + 40].copy_from_slice(&checksum.to_le_bytes());
    };
    let refused = |bytes: &[u8]| {
        let (out, walk) = salvage(bytes);
        assert!(out.is_empty());
        walk.unwrap().damage[0].to_string()
    };
    for huge in [1 << 20, 1 << 40, u64::MAX / 2] {
        let mut bytes = file.clone();
        bytes[piece + 24..piece + 32].copy_from_slice(&u64::to_le_bytes(huge));
        seal(&mut bytes, piece);
        assert!(refused(&bytes).contains("bytes after it"));
        let mut bytes = file.clone();
        bytes[piece + 40..piece + 48].copy_from_slice(&u64::to_le_bytes(huge));
        seal(&mut bytes, piece);
        let text = refused(&bytes);
        assert!(text.contains("at most") || text.contains("expected"), "{text}");
    }
    let mut bytes = file.clone();
    bytes[head + 40..head + 48].copy_from_slice(&u64::MAX.to_le_bytes());
    seal(&mut bytes, head);
    let text = refused(&bytes);
    assert!(text.contains("expected member 1"), "{text}");
}

/// If pages beyond the memory limit cannot be stored, segments that need them are coded as bytes, and
/// decoding reports the error.
#[test]
fn pages_that_find_no_room_on_disk() {
    const CHILD: &str = "WALDEN_TEST_WITHOUT_TEMPORARY_FILES";
    if std::env::var_os(CHILD).is_none() {
        // The folder for temporary files is a setting of the process.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "damage::pages_that_find_no_room_on_disk"])
            .env(CHILD, "yes")
            .env("TMPDIR", "/nowhere")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let file = ("000000010000000000000009", segment("17.11", "000000010000000000000009"));
    let (few, many) = (8 * PAGE as u64, 64 << 20);
    let write = |page_memory| {
        let options = options(FileForm::Segment, 5).page_memory(page_memory);
        let (coded, entries) = write(options, std::slice::from_ref(&file));
        (coded, entries[0].head.form)
    };
    let (as_bytes, form) = write(few);
    assert_eq!(form, Form::Bytes);
    assert!(read(&as_bytes)[0].1 == file.1);
    let (as_records, form) = write(many);
    assert_eq!(form, Form::Records);
    let with = |page_memory| {
        let limits = ReadLimits::default().page_memory(page_memory);
        Reader::open(Cursor::new(&as_records), limits).unwrap()
    };
    let mut reader = with(few);
    let head = reader.next().unwrap().unwrap();
    match reader.decode(&head, &mut Vec::new()) {
        Err(Error::Temporary(why)) => assert!(why.contains("/nowhere"), "{why}"),
        other => panic!("{other:?}"),
    }
    // The file itself is valid.
    let mut reader = with(many);
    let head = reader.next().unwrap().unwrap();
    let mut original = Vec::new();
    reader.decode(&head, &mut original).unwrap();
    assert!(original == file.1);
}
