//! Output files that appear complete or not at all.
//!
//! A file is written under a temporary name in the target's folder, synced, and renamed, like
//! [`walden_archive::pending`] does it. An existing file is replaced only with permission, and a command's
//! input never ([`expect_writable`]). A signal that ends the process removes unfinished files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
#[cfg(feature = "export")]
use std::fs::TryLockError;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tempfile::NamedTempFile;
use walden_archive::against::AgainstError;
use walden_archive::archive::ArchiveError;
use walden_archive::export::ExportError;
use walden_archive::pending::{self, parent_folder};
use walden_archive::recovery::RecoveryError;
use walden_archive::sources::SourcesError;
use walden_archive::store::StoreError;
use walden_codec::container::Meta;
use walden_postgres::connection::ConnectionError;
use walden_postgres::follow::FollowError;
use walden_postgres::names::NamesError;
use walden_postgres::replication::ReplicationError;
use walden_report::html::Page;
use walden_report::table::harmless;
use walden_rows::RowsError;
use walden_source::datadir::DataDirError;
use walden_source::inventory::{InventoryError, Unreadable, UnreadableReason};
use walden_source::names::{self as saved, Names};
use walden_watch::server::QueryError;

use crate::protect::{Inputs, find_protected};
use crate::{DAMAGED, USAGE, terminal};

/// Whether existing files may be replaced; an option of commands that write files.
#[derive(Args, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Overwrite {
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

/// The error for a file that is not written because it exists or must not change. The exit status is that of
/// wrong usage.
#[derive(Debug)]
pub struct Refused {
    target: PathBuf,
    reason: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write {}: {}", self.target.display(), self.reason)
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// Returns the error for a file.
    pub fn error(target: &Path, reason: impl Into<String>) -> anyhow::Error {
        Refused { target: target.to_owned(), reason: reason.into() }.into()
    }
}

/// Checks, before the work, that a file may be written: it is not an input of the command, and it does not
/// exist or may be replaced. An existing file of a server is never replaced. A device or a pipe may always be
/// written.
pub fn expect_writable(target: &Path, replace: bool, inputs: &Inputs) -> Result<()> {
    if is_device(target) {
        return Ok(());
    }
    expect_no_input(target, inputs)?;
    refuse_existing(target, replace)?;
    match find_protected(target).filter(|_| target.exists()) {
        Some(reason) => Err(Refused::error(target, format!("{reason}; name another file"))),
        None => Ok(()),
    }
}

/// Checks that no part of a path below a folder is a link: the user named only that folder, not the targets
/// of links in it.
pub fn expect_no_link_below(root: &Path, path: &Path) -> Result<()> {
    let below = path.ancestors().take_while(|above| *above != root);
    match below.filter(|above| above.is_symlink()).last() {
        Some(link) => bail!(
            "cannot write to {}: {} is a link to another folder or file; remove it, or name where it leads as the output folder",
            path.display(),
            link.display()
        ),
        None => Ok(()),
    }
}

/// Checks that a file is neither an input of a command nor in a protected folder.
pub fn expect_no_input(target: &Path, inputs: &Inputs) -> Result<()> {
    match inputs.find_conflict(target) {
        Some(conflict) => Err(Refused::error(target, format!("{conflict}; name another file"))),
        None => Ok(()),
    }
}

fn is_device(target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A file that is being written.
pub struct Output {
    temporary: NamedTempFile,
    target: PathBuf,
    claim: Option<Claim>,
    replace: bool,
    /// Permissions of the file that is replaced.
    mode: Option<u32>,
    /// A device or a pipe, to which the complete output is copied at the end.
    device: Option<File>,
}

/// A target name, reserved for one output until the process ends, or until that output fails. Otherwise, if
/// two inputs had the same target, the first result would be lost, as files may be replaced.
struct Claim {
    target: PathBuf,
    is_written: bool,
}

static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl Claim {
    fn on(target: &Path) -> Result<Claim> {
        if !claimed().insert(target.to_owned()) {
            bail!(
                "{} is what another of these files is written to, and is left as it is; give each an output folder of its own",
                target.display()
            );
        }
        Ok(Claim { target: target.to_owned(), is_written: false })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_written {
            claimed().remove(&self.target);
        }
    }
}

/// The suffix of temporary files, by which leftovers of killed processes are recognized.
const TEMPORARY_ENDING: &str = ".walden-tmp";
/// Minimum age at which a leftover is removed: a younger file's process may not have locked it yet.
const MIN_LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// The result of writing an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The file was written.
    New,
    /// A file with the same bytes existed and was kept.
    Same,
}

