//! Tests the program and its crates against PostgreSQL, files of known content, damage, and every kind of
//! source.
//!
//! Tests whose requirements are missing are reported as ignored. They fail if `WALDEN_REQUIRE` names the
//! requirement (see `walden-testing`).

mod archive;
mod archive_branches;
mod archive_care;
mod archive_clone;
mod archive_clouds;
mod archive_copies;
mod archive_cost;
mod archive_encrypted;
mod archive_failing;
mod archive_faults;
mod archive_import;
mod archive_interrupted;
mod archive_key_services;
mod archive_library;
mod archive_lock;
mod archive_matrix;
mod archive_packs;
mod archive_permissions;
mod archive_prefetch;
mod archive_reset;
mod archive_s3;
mod archive_serve;
mod archive_sftp;
mod archive_spool;
mod archive_status;
mod archive_store_settings;
mod archive_unknown_versions;
mod backup_schedule;
mod base_backup_jobs;
mod base_backup_stores;
mod base_backups;
mod browser;
mod causes;
mod clock;
mod codecs;
mod compress;
mod compressed_sources;
mod connections;
mod culprits;
mod data;
mod demo;
mod diff;
mod drill_tablespaces;
mod first_steps;
mod golden;
mod groups;
mod html;
mod judge;
mod lab;
mod lab_install;
mod material;
mod oracle;
mod outputs;
mod page;
mod programs;
mod receive;
mod receive_copies;
mod redo;
mod restore;
mod restore_at_once;
mod restore_delta;
mod restore_formats;
mod restore_forward;
mod restore_settings;
mod retention;
mod rewrites;
mod robustness;
mod rows;
mod rows_complete;
mod rows_computed;
mod rows_definitions;
mod rows_large_objects;
mod rows_names;
mod rows_property;
mod savings;
mod server_log;
mod situations;
mod sources;
mod store_conformance;
mod surroundings;
mod tar_sources;
mod watch;
mod whatif;
mod whatif_settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    let modules = [
        archive::TESTS,
        archive_branches::TESTS,
        archive_care::TESTS,
        archive_clone::TESTS,
        archive_clouds::TESTS,
        archive_copies::TESTS,
        archive_encrypted::TESTS,
        archive_failing::TESTS,
        archive_cost::TESTS,
        archive_faults::TESTS,
        archive_import::TESTS,
        archive_interrupted::TESTS,
        archive_key_services::TESTS,
        archive_library::TESTS,
        archive_matrix::TESTS,
        archive_packs::TESTS,
        archive_permissions::TESTS,
        archive_prefetch::TESTS,
        archive_reset::TESTS,
        archive_lock::TESTS,
        archive_s3::TESTS,
        archive_serve::TESTS,
        archive_sftp::TESTS,
        archive_spool::TESTS,
        archive_status::TESTS,
        archive_store_settings::TESTS,
        archive_unknown_versions::TESTS,
        backup_schedule::TESTS,
        base_backup_jobs::TESTS,
        base_backup_stores::TESTS,
        base_backups::TESTS,
        causes::TESTS,
        clock::TESTS,
        codecs::TESTS,
        compress::TESTS,
        compressed_sources::TESTS,
        connections::TESTS,
        culprits::TESTS,
        data::TESTS,
        demo::TESTS,
        diff::TESTS,
        drill_tablespaces::TESTS,
        first_steps::TESTS,
        golden::TESTS,
        groups::TESTS,
        html::TESTS,
        judge::TESTS,
        lab::TESTS,
        lab_install::TESTS,
        oracle::TESTS,
        outputs::TESTS,
        page::TESTS,
        programs::TESTS,
        receive::TESTS,
        receive_copies::TESTS,
        redo::TESTS,
        restore::TESTS,
        restore_at_once::TESTS,
        restore_delta::TESTS,
        restore_formats::TESTS,
        restore_forward::TESTS,
        restore_settings::TESTS,
        retention::TESTS,
        rewrites::TESTS,
        robustness::TESTS,
        rows::TESTS,
        rows_complete::TESTS,
        rows_computed::TESTS,
        rows_definitions::TESTS,
        rows_large_objects::TESTS,
        rows_names::TESTS,
        rows_property::TESTS,
        savings::TESTS,
        server_log::TESTS,
        situations::TESTS,
        sources::TESTS,
        store_conformance::TESTS,
        surroundings::TESTS,
        tar_sources::TESTS,
        watch::TESTS,
        whatif::TESTS,
        whatif_settings::TESTS,
    ];
    walden_testing::run(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it"), &modules)
}
