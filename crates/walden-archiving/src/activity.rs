//! Activity of push and get by their log: counts since its start, and the last event of each kind.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;
use walden_archive::name::ArchivedFile;
use walden_archive::push::PushError;

use crate::log::{Entry, Outcome};

/// Longer than any entry; a longer line is not an entry of the log.
const MAX_LINE: u64 = 64 << 10;
/// Maximum number of unresolved files to remember, the first in PostgreSQL's order. Any number of files can
/// fail, and the server waits at the first.
const MAX_UNRESOLVED: usize = 1000;
/// Period in seconds over which the rate is computed.
const RATE_SECONDS: i64 = 3600;

/// Counts and last events.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Activity {
    /// Number of files archived.
    pub archived: u64,
    /// Number of files that the server offered again after they had been archived.
    pub present: u64,
    /// Bytes of the archived files.
    pub raw_bytes: u64,
    /// Bytes of the objects of the archived files.
    pub stored_bytes: u64,
    /// Seconds spent on archiving the files.
    pub seconds: f64,
    /// Number of files delivered to recovery.
    pub fetched: u64,
    /// Failures by command and cause.
    pub failures: Vec<Failures>,
    /// Time of the last archived file, in microseconds since 1970-01-01 00:00:00 UTC.
    pub last_archived: Option<i64>,
    /// Last failure of the first file, in PostgreSQL's order, that failed and was not archived since.
    pub unresolved_failure: Option<Failure>,
    /// Number of files that failed and were not archived since.
    pub unresolved_files: u64,
    /// WAL archived in the last hour, in bytes per second.
    pub bytes_per_second: f64,
}

/// Number of failures of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failures {
    /// Command.
    pub command: String,
    /// Machine-readable cause.
    pub cause: String,
    /// Number of failures.
    pub count: u64,
}

/// A failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// Time in microseconds since 1970-01-01 00:00:00 UTC.
    pub time: i64,
    /// File name.
    pub file: String,
    /// Machine-readable cause.
    pub cause: String,
    /// Message.
    pub message: String,
    /// Stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// Returns whether the file counts as unarchived although the archive has a file of its name: the content
    /// was refused, or the archived file is damaged, another cluster's, or of another segment size. The
    /// server does not get past it.
    fn is_in_spite_of_name(&self) -> bool {
        const OF_ARCHIVE: [&str; 3] = ["damaged_object", "other_cluster", "other_segment_size"];
        PushError::is_cause_of_content(&self.cause) || OF_ARCHIVE.contains(&self.cause.as_str())
    }
}

/// Reads a log incrementally.
pub struct ActivityReader {
    path: PathBuf,
    /// Device and inode of the file, and the offset up to which it was read.
    position: Option<((u64, u64), u64)>,
    activity: Activity,
    failures: BTreeMap<(String, String), u64>,
    /// Files that failed and were not archived since, in PostgreSQL's order.
    unresolved: BTreeMap<(bool, String), Failure>,
    /// Times and bytes of the files archived in the last hour.
    recent: VecDeque<(i64, u64)>,
}

impl ActivityReader {
    /// Creates a reader of a log that need not exist yet.
    pub fn new(path: &Path) -> ActivityReader {
        ActivityReader {
            path: path.to_owned(),
            position: None,
            activity: Activity::default(),
            failures: BTreeMap::new(),
            unresolved: BTreeMap::new(),
            recent: VecDeque::new(),
        }
    }

