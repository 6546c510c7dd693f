//! Compares an archive with a server that has segments which the archive lacks.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use walden_archive::Archive;
use walden_archive::against::{AgainstError, Facts, Mark, Outcome, Server, ServerError, ServerFile, compare};
use walden_archive::archive::ArchiveError;
use walden_archive::name::ArchivedFile;
use walden_archive::push::{PushOptions, push};
use walden_archive::store::Folder;
use walden_format::lsn::Lsn;

use crate::material::{archive, archive_of, log, log_without_commits, pg_wal, stored};

/// A server whose `pg_wal` is a folder.
struct Local {
    wal: PathBuf,
    facts: Facts,
    marks: Vec<(String, Mark)>,
}

impl Server for Local {
    fn facts(&mut self) -> Result<Facts, ServerError> {
        Ok(self.facts.clone())
    }

    fn files(&mut self) -> Result<Vec<ServerFile>, ServerError> {
        let file = |(name, mark): &(String, Mark)| ServerFile {
            file: ArchivedFile::parse(name).expect("a segment's name"),
            bytes: 1 << 20,
            mark: *mark,
        };
        Ok(self.marks.iter().map(file).collect())
    }

    fn open(&mut self, file: ArchivedFile) -> Box<dyn Read + '_> {
        Box::new(fs::File::open(self.wal.join(file.to_string())).expect("a segment"))
    }
}

#[test]
fn what_waits_is_no_gap_and_what_nobody_archives_is_filled() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 5);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let options = PushOptions::default().look_ahead(0);
    // As if look-ahead archived the fourth segment before the third.
    for number in [0, 1, 3] {
        push(&archive, &wal.join(&files[number].0), &options).asked.expect("archived");
    }
    let system_identifier = archive.identity().expect("one").system_identifier.parse().expect("a number");
    let facts = Facts {
        system_identifier,
        segment_bytes: 1 << 20,
        timeline: 1,
        written: Lsn(6 << 20),
        is_standby: false,
    };
    let marks = [Mark::Done, Mark::Done, Mark::Ready, Mark::Done, Mark::Ready];
    let marks = files.iter().map(|(name, _)| name.clone()).zip(marks).collect();
    let mut server = Local { wal, facts, marks };
    let compared = compare(&archive, &mut server, None).expect("an answer");
    assert!(compared.is_good(), "{compared:?}");
    assert_eq!((compared.compared, compared.waiting, compared.gaps.len()), (5, 2, 0));

    server.marks[2].1 = Mark::Done;
    let compared = compare(&archive, &mut server, None).expect("an answer");
    assert!(!compared.is_good(), "{compared:?}");
    let missing: Vec<_> = compared.missing.iter().map(|one| (one.file.as_str(), one.outcome)).collect();
    assert_eq!(missing, [(files[2].0.as_str(), Outcome::Found)]);
    assert_eq!((compared.waiting, compared.gaps.len()), (1, 1));

    let compared = compare(&archive, &mut server, Some(&options)).expect("an answer");
    assert!(compared.is_good() && compared.gaps.is_empty(), "{compared:?}");
    assert_eq!(compared.missing[0].outcome, Outcome::Filled);
}

#[test]
fn what_waits_because_the_archive_refuses_it_is_not_well() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 4);
    let wal = pg_wal(root.path(), &files);
    let archive = archive(root.path());
    let options = PushOptions::default().look_ahead(0);
    for number in [0, 1] {
        push(&archive, &wal.join(&files[number].0), &options).asked.expect("archived");
    }
    let system_identifier = archive.identity().expect("one").system_identifier.parse().expect("a number");
    let written = Lsn(5 << 20);
    let facts = Facts { system_identifier, segment_bytes: 1 << 20, timeline: 1, written, is_standby: false };
    let marks = [Mark::Done, Mark::Ready, Mark::Ready, Mark::Ready];
    let marks = files.iter().map(|(name, _)| name.clone()).zip(marks).collect();
    let mut server = Local { wal: wal.clone(), facts, marks };
    // Archived ahead, and not marked yet.
    let compared = compare(&archive, &mut server, None).expect("an answer");
    assert!(compared.is_good() && compared.refused.is_none(), "{compared:?}");
    assert_eq!((compared.waiting, compared.offered), (2, 1));
    // Content that differs from the archived one, and damage.
    for number in [1, 2] {
        let mut bad = files[number].1.clone();
        bad[5000] ^= 1;
        fs::write(wal.join(&files[number].0), bad).expect("a segment");
        let compared = compare(&archive, &mut server, None).expect("an answer");
        assert_eq!(compared.refused.as_ref().map(|refused| &refused.file), Some(&files[number].0));
        assert!(!compared.is_good(), "{compared:?}");
        server.marks[number].1 = Mark::Done;
    }
}

/// A clone, or another server that was promoted to the same timeline.
#[test]
fn nothing_is_filled_from_a_server_of_another_history() {
    let own = log(1, 1, 4);
    // The content differs from the second segment on, and from the third one on.
    let differs = [&own[..1], &log_without_commits(1, 2, 3)].concat();
    let does_not_follow = [&own[..2], &log(1, 3, 2)].concat();
    for (files, file) in [(differs, 1), (does_not_follow, 2)] {
        let root = tempfile::tempdir().expect("a folder");
        let archive = archive_of(root.path(), &own[..2]);
        let wal = pg_wal(&root.path().join("other"), &files);
        let system_identifier = archive.identity().expect("one").system_identifier.parse().expect("a number");
        let written = Lsn(5 << 20);
        let facts =
            Facts { system_identifier, segment_bytes: 1 << 20, timeline: 1, written, is_standby: false };
        let marks = files.iter().map(|(name, _)| (name.clone(), Mark::Done)).collect();
        let mut server = Local { wal, facts, marks };
        for repair in [None, Some(&PushOptions::default())] {
            let compared = compare(&archive, &mut server, repair).expect("an answer");
            let found = compared.other_history.as_ref().expect("another history");
            assert_eq!(found.file, files[file].0, "{compared:?}");
            assert!(found.lsn.starts_with("0/") && !found.hint.is_empty(), "{found:?}");
            assert!(!compared.is_good() && compared.missing.len() == 2, "{compared:?}");
            assert!(compared.missing.iter().all(|one| one.outcome == Outcome::Found), "{compared:?}");
        }
        assert_eq!(stored(archive.store()).len(), 2);
    }
}

#[test]
fn a_place_without_an_archive_is_not_one_that_lacks_everything() {
    let root = tempfile::tempdir().expect("a folder");
    let files = log(1, 1, 3);
    let facts = Facts {
        system_identifier: 7,
        segment_bytes: 1 << 20,
        timeline: 1,
        written: Lsn(4 << 20),
        is_standby: false,
    };
    let marks = files.into_iter().map(|(name, _)| (name, Mark::Done)).collect();
    let mut server = Local { wal: root.path().join("pg_wal"), facts, marks };
    let nowhere = Archive::new(Box::new(Folder::new(root.path().join("archive"))));
    for repair in [None, Some(&PushOptions::default())] {
        let compared = compare(&nowhere, &mut server, repair);
        assert!(matches!(compared, Err(AgainstError::Archive(ArchiveError::Missing(_)))), "{compared:?}");
    }
    assert!(!root.path().join("archive").exists());
}
