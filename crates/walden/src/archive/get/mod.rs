//! `walden archive get`: the command for `restore_command`.

mod prefetch;
mod until;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use walden_archive::archive::{Archive, ArchiveError};
use walden_archive::drill::{self, RedirectFileError};
use walden_archive::get::{self, GetError};
use walden_archive::name::{ArchivedFile, IDENTITY};
use walden_archive::neighbors;
use walden_archive::parts;
use walden_archive::prefetch::{PrefetchOptions, Spool};
use walden_archive::server::{asking_server, expect_own_archive};
use walden_explain::moment::Moment;
use walden_format::lsn::{SegmentName, Timeline};
use walden_receive::handover::{CopyError, Known, copy_out};

use self::prefetch::start_prefetch;
pub use self::prefetch::{PREFETCH_FAILED, PrefetchArgs, run_prefetch};
use self::until::get_until;
use super::export::{Position, parse_position};
use super::log::{Entry, Log, LogOptions};
use super::push::{ANSWER_WITHIN, complain};
use super::standby::STUCK_HINT;
use crate::configuration::ArchiveSection;
use crate::output::Overwrite;
use crate::place::Place;
use crate::terminal::Format;

/// Exit status if the archive lacks the file: PostgreSQL continues, and treats a missing segment as the end
/// of WAL.
const NOT_THERE: u8 = 1;
/// Exit status if the file may exist but cannot be read. Above 125, so that PostgreSQL stops instead of
/// ending recovery early.
pub const TROUBLE: u8 = 200;

/// How long the prefetching process of a stopped server may need to end.
const PREFETCH_ENDS: Duration = Duration::from_secs(5);
/// Names that PostgreSQL gives to restored files (`RestoreArchivedFile`). It removes earlier ones.
const RECOVERY_NAMES: [&str; 2] = ["RECOVERYXLOG", "RECOVERYHISTORY"];

const EXAMPLES: &str = "\
Examples:
  restore_command = 'walden archive get %f \"%p\"'
      in postgresql.conf, with walden.toml in the data directory or in /etc/walden
  walden archive get --repo /backup/main 000000010000000000000007 ./000000010000000000000007
  walden archive get --until '2026-11-20 10:00' --base /backups/monday -o /tmp/wal
      all files that recovery from a base backup to a time reads

During recovery, a background process fetches the next segments into pg_wal; later calls only rename them.

Exit status: 0 the file was written; 1 the archive does not have it, and PostgreSQL continues without it (with --until: the time cannot be \
reached); 200 any other error, which makes PostgreSQL stop instead of ending recovery early: the archive cannot be read, belongs to \
another cluster, has segments of another size, or lacks a segment before later ones.";

/// Restore a file from the archive
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// File name: %f
    #[arg(value_name = "NAME", required_unless_present = "until", conflicts_with = "until")]
    name: Option<String>,

    /// Where to write the file: %p
    #[arg(value_name = "PATH", required_unless_present = "until")]
    target: Option<PathBuf>,

    /// Instead of one file, restore all files that recovery to this time reads, such as 2026-11-20 10:00
    /// (local time unless it has a zone); same as `walden archive export --until`
    #[arg(long, value_name = "TIME", value_parser = Moment::parse, requires = "output")]
    until: Option<Moment>,

    /// With --until: output folder
    #[arg(short, long, value_name = "DIR", requires = "until")]
    output: Option<PathBuf>,

    /// With --until: base backup from which recovery starts (its folder or tar file, backup_label,
    /// backup_manifest, or the name of a backup history file in the archive)
    #[arg(long, value_name = "BACKUP", requires = "until", conflicts_with = "from")]
    base: Option<PathBuf>,

    /// With --until: first segment of recovery, or an LSN in it
    #[arg(long, value_name = "SEGMENT|LSN", requires = "until", value_parser = parse_position)]
    from: Option<Position>,

    /// With --until: follow this timeline and its ancestors [default: the newest]
    #[arg(long, value_name = "N", requires = "until", value_parser = clap::value_parser!(u32).range(1..))]
    timeline: Option<Timeline>,

    /// With --until: output format
    #[arg(long, value_enum, default_value_t, requires = "until")]
    format: Format,

    #[command(flatten)]
    place: Place,

    /// Folder of walden receive (its --spool), for files that are not in the archive yet, including the
    /// received part of the last segment
    #[arg(long, value_name = "DIR", conflicts_with = "until")]
    spool: Option<PathBuf>,

    /// Treat a missing segment as the end of WAL even if later ones are archived; recovery then ends before
    /// the gap
    #[arg(long, conflicts_with = "until")]
    ignore_gaps: bool,

    /// Maximum number of segments to prefetch, 0 for none [default: 16]
    #[arg(long, value_name = "N")]
    prefetch: Option<usize>,

    /// For a drill's server: keep tablespaces that a segment creates inside the data directory, with notes in
    /// this folder
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["until", "spool"])]
    redirect_tablespaces: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,

    #[command(flatten)]
    log: LogOptions,
}

