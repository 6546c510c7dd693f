//! Runs PostgreSQL's pg_waldump, as the reference for Walden's decoding and accounting.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// A line of `pg_waldump --stats=record`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatsRow {
    /// Resource manager and kind, `Heap/INSERT+INIT`.
    pub name: String,
    /// Number of records.
    pub count: u64,
    /// Bytes of the records without images, but including the images' headers.
    pub record_bytes: u64,
    /// Bytes of the images in the records.
    pub image_bytes: u64,
}

/// A record as `pg_waldump --bkp-details` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedRecord {
    /// The resource manager's name.
    pub manager: String,
    /// The kind's name: the first word of the description.
    pub kind: String,
    /// Bytes without images.
    pub len_without_images: u32,
    /// Bytes with images.
    pub total_len: u32,
    /// The transaction.
    pub xid: u32,
    /// Its LSN, as printed.
    pub lsn: String,
    /// The LSN of the preceding record, as printed.
    pub prev: String,
    /// The rest of the description, with times in UTC.
    pub description: String,
    /// The blocks.
    pub blocks: Vec<DumpedBlock>,
}

/// A reference to a block as `pg_waldump --bkp-details` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedBlock {
    /// The reference's number.
    pub id: u8,
    /// Tablespace, database and file number, `1663/5/1259`.
    pub relation: String,
    /// The fork's name.
    pub fork: String,
    /// The block's number.
    pub block: u32,
    /// The image, if there is one.
    pub image: Option<DumpedImage>,
}

/// An image as `pg_waldump --bkp-details` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedImage {
    /// Whether redo restores the image; otherwise it exists for verification.
    pub apply: bool,
    /// Offset of the hole.
    pub hole_offset: u16,
    /// Bytes of the hole.
    pub hole_len: u16,
    /// Bytes saved by compression, and the method; `None` without compression.
    pub saved: Option<(u16, String)>,
}

const PAGE_BYTES: u16 = 8192;

