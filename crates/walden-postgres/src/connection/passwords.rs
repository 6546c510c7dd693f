//! Reads the password file (`passwordFromFile` in `fe-connect.c`): the first matching line
//! `host:port:database:user:password`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Largest password file that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The connection for which a password is wanted.
pub(super) struct Wanted<'a> {
    pub host: &'a str,
    pub port: &'a str,
    pub database: &'a str,
    pub user: &'a str,
}

/// The result of a search in a password file.
pub(super) enum Found {
    Password(String),
    /// No line matches, or there is no file.
    Nothing,
    /// Others may read the file, so it is not used, as in libpq.
    ReadableByOthers,
}

/// Searches for the password of a connection.
pub(super) fn look_up(path: &Path, wanted: &Wanted<'_>) -> Found {
    let Ok(metadata) = fs::metadata(path) else { return Found::Nothing };
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Found::Nothing;
    }
    if metadata.mode() & 0o077 != 0 {
        return Found::ReadableByOthers;
    }
    let Ok(text) = fs::read(path) else { return Found::Nothing };
    find(&String::from_utf8_lossy(&text), wanted).map_or(Found::Nothing, Found::Password)
}

fn find(text: &str, wanted: &Wanted<'_>) -> Option<String> {
    let Wanted { host, port, database, user } = wanted;
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = split(line);
        let (password, keys) = fields.get(..5)?.split_last()?;
        let fits = |(key, wanted): (&(String, bool), &&str)| key.1 || key.0 == **wanted;
        keys.iter().zip([host, port, database, user]).all(fits).then(|| password.0.clone())
    })
}

/// Splits a line into its fields. The flag is set for an asterisk, which matches everything.
fn split(line: &str) -> Vec<(String, bool)> {
    let mut fields = Vec::new();
    let (mut field, mut is_any) = (String::new(), line.starts_with("*:"));
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => field.extend(characters.next()),
            ':' if fields.len() < 4 => {
                fields.push((std::mem::take(&mut field), is_any));
                is_any = characters.as_str().starts_with("*:");
            }
            _ => field.push(character),
        }
    }
    fields.push((field, is_any));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# host:5432:a:b:no\n\nlocalhost:5433:*:me:one\nlocalhost:*:*:me:two\\:\\\\three\n*:*:*:*:any:thing\nshort:1\n";
        let of = |host, port| find(text, &Wanted { host, port, database: "d", user: "me" });
        assert_eq!(of("localhost", "5433").as_deref(), Some("one"));
        assert_eq!(of("localhost", "5432").as_deref(), Some("two:\\three"));
        assert_eq!(of("elsewhere", "5432").as_deref(), Some("any:thing"));
        assert_eq!(find("a:1:d:me:x", &Wanted { host: "b", port: "1", database: "d", user: "me" }), None);
        // An escaped asterisk matches only itself.
        assert_eq!(find("\\*:1:d:me:x", &Wanted { host: "b", port: "1", database: "d", user: "me" }), None);
    }
}
