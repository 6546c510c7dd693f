//! Reads files of a later version. Additions that `docs/format.md` allows are ignored, and are covered by
//! bindings as it specifies.

use std::io::Cursor;

use walden_codec::container::{
    Binding, Error, FORMAT_VERSION, FileForm, ReadLimits, Reader, Writer, decompress, walk,
};

use crate::frames::{Assembly, END, FOOTER, Frames, HEAD, HEADER, INDEX, frames, mended};
use crate::material::{File, consecutive, limits, meta, mixture, options, read, write};

/// A part of a file that `docs/format.md` reserves for later versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addition {
    /// A higher version of the format, with the same oldest reader version.
    Version,
    /// Reserved bytes of the file header.
    HeaderBytes,
    /// Reserved bytes of each frame.
    FrameBytes,
    /// Frames of kinds from 128 on, before each other frame, and at the end of a file in segment form.
    Frames,
    /// Upper flags of heads.
    HeadFlags,
    /// Reserved bytes of heads.
    HeadBytes,
    /// Bytes after the name in a head.
    AfterHead,
    /// Bytes after the binding in an end.
    AfterEnd,
}

impl Addition {
    pub const ALL: [Addition; 8] = [
        Addition::Version,
        Addition::HeaderBytes,
        Addition::FrameBytes,
        Addition::Frames,
        Addition::HeadFlags,
        Addition::HeadBytes,
        Addition::AfterHead,
        Addition::AfterEnd,
    ];
}

/// Returns a file as the writer of a later version may create it with these additions. Bindings, index and
/// footer cover them.
pub fn with_additions(file: &[u8], additions: &[Addition]) -> Vec<u8> {
    let has = |addition| additions.contains(&addition);
    let mut header = file[..HEADER].to_vec();
    if has(Addition::Version) {
        header[8..10].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    }
    if has(Addition::HeaderBytes) {
        header[14..16].copy_from_slice(&[0xA1, 0xA2]);
        header[32..36].copy_from_slice(&[0xB1, 0xB2, 0xB3, 0xB4]);
    }
    let mut made = Assembly::new(&header);
    if has(Addition::FrameBytes) {
        made.reserved = [0xC1, 0xC2, 0xC3];
    }
    let mut extra_kinds = [129, 200, 255].into_iter().cycle();
    let mut add_extra = |made: &mut Assembly| {
        if has(Addition::Frames) {
            let kind = extra_kinds.next().unwrap();
            // One of them is empty.
            let content = if kind == 200 { &b""[..] } else { b"what a later version adds" };
            made.add(kind, content);
        }
    };
    let mut binding = *blake3::hash(&made.file).as_bytes();
    let (mut index, mut members) = (Vec::new(), 0_u64);
    let (mut start, mut head) = ((0, 0), Vec::new());
    let (mut index_at, mut index_hash) = (0, [0; 32]);
    for (kind, mut content) in frames(file) {
        add_extra(&mut made);
        let offset = made.file.len() as u64;
        match kind {
            HEAD => {
                if has(Addition::HeadFlags) {
                    content[9] |= 0xF0;
                }
                if has(Addition::HeadBytes) {
                    content[10..12].copy_from_slice(&[0xD1, 0xD2]);
                }
                if has(Addition::AfterHead) {
                    content.extend(b"what a later version says of the member");
                }
                (start, head) = ((offset, made.frames), content.clone());
                made.add(kind, &content);
            }
            END => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&binding).update(&(head.len() as u64).to_le_bytes()).update(&head);
                binding = *hasher.update(&content[..40]).finalize().as_bytes();
                content[40..72].copy_from_slice(&binding);
                let end = content.clone();
                if has(Addition::AfterEnd) {
                    content.extend(b"what a later version says of the original");
                }
                made.add(kind, &content);
                members += 1;
                for number in [start.0, start.1, made.file.len() as u64 - start.0] {
                    index.extend(number.to_le_bytes());
                }
                index.extend(end);
                index.extend((head.len() as u32).to_le_bytes());
                index.extend(&head);
            }
            INDEX => {
                let content = [&members.to_le_bytes(), &index[..]].concat();
                (index_at, index_hash) = (offset, *blake3::hash(&content).as_bytes());
                made.add(kind, &content);
            }
            FOOTER => {
                let numbers = [index_at.to_le_bytes(), members.to_le_bytes()].concat();
                made.add(kind, &[&numbers[..], &binding, &index_hash].concat());
            }
            kind => made.add(kind, &content),
        }
    }
    if header[12] == FileForm::Segment as u8 {
        add_extra(&mut made);
    }
    made.file
}

/// Returns files in both forms, of records and of bytes, and their members.
fn material() -> Vec<(Vec<u8>, Vec<File>)> {
    let [first, ..] = consecutive();
    let single = |file: &File| {
        (write(options(FileForm::Segment, 1), std::slice::from_ref(file)).0, vec![file.clone()])
    };
    vec![
        single(&first),
        single(&("text", b"text".to_vec())),
        (write(options(FileForm::Pack, 1), &mixture()).0, mixture()),
        (write::<&str, &[u8]>(options(FileForm::Pack, 1), &[]).0, Vec::new()),
    ]
}

