//! Lists the records of a transaction, with their fields.
//!
//! `cargo run --example find_transaction -- 745 pg_wal/000000010000000000000001 ...`

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Read};

use walden_format::payload;
use walden_format::records::RecordReader;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let xid: u32 = arguments.next().ok_or("usage: find_transaction XID SEGMENT...")?.parse()?;
    for path in arguments {
        let mut records = RecordReader::new(open(&path)?)?;
        while let Some(record) = records.next_record()? {
            if record.header.xid != xid {
                continue;
            }
            let kind = record.kind();
            let (manager, name) = (kind.resource_manager(record.version), kind.name(record.version));
            println!("{} {manager} {name} {}", record.lsn, payload::parse(&record)?);
            for block in record.blocks {
                let image = if block.image.is_some() { ", full-page image" } else { "" };
                println!("    {} {} block {}{image}", block.relation, block.fork, block.block);
            }
        }
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
