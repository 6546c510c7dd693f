//! Remedies for a large `pg_wal`, and how much each releases.

use crate::process::ServerProcess;
use crate::server::Slot;

use super::{
    Holder, HolderKind, Listing, OpenTransaction, PREFETCHED, Release, Remedy, Situation, TransactionOwner,
};

/// Lists the remedies in the order in which to apply them.
pub(super) fn list(
    holders: &[Holder],
    releases: &[Release],
    listing: &Listing,
    situation: &Situation,
) -> Vec<Remedy> {
    let of_kind = |kind| holders.iter().find(|holder| holder.kind == kind);
    let at_once = [HolderKind::Removable, HolderKind::Recovery]
        .map(|kind| of_kind(kind).map_or(0, |holder| holder.releases_bytes))
        .iter()
        .sum();
    let mut remedies = Vec::from_iter((at_once > 0).then(|| Remedy {
        releases_bytes: at_once,
        releases_with_previous_bytes: at_once,
        text: after_start(&checkpoint_text(situation), situation.server.process),
    }));
    let mut released = at_once;
    for release in releases {
        let is_it = |holder: &&Holder| holder.kind == release.kind && holder.name == release.name;
        let Some(holder) = holders.iter().find(is_it) else { continue };
        let Some(text) = holder_text(holder, situation) else { continue };
        released = at_once + release.bytes;
        remedies.push(Remedy {
            releases_bytes: holder.releases_bytes,
            releases_with_previous_bytes: released,
            text,
        });
    }
    // Holders that so far hold only the current segment, but will hold all later segments.
    let holds_later = |holder: &&Holder| {
        let is_listed = releases.iter().any(|one| one.kind == holder.kind && one.name == holder.name);
        !is_listed && holder.is_growing(situation)
    };
    for holder in holders.iter().filter(holds_later) {
        remedies.extend(holder_text(holder, situation).map(|text| Remedy {
            releases_bytes: holder.releases_bytes,
            releases_with_previous_bytes: released,
            text,
        }));
    }
    remedies.extend(recycled(holders, released, situation));
    let before = remedies.last().map_or(0, |last| last.releases_with_previous_bytes);
    remedies.extend(prefetched(holders, listing, before, situation));
    remedies
}

/// Returns the text for a checkpoint that follows a remedy.
///
/// On a standby, CHECKPOINT makes a restart point, which needs a checkpoint of the primary that was replayed
/// after the last restart point (`CreateRestartPoint` in `xlog.c`).
fn checkpoint(situation: &Situation) -> &'static str {
    match situation.server.is_standby {
        false => "run CHECKPOINT",
        true => {
            "run CHECKPOINT on the primary (and SELECT pg_switch_wal() if this standby does not stream), and once it is replayed, \
             CHECKPOINT on this standby"
        }
    }
}

/// Returns the remedy for a folder of prefetched segments. The folder may be removed at any time: segments
/// that it lacks come from the archive.
fn prefetched(holders: &[Holder], listing: &Listing, before: u64, situation: &Situation) -> Option<Remedy> {
    let holder = holders.iter().find(|holder| holder.name == PREFETCHED)?;
    let mut folders: Vec<&str> = listing
        .files
        .iter()
        .filter_map(|file| Some(file.name.split_once('/')?.0))
        .filter(|folder| folder.starts_with("walden-prefetch-"))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    (holder.bytes >= situation.segment_size.bytes()).then(|| Remedy {
        releases_bytes: holder.bytes,
        releases_with_previous_bytes: before + holder.bytes,
        text: format!(
            "if the server does not restore from the archive now, remove {} in pg_wal (rm -r): segments that walden archive get has fetched \
             ahead, and fetches again if the server requests them",
            folders.join(" and ")
        ),
    })
}