impl Output {
    /// Creates a temporary file next to the target, and missing parent folders. An existing target is
    /// compared only after everything is written: identical bytes are no error.
    pub fn create(target: &Path, replace: bool) -> Result<Output> {
        // Readable by the owner only, until it gets the permissions of the original.
        Output::create_with_mode(target, replace, 0o600)
    }

    /// Like [`Output::create`], but with the permissions of the replaced file, otherwise those that the
    /// process's umask allows. If the target is a link, the link's target is replaced; a device or a pipe is
    /// written to.
    #[cfg(feature = "export")]
    pub fn create_result(target: &Path, replace: bool) -> Result<Output> {
        let target = &fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let found = fs::metadata(target).ok();
        if is_device(target) {
            let device = File::options().write(true).open(target);
            let device = device.with_context(|| format!("cannot write {}", target.display()))?;
            let temporary = NamedTempFile::new().with_context(|| {
                format!("cannot make a temporary file in {} (TMPDIR)", std::env::temp_dir().display())
            })?;
            let (target, device) = (target.to_owned(), Some(device));
            return Ok(Output { temporary, target, claim: None, replace: true, mode: None, device });
        }
        let mode = found.map(|found| found.permissions().mode());
        Ok(Output { mode, ..Output::create_with_mode(target, replace, 0o666)? })
    }

    fn create_with_mode(target: &Path, replace: bool, mode: u32) -> Result<Output> {
        let claim = Claim::on(target)?;
        make_folder(parent_folder(target))?;
        remove_leftovers(parent_folder(target));
        let output = Output::with_mode(target, replace, mode)?;
        Ok(Output { claim: Some(claim), ..output })
    }

    fn with_mode(target: &Path, replace: bool, mode: u32) -> Result<Output> {
        refuse_folder(target)?;
        pending::clean_up_on_signals();
        let temporary = pending::begin_apart(target, TEMPORARY_ENDING, mode).with_context(|| {
            format!("cannot create a temporary file in {}", parent_folder(target).display())
        })?;
        Ok(Output { temporary, target: target.to_owned(), claim: None, replace, mode: None, device: None })
    }

    /// Returns the file to write to.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Returns the temporary file's path.
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Renames the file to its target, with the modification time and permissions of `meta`.
    ///
    /// # Errors
    /// Fails on errors of the file system, and if the target exists with other bytes and may not be replaced.
    pub fn commit(self, meta: &Meta) -> Result<Written> {
        let Output { temporary, target, mut claim, replace, mode, device } = self;
        let named = || format!("cannot write {}", target.display());
        if let Some(mut device) = device {
            // Reopened, because the handle that was used for writing is positioned at the end.
            let written = temporary.reopen().and_then(|mut content| io::copy(&mut content, &mut device));
            written.with_context(named)?;
            return Ok(Written::New);
        }
        if let Some(mode) = meta.mode.or(mode) {
            let permissions = Permissions::from_mode(mode & 0o777);
            temporary.as_file().set_permissions(permissions).with_context(named)?;
        }
        if let Some(time) = meta.modified.and_then(time_of) {
            // Best effort.
            let _ = temporary.as_file().set_modified(time);
        }
        temporary.as_file().sync_all().with_context(named)?;
        match pending::publish(temporary, &target, replace) {
            Ok(_) => claim.iter_mut().for_each(|claim| claim.is_written = true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                let is_same = is_same_content(error.file.path(), &target);
                if !is_same.with_context(|| format!("cannot compare with {}", target.display()))? {
                    refuse_existing(&target, replace)?;
                }
                // The caller may remove the original next, so the existing file must be durable.
                File::open(&target).and_then(|file| file.sync_all()).with_context(named)?;
                claim.iter_mut().for_each(|claim| claim.is_written = true);
                sync_folder(parent_folder(&target))?;
                return Ok(Written::Same);
            }
            Err(error) => return Err(error.error).with_context(named),
        }
        sync_folder(parent_folder(&target))?;
        Ok(Written::New)
    }
}

