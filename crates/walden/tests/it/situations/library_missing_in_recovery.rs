//! CloudNativePG issue 10840: recovery runs without the original's `shared_preload_libraries`, but an
//! extension has its own WAL records.

use std::fs;
use std::process::Command;

use walden_lab::{ClusterBuilder, StopMode};
use walden_testing::{Outcome, server_headers};

use crate::archive::{program_for, text};
use crate::archive_care::wait;
use crate::material::{make_archive, walden};

const SOURCE: &str = r#"
#include "postgres.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "fmgr.h"
PG_MODULE_MAGIC;
static void note_redo(XLogReaderState *record) {}
static void note_desc(StringInfo text, XLogReaderState *record) {}
static const char *note_identify(uint8 info) { return "NOTE"; }
static RmgrData manager = {
	.rm_name = "notes", .rm_redo = note_redo, .rm_desc = note_desc, .rm_identify = note_identify
};
void _PG_init(void);
void _PG_init(void) { RegisterCustomRmgr(RM_EXPERIMENTAL_ID, &manager); }
PG_FUNCTION_INFO_V1(write_note);
Datum write_note(PG_FUNCTION_ARGS)
{
	int32 note = 1;
	XLogBeginInsert();
	XLogRegisterData((char *) &note, sizeof(note));
	XLogInsert(RM_EXPERIMENTAL_ID, 0);
	PG_RETURN_INT32(note);
}
"#;

pub fn run(_major: u32) -> Outcome {
    let (installation, pg_config) = server_headers()?;
    let bin = installation.postgres().parent().unwrap().to_owned();
    let cluster = ClusterBuilder::new(installation).wal_segsize_mb(1).start().unwrap();
    let folder = cluster.make_folder("extension").unwrap();
    fs::write(folder.join("notes.c"), SOURCE).unwrap();
    let makefile = format!(
        "MODULES = notes\nPG_CONFIG = {}\nPGXS := $(shell $(PG_CONFIG) --pgxs)\ninclude $(PGXS)\n",
        pg_config.display()
    );
    fs::write(folder.join("Makefile"), makefile).unwrap();
    let made = Command::new("make").args(["-C", text(&folder), "--silent"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (library, repo) = (folder.join("notes"), cluster.make_folder("archives").unwrap().join("repo"));
    make_archive(&repo);
    let push = format!("{} archive push --repo {} %p", program_for(&cluster).display(), repo.display());
    let settings =
        [("archive_mode", "on"), ("archive_command", &push), ("shared_preload_libraries", text(&library))];
    cluster.configure(&settings).unwrap();
    cluster.restart(StopMode::Fast).unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let function = format!("CREATE FUNCTION write_note() RETURNS int LANGUAGE c AS '{}'", library.display());
    client.batch_execute(&function).unwrap();
    cluster.stop(StopMode::Fast).unwrap();
    let base = cluster.dir().join("base");
    cluster.copy_data(&base).unwrap();
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("SELECT write_note(); SELECT pg_switch_wal()").unwrap();
    let archived = "SELECT archived_count > 0 AND NOT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready') \
                    FROM pg_stat_archiver";
    wait(|| client.query_one(archived, &[]).unwrap().get(0));
    let drill = |more: &[&str]| {
        let options = ["archive", "drill", "--repo", text(&repo), "--base", text(&base), "--bin", text(&bin)];
        walden(&[&options[..], &["--no-amcheck"], more].concat())
    };
    let setting = format!("shared_preload_libraries={}", library.display());
    let without = drill(&[]);
    assert!(without.code == 1 && without.stderr.contains(&format!("--set {setting}")), "{without:?}");
    let with = drill(&["--set", &setting]);
    assert_eq!(with.code, 0, "{with:?}");
    Ok(())
}
