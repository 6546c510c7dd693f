//! Checks of the configuration, the archive and its keys.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use jiff::Timestamp;
use walden_archive::Archive;
use walden_archive::archive::{ArchiveError, Identity};
use walden_archive::encryption::is_key_service;
#[cfg(feature = "encryption")]
use walden_archive::encryption::keys;
use walden_archive::gaps::{self, HISTORY_HINT};
use walden_archive::list;
use walden_archive::lock::{self, Inspected, Weakness};
use walden_archive::name::ArchivedFile;
use walden_archive::object::Finding;
use walden_archive::probe::{self, Left, PROBES, Probe};
use walden_archive::store::versions::LockRule;
use walden_archive::verified::UNREADABLE;
use walden_archive::verify::KEYS_HINT;
use walden_format::diagnostic::Hint;
use walden_source::counted;
use walden_source::error_text;

use super::Check;
use crate::activity::ActivityReader;
use crate::configuration::{ArchiveSection, FILE};
use crate::error::{ArchivingError, PlaceError};
use crate::other_writer;
use crate::place::Place;
use crate::queue::QueueOptions;
use crate::receiving::{self, ReceivingOptions, ago};
use crate::report;
use crate::repositories;
use crate::writable::{Unwritable, User, find_unwritable};

/// Checks the configuration. Returns the archive that the configuration names, if any, and the archive's
/// location.
pub fn configuration(place: &Place) -> (Vec<Check>, Option<(Archive, ArchiveSection)>, String) {
    const NAME: &str = "configuration";
    let check = match place.configuration() {
        Ok((_, Some(path))) => match place.readable_secret() {
            None => Check::ok(NAME, path.display().to_string()),
            Some((key, mode)) => Check::warn(
                NAME,
                format!(
                    "{}: {key} is a secret, and other users may read the file (mode {mode:04o})",
                    path.display()
                ),
                format!(
                    "chmod 600 {}; its owner must be the account that PostgreSQL runs as",
                    path.display()
                ),
            ),
        },
        Ok((_, None)) => Check::ok(NAME, format!("no {FILE}: only options and the environment apply")),
        Err(error) => return (vec![Check::error(NAME, &error.into())], None, String::new()),
    };
    match place.open_for_user() {
        Ok((archive, section)) => {
            let location = archive.store().location().to_owned();
            (vec![check], Some((archive, section)), location)
        }
        Err(error) => (vec![check, Check::error("archive", &error.into())], None, String::new()),
    }
}

/// Checks the archive, and the cluster it belongs to once it has WAL. Files in the server's queue or in a
/// spool do not count as missing.
pub fn look(
    archive: &Archive,
    section: &ArchiveSection,
    queue: &QueueOptions,
    receiving: &ReceivingOptions,
) -> (Vec<Check>, Option<Identity>) {
    let mut checks = Vec::new();
    let location = archive.store().location();
    let identity = match archive.identity() {
        Ok(identity) => {
            let Identity { system_identifier, segment_bytes, .. } = identity;
            let found =
                format!("{location}: cluster {system_identifier}, segments of {} MB", segment_bytes >> 20);
            checks.push(Check::ok("archive", found));
            Some(identity.clone())
        }
        Err(ArchiveError::Empty(_)) => {
            checks.push(Check::ok("archive", format!("{location}: nothing was archived yet")));
            None
        }
        // Do not probe a place without an archive: the probe would create folders, perhaps under an unmounted
        // mount point.
        Err(error) => {
            checks.push(Check::error("archive", &error.into()));
            return (checks, None);
        }
    };
    if identity.is_some() {
        checks.push(look_at_histories(archive));
        checks.extend(look_at_contents(archive, section, queue, receiving));
    }
    checks.push(probe_store(archive));
    // A server has its own user, so this user's permissions prove nothing.
    if !queue.names_server()
        && let Some(Unwritable { problem, hint }) = find_unwritable(archive, &[], &User::own())
    {
        checks.push(Check::fail("permissions", problem, Some(hint)));
    }
    if let Some(warning) = archive.store().warning() {
        checks.push(Check::warn(
            "conditional requests",
            warning,
            "let one server archive at a time, or use a store that honours If-None-Match",
        ));
    }
    checks.extend(look_at_locks(archive));
    checks.extend(look_at_keys(archive, section));
    (checks, identity)
}

/// Maximum number of pairs of objects to read because their sizes differ between two repositories.
const MAX_READ: usize = 256;

