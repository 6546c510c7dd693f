//! Metrics in Prometheus' text format, version 0.0.4, for node_exporter's textfile collector and any scraper.
//!
//! Counters count from the start of the log or of the exporter. Prometheus treats a decrease as a counter
//! reset.

use walden_format::lsn::Lsn;
use walden_receive::status::{State, Status};
use walden_watch::prometheus::{self, Labels, Metric};

use crate::report::{CopyStatus, Report};

#[rustfmt::skip]
const METRICS: [Metric; 45] = [
    Metric { name: "walden_archive_up", kind: "gauge", help: "Whether the archive exists and could be read." },
    Metric { name: "walden_archive_problems", kind: "gauge", help: "Number of problems that walden archive status reports." },
    Metric { name: "walden_archive_status_timestamp_seconds", kind: "gauge", help: "When these metrics were written." },
    Metric { name: "walden_archive_arriving", kind: "gauge", help: "Whether the primary's WAL reaches the archive, according to the server." },
    Metric { name: "walden_archive_segments", kind: "gauge", help: "Complete segments in the archive." },
    Metric { name: "walden_archive_objects", kind: "gauge", help: "Objects that contain these segments." },
    Metric { name: "walden_archive_raw_bytes", kind: "gauge", help: "Bytes of the archived segments before compression." },
    Metric { name: "walden_archive_stored_bytes", kind: "gauge", help: "Bytes of their objects." },
    Metric { name: "walden_archive_compression_ratio", kind: "gauge", help: "Bytes of WAL for each byte stored." },
    Metric { name: "walden_archive_missing_segments", kind: "gauge", help: "Segments that are missing, by whether that was acknowledged." },
    Metric { name: "walden_archive_oldest_restorable_timestamp_seconds", kind: "gauge", help: "The first commit or abort after the last gap in the newest timeline's WAL." },
    Metric { name: "walden_archive_newest_restorable_timestamp_seconds", kind: "gauge", help: "The last commit or abort there: recovery to a time can reach every time from the oldest to just before this one." },
    Metric { name: "walden_archive_base_backups", kind: "gauge", help: "Base backups in the archive." },
    Metric { name: "walden_archive_base_backup_bytes", kind: "gauge", help: "Bytes of their objects." },
    Metric { name: "walden_archive_newest_base_backup_timestamp_seconds", kind: "gauge", help: "When the newest base backup in the archive was started." },
    Metric { name: "walden_archive_last_verified_timestamp_seconds", kind: "gauge", help: "When walden archive verify last ended." },
    Metric { name: "walden_archive_last_verified_damaged_objects", kind: "gauge", help: "Damaged objects that it found." },
    Metric { name: "walden_archive_verification_locked", kind: "gauge", help: "Whether verification results cannot be read without a private key." },
    Metric { name: "walden_archive_lag_segments", kind: "gauge", help: "Files that the server has ready and the archive does not have, or refuses." },
    Metric { name: "walden_archive_lag_bytes", kind: "gauge", help: "Bytes of these files." },
    Metric { name: "walden_archive_lag_seconds", kind: "gauge", help: "Seconds that the oldest of these files has waited." },
    Metric { name: "walden_archive_ready_files", kind: "gauge", help: "Files that the server has marked as ready." },
    Metric { name: "walden_archive_ready_seconds", kind: "gauge", help: "Seconds that the oldest of these has been ready, whether or not the archive has a file of its name." },
    Metric { name: "walden_archive_backlog_limit_files", kind: "gauge", help: "Files that may wait before it is a problem." },
    Metric { name: "walden_archive_backlog_limit_seconds", kind: "gauge", help: "Seconds that a file may wait before it is a problem." },
    Metric { name: "walden_archive_failing_files", kind: "gauge", help: "Files that failed to be archived and were not archived since." },
    Metric { name: "walden_archive_last_archived_timestamp_seconds", kind: "gauge", help: "When a file was archived last." },
    Metric { name: "walden_archive_archived_files_total", kind: "counter", help: "Files that were archived." },
    Metric { name: "walden_archive_archived_raw_bytes_total", kind: "counter", help: "Bytes of the files that were archived." },
    Metric { name: "walden_archive_archived_stored_bytes_total", kind: "counter", help: "Bytes of their objects." },
    Metric { name: "walden_archive_archived_seconds_total", kind: "counter", help: "Seconds that archiving them took." },
    Metric { name: "walden_archive_fetched_files_total", kind: "counter", help: "Files that were handed over to recovery." },
    Metric { name: "walden_archive_failures_total", kind: "counter", help: "Files that were not archived or not handed over, by command and cause." },
    Metric { name: "walden_archive_archived_bytes_per_second", kind: "gauge", help: "WAL archived per second in the last hour." },
    Metric { name: "walden_archive_repository_up", kind: "gauge", help: "Of several repositories: whether this one could be read." },
    Metric { name: "walden_archive_repository_lag_segments", kind: "gauge", help: "Number of files that the repository lacks and another repository has." },
    Metric { name: "walden_archive_repository_lag_bytes", kind: "gauge", help: "Bytes of WAL in the missing segments." },
    Metric { name: "walden_archive_repository_last_archived_timestamp_seconds", kind: "gauge", help: "When a file was last stored in the repository, by the repository's clock." },
    Metric { name: "walden_archive_repository_damaged_objects", kind: "gauge", help: "Its damaged objects, by its last verify and by comparison with the others." },
    Metric { name: "walden_receive_streaming", kind: "gauge", help: "Whether walden receive receives." },
    Metric { name: "walden_receive_lag_bytes", kind: "gauge", help: "Bytes of the server's WAL that are not durable where it is received." },
    Metric { name: "walden_receive_lag_seconds", kind: "gauge", help: "Seconds for which such bytes have existed." },
    Metric { name: "walden_receive_waiting_files", kind: "gauge", help: "Received files that wait to be archived." },
    Metric { name: "walden_receive_position_bytes", kind: "gauge", help: "Ends of the WAL by position: received, flushed, archived, server." },
    Metric { name: "walden_receive_interruptions_total", kind: "counter", help: "Connections that were lost or could not be made since walden receive started." },
];