/// Checks that an input may be removed: it is neither in an archive nor part of a server.
pub fn expect_removable(input: &Path, inputs: &Inputs) -> Result<()> {
    match inputs.find_closed_folder(input) {
        Some(why) => bail!("cannot remove {} after it is compressed: {why}", input.display()),
        None => Ok(()),
    }
}

/// Returns the exit status of a command that continues after errors: that of wrong usage if all errors are
/// refusals.
pub fn status_of(errors: &[anyhow::Error]) -> ExitCode {
    match errors {
        [] => ExitCode::SUCCESS,
        errors if errors.iter().all(|error| error.is::<Refused>()) => ExitCode::from(USAGE),
        _ => ExitCode::from(DAMAGED),
    }
}

/// Creates a folder if it does not exist, and locks it until the returned file is dropped: two processes
/// writing into it would not notice each other's files.
#[cfg(feature = "export")]
pub fn lock_folder(folder: &Path) -> Result<File> {
    make_folder(folder)?;
    let opened = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    match opened.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Refused::error(
            folder,
            "another process is exporting to it; wait for it, or name another folder",
        )),
        // Some network file systems cannot lock folders.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(opened),
    }
}

/// Returns whether a file is the temporary file of a process, which may have been killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_bytes();
    // Builds before the first release used another suffix.
    let is_old = || {
        let before = name.strip_suffix(b".tmp").and_then(|name| name.get(..name.len().checked_sub(7)?));
        before.is_some_and(|name| name.ends_with(b".wlz") || name.ends_with(b".wpk"))
    };
    name.starts_with(b".") && (name.ends_with(TEMPORARY_ENDING.as_bytes()) || is_old())
}

/// Removes the temporary files of killed processes from a folder, once per process. Ignores errors.
fn remove_leftovers(folder: &Path) {
    static SEARCHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let is_new = SEARCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned());
    let Some(entries) = is_new.then(|| fs::read_dir(folder).ok()).flatten() else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
        let path = entry.path();
        let is_regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        let modified = entry.metadata().and_then(|found| found.modified());
        let is_old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= MIN_LEFTOVER_AGE));
        // A process that is still writing holds the lock.
        if is_regular && is_old && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Returns whether two files have the same bytes.
fn is_same_content(one: &Path, other: &Path) -> io::Result<bool> {
    const AT_ONCE: usize = 1 << 20;
    let found = fs::symlink_metadata(other)?;
    if !found.is_file() || fs::metadata(one)?.len() != found.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut bytes, mut others) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
    loop {
        bytes.clear();
        others.clear();
        (&mut one).take(AT_ONCE as u64).read_to_end(&mut bytes)?;
        (&mut other).take(AT_ONCE as u64).read_to_end(&mut others)?;
        if bytes != others {
            return Ok(false);
        }
        if bytes.is_empty() {
            return Ok(true);
        }
    }
}

/// Creates a folder and its missing parents, and syncs them.
fn make_folder(folder: &Path) -> Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    missing.into_iter().try_for_each(|folder| sync_folder(parent_folder(folder)))
}

/// Syncs a folder, so that its entries are durable.
pub fn sync_folder(folder: &Path) -> Result<()> {
    walden_source::sync(folder).with_context(|| format!("cannot sync {}", folder.display()))
}

/// An option, and the file that it names, if given.
pub type Wanted<'a> = (&'static str, Option<&'a Path>);

/// Checks that files can be written, before a computation that may take an hour.
///
/// Naming the same file in two options is wrong usage: the second output would replace the first one.
pub fn can_write(wanted: &[Wanted<'_>], overwrite: Overwrite, inputs: &Inputs) -> Result<()> {
    if let Some((one, other, path)) = named_twice(wanted) {
        crate::wrong_usage(&format!(
            "{one} and {other} name the same file, {}: give each a file of its own",
            harmless(&path.to_string_lossy())
        ));
    }
    wanted.iter().filter_map(|(_, path)| *path).try_for_each(|path| {
        expect_writable(path, overwrite.force, inputs)?;
        text_output(path, overwrite).map(drop)
    })
}

/// Returns two options that name the same file, and the file.
fn named_twice<'a>(wanted: &[Wanted<'a>]) -> Option<(&'static str, &'static str, &'a Path)> {
    let placed = |&(option, path): &Wanted<'a>| {
        let path = path?;
        Some((option, path, place_of(path)?))
    };
    let places: Vec<(&'static str, &'a Path, PathBuf)> = wanted.iter().filter_map(placed).collect();
    places.iter().enumerate().find_map(|(index, (other, path, place))| {
        let (one, _, _) = places[..index].iter().find(|(_, _, earlier)| earlier == place)?;
        Some((*one, *other, *path))
    })
}

