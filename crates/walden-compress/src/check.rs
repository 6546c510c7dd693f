//! Tests that compressed files decode to their originals, and lists their members.

use std::io::{self, Read, Seek};
use std::path::Path;

use serde_json::{Value, json};
use walden_codec::coder::{Breakdown, Form};
use walden_codec::container::{self, Entry, Error, FileHeader, Head, Loss, ReadLimits, Reader, Summary};
use walden_format::diagnostic::Hint;
use walden_report::table::{Look, Row, table as rows_as_table};
use walden_report::units;
use walden_source::error_text;

use crate::breakdown::Counted;
use crate::decompress::{repeated_name, two_members, unverified, words_of};
use crate::error::FileError;
use crate::inputs::open;
use crate::segment_sink::SegmentSink;
use crate::{DecompressOptions, MAX_ROWS, form_name, hint_of, is_stream, ratio};

type Result<T> = std::result::Result<T, FileError>;

/// The findings for a file.
#[derive(Debug, Default)]
pub struct Found {
    file_bytes: u64,
    members: Vec<Member>,
    damage: Vec<Error>,
    /// Texts about members that may have been moved or renamed.
    unverified: Vec<String>,
    lost: Vec<Loss>,
    breakdown: Breakdown,
    /// Members that are coded as bytes: name and reason.
    as_bytes: Vec<(String, String)>,
}

impl Found {
    /// Returns a name that two members share.
    fn repeated_name(&self) -> Option<String> {
        repeated_name(self.members.iter().map(|member| &member.head))
    }

    /// Returns whether nothing is damaged or lost.
    pub fn is_good(&self) -> bool {
        self.damage.is_empty() && self.lost.is_empty() && self.repeated_name().is_none()
    }

    /// Returns the problems of the file at a path, a line each, and a hint.
    pub fn problems(&self, path: &Path) -> (Vec<String>, Option<Hint>) {
        let shown = path.display();
        let mut lines: Vec<String> =
            self.damage.iter().map(|damage| format!("error: {shown}: {}", error_text(damage))).collect();
        lines.extend(self.repeated_name().map(|name| format!("error: {shown}: {}", two_members(&name))));
        lines.extend(self.unverified.iter().cloned());
        lines.extend(self.lost.iter().map(|loss| format!("lost: {shown}: {}", words_of(loss))));
        (lines, self.damage.iter().find_map(|damage| hint_of(path, damage)))
    }

    /// Returns the byte counts of the file at a path.
    pub fn count<'f>(&'f self, path: &'f Path) -> Counted<'f> {
        Counted {
            path: Some(path),
            file_bytes: self.file_bytes,
            original_bytes: self.members.iter().map(|member| member.original).sum(),
            members: self.members.len() as u64,
            breakdown: self.breakdown.clone(),
            as_bytes: &self.as_bytes,
        }
    }
}

#[derive(Debug)]
struct Member {
    head: Head,
    original: u64,
    stored: u64,
    hash: [u8; 32],
}

/// Tests compressed files.
pub struct Tester<'a> {
    /// Limits of decoding.
    pub options: &'a DecompressOptions,
    /// Whether members are only listed.
    pub lists: bool,
    /// Whether bytes are counted.
    pub counts: bool,
    /// Receives the bytes of compressed members that were decoded.
    pub advance: &'a (dyn Fn(u64) + Sync),
}