/// Compares several repositories with each other.
pub fn look_at_copies(place: &Place) -> Vec<Check> {
    const NAME: &str = "repositories";
    let places = match place.repositories() {
        Ok(places) if places.len() > 1 => places,
        // The failure was already reported as a failure of the configuration.
        _ => return Vec::new(),
    };
    let opened: Result<Vec<Archive>, PlaceError> =
        places.iter().map(|place| place.open_for_user().map(|(archive, _)| archive)).collect();
    let archives = match opened {
        Ok(archives) => archives,
        Err(error) => return vec![Check::error(NAME, &error.into())],
    };
    let copies = match repositories::compare(&archives, MAX_READ) {
        Ok(copies) => copies,
        Err(error) => return vec![Check::error(NAME, &error.into())],
    };
    let problems = copies.iter().enumerate();
    let problems: Vec<Check> = problems
        .flat_map(|(number, copy)| copy.problems(report::other_location(&copies, number)))
        .map(|problem| match problem.split_once("; hint: ") {
            Some((problem, hint)) => Check::fail(NAME, problem, Some(hint.to_owned())),
            None => Check::fail(NAME, problem, None),
        })
        .collect();
    match problems.is_empty() {
        true => vec![Check::ok(NAME, format!("all {} have the same files", copies.len()))],
        false => problems,
    }
}

/// Checks that recovery finds the timeline history files on the way from each timeline to the next.
fn look_at_histories(archive: &Archive) -> Check {
    const NAME: &str = "timelines";
    match gaps::timelines_without_history(archive) {
        Ok(missing) if missing.is_empty() => Check::ok(NAME, "no history of an archived timeline is missing"),
        Ok(missing) => {
            let names: Vec<String> =
                missing.into_iter().map(|timeline| ArchivedFile::History(timeline).to_string()).collect();
            let found = format!("missing: {}, the history of an archived timeline", names.join(", "));
            Check::fail(NAME, found, Some(HISTORY_HINT.to_owned()))
        }
        Err(error) => Check::error(NAME, &error.into()),
    }
}

/// Checks for missing segments, and for damage that `verify` has found.
fn look_at_contents(
    archive: &Archive,
    section: &ArchiveSection,
    queue: &QueueOptions,
    receiving: &ReceivingOptions,
) -> Vec<Check> {
    const SEGMENTS: &str = "segments";
    const VERIFICATION: &str = "verification";
    let holdings = match report::holdings(archive, queue, receiving) {
        Ok(holdings) => holdings,
        Err(problem) => return vec![Check::fail(SEGMENTS, problem, None)],
    };
    let unknown = report::unknown_gaps_note(&holdings);
    let segments = match holdings.missing_segments {
        0 => {
            let acknowledged = match holdings.acknowledged_segments {
                0 => String::new(),
                number => format!(", but {number} whose absence was acknowledged"),
            };
            let held = counted(holdings.segments, "segment");
            let found = format!("{held}, none is missing{acknowledged}");
            match (report::missing_by_verify(&holdings), unknown) {
                (Some(missing), _) => Check::fail(SEGMENTS, missing, None),
                (None, None) => Check::ok(SEGMENTS, found),
                // Every failover causes this; nothing indicates a problem.
                (None, Some(unknown)) if holdings.timelines_without_segments.is_empty() => {
                    Check::ok(SEGMENTS, format!("{found} as far as names show: {unknown}"))
                }
                (None, Some(unknown)) => Check::warn(
                    SEGMENTS,
                    format!("{found} as far as names show: {unknown}"),
                    "walden archive list --identity FILE, with a private key, shows whether its segments are missing",
                ),
            }
        }
        _ => Check::fail(
            SEGMENTS,
            report::missing_text(&holdings),
            Some(
                "walden archive check --against DSN finds those that a server still has; acknowledge-gap records those that are lost"
                    .to_owned(),
            ),
        ),
    };
    let verification = match &holdings.verified {
        Some(verified) if verified.damaged > 0 => Check::fail(
            VERIFICATION,
            report::damage_text(verified),
            Some("walden archive verify names them".to_owned()),
        ),
        Some(verified) => {
            Check::ok(VERIFICATION, format!("verified {} ago, nothing was damaged", ago(verified.time)))
        }
        None if holdings.is_verification_locked => Check::warn(
            VERIFICATION,
            UNREADABLE,
            "--identity names one; the next verify writes results that need no private key",
        ),
        None => Check::ok(VERIFICATION, "never verified: walden archive verify reads everything"),
    };
    let unreadable = holdings.unreadable.first().map(|first| {
        let hint = "walden archive verify lists all other damage";
        Check::fail("objects", format!("{}: {}", first.object, first.problem), Some(hint.to_owned()))
    });
    let minimal = holdings.minimal_wal.last().map(|minimal| {
        Check::warn("wal_level in the archive", minimal.to_string(), "use base backups that started after it")
    });
    let backups = (holdings.base_backups > 0 || section.backup_max_age_hours.is_some()).then(|| {
        const BACKUPS: &str = "base backups";
        match (report::old_backup_problem(&holdings, section), holdings.newest_base_backup) {
            (Some(problem), _) => Check::fail(BACKUPS, problem, None),
            (None, Some(newest)) => {
                let count = counted(holdings.base_backups, "base backup");
                Check::ok(
                    BACKUPS,
                    format!("{count} in the archive, the newest was started {} ago", ago(newest)),
                )
            }
            (None, None) => Check::ok(BACKUPS, "none in the archive"),
        }
    });
    [Some(segments), minimal, backups, Some(verification), unreadable].into_iter().flatten().collect()
}

