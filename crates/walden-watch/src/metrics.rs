//! The metrics of followed WAL, for Prometheus. The number of labels is bounded: relations, databases and
//! slots each have a limit.

use std::collections::BTreeMap;

use walden_explain::checkpoints::Cause;
use walden_explain::tally::{Bucket, Tally};

use crate::document::{database_label, kind_text};
use crate::prometheus::{self, Labels, Metric};
use crate::watch::{CAUSES, Watch};

/// Maximum number of slots with their own metrics: the slots with the largest lag.
const MAX_SLOTS: usize = 50;
/// Label for everything without its own metrics.
const OTHER: &str = "other";

#[rustfmt::skip]
const METRICS: [Metric; 31] = [
    Metric { name: "walden_watch_up", kind: "gauge", help: "Whether the WAL can be read." },
    Metric { name: "walden_watch_server_running", kind: "gauge", help: "Whether the server runs, as far as its files or itself say." },
    Metric { name: "walden_watch_server_queried", kind: "gauge", help: "Whether the last query of the server's state succeeded; absent if the server is not queried." },
    Metric { name: "walden_watch_info", kind: "gauge", help: "The followed server: version, system identifier and timeline." },
    Metric { name: "walden_watch_position_bytes", kind: "gauge", help: "The end of the WAL that was counted, as a position." },
    Metric { name: "walden_watch_wal_bytes_total", kind: "counter", help: "Bytes of WAL by bucket: headers, images by cause, data and others, as walden explain has them." },
    Metric { name: "walden_watch_records_total", kind: "counter", help: "Records." },
    Metric { name: "walden_watch_images_total", kind: "counter", help: "Full-page images." },
    Metric { name: "walden_watch_transactions_total", kind: "counter", help: "Transactions by how they ended." },
    Metric { name: "walden_watch_relation_bytes_total", kind: "counter", help: "Bytes of WAL by relation, of the largest ones, and of the others." },
    Metric { name: "walden_watch_relation_image_bytes_total", kind: "counter", help: "Of these, bytes of full-page images." },
    Metric { name: "walden_watch_relation_ended_bytes_total", kind: "counter", help: "Bytes of WAL of relations whose own series ended as they were idle." },
    Metric { name: "walden_watch_kind_bytes_total", kind: "counter", help: "Bytes of WAL by kind of record." },
    Metric { name: "walden_watch_kind_records_total", kind: "counter", help: "Records by kind." },
    Metric { name: "walden_watch_database_bytes_total", kind: "counter", help: "Bytes of WAL by database; of none for commits, checkpoints and page headers." },
    Metric { name: "walden_watch_missed_bytes_total", kind: "counter", help: "Bytes of WAL that could not be counted." },
    Metric { name: "walden_watch_checkpoints_total", kind: "counter", help: "Checkpoints seen, by cause." },
    Metric { name: "walden_watch_checkpoint_running", kind: "gauge", help: "Whether a checkpoint is seen to be in progress (PostgreSQL 17 and later)." },
    Metric { name: "walden_watch_checkpoint_bytes_since", kind: "gauge", help: "Bytes of WAL since the redo pointer of the last checkpoint." },
    Metric { name: "walden_watch_checkpoint_seconds_since", kind: "gauge", help: "Seconds since the start of the last checkpoint." },
    Metric { name: "walden_watch_next_checkpoint_bytes", kind: "gauge", help: "Bytes of WAL until max_wal_size requests a checkpoint." },
    Metric { name: "walden_watch_next_checkpoint_seconds", kind: "gauge", help: "Seconds until the next checkpoint by each cause, by volume at the rate of the last minute." },
    Metric { name: "walden_watch_max_wal_size_bytes", kind: "gauge", help: "The setting max_wal_size." },
    Metric { name: "walden_watch_checkpoint_timeout_seconds", kind: "gauge", help: "The setting checkpoint_timeout." },
    Metric { name: "walden_watch_archiver_ready_files", kind: "gauge", help: "Files that wait to be archived." },
    Metric { name: "walden_watch_archiver_ready_bytes", kind: "gauge", help: "Their bytes." },
    Metric { name: "walden_watch_archiver_oldest_seconds", kind: "gauge", help: "Seconds that the oldest of them has waited." },
    Metric { name: "walden_watch_slot_lag_bytes", kind: "gauge", help: "Bytes of WAL from the restart position of each slot to the end of WAL." },
    Metric { name: "walden_watch_slot_active", kind: "gauge", help: "Whether a client uses the slot, where the server was asked." },
    Metric { name: "walden_watch_slot_lost", kind: "gauge", help: "Whether the server has given the slot up." },
    Metric { name: "walden_watch_bytes_per_second", kind: "gauge", help: "Bytes of WAL per second over a window." },
];