impl DumpedImage {
    /// Bytes as stored.
    pub fn len(&self) -> u16 {
        PAGE_BYTES - self.hole_len - self.saved.as_ref().map_or(0, |saved| saved.0)
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the arguments that make pg_waldump read the records of `wal` from `start` up to `end`.
pub fn range_arguments(wal: &Path, start: &str, end: &str) -> Vec<String> {
    vec!["-p".into(), wal.display().to_string(), "-s".into(), start.into(), "-e".into(), end.into()]
}

/// Returns the lines of `pg_waldump --stats=record`, except kinds without records.
pub fn stats(pg_waldump: &Path, arguments: &[String]) -> Result<Vec<StatsRow>> {
    let output = Command::new(pg_waldump)
        .arg("--stats=record")
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {}", pg_waldump.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{} failed: {}",
        pg_waldump.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    parse_stats(&text)
}

/// Parses the output of `pg_waldump --stats=record`, except kinds without records.
fn parse_stats(text: &str) -> Result<Vec<StatsRow>> {
    let lines = text.lines().skip_while(|line| !line.starts_with("----")).skip(1);
    let rows = lines.take_while(|line| !line.trim_start().starts_with("---"));
    let rows: Result<Vec<StatsRow>> = rows.filter(|line| !line.trim().is_empty()).map(stats_row).collect();
    let mut rows = rows?;
    rows.retain(|row| row.count > 0);
    Ok(rows)
}

fn stats_row(line: &str) -> Result<StatsRow> {
    // The shares in brackets contain blanks; the name may contain a bracket too, but without a dot.
    let mut plain = String::new();
    for (index, part) in line.split('(').enumerate() {
        match part.split_once(')') {
            Some((share, rest)) if share.contains('.') || share.contains("nan") => plain.push_str(rest),
            _ if index == 0 => plain.push_str(part),
            _ => {
                plain.push('(');
                plain.push_str(part);
            }
        }
    }
    let mut words: Vec<&str> = plain.split_whitespace().collect();
    let mut number = || words.pop().and_then(|word| word.parse().ok());
    let (_, image_bytes, record_bytes, count) = (number(), number(), number(), number());
    match (count, record_bytes, image_bytes) {
        (Some(count), Some(record_bytes), Some(image_bytes)) => {
            Ok(StatsRow { name: words.join(" "), count, record_bytes, image_bytes })
        }
        _ => bail!("cannot parse the statistics of pg_waldump: {line}"),
    }
}

/// Calls `each` for every record that pg_waldump lists. Its error at the end of WAL is ignored.
pub fn records(
    pg_waldump: &Path,
    arguments: &[String],
    mut each: impl FnMut(DumpedRecord) -> Result<()>,
) -> Result<()> {
    let mut child = Command::new(pg_waldump)
        .arg("--bkp-details")
        .args(arguments)
        .env("TZ", "UTC")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", pg_waldump.display()))?;
    let output = child.stdout.take().context("cannot read the output of pg_waldump")?;
    let mut current: Option<DumpedRecord> = None;
    for line in BufReader::new(output).split(b'\n') {
        // Names in descriptions may be in any encoding.
        let line = String::from_utf8_lossy(&line?).into_owned();
        if line.starts_with("rmgr: ") {
            if let Some(record) = current.replace(record_line(&line)?) {
                each(record)?;
            }
        } else if let (true, Some(record)) = (line.starts_with("\tblkref #"), &mut current) {
            record.blocks.push(block_line(&line)?);
        }
    }
    current.map(each).transpose()?;
    child.wait()?;
    Ok(())
}

fn record_line(line: &str) -> Result<DumpedRecord> {
    let parse = || {
        let rest = line.strip_prefix("rmgr: ")?;
        let (manager, rest) = rest.split_once("len (rec/tot):")?;
        let (lengths, rest) = rest.split_once(", tx:")?;
        let (without_images, total) = lengths.split_once('/')?;
        let (xid, rest) = rest.split_once(", lsn: ")?;
        let (lsn, rest) = rest.split_once(", prev ")?;
        let (prev, description) = rest.split_once(", desc: ")?;
        // The name of an unknown kind consists of two words.
        let words = if description.starts_with("UNKNOWN (") { 2 } else { 1 };
        let kind = description.split(' ').take(words).collect::<Vec<_>>().join(" ");
        let text = description.strip_prefix(&kind)?;
        let text = text.strip_prefix(' ').unwrap_or(text).to_owned();
        Some(DumpedRecord {
            manager: manager.trim().to_owned(),
            kind,
            description: text,
            len_without_images: without_images.trim().parse().ok()?,
            total_len: total.trim().parse().ok()?,
            xid: xid.trim().parse().ok()?,
            lsn: lsn.to_owned(),
            prev: prev.to_owned(),
            blocks: Vec::new(),
        })
    };
    parse().with_context(|| format!("cannot parse a record of pg_waldump: {line}"))
}

fn block_line(line: &str) -> Result<DumpedBlock> {
    let parse = || {
        let rest = line.strip_prefix("\tblkref #")?;
        let (id, rest) = rest.split_once(": rel ")?;
        let (relation, rest) = rest.split_once(" fork ")?;
        let (fork, rest) = rest.split_once(" blk ")?;
        let (block, image) = match rest.split_once(" (FPW") {
            None => (rest, None),
            Some((block, image)) => (block, Some(image_text(image)?)),
        };
        Some(DumpedBlock {
            id: id.parse().ok()?,
            relation: relation.to_owned(),
            fork: fork.to_owned(),
            block: block.trim().parse().ok()?,
            image,
        })
    };
    parse().with_context(|| format!("cannot parse a block of pg_waldump: {line}"))
}

fn image_text(text: &str) -> Option<DumpedImage> {
    let apply = !text.starts_with(" for WAL verification");
    let after = |key: &str| {
        let (_, rest) = text.split_once(key)?;
        rest.split(|c: char| !c.is_ascii_alphanumeric()).next()
    };
    let saved = match after("compression saved: ") {
        Some(saved) => Some((saved.parse().ok()?, after("method: ")?.to_owned())),
        None => None,
    };
    let hole_offset = after("hole: offset: ")?.parse().ok()?;
    Some(DumpedImage { apply, hole_offset, hole_len: after(", length: ")?.parse().ok()?, saved })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_understood() {
        let line = "Heap/INSERT+INIT                               3 (  0.05)                  114 (  0.08)                    0 (  0.00)                  114 (  0.07)";
        let row = StatsRow { name: "Heap/INSERT+INIT".into(), count: 3, record_bytes: 114, image_bytes: 0 };
        assert_eq!(stats_row(line).unwrap(), row);
        let unknown = "Heap/UNKNOWN (f0)   3 (  0.05)    114 (  0.08)   0 ( -nan)    114 (  0.07)";
        assert_eq!(stats_row(unknown).unwrap().name, "Heap/UNKNOWN (f0)");
        assert!(stats_row("nonsense").is_err());
    }

    #[test]
    fn records_are_understood() {
        let record = record_line(
            "rmgr: Heap        len (rec/tot):     59/  8203, tx:        760, lsn: 0/01500028, prev 0/014FFFF0, desc: INSERT off: 1, flags: 0x00",
        )
        .unwrap();
        assert_eq!((record.manager.as_str(), record.kind.as_str()), ("Heap", "INSERT"));
        assert_eq!((record.len_without_images, record.total_len, record.xid), (59, 8203, 760));
        let block = block_line("\tblkref #0: rel 1663/5/1259 fork main blk 7 (FPW); hole: offset: 220, length: 252, compression saved: 5000, method: lz4").unwrap();
        let image = block.image.unwrap();
        assert_eq!((block.block, image.len(), image.apply), (7, 8192 - 252 - 5000, true));
        let block = block_line("\tblkref #1: rel 1663/5/1259 fork vm blk 0").unwrap();
        assert_eq!((block.fork.as_str(), block.image), ("vm", None));
        let check = block_line("\tblkref #0: rel 1663/5/1259 fork main blk 7 (FPW for WAL verification); hole: offset: 0, length: 0").unwrap();
        assert!(!check.image.unwrap().apply);
    }
}
