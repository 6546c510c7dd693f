//! The settings of recovery that a new server does not take from the backup.

use std::path::Path;

use serde::Serialize;
use walden_format::payload::xlog::ParameterChange;
use walden_source::configuration::Configuration;
use walden_source::datadir::SharedSizes;

use crate::base::BaseBackup;

/// A setting with the major versions that have it, and the value with which it has no effect.
struct Disabled {
    name: &'static str,
    versions: std::ops::RangeInclusive<u32>,
    value: &'static str,
}

/// Settings with an effect in recovery that belongs to the original: commands that remove files or report
/// its promotion, a delay, a file that the startup process removes, and a worker that reads slots of the
/// primary (`xlogrecovery.c`, `slotsync.c`). A server without `standby.signal` ignores `primary_conninfo`
/// otherwise.
#[rustfmt::skip]
const DISABLED: [Disabled; 5] = [
    Disabled { name: "archive_cleanup_command",  versions: 14..=19, value: "" },
    Disabled { name: "recovery_end_command",     versions: 14..=19, value: "" },
    Disabled { name: "recovery_min_apply_delay", versions: 14..=19, value: "0" },
    Disabled { name: "promote_trigger_file",     versions: 14..=15, value: "" },
    Disabled { name: "sync_replication_slots",   versions: 17..=19, value: "off" },
];

/// The settings of a new server that differ from those of the backup.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct NewSettings {
    /// Settings of the backup that are disabled.
    pub disabled: Vec<&'static str>,
    /// Settings that are lower in the backup than recovery requires.
    pub raised: Vec<RaisedSetting>,
    /// `data_directory` of the backup, which has precedence over the folder that a server is started on.
    pub data_directory: Option<String>,
}

/// A setting with the value that recovery requires (`CheckRequiredParameterValues` in `xlogrecovery.c`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RaisedSetting {
    /// Name of the setting.
    pub name: &'static str,
    /// The required value.
    pub value: u32,
    /// The value in the backup, or PostgreSQL's default; `None` if the backup has no `postgresql.conf`: the
    /// setting is not written then.
    pub found: Option<u32>,
}

impl NewSettings {
    /// Compares the configuration of a backup in plain format with what recovery requires.
    pub(crate) fn of_backup(base: &BaseBackup, required: SharedSizes) -> Option<NewSettings> {
        let is_plain = base.path.join("PG_VERSION").is_file();
        is_plain.then(|| NewSettings::find(&base.path, base.major(), required))
    }

    /// Compares the configuration in a data directory with what recovery requires.
    pub(crate) fn find(data: &Path, major: u32, required: SharedSizes) -> NewSettings {
        let configuration = Configuration::read_folder(data);
        let is_effective = |setting: &&Disabled| {
            let value = configuration.get(setting.name).map(str::trim);
            setting.versions.contains(&major) && value.is_some_and(|value| value != setting.value)
        };
        let raised = SIZES.iter().filter_map(|(name, default, size)| {
            let value = size(&required);
            let configured = || {
                let configured = configuration.get(name).and_then(|value| value.trim().parse().ok());
                configured.unwrap_or(*default)
            };
            let found = configuration.has_main_file().then(configured);
            found.is_none_or(|found| found < value).then_some(RaisedSetting { name, value, found })
        });
        NewSettings {
            disabled: DISABLED.iter().filter(is_effective).map(|setting| setting.name).collect(),
            raised: raised.collect(),
            data_directory: configuration.get("data_directory").map(str::to_owned),
        }
    }

    /// Returns the names and values to write to `postgresql.auto.conf`. A `postgresql.conf` that is added
    /// later may have settings that are disabled.
    pub(crate) fn lines(&self, major: u32) -> impl Iterator<Item = (&'static str, String)> {
        let disabled = DISABLED.iter().filter(move |setting| setting.versions.contains(&major));
        let raised = self.raised.iter().filter(|setting| setting.found.is_some());
        disabled
            .map(|setting| (setting.name, setting.value.to_owned()))
            .chain(raised.map(|setting| (setting.name, setting.value.to_string())))
    }
}