/// Returns the path of an existing or future file with all links resolved. Returns `None` for a device or a
/// pipe, which accepts several outputs in sequence, and for a path that cannot be written.
fn place_of(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => None,
        Ok(_) => fs::canonicalize(path).ok(),
        Err(_) => Some(fs::canonicalize(parent_folder(path)).ok()?.join(path.file_name()?)),
    }
}

/// Writes an HTML page.
pub fn write_page(path: &Path, page: &Page, overwrite: Overwrite) -> Result<()> {
    write(path, page.render(), overwrite)
}

/// Writes names of relations.
pub fn write_names(path: &Path, names: &Names, overwrite: Overwrite) -> Result<()> {
    let mut json = Vec::new();
    names.write(&mut json).context("cannot write the names as JSON")?;
    write(path, json, overwrite)
}

/// Writes a file that only this program writes, replacing an earlier one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let output = Output::with_mode(path, true, 0o666)?;
    output.file().write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    output.commit(&Meta::default()).map(drop)
}

/// Writes a file that [`can_write`] has checked. A file that another process has created meanwhile is
/// replaced only with `--force`.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>, overwrite: Overwrite) -> Result<()> {
    let named = || format!("cannot write {}", path.display());
    match text_output(path, overwrite)? {
        None => fs::write(path, bytes).with_context(named),
        Some(output) => {
            output.file().write_all(bytes.as_ref()).with_context(named)?;
            output.commit(&Meta::default()).map(drop)
        }
    }
}

/// Creates the output for a text. Returns `None` for a pipe or a device, which is written directly.
fn text_output(path: &Path, overwrite: Overwrite) -> Result<Option<Output>> {
    if is_device(path) {
        return Ok(None);
    }
    // A link's target is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // Permissions of any new file: as the process's umask allows.
    let output = Output::with_mode(&path, overwrite.force, 0o666);
    output.with_context(|| format!("cannot write {}", path.display())).map(Some)
}

/// An error with its own hint.
#[derive(Debug)]
struct Hinted {
    text: String,
    hint: &'static str,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Hinted {}

/// Creates an error with a hint, which [`hint_of`] returns.
pub fn with_hint(text: String, hint: &'static str) -> anyhow::Error {
    Hinted { text, hint }.into()
}

/// Suggests an action for WAL of a version that Walden does not read.
const UNKNOWN_VERSION_HINT: &str =
    "only a Walden that knows this version can read it; walden compress keeps it as bytes";

const NO_WAL_HINT: &str = "name the data directory of the server or its pg_wal; walden explain without a source lists the servers of this machine";

/// Returns the hint of an error or of one of its causes, including errors of the file system.
pub fn hint_of(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(hint) = error.chain().find_map(hint_of_cause) {
        return Some(hint);
    }
    // A connection error must not get the hint for an error of a file.
    if error.chain().any(|cause| cause.is::<postgres::Error>()) {
        return None;
    }
    let kind_of = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref().map(io::Error::kind);
    let kind = error.chain().find_map(kind_of)?;
    let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full && terminal::is_of_stdout(error) {
        return Some("free some space for standard output; the output so far is not complete");
    }
    hint_of_kind(kind)
}

/// A hint for a file that was skipped because it cannot be read, if the error of the file system decides it.
pub fn hint_of_unreadable(file: &Unreadable) -> Option<&'static str> {
    match &file.reason {
        UnreadableReason::Io(error) => hint_of_kind(error.kind()),
        _ => None,
    }
}

fn hint_of_kind(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::NotFound => "check the name; a file may also have been removed or recycled meanwhile",
        io::ErrorKind::PermissionDenied => {
            "the user that runs walden needs to read the files, and to write in the folder of its output: the files of a server belong to its user (sudo -u \
             postgres walden ..., or as root: runuser -u postgres -- walden ...)"
        }
        io::ErrorKind::OutOfMemory => {
            "the file may be good: free some memory, raise the limit of the process (ulimit -v), or use fewer --threads"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name a file or folder on another disk (TMPDIR for temporary files); no incomplete file remains"
        }
        io::ErrorKind::FileTooLarge => {
            "the limit on files' sizes (ulimit -f) or that of the file system was reached; no incomplete file remains"
        }
        io::ErrorKind::ReadOnlyFilesystem => "name a file or folder that can be written to",
        _ => return None,
    })
}

