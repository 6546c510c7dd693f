//! Base backups in the archive, for commands that also accept folders.

use std::path::Path;

use anyhow::Result;
use walden_archive::Archive;
use walden_archive::base_backups::{self, BaseBackupError, Inventory, StoredBackup};
use walden_format::lsn::Lsn;
use walden_recover::{
    BaseBackup, ExistingDirectory, RecoverError, StreamedBackup, Target, parse_backup_name,
};

use super::{Prepared, RecoverArgs, find_run};
use crate::place::PlaceArgs;
use crate::{output, terminal};

/// The name of the newest backup in the archive.
const LATEST: &str = "latest";

/// Returns the name of a backup in the archive, if it is one: a path that exists names itself.
pub fn name_of(base: &Path) -> Option<&str> {
    let name = base.to_str().filter(|name| *name == LATEST || parse_backup_name(name).is_some())?;
    (!base.exists()).then_some(name)
}

/// Opens a backup in the archive; damaged pieces are read from the other configured repositories.
pub fn open(place: &PlaceArgs, archive: &Archive, backup: &StoredBackup) -> Result<StreamedBackup> {
    let others = place.open_sources(&[], archive).unwrap_or_default();
    Ok(base_backups::open(archive, &others, backup, terminal::cores())?)
}

impl RecoverArgs {
    /// Opens the backup of a name in the archive.
    pub(super) fn open_stored(&self, name: &str) -> Result<BaseBackup> {
        if let Some(folder) = &self.wal {
            let text = format!(
                "cannot use the base backup {name} of an archive with the WAL in {}",
                folder.display()
            );
            return Err(output::with_hint(text, "name the archive with --repo, without --wal"));
        }
        let (archive, _) = self.place.open()?;
        let backup = base_backups::find(&archive, name)?;
        Ok(BaseBackup::open_streamed(&open(&self.place, &archive, &backup)?)?)
    }

    /// Chooses the newest backup in the archive from which the target can be reached, and makes its plan.
    /// `over` is the existing data directory of a restore over one.
    pub(super) fn prepare_newest(&self, over: Option<&ExistingDirectory>) -> Result<Prepared> {
        if self.wal.is_some() {
            let text =
                "cannot choose a base backup: expected --base BACKUP with --wal, found none".to_owned();
            return Err(output::with_hint(
                text,
                "name the folder of a base backup, or an archive with base backups by --repo",
            ));
        }
        let (archive, _) = self.place.open()?;
        let mut backups = Inventory::read(&archive)?.backups;
        backups.retain(|backup| self.may_reach(backup));
        let mut left = backups.len();
        while let Some(backup) = backups.pop() {
            left -= 1;
            let base = self.verified(BaseBackup::open_streamed(&open(&self.place, &archive, &backup)?)?)?;
            let why = match self.try_stored(base, left > 0, over)? {
                Tried::Prepared(prepared) => return Ok(*prepared),
                Tried::Unsuitable(why) => why,
            };
            output::print_line(&format!("note: {} is not used: {why}", backup.name));
        }
        let location = archive.store().location();
        let text = format!(
            "cannot choose a base backup in {location}: expected one that ends before {}, found none",
            self.to
        );
        Err(output::with_hint(
            text,
            "walden archive list shows those in the archive; --base also names the folder of another one",
        ))
    }

    /// Returns whether a backup ends before the target, as far as its description shows.
    fn may_reach(&self, backup: &StoredBackup) -> bool {
        match self.to {
            Target::Lsn(lsn) => backup.end() <= lsn,
            Target::Time(time) => backup.completed <= time,
            _ => true,
        }
    }

    fn try_stored(
        &self,
        base: BaseBackup,
        has_earlier: bool,
        over: Option<&ExistingDirectory>,
    ) -> Result<Tried> {
        let (start, timeline): (Lsn, _) = (base.start(), base.timeline());
        let chosen = match find_run(self, &base) {
            Err(error) if has_earlier && is_unsuitable(&error) => {
                return Ok(Tried::Unsuitable(format!("{error:#}")));
            }
            chosen => chosen?,
        };
        // After a recovery to an earlier time, the newest backups are of a branch that was left.
        if has_earlier && chosen.run.timeline > timeline && !chosen.run.goes_on_from(start, timeline) {
            let why = format!("timeline {} does not lead through it", chosen.run.timeline);
            return Ok(Tried::Unsuitable(why));
        }
        let tablespaces = self.map_tablespaces(&base, over)?;
        match self.prepare_with(base, chosen, tablespaces) {
            Err(error) if has_earlier && is_unsuitable(&error) => Ok(Tried::Unsuitable(format!("{error:#}"))),
            prepared => Ok(Tried::Prepared(Box::new(prepared?))),
        }
    }
}

/// The result of making a plan from a backup.
enum Tried {
    Prepared(Box<Prepared>),
    /// An earlier backup may be suitable.
    Unsuitable(String),
}

/// Returns whether an earlier backup may reach the target.
fn is_unsuitable(error: &anyhow::Error) -> bool {
    use RecoverError::{NoEndOfBackup, NoStart, TargetNotReached, TargetTooEarly};
    matches!(
        error.downcast_ref::<RecoverError>(),
        Some(NoEndOfBackup { .. } | NoStart { .. } | TargetNotReached { .. } | TargetTooEarly { .. })
    )
}

/// Returns the backup in the archive that a drill uses: the named one, or the newest one if none is named.
///
/// # Errors
/// There is no such backup.
pub fn for_drill(archive: &Archive, base: Option<&Path>) -> Result<Option<StoredBackup>, BaseBackupError> {
    match base {
        None => base_backups::find(archive, LATEST).map(Some),
        Some(path) => name_of(path).map(|name| base_backups::find(archive, name)).transpose(),
    }
}