type Size = fn(&SharedSizes) -> u32;

/// The settings that recovery requires, with the lowest default of any version.
const SIZES: [(&str, u32, Size); 5] = [
    ("max_connections", 100, |sizes| sizes.max_connections),
    ("max_worker_processes", 8, |sizes| sizes.max_worker_processes),
    ("max_wal_senders", 10, |sizes| sizes.max_wal_senders),
    ("max_prepared_transactions", 0, |sizes| sizes.max_prepared_transactions),
    ("max_locks_per_transaction", 64, |sizes| sizes.max_locks_per_transaction),
];

/// Returns the largest value of each setting.
pub(crate) fn largest(one: SharedSizes, other: SharedSizes) -> SharedSizes {
    SharedSizes {
        max_connections: one.max_connections.max(other.max_connections),
        max_worker_processes: one.max_worker_processes.max(other.max_worker_processes),
        max_wal_senders: one.max_wal_senders.max(other.max_wal_senders),
        max_prepared_transactions: one.max_prepared_transactions.max(other.max_prepared_transactions),
        max_locks_per_transaction: one.max_locks_per_transaction.max(other.max_locks_per_transaction),
    }
}

/// Returns the settings in a record.
pub(crate) fn sizes_of(change: &ParameterChange) -> SharedSizes {
    let size = |value: i32| value.max(0).cast_unsigned();
    SharedSizes {
        max_connections: size(change.max_connections),
        max_worker_processes: size(change.max_worker_processes),
        max_wal_senders: size(change.max_wal_senders.unwrap_or_default()),
        max_prepared_transactions: size(change.max_prepared_transactions),
        max_locks_per_transaction: size(change.max_locks_per_transaction),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const REQUIRED: SharedSizes = SharedSizes {
        max_connections: 150,
        max_worker_processes: 8,
        max_wal_senders: 10,
        max_prepared_transactions: 5,
        max_locks_per_transaction: 64,
    };

    fn raised(name: &'static str, value: u32, found: Option<u32>) -> RaisedSetting {
        RaisedSetting { name, value, found }
    }

    #[test]
    fn lower_settings_are_raised_and_those_of_the_original_disabled() {
        let data = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(data.path().join(name), text).unwrap();
        let find = |major| NewSettings::find(data.path(), major, REQUIRED);
        // The configuration is elsewhere: everything that is required is named, and nothing is written.
        let found = find(15);
        assert_eq!(found.raised.len(), 5);
        assert!(found.raised.iter().all(|setting| setting.found.is_none()));
        let names = |major| find(major).lines(major).map(|(name, _)| name).collect::<Vec<_>>();
        let always = ["archive_cleanup_command", "recovery_end_command", "recovery_min_apply_delay"];
        assert_eq!(names(16), always);
        assert_eq!(names(15)[3..], ["promote_trigger_file"]);
        assert_eq!(names(17)[3..], ["sync_replication_slots"]);
        // PostgreSQL's defaults, and values in each file.
        write("postgresql.conf", "archive_cleanup_command = 'rm %r'\nrecovery_end_command = ''\n");
        let both =
            [raised("max_connections", 150, Some(100)), raised("max_prepared_transactions", 5, Some(0))];
        assert_eq!(find(16).raised, both);
        write("postgresql.auto.conf", "max_connections = 200\nrecovery_min_apply_delay = '1h'\n");
        let found = find(16);
        assert_eq!(found.raised, both[1..]);
        assert_eq!(found.disabled, ["archive_cleanup_command", "recovery_min_apply_delay"]);
        assert_eq!(found.lines(16).last(), Some(("max_prepared_transactions", "5".to_owned())));
        assert_eq!(found.data_directory, None);
    }

    #[test]
    fn the_largest_value_of_each_setting_counts() {
        let other = SharedSizes { max_connections: 20, max_wal_senders: 30, ..REQUIRED };
        let expected = SharedSizes { max_wal_senders: 30, ..REQUIRED };
        assert_eq!(largest(REQUIRED, other), expected);
        assert_eq!(largest(other, REQUIRED), expected);
    }
}