/// Returns the remedy for files that have no holder.
///
/// A server computes the oldest position of its slots again only if the `catalog_xmin` of a logical slot
/// advances (`LogicalConfirmReceivedLocation` in `logical.c`), so checkpoints may keep files that the slot
/// does not need.
fn checkpoint_text(situation: &Situation) -> String {
    let text = match situation.server.is_standby {
        false => "CHECKPOINT removes or recycles them".to_owned(),
        true => format!("{}, which removes or recycles them", checkpoint(situation)),
    };
    let Some(slot) = situation.server.slots.iter().find(|slot| slot.is_logical && !slot.is_lost) else {
        return text;
    };
    // A standby cannot write WAL, and the client of a synchronized slot is connected to the primary.
    let (place, again) = match situation.server.is_standby {
        false => ("", "run CHECKPOINT"),
        true => ("on the primary, ", "run both CHECKPOINTs"),
    };
    format!(
        "{text}. If it does not, the server still uses an older position of slot {}: {place}run SELECT pg_logical_emit_message(true, \
         'walden', '') and CHECKPOINT, let the slot's client confirm the message, and {again} again",
        slot.name
    )
}

/// Returns the remedy for files that wait for new WAL. The server does not remove these files: it writes to
/// them, and checkpoints remove or rename them again afterwards. Files up to `min_wal_size` need no remedy.
fn recycled(holders: &[Holder], released: u64, situation: &Situation) -> Option<Remedy> {
    let recycled = holders.iter().find(|holder| holder.kind == HolderKind::Recycled)?;
    let kept = situation.server.settings.bytes("min_wal_size").unwrap_or(0);
    if situation.server.is_standby || recycled.bytes <= kept {
        return None;
    }
    let keeps_new_wal = |holder: &Holder| {
        let is_unused = |slot: &Slot| !slot.is_lost && slot.active != Some(true);
        holder.slot.as_ref().is_some_and(is_unused) || holder.is_growing(situation)
    };
    let is_kept_again = holders.iter().any(keeps_new_wal);
    let text = format!(
        "to remove the files for segments to come, run ALTER SYSTEM SET wal_recycle = off; SELECT pg_reload_conf(); SELECT \
         pg_logical_emit_message(false, 'walden', ''), pg_switch_wal() FROM generate_series(1, {}); CHECKPOINT (after the archiver has \
         archived the segments); ALTER SYSTEM RESET wal_recycle; SELECT pg_reload_conf(). This fills the files with WAL that has no \
         content, which is archived and sent to standbys too. A lower max_wal_size keeps fewer of them in future",
        recycled.files
    );
    Some(Remedy {
        releases_bytes: if is_kept_again { 0 } else { recycled.bytes },
        releases_with_previous_bytes: released + recycled.bytes,
        text: after_start(&text, situation.server.process),
    })
}

/// Adds a start of the server to a remedy that needs a running one.
fn after_start(what: &str, process: ServerProcess) -> String {
    match process {
        ServerProcess::Unknown | ServerProcess::Running => what.to_owned(),
        ServerProcess::ShutDown | ServerProcess::Crashed => {
            format!("start the server; after its start, {what}")
        }
        ServerProcess::ProcessMissing(_) => format!("{what} (if the server does not run, after its start)"),
    }
}

/// Returns the remedy for a holder.
fn holder_text(holder: &Holder, situation: &Situation) -> Option<String> {
    let process = situation.server.process;
    let is_down = matches!(process, ServerProcess::ShutDown | ServerProcess::Crashed);
    let checkpoint = checkpoint(situation);
    let text = match (holder.kind, &holder.slot) {
        (HolderKind::Slot, Some(slot)) => slot_text(slot, situation, is_down),
        (HolderKind::Archiver, _) => archiver_text(situation),
        (HolderKind::Summarizer, _) if holder.is_growing(situation) => {
            format!(
                "the WAL summarizer does not continue: the server's log says why. The last resort: ALTER SYSTEM SET summarize_wal = off, \
                 reload, and {checkpoint}; the next backup must then be a full one"
            )
        }
        (HolderKind::Summarizer, _) => {
            format!("wait until the WAL summarizer reaches the last checkpoint, and {checkpoint}")
        }
        // The setting can be changed while the server is down.
        (HolderKind::WalKeepSize, _) if is_down && !situation.server.is_standby => {
            let text = "lower wal_keep_size and start the server: the first checkpoint after its start removes or recycles them";
            return Some(text.to_owned());
        }
        (HolderKind::WalKeepSize, _) => format!("lower wal_keep_size, reload, and {checkpoint}"),
        _ => return None,
    };
    Some(after_start(&text, process))
}

