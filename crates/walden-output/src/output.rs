//! Writes files that appear complete or not at all.
//!
//! A file is written under a temporary name in the target's folder, synced, and renamed ([`pending`]). An
//! existing file is replaced only with permission, and a command's input never ([`expect_writable`]). A
//! signal that ends the process removes unfinished files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;
use walden_codec::container::Meta;

use crate::inputs::{Inputs, find_protected};
use crate::pending::{self, parent_folder};

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The file exists, or must not change.
    #[error("cannot write {}: {reason}", target.display())]
    Refused {
        /// The file.
        target: PathBuf,
        /// The reason, with the remedy.
        reason: String,
    },
    /// A part of the path below the output folder is a link.
    #[error(
        "cannot write to {}: {} is a link to another folder or file; remove it, or name where it leads as the output folder",
        path.display(),
        link.display()
    )]
    Link {
        /// The file.
        path: PathBuf,
        /// The link.
        link: PathBuf,
    },
    /// Another output of this process has the same target.
    #[error(
        "cannot write {} twice: the output of another of these files has this path, and stays as it is; give each file a separate output folder",
        .0.display()
    )]
    Claimed(PathBuf),
    /// The target is a folder.
    #[error("cannot write {}: expected the name of a file, found a folder", .0.display())]
    Folder(PathBuf),
    /// The original of a compressed file must not be removed.
    #[error("cannot remove {} after it is compressed: {reason}", input.display())]
    NotRemovable {
        /// The original.
        input: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A temporary file for a device or a pipe cannot be created.
    #[error("cannot make a temporary file in {} (TMPDIR)", folder.display())]
    Temporary {
        /// The folder of temporary files.
        folder: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// A file cannot be written for another reason.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: Box<OutputError>,
    },
    /// The file system refused an operation.
    #[error("{action} {}", path.display())]
    Io {
        /// What failed, before the path: "cannot sync".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
}

impl OutputError {
    /// Creates a refusal to write a file, with the reason and a remedy.
    pub fn refused(target: &Path, reason: impl Into<String>) -> OutputError {
        OutputError::Refused { target: target.to_owned(), reason: reason.into() }
    }

    /// Returns whether the file is not written because it exists or must not change, which is wrong usage.
    pub fn is_refusal(&self) -> bool {
        matches!(self, OutputError::Refused { .. })
    }
}

type Result<T> = std::result::Result<T, OutputError>;

/// Names the operation and the path of an error of the file system.
fn at<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> OutputError + use<'a> {
    move |error| OutputError::Io { action, path: path.to_owned(), error }
}

const WRITE: &str = "cannot write";

/// Checks, before the work, that a file may be written: it is not an input of the command, and it does not
/// exist or may be replaced. An existing file of a server is never replaced. A device or a pipe may always be
/// written.
///
/// # Errors
/// [`OutputError::Refused`] and [`OutputError::Folder`].
pub fn expect_writable(target: &Path, replace: bool, inputs: &Inputs) -> Result<()> {
    if is_device(target) {
        return Ok(());
    }
    expect_no_input(target, inputs)?;
    refuse_existing(target, replace)?;
    match find_protected(target).filter(|_| target.exists()) {
        Some(reason) => Err(OutputError::refused(target, format!("{reason}; name another file"))),
        None => Ok(()),
    }
}

/// Checks that no part of a path below a folder is a link: the user named only that folder, not the targets
/// of links in it.
///
/// # Errors
/// [`OutputError::Link`].
pub fn expect_no_link_below(root: &Path, path: &Path) -> Result<()> {
    let below = path.ancestors().take_while(|above| *above != root);
    match below.filter(|above| above.is_symlink()).last() {
        Some(link) => Err(OutputError::Link { path: path.to_owned(), link: link.to_owned() }),
        None => Ok(()),
    }
}

/// Checks that a file is neither an input of a command nor in a protected folder.
///
/// # Errors
/// [`OutputError::Refused`].
pub fn expect_no_input(target: &Path, inputs: &Inputs) -> Result<()> {
    match inputs.find_conflict(target) {
        Some(conflict) => Err(OutputError::refused(target, format!("{conflict}; name another file"))),
        None => Ok(()),
    }
}

