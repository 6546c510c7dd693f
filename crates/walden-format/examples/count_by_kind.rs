//! Counts the records of segment files and their bytes by kind.
//!
//! `cargo run --example count_by_kind -- pg_wal/000000010000000000000001 ...`

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Read};

use walden_format::records::RecordReader;

fn main() -> Result<(), Box<dyn Error>> {
    // Number of records and their bytes, by resource manager and kind.
    let mut counts = BTreeMap::<String, (u64, u64)>::new();
    for path in std::env::args().skip(1) {
        let mut records = RecordReader::new(open(&path)?)?;
        while let Some(record) = records.next_record()? {
            let kind = record.kind();
            let name = format!("{} {}", kind.resource_manager(record.version), kind.name(record.version));
            let (count, bytes) = counts.entry(name).or_default();
            *count += 1;
            *bytes += u64::from(record.header.total_len);
        }
    }
    for (name, (count, bytes)) in counts {
        println!("{count:>10} {bytes:>12}  {name}");
    }
    Ok(())
}

/// Opens an uncompressed segment file, or standard input for `-`.
fn open(path: &str) -> Result<Box<dyn Read>, Box<dyn Error>> {
    if path == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|error| format!("cannot open {path}: {error}"))?;
    Ok(Box::new(BufReader::new(file)))
}