fn slot_text(slot: &Slot, situation: &Situation, is_down: bool) -> String {
    let name = slot.name.replace('\'', "''");
    let checkpoint = checkpoint(situation);
    let statement = format!("SELECT pg_drop_replication_slot('{name}')");
    let drop = format!("{statement}, and {checkpoint}");
    if slot.is_synced {
        // `ReplicationSlotDrop` in `slot.c` refuses to drop it here, even if sync_replication_slots is off.
        return format!(
            "slot {name} is synchronized from the primary: let its client confirm there, or drop the slot there: {statement}. Wait until \
             this standby has synchronized that (if sync_replication_slots is off, run SELECT pg_sync_replication_slots() here), and \
             {checkpoint}"
        );
    }
    if let Some(transaction) = situation.transaction_of(slot) {
        let end = end_text(transaction);
        return match slot.active {
            Some(false) => {
                format!("{end}; then let the client of slot {name} come back and confirm, and {checkpoint}")
            }
            _ => format!("{end}; then let the client of slot {name} confirm, and {checkpoint}"),
        };
    }
    match slot.active {
        None if is_down => format!("let the client of slot {name} come back, or drop the slot: {drop}"),
        None => format!(
            "if slot {name} has no client (--dsn asks the server), let it come back, or drop the slot: {drop}"
        ),
        Some(true) if situation.is_silent(slot) => format!(
            "the client of slot {name} is connected and does not report a position: resume or restart it, let it catch up, and \
             {checkpoint}. Without it, end its connection and drop the slot: {drop}"
        ),
        Some(true) => format!("let the client of slot {name} catch up (it is connected), and {checkpoint}"),
        Some(false) => format!("let the client of slot {name} come back, or drop it: {drop}"),
    }
}

/// Describes how to end a transaction for which a slot waits.
fn end_text(transaction: &OpenTransaction) -> String {
    match &transaction.owner {
        // The identifier is not UTF-8, so no statement of this program can contain it.
        TransactionOwner::Prepared(prepared) if prepared.contains(char::REPLACEMENT_CHARACTER) => {
            format!(
                "end the prepared transaction '{prepared}' in its database, as pg_prepared_xacts names it"
            )
        }
        TransactionOwner::Prepared(prepared) => {
            let quoted = prepared.replace('\'', "''");
            format!(
                "end the prepared transaction '{quoted}' in its database: COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}'"
            )
        }
        TransactionOwner::Session(pid) => {
            format!(
                "end the transaction of process {pid}: COMMIT in its session, or SELECT pg_terminate_backend({pid})"
            )
        }
    }
}

fn archiver_text(situation: &Situation) -> String {
    if situation.is_archiving_unset() {
        return format!(
            "set archive_command or archive_library and reload: both are empty, so the server keeps the files and tries nothing. Once they \
             are archived, {}",
            checkpoint(situation)
        );
    }
    let get = |name| situation.server.settings.get(name).filter(|value| !value.is_empty());
    let what = match (get("archive_library"), get("archive_command")) {
        (Some(library), _) => format!("archive_library = '{library}'"),
        (None, Some(command)) => format!("archive_command = '{command}'"),
        (None, None) => "archive_command or archive_library".to_owned(),
    };
    if situation.failures.as_ref().is_some_and(|failures| failures.is_missing) {
        return format!(
            "repair archiving ({what}): the server has no archiver process. Its log says why, for example a library that is not installed; \
             the server starts the process again within a minute. Once the files are archived, {}",
            checkpoint(situation)
        );
    }
    format!(
        "repair or speed up archiving ({what}): the server's log says why it fails; if it says nothing, the command hangs, and ps shows it \
         as a child of \"archiver archiving FILE\". Once the files are archived, {}",
        checkpoint(situation)
    )
}
