//! Explains the size of `pg_wal` as text.

use walden_report::table::{Look, Row, harmless, table, wrap};
use walden_report::units::{bytes, count, percent, seconds};

use super::{Backlog, Holder, HolderKind, Remedy, Retention};
use crate::server::Slot;

/// Formats the holders as a table, with remedies. `look` is the appearance of the terminal.
pub fn text(retention: &Retention, look: Look) -> String {
    let share = |part: u64| part as f64 / retention.bytes.max(1) as f64;
    let rows: Vec<Row> = retention
        .holders
        .iter()
        .map(|holder| Row {
            depth: 0,
            label: holder_text(holder),
            cells: vec![
                bytes(holder.bytes),
                count(holder.files),
                bytes(holder.holds_bytes),
                bytes(holder.releases_bytes),
                holder.oldest_seconds.map(seconds).unwrap_or_default(),
            ],
            share: Some(share(holder.bytes)),
        })
        .collect();
    let title = format!("pg_wal: {} in {} files", bytes(retention.bytes), count(retention.files));
    let head = ("held by", &["bytes", "files", "held with others", "freed alone", "oldest"][..]);
    let mut text = table(look, &title, head, &rows);
    text.push('\n');
    let redo = retention.redo_lsn.as_deref().unwrap_or("unknown");
    text +=
        &format!("The WAL ends at {}, the last checkpoint's redo pointer is {redo}.\n", retention.end_lsn);
    for warning in &retention.warnings {
        text += &format!("Warning: {warning}.\n");
    }
    if let Some(archiver) = retention.archiver.as_ref().filter(|archiver| archiver.is_failing) {
        text += &format!(
            "The archiver fails: {} failures, the last of {} {} ago; last archived: {}.\n",
            count(archiver.failed_count),
            archiver.last_failed_file.as_deref().unwrap_or("a file"),
            seconds(archiver.last_failed_seconds.unwrap_or_default()),
            archiver.last_archived_file.as_deref().unwrap_or("nothing"),
        );
    }
    if retention.archiver.as_ref().is_some_and(|archiver| archiver.is_missing) {
        text += "The server has no archiver process, and archives nothing.\n";
    }
    text += &growth(retention);
    for holder in &retention.holders {
        text += &slot_text(holder);
    }
    text += &recycled_text(retention);
    for backlog in &retention.backlogs {
        text += &backlog_text(backlog);
    }
    if !retention.remedies.is_empty() {
        text += &format!("\n{}\n", look.heading("Remedies"));
        for line in remedy_lines(&retention.remedies) {
            text += &format!("  {}\n", wrap(&line, look.width.saturating_sub(2), 2));
        }
        text += &recycling_text(retention)
            .map_or(String::new(), |note| format!("{}\n", wrap(&note, look.width, 0)));
    }
    text
}

/// Explains the files that are reserved for future segments.
fn recycled_text(retention: &Retention) -> String {
    let Some(holder) = retention.holders.iter().find(|holder| holder.kind == HolderKind::Recycled) else {
        return String::new();
    };
    let limit = |name: &str, value: Option<u64>| {
        value.map_or_else(|| name.to_owned(), |value| format!("{name} = {} MB", value >> 20))
    };
    format!(
        "The {} of files for segments to come contain no WAL yet: checkpoints renamed old segments so that the server need not create \
         new files. The server keeps as many as it expects to fill until the end of the next checkpoint, at least up to {} and at most up \
         to {}. They become fewer only as WAL is written into them.\n",
        bytes(holder.bytes),
        limit("min_wal_size", retention.recycling.min_bytes),
        limit("max_wal_size", retention.recycling.max_bytes),
    )
}

/// Returns a note about released files that a checkpoint recycles.
fn recycling_text(retention: &Retention) -> Option<String> {
    let released = retention.remedies.iter().map(|remedy| remedy.releases_bytes).max()?;
    let kept = retention.recycling.room_bytes.min(released);
    (kept > 0).then(|| {
        format!(
            "A checkpoint renames up to {} of the released files for segments to come, as max_wal_size allows, and removes the others. To \
             have all removed, run ALTER SYSTEM SET wal_recycle = off; SELECT pg_reload_conf() before the CHECKPOINT, and ALTER SYSTEM RESET \
             wal_recycle; SELECT pg_reload_conf() after it.",
            bytes(kept)
        )
    })
}