    /// Reads the entries appended since the last call. Counts continue after a rotation, because Prometheus
    /// counters must not decrease.
    ///
    /// `is_archived` returns whether the archive has a file; it resolves failures whose success is not in the
    /// log.
    ///
    /// # Errors
    /// Fails if the log cannot be read.
    pub fn read(&mut self, is_archived: &dyn Fn(&str) -> bool) -> io::Result<Activity> {
        let since = Timestamp::now().as_microsecond() - RATE_SECONDS * 1_000_000;
        match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            file => self.read_file(file?, since)?,
        }
        while let Some(first) = self.unresolved.first_entry()
            && !first.get().is_in_spite_of_name()
            && is_archived(&first.get().file)
        {
            first.remove();
        }
        while self.recent.front().is_some_and(|(time, _)| *time < since) {
            self.recent.pop_front();
        }
        let bytes: u64 = self.recent.iter().map(|(_, bytes)| bytes).sum();
        let failures = self.failures.iter().map(|((command, cause), &count)| Failures {
            command: command.clone(),
            cause: cause.clone(),
            count,
        });
        Ok(Activity {
            failures: failures.collect(),
            unresolved_failure: self.unresolved.values().next().cloned(),
            unresolved_files: self.unresolved.len() as u64,
            bytes_per_second: bytes as f64 / RATE_SECONDS as f64,
            ..self.activity.clone()
        })
    }

    /// Returns the last unresolved failure of a file.
    pub fn failure_of(&self, file: &str) -> Option<&Failure> {
        self.unresolved.get(&ArchivedFile::archiving_order_of(file))
    }

    /// Returns whether a file counts as unarchived although the archive may have its name.
    pub fn is_refused(&self, file: &str) -> bool {
        self.failure_of(file).is_some_and(Failure::is_in_spite_of_name)
    }

    fn read_file(&mut self, mut file: File, since: i64) -> io::Result<()> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let known = self.position.filter(|(of, at)| *of == identity && *at <= metadata.len());
        if known.is_none() {
            // A file that still fails is retried within a minute and appears in the new log; one that is no
            // longer tried is over.
            self.unresolved.clear();
        }
        let mut at = known.map_or(0, |(_, at)| at);
        file.seek(SeekFrom::Start(at))?;
        let mut reader = BufReader::with_capacity(256 << 10, file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
            let is_whole = line.ends_with(b"\n");
            if !is_whole && bytes < MAX_LINE {
                // A call is still writing this line; the next read gets it.
                break;
            }
            at += bytes;
            if is_whole && let Ok(entry) = serde_json::from_slice::<Entry>(&line) {
                self.add(entry, since);
            }
        }
        self.position = Some((identity, at));
        Ok(())
    }

    /// Adds an entry. Files archived before `since` do not count for the rate.
    fn add(&mut self, entry: Entry, since: i64) {
        let Ok(time) = entry.time.parse::<Timestamp>() else { return };
        let time = time.as_microsecond();
        let is_push = entry.command == "push";
        // A file name given manually, which PostgreSQL would not archive.
        if is_push && ArchivedFile::parse(&entry.file).is_none() {
            return;
        }
        let place = ArchivedFile::archiving_order_of(&entry.file);
        let activity = &mut self.activity;
        match entry.outcome {
            Outcome::Archived if is_push => {
                let bytes = entry.bytes.unwrap_or(0);
                activity.archived += 1;
                activity.raw_bytes = activity.raw_bytes.saturating_add(bytes);
                activity.stored_bytes = activity.stored_bytes.saturating_add(entry.stored.unwrap_or(0));
                activity.seconds += entry.seconds.unwrap_or(0.0).max(0.0);
                if time >= since {
                    self.recent.push_back((time, bytes));
                }
            }
            Outcome::Present if is_push => activity.present += 1,
            Outcome::Fetched => activity.fetched += 1,
            Outcome::Failed => {
                let cause = entry.cause.clone().unwrap_or_else(|| "other".to_owned());
                *self.failures.entry((entry.command.clone(), cause.clone())).or_default() += 1;
                if is_push {
                    let message = entry.message.unwrap_or_default();
                    let Entry { file, code, hint, .. } = entry;
                    let failure = Failure { time, file, cause, message, code, hint };
                    self.unresolved.insert(place, failure);
                    if self.unresolved.len() > MAX_UNRESOLVED {
                        self.unresolved.pop_last();
                    }
                }
                return;
            }
            _ => {}
        }
        if is_push {
            activity.last_archived = activity.last_archived.max(Some(time));
            // The server gets past a file only once that file is archived; files archived ahead of it do not
            // resolve it.
            self.unresolved.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns a segment's name by its last digits; other names unchanged.
    fn name(file: &str) -> String {
        if file.len() > 2 { file.to_owned() } else { format!("00000001{file:0>16}") }
    }

    fn line(seconds_ago: i64, file: &str, outcome: &str, more: &str) -> String {
        let file = name(file);
        let time = Timestamp::now() - jiff::SignedDuration::from_secs(seconds_ago);
        format!(
            "{{\"time\":\"{time}\",\"command\":\"push\",\"file\":\"{file}\",\"outcome\":\"{outcome}\"{more}}}\n"
        )
    }

    #[test]
    fn a_failure_is_over_once_that_file_is_archived_whatever_is_archived_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut reader = ActivityReader::new(&path);
        let mut log = String::new();
        let mut read = |more: String| {
            log += &more;
            fs::write(&path, &log).unwrap();
            let activity = reader.read(&|_| false).unwrap();
            (activity.unresolved_failure.map(|failure| failure.file), activity.unresolved_files)
        };
        let of = |file: &str| (Some(name(file)), 1);
        // One call: the requested file, then the files archived ahead.
        let call =
            |file: &str| line(9, file, "failed", ",\"cause\":\"damaged\"") + &line(9, "08", "archived", "");
        assert_eq!(read(call("07") + &line(9, "09", "archived", "")), of("07"));
        assert_eq!(read(call("07") + &line(8, "0A", "present", "")), of("07"));
        // Other files fail too. PostgreSQL archives histories before segments.
        assert_eq!(read(line(7, "0B", "failed", "")), (Some(name("07")), 2));
        assert_eq!(read(line(7, "00000002.history", "failed", "")).0, Some("00000002.history".to_owned()));
        assert_eq!(
            read(line(6, "00000002.history", "archived", "") + &line(6, "0B", "archived", "")),
            of("07")
        );
        assert_eq!(read(line(5, "07", "present", "")), (None, 0));
        // A name that PostgreSQL does not use was a mistake.
        assert_eq!(read(line(4, "by hand", "failed", "")), (None, 0));
        // No call tries it again, so the failure ends with the log.
        assert_eq!(read(line(4, "0C", "failed", "")), of("0C"));
        fs::rename(&path, folder.path().join("log.1")).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(reader.read(&|_| false).unwrap().unresolved_files, 0);
    }

    #[test]
    fn a_failure_is_over_if_the_archive_has_the_file_and_its_content_was_not_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let causes = [("07", "unreadable"), ("08", "unavailable"), ("09", "conflict"), ("0A", "unreadable")];
        let failed =
            |(file, cause): (&str, &str)| line(9, file, "failed", &format!(",\"cause\":\"{cause}\""));
        fs::write(&path, causes.map(failed).concat()).unwrap();
        let mut reader = ActivityReader::new(&path);
        let mut first = |is_archived: &dyn Fn(&str) -> bool| {
            let activity = reader.read(is_archived).unwrap();
            (activity.unresolved_failure.map(|failure| failure.file), activity.unresolved_files)
        };
        assert_eq!(first(&|_| false), (Some(name("07")), 4));
        assert_eq!(first(&|file| file == name("07")), (Some(name("08")), 3));
        assert_eq!(first(&|_| true), (Some(name("09")), 2));
    }

    #[test]
    fn a_failure_for_what_is_archived_is_not_over_because_a_file_of_the_name_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for cause in ["damaged_object", "other_cluster", "other_segment_size"] {
            let mut reader = ActivityReader::new(&path);
            fs::write(&path, line(9, "07", "failed", &format!(",\"cause\":\"{cause}\""))).unwrap();
            let activity = reader.read(&|_| true).unwrap();
            assert_eq!((activity.unresolved_files, reader.is_refused(&name("07"))), (1, true), "{cause}");
            assert!(!reader.is_refused(&name("08")));
        }
    }

    #[test]
    fn a_log_is_read_as_it_grows_and_after_it_was_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut reader = ActivityReader::new(&path);
        assert_eq!(reader.read(&|_| false).unwrap(), Activity::default());
        let stored = ",\"bytes\":3600000,\"stored\":1000,\"seconds\":0.5";
        let first = line(7200, "A", "archived", stored)
            + &line(10, "B", "failed", ",\"cause\":\"full\",\"message\":\"no\",\"hint\":\"free some space\"");
        fs::write(&path, &first).unwrap();
        let activity = reader.read(&|_| false).unwrap();
        assert_eq!((activity.archived, activity.stored_bytes, activity.bytes_per_second), (1, 1000, 0.0));
        assert!(reader.recent.is_empty());
        let failure = activity.unresolved_failure.unwrap();
        assert_eq!((failure.cause.as_str(), failure.hint.as_deref()), ("full", Some("free some space")));
        // An incomplete line is still being written; a line of another kind is ignored.
        let more = line(5, "B", "archived", stored);
        fs::write(&path, format!("{first}rubbish\n{}", &more[..more.len() / 2])).unwrap();
        assert_eq!(reader.read(&|_| false).unwrap().archived, 1);
        fs::write(&path, format!("{first}rubbish\n{more}")).unwrap();
        let activity = reader.read(&|_| false).unwrap();
        assert_eq!(
            (activity.archived, activity.unresolved_failure, activity.bytes_per_second),
            (2, None, 1000.0)
        );
        fs::rename(&path, folder.path().join("log.1")).unwrap();
        fs::write(&path, line(1, "C", "present", "")).unwrap();
        let activity = reader.read(&|_| false).unwrap();
        assert_eq!((activity.archived, activity.present, activity.failures.len()), (2, 1, 1));
    }
}
