//! Files that appear complete or not at all.
//!
//! A file is written under a temporary name in the target's folder, synced, and renamed, as [`walden_archive::pending`] does it. An
//! existing file is not replaced unless that is allowed. A signal that ends the process removes unfinished files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use tempfile::NamedTempFile;
use walden_archive::against::AgainstError;
use walden_archive::archive::ArchiveError;
use walden_archive::export::ExportError;
use walden_archive::pending::{self, parent_folder};
use walden_archive::recovery::RecoveryError;
use walden_archive::store::StoreError;
use walden_codec::container::Meta;
use walden_report::html::Page;
use walden_report::table::harmless;
use walden_source::names::Names;
use walden_watch::server::QueryError;

use crate::terminal;

/// A file that is being written.
pub struct Output {
    temporary: NamedTempFile,
    target: PathBuf,
    claim: Option<Claim>,
    replace: bool,
    /// Permissions of the file that is replaced.
    mode: Option<u32>,
    /// A device or a pipe, which gets the bytes once all are known.
    device: Option<File>,
}

/// A target name, reserved for one output until the process ends, unless that output fails: of two inputs with the same target the
/// first result would otherwise be lost, even if files may be replaced.
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

/// The suffix of temporary files, by which those of killed processes are recognized.
const TEMPORARY_ENDING: &str = ".walden-tmp";
/// Younger temporary files are not removed, as their process may not have locked them yet.
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
    /// Creates a temporary file beside the target, and the folders above it. An existing target is compared only when everything
    /// is written: the same bytes are no error.
    pub fn create(target: &Path, replace: bool) -> Result<Output> {
        // For the owner alone until it has the permissions of what it was made from.
        Output::create_with_mode(target, replace, 0o600)
    }

    /// As [`Output::create`], for a result that replaces an existing file, whose permissions it takes over, and else that everybody may
    /// read whom the process's file mode creation mask lets. Where a link points to is what is replaced; a device or a pipe is
    /// written to.
    #[cfg(feature = "data")]
    pub fn create_result(target: &Path) -> Result<Output> {
        let target = &fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let found = fs::metadata(target).ok();
        if found.as_ref().is_some_and(|found| !found.is_file() && !found.is_dir()) {
            let device = File::options().write(true).open(target);
            let device = device.with_context(|| format!("cannot write {}", target.display()))?;
            let temporary = NamedTempFile::new().with_context(|| {
                format!("cannot make a temporary file in {} (TMPDIR)", std::env::temp_dir().display())
            })?;
            let (target, device) = (target.to_owned(), Some(device));
            return Ok(Output { temporary, target, claim: None, replace: true, mode: None, device });
        }
        let mode = found.map(|found| found.permissions().mode());
        Ok(Output { mode, ..Output::create_with_mode(target, true, 0o666)? })
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

    /// Where to write.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// The temporary file's name.
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// Gives the file its name, and the time of change and permissions of `meta`.
    ///
    /// # Errors
    /// The file system's, and an existing target with other bytes, unless it is to be replaced.
    pub fn commit(self, meta: &Meta) -> Result<Written> {
        let Output { temporary, target, mut claim, replace, mode, device } = self;
        let named = || format!("cannot write {}", target.display());
        if let Some(mut device) = device {
            // Another handle: the one that was written by has its position at the end.
            let written = temporary.reopen().and_then(|mut content| io::copy(&mut content, &mut device));
            written.with_context(named)?;
            return Ok(Written::New);
        }
        if let Some(mode) = meta.mode.or(mode) {
            let permissions = Permissions::from_mode(mode & 0o777);
            temporary.as_file().set_permissions(permissions).with_context(named)?;
        }
        if let Some(time) = meta.modified.and_then(time_of) {
            // Nice to have.
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
                // Whoever removes the original next relies on it.
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

/// Whether a file is the temporary file of a process, perhaps one that was killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_bytes();
    // Builds before the first release gave them another ending.
    let is_old = || {
        let before = name.strip_suffix(b".tmp").and_then(|name| name.get(..name.len().checked_sub(7)?));
        before.is_some_and(|name| name.ends_with(b".wlz") || name.ends_with(b".wpk"))
    };
    name.starts_with(b".") && (name.ends_with(TEMPORARY_ENDING.as_bytes()) || is_old())
}

/// Removes the temporary files of killed processes from a folder, once per process; ignores errors.
fn remove_leftovers(folder: &Path) {
    static SEARCHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let is_new = SEARCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned());
    let Some(entries) = is_new.then(|| fs::read_dir(folder).ok()).flatten() else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
        let path = entry.path();
        let is_regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        let modified = entry.metadata().and_then(|found| found.modified());
        let is_old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= MIN_LEFTOVER_AGE));
        // A process that writes holds the lock.
        if is_regular && is_old && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether two files have the same bytes.
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