/// Checks the activity log, if there is one, for files that failed and were not archived since.
pub fn look_at_log(log: &mut ActivityReader, archive: &Archive, section: &ArchiveSection) -> Option<Check> {
    const NAME: &str = "failures";
    let path = section.log.as_ref().filter(|path| path.exists())?;
    Some(match report::read_log(log, Some(archive)) {
        Ok(activity) => match report::failure_problem(&activity) {
            Some((problem, hint)) => Check::fail(NAME, problem, hint),
            None => Check::ok(NAME, format!("no unresolved failure in {}", path.display())),
        },
        Err(error) => {
            let what = format!("the activity log {}", path.display());
            Check::error(NAME, &ArchivingError::read(what)(error))
        }
    })
}

/// Checks `walden receive`, if a spool is named, and whether it archives into this archive.
pub fn look_at_receiving(
    receiving: &ReceivingOptions,
    archive: Option<&Archive>,
    identity: Option<&Identity>,
) -> Option<Check> {
    const NAME: &str = "receiving";
    let is_running = receiving.is_running();
    let status = match receiving.read() {
        Ok(status) => status?,
        Err(error) => return Some(Check::error(NAME, &error)),
    };
    if let Some(problem) = receiving::problem_of(&status, is_running) {
        return Some(Check::fail(NAME, problem, status.hint));
    }
    if let Some(archive) = archive.filter(|_| identity.is_some()) {
        match other_writer::find_branch_of_received(archive, &status) {
            Ok(None) => {}
            Ok(Some(found)) => return Some(Check::fail(NAME, found.problem, Some(found.hint))),
            Err(error) => return Some(Check::error(NAME, &error.into())),
        }
    }
    // Until something is archived, there is nothing to compare with.
    let size = report::segment_size(archive.filter(|_| identity.is_some()));
    let last = match archive.filter(|_| size.is_some()).map(list::newest_segment).transpose() {
        Ok(last) => last.flatten(),
        Err(error) => return Some(Check::error(NAME, &error.into())),
    };
    let own = identity.and_then(|identity| identity.system_identifier.parse().ok());
    Some(match report::received_elsewhere(&status, own, size, last) {
        Some(problem) => Check::fail(
            NAME,
            problem,
            Some("check which archive the receiver's settings name (--config, --repo)".to_owned()),
        ),
        None => Check::ok(NAME, receiving::line(&status)),
    })
}

fn probe_store(archive: &Archive) -> Check {
    const NAME: &str = "push and get";
    match probe::probe(archive) {
        Ok(Probe { push, get, left: None }) => {
            let get = match get {
                Some(get) => format!("came back in {} ms", get.as_millis()),
                None => "was not read back, as that needs a private key".to_owned(),
            };
            Check::ok(NAME, format!("a segment was archived in {} ms and {get}", push.as_millis()))
        }
        Ok(Probe { push, left: Some(Left::Kept(kept)), .. }) if kept.until.is_some() => Check::ok(
            NAME,
            format!("a segment was archived in {} ms; it stays in {PROBES}, {kept}", push.as_millis()),
        ),
        Ok(Probe { left: Some(left), .. }) => Check::warn(
            NAME,
            format!("a segment can be written and read, but not removed: {left}"),
            "without the right to delete, walden archive pack and prune leave everything; push and get do not need it",
        ),
        Err(error) => {
            let hint = error.hint().map(Hint::into_owned);
            Check { code: error.code(), ..Check::fail(NAME, error_text(&error), hint) }
        }
    }
}

/// Checks that locks last long enough, if the configuration or the bucket locks objects.
fn look_at_locks(archive: &Archive) -> Vec<Check> {
    const NAME: &str = "object lock";
    let Inspected { rule, weaknesses } = match lock::inspect(archive) {
        Ok(Some(found)) => found,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![Check::error(NAME, &error.into())],
    };
    if weaknesses.is_empty() {
        let found = rule.map_or_else(String::new, |LockRule { mode, days }| {
            format!(
                "objects are locked for {} in {} mode",
                counted(days.into(), "day"),
                mode.name().to_lowercase()
            )
        });
        return vec![Check::ok(NAME, found)];
    }
    weaknesses.into_iter().map(|weakness| describe_weakness(NAME, weakness)).collect()
}