/// Formats the bytes that each remedy releases: alone, and, if holders share files, together with the
/// remedies above it.
fn remedy_lines(remedies: &[Remedy]) -> Vec<String> {
    let is_shared = remedies.len() > 1;
    let mut before = 0;
    let line = |remedy: &Remedy| {
        let (alone, together) = (remedy.releases_bytes, remedy.releases_with_previous_bytes);
        let with_others = match is_shared && together > before + alone {
            true => format!(" alone, {} with those above", bytes(together)),
            false if alone == 0 && is_shared => " alone".to_owned(),
            false => String::new(),
        };
        before = together;
        format!("{}{with_others}: {}", bytes(alone), harmless(&remedy.text))
    };
    remedies.iter().map(line).collect()
}

fn growth(retention: &Retention) -> String {
    let Some(rate) = retention.bytes_per_second else {
        return "Its growth is unknown: it has no segment that was completed in the last ten minutes. The server is idle, \
                or checkpoints have recycled these segments.\n"
            .to_owned();
    };
    let per_second = format!("{}/s", bytes(rate as u64));
    let disk = match (retention.disk_free_bytes, retention.disk_bytes) {
        (Some(free), Some(all)) => format!("; the disk has {} free of {}", bytes(free), bytes(all)),
        _ => String::new(),
    };
    match (retention.is_growing, retention.disk_full_seconds) {
        (true, Some(full)) => format!("It grows by {per_second}{disk}: full in {}.\n", seconds(full)),
        (true, None) => format!("It grows by {per_second}{disk}.\n"),
        (false, _) => {
            let is_perhaps_unused = |holder: &&Holder| {
                let is_unknown = holder.slot.as_ref().is_some_and(|slot| slot.active.is_none());
                holder.bytes > 0 && is_unknown && !holder.is_limited(retention.disk_free_bytes)
            };
            if let Some(holder) = retention.holders.iter().find(is_perhaps_unused) {
                let name = harmless(&holder.name);
                return format!(
                    "{per_second} are written; it grows by all of that if slot {name} has no client, which files do not say (--dsn \
                     asks the server){disk}.\n"
                );
            }
            if matches!(retention.server_state, Some("shut_down" | "crashed")) {
                return format!("{per_second} were written before the server ended{disk}.\n");
            }
            format!("{per_second} are written; checkpoints recycle what nothing else keeps{disk}.\n")
        }
    }
}

/// Describes a slot: its client, or how long it was inactive, and when the server invalidates it. Returns an
/// empty text if none of that is known.
fn slot_text(holder: &Holder) -> String {
    let Some(slot) = &holder.slot else { return String::new() };
    let name = harmless(&holder.name);
    if slot.is_lost {
        return lost_text(slot);
    }
    let use_of_it = match (slot.active, &slot.client, slot.idle_seconds) {
        _ if slot.is_synced => {
            format!("Slot {name}: synchronized from the primary, where its client is connected, if any.\n")
        }
        (Some(true), Some(client), _) => format!("Slot {name}: used by {}.\n", harmless(client)),
        (Some(false), _, Some(idle)) => format!("Slot {name}: inactive for {}.\n", seconds(idle as f64)),
        (None, _, Some(age)) => format!(
            "Slot {name}: its file was written {} ago; whether a client uses it, only the server says (--dsn).\n",
            seconds(age as f64)
        ),
        _ => String::new(),
    };
    let use_of_it = match (slot.active, slot.silent_seconds) {
        (Some(true), Some(silent)) if silent > 0 => {
            format!(
                "{}, which reported a position {} ago.\n",
                use_of_it.trim_end_matches(".\n"),
                seconds(silent as f64)
            )
        }
        _ => use_of_it,
    };
    let by_its_file = if slot.active.is_none() { "by its file, " } else { "" };
    let loss = match holder.safe_wal_size.map(u64::try_from) {
        Some(Ok(left)) if left > 0 => format!(
            "Slot {name}: {by_its_file}it is lost after another {} (max_slot_wal_keep_size).\n",
            bytes(left)
        ),
        Some(_) => {
            format!("Slot {name}: {by_its_file}it is lost at the next checkpoint (max_slot_wal_keep_size).\n")
        }
        None => String::new(),
    };
    let timeout = match (slot.active, holder.idle_timeout_seconds) {
        // `CanInvalidateIdleSlot` in `slot.c`.
        _ if slot.is_synced => String::new(),
        (Some(true), _) | (_, None) => String::new(),
        (_, Some(timeout)) => format!(
            "Slot {name}: {by_its_file}the first checkpoint after {} without a client invalidates it (idle_replication_slot_timeout).\n",
            seconds(timeout as f64)
        ),
    };
    use_of_it + &loss + &timeout
}

