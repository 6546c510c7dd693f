//! Records that continue in other segments, whose checksums only the segments together can confirm.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use walden_archive::archive::Archive;
use walden_archive::check::Refusal;
use walden_archive::import::{ImportOptions, Imported, SourceFile, find, import};
use walden_archive::push::{PushError, PushOptions, Pushed, push};
use walden_archive::verify::{VerifyOptions, verify};
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_testing::writer::LogWriter;

use crate::material::{archive, pg_wal};

const SEGMENT: usize = 1 << 20;

/// Writes five segments of 1 MB. A record of 2.5 MB starts at the returned LSN in the first one.
fn segments() -> (Vec<(String, Vec<u8>)>, Lsn, u64) {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    let mut records = 0;
    let fill = |writer: &mut LogWriter, end: usize| {
        let mut count = 0;
        while writer.bytes.len() < end {
            writer.main_data(rmid::XLOG, 0x20, &[0x5a; 200]);
            count += 1;
        }
        count
    };
    records += fill(&mut writer, SEGMENT / 2);
    let large: Vec<u8> = (0..2_500_000_u32).map(|byte| (byte % 251) as u8).collect();
    let at = writer.main_data(rmid::XLOG, 0x20, &large);
    // Records of about 200 bytes cross the end of the fourth segment, too.
    records += 1 + fill(&mut writer, 4 * SEGMENT + SEGMENT / 2);
    writer.switch();
    let (start, size) = (writer.start, writer.info.segment_size);
    let first = size.segment_of(start);
    let named = writer.bytes.chunks(SEGMENT).zip(first..);
    let name = |number| SegmentName::new(1, number, size).to_string();
    (named.map(|(bytes, number)| (name(number), bytes.to_vec())).collect(), at, records + 1)
}

fn push_one(archive: &Archive, wal: &Path, name: &str, options: &PushOptions) -> Result<Pushed, PushError> {
    push(archive, &wal.join(name), &options.clone().look_ahead(1)).asked
}

fn import_all(wal: &Path) -> Imported {
    let root = tempfile::tempdir().expect("a folder");
    let source = find(wal, None, None).expect("a source");
    let open = |file: &SourceFile| -> io::Result<Box<dyn Read>> { Ok(Box::new(File::open(&file.path)?)) };
    import(&archive(root.path()), source, &ImportOptions::new(1), &open, &|_, _| ()).expect("an import")
}

#[test]
fn a_record_in_several_segments_is_checked_with_the_last_one() {
    let (intact, at, records) = segments();
    // Nothing, the first part, a whole segment, the last part; and a record between two segments.
    for (flipped, refused) in [
        (None, None),
        (Some((0, SEGMENT - 9)), Some(2)),
        (Some((1, 99_999)), Some(2)),
        (Some((2, 50)), Some(2)),
    ] {
        let root = tempfile::tempdir().expect("a folder");
        let archive = archive(root.path());
        let mut files = intact.clone();
        if let Some((segment, offset)) = flipped {
            files[segment].1[offset] ^= 0x10;
        }
        let wal = pg_wal(root.path(), &files);
        fs::remove_dir_all(wal.join("archive_status")).expect("the marks");
        let mut first_refused = None;
        for (number, (name, _)) in files.iter().enumerate() {
            match push_one(&archive, &wal, name, &PushOptions::default()) {
                Ok(_) => {}
                Err(PushError::Refused { refusal: Refusal::Crossing { at: found, .. }, .. }) => {
                    assert_eq!(found, at);
                    first_refused = Some(number);
                    break;
                }
                Err(error) => panic!("{flipped:?}, {name}: {error:?}"),
            }
        }
        assert_eq!(first_refused, refused, "{flipped:?}");
        if refused.is_some() {
            for (name, _) in &files[2..] {
                let options = PushOptions::default().accept_damaged(true);
                push_one(&archive, &wal, name, &options).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            }
        }
        let verified = verify(&archive, VerifyOptions::default(), &|_, _| {}).expect("verified");
        let problems: Vec<&str> = verified.damaged.iter().map(|finding| finding.problem.as_str()).collect();
        match refused {
            None => {
                assert!(import_all(&wal).damaged.is_empty());
                assert!(problems.is_empty(), "{problems:?}");
                assert_eq!(verified.records, records);
            }
            Some(segment) => {
                let imported = import_all(&wal);
                let damaged: Vec<&str> = imported.damaged.iter().map(|one| one.file.as_str()).collect();
                assert_eq!(damaged, [files[segment].0.as_str()], "{imported:?}");
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].contains(&files[segment].0), "{problems:?}");
                assert!(problems[0].contains(&format!("the record at {at}")), "{problems:?}");
            }
        }
    }
}