fn describe_weakness(name: &'static str, weakness: Weakness) -> Check {
    match weakness {
        Weakness::NoVersions => Check::warn(
            name,
            "the bucket keeps no versions: all credentials that may write can overwrite and delete archived objects",
            "aws s3api put-bucket-versioning --bucket BUCKET --versioning-configuration Status=Enabled; Object Lock needs it",
        ),
        Weakness::NoObjectLock => Check::warn(
            name,
            "lock_days is set, but the bucket has no Object Lock: it rejects objects with a lock",
            "create the bucket with Object Lock (aws s3api create-bucket --object-lock-enabled-for-bucket), or remove lock_days",
        ),
        Weakness::NoRule => Check::warn(
            name,
            "the bucket has Object Lock, but no rule locks objects",
            format!("set lock_days in {FILE}, or a default retention for the bucket"),
        ),
        Weakness::Short { days, between } => Check::warn(
            name,
            format!(
                "objects are locked for {}, but {between} days passed between two base backups: restoring from the older one needs \
                 WAL whose locks have ended",
                counted(days.into(), "day")
            ),
            "lock objects for longer than the time between base backups (lock_days), or run walden archive lock or prune --apply each day, \
             which extend the locks",
        ),
        Weakness::Ends { backup, object, until } => {
            let state = match until {
                None => "is not locked".to_owned(),
                Some(until) if until < Timestamp::now() => format!("has been unlocked since {until}"),
                Some(until) => format!("is locked only until {until}"),
            };
            Check::warn(
                name,
                format!("{object}, with which recovery from the base backup {backup} starts, {state}"),
                "run walden archive lock or prune --apply each day: they extend the locks of everything that is needed; prune --apply also \
                 removes WAL whose backup no longer exists",
            )
        }
        other => Check::warn(name, format!("{other:?}"), "see docs/archive.md"),
    }
}

fn look_at_keys(archive: &Archive, section: &ArchiveSection) -> Vec<Check> {
    const NAME: &str = "encryption";
    let encrypted = archive.encrypted();
    match encrypted.is_encrypted() {
        Ok(true) => {}
        Ok(false) => {
            return match &section.recipient {
                None => vec![Check::ok(NAME, "the archive is not encrypted")],
                Some(recipient) => vec![Check::fail(
                    NAME,
                    format!("the archive is not encrypted, but {FILE} demands {recipient}"),
                    Some(
                        "pushes are refused; walden archive init --recipient creates an encrypted archive"
                            .to_owned(),
                    ),
                )],
            };
        }
        Err(error) => return vec![Check::error(NAME, &error.into())],
    }
    let faults = match encrypted.key_faults() {
        Ok(faults) => faults,
        Err(error) => return vec![Check::error(NAME, &error.into())],
    };
    if !faults.is_empty() {
        let fault = |Finding { object, problem }| {
            Check::fail(NAME, format!("{object}: {problem}"), Some(KEYS_HINT.to_owned()))
        };
        return faults.into_iter().map(fault).collect();
    }
    let mut checks = vec![recipient(archive, section)];
    let Some(identity) = &encrypted.options().identity else {
        checks.push(Check::ok("private key", "none is named, as on a server that only archives"));
        return checks;
    };
    checks.push(match archive.unlock() {
        Ok(()) => match is_key_service(identity) || is_private(identity) {
            true => Check::ok("private key", format!("{} opens the archive", identity.display())),
            false => Check::warn(
                "private key",
                format!("{} opens the archive, and others on this machine can read it", identity.display()),
                format!("chmod 600 {}", identity.display()),
            ),
        },
        Err(error) => Check::error("private key", &error.into()),
    });
    checks
}

#[cfg(feature = "encryption")]
fn recipient(archive: &Archive, section: &ArchiveSection) -> Check {
    const NAME: &str = "encryption";
    let newest = match keys::expect_newest(archive.encrypted().inner()) {
        Ok(statement) => statement.recipients.into_iter().next().unwrap_or_default(),
        Err(error) => return Check::error(NAME, &error.into()),
    };
    match (&section.recipient, archive.encrypted().recipient()) {
        (_, Err(error)) => Check::error(NAME, &error.into()),
        (None, Ok(_)) => Check::warn(
            NAME,
            format!("encrypted to {newest}, according to the archive itself"),
            format!(
                "put recipient = \"{newest}\" into {FILE}, so that write access to the archive does not suffice to replace it"
            ),
        ),
        (Some(own), Ok(_)) if *own == newest => Check::ok(NAME, format!("encrypted to {newest}")),
        (Some(own), Ok(_)) => Check::warn(
            NAME,
            format!("{FILE} names {own}, a former key of the archive"),
            format!("put recipient = \"{newest}\" there, if you changed the keys"),
        ),
    }
}

#[cfg(not(feature = "encryption"))]
fn recipient(_: &Archive, _: &ArchiveSection) -> Check {
    Check::fail("encryption", "this program was built without encryption", None)
}

fn is_private(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 == 0)
}