/// Renders the metrics of a report. Unknown values are omitted, not 0.
pub fn render(report: &Report) -> String {
    prometheus::render(&METRICS, |name| samples(report, name).unwrap_or_default())
}

/// Returns the samples of a metric as labels and values; `None` if there is no metric of that name.
fn samples(report: &Report, name: &str) -> Option<Vec<(Labels, f64)>> {
    let (holdings, lag, activity) = (&report.holdings, report.lag.as_ref(), &report.activity);
    let verified = holdings.as_ref().and_then(|holdings| holdings.verified.as_ref());
    let seconds = |micros: i64| micros as f64 / 1e6;
    let of_holdings = |number: fn(&walden_archive::status::Holdings) -> f64| holdings.as_ref().map(number);
    let of_activity = |number: fn(&crate::activity::Activity) -> f64| activity.as_ref().map(number);
    let receiving = |number: fn(&Status) -> f64| report.receiving.as_ref().map(number);
    let one = match name.strip_prefix("walden_archive_").unwrap_or(name) {
        "up" => Some(f64::from(u8::from(holdings.as_ref().is_some_and(|it| it.system_identifier.is_some())))),
        "problems" => Some(report.problems.len() as f64),
        "status_timestamp_seconds" => Some(seconds(jiff::Timestamp::now().as_microsecond())),
        "arriving" => report.arrives.map(|arrives| f64::from(u8::from(arrives))),
        "segments" => of_holdings(|it| it.segments as f64),
        "objects" => of_holdings(|it| it.objects as f64),
        "raw_bytes" => of_holdings(|it| it.raw_bytes as f64),
        "stored_bytes" => of_holdings(|it| it.stored_bytes as f64),
        "compression_ratio" => holdings.as_ref().and_then(walden_archive::status::Holdings::ratio),
        "oldest_restorable_timestamp_seconds" => {
            holdings.as_ref().and_then(|it| it.oldest_restorable).map(seconds)
        }
        "newest_restorable_timestamp_seconds" => {
            holdings.as_ref().and_then(|it| it.newest_restorable).map(seconds)
        }
        "base_backups" => of_holdings(|it| it.base_backups as f64),
        "base_backup_bytes" => of_holdings(|it| it.base_backup_bytes as f64),
        "newest_base_backup_timestamp_seconds" => {
            holdings.as_ref().and_then(|it| it.newest_base_backup).map(seconds)
        }
        "last_verified_timestamp_seconds" => verified.map(|it| seconds(it.time)),
        "last_verified_damaged_objects" => verified.map(|it| it.damaged as f64),
        "verification_locked" => of_holdings(|it| f64::from(u8::from(it.is_verification_locked))),
        "lag_segments" => lag.map(|it| it.files as f64),
        "lag_bytes" => lag.map(|it| it.bytes as f64),
        "lag_seconds" => lag.map(|it| it.seconds),
        "ready_files" => lag.map(|it| it.ready_files as f64),
        "ready_seconds" => lag.map(|it| it.ready_seconds),
        "backlog_limit_files" => Some(report.backlog_limit as f64),
        "backlog_limit_seconds" => Some(report.backlog_limit_seconds as f64),
        "failing_files" => of_activity(|it| it.unresolved_files as f64),
        "last_archived_timestamp_seconds" => activity.as_ref().and_then(|it| it.last_archived).map(seconds),
        "archived_files_total" => of_activity(|it| it.archived as f64),
        "archived_raw_bytes_total" => of_activity(|it| it.raw_bytes as f64),
        "archived_stored_bytes_total" => of_activity(|it| it.stored_bytes as f64),
        "archived_seconds_total" => of_activity(|it| it.seconds),
        "fetched_files_total" => of_activity(|it| it.fetched as f64),
        "archived_bytes_per_second" => of_activity(|it| it.bytes_per_second),
        "walden_receive_streaming" => receiving(|it| f64::from(u8::from(it.state == State::Streaming))),
        "walden_receive_lag_bytes" => receiving(|it| it.lag_bytes as f64),
        "walden_receive_lag_seconds" => receiving(|it| it.lag_seconds),
        "walden_receive_waiting_files" => receiving(|it| it.waiting_files as f64),
        "walden_receive_interruptions_total" => receiving(|it| it.interruptions as f64),
        "walden_receive_position_bytes" => return Some(positions(report)),
        "repository_up" => {
            return Some(repositories(report, |copy| Some(f64::from(u8::from(copy.problem.is_none())))));
        }
        "repository_lag_segments" => return Some(repositories(report, |copy| number(copy.missing_files))),
        "repository_lag_bytes" => return Some(repositories(report, |copy| number(copy.missing_bytes))),
        "repository_last_archived_timestamp_seconds" => {
            return Some(repositories(report, |copy| copy.last_archived.map(|time| time as f64 / 1e6)));
        }
        "repository_damaged_objects" => {
            return Some(repositories(report, |copy| number(copy.damaged_objects)));
        }
        "missing_segments" => return Some(missing_segments(report)),
        "failures_total" => return Some(failures(report)),
        _ => return None,
    };
    Some(one.map(|value| (Labels::new(), value)).into_iter().collect())
}