/// Returns advice about a slot that the server has invalidated: it holds no WAL, and its client fails.
fn lost_text(slot: &Slot) -> String {
    let quoted = slot.name.replace('\'', "''");
    let (name, quoted) = (harmless(&slot.name), harmless(&quoted));
    let client = match slot.is_logical {
        true => "copy its tables again (of a subscription: drop it and create it again)",
        false => {
            "let the standby get the WAL that it misses from an archive (restore_command), or make it again from a base backup"
        }
    };
    let reason = match slot.invalidation_reason.as_deref() {
        None => String::new(),
        Some("wal_removed") => {
            " because the server removed WAL that it needs (max_slot_wal_keep_size)".to_owned()
        }
        Some("idle_timeout") => {
            " because it had no client for longer than idle_replication_slot_timeout".to_owned()
        }
        Some("rows_removed") => " because rows that it needs were removed (rows_removed)".to_owned(),
        Some("wal_level_insufficient") => " because the primary's wal_level is too low for it".to_owned(),
        Some(other) => format!(" ({})", harmless(other)),
    };
    if slot.is_synced {
        // `synchronize_one_slot` in `slotsync.c`.
        return format!(
            "Slot {name}: lost{reason}; it holds nothing. The next synchronization creates it again, unless the slot of the primary is lost \
             too.\n"
        );
    }
    let state = match (slot.active, &slot.client) {
        // PostgreSQL 16 and 17 stream with a physical slot that is invalidated.
        (Some(true), Some(user)) => format!(
            "it holds nothing although {} uses it, so the server may remove WAL that this client needs next. Stop the client, drop the slot",
            harmless(user)
        ),
        _ => "it holds nothing, and its client cannot continue with it. Drop it".to_owned(),
    };
    format!(
        "Slot {name}: lost{reason}; {state} (SELECT pg_drop_replication_slot('{quoted}')), create it again, and {client}.\n"
    )
}

fn backlog_text(backlog: &Backlog) -> String {
    let share = |part: u64| {
        let percent = percent(part as f64 / backlog.bytes.max(1) as f64);
        format!("{} ({percent})", bytes(part))
    };
    let unpublished = match backlog.unpublished_bytes {
        Some(unpublished) => {
            format!(", {} of it of tables in no publication and of dropped files", share(unpublished))
        }
        None => String::new(),
    };
    format!(
        "Slot {}: of {} of WAL, {} are of its own database{unpublished}, {} of other databases, {} of none (commits, page headers, padding, shared catalogs).\n",
        harmless(&backlog.slot),
        bytes(backlog.bytes),
        share(backlog.own_database_bytes),
        share(backlog.other_databases_bytes),
        share(backlog.shared_bytes),
    )
}

