//! A server's settings, from its files or from the server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use walden_source::configuration::Configuration;

/// Settings by name, in the units of `pg_settings` as far as Walden needs them: `300 s`, `1024 MB`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings(BTreeMap<String, String>);

/// A setting that Walden uses, with the unit of `pg_settings` and the default value.
struct Known {
    name: &'static str,
    unit: Unit,
    default: &'static str,
    /// The default before a major version.
    earlier: Option<(u32, &'static str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Megabytes,
    None,
}

#[rustfmt::skip]
const KNOWN: [Known; 15] = [
    Known { name: "archive_command",              unit: Unit::None,      default: "", earlier: None },
    Known { name: "archive_library",              unit: Unit::None,      default: "", earlier: None },
    Known { name: "archive_mode",                 unit: Unit::None,      default: "off", earlier: None },
    Known { name: "archive_timeout",              unit: Unit::Seconds,   default: "0 s", earlier: None },
    Known { name: "checkpoint_completion_target", unit: Unit::None,      default: "0.9", earlier: Some((14, "0.5")) },
    Known { name: "checkpoint_timeout",           unit: Unit::Seconds,   default: "300 s", earlier: None },
    Known { name: "full_page_writes",             unit: Unit::None,      default: "on", earlier: None },
    Known { name: "idle_replication_slot_timeout", unit: Unit::Seconds,  default: "0 s", earlier: None },
    Known { name: "max_slot_wal_keep_size",       unit: Unit::Megabytes, default: "-1 MB", earlier: None },
    Known { name: "max_wal_size",                 unit: Unit::Megabytes, default: "1024 MB", earlier: None },
    Known { name: "min_wal_size",                 unit: Unit::Megabytes, default: "80 MB", earlier: None },
    Known { name: "summarize_wal",                unit: Unit::None,      default: "off", earlier: None },
    Known { name: "wal_keep_size",                unit: Unit::Megabytes, default: "0 MB", earlier: None },
    Known { name: "wal_recycle",                  unit: Unit::None,      default: "on", earlier: None },
    Known { name: "wal_level",                    unit: Unit::None,      default: "replica", earlier: Some((10, "minimal")) },
];

impl Settings {
    /// Reads the settings of a data directory, with the defaults of its version. An unreadable file sets
    /// nothing.
    pub fn read_data_directory(data: &Path) -> Settings {
        Settings::with_defaults(&Configuration::read(data), data)
    }

    /// Returns the settings of a data directory's files, with the defaults of its version.
    pub fn with_defaults(found: &Configuration, data: &Path) -> Settings {
        let version = version_of(data);
        let mut settings = BTreeMap::new();
        for Known { name, unit, default, earlier } in KNOWN {
            let earlier = earlier.filter(|(before, _)| version.is_some_and(|version| version < *before));
            let default = earlier.map_or(default, |(_, default)| default);
            let value = found.get(name).and_then(|value| normalised(value, unit));
            settings.insert(name.to_owned(), value.unwrap_or_else(|| default.to_owned()));
        }
        Settings(settings)
    }

    /// Returns the query for the settings that Walden uses: name, value and unit.
    pub(crate) fn query() -> String {
        let names: Vec<String> = KNOWN.iter().map(|known| format!("'{}'", known.name)).collect();
        let names = names.join(", ");
        format!("SELECT name, setting, coalesce(unit, '') FROM pg_settings WHERE name IN ({names})")
    }

    /// Returns settings in the format of `pg_settings`.
    pub fn from_server(settings: &BTreeMap<String, String>) -> Settings {
        Settings(settings.clone())
    }

    /// Sets a setting, as in `postgresql.conf`. Returns whether the value is valid.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let known = KNOWN.iter().find(|known| known.name == name);
        let value = known.and_then(|known| normalised(value, known.unit));
        value.map(|value| self.0.insert(name.to_owned(), value)).is_some()
    }

    /// Sets a setting in the format of `pg_settings`: a number and a separate unit, which may start with a
    /// number (`64` of `16MB`).
    pub fn set_of_server(&mut self, name: &str, value: &str, unit: &str) {
        let value = if unit.is_empty() { value.to_owned() } else { format!("{value} {unit}") };
        self.0.insert(name.to_owned(), value);
    }

    /// Returns all settings.
    pub fn all(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Returns the text of a setting.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns a time setting in seconds, or `None` if it is not known or negative.
    pub fn seconds(&self, name: &str) -> Option<u64> {
        let (number, unit) = self.get(name)?.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match unit {
            "s" => Some(number),
            "min" => number.checked_mul(60),
            _ => None,
        }
    }

    /// Returns a size setting in bytes, or `None` if it is not known or negative.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let (number, unit) = self.get(name)?.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        // Before 10, the unit of `max_wal_size` was a segment, as in `64 16MB`.
        let digits = unit.find(|c: char| !c.is_ascii_digit())?;
        let scale = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
        let factor: u64 = match &unit[digits..] {
            "kB" => 1 << 10,
            "MB" => 1 << 20,
            "GB" => 1 << 30,
            _ => return None,
        };
        number.checked_mul(factor)?.checked_mul(scale)
    }
}