/// Creates a folder and those above it, and syncs them.
fn make_folder(folder: &Path) -> Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    missing.into_iter().try_for_each(|folder| sync_folder(parent_folder(folder)))
}

/// Syncs a folder, so that its entries are durable.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot sync {}", folder.display()))
}

/// What a text that replaces a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A page or a picture.
    Page,
    /// JSON other than names.
    Json,
    /// Names of relations, as `--save-names` writes them.
    Names,
}

impl Content {
    fn of(text: &[u8]) -> Content {
        if text.starts_with(b"<") { Content::Page } else { Content::Json }
    }
}

/// An option, the file that it names if it is given, and what is to be written there.
pub type Wanted<'a> = (&'static str, Option<&'a Path>, Content);

/// Checks that texts can be written, before a computation that may take an hour. Existing files are kept.
///
/// Two options with the same file are wrong usage: the second text would replace the first one.
pub fn can_write(wanted: &[Wanted<'_>]) -> Result<()> {
    if let Some((one, other, path)) = named_twice(wanted) {
        crate::wrong_usage(&format!(
            "{one} and {other} name the same file, {}: give each a file of its own",
            harmless(&path.to_string_lossy())
        ));
    }
    let mut given = wanted.iter().filter_map(|(_, path, content)| Some(((*path)?, *content)));
    given.try_for_each(|(path, content)| text_output(path, content).map(drop))
}

/// Two options that name the same file, and the file.
fn named_twice<'a>(wanted: &[Wanted<'a>]) -> Option<(&'static str, &'static str, &'a Path)> {
    let placed = |&(option, path, _): &Wanted<'a>| {
        let path = path?;
        Some((option, path, place_of(path)?))
    };
    let places: Vec<(&'static str, &'a Path, PathBuf)> = wanted.iter().filter_map(placed).collect();
    places.iter().enumerate().find_map(|(index, (other, path, place))| {
        let (one, _, _) = places[..index].iter().find(|(_, _, earlier)| earlier == place)?;
        Some((*one, *other, *path))
    })
}

/// Where a file is, or will be, whatever links lead there; `None` for a device or a pipe, which takes one text after the other, and for
/// what cannot be written.
fn place_of(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => None,
        Ok(_) => fs::canonicalize(path).ok(),
        Err(_) => Some(fs::canonicalize(parent_folder(path)).ok()?.join(path.file_name()?)),
    }
}

/// Writes a page, and replaces an existing file.
pub fn write_page(path: &Path, page: &Page) -> Result<()> {
    write_text(path, page.render())
}

/// Writes a file, and replaces an existing one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let output = Output::with_mode(path, true, 0o666)?;
    output.file().write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    output.commit(&Meta::default()).map(drop)
}

/// Writes a page, a picture or JSON, and replaces an existing file.
pub fn write_text(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    let text = text.as_ref();
    write(path, text, Content::of(text))
}

/// Writes names of relations, and replaces an existing file.
pub fn write_names(path: &Path, names: &Names) -> Result<()> {
    let mut json = Vec::new();
    names.write(&mut json).context("cannot write the names as JSON")?;
    write(path, &json, Content::Names)
}