impl Tester<'_> {
    /// Tests or lists a file, or standard input.
    ///
    /// # Errors
    /// The file cannot be read. Damage is no error.
    pub fn file(&self, path: &Path) -> Result<Found> {
        match self.lists {
            true => self.list(path),
            false => self.test(path),
        }
    }

    /// Tests a stream up to the first damage, as it can be read only once.
    fn test_stream(&self) -> Result<Found> {
        let mut found = Found::default();
        let limits = if self.lists { self.list_limits() } else { self.options.limits(None) };
        let mut reader = match Reader::open_stream(io::stdin().lock(), limits) {
            Ok(reader) => reader,
            Err(error @ Error::Damage(_)) => {
                found.damage.push(error);
                return Ok(found);
            }
            Err(error) => return Err(error.into()),
        };
        if self.counts {
            reader.count_bytes();
        }
        let mut read_all = || -> std::result::Result<(), Error> {
            while let Some(head) = reader.next()? {
                let summary = match (self.lists, self.counts) {
                    (true, _) => reader.skip(&head)?,
                    (_, true) => decode_counted(&mut reader, &head, &mut found.as_bytes)?,
                    _ => reader.decode(&head, &mut io::sink())?,
                };
                if let Some(counted) = reader.take_breakdown() {
                    found.breakdown.merge(&counted);
                }
                found.members.push(Member {
                    head,
                    original: summary.end.bytes,
                    stored: summary.stored,
                    hash: summary.end.hash,
                });
            }
            Ok(())
        };
        match read_all() {
            Err(error @ (Error::Damage(_) | Error::Limit { .. })) => found.damage.push(error),
            read => read?,
        }
        found.file_bytes = reader.position();
        Ok(found)
    }

    /// Returns limits for listing. Nothing is decoded, so the memory for decoding does not matter.
    fn list_limits(&self) -> ReadLimits {
        self.options.limits(None).memory(u64::MAX).spill(u64::MAX)
    }

    fn test(&self, path: &Path) -> Result<Found> {
        if is_stream(path) {
            return self.test_stream();
        }
        let (file, found) = open(path)?;
        let file_bytes = found.len();
        let (mut breakdown, mut as_bytes) = (Breakdown::default(), Vec::new());
        let walk = container::walk(file, self.options.limits(Some(file_bytes)), &mut |reader, head| {
            let summary = if self.counts {
                reader.count_bytes();
                decode_counted(reader, head, &mut as_bytes)?
            } else {
                reader.decode(head, &mut io::sink())?
            };
            if let Some(found) = reader.take_breakdown() {
                breakdown.merge(&found);
            }
            (self.advance)(summary.stored);
            Ok(summary)
        });
        let walk = match walk {
            // An unreadable file is a result of the test, not an error.
            Err(error @ Error::Damage(_)) => {
                container::Walk { damage: vec![error], ..container::Walk::default() }
            }
            walk => walk?,
        };
        let unverified = unverified(path, &walk);
        let members = walk
            .members
            .into_iter()
            .map(|(head, summary)| Member {
                head,
                original: summary.end.bytes,
                stored: summary.stored,
                hash: summary.end.hash,
            })
            .collect();
        Ok(Found {
            file_bytes,
            members,
            damage: walk.damage,
            unverified,
            lost: walk.lost,
            breakdown,
            as_bytes,
        })
    }

    fn list(&self, path: &Path) -> Result<Found> {
        if is_stream(path) {
            return self.test_stream();
        }
        let mut reader = Reader::open(open(path)?.0, self.list_limits())?;
        let file_bytes = reader.file_bytes();
        let (entries, fault) = reader.entries();
        let members = entries
            .into_iter()
            .map(|Entry { stored, head, end, .. }| Member {
                head,
                original: end.bytes,
                stored,
                hash: end.hash,
            })
            .collect();
        Ok(Found { file_bytes, members, damage: fault.into_iter().collect(), ..Found::default() })
    }
}

/// Returns the JSON of the findings for files, which took `seconds`. `are_listed` is whether members were
/// only listed.
pub fn document(all: &[(&Path, &Found)], are_listed: bool, seconds: f64) -> Value {
    let files: Vec<Value> = all.iter().map(|(path, found)| as_json(path, found)).collect();
    let (members, original, file_bytes) = sums(all);
    json!({
        "format_version": 1,
        "files": files,
        "decoded": !are_listed,
        "members": members,
        "original_bytes": original,
        "compressed_bytes": file_bytes,
        "seconds": seconds,
    })
}

/// Formats the findings for files as a table and a line of sums; empty without files.
pub fn table(all: &[(&Path, &Found)], are_listed: bool, seconds: f64, look: Look) -> String {
    if all.is_empty() {
        return String::new();
    }
    let (members, original, file_bytes) = sums(all);
    let each = are_listed || members + all.len() as u64 <= MAX_ROWS as u64;
    let rows: Vec<Row> = all.iter().flat_map(|(path, found)| rows(are_listed, path, found, each)).collect();
    let head: &[&str] = &["original", "compressed", "ratio", "as", ""];
    let title = if are_listed { "Members" } else { "Decoded and compared" };
    let mut text = rows_as_table(look, title, ("file", head), &rows) + "\n";
    text += &format!(
        "{members} members, {} in {}, {}",
        units::bytes(original),
        units::bytes(file_bytes),
        ratio(original, file_bytes)
    );
    if !are_listed {
        text += &format!(", {}/s", units::bytes((original as f64 / seconds.max(1e-6)) as u64));
    }
    text + "\n"
}