/// Runs `walden archive get`.
pub fn run(args: &GetArgs) -> ExitCode {
    // A panic's exit status, 101, would mean that the archive lacks the file.
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        match (&args.until, &args.output, &args.name, &args.target) {
            (Some(moment), Some(output), ..) => get_until(args, moment, output),
            (_, _, Some(name), Some(target)) => get_and_log(args, name, target),
            // Unreachable: the argument parser requires one of the two forms.
            _ => ExitCode::from(TROUBLE),
        }
    }))
    .unwrap_or(ExitCode::from(TROUBLE))
}

fn get_and_log(args: &GetArgs, name: &str, target: &Path) -> ExitCode {
    let began = Instant::now();
    // If the configuration cannot be read, each attempt reports that.
    let place = args.place.with_configuration_read().unwrap_or_else(|_| args.place.clone());
    let args = &GetArgs { place, ..args.clone() };
    let is_of_recovery = target.file_name().is_some_and(|name| RECOVERY_NAMES.iter().any(|it| name == *it));
    let is_file = target.metadata().is_ok_and(|target| target.is_file());
    let result = match is_file && !is_of_recovery && !args.overwrite.force {
        true => expect_same_file(args, name, target),
        false => get_file(args, name, target),
    };
    // If the configuration cannot be read, only the options decide where messages go.
    let section = args.place.configuration().map(|(section, _)| section).unwrap_or_default();
    let log = Log::new(&args.log, &section);
    let hint = result.as_ref().err().and_then(|error| match hint_of(error) {
        Some(hint) => Some(hint.to_owned()),
        None => pruned_hint(args, target, error),
    });
    let entry = Entry::for_get("get", name, result.as_ref().copied(), began.elapsed());
    log.write(&[Entry { hint: hint.clone(), ..entry }]);
    let Err(error) = result else { return ExitCode::SUCCESS };
    let got = error.downcast_ref::<GetError>();
    if let Some(GetError::NotThere { .. }) = got {
        if log.is_text() {
            crate::output::tell(&error.to_string());
            hint.iter().for_each(|hint| crate::output::tell(&format!("HINT: {hint}")));
        }
        return ExitCode::from(NOT_THERE);
    }
    if log.is_text() {
        complain("", error.as_ref(), hint.as_deref());
    }
    ExitCode::from(TROUBLE)
}

/// Returns the remedy for a standby that asks for a segment that `prune` removed.
fn pruned_hint(args: &GetArgs, target: &Path, error: &anyhow::Error) -> Option<String> {
    let segment = missing_segment(error).filter(|_| serves_standby(target))?;
    let (archive, _) = args.place.open().ok()?;
    let first = get::first_kept_after(&archive, segment).ok()??;
    Some(format!("walden archive prune kept the WAL from {first} on; for the standby, {STUCK_HINT}"))
}

