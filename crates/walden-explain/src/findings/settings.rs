//! Settings, and commands that act like them.

use walden_format::payload::xlog::WalLevel;
use walden_recompress::Method;

use super::facts::{Facts, is_update};
use super::ledger::Claim;
use super::maintenance::hint_images_of_checkpoints;
use super::{Candidate, bytes_text};
use crate::checkpoints::{Cause, CheckpointSettings, volume_segments};
use crate::group::Cell;
use crate::image_sample::usual_method;
use crate::tally::Bucket;

/// How many times as far apart checkpoints should come.
const FARTHER: u64 = 4;
const MEGABYTE: u64 = 1 << 20;
/// Seconds: the most that the server accepts.
const MAX_CHECKPOINT_TIMEOUT: i64 = 86_400;
/// What checkpoints that are farther apart cost.
const PRICE: &str =
    "pg_wal takes more space for that, and a crash a longer recovery (walden whatif predicts both)";

/// Claims the images of one cause in all cells.
fn claim_images(facts: &Facts<'_>, bucket: Bucket) -> Claim {
    let mut claim = Claim::default();
    for (at, (_, tally)) in facts.explanation.cells.iter().enumerate() {
        let bytes = tally.buckets.get(bucket);
        if bytes > 0 {
            claim.add_images(at, bytes);
        }
    }
    claim
}

/// Images after checkpoints, if the log shows how often these come: it has a whole cycle.
pub(super) fn checkpoint_images(facts: &Facts<'_>) -> Vec<Candidate> {
    // initdb requests some, for CREATE DATABASE, which no setting would spare.
    let initdb_end = facts.initdb_end().unwrap_or_default();
    let checkpoints = || facts.checkpoints.iter().filter(|checkpoint| checkpoint.record.lsn > initdb_end);
    let with = |cause| checkpoints().filter(|checkpoint| checkpoint.cause == cause).count();
    let (volume, time, requested) = (with(Cause::Volume), with(Cause::Time), with(Cause::Requested));
    let intervals: Vec<i64> = checkpoints().filter_map(|checkpoint| checkpoint.interval).collect();
    if intervals.is_empty() {
        return Vec::new();
    }
    let mut claim = claim_images(facts, Bucket::ImageCheckpoint);
    let hints = hint_images_of_checkpoints(facts);
    let of_hints = match hints.bytes() {
        0 => String::new(),
        bytes => format!(" ({} because reads set hint bits)", facts.percent(bytes)),
    };
    claim.merge(hints);
    let every = seconds_text(intervals.iter().sum::<i64>() as f64 / intervals.len() as f64);
    let text = |count: usize, why: &str| {
        format!(
            "{} of the WAL is images of pages changed for the first time after a checkpoint{of_hints}; checkpoints come every {every}, {count} \
             of {} {why}",
            facts.percent(claim.bytes()),
            intervals.len()
        )
    };
    let candidate = |claim: &Claim| Candidate::new(claim.clone(), (0.0, 1.0));
    if volume >= time.max(requested).max(1) {
        let size = larger_max_wal_size(facts);
        return vec![Candidate {
            text: text(volume, "because max_wal_size is reached"),
            points_at: "max_wal_size".into(),
            remedy: format!(
                "max_wal_size = {size} or more, so that checkpoints come {FARTHER} times as far apart; {PRICE}"
            ),
            try_settings: vec![("max_wal_size", size)],
            saves: None,
            ..candidate(&claim)
        }];
    }
    if time >= requested.max(1) {
        let known = facts.checkpoint_settings().map(|settings| settings.timeout);
        let timed = facts.checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::Time);
        let timeout: i64 = known.or_else(|| timed.filter_map(|one| one.interval).min()).unwrap_or(300);
        let longer = (timeout * FARTHER as i64).clamp(900, MAX_CHECKPOINT_TIMEOUT);
        if longer <= timeout {
            return Vec::new();
        }
        return vec![Candidate {
            text: text(time, "because checkpoint_timeout has passed"),
            points_at: "checkpoint_timeout".into(),
            remedy: format!(
                "checkpoint_timeout = {}min, and max_wal_size large enough for it; {PRICE}",
                longer / 60
            ),
            try_settings: vec![("checkpoint_timeout", format!("{longer}s"))],
            saves: None,
            ..candidate(&claim)
        }];
    }
    if requested == 0 {
        return Vec::new();
    }
    // Without these checkpoints, pages that change in each cycle have one image instead of one per cycle. The
    // cause of the first checkpoint is not known.
    let first = with(Cause::First) * usize::from(volume + time == 0);
    let most = (requested + first) as f64 / (checkpoints().count() + 1) as f64;
    // Without settings, a checkpoint without the regularities of the other causes counts as requested. The
    // first few checkpoints of any cause do, too.
    if facts.checkpoint_settings().is_none() && volume + time == 0 {
        return vec![Candidate {
            text: text(requested, "of causes that so few checkpoints do not show"),
            points_at: "max_wal_size".into(),
            remedy: format!(
                "--names adds the server's settings, which show the cause; in any case, fewer checkpoints mean fewer images; {PRICE}"
            ),
            ..Candidate::new(claim, (0.0, most))
        }];
    }
    let backups = facts.explanation.backups;
    let why = match backups {
        0 => "on request: CHECKPOINT, CREATE DATABASE, the start of a base backup".to_owned(),
        backups => format!(
            "on request: CHECKPOINT, CREATE DATABASE, the start of a base backup ({backups} ended in this WAL)"
        ),
    };
    vec![Candidate {
        text: text(requested, &why),
        points_at: "CHECKPOINT".into(),
        remedy: "leave CHECKPOINT out of scripts: the server runs checkpoints by itself, as far apart as max_wal_size and \
                 checkpoint_timeout say"
            .into(),
        ..Candidate::new(claim, (0.0, most))
    }]
}

