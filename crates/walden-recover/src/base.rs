//! The base backup that recovery starts from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use walden_format::lsn::{Lsn, SegmentName, SegmentSize, Timeline};
use walden_format::payload::xlog::Checkpoint;
use walden_source::datadir::{ControlFile, DataDir};

use crate::error::RecoverError;

/// Major versions that are restored.
const VERSIONS: std::ops::RangeInclusive<u32> = 14..=19;

/// A base backup in plain format: a data directory with its `backup_label`, or that of a stopped server.
#[derive(Clone, Debug)]
pub struct BaseBackup {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    pub(crate) control: ControlFile,
    pub(crate) label: Label,
    /// Tablespaces outside of the backup's folder.
    pub(crate) tablespaces: Vec<Tablespace>,
}

/// A tablespace of a base backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tablespace {
    /// Its OID: the name of the link.
    pub(crate) oid: u32,
    /// The folder that the link leads to.
    pub(crate) folder: PathBuf,
}

/// The fields of `backup_label` (`build_backup_content` in `xlogbackup.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    /// `START WAL LOCATION`: the redo pointer of the backup's checkpoint.
    pub start: Lsn,
    /// `CHECKPOINT LOCATION`
    pub checkpoint: Lsn,
    /// `START TIMELINE`
    pub timeline: Timeline,
    /// `BACKUP FROM: standby`: the end of the backup is `minRecoveryPoint`, and WAL has no record of it.
    pub is_from_standby: bool,
    /// `LABEL`
    pub name: String,
}

/// The label of a base backup that was rolled forward.
///
/// It is that of a backup of a standby: `pg_control` has the position at which the backup is consistent
/// (`minRecoveryPoint`), and WAL has no record of the end of the backup (`read_backup_label` and
/// `InitWalRecovery` in `xlogrecovery.c`).
pub(crate) struct AdvancedLabel<'l> {
    name: &'l str,
    /// LSN of the checkpoint record.
    lsn: Lsn,
    checkpoint: &'l Checkpoint,
    segment: SegmentName,
}

impl fmt::Display for AdvancedLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.checkpoint;
        let time =
            jiff::Timestamp::from_second(fields.time).unwrap_or_default().strftime("%Y-%m-%d %H:%M:%S UTC");
        writeln!(f, "START WAL LOCATION: {} (file {})", fields.redo, self.segment)?;
        writeln!(f, "CHECKPOINT LOCATION: {}", self.lsn)?;
        writeln!(f, "BACKUP METHOD: streamed\nBACKUP FROM: standby\nSTART TIME: {time}")?;
        writeln!(f, "LABEL: {}\nSTART TIMELINE: {}", self.name, fields.timeline)
    }
}

impl BaseBackup {
    /// Opens a base backup.
    ///
    /// # Errors
    /// The folder is not a base backup in plain format, or has something that is not restored.
    pub fn open(path: &Path) -> Result<BaseBackup, RecoverError> {
        let data = DataDir::open_at_rest(path)?;
        let refuse = |expected, found: String, hint| RecoverError::Base {
            base: path.to_owned(),
            expected,
            found,
            hint,
        };
        let version = data.version().to_owned();
        if !version.parse().is_ok_and(|version: u32| VERSIONS.contains(&version)) {
            let hint = "recover with PostgreSQL alone";
            return Err(refuse("a base backup of PostgreSQL 14 to 19", format!("version {version}"), hint));
        }
        let label = match data.is_backup() {
            true => {
                let file = path.join(Label::FILE);
                let text = fs::read(&file).map_err(RecoverError::io("read", &file))?;
                Label::parse(&String::from_utf8_lossy(&text)).map_err(|line| {
                    let hint = "use another base backup: this one is damaged or incomplete";
                    refuse(line, "none in backup_label".into(), hint)
                })?
            }
            false => Label::for_stopped_server(data.control()),
        };
        if path.join("tablespace_map").exists() {
            let hint = "recover with PostgreSQL alone: Walden does not place the tablespaces of a backup in tar format";
            return Err(refuse("no tablespace_map", "one".into(), hint));
        }
        let tablespaces = find_tablespaces(path)?;
        Ok(BaseBackup { path: path.to_owned(), version, control: *data.control(), label, tablespaces })
    }

