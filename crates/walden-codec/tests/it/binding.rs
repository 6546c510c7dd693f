//! Members are bound to their names, to each other and to the index. Splicing, reordering, renaming,
//! shortening and extending are detected, even if all numbers and checksums were recomputed. All members are
//! still extracted.

use std::io::Cursor;

use walden_codec::container::{Binding, FileForm, Reader, Walk, walk};
use walden_format::crc::crc32c_append;

use crate::frames::{FOOTER, Frames, HEAD, INDEX, PIECE, frames, mended};
use crate::material::{File, limits, mixture, options, read, segment, write};

/// Returns the frames of each member of a pack, and those after the last member.
fn members(pack: &[u8]) -> (Vec<Frames>, Frames) {
    let mut members: Vec<Frames> = Vec::new();
    let mut after = Vec::new();
    for frame in frames(pack) {
        match frame.0 {
            HEAD => members.push(vec![frame]),
            INDEX | FOOTER => after.push(frame),
            _ => members.last_mut().unwrap().push(frame),
        }
    }
    (members, after)
}

/// Checks that readers in order and by index reject the file, and that a walk reports damage.
fn refused(file: &[u8], what: &str) -> Walk {
    let in_order = || {
        let mut reader = Reader::open(Cursor::new(file), limits())?;
        while let Some(head) = reader.next()? {
            reader.decode(&head, &mut std::io::sink())?;
        }
        Ok::<_, walden_codec::container::Error>(())
    };
    in_order().expect_err(what);
    let mut reader = Reader::open_stream(file, limits()).unwrap();
    let as_stream = loop {
        match reader.next() {
            Ok(Some(head)) => match reader.decode(&head, &mut std::io::sink()) {
                Ok(_) => {}
                Err(error) => break Err(error),
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    as_stream.expect_err(what);
    let walked =
        walk(Cursor::new(file), limits(), &mut |reader, head| reader.decode(head, &mut std::io::sink()));
    let walked = walked.unwrap();
    assert!(!walked.damage.is_empty(), "{what}");
    walked
}

/// Writes a pack in which every member is a keyframe.
fn pack(files: &[File]) -> Vec<u8> {
    write(options(FileForm::Pack, 1).keyframe(1), files).0
}

fn names(walk: &Walk, binding: Binding) -> Vec<&str> {
    let of = walk.members.iter().filter(|(_, summary)| summary.binding == binding);
    of.map(|(head, _)| std::str::from_utf8(&head.meta.name).unwrap()).collect()
}

#[test]
fn what_is_mended_without_a_change_is_good() {
    let pack = pack(&mixture());
    assert!(mended(&pack, &frames(&pack)) == pack);
    assert_eq!(read(&pack).len(), mixture().len());
}

#[test]
fn a_member_of_another_pack_is_found() {
    let [a, b, c] = [("a", b"one".to_vec()), ("b", b"two".to_vec()), ("c", b"three".to_vec())];
    let (first, second) = (pack(&[a.clone(), b]), pack(&[a, c]));
    let (mut members_of_first, after) = members(&first);
    members_of_first[1] = members(&second).0.remove(1);
    let spliced = mended(&first, &[members_of_first.concat(), after.clone()].concat());
    let walk = refused(&spliced, "a spliced member");
    assert_eq!((names(&walk, Binding::Verified), names(&walk, Binding::Broken)), (vec!["a"], vec!["c"]));
    let lost: Vec<_> = walk.lost.iter().map(|loss| (loss.number, loss.name.as_deref())).collect();
    assert_eq!(lost, [(1, Some("b"))], "and what should be there is missed");
    let mut reader = Reader::open(Cursor::new(&spliced), limits()).unwrap();
    let (entries, fault) = reader.entries();
    assert!(fault.is_none() && entries.len() == 2, "the index is good");
    let head = reader.next().unwrap().unwrap();
    reader.decode(&head, &mut std::io::sink()).unwrap();
    let error = reader.next().unwrap_err().to_string();
    assert!(error.contains("expected b at offset") && error.contains("found c"), "{error}");
}

#[test]
fn members_in_another_order_or_number_are_found() {
    let pack = pack(&mixture());
    let (all, after) = members(&pack);
    for first in 0..all.len() {
        let without = [&all[..first], &all[first + 1..]].concat().concat();
        refused(&mended(&pack, &[without, after.clone()].concat()), "a member taken out");
        let twice = [&all[..=first], &all[first..]].concat().concat();
        refused(&mended(&pack, &[twice, after.clone()].concat()), "a member twice");
        for second in first + 1..all.len() {
            let mut swapped = all.clone();
            swapped.swap(first, second);
            refused(&mended(&pack, &[swapped.concat(), after.clone()].concat()), "another order");
        }
    }
    // A shorter pack with an index of its own differs from a valid one only in its bindings.
    let shorter = all[..all.len() - 1].concat();
    refused(&mended(&pack, &[shorter, after].concat()), "shortened");
}

#[test]
fn a_member_behind_the_index_is_found() {
    let pack = pack(&mixture());
    let (all, after) = members(&pack);
    let (index, footer) = (after[..1].to_vec(), after[1..].to_vec());
    let behind = [all.concat(), index.clone(), all[0].clone(), footer.clone()].concat();
    let walk = refused(&mended(&pack, &behind), "a member behind the index");
    assert_eq!(walk.members.len(), all.len() + 1, "it comes out, and is said to belong nowhere");
    refused(&mended(&pack, &[all.concat(), index.clone(), index, footer].concat()), "two indexes");
}

/// Returns the error of reading a file in order.
fn fault(file: &[u8]) -> String {
    let mut reader = Reader::open(Cursor::new(file), limits()).unwrap();
    loop {
        match reader.next().and_then(|head| match head {
            Some(head) => reader.decode(&head, &mut std::io::sink()).map(Some),
            None => Ok(None),
        }) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("read without an error"),
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                return [Some(error.to_string()), source]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(": ");
            }
        }
    }
}

#[test]
fn files_of_other_frames_than_their_form_has_are_found() {
    let one = write(options(FileForm::Segment, 1), &[("one", b"some bytes".to_vec())]).0;
    let (_, after) = members(&pack(&mixture()));
    let fault_of = |frames: &Frames| fault(&mended(&one, frames));
    // An empty pack with the header of the other form.
    let nothing = vec![(INDEX, vec![0; 8]), after[1].clone()];
    assert!(fault_of(&nothing).contains("expected a member, found a frame of kind 4"));
    let mut longer = frames(&one);
    let piece = longer.iter_mut().find(|frame| frame.0 == PIECE).unwrap();
    piece.1.push(0);
    let found = fault_of(&longer);
    assert!(found.contains("expected one compressed part, found bytes after it"), "{found}");

    let records =
        write(options(FileForm::Segment, 1), &[("one", segment("15.18", "000000010000000000000009"))]).0;
    let mut without: Frames = frames(&records);
    without.retain(|frame| frame.0 != PIECE);
    let found = fault(&mended(&records, &without));
    assert!(found.contains("expected one piece, found none"), "{found}");
}

#[test]
fn an_index_that_has_members_elsewhere_is_found() {
    let pack = pack(&mixture());
    let all = frames(&pack);
    let index = all.len() - 2;
    // The offset of the first entry, and the length of its member, with a correct hash in the footer.
    for (at, bits, expected) in
        [(8, 0x04, "member 2 between offsets"), (24 + 6, 0x7F, "member 1 between"), (24, 1, "")]
    {
        let mut changed = all.clone();
        changed[index].1[at] ^= bits;
        let hash = *blake3::hash(&changed[index].1).as_bytes();
        changed[index + 1].1[48..80].copy_from_slice(&hash);
        let file = mended(&pack, &changed);
        refused(&file, "an index of other places");
        let mut reader = Reader::open(Cursor::new(&file), limits()).unwrap();
        match reader.index() {
            Err(error) => assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}"),
            Ok(entries) => {
                assert!(expected.is_empty());
                let head = reader.seek(&entries[0]).unwrap();
                reader.decode(&head, &mut std::io::sink()).expect_err("another length than the index has");
            }
        }
    }
    let mut changed = all;
    changed[index + 1].1[7] = 0x80;
    let mut file = mended(&pack, &changed);
    let footer = file.len() - changed[index + 1].1.len();
    file[footer + 7] = 0x80;
    let checksum = crc32c_append(0, &file[footer..]);
    file[footer - 8..footer - 4].copy_from_slice(&checksum.to_le_bytes());
    let checksum = crc32c_append(0, &file[footer - 40..footer - 4]);
    file[footer - 4..footer].copy_from_slice(&checksum.to_le_bytes());
    let error = Reader::open(Cursor::new(&file), limits()).unwrap().index().unwrap_err().to_string();
    assert!(error.contains("expected an index before it"), "{error}");
}