fn write(path: &Path, text: &[u8], content: Content) -> Result<()> {
    let named = || format!("cannot write {}", path.display());
    match text_output(path, content)? {
        None => fs::write(path, text).with_context(named),
        Some(output) => {
            output.file().write_all(text).with_context(named)?;
            output.commit(&Meta::default()).map(drop)
        }
    }
}

/// An output that replaces the target by a text; `None` for a pipe or a device, which is written directly.
fn text_output(path: &Path, content: Content) -> Result<Option<Output>> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            bail!("cannot write {}: expected the name of a file, found a folder", path.display())
        }
        Ok(meta) if !meta.is_file() => return Ok(None),
        Ok(_) => {
            if let Some(found) = what_is_kept(path, content)? {
                bail!("{} holds {found}, and is left as it is: name another file", path.display())
            }
        }
        Err(_) => {}
    }
    // What a link leads to is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // Permissions as the process's umask has them for any new file.
    let output = Output::with_mode(&path, true, 0o666);
    output.with_context(|| format!("cannot write {}", path.display())).map(Some)
}

/// What a file holds that is not replaced: all but an earlier text of the same kind, so that a segment named after the wrong option
/// stays, and so do saved names, which cannot be read from a server as it was then once more.
fn what_is_kept(path: &Path, new: Content) -> Result<Option<&'static str>> {
    let named = || format!("cannot write {}", path.display());
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1).read_to_end(&mut first));
    read.with_context(named)?;
    let old = match first[..] {
        [] => return Ok(None),
        [b'<'] => Content::Page,
        [b'{' | b'['] if Names::is_saved(path).with_context(named)? => Content::Names,
        [b'{' | b'['] => Content::Json,
        _ => return Ok(Some("no page, picture or JSON")),
    };
    Ok((old != new).then_some(match old {
        Content::Page => "a page or picture",
        Content::Json if new == Content::Names => "JSON other than saved names",
        Content::Json => "JSON",
        Content::Names => "saved names",
    }))
}

/// An error with a hint of its own.
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

/// An error with a hint, which [`hint_of`] gives back.
pub fn with_hint(text: String, hint: &'static str) -> anyhow::Error {
    Hinted { text, hint }.into()
}

/// A hint for an error that has one, or for one of the file system, among an error's causes.
pub fn hint_of(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(hint) = error.chain().find_map(hint_of_cause) {
        return Some(hint);
    }
    // A connection error is no error of a file.
    if error.chain().any(|cause| cause.is::<postgres::Error>()) {
        return None;
    }
    let kind_of = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref().map(io::Error::kind);
    let kind = error.chain().find_map(kind_of)?;
    let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full && terminal::is_of_stdout(error) {
        return Some("free some space where standard output goes; what is there already is not complete");
    }
    Some(match kind {
        io::ErrorKind::NotFound => "check the name; a file may also have been removed or recycled meanwhile",
        io::ErrorKind::PermissionDenied => {
            "the user that runs walden needs to read the files, and to write in the folder of what it makes"
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
    cause.downcast_ref::<StoreError>().and_then(|error| error.cause.hint())
}

/// An error with its causes, without causes whose text is repeated.
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

/// Prints a line on standard error that may have names from files in it.
///
/// Where standard error cannot be written, as on a full disk, the exit status has to do.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

/// An error if the target is a folder.
fn refuse_folder(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => {
            bail!("cannot write {}: expected the name of a file, found a folder", target.display())
        }
        _ => Ok(()),
    }
}

/// An error if the target exists, may not be replaced, and has another size than the output.
pub fn refuse_other_size(target: &Path, bytes: u64, replace: bool) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == bytes => Ok(()),
        _ => refuse_existing(target, replace),
    }
}

/// An error if the target exists and may not be replaced.
pub fn refuse_existing(target: &Path, replace: bool) -> Result<()> {
    refuse_folder(target)?;
    match fs::symlink_metadata(target) {
        Ok(_) if !replace => {
            bail!(
                "cannot write {}: it exists already and is not replaced; --force replaces it",
                target.display()
            )
        }
        _ => Ok(()),
    }
}