fn hint_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = cause.downcast_ref::<Hinted>() {
        return Some(error.hint);
    }
    if let Some(error) = cause.downcast_ref::<QueryError>() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<ArchiveError>() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<ExportError>() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<RecoveryError>() {
        return error.hint();
    }
    if let Some(AgainstError::Archive(error)) = cause.downcast_ref() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<ConnectionError>() {
        return Some(error.hint());
    }
    if let Some(error) = cause.downcast_ref::<ReplicationError>() {
        return error.hint();
    }
    match cause.downcast_ref() {
        Some(FollowError::UnknownVersion { .. }) => return Some(UNKNOWN_VERSION_HINT),
        Some(FollowError::Replication(error)) => return error.hint(),
        Some(FollowError::NoWal { .. }) => return Some(NO_WAL_HINT),
        _ => {}
    }
    if let Some(hint) = hint_of_file(cause) {
        return Some(hint);
    }
    cause.downcast_ref::<StoreError>().and_then(StoreError::hint)
}

/// Returns a hint for an error about a source, a data directory or saved names.
fn hint_of_file(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(SourcesError::Inventory(error)) = cause.downcast_ref() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<InventoryError>() {
        return error.hint();
    }
    if let Some(RowsError::DataDir(error)) = cause.downcast_ref() {
        return error.hint();
    }
    if let Some(error) = cause.downcast_ref::<DataDirError>() {
        return error.hint();
    }
    match cause.downcast_ref() {
        Some(NamesError::Saved(error)) => error.hint(),
        _ => cause.downcast_ref::<saved::NamesError>()?.hint(),
    }
}

/// Formats an error with its causes, omitting causes whose text already appears.
pub fn chain_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints an error and a hint.
pub fn report(error: &anyhow::Error) {
    tell(&format!("error: {}", chain_text(error)));
    if let Some(hint) = hint_of(error) {
        tell(&format!("hint: {hint}"));
    }
}

/// Prints a line on standard error, with control characters escaped: it may contain names from files.
///
/// If standard error cannot be written, as on a full disk, only the exit status remains.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

/// Returns an error if the target is a folder.
fn refuse_folder(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => {
            bail!("cannot write {}: expected the name of a file, found a folder", target.display())
        }
        _ => Ok(()),
    }
}

/// Returns an error if the target exists, may not be replaced, and differs in size from the output.
pub fn refuse_other_size(target: &Path, bytes: u64, replace: bool) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == bytes => Ok(()),
        _ => refuse_existing(target, replace),
    }
}

/// Returns an error if the target exists and may not be replaced.
pub fn refuse_existing(target: &Path, replace: bool) -> Result<()> {
    refuse_folder(target)?;
    match fs::symlink_metadata(target) {
        Ok(_) if !replace => Err(Refused::error(target, "it exists already; --force replaces it")),
        _ => Ok(()),
    }
}

/// Returns the attributes of a file that decompression restores.
pub fn meta_of(name: Vec<u8>, file: &fs::Metadata) -> Meta {
    let modified = file.modified().ok().map(|time| match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let (seconds, nanoseconds) = (before.as_secs() as i64, before.subsec_nanos());
            if nanoseconds == 0 { (-seconds, 0) } else { (-seconds - 1, 1_000_000_000 - nanoseconds) }
        }
    });
    Meta { name, modified, mode: Some(file.permissions().mode() & 0o777) }
}

fn time_of((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(whole)?,
        _ => SystemTime::UNIX_EPOCH.checked_sub(whole)?,
    };
    time.checked_add(Duration::from_nanos(nanoseconds.into()))
}

