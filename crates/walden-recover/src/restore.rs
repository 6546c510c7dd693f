//! A restore: the copy, replay, and the state in which PostgreSQL finds the new data directory.

use std::fs::{self, DirBuilder};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rustc_hash::FxHashMap;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use walden_format::lsn::Lsn;
use walden_source::configuration::Configuration;
use walden_source::datadir::{ControlFile, RestartPoint};
use walden_source::inventory::Run;
use walden_source::kept::KeptSegments;
use walden_source::scan::{ScanOptions, SegmentEnd, scan_shared};
use walden_source::workers::run_in_order;

use crate::base::BaseBackup;
use crate::copy::{LABEL, give_to, synchronize, synchronize_one};
use crate::delta::{DeltaAmounts, Way, apply, expect_fit};
use crate::engine::{Engine, EngineOptions, Written};
use crate::error::RecoverError;
use crate::existing::ExistingDirectory;
use crate::folder_lock::FolderLock;
use crate::manifest::{Manifest, WalRange};
use crate::originals::{Originals, copy_around};
use crate::plan::{CheckpointRecord, Plan};
use crate::private;
use crate::settings::NewSettings;
use crate::tablespaces::MappedTablespace;
use crate::work_folder::{
    MARK, expect_free_target, expect_own_partial, is_mount_point, mark_rename, partial_of, remove_partial,
    unmark_rename,
};

/// Paths and limits of a restore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// The purpose of the data directory.
    pub purpose: Purpose,
    /// The new folders of all tablespaces outside of the backup's folder, and of those that WAL creates.
    pub tablespaces: Vec<MappedTablespace>,
    /// Memory for pages; more go to a temporary file.
    pub memory_bytes: usize,
    /// Number of threads that replay; a further thread reads and decompresses ahead of them.
    pub threads: usize,
}

impl RestoreOptions {
    /// Creates options for one thread and a backup without tablespaces.
    pub fn new(purpose: Purpose, memory_bytes: usize) -> RestoreOptions {
        RestoreOptions { purpose, tablespaces: Vec::new(), memory_bytes, threads: 1 }
    }
}

walden_format::setters!(RestoreOptions { tablespaces: Vec<MappedTablespace>, threads: usize });

/// The purpose of a new data directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A server is started on it, and continues recovery to the target.
    Server {
        /// `restore_command`
        restore_command: String,
        /// `recovery_target_action`; else PostgreSQL's default, or that of the configuration in the backup.
        target_action: Option<String>,
    },
    /// It is a later base backup.
    Backup,
}

/// A step of a restore, for progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Number of bytes of the backup that were copied since the last step.
    Copied(u64),
    /// Number of bytes of WAL that were replayed since the last step.
    Replayed(u64),
    /// Pages are written and files are synchronized.
    Writing,
}

/// Figures of a completed restore.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Bytes of the base backup that were copied.
    pub copied_bytes: u64,
    /// Records replayed.
    pub records: u64,
    /// Pages written.
    pub pages: u64,
    /// Prepared transactions in `pg_twophase`.
    pub prepared_transactions: usize,
    /// Settings of the new server; `None` for a backup.
    pub settings: Option<NewSettings>,
    /// Amounts of a restore over an existing data directory.
    pub delta: Option<DeltaAmounts>,
}

/// A base backup, the WAL that continues it, and the way in which it is restored.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'r> {
    /// The WAL.
    pub run: &'r Run,
    /// The base backup.
    pub base: &'r BaseBackup,
    /// The plan of this run and base backup.
    pub plan: &'r Plan,
    /// Paths and limits.
    pub options: &'r RestoreOptions,
}

/// The part of the memory for decoded segments: enough for several decoders, and the pages get the rest.
fn decoded_bytes(memory_bytes: usize) -> usize {
    memory_bytes / 4
}

/// Changes the WAL of a base backup so that segments which the plan decodes are kept for replay, as far as
/// they fit into replay's memory for decoded segments.
pub fn keep_decoded(run: &mut Run, base: &BaseBackup, memory_bytes: usize) -> KeptSegments {
    KeptSegments::keep(run, base.start(), decoded_bytes(memory_bytes))
}