#[test]
fn a_name_of_another_member_is_found() {
    for pack in [pack(&mixture()), write(options(FileForm::Pack, 1), &mixture()).0] {
        let (all, after) = members(&pack);
        for (first, second) in [(0, 1), (1, 3), (4, 6)] {
            let mut swapped = all.clone();
            let (head, other) = (swapped[first][0].clone(), swapped[second][0].clone());
            (swapped[first][0], swapped[second][0]) = (other, head);
            let walk = refused(&mended(&pack, &[swapped.concat(), after.clone()].concat()), "swapped heads");
            assert!(!walk.damage.is_empty());
        }
    }
    let [one, two] = ["one", "two"].map(|name| write(options(FileForm::Segment, 1), &[(name, name)]).0);
    let (mut frames_of_one, frames_of_two) = (frames(&one), frames(&two));
    frames_of_one[0] = frames_of_two[0].clone();
    let walk = refused(&mended(&one, &frames_of_one), "another file's name");
    assert_eq!(names(&walk, Binding::Broken), ["two"]);
}

#[test]
fn the_header_is_bound_to_what_follows() {
    let mut file = pack(&mixture());
    // The level and the needs of the file.
    for (at, bits) in [(13, 3), (24, 1), (30, 0x0C)] {
        let was = file[at];
        file[at] ^= bits;
        let checksum = crc32c_append(0, &file[..36]);
        file[36..40].copy_from_slice(&checksum.to_le_bytes());
        refused(&file, "another header");
        file[at] = was;
    }
}