/// The `max_wal_size` under which checkpoints for volume come [`FARTHER`] times as far apart.
fn larger_max_wal_size(facts: &Facts<'_>) -> String {
    let size = facts.explanation.segment_size;
    let assumed = CheckpointSettings::default_of(facts.explanation.version);
    let learned = || {
        let (segments, _) = volume_segments(facts.checkpoints, size)?;
        Some(assumed.roundest_max_wal_size(segments, size))
    };
    let known = facts.checkpoint_settings().map(|settings| settings.max_wal_size).or_else(learned);
    let bytes = (known.unwrap_or(assumed.max_wal_size) * FARTHER).max(FARTHER * MEGABYTE);
    let megabytes = bytes.div_ceil(MEGABYTE);
    if megabytes >= 4096 { format!("{}GB", megabytes.div_ceil(1024)) } else { format!("{megabytes}MB") }
}

/// The value of `wal_compression` that a server of this version most likely accepts and that costs little.
pub(super) fn compression_method(facts: &Facts<'_>) -> &'static str {
    match usual_method(facts.explanation.version) {
        Method::Pglz => "on",
        _ => "lz4",
    }
}

/// What else there is where the server was built without a method, and refuses it.
fn without(method: &str) -> &'static str {
    if method == "lz4" { "; pglz where the server is built without lz4" } else { "" }
}

/// `wal_level=logical`: records contain data for logical decoding, such as whole new rows in updates.
pub(super) fn logical_level(facts: &Facts<'_>) -> Vec<Candidate> {
    let updates: u64 = facts.user_tables().map(|table| table.evidence().whole_new_tuples).sum();
    let decoding = facts.explanation.decoding;
    // Before 17, the WAL has the setting only where a server starts with a setting other than before. Since
    // 19, a slot has the same effect under `replica`.
    let is_set = matches!(facts.explanation.logged_settings.wal_level, None | Some(WalLevel::Logical));
    if !is_set || updates == 0 || decoding.logical == 0 {
        return Vec::new();
    }
    /// Bytes of an update's record that changes one column of a fixed width within its page, at least.
    const SHORTEST_UPDATE: u64 = 72;
    let mut claim = Claim::default();
    for table in facts.user_tables() {
        let evidence = table.evidence();
        let all = facts.records(facts.cells(table.heaps(), is_update)).max(1);
        let share = evidence.whole_new_tuples as f64 / all as f64;
        facts.extend(&mut claim, facts.cells(table.heaps(), is_update), share, 0.0);
    }
    let bytes = claim.bytes();
    let most = bytes.saturating_sub(updates * SHORTEST_UPDATE) as f64 / bytes.max(1) as f64;
    vec![Candidate {
        text: format!(
            "with wal_level = logical, {updates} updates log the whole new row instead of its difference from the old one; these records \
             take {} of the WAL",
            facts.percent(claim.bytes())
        ),
        points_at: "wal_level".into(),
        remedy: "wal_level = replica (needs a restart), if there is no logical replication slot: SELECT slot_name, active FROM \
                 pg_replication_slots WHERE slot_type = 'logical'"
            .into(),
        try_settings: vec![("wal_level", "replica".into())],
        // Rows that change as a whole are logged as a whole in any case.
        ..Candidate::new(claim, (0.0, most))
    }]
}