fn is_device(target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A file that is being written.
#[derive(Debug)]
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
#[derive(Debug)]
struct Claim {
    target: PathBuf,
    is_written: bool,
}

static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl Claim {
    fn on(target: &Path) -> Result<Claim> {
        if !claimed().insert(target.to_owned()) {
            return Err(OutputError::Claimed(target.to_owned()));
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
    ///
    /// # Errors
    /// Errors of the file system, and a target that is a folder or that another output has.
    pub fn create(target: &Path, replace: bool) -> Result<Output> {
        // Readable by the owner only, until it gets the permissions of the original.
        Output::create_with_mode(target, replace, 0o600)
    }

    /// Like [`Output::create`], but with the permissions of the replaced file, otherwise those that the
    /// process's umask allows. If the target is a link, the link's target is replaced; a device or a pipe is
    /// written to.
    ///
    /// # Errors
    /// Errors of [`Output::create`].
    pub fn create_result(target: &Path, replace: bool) -> Result<Output> {
        let target = &fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let found = fs::metadata(target).ok();
        if is_device(target) {
            let device = File::options().write(true).open(target);
            let device = device.map_err(at(WRITE, target))?;
            let temporary = NamedTempFile::new()
                .map_err(|error| OutputError::Temporary { folder: std::env::temp_dir(), error })?;
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
        let temporary = pending::begin_apart(target, TEMPORARY_ENDING, mode)
            .map_err(at("cannot create a temporary file in", parent_folder(target)))?;
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
        let failed = at(WRITE, &target);
        if let Some(mut device) = device {
            // Reopened, because the handle that was used for writing is positioned at the end.
            let written = temporary.reopen().and_then(|mut content| io::copy(&mut content, &mut device));
            written.map_err(failed)?;
            return Ok(Written::New);
        }
        if let Some(mode) = meta.mode.or(mode) {
            let permissions = Permissions::from_mode(mode & 0o777);
            temporary.as_file().set_permissions(permissions).map_err(&failed)?;
        }
        if let Some(time) = meta.modified.and_then(time_of) {
            // Best effort.
            let _ = temporary.as_file().set_modified(time);
        }
        temporary.as_file().sync_all().map_err(&failed)?;
        match pending::publish(temporary, &target, replace) {
            Ok(_) => claim.iter_mut().for_each(|claim| claim.is_written = true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                let is_same = is_same_content(error.file.path(), &target);
                if !is_same.map_err(at("cannot compare with", &target))? {
                    refuse_existing(&target, replace)?;
                }
                // The caller may remove the original next, so the existing file must be durable.
                File::open(&target).and_then(|file| file.sync_all()).map_err(&failed)?;
                claim.iter_mut().for_each(|claim| claim.is_written = true);
                sync_folder(parent_folder(&target))?;
                return Ok(Written::Same);
            }
            Err(error) => return Err(failed(error.error)),
        }
        sync_folder(parent_folder(&target))?;
        Ok(Written::New)
    }
}

/// Checks that an input may be removed: it is neither in an archive nor part of a server.
///
/// # Errors
/// [`OutputError::NotRemovable`].
pub fn expect_removable(input: &Path, inputs: &Inputs) -> Result<()> {
    match inputs.find_closed_folder(input) {
        Some(reason) => Err(OutputError::NotRemovable { input: input.to_owned(), reason }),
        None => Ok(()),
    }
}

/// Creates a folder if it does not exist, and locks it until the returned file is dropped: two processes
/// writing into it would not notice each other's files.
///
/// # Errors
/// Errors of the file system, and [`OutputError::Refused`] if another process has locked it.
pub fn lock_folder(folder: &Path) -> Result<File> {
    make_folder(folder)?;
    let opened = File::open(folder).map_err(at("cannot open", folder))?;
    match opened.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OutputError::refused(
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
    fs::create_dir_all(folder).map_err(at("cannot create", folder))?;
    missing.into_iter().try_for_each(|folder| sync_folder(parent_folder(folder)))
}

/// Syncs a folder, so that its entries are durable.
///
/// # Errors
/// Errors of the file system.
pub fn sync_folder(folder: &Path) -> Result<()> {
    walden_source::sync(folder).map_err(at("cannot sync", folder))
}

/// An option, and the file that it names, if given.
pub type Wanted<'a> = (&'static str, Option<&'a Path>);

/// Checks that files can be written, before a computation that may take an hour.
///
/// # Errors
/// Errors of [`expect_writable`], and of the file system for a folder without room or permission.
pub fn can_write(wanted: &[Wanted<'_>], replaces: bool, inputs: &Inputs) -> Result<()> {
    wanted.iter().filter_map(|(_, path)| *path).try_for_each(|path| {
        expect_writable(path, replaces, inputs)?;
        text_output(path, replaces).map(drop)
    })
}

/// Returns two options that name the same file, and the file: the second output would replace the first
/// output.
pub fn find_named_twice<'a>(wanted: &[Wanted<'a>]) -> Option<(&'static str, &'static str, &'a Path)> {
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

/// Writes a file that only this program writes, replacing an earlier one.
///
/// # Errors
/// Errors of the file system, and a target that is a folder.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let output = Output::with_mode(path, true, 0o666)?;
    output.file().write_all(bytes).map_err(at(WRITE, path))?;
    output.commit(&Meta::default()).map(drop)
}

/// Writes a file that [`can_write`] has checked.
///
/// # Errors
/// Errors of the file system, and [`OutputError::Refused`] if another process has created the file meanwhile
/// and it may not be replaced.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>, replaces: bool) -> Result<()> {
    match text_output(path, replaces)? {
        None => fs::write(path, bytes).map_err(at(WRITE, path)),
        Some(output) => {
            output.file().write_all(bytes.as_ref()).map_err(at(WRITE, path))?;
            output.commit(&Meta::default()).map(drop)
        }
    }
}

/// Creates the output for a text. Returns `None` for a pipe or a device, which is written directly.
fn text_output(path: &Path, replaces: bool) -> Result<Option<Output>> {
    if is_device(path) {
        return Ok(None);
    }
    // A link's target is replaced, not the link.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // Permissions of any new file: as the process's umask allows.
    let output = Output::with_mode(&place, replaces, 0o666);
    output.map(Some).map_err(|error| OutputError::Write { path: place, error: error.into() })
}

/// Returns an error if the target is a folder.
fn refuse_folder(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => Err(OutputError::Folder(target.to_owned())),
        _ => Ok(()),
    }
}

/// Checks that a target does not exist, may be replaced, or has the size of the output in bytes.
///
/// # Errors
/// [`OutputError::Refused`] and [`OutputError::Folder`].
pub fn refuse_other_size(target: &Path, bytes: u64, replace: bool) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == bytes => Ok(()),
        _ => refuse_existing(target, replace),
    }
}

