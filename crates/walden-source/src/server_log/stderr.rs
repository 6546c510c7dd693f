//! The log in text format: each entry starts with `log_line_prefix`, and continues on lines that start with a
//! tab.

use std::io::{self, BufRead};

use regex::{Regex, RegexBuilder};

use super::languages::{self, Tag};
use super::{Entry, Fields, MAX_FIELD, parse_time, read_line, without_port};

/// A parsed `log_line_prefix`, which matches lines.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// The setting.
    pub(super) text: String,
    pub(super) fields: Fields,
    line: Regex,
}

/// Values of `log_line_prefix` to try if none is given: the defaults of Debian and PostgreSQL, and common
/// prefixes with the transaction (`%x`).
const USUAL: [&str; 8] = [
    "%m [%p] %q%u@%d %a %h %v %x ",
    "%m [%p] %v %x %q%u@%d/%a ",
    "%m [%p] %q[user=%u,db=%d,app=%a,client=%h,vxid=%v,xid=%x] ",
    "%t [%p]: [%l-1] user=%u,db=%d,app=%a,client=%h,xid=%x ",
    "%m [%p] %x %q%u@%d ",
    "%m [%p] %x ",
    "%m [%p] %q%u@%d ",
    "%m [%p] ",
];

/// One row per escape: its letter, its pattern, and the name of its group, if it is used.
#[rustfmt::skip]
const ESCAPES: [(char, &str, &str); 20] = [
    ('a', r".*?",                                              "application"),
    ('u', r".*?",                                              "user"),
    ('d', r".*?",                                              ""),
    ('r', r"\S*?",                                             "client"),
    ('h', r"\S*?",                                             "client"),
    ('b', r".*?",                                              ""),
    ('p', r"\d+",                                              "pid"),
    ('P', r"\d*",                                              ""),
    ('t', r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+",               "time"),
    ('m', r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+",        "time"),
    ('n', r"\d+\.\d+",                                         "epoch"),
    ('i', r".*?",                                              ""),
    ('e', r"[0-9A-Z]{5}",                                      ""),
    ('c', r"[0-9a-f]+\.[0-9a-f]+",                             "session"),
    ('l', r"\d+",                                              ""),
    ('s', r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+",               ""),
    ('v', r"(?:-?\d+/\d+)?",                                   "vxid"),
    ('x', r"\d+",                                              "xid"),
    ('Q', r"-?\d+",                                            ""),
    ('L', r"\S*?",                                             ""),
];

impl Prefix {
    /// Parses the setting.
    ///
    /// # Errors
    /// The text names the problem: an escape that no version of PostgreSQL has, a `%` at the end, or a prefix
    /// that is too long.
    pub fn new(text: &str) -> Result<Prefix, String> {
        let mut pattern = String::from("^");
        let mut fields = Fields::default();
        let mut used: Vec<&str> = Vec::new();
        let mut open = 0;
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            if char != '%' {
                pattern.push_str(&regex::escape(char.encode_utf8(&mut [0; 4])));
                continue;
            }
            // `%-10u`: padded to a width.
            let mut is_padded = false;
            while chars.peek().is_some_and(|char| char.is_ascii_digit() || *char == '-') {
                is_padded = true;
                chars.next();
            }
            let padding = if is_padded { " *" } else { "" };
            match chars.next() {
                Some('%') => pattern.push('%'),
                // The prefix of a process without a session ends here.
                Some('q') => {
                    pattern.push_str("(?:");
                    open += 1;
                }
                Some(letter) => {
                    let row = ESCAPES.iter().find(|row| row.0 == letter);
                    let (_, looks, name) =
                        row.ok_or_else(|| format!("%{letter} is no escape of log_line_prefix"))?;
                    pattern.push_str(padding);
                    let is_new = !name.is_empty() && !used.contains(name);
                    match is_new {
                        true => pattern.push_str(&format!("(?P<{name}>{looks})")),
                        false => pattern.push_str(&format!("(?:{looks})")),
                    }
                    pattern.push_str(padding);
                    used.push(name);
                }
                None => return Err("it ends in %".to_owned()),
            }
        }
        pattern.push_str(&")?".repeat(open));
        // Saved settings without their trailing spaces still match: the server writes no spaces between the
        // prefix and the severity, so these belong to the prefix, and they do not change the value of any
        // escape.
        pattern.push_str(" *");
        pattern.push_str(&format!("(?P<level>{}) ?:  ?(?P<text>.*)$", languages::pattern()));
        let has = |name: &str| used.contains(&name);
        fields.xid = has("xid");
        fields.virtual_xid = has("vxid");
        fields.session = has("session") || has("pid");
        fields.user = has("user");
        fields.application = has("application");
        fields.client = has("client");
        let line = RegexBuilder::new(&pattern).size_limit(10 << 20).dot_matches_new_line(true).build();
        let line = line.map_err(|error| error.to_string())?;
        Ok(Prefix { text: text.to_owned(), fields, line })
    }

    /// Returns the common prefix that matches the first lines of a log best.
    pub(super) fn usual(start: &[u8]) -> Option<Prefix> {
        let text = String::from_utf8_lossy(start);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('\t')).take(2000).collect();
        let known = USUAL.iter().filter_map(|text| Prefix::new(text).ok());
        let fits = |prefix: &Prefix| {
            let found = lines.iter().filter_map(|line| prefix.line.captures(line));
            found.fold((0, 0), |sum, one| (sum.0 + 1, sum.1 + one.iter().flatten().count()))
        };
        // Prefers the prefix that matches most lines, then the prefix with most fields, then the last prefix
        // in the table.
        let mut best: Option<((usize, usize), Prefix)> = None;
        for prefix in known {
            let found = fits(&prefix);
            if found.0 > 0 && best.as_ref().is_none_or(|(most, _)| found >= *most) {
                best = Some((found, prefix));
            }
        }
        best.map(|(_, prefix)| prefix)
    }
}

/// The part of an entry that the next line with a tab continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Continued {
    Message,
    Statement,
    Other,
}