/// Checks that each way to read a file returns these members.
fn check(file: &[u8], expected: &[File], what: &str) {
    let back = read(file);
    assert!(
        back.iter()
            .map(|(name, bytes)| (&name[..], bytes))
            .eq(expected.iter().map(|(name, bytes)| (*name, bytes))),
        "{what}"
    );

    let mut streamed = Vec::new();
    decompress(file, &mut streamed, ReadLimits::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(streamed == expected.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), "{what}");

    let mut reader = Reader::open(Cursor::new(file), limits()).unwrap();
    let (entries, fault) = reader.entries();
    assert!(fault.is_none() && entries.len() == expected.len(), "{what}: {fault:?}");
    for entry in entries.iter().filter(|entry| entry.head.keyframe) {
        let head = reader.seek(entry).unwrap_or_else(|error| panic!("{what}: {error}"));
        let member = reader.decode(&head, &mut std::io::sink()).unwrap();
        assert_eq!((member.stored, member.end), (entry.stored, entry.end), "{what}");
    }

    let walk =
        walk(Cursor::new(file), limits(), &mut |reader, head| reader.decode(head, &mut std::io::sink()))
            .unwrap();
    assert!(walk.damage.is_empty() && walk.lost.is_empty(), "{what}: {:?}", walk.damage);
    assert!(walk.members.iter().all(|(_, member)| member.binding == Binding::Verified), "{what}");
}

#[test]
fn a_file_without_additions_is_the_same() {
    for (file, _) in material() {
        assert!(with_additions(&file, &[]) == file);
    }
}

#[test]
fn what_later_versions_add_is_left_out() {
    for (file, members) in material() {
        for addition in Addition::ALL {
            check(&with_additions(&file, &[addition]), &members, &format!("{addition:?}"));
        }
        check(&with_additions(&file, &Addition::ALL), &members, "all additions");
    }
}

/// Salvage: a damaged addition costs no member.
#[test]
fn members_behind_a_damaged_addition_come_out() {
    let files = mixture();
    let mut pack = with_additions(&write(options(FileForm::Pack, 1), &files).0, &Addition::ALL);
    // The first frame is an addition.
    pack[HEADER + 20] ^= 1;
    let walk =
        walk(Cursor::new(&pack), limits(), &mut |reader, head| reader.decode(head, &mut std::io::sink()))
            .unwrap();
    assert_eq!((walk.damage.len(), walk.members.len(), walk.lost.len()), (1, files.len(), 0));
    assert!(walk.members.iter().all(|(_, member)| member.binding == Binding::Verified));
}

/// Where the binding covers an addition, a change to it is found, even if all checksums were recomputed.
#[test]
fn additions_are_in_the_binding_where_the_specification_says_so() {
    let (file, _) = write(options(FileForm::Segment, 1), &[("text", "text")]);
    let file = with_additions(&file, &Addition::ALL);
    let all = frames(&file);
    let number_of = |kind| all.iter().position(|frame| frame.0 == kind).unwrap();
    let (head, end) = (number_of(HEAD), number_of(END));
    let is_good = |header: &[u8], frames: &Frames| {
        decompress(&mended(header, frames)[..], std::io::sink(), ReadLimits::default()).map(drop)
    };
    // `mended` writes zeros to the reserved bytes of frames, which no binding covers.
    is_good(&file, &all).unwrap();
    let is_refused = |header: &[u8], frames: &Frames, what: &str| {
        let error = is_good(header, frames).expect_err(what).to_string();
        assert!(error.contains("bound to its name"), "{what}: {error}");
    };
    for at in [8, 14, 15, 32, 35] {
        let mut header = file[..HEADER].to_vec();
        header[at] ^= 4;
        is_refused(&header, &all, &format!("byte {at} of the header"));
    }
    let last = all[head].1.len() - 1;
    for at in [9, 10, 11, last] {
        let mut changed = all.clone();
        changed[head].1[at] ^= 0x40;
        is_refused(&file, &changed, &format!("byte {at} of the head"));
    }
    let mut longer = all.clone();
    longer[head].1.push(0);
    is_refused(&file, &longer, "a longer head");

    let mut changed = all.clone();
    *changed[end].1.last_mut().unwrap() ^= 1;
    changed[0].1.push(1);
    changed.remove(end + 1);
    is_good(&file, &changed).expect("what is after an end and frames that are left out are in no binding");
}

#[test]
fn frames_that_are_added_are_found_and_left_out() {
    let files = mixture();
    for form in [FileForm::Segment, FileForm::Pack] {
        let members = if form == FileForm::Pack { &files[..] } else { &files[2..3] };
        let mut writer = Writer::new(Vec::new(), options(form, 1));
        writer.add_extra(130, b"before the first member").unwrap();
        for (name, bytes) in members {
            writer.add(meta(name), false, &mut Cursor::new(bytes)).unwrap();
        }
        for (kind, content) in [(128, &b"one"[..]), (255, b""), (128, b"two")] {
            writer.add_extra(kind, content).unwrap();
        }
        for kind in [0, 1, 5, 6, 127] {
            let error = writer.add_extra(kind, b"").unwrap_err();
            assert!(matches!(error, Error::ExtraKind(found) if found == kind), "{error}");
        }
        let file = writer.finish().unwrap();
        check(&file, members, "added frames");
        if form == FileForm::Pack {
            let mut reader = Reader::open(Cursor::new(&file), limits()).unwrap();
            let index = reader.index().unwrap();
            for (kind, expected) in
                [(128, &["one", "two"][..]), (255, &[""]), (129, &[]), (130, &[]), (3, &[])]
            {
                assert!(
                    reader
                        .extras(&index, kind)
                        .unwrap()
                        .iter()
                        .eq(expected.iter().map(|content| content.as_bytes()))
                );
            }
        }
    }
}