/// Checks that a target does not exist or may be replaced.
///
/// # Errors
/// [`OutputError::Refused`] and [`OutputError::Folder`].
pub fn refuse_existing(target: &Path, replace: bool) -> Result<()> {
    refuse_folder(target)?;
    match fs::symlink_metadata(target) {
        Ok(_) if !replace => Err(OutputError::refused(target, "it exists already; --force replaces it")),
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
    use super::*;

    #[test]
    fn a_file_is_replaced_only_if_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.html");
        fs::write(&page, "<p>yesterday's").unwrap();
        let link = folder.path().join("link.html");
        std::os::unix::fs::symlink(&page, &link).unwrap();
        let check =
            |path: &Path, replaces| can_write(&[("--html", Some(path))], replaces, &Inputs::default());
        for path in [&page, &link] {
            let refused = check(path, false).unwrap_err();
            assert!(refused.is_refusal() && refused.to_string().contains("--force replaces it"), "{refused}");
            // Another process may have created it during the work.
            assert!(write(path, "<p>today's", false).unwrap_err().is_refusal());
            check(path, true).unwrap();
        }
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>yesterday's");
        write(&link, "<p>today's", true).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>today's");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
        assert!(check(folder.path(), true).unwrap_err().to_string().contains("found a folder"));
    }

    #[test]
    fn an_input_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let segment = folder.path().join("000000010000000000000001");
        fs::write(&segment, [0x10, 0xD1]).unwrap();
        let inputs = Inputs::new([folder.path()]);
        for replaces in [false, true] {
            let refused = can_write(&[("--html", Some(&segment))], replaces, &inputs).unwrap_err();
            assert!(refused.to_string().contains("a file of the source; name another file"), "{refused}");
        }
        can_write(&[("--html", Some(&folder.path().join("page.html")))], true, &inputs).unwrap();
    }

    #[test]
    fn two_options_that_name_one_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let twice = |one: &Path, other: &Path| {
            let wanted = [("--html", Some(one)), ("--out", None), ("--svg", Some(other))];
            find_named_twice(&wanted).map(|(one, other, _)| (one, other))
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
    fn what_is_no_file_is_written_to() {
        expect_writable(Path::new("/dev/null"), false, &Inputs::default()).unwrap();
        write(Path::new("/dev/null"), "anything", false).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
