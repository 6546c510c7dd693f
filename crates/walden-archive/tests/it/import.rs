//! Imports from other archives: only files of the archive's own cluster are accepted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use walden_archive::Archive;
use walden_archive::import::{ImportOptions, Imported, SourceFile, find, import};
use walden_archive::name::ArchivedFile;

use crate::material::{archive, archive_of, complete, log, pg_wal};

const HISTORY: (&str, &[u8]) = ("00000002.history", b"1\t0/2300000\tno recovery target specified\n");
const BACKUP: (&str, &[u8]) = (
    "000000010000000000000022.00000028.backup",
    b"START WAL LOCATION: 0/2200028 (file 000000010000000000000022)\n",
);

fn open(file: &SourceFile) -> io::Result<Box<dyn Read>> {
    Ok(Box::new(File::open(&file.path)?))
}

fn import_all(archive: &Archive, source: &Path) -> Imported {
    let identifier = archive.identity().ok().map(|identity| identity.system_identifier.clone());
    let source = find(source, None, identifier.as_deref()).expect("a source");
    let options = ImportOptions::new(1).accept_damaged(false).accept_unknown_versions(false).threads(2);
    import(archive, source, &options, &open, &|_, _| ()).expect("an import")
}

/// Creates a folder with these files, a history and a backup history file. The latter two do not identify
/// their cluster.
fn source(folder: &Path, files: &[(String, Vec<u8>)]) {
    fs::create_dir_all(folder).expect("a folder");
    let texts = [HISTORY, BACKUP].map(|(name, text)| (name.to_owned(), text.to_vec()));
    for (name, content) in files.iter().chain(&texts) {
        fs::write(folder.join(name), content).expect("a file");
    }
}

/// Returns whether the archive has any history or backup history file.
fn has_texts(archive: &Archive) -> bool {
    let mut found = 0;
    for prefix in ["history/", "backup/"] {
        archive.store().list(prefix, &mut |_| found += 1).expect("a list");
    }
    found > 0
}

/// Expects that only the history and the backup history file were refused, for this reason.
fn expect_texts_refused(archive: &Archive, imported: &Imported, why: &str) {
    let texts: Vec<_> = imported.refused.iter().filter(|one| one.file.contains('.')).collect();
    let names: Vec<_> = texts.iter().map(|one| one.file.as_str()).collect();
    assert_eq!(names, [BACKUP.0, HISTORY.0], "{imported:?}");
    for one in texts {
        assert!(one.problem.contains(why) && one.hint.is_some(), "{one:?}");
    }
    assert!(!has_texts(archive));
}

#[test]
fn files_that_do_not_say_their_cluster_are_of_that_of_the_segments_beside_them() {
    let root = tempfile::tempdir().expect("a folder");
    let own = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &own[..2]);
    let (foreign, both, none) =
        (root.path().join("foreign"), root.path().join("both"), root.path().join("none"));
    source(&foreign, &complete());
    let imported = import_all(&archive, &foreign);
    expect_texts_refused(&archive, &imported, "belongs to another cluster");
    assert_eq!((imported.imported, imported.refused.len()), (0, 4), "{imported:?}");
    source(&both.join("a"), &own[2..3]);
    for (name, content) in complete() {
        fs::create_dir_all(both.join("b")).expect("a folder");
        fs::write(both.join("b").join(name), content).expect("a file");
    }
    let imported = import_all(&archive, &both);
    expect_texts_refused(&archive, &imported, "has segments of several clusters");
    assert_eq!(imported.imported, 1, "{imported:?}");
    source(&none, &[]);
    expect_texts_refused(
        &archive,
        &import_all(&archive, &none),
        "expected segments in the source that identify it",
    );
    // Segments that are already archived identify the cluster as well as new ones.
    let mine = root.path().join("mine");
    source(&mine, &own[..1]);
    let imported = import_all(&archive, &mine);
    assert_eq!((imported.imported, imported.present, imported.refused.len()), (2, 1, 0), "{imported:?}");
    // They are archived now, so any source may offer them.
    assert_eq!(import_all(&archive, &none).present, 2);
}