/// Gets a file from where it is first found.
fn get_file(args: &GetArgs, name: &str, target: &Path) -> Result<()> {
    get_from_archive(args, name, target)
        .or_else(|error| get_begun(args, target, error))
        .or_else(|error| get_from_spool(args, name, target, error))
        .or_else(|error| expect_end(args, target, error))
        .and_then(|()| redirect_tablespaces(args, name, target))
}

/// Gets a file next to an existing one, which must have the same content: another one may be the only copy of
/// WAL that is not archived.
fn expect_same_file(args: &GetArgs, name: &str, target: &Path) -> Result<()> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot get {name} for a comparison with {}", target.display());
    let beside = tempfile::Builder::new().prefix(".walden-get-").tempfile_in(folder).with_context(cannot)?;
    get_file(args, name, beside.path())?;
    match have_same_content(target, beside.path()).with_context(cannot)? {
        true => Ok(()),
        false => Err(OtherFile { path: target.to_owned(), name: name.to_owned() }.into()),
    }
}

/// The target exists and differs from the file in the archive.
#[derive(Debug)]
struct OtherFile {
    path: PathBuf,
    name: String,
}

impl OtherFile {
    const HINT: &str = "name another path, or replace the file with --force; if it is WAL that was not archived, copy it elsewhere first";
}

impl fmt::Display for OtherFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot write {}: the file exists, and its content differs from {}",
            self.path.display(),
            self.name
        )
    }
}