fn rows(are_listed: bool, path: &Path, found: &Found, each: bool) -> Vec<Row> {
    let row = |depth, label: String, original, stored, form: &str, state: &str| Row {
        depth,
        label,
        cells: vec![
            units::bytes(original),
            units::bytes(stored),
            ratio(original, stored),
            form.to_owned(),
            state.to_owned(),
        ],
        share: None,
    };
    let state = match (are_listed, found.is_good()) {
        (true, true) => "",
        (false, true) => "good",
        (_, false) => "DAMAGED",
    };
    let original = found.members.iter().map(|member| member.original).sum();
    let whole = row(0, path.display().to_string(), original, found.file_bytes, "", state);
    let members = found.members.iter().filter(|_| each).map(|member| {
        let name = String::from_utf8_lossy(&member.head.meta.name).into_owned();
        let state = match (are_listed, member.head.keyframe) {
            (true, true) => "keyframe",
            (true, false) => "",
            (false, _) => "good",
        };
        row(1, name, member.original, member.stored, form_name(member.head.form), state)
    });
    std::iter::once(whole).chain(members).collect()
}

/// Decodes a member. If it is coded as bytes, records the reason.
fn decode_counted<R: Read + Seek>(
    reader: &mut Reader<R>,
    head: &Head,
    as_bytes: &mut Vec<(String, String)>,
) -> std::result::Result<Summary, Error> {
    if head.form == Form::Records {
        return reader.decode(head, &mut io::sink());
    }
    let mut original = SegmentSink::default();
    let summary = reader.decode(head, &mut original)?;
    let reason = match (reader.header(), original.segment()) {
        (Some(FileHeader { level: 0, .. }), _) => "level 0 does not decode records".to_owned(),
        (_, None) => "too large to find out".to_owned(),
        (_, Some(segment)) => reader.fallback_of(segment).map_or_else(
            || {
                "its records can be coded: another version, or a failed check of the result, chose bytes"
                    .to_owned()
            },
            |reason| reason.to_string(),
        ),
    };
    as_bytes.push((String::from_utf8_lossy(&head.meta.name).into_owned(), reason));
    Ok(summary)
}

/// Returns the number of members, the bytes of their originals, and the bytes of the files.
fn sums(all: &[(&Path, &Found)]) -> (u64, u64, u64) {
    let members = || all.iter().flat_map(|(_, found)| &found.members);
    (
        members().count() as u64,
        members().map(|member| member.original).sum(),
        all.iter().map(|(_, found)| found.file_bytes).sum(),
    )
}

fn as_json(path: &Path, found: &Found) -> Value {
    let members: Vec<Value> = found
        .members
        .iter()
        .map(|member| {
            let place = member.head.place;
            json!({
                "name": String::from_utf8_lossy(&member.head.meta.name),
                "form": form_name(member.head.form),
                "keyframe": member.head.keyframe,
                "original_bytes": member.original,
                "compressed_bytes": member.stored,
                "blake3": member.hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
                "timeline": place.map(|place| place.timeline),
                "start_lsn": place.map(|place| place.start.to_string()),
                "end_lsn": place.map(|place| place.end().to_string()),
            })
        })
        .collect();
    let lost: Vec<Value> = found
        .lost
        .iter()
        .map(|loss| {
            json!({
                "name": loss.name,
                "number": loss.number,
                "members": loss.members,
                "timeline": loss.place.map(|place| place.timeline),
                "start_lsn": loss.place.map(|place| place.start.to_string()),
                "end_lsn": loss.place.map(|place| place.end().to_string()),
                "damaged": loss.damaged,
            })
        })
        .collect();
    json!({
        "file": path.to_string_lossy(),
        "compressed_bytes": found.file_bytes,
        "good": found.is_good(),
        "members": members,
        "damage": found.damage.iter().map(|damage| error_text(damage)).collect::<Vec<_>>(),
        "lost": lost,
    })
}