fn claimed() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use walden_codec::container;

    use super::*;

    const FORCE: Overwrite = Overwrite { force: true };

    #[test]
    fn a_file_is_replaced_only_if_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.html");
        fs::write(&page, "<p>yesterday's").unwrap();
        let link = folder.path().join("link.html");
        std::os::unix::fs::symlink(&page, &link).unwrap();
        let check =
            |path: &Path, overwrite| can_write(&[("--html", Some(path))], overwrite, &Inputs::default());
        for path in [&page, &link] {
            let refused = check(path, Overwrite::default()).unwrap_err();
            assert!(
                refused.is::<Refused>() && refused.to_string().contains("--force replaces it"),
                "{refused}"
            );
            // Another process may have created it during the work.
            assert!(write(path, "<p>today's", Overwrite::default()).unwrap_err().is::<Refused>());
            check(path, FORCE).unwrap();
        }
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>yesterday's");
        write(&link, "<p>today's", FORCE).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>today's");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
        assert!(check(folder.path(), FORCE).unwrap_err().to_string().contains("found a folder"));
    }

    #[test]
    fn an_input_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let segment = folder.path().join("000000010000000000000001");
        fs::write(&segment, [0x10, 0xD1]).unwrap();
        let inputs = Inputs::new([folder.path()]);
        for overwrite in [Overwrite::default(), FORCE] {
            let refused = can_write(&[("--html", Some(&segment))], overwrite, &inputs).unwrap_err();
            assert!(refused.to_string().contains("a file of the source; name another file"), "{refused}");
        }
        can_write(&[("--html", Some(&folder.path().join("page.html")))], FORCE, &inputs).unwrap();
    }

    #[test]
    fn two_options_that_name_one_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let twice = |one: &Path, other: &Path| {
            let wanted = [("--html", Some(one)), ("--out", None), ("--svg", Some(other))];
            named_twice(&wanted).map(|(one, other, _)| (one, other))
        };
        let both = Some(("--html", "--svg"));
        // Neither file exists yet.
        assert_eq!(twice(&path("new"), &path("./new")), both);
        assert_eq!(twice(&path("new"), &path("newer")), None);
        fs::write(path("page"), "<p>").unwrap();
        std::os::unix::fs::symlink(path("page"), path("link")).unwrap();
        assert_eq!(twice(&path("link"), &path("page")), both);
        assert_eq!(twice(Path::new("/dev/null"), Path::new("/dev/null")), None);
    }

    #[test]
    fn a_full_standard_output_has_no_incomplete_file() {
        let full = terminal::mark_stdout(io::ErrorKind::StorageFull.into());
        let hint = hint_of(&anyhow::Error::from(full).context("cannot write to standard output")).unwrap();
        assert!(hint.contains("standard output"), "{hint}");
        assert!(!hint.contains("incomplete"), "{hint}");
    }

    #[test]
    fn what_may_not_be_read_has_a_hint_wherever_it_is_met() {
        let denied = || {
            let reason = UnreadableReason::Io(io::ErrorKind::PermissionDenied.into());
            Unreadable { path: "wal/000000010000000000000001".into(), reason }
        };
        let nothing = InventoryError::NoSegments {
            paths: vec!["wal".into()],
            inventory: Box::default(),
            first_unreadable: Some(denied()),
        };
        for error in [InventoryError::Unreadable(denied()), nothing] {
            let hint = hint_of(&anyhow::Error::from(error)).unwrap();
            assert!(hint.contains("needs to read the files"), "{hint}");
        }
    }

    #[test]
    fn a_full_disk_is_seen_through_what_was_done() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let errors = [
            anyhow::Error::from(full()).context("write it"),
            anyhow::Error::from(container::Error::Io(full())).context("compress it"),
            anyhow::Error::from(container::Error::Original(full())),
        ];
        for error in errors {
            assert!(hint_of(&error).is_some_and(|hint| hint.starts_with("free some space")), "{error:#}");
        }
        assert_eq!(hint_of(&anyhow::Error::from(container::Error::Foreign)), None);
    }

    #[test]
    fn a_hint_is_no_part_of_an_errors_text() {
        let error = with_hint("no page".to_owned(), "give one").context("replaying");
        assert_eq!(chain_text(&error), "replaying: no page");
        assert_eq!(hint_of(&error), Some("give one"));
    }

    #[test]
    fn a_lack_of_memory_is_no_damage() {
        let error = container::Error::Io(io::ErrorKind::OutOfMemory.into());
        assert_eq!(error.hint(), None);
        let hint = hint_of(&error.into());
        assert!(hint.is_some_and(|hint| hint.contains("free some memory")), "{hint:?}");
    }

    #[test]
    fn what_is_no_file_is_written_to() {
        expect_writable(Path::new("/dev/null"), false, &Inputs::default()).unwrap();
        write(Path::new("/dev/null"), "anything", Overwrite::default()).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
