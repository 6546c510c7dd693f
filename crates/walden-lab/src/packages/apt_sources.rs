//! The archives of Debian's packages that this machine's apt uses.
//!
//! apt reads two formats (`sources.list(5)`): files `*.sources` contain stanzas of fields ("deb822"), and
//! files `*.list` contain one archive per line.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::command::run;

/// An entry of apt's sources: the fields of its stanza, by their names in lower case, with unmodified values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    fields: BTreeMap<String, String>,
}

/// Fields that determine how apt verifies an archive. They apply to each of its suites.
const VERIFICATION: [&str; 4] = ["signed-by", "trusted", "check-valid-until", "check-date"];

/// Names of suites in Debian's archives other than the codenames of its releases.
const SUITES: [&str; 7] =
    ["stable", "oldstable", "oldoldstable", "testing", "unstable", "sid", "experimental"];

/// Returns the sources of this machine that are archives of Debian.
///
/// # Errors
/// apt's configuration or a file of sources cannot be read.
pub(super) fn debian_sources() -> Result<Vec<Source>> {
    let codename = fs::read_to_string("/etc/os-release").ok().and_then(|text| codename(&text));
    let mut found: Vec<Source> = Vec::new();
    for path in source_files()? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let sources = if has_extension(&path, "sources") { parse_stanzas(&text) } else { parse_lines(&text) };
        for source in sources {
            // A mirror's suites are often several entries.
            let is_new = found.iter().all(|other| other.uris() != source.uris());
            if is_new && source.is_debian(codename.as_deref()) {
                found.push(source);
            }
        }
    }
    Ok(found)
}

impl Source {
    /// Returns a stanza for other suites of the same archive, verified in the same way.
    pub(super) fn stanza(&self, suite: &str) -> String {
        // apt reads packages of `file:` in place, and copies those of `copy:` to its cache, as downloads.
        let uris = self.uris().split_whitespace().map(|uri| match uri.strip_prefix("file:") {
            Some(path) => format!("copy:{path}"),
            None => uri.to_owned(),
        });
        let uris = uris.collect::<Vec<_>>().join(" ");
        let mut text = format!("Types: deb\nURIs: {uris}\nSuites: {suite}\nComponents: main\n");
        // Excludes translations and descriptions of applications.
        text += "Targets: Packages\n";
        for (name, value) in VERIFICATION.iter().filter_map(|name| Some((name, self.fields.get(*name)?))) {
            text += &format!("{name}: {value}\n");
        }
        text
    }

    /// The archive's addresses.
    pub(super) fn uris(&self) -> &str {
        self.field("uris")
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn has(&self, field: &str, word: &str) -> bool {
        self.field(field).split_whitespace().any(|one| one == word)
    }

    fn is_debian(&self, codename: Option<&str>) -> bool {
        let has_suite = SUITES.into_iter().chain(codename).any(|suite| self.has("suites", suite));
        let is_enabled = !["no", "false", "0", "off"].contains(&self.field("enabled"));
        is_enabled && self.has("types", "deb") && self.has("components", "main") && has_suite
    }
}

/// Returns the files that apt reads, in its order.
fn source_files() -> Result<Vec<PathBuf>> {
    let mut command = Command::new("apt-config");
    command.args(["shell", "LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d"]);
    let output = run(&mut command)?;
    let value = |name: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        PathBuf::from(line.unwrap_or_default().trim_matches('\''))
    };
    let mut files: Vec<PathBuf> = match fs::read_dir(value("PARTS")) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    files.retain(|path| has_extension(path, "sources") || has_extension(path, "list"));
    files.sort();
    files.insert(0, value("LIST"));
    files.retain(|path| path.is_file());
    Ok(files)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension() == Some(OsStr::new(extension))
}

/// Returns the codename: `VERSION_CODENAME=bookworm` of `os-release(5)`.
fn codename(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(value.trim_matches(['"', '\'']).to_owned()).filter(|name| !name.is_empty())
}