#[test]
fn an_index_of_other_places_or_a_footer_of_another_index_is_found() {
    let pack = pack(&mixture());
    let all = frames(&pack);
    let index = all.len() - 2;
    for at in (0..all[index].1.len()).step_by(11) {
        let mut changed = all.clone();
        changed[index].1[at] ^= 1;
        refused(&mended(&pack, &changed), "a changed index");
    }
    for at in 0..all[index + 1].1.len() {
        let mut file = pack.clone();
        let footer = file.len() - all[index + 1].1.len();
        file[footer + at] ^= 1;
        let checksum = crc32c_append(0, &file[footer..]);
        file[footer - 8..footer - 4].copy_from_slice(&checksum.to_le_bytes());
        let checksum = crc32c_append(0, &file[footer - 40..footer - 4]);
        file[footer - 4..footer].copy_from_slice(&checksum.to_le_bytes());
        let walk = refused(&file, "a changed footer");
        assert_eq!(names(&walk, Binding::Verified).len(), mixture().len(), "all members are there");
    }
}

/// The index verifies members extracted after damage. Without an index, they are reported as unverified.
#[test]
fn behind_damage_the_index_says_what_belongs_there() {
    let files = mixture();
    let mut file = pack(&files);
    let (entries, _) = Reader::open(Cursor::new(&file), limits()).unwrap().entries();
    file[entries[1].offset as usize + 150] ^= 1;
    let walk = refused(&file, "a flipped bit");
    assert_eq!(names(&walk, Binding::Verified).len(), files.len() - 1);
    file.truncate(file.len() - 1);
    let walk = refused(&file, "a flipped bit and no footer");
    // The first member after the damage. The others are bound to it.
    assert_eq!(names(&walk, Binding::Unknown), [files[2].0]);
    assert_eq!(names(&walk, Binding::Verified).len(), files.len() - 2);
}