/// All clusters use the same segment names.
#[test]
fn another_clusters_segment_of_a_name_that_is_taken_is_another_clusters() {
    let root = tempfile::tempdir().expect("a folder");
    let own = complete();
    let archive = archive_of(root.path(), &own);
    let foreign = root.path().join("foreign");
    source(&foreign, &log(1, 0xA, 3));
    let taken: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let imported = import_all(&archive, &foreign);
    let refused = imported.refused.iter().filter(|one| taken.contains(&one.file.as_str())).count();
    assert_eq!((imported.imported, refused), (0, own.len()), "{imported:?}");
    for one in &imported.refused {
        assert!(one.problem.contains("belongs to another cluster"), "{one:?}");
    }
}

#[test]
fn a_new_archive_takes_no_history_of_an_unknown_cluster() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive(root.path());
    let (none, mine) = (root.path().join("none"), root.path().join("mine"));
    source(&none, &[]);
    expect_texts_refused(
        &archive,
        &import_all(&archive, &none),
        "expected segments in the source that identify it",
    );
    source(&mine, &log(1, 0x20, 4));
    assert_eq!(import_all(&archive.afresh(), &mine).imported, 6);
}

#[test]
fn a_file_that_is_named_is_of_the_cluster_of_the_segments_beside_it() {
    let root = tempfile::tempdir().expect("a folder");
    let own = log(1, 0x20, 4);
    let archive = archive_of(root.path(), &own[..2]);
    let foreign = root.path().join("foreign");
    source(&foreign, &complete());
    let imported = import_all(&archive, &foreign.join(HISTORY.0));
    assert!(imported.refused[0].problem.contains("belongs to another cluster"), "{imported:?}");
    let wal = pg_wal(root.path(), &own);
    fs::write(wal.join(HISTORY.0), HISTORY.1).expect("a file");
    assert_eq!(import_all(&archive, &wal.join(HISTORY.0)).imported, 1);
}

#[test]
fn what_an_archiver_has_noted_of_the_cluster_counts() {
    let root = tempfile::tempdir().expect("a folder");
    let archive = archive_of(root.path(), &log(1, 0x20, 2));
    let own = archive.identity().expect("one").system_identifier.clone();
    // Barman's home of another cluster, without any segments left.
    let server = root.path().join("barman/main");
    source(&server.join("wals"), &[]);
    fs::write(server.join("wals/xlog.db"), "").expect("a file");
    fs::write(server.join("identity.json"), "{\"systemid\": \"7\", \"version\": \"15\"}").expect("a file");
    expect_texts_refused(&archive, &import_all(&archive, &server), "found 7");
    fs::write(server.join("identity.json"), format!("{{\"systemid\": \"{own}\", \"version\": \"15\"}}"))
        .expect("a file");
    assert_eq!(import_all(&archive, &server).imported, 2);
    // A stanza of pgBackRest, in which the folder of the archive's cluster is chosen.
    let stanza = root.path().join("pgbackrest/archive/main");
    source(&stanza.join("18-2"), &[]);
    source(&stanza.join("15-1"), &complete());
    let info = format!("[db:history]\n1={{\"db-id\":7}}\n2={{\"db-id\":{own}}}\n");
    fs::write(stanza.join("archive.info"), info).expect("a file");
    let imported = import_all(&archive, &root.path().join("pgbackrest"));
    assert_eq!((imported.files, imported.present), (2, 2), "{imported:?}");
}

#[test]
fn a_damaged_history_in_the_archive_does_not_keep_segments_out() {
    let root = tempfile::tempdir().expect("a folder");
    let own = log(1, 0x20, 4);
    let archived = [vec![(HISTORY.0.to_owned(), HISTORY.1.to_vec())], own[..2].to_vec()].concat();
    let archive = archive_of(root.path(), &archived);
    let key = ArchivedFile::parse(HISTORY.0).expect("a name").key();
    let object = File::options().write(true).open(root.path().join("archive").join(key)).expect("an object");
    object.set_len(100).expect("a shorter one");
    let folder = root.path().join("source");
    source(&folder, &own[2..]);
    let imported = import_all(&archive, &folder);
    let refused: Vec<_> = imported.refused.iter().map(|one| one.file.as_str()).collect();
    assert_eq!((imported.imported, refused), (3, vec![HISTORY.0]), "{imported:?}");
}
