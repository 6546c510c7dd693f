//! Gets a file for a server's recovery: from the prefetched segments, from a repository that has it, or from
//! the spool of `walden receive`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::drill;
use walden_archive::get::{self, GetError};
use walden_archive::name::{ArchivedFile, IDENTITY};
use walden_archive::neighbors;
use walden_archive::parts;
use walden_archive::prefetch::{PrefetchOptions, Spool};
use walden_archive::server::{asking_server, expect_own_archive};
use walden_format::lsn::SegmentName;
use walden_receive::handover::{Known, copy_out};
use walden_source::error_text;

use crate::configuration::ArchiveSection;
use crate::error::FetchError;
use crate::log::Log;
use crate::place::Place;
use crate::standby::STUCK_HINT;

/// How long the prefetching process of a stopped server may need to end.
const PREFETCH_ENDS: Duration = Duration::from_secs(5);
/// Names that PostgreSQL gives to restored files (`RestoreArchivedFile`). PostgreSQL removes earlier files
/// with these names.
const RECOVERY_NAMES: [&str; 2] = ["RECOVERYXLOG", "RECOVERYHISTORY"];

type Result<T> = std::result::Result<T, FetchError>;

/// What is done for a file that the archive lacks, and which segments follow.
#[derive(Clone)]
pub struct GetOptions<'a> {
    /// The archive, or several repositories.
    pub place: Place,
    /// Spool of `walden receive`, for files that are not archived yet.
    pub spool: Option<&'a Path>,
    /// Whether a missing segment is the end of WAL even if later segments are archived.
    pub ignores_gaps: bool,
    /// Maximum number of segments to prefetch; `None` uses the number in the configuration.
    pub prefetch: Option<usize>,
    /// For a drill's server: the folder of the notes about tablespaces, which stay inside the data directory.
    pub redirect_tablespaces: Option<&'a Path>,
    /// Whether an existing file is replaced.
    pub replaces: bool,
    /// Time limit for each of several repositories.
    pub answer_within: Duration,
    /// The log for warnings.
    pub log: &'a Log,
    /// The activity log of the process that prefetches; `None` uses the activity log in the configuration.
    pub activity_log: Option<&'a Path>,
}

impl GetOptions<'_> {
    /// Returns the same request to another archive.
    fn at(&self, place: Place) -> GetOptions<'_> {
        GetOptions { place, ..self.clone() }
    }
}

/// Writes a file to `target`, as `restore_command` does.
///
/// # Errors
/// [`FetchError::is_missing`] if the file is in none of the repositories; otherwise it may be there, and
/// recovery must not continue without it.
pub fn get(options: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    let is_of_recovery = target.file_name().is_some_and(|name| RECOVERY_NAMES.iter().any(|it| name == *it));
    let is_file = target.metadata().is_ok_and(|target| target.is_file());
    match is_file && !is_of_recovery && !options.replaces {
        true => expect_same_file(options, name, target),
        false => get_file(options, name, target),
    }
}

/// Gets a file from where it is first found.
fn get_file(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    get_from_archive(args, name, target)
        .or_else(|error| get_begun(args, target, error))
        .or_else(|error| get_from_spool(args, name, target, error))
        .or_else(|error| expect_end(args, target, error))
        .and_then(|()| redirect_tablespaces(args, name, target))
}

/// Gets a file next to the existing file `target`, and compares both: an existing file with other content may
/// be the only copy of WAL that is not archived.
fn expect_same_file(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = |source| FetchError::Compare { name: name.to_owned(), path: target.to_owned(), source };
    let beside = tempfile::Builder::new().prefix(".walden-get-").tempfile_in(folder).map_err(cannot)?;
    get_file(args, name, beside.path())?;
    match have_same_content(target, beside.path()).map_err(cannot)? {
        true => Ok(()),
        false => Err(FetchError::OtherFile { path: target.to_owned(), name: name.to_owned() }),
    }
}

fn have_same_content(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read = one.read(&mut a)?;
        if read == 0 {
            return Ok(true);
        }
        other.read_exact(&mut b[..read])?;
        if a[..read] != b[..read] {
            return Ok(false);
        }
    }
}

/// Reports a segment that is missing before the end of WAL, unless the server can get it elsewhere: a standby
/// continues by streaming, and PostgreSQL reads the copy in its `pg_wal` if there is one.
fn expect_end(args: &GetOptions<'_>, target: &Path, error: FetchError) -> Result<()> {
    let Some(segment) = missing_segment(&error) else { return Err(error) };
    if may_end_at_gap(args, segment, target) {
        return Err(error);
    }
    in_any_repository(args, args.place.repositories()?, |args, _| {
        let (archive, _) = open(args)?;
        Ok(get::report_gap(&archive, segment, target)?)
    })
}