    /// The cluster.
    pub fn system_identifier(&self) -> u64 {
        self.control.system_identifier
    }

    /// The position from which WAL is replayed.
    pub fn start(&self) -> Lsn {
        self.label.start
    }

    /// The timeline at the start.
    pub fn timeline(&self) -> Timeline {
        self.label.timeline
    }
}

impl Label {
    /// Its name in a base backup.
    pub(crate) const FILE: &str = "backup_label";

    /// The label of this backup after it was rolled forward to a checkpoint.
    pub(crate) fn at<'l>(
        &'l self,
        lsn: Lsn,
        checkpoint: &'l Checkpoint,
        size: SegmentSize,
    ) -> AdvancedLabel<'l> {
        let segment = SegmentName::new(checkpoint.timeline, size.segment_of(checkpoint.redo), size);
        AdvancedLabel { name: &self.name, lsn, checkpoint, segment }
    }

    /// The label that a copy of a stopped server's data directory would have. The files of a primary are
    /// consistent at its last checkpoint, and those of a standby at `minRecoveryPoint`.
    fn for_stopped_server(control: &ControlFile) -> Label {
        Label {
            start: control.redo,
            checkpoint: control.checkpoint,
            timeline: control.timeline,
            is_from_standby: true,
            name: "copy of a stopped server".to_owned(),
        }
    }

    /// Reads a label. The error names the missing line.
    fn parse(text: &str) -> Result<Label, &'static str> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let lsn = |name| value(name)?.split_whitespace().next()?.parse().ok();
        Ok(Label {
            start: lsn("START WAL LOCATION: ").ok_or("START WAL LOCATION")?,
            checkpoint: lsn("CHECKPOINT LOCATION: ").ok_or("CHECKPOINT LOCATION")?,
            timeline: value("START TIMELINE: ")
                .and_then(|number| number.trim().parse().ok())
                .ok_or("START TIMELINE")?,
            is_from_standby: value("BACKUP FROM: ").is_some_and(|from| from.trim() == "standby"),
            name: value("LABEL: ").unwrap_or_default().to_owned(),
        })
    }
}

/// The tablespaces of a base backup (`pg_tblspc`). Folders without a link (`allow_in_place_tablespaces`) are
/// in the backup itself.
fn find_tablespaces(base: &Path) -> Result<Vec<Tablespace>, RecoverError> {
    let folder = base.join("pg_tblspc");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(RecoverError::io("read", &folder))? {
        let entry = entry.map_err(RecoverError::io("read", &folder))?;
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        let oid = entry.file_name().to_str().and_then(|name| name.parse().ok()).ok_or_else(|| {
            RecoverError::Base {
                base: base.to_owned(),
                expected: "links with the number of a tablespace in pg_tblspc",
                found: format!("{}", entry.file_name().display()),
                hint: "remove the link, or take another base backup",
            }
        })?;
        let folder = fs::canonicalize(&path).map_err(RecoverError::io("follow the link", &path))?;
        found.push(Tablespace { oid, folder });
    }
    found.sort_by_key(|tablespace| tablespace.oid);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_start_checkpoint_timeline_and_origin() {
        let text = "START WAL LOCATION: 0/2000028 (file 000000020000000000000002)\nCHECKPOINT LOCATION: 0/2000080\n\
                    BACKUP METHOD: streamed\nBACKUP FROM: standby\nSTART TIME: 2026-11-29 10:00:00 UTC\nLABEL: x\nSTART TIMELINE: 2\n";
        let label = Label::parse(text).unwrap();
        assert_eq!((label.start, label.checkpoint), (Lsn(0x200_0028), Lsn(0x200_0080)));
        assert_eq!((label.timeline, label.is_from_standby), (2, true));
        assert!(!Label::parse(&text.replace("standby", "primary")).unwrap().is_from_standby);
        assert_eq!(Label::parse(&text.replace("CHECKPOINT", "X")), Err("CHECKPOINT LOCATION"));
    }
}