fn positions(report: &Report) -> Vec<(Labels, f64)> {
    let Some(status) = &report.receiving else { return Vec::new() };
    let positions = [
        ("received", Some(&status.received_lsn)),
        ("flushed", Some(&status.flushed_lsn)),
        ("archived", status.archived_lsn.as_ref()),
        ("server", Some(&status.server_lsn)),
    ];
    let sample = |(kind, lsn): (&str, Option<&String>)| {
        let lsn: Lsn = lsn?.parse().ok()?;
        Some((vec![("end_of", kind.to_owned())], lsn.0 as f64))
    };
    positions.into_iter().filter_map(sample).collect()
}

fn number(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

/// Returns a sample for each of several repositories. A repository that cannot be read has only that sample.
fn repositories(report: &Report, value: fn(&CopyStatus) -> Option<f64>) -> Vec<(Labels, f64)> {
    let sample = |copy: &CopyStatus| Some((vec![("repository", copy.location.clone())], value(copy)?));
    report.copies.iter().filter_map(sample).collect()
}

fn missing_segments(report: &Report) -> Vec<(Labels, f64)> {
    let Some(holdings) = &report.holdings else { return Vec::new() };
    let label = |value: &str| vec![("acknowledged", value.to_owned())];
    vec![
        (label("false"), holdings.missing_segments as f64),
        (label("true"), holdings.acknowledged_segments as f64),
    ]
}

fn failures(report: &Report) -> Vec<(Labels, f64)> {
    let failures = report.activity.as_ref().map(|activity| activity.failures.as_slice()).unwrap_or_default();
    let labels =
        |command: &str, cause: &str| vec![("command", command.to_owned()), ("cause", cause.to_owned())];
    failures.iter().map(|one| (labels(&one.command, &one.cause), one.count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::configuration::ArchiveSection;
    use crate::queue::QueueOptions;
    use crate::receiving::ReceivingOptions;

    #[test]
    fn every_metric_of_the_table_is_computed() {
        let (queue, receiving) = (QueueOptions::default(), ReceivingOptions::default());
        let holdings = Err("no archive".to_owned());
        let report = Report::new(None, holdings, &queue, &receiving, None, &ArchiveSection::default());
        for metric in &METRICS {
            assert!(samples(&report, metric.name).is_some(), "{}", metric.name);
        }
        assert!(samples(&report, "walden_archive_mistyped").is_none());
    }

    #[test]
    fn the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() {
        for file in ["grafana/walden-archive.json", "archive-alerts.yml"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
            let text = fs::read_to_string(&path).expect("a file of the documentation");
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("walden_")).collect();
            assert!(asked.len() > 8, "{file}: {asked:?}");
            for &name in &asked {
                assert!(METRICS.iter().any(|metric| metric.name == name), "{file}: {name}");
            }
            if file.starts_with("grafana") {
                let of_repositories =
                    METRICS.iter().filter(|metric| metric.name.starts_with("walden_archive_repository_"));
                for metric in of_repositories {
                    assert!(asked.contains(metric.name), "{file} lacks {}", metric.name);
                }
            }
        }
    }

    #[test]
    fn names_keep_to_the_conventions() {
        for metric in &METRICS {
            assert!(
                (metric.name.starts_with("walden_archive_") || metric.name.starts_with("walden_receive_"))
                    && metric.help.ends_with('.'),
                "{}",
                metric.name
            );
            assert_eq!(metric.name.ends_with("_total"), metric.kind == "counter", "{}", metric.name);
        }
    }
}
