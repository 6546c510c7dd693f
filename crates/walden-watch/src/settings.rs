//! Reads a server's settings from its files: `postgresql.conf` and the files that it includes,
//! `postgresql.auto.conf`, and the command line in `postmaster.opts`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum depth of nested includes.
const MAX_DEPTH: u32 = 10;

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
        let found = values_in_files(data);
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

/// Returns a setting of a data directory or a base backup from its files, or `None` if they do not set it or
/// set it to an empty string.
pub fn value_in_files(data: &Path, name: &str) -> Option<String> {
    values_in_files(data).remove(name).filter(|value| !value.is_empty())
}

/// Returns the last value of each setting in a data directory's files.
fn values_in_files(data: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let options = command_line(&fs::read_to_string(data.join("postmaster.opts")).unwrap_or_default());
    let main = options.get("config_file").map_or_else(|| data.join("postgresql.conf"), PathBuf::from);
    read_file(&main, MAX_DEPTH, &mut found);
    read_file(&data.join("postgresql.auto.conf"), MAX_DEPTH, &mut found);
    found.extend(options);
    found
}

/// Returns the major version of a data directory; 9 for all versions of 9.
fn version_of(data: &Path) -> Option<u32> {
    let text = fs::read_to_string(data.join("PG_VERSION")).ok()?;
    text.trim().split('.').next()?.parse().ok()
}

/// Parses the options `-c NAME=VALUE` and `--NAME=VALUE` of the server's command line.
fn command_line(text: &str) -> BTreeMap<String, String> {
    let mut words: Vec<String> = Vec::new();
    // The file quotes each argument.
    for (index, part) in text.trim().split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    let mut found = BTreeMap::new();
    let mut is_value = false;
    for word in words {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => None,
            Some(setting) => Some(setting),
            None if is_value => Some(word.as_str()),
            None => None,
        };
        is_value = word == "-c";
        if let Some((name, value)) = setting.and_then(|setting| setting.split_once('=')) {
            found.insert(name.trim().to_ascii_lowercase().replace('-', "_"), value.trim().to_owned());
        }
    }
    found
}

fn read_file(path: &Path, depth: u32, found: &mut BTreeMap<String, String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let Ok(text) = fs::read_to_string(path) else { return };
    let folder = path.parent().unwrap_or(Path::new("."));
    for line in text.lines() {
        let Some((name, value)) = parse_line(line) else { continue };
        match name.as_str() {
            "include" | "include_if_exists" => read_file(&folder.join(value), depth, found),
            "include_dir" => {
                let entries = fs::read_dir(folder.join(value)).into_iter().flatten().flatten();
                let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
                files.retain(|file| {
                    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    name.ends_with(".conf") && !name.starts_with('.')
                });
                files.sort();
                files.iter().for_each(|file| read_file(file, depth, found));
            }
            _ => drop(found.insert(name, value)),
        }
    }
}

/// Parses `name = value`, `name value` or `name = 'it''s'`, each optionally with a comment (`guc-file.l`).
fn parse_line(line: &str) -> Option<(String, String)> {
    let line = line.trim_start();
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c))).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() {
        return None;
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
    let value = match rest.strip_prefix('\'') {
        Some(quoted) => {
            let mut value = String::new();
            let mut characters = quoted.chars().peekable();
            while let Some(character) = characters.next() {
                match character {
                    '\'' if characters.peek() == Some(&'\'') => value.extend(characters.next()),
                    '\'' => break,
                    '\\' => value.extend(characters.next()),
                    other => value.push(other),
                }
            }
            value
        }
        None => rest.split(['#', ' ', '\t']).next().unwrap_or_default().to_owned(),
    };
    Some((name.to_ascii_lowercase(), value))
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
    fn lines_are_read_as_the_server_reads_them() {
        let parsed = |line| parse_line(line).map(|(name, value)| format!("{name}|{value}"));
        assert_eq!(parsed("max_wal_size = 2GB").unwrap(), "max_wal_size|2GB");
        assert_eq!(parsed("  Max_Wal_Size 2GB # more").unwrap(), "max_wal_size|2GB");
        assert_eq!(parsed("archive_command='cp ''%p'' /a/%f' # x").unwrap(), "archive_command|cp '%p' /a/%f");
        assert_eq!(parsed("# max_wal_size = 1GB"), None);
        assert_eq!(parsed(""), None);
        assert_eq!(parsed("checkpoint_timeout=5min#x").unwrap(), "checkpoint_timeout|5min");
    }

    #[test]
    fn the_last_value_in_the_files_counts() {
        let base = tempfile::tempdir().unwrap();
        let value = || value_in_files(base.path(), "shared_preload_libraries");
        assert_eq!(value(), None);
        let main =
            "#shared_preload_libraries = ''\nshared_preload_libraries = 'one'\t# (change requires restart)\n";
        fs::write(base.path().join("postgresql.conf"), main).unwrap();
        assert_eq!(value().as_deref(), Some("one"));
        let automatic = base.path().join("postgresql.auto.conf");
        fs::write(&automatic, "shared_preload_libraries = 'one, two'\n").unwrap();
        assert_eq!(value().as_deref(), Some("one, two"));
        fs::write(&automatic, "shared_preload_libraries = ''\n").unwrap();
        assert_eq!(value(), None);
    }

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