/// Formats the metrics. Unknown values are omitted, not reported as 0.
pub fn render(watch: &Watch) -> String {
    let relations = by_relation(watch);
    prometheus::render(&METRICS, |name| samples(watch, &relations, name))
}

/// Sums up by database and relation name: a rewritten relation has several files, but one series.
fn by_relation(watch: &Watch) -> BTreeMap<(String, String), Tally> {
    let totals = watch.totals();
    let mut sums: BTreeMap<(String, String), Tally> = BTreeMap::new();
    for (relation, total) in &totals.relations {
        sums.entry(watch.relation_labels(*relation)).or_default().merge(&total.tally);
    }
    for (name, tally) in [(OTHER, &totals.other_relations), ("none", &totals.no_relation)] {
        sums.entry((String::new(), name.to_owned())).or_default().merge(tally);
    }
    sums
}

fn samples(watch: &Watch, relations: &BTreeMap<(String, String), Tally>, name: &str) -> Vec<(Labels, f64)> {
    let totals = watch.totals();
    let one = |value: f64| vec![(Vec::new(), value)];
    let some = |value: Option<f64>| value.map(one).unwrap_or_default();
    let archiver = watch.server().archiver;
    let settings = watch.checkpoint_settings();
    let of_relations = |number: fn(&Tally) -> u64| {
        let sample = |((database, relation), tally): (&(String, String), &Tally)| {
            let labels = vec![("database", database.clone()), ("relation", relation.clone())];
            (labels, number(tally) as f64)
        };
        relations.iter().map(sample).collect()
    };
    match name.strip_prefix("walden_watch_").unwrap_or(name) {
        "up" => one(flag(watch.problem().is_none())),
        "server_running" => {
            let process = watch.server_process();
            some(process.name().map(|_| flag(!process.is_stopped())))
        }
        "server_queried" => some(watch.is_queried().map(flag)),
        "info" => {
            let info = watch.info();
            let labels = vec![
                ("postgresql", info.version.to_string()),
                ("system_identifier", info.system_id.to_string()),
                ("timeline", info.timeline.to_string()),
            ];
            vec![(labels, 1.0)]
        }
        "position_bytes" => one(watch.position().0 as f64),
        "wal_bytes_total" => Bucket::all()
            .map(|bucket| (vec![("bucket", bucket.name().to_owned())], totals.all.buckets.get(bucket) as f64))
            .collect(),
        "records_total" => one(totals.all.records as f64),
        "images_total" => one(totals.all.images as f64),
        "transactions_total" => [("committed", totals.committed), ("aborted", totals.aborted)]
            .map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count as f64))
            .into(),
        "relation_bytes_total" => of_relations(Tally::bytes),
        "relation_image_bytes_total" => of_relations(|tally| tally.buckets.images()),
        "relation_ended_bytes_total" => one(totals.left_relations.bytes() as f64),
        "kind_bytes_total" => by_kind(watch, Tally::bytes),
        "kind_records_total" => by_kind(watch, |tally| tally.records),
        "database_bytes_total" => by_database(watch),
        "missed_bytes_total" => one(totals.missed_bytes as f64),
        "max_wal_size_bytes" => some(settings.map(|settings| settings.max_wal_size as f64)),
        "checkpoint_timeout_seconds" => some(settings.map(|settings| settings.timeout as f64)),
        "archiver_ready_files" => some(archiver.map(|archiver| archiver.ready_files as f64)),
        "archiver_ready_bytes" => some(archiver.map(|archiver| archiver.ready_bytes as f64)),
        "archiver_oldest_seconds" => some(archiver.map(|archiver| archiver.oldest_seconds)),
        "slot_lag_bytes" => by_slot(watch, |lag, _, _| lag.map(|lag| lag as f64)),
        "slot_active" => by_slot(watch, |_, active, _| active.map(flag)),
        "slot_lost" => by_slot(watch, |_, _, is_lost| Some(flag(is_lost))),
        "bytes_per_second" => [("1m", 60.0), ("5m", 300.0)]
            .map(|(text, seconds)| {
                let window = watch.window(seconds);
                (vec![("window", text.to_owned())], window.per_second(window.sums.total().bytes()))
            })
            .into(),
        other => checkpoint_samples(watch, other),
    }
}

