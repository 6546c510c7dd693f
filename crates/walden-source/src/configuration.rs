//! A server's settings in its files: `postgresql.conf` and the files that it includes,
//! `postgresql.auto.conf`, and the command line in `postmaster.opts`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Maximum depth of nested includes.
const MAX_DEPTH: u32 = 10;

/// The settings of a data directory, as text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Configuration {
    main: PathBuf,
    has_main: bool,
    values: BTreeMap<String, String>,
}

impl Configuration {
    /// The file with the settings of `ALTER SYSTEM`, in the data directory.
    pub const AUTOMATIC: &str = "postgresql.auto.conf";

    /// Reads the settings with which a data directory's server was last started. An unreadable file sets
    /// nothing.
    pub fn read(data: &Path) -> Configuration {
        let line = fs::read_to_string(data.join("postmaster.opts")).unwrap_or_default();
        let options = CommandLine::parse(&line);
        let mut configuration = Configuration::read_files(data, options.main_file(data));
        configuration.values.extend(options.settings);
        configuration
    }

    /// Reads the settings with which a server starts on a data directory or a copy of it without other
    /// options.
    pub fn read_folder(data: &Path) -> Configuration {
        Configuration::read_files(data, data.join("postgresql.conf"))
    }

    fn read_files(data: &Path, main: PathBuf) -> Configuration {
        let has_main = File::open(&main).is_ok();
        let mut values = BTreeMap::new();
        read_file(&main, MAX_DEPTH, &mut values);
        read_file(&data.join(Configuration::AUTOMATIC), MAX_DEPTH, &mut values);
        Configuration { main, has_main, values }
    }

    /// Returns the last value of a setting, or `None` if no file and no option sets it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns the path of the main file.
    pub fn main_file(&self) -> &Path {
        &self.main
    }

    /// Returns whether the main file can be read. Otherwise, settings that are not found may have any value.
    pub fn has_main_file(&self) -> bool {
        self.has_main
    }
}

/// The options of a server's command line.
#[derive(Default)]
struct CommandLine {
    /// `-c NAME=VALUE` and `--NAME=VALUE`
    settings: BTreeMap<String, String>,
    /// `-D`
    folder: Option<PathBuf>,
}

impl CommandLine {
    fn parse(text: &str) -> CommandLine {
        let mut words: Vec<String> = Vec::new();
        // The file quotes each argument.
        for (index, part) in text.trim().split('"').enumerate() {
            if index % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        let mut found = CommandLine::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut value_of = |option| match word.strip_prefix(option) {
                Some("") => words.next(),
                attached => attached.map(str::to_owned),
            };
            if let Some(folder) = value_of("-D") {
                found.folder = Some(folder.into());
            } else if let Some(setting) = value_of("--").or_else(|| value_of("-c"))
                && let Some((name, value)) = setting.split_once('=')
            {
                let name = name.trim().to_ascii_lowercase().replace('-', "_");
                found.settings.insert(name, value.trim().to_owned());
            }
        }
        found
    }

    /// The main file of the server on `data` (`SelectConfigFiles`). `-D` may name another folder, whose file
    /// sets `data_directory`. The option of a copied data directory names the original, and does not count.
    fn main_file(&self, data: &Path) -> PathBuf {
        if let Some(file) = self.settings.get("config_file") {
            return data.join(file);
        }
        let own = data.join("postgresql.conf");
        let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_absolute()) else { return own };
        let other = folder.join("postgresql.conf");
        let mut values = BTreeMap::new();
        read_file(&other, MAX_DEPTH, &mut values);
        let named = self.settings.get("data_directory").or_else(|| values.get("data_directory"));
        let is_same = |path: &String| match (fs::canonicalize(path), fs::canonicalize(data)) {
            (Ok(named), Ok(data)) => named == data,
            _ => false,
        };
        if named.is_some_and(is_same) { other } else { own }
    }
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
        let value = || {
            let configuration = Configuration::read(base.path());
            configuration.get("shared_preload_libraries").map(str::to_owned)
        };
        assert_eq!(value(), None);
        let main =
            "#shared_preload_libraries = ''\nshared_preload_libraries = 'one'\t# (change requires restart)\n";
        fs::write(base.path().join("postgresql.conf"), main).unwrap();
        assert_eq!(value().as_deref(), Some("one"));
        let automatic = base.path().join("postgresql.auto.conf");
        fs::write(&automatic, "shared_preload_libraries = 'one, two'\n").unwrap();
        assert_eq!(value().as_deref(), Some("one, two"));
        fs::write(&automatic, "shared_preload_libraries = ''\n").unwrap();
        assert_eq!(value().as_deref(), Some(""));
    }

    #[test]
    fn the_command_line_names_the_main_file() {
        let folder = tempfile::tempdir().unwrap();
        let (data, etc) = (folder.path().join("data"), folder.path().join("etc"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&etc).unwrap();
        let other = etc.join("postgresql.conf");
        let (data_text, etc_text) = (data.display(), etc.display());
        let level = |options: String| {
            fs::write(data.join("postmaster.opts"), format!("/usr/bin/postgres {options}\n")).unwrap();
            let configuration = Configuration::read(&data);
            (configuration.get("wal_level").unwrap_or_default().to_owned(), configuration.has_main_file())
        };
        let found = |value: &str, has_main| (value.to_owned(), has_main);
        let set = |directory: &str| {
            let text = format!("data_directory = '{directory}'\nwal_level = logical\n");
            fs::write(&other, text).unwrap();
        };
        set(&data_text.to_string());
        assert_eq!(level(format!("\"-D\" \"{etc_text}\"")), found("logical", true));
        assert_eq!(level(format!("\"-D{etc_text}\"")), found("logical", true));
        let by_file = format!("\"-D\" \"{data_text}\" \"-c\" \"config_file={etc_text}/postgresql.conf\"");
        assert_eq!(level(by_file), found("logical", true));
        // Without the folder, the settings are not known.
        assert_eq!(level(String::new()), found("", false));
        assert_eq!(level("\"-D\" \"etc\"".to_owned()), found("", false));
        // The original of a copied data directory.
        set("/elsewhere");
        assert_eq!(level(format!("\"-D\" \"{etc_text}\"")), found("", false));
        fs::write(data.join("postgresql.conf"), "wal_level = minimal\n").unwrap();
        assert_eq!(level(format!("\"-D\" \"{etc_text}\"")), found("minimal", true));
        let with_option = format!("\"-D\" \"{etc_text}\" \"--data-directory={data_text}\"");
        assert_eq!(level(with_option), found("logical", true));
    }
}