/// Checks that a base backup can be replaced by a rename.
fn expect_replaceable(backup: &Path, partial: &Path) -> Result<(), RecoverError> {
    if is_mount_point(backup) {
        return Err(RecoverError::Base {
            base: backup.to_owned(),
            expected: "a folder that can be renamed",
            found: "a mount point".to_owned(),
            hint: "write the later backup to another folder (-o)",
        });
    }
    expect_own_partial(partial)
}

impl Recovery<'_> {
    /// Restores the base backup into `data`, which must be missing or empty. A failed restore removes its
    /// files. A killed one leaves a folder without `pg_control`, from which PostgreSQL does not start and
    /// which the next restore replaces.
    ///
    /// # Errors
    /// A file cannot be read or written, or the WAL cannot be replayed up to the checkpoint.
    pub fn restore(&self, data: &Path, progress: &mut dyn FnMut(Step)) -> Result<Restored, RecoverError> {
        let _lock = self.base.lock()?;
        expect_free_target(data)?;
        let partial = partial_of(data)?;
        self.build(&partial, progress, || {
            fs::rename(&partial, data).map_err(RecoverError::io("create", data))?;
            synchronize_entry(data)?;
            unmark_rename(data)
        })
    }

    /// Restores the base backup over the data directory of a stopped server of the same cluster: writes what
    /// differs, and removes files that the backup does not have. After a failure, the directory has no
    /// `pg_control`, so that PostgreSQL does not start, and the restore can be repeated.
    ///
    /// # Errors
    /// The errors of [`Recovery::restore`]; the directory is of another cluster, has links that lead
    /// elsewhere, or contains an archive.
    pub fn restore_over(
        &self,
        existing: &ExistingDirectory,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Restored, RecoverError> {
        let (base, tablespaces) = (self.base, &self.options.tablespaces);
        let _lock = self.base.lock()?;
        self.expect_mapped(existing.path())?;
        base.expect_same()?;
        expect_fit(existing, base, tablespaces)?;
        existing.move_control()?;
        let mut restored = Restored::default();
        let amounts = apply(existing, base, tablespaces, self.way(true), &mut |bytes| {
            progress(Step::Copied(bytes));
        })?;
        (restored.delta, restored.copied_bytes) = (Some(amounts), amounts.written_bytes);
        base.expect_same()?;
        self.complete(existing.path(), &Arc::default(), existing.owner(), &mut restored, progress)?;
        tablespaces.iter().try_for_each(MappedTablespace::unmark)?;
        existing.finish()?;
        Ok(restored)
    }

    /// Compares an existing data directory with the base backup, as [`Recovery::restore_over`] does, and
    /// writes nothing.
    ///
    /// # Errors
    /// The errors of [`Recovery::restore_over`].
    pub fn compare(
        &self,
        existing: &ExistingDirectory,
        progress: &mut dyn FnMut(Step),
    ) -> Result<DeltaAmounts, RecoverError> {
        let _lock = self.base.lock()?;
        self.expect_mapped(existing.path())?;
        expect_fit(existing, self.base, &self.options.tablespaces)?;
        apply(existing, self.base, &self.options.tablespaces, self.way(false), &mut |bytes| {
            progress(Step::Copied(bytes));
        })
    }

    fn way(&self, is_applied: bool) -> Way {
        let is_server = self.options.purpose != Purpose::Backup;
        Way { is_server, is_applied, threads: self.options.threads }
    }

    /// Checks that each tablespace of the base backup has a new folder.
    fn expect_mapped(&self, data: &Path) -> Result<(), RecoverError> {
        if MappedTablespace::are_all(&self.options.tablespaces, self.base) {
            return Ok(());
        }
        match self.base.tablespaces.first() {
            None => Err(RecoverError::Mapping { old: data.to_owned(), found: String::new() }),
            Some(first) => Err(RecoverError::Unmapped { oid: first.oid, folder: first.folder.clone() }),
        }
    }

    /// Replaces the base backup by a later one, with the plan's checkpoint as its start. The old backup is
    /// valid until the new one is complete.
    ///
    /// # Errors
    /// The errors of [`Recovery::restore`], and of a file system that cannot exchange two folders.
    pub fn advance_in_place(&self, progress: &mut dyn FnMut(Step)) -> Result<Restored, RecoverError> {
        let base = self.base;
        base.expect_replaceable()?;
        // A path such as "." has no name, and a link would be exchanged itself.
        let backup = fs::canonicalize(&base.path).map_err(RecoverError::io("read", &base.path))?;
        let _lock = FolderLock::exclusive(&backup)?;
        let partial = partial_of(&backup)?;
        expect_replaceable(&backup, &partial)?;
        let options = &RestoreOptions { purpose: Purpose::Backup, ..self.options.clone() };
        Recovery { options, ..*self }.build(&partial, progress, || {
            // Should this run be killed, the next one removes the folder that has not got the final name.
            mark_rename(&backup)?;
            if let Err(error) = renameat_with(CWD, &partial, CWD, &backup, RenameFlags::EXCHANGE) {
                unmark_rename(&backup)?;
                return Err(RecoverError::io("exchange the old and the new folder of", &backup)(
                    error.into(),
                ));
            }
            synchronize_entry(&backup)?;
            unmark_rename(&backup)?;
            remove_partial(&partial).map_err(RecoverError::io("remove", &partial))
        })
    }

    /// Fills a folder, and completes it by `complete`. A failure removes the folder. The caller has locked
    /// the base backup.
    fn build(
        &self,
        partial: &Path,
        progress: &mut dyn FnMut(Step),
        complete: impl FnOnce() -> Result<(), RecoverError>,
    ) -> Result<Restored, RecoverError> {
        let (base, tablespaces) = (self.base, &self.options.tablespaces);
        self.expect_mapped(partial)?;
        // The plan is that of the backup that was opened.
        base.expect_same()?;
        if partial.exists() {
            let _left = FolderLock::exclusive(partial)?;
            remove_partial(partial).map_err(RecoverError::io("remove", partial))?;
        }
        let created = DirBuilder::new().mode(0o700).create(partial);
        created.map_err(RecoverError::io("create", partial))?;
        let _own = FolderLock::exclusive(partial)?;
        let filled = self.fill(partial, progress);
        let filled = filled.and_then(|restored| base.expect_same().map(|()| restored));
        let outcome = filled.and_then(|restored| complete().map(|()| restored));
        if outcome.is_err() {
            // The first error counts.
            let _ = remove_partial(partial);
            for tablespace in tablespaces {
                let _ = tablespace.discard();
            }
        }
        outcome
    }

    fn fill(&self, partial: &Path, progress: &mut dyn FnMut(Step)) -> Result<Restored, RecoverError> {
        let Recovery { base, plan, options, .. } = *self;
        let mark = partial.join(MARK);
        private::write(&mark, "").map_err(RecoverError::io("create", &mark))?;
        let mut restored = Restored::default();
        let is_server = options.purpose != Purpose::Backup;
        let mut copied = |bytes| {
            restored.copied_bytes += bytes;
            progress(Step::Copied(bytes));
        };
        let originals = Arc::new(Originals::default());
        let later = plan.checkpoint.is_some().then_some(&*originals);
        base.copy(partial, is_server, later, &mut copied)?;
        for tablespace in &options.tablespaces {
            let later = later.map(|originals| (originals, partial));
            tablespace.create(partial, |old, new| base.copy_tablespace(old, new, later, &mut copied))?;
        }
        // A later backup gets a manifest if the base backup has one.
        let manifest = base.manifest.as_ref().filter(|_| !is_server);
        manifest.map_or(Ok(()), |manifest| manifest.set_times(partial))?;
        // A server refuses a data directory that others can write to.
        let restrict = fs::set_permissions(partial, fs::Permissions::from_mode(base.mode()));
        restrict.map_err(RecoverError::io("write", partial))?;
        let owner = base.is_in_file_system().then(|| new_owner(&base.path, partial)).flatten();
        self.complete(partial, &originals, owner, &mut restored, progress)?;
        mark_rename(partial)?;
        // As late as possible: without its mark, the next restore does not replace the folder.
        options.tablespaces.iter().try_for_each(MappedTablespace::unmark)?;
        fs::remove_file(&mark).map_err(RecoverError::io("remove", &mark))?;
        Ok(restored)
    }

    /// Replays the WAL into a copy of the base backup, and completes it: from here on PostgreSQL can start.
    fn complete(
        &self,
        data: &Path,
        originals: &Arc<Originals>,
        owner: Option<(u32, u32)>,
        restored: &mut Restored,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), RecoverError> {
        let Recovery { base, plan, options, .. } = *self;
        let is_server = options.purpose != Purpose::Backup;
        let manifest = base.manifest.as_ref().filter(|_| !is_server);
        let mut control = base.control_content.clone();
        if let Some(checkpoint) = &plan.checkpoint {
            // The files of a backup may be copied to another place, and are not synchronized there.
            let place = (data, is_server);
            control = self.roll_forward(checkpoint, place, originals, restored, progress)?;
            let label = data.join(LABEL);
            match &options.purpose {
                Purpose::Server { .. } => remove_label(&label)?,
                Purpose::Backup => {
                    let size = self.run.segment_size;
                    let text = base.label.at(checkpoint.lsn, &checkpoint.fields, size).to_string();
                    private::write(&label, text).map_err(RecoverError::io("write", &label))?;
                }
            }
            if let Some(manifest) = manifest {
                self.write_manifest(manifest, checkpoint, data, &control)?;
            }
        }
        progress(Step::Writing);
        if let Purpose::Server { restore_command, target_action } = &options.purpose {
            let settings = NewSettings::find(data, base.major(), plan.required);
            let lines = settings.lines(base.major());
            write_settings(data, plan, restore_command, target_action.as_deref(), lines)?;
            restored.settings = Some(settings);
        }
        if let Some(owner) = owner {
            give_to(data, owner)?;
        }
        synchronize(data)?;
        options.tablespaces.iter().try_for_each(|tablespace| tablespace.finish(owner))?;
        let path = data.join(ControlFile::PATH);
        private::write(&path, &control).map_err(RecoverError::io("write", &path))?;
        if let Some((user, group)) = owner {
            lchown(&path, Some(user), Some(group)).map_err(RecoverError::io("change the owner of", &path))?;
        }
        [&path, &data.join("global"), data].into_iter().try_for_each(synchronize_one)
    }

    /// Replays the WAL into the files of the base backup itself, and leaves them as [`Recovery::restore`]
    /// does. The base backup must be a copy without tablespaces elsewhere that are needed later, and it is
    /// unusable after a failure. Settings are not written.
    ///
    /// # Errors
    /// The errors of [`Recovery::restore`].
    pub fn restore_in_place(&self, progress: &mut dyn FnMut(Step)) -> Result<Restored, RecoverError> {
        let (data, mut restored) = (&self.base.path, Restored::default());
        if let Some(checkpoint) = &self.plan.checkpoint {
            let originals = Arc::default();
            let place = (data.as_path(), false);
            let control = self.roll_forward(checkpoint, place, &originals, &mut restored, progress)?;
            let path = data.join(ControlFile::PATH);
            private::write(&path, &control).map_err(RecoverError::io("write", &path))?;
            remove_label(&data.join(LABEL))?;
        }
        Ok(restored)
    }

    /// Replays the WAL up to the checkpoint into a copy of the base backup. Returns the new `pg_control`;
    /// `is_synchronized` is that of [`RestartPoint`].
    fn roll_forward(
        &self,
        checkpoint: &CheckpointRecord,
        (data, is_synchronized): (&Path, bool),
        originals: &Arc<Originals>,
        restored: &mut Restored,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Vec<u8>, RecoverError> {
        let engines = self.replay(checkpoint, data, originals, progress)?;
        restored.records = engines.first().map_or(0, |engine| engine.records);
        restored.copied_bytes += self.copy_originals(&engines, data, originals, progress)?;
        progress(Step::Writing);
        let written = write_pages(engines, data, checkpoint.fields.next_xid)?;
        restored.pages = written.pages;
        restored.prepared_transactions = written.prepared_transactions;
        let mut control = self.base.control_content.clone();
        restart_point(checkpoint, self.plan, is_synchronized).change_control_file(&mut control)?;
        Ok(control)
    }

    /// Writes the manifest of the later backup. Its `pg_control` is written after everything else.
    fn write_manifest(
        &self,
        old: &Manifest,
        checkpoint: &CheckpointRecord,
        partial: &Path,
        control: &[u8],
    ) -> Result<(), RecoverError> {
        let (timeline, start) = (checkpoint.fields.timeline, checkpoint.fields.redo);
        let range = WalRange { timeline, start, end: Some(checkpoint.end) };
        let mut manifest = old.after_changes(partial, range, self.options.threads)?;
        let path = partial.join(Manifest::FILE);
        let write = manifest.add(ControlFile::PATH, control, now());
        write
            .and_then(|()| manifest.write(&path, self.base.major()))
            .map_err(RecoverError::io("write", &path))
    }

    /// Replays the WAL up to the checkpoint. The pages are not written yet.
    fn replay(
        &self,
        checkpoint: &CheckpointRecord,
        data: &Path,
        originals: &Arc<Originals>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Vec<Engine>, RecoverError> {
        let Recovery { run, base, options, .. } = *self;
        let redo = checkpoint.fields.redo;
        let version = run.segments.first().map(|segment| segment.version).ok_or_else(|| {
            RecoverError::NoStart { start: base.start(), timeline: base.timeline(), found: "none".to_owned() }
        })?;
        let decoded_bytes = decoded_bytes(options.memory_bytes);
        let (threads, memory_bytes) = (options.threads, options.memory_bytes - decoded_bytes);
        let tablespaces = &options.tablespaces[..];
        let overwrites = &self.plan.overwrites;
        let engine_options =
            EngineOptions { redo, version, memory_bytes, threads, tablespaces, originals, overwrites };
        let mut engines =
            Engine::create_all(base, data, engine_options).map_err(RecoverError::io("read", data))?;
        let range =
            ScanOptions::new(threads).from(Some(base.start())).to(Some(redo)).decoded_bytes(decoded_bytes);
        // The plan has verified all checksums.
        let done = |bytes| progress(Step::Replayed(bytes));
        let results = scan_shared(run, range, redo, &mut engines, done, Engine::leave);
        if let Some(failure) = engines.iter_mut().find_map(Engine::take_failure) {
            return Err(failure);
        }
        for (reached, end) in results {
            if let SegmentEnd::Damaged(damage) = end {
                return Err(RecoverError::Damage(Box::new(damage)));
            }
            expect_reached(reached, redo)?;
        }
        Ok(engines)
    }

    /// Copies the relation files of the base backup that are still read there, without pages that are written
    /// later. Returns the bytes copied.
    fn copy_originals(
        &self,
        engines: &[Engine],
        data: &Path,
        originals: &Originals,
        progress: &mut dyn FnMut(Step),
    ) -> Result<u64, RecoverError> {
        let files = originals.take_all();
        let mut changed = FxHashMap::default();
        if !files.is_empty() {
            engines.iter().for_each(|engine| engine.list_changed(&mut changed));
            changed.values_mut().for_each(|numbers: &mut Vec<u32>| numbers.sort_unstable());
        }
        let is_server = self.options.purpose != Purpose::Backup;
        let manifest = self.base.manifest.as_ref().filter(|_| !is_server);
        let copy = |(new, original): &(PathBuf, PathBuf)| -> Result<u64, RecoverError> {
            let replaced = changed.get(new).map_or(&[][..], Vec::as_slice);
            let bytes = copy_around(original, new, replaced).map_err(RecoverError::io("copy", original))?;
            if let Some(manifest) = manifest.filter(|_| replaced.is_empty())
                && let Ok(name) = new.strip_prefix(data)
            {
                manifest.set_time(data, name)?;
            }
            Ok(bytes)
        };
        let (mut all, mut failure) = (0, None);
        run_in_order(
            0..files.len(),
            self.options.threads,
            || (),
            |(), index| copy(&files[index]),
            |copied| match copied {
                Ok(bytes) => {
                    all += bytes;
                    progress(Step::Copied(bytes));
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            },
        );
        failure.map_or(Ok(all), Err)
    }
}

/// Writes the pages and everything else that replay has changed, with a thread for each engine.
fn write_pages(engines: Vec<Engine>, data: &Path, next_xid: u64) -> Result<Written, RecoverError> {
    let written: Vec<Result<Written, RecoverError>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            engines.into_iter().map(|engine| scope.spawn(move || engine.finish(data, next_xid))).collect();
        let join =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().map(join).collect()
    });
    let mut all = Written::default();
    for written in written {
        let written = written?;
        all.pages += written.pages;
        all.prepared_transactions += written.prepared_transactions;
    }
    Ok(all)
}

/// Removes `backup_label`. A copy of a stopped server has none.
fn remove_label(label: &Path) -> Result<(), RecoverError> {
    match fs::remove_file(label) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map_err(RecoverError::io("remove", label)),
    }
}