fn holder_text(holder: &Holder) -> String {
    match holder.kind {
        HolderKind::Recovery => "crash recovery".to_owned(),
        HolderKind::Slot => {
            let Some(slot) = &holder.slot else { return format!("slot {}", holder.name) };
            // A table shortens a long label in the middle, so the important words come first.
            let state = match (slot.is_lost, slot.active) {
                (true, _) => "lost ",
                _ if slot.is_synced => "synchronized ",
                (_, Some(true)) => "active ",
                (_, Some(false)) => "inactive ",
                (_, None) => "",
            };
            let kind = if slot.is_logical { "logical" } else { "physical" };
            format!("{state}{kind} slot {}", holder.name)
        }
        HolderKind::Archiver => "not archived yet".to_owned(),
        HolderKind::Summarizer => "not summarised yet (summarize_wal)".to_owned(),
        HolderKind::WalKeepSize => "wal_keep_size".to_owned(),
        HolderKind::Removable => "nothing (until the next checkpoint)".to_owned(),
        HolderKind::Recycled => "files for segments to come".to_owned(),
        HolderKind::Other => holder.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use walden_format::lsn::{Lsn, SegmentSize};
    use walden_report::table::shorten;

    use super::super::{Listing, Situation};
    use super::*;
    use crate::server::ServerState;

    fn slot_holder(name: &str, active: Option<bool>) -> Holder {
        let slot = Slot {
            name: name.to_owned(),
            active,
            client: active.filter(|active| *active).map(|_| "standby1".to_owned()),
            idle_seconds: active.filter(|active| !*active).map(|_| 600),
            ..Slot::default()
        };
        Holder {
            kind: HolderKind::Slot,
            name: name.to_owned(),
            files: 1,
            bytes: 1,
            holds_bytes: 1,
            releases_bytes: 0,
            oldest_seconds: None,
            slot: Some(slot),
            safe_wal_size: None,
            idle_timeout_seconds: None,
        }
    }

    #[test]
    fn a_slots_state_is_seen_in_a_narrow_table() {
        // Remaining width of the first column at 80 columns.
        let narrow = |name, active| shorten(&holder_text(&slot_holder(name, active)), 27);
        assert_eq!(narrow("s1", Some(false)), "inactive physical slot s1");
        assert!(narrow("a_long_name_of_a_slot", Some(false)).starts_with("inactive physical "));
        assert!(narrow("a_long_name_of_a_slot", Some(true)).starts_with("active physical "));
        assert!(narrow("a_long_name_of_a_slot", None).starts_with("physical slot "));
        assert_eq!(slot_text(&slot_holder("s1", Some(false))), "Slot s1: inactive for 10 min 0 s.\n");
        assert_eq!(slot_text(&slot_holder("s1", Some(true))), "Slot s1: used by standby1.\n");
        assert_eq!(slot_text(&slot_holder("s1", None)), "");
        let mut of_file = slot_holder("s1", None);
        of_file.slot.as_mut().unwrap().idle_seconds = Some(600);
        assert!(slot_text(&of_file).starts_with("Slot s1: its file was written 10 min 0 s ago; "));
    }

    #[test]
    fn a_slots_loss_is_announced() {
        let limited = |active, left| {
            let slot = Holder { safe_wal_size: Some(left), ..slot_holder("s1", active) };
            slot_text(&slot)
        };
        let left = limited(Some(false), 1_785_320);
        assert!(
            left.ends_with("Slot s1: it is lost after another 1.8 MB (max_slot_wal_keep_size).\n"),
            "{left}"
        );
        for over in [0, -1] {
            let text = limited(Some(true), over);
            assert!(text.contains("it is lost at the next checkpoint"), "{text}");
        }
        assert!(limited(None, 1).contains("by its file, "));
        let mut lost = slot_holder("s1", Some(false));
        lost.slot.as_mut().unwrap().is_lost = true;
        let text = slot_text(&lost);
        assert!(text.contains("pg_drop_replication_slot('s1')") && text.contains("base backup"), "{text}");
        lost.slot.as_mut().unwrap().is_logical = true;
        assert!(slot_text(&lost).contains("copy its tables again"));
    }

    #[test]
    fn remedies_that_overlap_release_more_together() {
        let remedy = |alone, together| Remedy {
            releases_bytes: alone,
            releases_with_previous_bytes: together,
            text: "x".to_owned(),
        };
        assert_eq!(remedy_lines(&[remedy(5, 5)]), ["5 B: x"]);
        let lines = remedy_lines(&[remedy(5, 5), remedy(0, 5), remedy(0, 50), remedy(7, 57)]);
        assert_eq!(lines, ["5 B: x", "0 B alone: x", "0 B alone, 50 B with those above: x", "7 B: x"]);
    }

    #[test]
    fn parts_of_a_backlog_add_up() {
        let backlog = Backlog {
            slot: "s1".to_owned(),
            bytes: 100,
            own_database_bytes: 50,
            other_databases_bytes: 20,
            shared_bytes: 30,
            unpublished_bytes: None,
        };
        let text = backlog_text(&backlog);
        for part in ["50 B (50.0 %)", "20 B (20.0 %)", "30 B (30.0 %)"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn growth_is_not_known_without_finished_segments() {
        let situation = Situation {
            end: Lsn(1 << 24),
            segment_size: SegmentSize::DEFAULT,
            server: ServerState::default(),
            failures: None,
            disk: None,
            oldest_transaction: None,
        };
        let mut retention = Retention::new(&Listing::default(), &situation);
        assert!(growth(&retention).starts_with("Its growth is unknown"));
        retention.bytes_per_second = Some(1e6);
        assert!(growth(&retention).contains("checkpoints recycle"), "{}", growth(&retention));
        retention.holders.push(slot_holder("s1", None));
        assert!(growth(&retention).contains("if slot s1 has no client"), "{}", growth(&retention));
    }
}