/// Reads stanzas separated by empty lines. Lines that start with a space continue the field above.
fn parse_stanzas(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for line in lines.chain([""]) {
        if line.trim().is_empty() {
            if !fields.is_empty() {
                sources.push(Source { fields: std::mem::take(&mut fields) });
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some(value) = fields.get_mut(&last) {
                *value += "\n";
                *value += line;
            }
        } else if let Some((name, value)) = line.split_once(':') {
            last = name.trim().to_lowercase();
            fields.insert(last.clone(), value.trim().to_owned());
        }
    }
    sources
}

/// Reads lines `deb [option=value ...] uri suite component ...`.
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let (kind, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let mut fields = BTreeMap::from([
        ("types".to_owned(), kind.to_owned()),
        ("uris".to_owned(), words.next()?.to_owned()),
        ("suites".to_owned(), words.next()?.to_owned()),
        ("components".to_owned(), words.collect::<Vec<_>>().join(" ")),
    ]);
    for (name, value) in options.split_whitespace().filter_map(|option| option.split_once('=')) {
        // Values of an option are separated by commas, those of a field by spaces.
        fields.insert(name.to_lowercase(), value.replace(',', " "));
    }
    Some(Source { fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANZAS: &str = "\
# A comment
Types: deb deb-src
URIs: http://mirror.example/some/path/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/some/path/debian-security
Suites: bookworm-security
Components: main


Types: deb
uris: http://embedded.example/debian
suites: testing
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKwYBBAHaRw8BAQdAD/P5Nvvnvk66SxBBHDbhRml9ORg1WV5CvzKY
 -----END PGP PUBLIC KEY BLOCK-----
";

    #[test]
    fn archives_of_debian_are_found_among_stanzas() {
        let sources: Vec<Source> =
            parse_stanzas(STANZAS).into_iter().filter(|one| one.is_debian(Some("bookworm"))).collect();
        let [release, embedded] = &sources[..] else { panic!("{sources:#?}") };
        assert_eq!(
            release.stanza("sid"),
            "Types: deb\nURIs: http://mirror.example/some/path/debian\nSuites: sid\nComponents: main\n\
             Targets: Packages\nsigned-by: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        let key = embedded.stanza("sid");
        let read_again = parse_stanzas(&key).swap_remove(0);
        assert_eq!(read_again.field("signed-by"), embedded.field("signed-by"), "{key}");
        assert!(read_again.field("signed-by").contains("\n mDMEYCQj"), "{key}");
    }

    #[test]
    fn archives_of_debian_are_found_among_lines() {
        let lines = "\
deb http://mirror.example/debian bookworm main non-free # the release
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/a.gpg,/b.gpg] https://signed.example/x/debian stable main
deb [ trusted=yes ] file:/srv/debian bookworm main
deb http://vendor.example bookworm stable
deb http://vendor.example/flat ./
deb-unfinished
";
        let sources: Vec<Source> =
            parse_lines(lines).into_iter().filter(|one| one.is_debian(Some("bookworm"))).collect();
        let uris: Vec<&str> = sources.iter().map(Source::uris).collect();
        assert_eq!(
            uris,
            ["http://mirror.example/debian", "https://signed.example/x/debian", "file:/srv/debian"]
        );
        assert_eq!(sources[1].field("signed-by"), "/a.gpg /b.gpg");
        let local = sources[2].stanza("sid");
        assert!(local.contains("URIs: copy:/srv/debian\n") && local.ends_with("trusted: yes\n"), "{local}");
    }

    #[test]
    fn disabled_stanzas_are_skipped() {
        let stanza = "Enabled: no\nTypes: deb\nURIs: http://mirror.example\nSuites: sid\nComponents: main\n";
        assert!(!parse_stanzas(stanza)[0].is_debian(None));
    }

    #[test]
    fn the_codename_is_read_from_os_release() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm".to_owned()));
        assert_eq!(codename("ID=other\n"), None);
    }
}