/// Returns whether recovery may stop reading the archive before a gap.
fn may_end_at_gap(args: &GetOptions<'_>, segment: SegmentName, target: &Path) -> bool {
    args.ignores_gaps || target.with_file_name(segment.to_string()).exists() || serves_standby(target)
}

/// Writes the archived first part of the segment that the server is writing, from the repository that has the
/// most parts: other repositories may have been unreachable when the last parts were acknowledged.
fn get_begun(args: &GetOptions<'_>, target: &Path, error: FetchError) -> Result<()> {
    let Some(segment) = missing_segment(&error) else { return Err(error) };
    let mut places = args.place.repositories()?;
    if places.len() > 1 {
        let mut ends = Vec::new();
        for place in &places {
            let (archive, _) = open(&args.at(place.clone()))?;
            let failed = |source| GetError::Archive { name: segment.to_string(), source };
            ends.push(parts::extent(&archive, segment).map_err(failed)?.end);
        }
        let most = ends.iter().copied().max();
        let mut ends = ends.into_iter();
        places.retain(|_| ends.next() == most);
    }
    in_any_repository(args, places, |args, _| {
        let (archive, _) = open(args)?;
        Ok(get::get_begun(&archive, segment, target, may_end_at_gap(args, segment, target))?)
    })
}