impl std::error::Error for OtherFile {}

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
fn expect_end(args: &GetArgs, target: &Path, error: anyhow::Error) -> Result<()> {
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
fn may_end_at_gap(args: &GetArgs, segment: SegmentName, target: &Path) -> bool {
    args.ignore_gaps || target.with_file_name(segment.to_string()).exists() || serves_standby(target)
}

/// Writes the archived first part of the segment that the server is writing, from the repository that has the
/// most of it: others may have been unreachable when the last parts were acknowledged.
fn get_begun(args: &GetArgs, target: &Path, error: anyhow::Error) -> Result<()> {
    let Some(segment) = missing_segment(&error) else { return Err(error) };
    let mut places = args.place.repositories()?;
    if places.len() > 1 {
        let mut ends = Vec::new();
        for place in &places {
            let (archive, _) = open(&GetArgs { place: place.clone(), ..args.clone() })?;
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

/// Tries repositories in order until one has the file. It is missing only if all of them can be read and lack
/// it. `get` also receives the repositories that have failed.
fn in_any_repository(
    args: &GetArgs,
    places: Vec<Place>,
    get: impl Fn(&GetArgs, &[Place]) -> Result<()>,
) -> Result<()> {
    let (mut missing, mut failed, mut empty) = (None, None, None);
    let (count, mut failing) = (places.len(), Vec::new());
    let is_empty = |error: &anyhow::Error| {
        matches!(error.downcast_ref(), Some(GetError::Archive { source: ArchiveError::Empty(_), .. }))
            || matches!(error.downcast_ref(), Some(ArchiveError::Empty(_)))
    };
    for place in places {
        match get(&GetArgs { place: place.clone(), ..args.clone() }, &failing) {
            Ok(()) => {
                if let Some(error) = &failed {
                    crate::output::tell(&format!("WARNING: another repository has the file: {error:#}"));
                }
                return Ok(());
            }
            Err(error) if matches!(error.downcast_ref(), Some(GetError::NotThere { .. })) => {
                missing = missing.or(Some(error));
            }
            // A new repository among others.
            Err(error) if count > 1 && is_empty(&error) => empty = Some(error),
            Err(error) => {
                failing.push(place);
                failed = failed.or(Some(error));
            }
        }
    }
    // `repositories` returns at least one place.
    failed.or(missing).or(empty).map_or(Ok(()), Err)
}

/// Returns the segment that the archive lacks.
fn missing_segment(error: &anyhow::Error) -> Option<SegmentName> {
    let Some(GetError::NotThere { name, .. }) = error.downcast_ref::<GetError>() else { return None };
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

/// Returns the remedy for an error.
fn hint_of(error: &anyhow::Error) -> Option<&'static str> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    let is_full = |error: &io::Error| [StorageFull, QuotaExceeded].contains(&error.kind());
    let is_full = error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_full));
    let of_archive = error.downcast_ref::<GetError>().and_then(GetError::hint);
    let of_spool = error.downcast_ref::<CopyError>().and_then(CopyError::hint);
    let of_drill = error.downcast_ref::<RedirectFileError>().and_then(RedirectFileError::hint);
    let of_target = error.downcast_ref::<OtherFile>().map(|_| OtherFile::HINT);
    of_archive.or(of_target).or(of_spool).or(of_drill).or(is_full.then_some(FULL_HINT))
}

/// Rewrites a segment before a drill's server can see it.
fn redirect_tablespaces(args: &GetArgs, name: &str, target: &Path) -> Result<()> {
    let (Some(notes), Some(ArchivedFile::Segment(segment))) =
        (&args.redirect_tablespaces, ArchivedFile::parse(name))
    else {
        return Ok(());
    };
    let redirected = drill::redirect_file(segment, target, notes);
    if redirected.is_err() {
        let _ = std::fs::remove_file(target);
    }
    Ok(redirected?)
}

/// Remedy if the server's file system is full.
const FULL_HINT: &str = "make room in the file system of the file, which for a server is that of pg_wal; a stopped recovery continues when the server is started again";

/// Restores a file that the archive lacks from the files that `walden receive` received last.
fn get_from_spool(args: &GetArgs, name: &str, target: &Path, error: anyhow::Error) -> Result<()> {
    // The spool may have a history file without segments.
    let is_missing = matches!(
        error.downcast_ref::<GetError>(),
        Some(GetError::NotThere { .. } | GetError::NoHistory { .. })
    );
    let (Some(spool), Some(file)) = (&args.spool, ArchivedFile::parse(name).filter(|_| is_missing)) else {
        return Err(error);
    };
    let (archive, _) = args.place.open()?;
    let archived = || archive.histories().map_err(io::Error::other);
    match copy_out(spool, file, target, &known_of(&archive, target), archived) {
        Ok(true) => Ok(()),
        // The file may have been archived and removed from the spool since the archive was queried.
        Ok(false) => get_from_archive(args, name, target),
        Err(source) => {
            Err(anyhow::Error::new(source).context(format!("cannot get {name} from {}", spool.display())))
        }
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
fn get_from_archive(args: &GetArgs, name: &str, target: &Path) -> Result<()> {
    let places = args.place.repositories()?;
    // Before any archive is asked: an unreachable one takes its time.
    if places.len() > 1 {
        for place in &places {
            if take_prefetched(&GetArgs { place: place.clone(), ..args.clone() }, name, target)? {
                return Ok(());
            }
        }
    }
    in_any_repository(args, places, |one, failing| {
        expect_same_history(args, one, failing, name)?;
        get_from_repository(one, name, target)
    })
}

/// Checks that a file of a repository other than the first one may replace one of those before it: the
/// repositories belong to one cluster, and a segment fits between the segments of the others.
fn expect_same_history(args: &GetArgs, one: &GetArgs, failing: &[Place], name: &str) -> Result<()> {
    let places = args.place.repositories()?;
    if places.first().is_none_or(|first| first.repo == one.place.repo) {
        return Ok(());
    }
    let mut others = Vec::new();
    for place in places.into_iter().filter(|place| place.repo != one.place.repo) {
        let has_failed = failing.iter().any(|failing| failing.repo == place.repo);
        let (archive, _) = open(&GetArgs { place, ..args.clone() })?;
        // A damaged object says nothing about the others, but an unreachable store takes its time again.
        if !has_failed || archive.identity().is_ok() {
            others.push(archive);
        }
    }
    let (archive, _) = open(one)?;
    let failed = |source| GetError::Archive { name: name.to_owned(), source };
    let all: Vec<&Archive> = others.iter().chain([&archive]).collect();
    neighbors::expect_one_cluster(&all).map_err(failed)?;
    if let Some(ArchivedFile::Segment(segment)) = ArchivedFile::parse(name) {
        neighbors::expect_neighbors(&archive, segment, &others.iter().collect::<Vec<_>>()).map_err(failed)?;
    }
    Ok(())
}

/// Opens an archive. One among several must answer soon, because another one may have the file.
fn open(args: &GetArgs) -> Result<(Archive, ArchiveSection)> {
    let (section, _) = args.place.configuration()?;
    match section.repo.0.len() {
        0 | 1 => args.place.open(),
        _ => args.place.open_to_answer_within(ANSWER_WITHIN),
    }
}

/// How a server's segments are prefetched from an archive.
struct Ahead<'a> {
    args: &'a GetArgs,
    archive: &'a Archive,
    spool: Spool,
    folder: &'a Path,
    segments: usize,
}

impl<'a> Ahead<'a> {
    fn new(args: &'a GetArgs, archive: &'a Archive, section: &ArchiveSection, target: &'a Path) -> Ahead<'a> {
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
        // Noted before the segment is taken, so that it is not fetched again.
        self.note(segment);
        self.spool.take(segment, target).unwrap_or(false)
    }
}

fn take_prefetched(args: &GetArgs, name: &str, target: &Path) -> Result<bool> {
    let Some(ArchivedFile::Segment(segment)) = ArchivedFile::parse(name) else { return Ok(false) };
    let (archive, section) = open(args)?;
    let ahead = Ahead::new(args, &archive, &section, target);
    Ok(ahead.has(segment) && ahead.take(segment, target))
}

fn get_from_repository(args: &GetArgs, name: &str, target: &Path) -> Result<()> {
    let (archive, section) = open(args)?;
    let Some(file) = ArchivedFile::parse(name) else {
        let (name, location) = (name.to_owned(), archive.store().location().to_owned());
        return Err(GetError::NotThere { name, location }.into());
    };
    let ahead = Ahead::new(args, &archive, &section, target);
    let ArchivedFile::Segment(segment) = file else {
        expect_own_archive(&archive, file, target)?;
        // The last file that a server requests at the end of recovery is a history (`writeTimeLineHistory` in
        // `timeline.c`). If the prefetch process has ended, as on a standby that streamed, another one waits
        // for that end and removes the folder.
        if ahead.segments > 0 && ahead.spool.folder().exists() {
            start_prefetch(args, &archive, &ahead.spool, ahead.folder, 0);
        }
        get::get(&archive, file, target)?;
        tell_of_lost_identity(args, &archive, &section);
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
    tell_of_lost_identity(args, &archive, &section);
    Ok(())
}

/// Warns that the archive does not identify its cluster. Outside a data directory, where no server recovers
/// from the file, files from intact objects are still written; in a data directory, [`expect_own_archive`]
/// has already failed.
fn tell_of_lost_identity(args: &GetArgs, archive: &Archive, section: &ArchiveSection) {
    if let Err(error @ (ArchiveError::Identity { .. } | ArchiveError::Missing(_))) = archive.identity() {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        Log::new(&args.log, section).warn(&format!(
            "the file is as it was archived, but nothing identifies its cluster: {}{hint}",
            walden_source::error_text(&error)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_system_of_the_server_is_hinted_at() {
        let write = |kind: io::ErrorKind| {
            let error = GetError::Write { path: PathBuf::from("pg_wal/RECOVERYXLOG"), source: kind.into() };
            hint_of(&error.into())
        };
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert_eq!(write(kind), Some(FULL_HINT));
            // For a received file that is not archived yet.
            let error = anyhow::Error::new(io::Error::from(kind)).context("cannot get it from the spool");
            assert_eq!(hint_of(&error), Some(FULL_HINT));
        }
        assert_eq!(write(io::ErrorKind::PermissionDenied), None);
    }
}
