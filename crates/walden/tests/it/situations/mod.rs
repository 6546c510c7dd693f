//! Outages from public trackers, each on a real server: the holder of the WAL, Walden's answer, and the
//! effect of its remedy.
//!
//! A file describes one situation. Its first line names the report; the report's settings and volumes are
//! scaled to segments of 1 MB. A remedy is carried out, and the bytes that it promised are compared with
//! those that left `pg_wal`.
//!
//! Further reports have tests elsewhere: pgBackRest issue 2537 (`drill_tablespaces`), a stale position of a
//! slot (`retention`), clones and forks (`archive_clone`), causes of a failing archiver (`archive_failing`).

mod archive_command_fails;
mod archive_command_hangs;
mod archive_command_is_true;
mod archive_command_unset;
mod archiver_slow;
mod archiving_turned_off;
mod busy_database_beside_a_quiet_one;
mod checkpoint_takes_long;
mod client_of_slot_returns;
mod client_of_slot_silent;
mod client_of_slot_slow;
mod file_system_full;
mod files_do_not_show_clients;
mod files_recycled_after_load;
mod inactive_logical_slot;
mod inactive_physical_slot;
mod library_missing_in_recovery;
mod many_partitions_dropped;
mod nothing_archived_yet;
mod partitions_published_by_root;
mod password_in_arguments;
mod scene;
mod secret_in_configuration;
mod server_down_with_full_queue;
mod slot_behind_prepared_transaction;
mod slot_behind_session;
mod slot_dropped_before_checkpoint;
mod slot_idle_for_too_long;
mod slot_lost;
mod slot_on_standby;
mod slot_synchronized;
mod slot_unreserved;
mod slots_of_two_replicas;
mod standby_keeps_marks;
mod summarizer_behind;
mod summarizer_stuck;
mod tables_rewritten;
mod wal_keep_size_large;
mod wal_keep_size_of_stopped_server;

use walden_testing::{Body, Outcome, Test};

const fn on(name: &'static str, servers: &'static [u32], body: fn(u32) -> Outcome) -> Test {
    Test { name, body: Body::OnServers(servers, body), is_slow: false }
}

/// The situations, with the versions of PostgreSQL that differ in them.
#[rustfmt::skip]
pub const TESTS: &[Test] = &[
    on("it::situations::archive_command_fails", &[15, 18], archive_command_fails::run),
    on("it::situations::archive_command_hangs", &[15], archive_command_hangs::run),
    on("it::situations::archive_command_is_true", &[15], archive_command_is_true::run),
    on("it::situations::archive_command_unset", &[15, 19], archive_command_unset::run),
    on("it::situations::archiver_slow", &[15], archiver_slow::run),
    on("it::situations::archiving_turned_off", &[15], archiving_turned_off::run),
    on("it::situations::busy_database_beside_a_quiet_one", &[15], busy_database_beside_a_quiet_one::run),
    on("it::situations::checkpoint_takes_long", &[15, 19], checkpoint_takes_long::run),
    on("it::situations::client_of_slot_returns", &[15], client_of_slot_returns::run),
    on("it::situations::client_of_slot_silent", &[15, 19], client_of_slot_silent::run),
    on("it::situations::client_of_slot_slow", &[15], client_of_slot_slow::run),
    on("it::situations::file_system_full", &[15], file_system_full::run),
    on("it::situations::files_do_not_show_clients", &[15, 19], files_do_not_show_clients::run),
    on("it::situations::files_recycled_after_load", &[15, 18], files_recycled_after_load::run),
    on("it::situations::inactive_logical_slot", &[15], inactive_logical_slot::run),
    on("it::situations::inactive_physical_slot", &[15, 19], inactive_physical_slot::run),
    on("it::situations::library_missing_in_recovery", &[15], library_missing_in_recovery::run),
    on("it::situations::many_partitions_dropped", &[15, 19], many_partitions_dropped::run),
    on("it::situations::nothing_archived_yet", &[15], nothing_archived_yet::run),
    on("it::situations::partitions_published_by_root", &[15, 18], partitions_published_by_root::run),
    on("it::situations::password_in_arguments", &[15], password_in_arguments::run),
    on("it::situations::secret_in_configuration", &[15], secret_in_configuration::run),
    on("it::situations::server_down_with_full_queue", &[15], server_down_with_full_queue::run),
    on("it::situations::slot_behind_prepared_transaction", &[15, 19], slot_behind_prepared_transaction::run),
    on("it::situations::slot_behind_session", &[15], slot_behind_session::run),
    on("it::situations::slot_dropped_before_checkpoint", &[15, 18], slot_dropped_before_checkpoint::run),
    on("it::situations::slot_idle_for_too_long", &[18, 19], slot_idle_for_too_long::run),
    on("it::situations::slot_lost", &[15, 18], slot_lost::run),
    on("it::situations::slot_on_standby", &[15, 18], slot_on_standby::run),
    on("it::situations::slot_synchronized", &[17, 19], slot_synchronized::run),
    on("it::situations::slot_unreserved", &[15], slot_unreserved::run),
    on("it::situations::slots_of_two_replicas", &[15], slots_of_two_replicas::run),
    on("it::situations::standby_keeps_marks", &[15], standby_keeps_marks::run),
    on("it::situations::summarizer_behind", &[18, 19], summarizer_behind::run),
    on("it::situations::summarizer_stuck", &[18, 19], summarizer_stuck::run),
    on("it::situations::tables_rewritten", &[15, 18], tables_rewritten::run),
    on("it::situations::wal_keep_size_large", &[15, 19], wal_keep_size_large::run),
    on("it::situations::wal_keep_size_of_stopped_server", &[15], wal_keep_size_of_stopped_server::run),
];