/// Attributes of a file that are restored.
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
    use walden_source::inventory::{InventoryError, Unreadable, UnreadableReason};

    use walden_codec::container;

    use super::*;

    #[test]
    fn a_page_is_replaced_only_by_a_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.html");
        fs::write(&page, "<p>yesterday's").unwrap();
        let is_page = |path: &Path| can_write(&[("--html", Some(path), Content::Page)]);
        is_page(&page).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>yesterday's");
        let link = folder.path().join("link.html");
        std::os::unix::fs::symlink(&page, &link).unwrap();
        write_text(&link, "<p>today's").unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "<p>today's");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
        assert!(is_page(folder.path()).unwrap_err().to_string().contains("found a folder"));
        let segment = folder.path().join("000000010000000000000001");
        fs::write(&segment, [0x10, 0xD1]).unwrap();
        let refused =
            [is_page(&segment), write_text(&segment, "<p>")].map(|result| result.unwrap_err().to_string());
        assert!(refused.iter().all(|error| error.contains("holds no page, picture or JSON")), "{refused:?}");
        assert_eq!(fs::read(&segment).unwrap(), [0x10, 0xD1]);
    }

    #[test]
    fn a_text_replaces_only_one_of_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let [page, json, names] =
            ["page.html", "rates.json", "names.json"].map(|name| folder.path().join(name));
        write_text(&page, "<p>").unwrap();
        write_text(&json, "{}").unwrap();
        write_names(&names, &Names::default()).unwrap();
        let all = [
            (&page, Content::Page, "holds a page or picture"),
            (&json, Content::Json, "holds JSON"),
            (&names, Content::Names, "holds saved names"),
        ];
        for (path, old, found) in all {
            for (_, new, _) in all {
                // It is known before there is a text.
                let checked = can_write(&[("--out", Some(path.as_path()), new)]);
                if new == old {
                    checked.unwrap();
                } else {
                    let refused = checked.unwrap_err().to_string();
                    assert!(refused.contains(found) && refused.contains("left as it is"), "{refused}");
                }
            }
        }
        let before = fs::read(&names).unwrap();
        for text in ["<p>", "{}"] {
            let refused = write_text(&names, text).unwrap_err().to_string();
            assert!(refused.contains("holds saved names, and is left as it is"), "{refused}");
        }
        write_names(&json, &Names::default()).unwrap_err();
        assert_eq!((fs::read(&names).unwrap(), fs::read(&json).unwrap()), (before, b"{}".to_vec()));
        write_names(&names, &Names::default()).unwrap();
        write_text(&json, "{\"newer\": 1}").unwrap();
        assert_eq!(fs::read_to_string(&json).unwrap(), "{\"newer\": 1}");
    }

    #[test]
    fn two_options_that_name_one_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let twice = |one: &Path, other: &Path| {
            let wanted = [
                ("--html", Some(one), Content::Page),
                ("--out", None, Content::Json),
                ("--svg", Some(other), Content::Page),
            ];
            named_twice(&wanted).map(|(one, other, _)| (one, other))
        };
        let both = Some(("--html", "--svg"));
        // Neither is there yet.
        assert_eq!(twice(&path("new"), &path("./new")), both);
        assert_eq!(twice(&path("new"), &path("newer")), None);
        fs::write(path("page"), "<p>").unwrap();
        std::os::unix::fs::symlink(path("page"), path("link")).unwrap();
        assert_eq!(twice(&path("link"), &path("page")), both);
        assert_eq!(twice(Path::new("/dev/null"), Path::new("/dev/null")), None);
    }

    #[test]
    fn a_full_standard_output_has_no_incomplete_file() {
        let full = terminal::of_stdout(io::ErrorKind::StorageFull.into());
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
        write_text(Path::new("/dev/null"), "anything").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