/// Synchronizes the entry of a file or folder in the folder above.
fn synchronize_entry(path: &Path) -> Result<(), RecoverError> {
    synchronize_one(path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// The account of the backup, if files can be given to it.
fn new_owner(base: &Path, partial: &Path) -> Option<(u32, u32)> {
    let (base, own) = (fs::metadata(base).ok()?, fs::metadata(partial).ok()?);
    let owner = (base.uid(), base.gid());
    let can_give = || lchown(partial, Some(owner.0), Some(owner.1)).is_ok();
    ((own.uid(), own.gid()) != owner && can_give()).then_some(owner)
}

/// A file of WAL may have been cut since the plan was made.
fn expect_reached(reached: Lsn, redo: Lsn) -> Result<(), RecoverError> {
    match reached >= redo {
        true => Ok(()),
        false => Err(RecoverError::Record {
            lsn: reached,
            reason: format!("expected WAL up to {redo}, as at the first reading, found its end"),
        }),
    }
}

fn restart_point<'p>(
    checkpoint: &'p CheckpointRecord,
    plan: &'p Plan,
    is_synchronized: bool,
) -> RestartPoint<'p> {
    RestartPoint {
        checkpoint: checkpoint.lsn,
        data: &checkpoint.data,
        end: checkpoint.end,
        timeline: checkpoint.fields.timeline,
        settings: plan.settings.as_ref(),
        time: now(),
        is_synchronized,
    }
}