/// Returns the samples of the last and the next checkpoint.
fn checkpoint_samples(watch: &Watch, name: &str) -> Vec<(Labels, f64)> {
    let forecast = watch.forecast();
    let of_cause = |cause: &str, value: f64| (vec![("cause", cause.to_owned())], value);
    let one = match name {
        "checkpoints_total" => {
            let count = |cause: Cause| of_cause(cause.name(), watch.totals().checkpoints(cause) as f64);
            return CAUSES.map(count).into();
        }
        "next_checkpoint_seconds" => {
            let volume = forecast.and_then(|next| next.seconds_left_by_volume);
            let time = forecast.and_then(|next| next.seconds_left_by_time);
            let by_cause = [("volume", volume), ("time", time)];
            let sample = |(cause, seconds): (&str, Option<f64>)| Some(of_cause(cause, seconds?));
            return by_cause.into_iter().filter_map(sample).collect();
        }
        "checkpoint_running" => Some(flag(watch.is_checkpoint_running())),
        "checkpoint_bytes_since" => forecast.map(|next| next.bytes_since as f64),
        "checkpoint_seconds_since" => forecast.and_then(|next| next.seconds_since),
        "next_checkpoint_bytes" => forecast.and_then(|next| next.bytes_left).map(|bytes| bytes as f64),
        _ => None,
    };
    one.map(|value| (Labels::new(), value)).into_iter().collect()
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn by_kind(watch: &Watch, number: fn(&Tally) -> u64) -> Vec<(Labels, f64)> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (kind, tally) in &watch.totals().kinds {
        *sums.entry(kind_text(watch, *kind)).or_default() += number(tally);
    }
    sums.into_iter().map(|(kind, number)| (vec![("kind", kind)], number as f64)).collect()
}

fn by_database(watch: &Watch) -> Vec<(Labels, f64)> {
    let totals = watch.totals();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (database, tally) in &totals.databases {
        *sums.entry(database_label(watch, *database)).or_default() += tally.bytes();
    }
    if totals.other_databases.bytes() > 0 {
        *sums.entry(OTHER.to_owned()).or_default() += totals.other_databases.bytes();
    }
    sums.into_iter().map(|(database, bytes)| (vec![("database", database)], bytes as f64)).collect()
}

fn by_slot(
    watch: &Watch,
    value: impl Fn(Option<u64>, Option<bool>, bool) -> Option<f64>,
) -> Vec<(Labels, f64)> {
    let position = watch.position().0;
    let lag = |restart: walden_format::lsn::Lsn| position.saturating_sub(restart.0);
    let mut slots: Vec<_> =
        watch.server().slots.iter().map(|slot| (slot.restart_lsn.map(lag), slot)).collect();
    slots.sort_by_key(|(lag, _)| std::cmp::Reverse(*lag));
    slots
        .into_iter()
        .take(MAX_SLOTS)
        .filter_map(|(lag, slot)| {
            let kind = if slot.is_logical { "logical" } else { "physical" };
            let labels = vec![("slot", slot.name.clone()), ("type", kind.to_owned())];
            Some((labels, value(lag, slot.active, slot.is_lost)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_to_the_conventions() {
        for metric in &METRICS {
            assert!(
                metric.name.starts_with("walden_watch_") && metric.help.ends_with('.'),
                "{}",
                metric.name
            );
            assert_eq!(metric.name.ends_with("_total"), metric.kind == "counter", "{}", metric.name);
        }
    }
}