/// Reads all entries. `STATEMENT` and similar lines belong to the previous entry.
pub fn read(input: &mut impl BufRead, prefix: &Prefix, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
    let mut raw = Vec::new();
    let mut current: Option<Entry> = None;
    // The part that lines with a tab continue: the message, the statement, or a part that is not kept.
    let mut continued = Continued::Message;
    while read_line(input, &mut raw)? {
        let line = String::from_utf8_lossy(&raw);
        if let Some(rest) = line.strip_prefix('\t') {
            if let Some(entry) = &mut current {
                let text = match continued {
                    Continued::Message => &mut entry.message,
                    Continued::Statement => &mut entry.statement,
                    Continued::Other => continue,
                };
                if text.len() + rest.len() < MAX_FIELD {
                    text.push('\n');
                    text.push_str(rest);
                }
            }
            continue;
        }
        let Some(found) = prefix.line.captures(&line) else { continue };
        let of = |name: &str| found.name(name).map_or("", |found| found.as_str());
        let text = of("text").trim_start();
        match Tag::of(of("level")) {
            Tag::Entry => continued = Continued::Message,
            Tag::Statement => {
                continued = Continued::Statement;
                if let Some(entry) = &mut current {
                    entry.statement = text.to_owned();
                }
                continue;
            }
            // The other parts do not identify the author of a change. DETAIL, for example, has the
            // parameters.
            Tag::Part => {
                continued = Continued::Other;
                continue;
            }
        }
        current.take().into_iter().for_each(&mut *each);
        let session = if of("session").is_empty() { of("pid") } else { of("session") };
        let epoch = || of("epoch").parse::<f64>().ok().map(|seconds| (seconds * 1e6) as i64);
        current = Some(Entry {
            time: parse_time(of("time")).or_else(epoch),
            session: session.to_owned(),
            virtual_xid: of("vxid").to_owned(),
            xid: of("xid").parse().unwrap_or(0),
            user: of("user").to_owned(),
            database: String::new(),
            client: without_port(of("client")).to_owned(),
            application: of("application").to_owned(),
            message: text.to_owned(),
            statement: String::new(),
        });
    }
    current.into_iter().for_each(each);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::entries;
    use super::*;

    #[test]
    fn prefixes_say_what_a_line_has() {
        let prefix = Prefix::new("%m [%p] %q%u@%d %a %h %v %x ").unwrap();
        let log = "2026-11-20 22:00:00.125 UTC [77] app@db my app [local] 3/42 1234 LOG:  statement: INSERT INTO t\n\
                   \tVALUES ('LOG:  x')\n\
                   2026-11-20 22:00:01.125 UTC [78] LOG:  checkpoint starting: time\n\
                   2026-11-20 22:00:02.125 UTC [77] app@db my app [local] 3/43 0 ERROR:  no\n\
                   2026-11-20 22:00:02.125 UTC [77] app@db my app [local] 3/43 0 DETAIL:  parameters: $1 = '1'\n\
                   \t, $2 = '2'\n\
                   2026-11-20 22:00:02.125 UTC [77] app@db my app [local] 3/43 0 STATEMENT:  SELECT\n\
                   \t1\n\
                   something else\n";
        let all = entries(|input, each| read(input, &prefix, each), log);
        assert_eq!(all.len(), 3, "{all:?}");
        assert_eq!(all[0].message, "statement: INSERT INTO t\nVALUES ('LOG:  x')");
        assert_eq!((all[0].user.as_str(), all[0].application.as_str(), all[0].xid), ("app", "my app", 1234));
        assert_eq!((all[1].session.as_str(), all[1].user.as_str()), ("78", ""));
        assert_eq!(all[2].message, "no");
        assert_eq!((all[2].statement.as_str(), all[2].virtual_xid.as_str()), ("SELECT\n1", "3/43"));
        assert_eq!(Prefix::usual(log.as_bytes()).unwrap().text, "%m [%p] %q%u@%d %a %h %v %x ");
        assert!(!Prefix::usual(b"2026-11-20 22:00:00.125 UTC [77] LOG:  x\n").unwrap().fields.xid);
        assert!(Prefix::usual(b"nothing\n").is_none());
    }

    #[test]
    fn words_of_other_languages_are_known() {
        let text = "%m [%p] %q%u@%d %a %h %v %x ";
        for [message, error, detail, statement] in [
            [
                "LOG:  Anweisung: SELECT 1",
                "FEHLER:  nein",
                "DETAIL:  Parameter: $1 = '1'",
                "ANWEISUNG:  DELETE",
            ],
            ["LOG:  instruction : SELECT 1", "ERREUR:  non", "DÉTAIL:  x", "INSTRUCTION :  DELETE"],
            ["LOG:  文: SELECT 1", "ERROR:  x", "詳細:  x", "文:  DELETE"],
            ["СООБЩЕНИЕ:  оператор: SELECT 1", "ОШИБКА:  x", "ПОДРОБНОСТИ:  x", "ОПЕРАТОР:  DELETE"],
        ] {
            let line = |rest| format!("2026-11-20 22:00:00.125 CET [77] app@db a [local] 3/42 9 {rest}\n");
            let log = [message, error, detail, statement].map(line).concat();
            let prefix = Prefix::usual(log.as_bytes()).unwrap();
            assert_eq!(prefix.text, text, "{message}");
            let all = entries(|input, each| read(input, &prefix, each), &log);
            assert_eq!(all.len(), 2, "{all:?}");
            assert!(all[0].message.ends_with(": SELECT 1"), "{all:?}");
            assert_eq!(all[1].statement, "DELETE");
        }
    }

    #[test]
    fn padded_and_wrong_escapes() {
        let prefix = Prefix::new("%-8u|%5p|%x%%").unwrap();
        let all = entries(
            |input, each| read(input, &prefix, each),
            "app     |   77|9%LOG:  x\napp     |   77|9 LOG:  x\n",
        );
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].user.as_str(), all[0].session.as_str(), all[0].xid), ("app", "77", 9));
        assert!(Prefix::new("%z").is_err() && Prefix::new("%").is_err());
    }

    #[test]
    fn a_prefix_fits_without_the_spaces_at_its_end() {
        let log = "2026-11-20 22:00:00.125 UTC [77] app 1234 LOG:  statement: INSERT INTO t\n\
                   2026-11-20 22:00:01.125 UTC [78] LOG:  checkpoint starting: time\n";
        let of = |prefix| {
            let prefix = Prefix::new(prefix).unwrap();
            entries(|input, each| read(input, &prefix, each), log)
        };
        let all = of("%m [%p] %q%a %x ");
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!((all[0].application.as_str(), all[0].xid), ("app", 1234));
        assert_eq!(of("%m [%p] %q%a %x"), all);
        assert!(of("%m [%p] %q%a %x|").iter().all(|entry| entry.xid == 0));
    }
}