/// Tries repositories in order until one has the file. The file is missing only if all repositories can be
/// read and lack it. `get` also receives the repositories that have failed.
fn in_any_repository(
    args: &GetOptions<'_>,
    places: Vec<Place>,
    get: impl Fn(&GetOptions<'_>, &[Place]) -> Result<()>,
) -> Result<()> {
    let (mut missing, mut failed, mut empty) = (None, None::<FetchError>, None);
    let (count, mut failing) = (places.len(), Vec::new());
    for place in places {
        match get(&args.at(place.clone()), &failing) {
            Ok(()) => {
                if let Some(error) = &failed {
                    args.log.print(&format!(
                        "WARNING: another repository has the file: {}",
                        error.causes().join(": ")
                    ));
                }
                return Ok(());
            }
            Err(error) if error.is_missing() => {
                missing = missing.or(Some(error));
            }
            // A new repository among others.
            Err(error) if count > 1 && error.is_empty() => empty = Some(error),
            Err(error) => {
                failing.push(place);
                failed = failed.or(Some(error));
            }
        }
    }
    // `repositories` returns at least one place.
    failed.or(missing).or(empty).map_or(Ok(()), Err)
}

/// Returns the remedy for a standby that requests a segment that `prune` removed.
pub fn pruned_hint(options: &GetOptions<'_>, target: &Path, error: &FetchError) -> Option<String> {
    let segment = missing_segment(error).filter(|_| serves_standby(target))?;
    let (archive, _) = options.place.open().ok()?;
    let first = get::first_kept_after(&archive, segment).ok()??;
    Some(format!("walden archive prune kept the WAL from {first} on; for the standby, {STUCK_HINT}"))
}

/// Returns the segment that the archive lacks.
fn missing_segment(error: &FetchError) -> Option<SegmentName> {
    let FetchError::Get(GetError::NotThere { name, .. }) = error else { return None };
    match ArchivedFile::parse(name) {
        Some(ArchivedFile::Segment(segment)) => Some(segment),
        _ => None,
    }
}

/// Returns whether the requesting server is a standby, which does not promote at the end of the archive.
fn serves_standby(target: &Path) -> bool {
    asking_server(target).is_some_and(|server| {
        // `global/pg_control` in the data directory.
        let data = server.control.parent().and_then(Path::parent);
        // Up to 11, recovery.conf configures standbys and other recoveries.
        data.is_some_and(|data| {
            ["standby.signal", "recovery.conf"].iter().any(|name| data.join(name).exists())
        })
    })
}

/// Rewrites a segment before a drill's server can see it.
fn redirect_tablespaces(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    let (Some(notes), Some(ArchivedFile::Segment(segment))) =
        (args.redirect_tablespaces, ArchivedFile::parse(name))
    else {
        return Ok(());
    };
    let redirected = drill::redirect_file(segment, target, notes);
    if redirected.is_err() {
        let _ = std::fs::remove_file(target);
    }
    Ok(redirected?)
}

/// Restores a file that the archive lacks from the files that `walden receive` received last.
fn get_from_spool(args: &GetOptions<'_>, name: &str, target: &Path, error: FetchError) -> Result<()> {
    // The spool may have a history file without segments.
    let is_missing = matches!(error, FetchError::Get(GetError::NotThere { .. } | GetError::NoHistory { .. }));
    let (Some(spool), Some(file)) = (args.spool, ArchivedFile::parse(name).filter(|_| is_missing)) else {
        return Err(error);
    };
    let (archive, _) = args.place.open()?;
    let archived = || archive.histories().map_err(io::Error::other);
    match copy_out(spool, file, target, &known_of(&archive, target), archived) {
        Ok(true) => Ok(()),
        // The file may have been archived and removed from the spool since the archive was queried.
        Ok(false) => get_from_archive(args, name, target),
        Err(source) => Err(FetchError::Spool {
            name: name.to_owned(),
            spool: spool.to_owned(),
            source: Box::new(source),
        }),
    }
}

/// Returns the clusters that a spool's file must belong to: the archive's, and the requesting server's.
fn known_of(archive: &Archive, target: &Path) -> Known {
    let identity = archive.identity().ok();
    let of_archive = identity.and_then(|identity| {
        let says = format!("{IDENTITY} in {}", archive.store().location());
        Some((identity.system_identifier.parse().ok()?, says))
    });
    let of_server =
        asking_server(target).map(|server| (server.system_id, server.control.display().to_string()));
    Known {
        system_ids: of_archive.into_iter().chain(of_server).collect(),
        segment_bytes: identity.map(|identity| identity.segment_bytes),
    }
}

/// Restores a file from the prefetched segments, or from an archive.
fn get_from_archive(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    let places = args.place.repositories()?;
    // Before any archive is asked: an unreachable one takes its time.
    if places.len() > 1 {
        for place in &places {
            if take_prefetched(&args.at(place.clone()), name, target)? {
                return Ok(());
            }
        }
    }
    in_any_repository(args, places, |one, failing| {
        expect_same_history(args, one, failing, (name, target))?;
        get_from_repository(one, name, target)
    })
}

/// Checks that the repositories belong to one cluster. If earlier repositories failed and a later one has the
/// segment, the segment must also fit between its neighbors in the earlier repositories. In a data directory,
/// [`expect_own_archive`] checks the first repository against the server's own cluster.
fn expect_same_history(
    args: &GetOptions<'_>,
    one: &GetOptions<'_>,
    failing: &[Place],
    (name, target): (&str, &Path),
) -> Result<()> {
    let places = args.place.repositories()?;
    let is_first = places.first().is_none_or(|first| first.repo == one.place.repo);
    if places.len() < 2 || is_first && asking_server(target).is_some() {
        return Ok(());
    }
    let mut others = Vec::new();
    for place in places.into_iter().filter(|place| place.repo != one.place.repo) {
        let has_failed = failing.iter().any(|failing| failing.repo == place.repo);
        let archive = match open(&args.at(place)) {
            Ok((archive, _)) => archive,
            // The first repository is read whether the others can be used or not.
            Err(_) if is_first => continue,
            Err(error) => return Err(error),
        };
        // A damaged object says nothing about the others, but an unreachable store takes its time again.
        if !has_failed || archive.identity().is_ok() {
            others.push(archive);
        }
    }
    let (archive, _) = open(one)?;
    let failed = |source| GetError::Archive { name: name.to_owned(), source };
    let all: Vec<&Archive> = others.iter().chain([&archive]).collect();
    neighbors::expect_one_cluster(&all).map_err(failed)?;
    if let Some(ArchivedFile::Segment(segment)) = ArchivedFile::parse(name).filter(|_| !is_first) {
        neighbors::expect_neighbors(&archive, segment, &others.iter().collect::<Vec<_>>()).map_err(failed)?;
    }
    Ok(())
}

/// Opens an archive. One of several archives must answer soon, because another archive may have the file.
fn open(args: &GetOptions<'_>) -> Result<(Archive, ArchiveSection)> {
    let (section, _) = args.place.configuration()?;
    Ok(match section.repo.0.len() {
        0 | 1 => args.place.open(),
        _ => args.place.open_to_answer_within(args.answer_within),
    }?)
}

/// How a server's segments are prefetched from an archive.
struct Ahead<'a> {
    args: &'a GetOptions<'a>,
    archive: &'a Archive,
    spool: Spool,
    folder: &'a Path,
    segments: usize,
}