/// Claims images of those parts of the WAL that have no compressed image. In a part with compressed images
/// the setting was on, and the other images are those that compression did not make smaller.
pub(super) fn uncompressed_images(facts: &Facts<'_>) -> Vec<Candidate> {
    let (images, all) = (facts.explanation.uncompressed, facts.explanation.images.compressible());
    let (count, bytes) = (images.count, images.bytes);
    let is_on = facts.settings.get("wal_compression").is_some_and(|value| value != "off");
    if bytes == 0 || count * 2 < all.count || is_on {
        return Vec::new();
    }
    let mut claim = Claim::default();
    for (at, (_, tally)) in facts.explanation.cells.iter().enumerate() {
        let buckets = [Bucket::ImageCheckpoint, Bucket::ImageForced, Bucket::ImageHint];
        let of_cell: u64 = buckets.iter().map(|bucket| tally.buckets.get(*bucket)).sum();
        if of_cell > 0 {
            // Which of a cell's images are compressed is not known.
            claim.add_images(at, (u128::from(of_cell) * u128::from(bytes) / u128::from(all.bytes)) as u64);
        }
    }
    let method = compression_method(facts);
    vec![Candidate {
        text: format!(
            "{} of the WAL is {count} full-page images without compression ({})",
            facts.percent(bytes),
            bytes_text(bytes)
        ),
        points_at: "wal_compression".into(),
        remedy: format!(
            "wal_compression = {method}, for some processor time of each image{}",
            without(method)
        ),
        try_settings: vec![("wal_compression", method.into())],
        saves: None,
        ..Candidate::new(claim, (0.0, 1.0))
    }]
}

pub(super) fn consistency_images(facts: &Facts<'_>) -> Vec<Candidate> {
    let claim = claim_images(facts, Bucket::ImageConsistency);
    if claim.bytes() == 0 {
        return Vec::new();
    }
    vec![Candidate {
        text: format!(
            "{} of the WAL is images for wal_consistency_checking, a developers' setting",
            facts.percent(claim.bytes())
        ),
        points_at: "wal_consistency_checking".into(),
        remedy: "wal_consistency_checking = '' (its default)".into(),
        ..Candidate::new(claim, (1.0, 1.0))
    }]
}

/// The unused ends of switched segments; one switch alone, as at the end of a backup, is no pattern.
fn padding(facts: &Facts<'_>) -> Option<Claim> {
    let bytes = facts.explanation.buckets.get(Bucket::SwitchPadding);
    let framing = facts.explanation.cells.iter().position(|(cell, _)| *cell == Cell::FRAMING)?;
    let mut claim = Claim::default();
    claim.add_plain(framing, bytes);
    (bytes > 0 && facts.explanation.switches >= 2).then_some(claim)
}

/// `archive_timeout` in seconds, if it is known.
fn archive_timeout(facts: &Facts<'_>) -> Option<u64> {
    facts.settings.get("archive_timeout")?.split(' ').next()?.parse().ok()
}

pub(super) fn switch_padding(facts: &Facts<'_>) -> Vec<Candidate> {
    let timeout = archive_timeout(facts);
    let Some(claim) = padding(facts).filter(|_| timeout != Some(0)) else { return Vec::new() };
    let switches = facts.explanation.switches;
    let why = match timeout {
        Some(seconds) => {
            format!("archive_timeout switches a segment every {seconds} s if anything was written")
        }
        None => "archive_timeout does that on an idle server; so does pg_switch_wal()".into(),
    };
    vec![Candidate {
        text: format!(
            "the unused ends of {switches} segments that were switched before they were full take {} of the WAL: {why}",
            facts.percent(claim.bytes())
        ),
        points_at: "archive_timeout".into(),
        remedy: "a longer archive_timeout, if losing the WAL of that time with the server is acceptable, or 0 where pg_receivewal or walden receive \
                 streams into the archive; compressed, an unused end takes next to nothing"
            .into(),
        ..Candidate::new(claim, (0.5, 1.0))
    }]
}

pub(super) fn manual_switches(facts: &Facts<'_>) -> Vec<Candidate> {
    let Some(claim) = padding(facts).filter(|_| archive_timeout(facts) == Some(0)) else { return Vec::new() };
    vec![Candidate {
        text: format!(
            "the unused ends of {} segments that were switched before they were full take {} of the WAL; archive_timeout is 0, so \
             commands did that",
            facts.explanation.switches,
            facts.percent(claim.bytes())
        ),
        points_at: "pg_switch_wal(), base backups".into(),
        remedy: "switch segments only where a file is needed at once; archive_timeout or streaming limits the loss in a crash".into(),
        ..Candidate::new(claim, (0.9, 1.0))
    }]
}

pub(super) fn no_full_page_writes(facts: &Facts<'_>) -> Vec<Candidate> {
    if facts.explanation.logged_settings.full_page_writes != Some(false) {
        return Vec::new();
    }
    vec![Candidate {
        text: "full_page_writes is off: no images after checkpoints, and a page that a crash leaves half-written cannot be repaired \
               from this WAL"
            .into(),
        points_at: "full_page_writes".into(),
        remedy: "full_page_writes = on, unless the file system never leaves a page half-written".into(),
        saves: None,
        ..Candidate::new(Claim::default(), (0.0, 0.0))
    }]
}

fn seconds_text(seconds: f64) -> String {
    match seconds {
        ..1.0 => "second or more often".into(),
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}