/// Returns the major version of a data directory; 9 for all versions of 9.
fn version_of(data: &Path) -> Option<u32> {
    let text = fs::read_to_string(data.join("PG_VERSION")).ok()?;
    text.trim().split('.').next()?.parse().ok()
}

/// Converts a value to the unit of `pg_settings`, or returns `None` if it is invalid.
fn normalised(value: &str, unit: Unit) -> Option<String> {
    let value = value.trim();
    if unit == Unit::None {
        return Some(value.to_owned());
    }
    let end = value.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(value.len());
    let number: f64 = value[..end].parse().ok()?;
    let suffix = value[end..].trim();
    // In the unit of the setting.
    let scale = match (unit, suffix) {
        (_, "") | (Unit::Seconds, "s") | (Unit::Megabytes, "MB") => 1.0,
        (Unit::Seconds, "us") => 1e-6,
        (Unit::Seconds, "ms") => 1e-3,
        (Unit::Seconds, "min") => 60.0,
        (Unit::Seconds, "h") => 3600.0,
        (Unit::Seconds, "d") => 86_400.0,
        (Unit::Megabytes, "B") => 1.0 / 1_048_576.0,
        (Unit::Megabytes, "kB") => 1.0 / 1024.0,
        (Unit::Megabytes, "GB") => 1024.0,
        (Unit::Megabytes, "TB") => 1_048_576.0,
        _ => return None,
    };
    let name = if unit == Unit::Seconds { "s" } else { "MB" };
    Some(format!("{} {name}", (number * scale).round() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_get_the_units_of_pg_settings() {
        let of = |value, unit| normalised(value, unit).unwrap_or_default();
        assert_eq!(of("2GB", Unit::Megabytes), "2048 MB");
        assert_eq!(of("64", Unit::Megabytes), "64 MB");
        assert_eq!(of("-1", Unit::Megabytes), "-1 MB");
        assert_eq!(of("5min", Unit::Seconds), "300 s");
        assert_eq!(of("0.5 h", Unit::Seconds), "1800 s");
        assert_eq!(normalised("a lot", Unit::Megabytes), None);
        assert_eq!(normalised("5 parsecs", Unit::Seconds), None);
    }

    #[test]
    fn files_override_each_other_in_the_servers_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "postgresql.conf",
            "max_wal_size = 2GB\ninclude 'more.conf'\ninclude_dir = 'conf.d'\ninclude 'postgresql.conf'\n",
        );
        write("more.conf", "checkpoint_timeout = 10min\nmin_wal_size=1GB\n");
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        write("conf.d/1.conf", "checkpoint_timeout = 15min\n");
        write("conf.d/2.conf.off", "checkpoint_timeout = 1min\n");
        write("postgresql.auto.conf", "# by ALTER SYSTEM\nmin_wal_size = '160MB'\n");
        write(
            "postmaster.opts",
            "/usr/bin/postgres \"-D\" \"/data\" \"-c\" \"wal_keep_size=1GB\" \"--archive-mode=on\"\n",
        );
        let settings = Settings::read_data_directory(folder.path());
        assert_eq!(settings.bytes("max_wal_size"), Some(2 << 30));
        assert_eq!(settings.get("checkpoint_timeout"), Some("900 s"));
        assert_eq!(settings.bytes("min_wal_size"), Some(160 << 20));
        assert_eq!(settings.bytes("wal_keep_size"), Some(1 << 30));
        assert_eq!(settings.get("archive_mode"), Some("on"));
        assert_eq!(settings.bytes("max_slot_wal_keep_size"), None);
    }

    #[test]
    fn defaults_are_those_of_the_version() {
        let of = |version: Option<&str>| {
            let folder = tempfile::tempdir().unwrap();
            if let Some(version) = version {
                fs::write(folder.path().join("PG_VERSION"), format!("{version}\n")).unwrap();
            }
            let settings = Settings::read_data_directory(folder.path());
            let get = |name| settings.get(name).unwrap().to_owned();
            (get("checkpoint_completion_target"), get("wal_level"))
        };
        let pair = |target: &str, level: &str| (target.to_owned(), level.to_owned());
        assert_eq!(of(Some("9.6")), pair("0.5", "minimal"));
        assert_eq!(of(Some("10")), pair("0.5", "replica"));
        assert_eq!(of(Some("13")), pair("0.5", "replica"));
        assert_eq!(of(Some("14")), pair("0.9", "replica"));
        assert_eq!(of(None), pair("0.9", "replica"));
    }

    #[test]
    fn units_of_a_server_may_have_numbers() {
        let mut settings = Settings::default();
        // As in 9.5 and 9.6, where the unit is a segment, and as in later versions.
        settings.set_of_server("max_wal_size", "64", "16MB");
        settings.set_of_server("min_wal_size", "80", "MB");
        settings.set_of_server("archive_mode", "on", "");
        assert_eq!(settings.bytes("max_wal_size"), Some(1 << 30));
        assert_eq!(settings.bytes("min_wal_size"), Some(80 << 20));
        assert_eq!(settings.get("archive_mode"), Some("on"));
    }
}