/// The current time in seconds since 1970-01-01 00:00:00 UTC.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed()
}

/// Appends the settings of recovery to `postgresql.auto.conf`, where they have precedence, and creates
/// `recovery.signal`.
fn write_settings(
    data: &Path,
    plan: &Plan,
    restore_command: &str,
    target_action: Option<&str>,
    others: impl Iterator<Item = (&'static str, String)>,
) -> Result<(), RecoverError> {
    const TARGETS: [&str; 5] = [
        "recovery_target",
        "recovery_target_lsn",
        "recovery_target_name",
        "recovery_target_time",
        "recovery_target_xid",
    ];
    let path = data.join(Configuration::AUTOMATIC);
    let mut text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(RecoverError::io("read", &path)(error)),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let mut set = |name: &str, value: &str| {
        let value = value.replace('\\', "\\\\").replace('\'', "''");
        text.push_str(&format!("{name} = '{value}'\n"));
    };
    set("restore_command", restore_command);
    let target = plan.target.setting();
    // PostgreSQL refuses two targets, and the backup's configuration may have one. An empty setting after the
    // target counts as a second one, too.
    let other_targets =
        TARGETS.into_iter().filter(|&name| target.as_ref().is_none_or(|(own, _)| *own != name));
    other_targets.for_each(|name| set(name, ""));
    if let Some((name, value)) = &target {
        set(name, value);
    }
    set("recovery_target_inclusive", "true");
    set("recovery_target_timeline", &plan.timeline.to_string());
    if let Some(action) = target_action {
        set("recovery_target_action", action);
    }
    others.for_each(|(name, value)| set(name, &value));
    private::write(&path, text).map_err(RecoverError::io("write", &path))?;
    let signal = data.join("recovery.signal");
    private::write(&signal, "").map_err(RecoverError::io("create", &signal))
}