impl<'a> Ahead<'a> {
    fn new(
        args: &'a GetOptions<'a>,
        archive: &'a Archive,
        section: &ArchiveSection,
        target: &'a Path,
    ) -> Ahead<'a> {
        let segments = args.prefetch.or(section.prefetch).unwrap_or(PrefetchOptions::default().segments);
        let folder =
            target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let spool = Spool::new(folder, archive);
        // A user requests a single segment, and pg_rewind a few; only a server continues with the next one.
        let is_of_a_server = spool.is_of_a_server();
        if !is_of_a_server {
            // The process of a stopped server still removes files, which pg_rewind would miss.
            spool.wait_until_unused(PREFETCH_ENDS);
        }
        let segments = if is_of_a_server { segments } else { 0 };
        Ahead { args, archive, spool, folder, segments }
    }

    fn start(&self) {
        start_prefetch(self.args, self.archive, &self.spool, self.folder, self.segments);
    }

    /// Notes the segment that the server requests. Prefetching only improves speed: its failure must not stop
    /// recovery.
    fn note(&self, segment: SegmentName) {
        if self.segments > 0 && self.spool.note(segment).is_ok() {
            self.start();
        }
    }

    fn has(&self, segment: SegmentName) -> bool {
        self.segments > 0 && self.spool.is_ahead(segment)
    }

    /// Takes a prefetched segment.
    fn take(&self, segment: SegmentName, target: &Path) -> bool {
        // Recorded before the segment is taken, so that it is not fetched again.
        self.note(segment);
        self.spool.take(segment, target).unwrap_or(false)
    }
}

fn take_prefetched(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<bool> {
    let Some(ArchivedFile::Segment(segment)) = ArchivedFile::parse(name) else { return Ok(false) };
    let (archive, section) = open(args)?;
    let ahead = Ahead::new(args, &archive, &section, target);
    Ok(ahead.has(segment) && ahead.take(segment, target))
}

fn get_from_repository(args: &GetOptions<'_>, name: &str, target: &Path) -> Result<()> {
    let (archive, section) = open(args)?;
    let Some(file) = ArchivedFile::parse(name) else {
        let (name, location) = (name.to_owned(), archive.store().location().to_owned());
        return Err(GetError::NotThere { name, location }.into());
    };
    let ahead = Ahead::new(args, &archive, &section, target);
    let ArchivedFile::Segment(segment) = file else {
        expect_own_archive(&archive, file, target)?;
        // The last file that a server requests at the end of recovery is a history (`writeTimeLineHistory` in
        // `timeline.c`). If the prefetch process has ended, as on a standby that streamed, another prefetch
        // process waits for the end of recovery and removes the folder.
        if ahead.segments > 0 && ahead.spool.folder().exists() {
            start_prefetch(args, &archive, &ahead.spool, ahead.folder, 0);
        }
        get::get(&archive, file, target)?;
        warn_of_lost_identity(args, &archive);
        return Ok(());
    };
    let is_ahead = ahead.has(segment);
    if is_ahead && ahead.take(segment, target) {
        return Ok(());
    }
    expect_own_archive(&archive, file, target)?;
    // Meanwhile, prefetch the following segments; a missing file has none.
    let got = get::get_after(&archive, file, target, || {
        if !is_ahead {
            ahead.note(segment);
        }
    });
    match got {
        // Prefetched segments may occupy the space.
        Err(error) if ahead.segments > 0 && error.is_full() && ahead.spool.give_way().is_ok() => {
            get::get(&archive, file, target)?;
        }
        other => other?,
    }
    warn_of_lost_identity(args, &archive);
    Ok(())
}

/// Warns that the archive does not identify its cluster. Outside a data directory, where no server recovers
/// from the file, files from intact objects are still written; in a data directory, [`expect_own_archive`]
/// has already failed.
fn warn_of_lost_identity(args: &GetOptions<'_>, archive: &Archive) {
    if let Err(error @ (ArchiveError::Identity { .. } | ArchiveError::Missing(_))) = archive.identity() {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        args.log.warn(&format!(
            "the file is as it was archived, but nothing identifies its cluster: {}{hint}",
            error_text(&error)
        ));
    }
}

/// Starts the prefetch process unless it is running.
fn start_prefetch(args: &GetOptions<'_>, archive: &Archive, spool: &Spool, folder: &Path, ahead: usize) {
    match spool.lock() {
        // Released so that the process can acquire it.
        Ok(Some(lock)) => drop(lock),
        _ => return,
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = Command::new(program);
    command.args(["archive", "prefetch", "--segments", &ahead.to_string()]);
    command.args(["--repo", archive.store().location()]);
    if let Some(config) = &args.place.config {
        command.arg("--config").arg(config);
    }
    if let Some(identity) = &args.place.identity {
        command.arg("--identity").arg(identity);
    }
    if let Some(log) = args.activity_log {
        command.arg("--log").arg(log);
    }
    command.arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A separate process group: a server's shutdown waits for restore_command, but must not wait for this
    // process.
    let _ = command.process_group(0).spawn();
}
