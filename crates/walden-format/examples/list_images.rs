//! Lists the full-page images of a relation, given as tablespace/database/relation file number.
//!
//! `cargo run --example list_images -- 1663/5/16384 pg_wal/000000010000000000000001 ...`

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Read};

use walden_format::records::RecordReader;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let relation = arguments.next().ok_or("usage: list_images RELATION SEGMENT...")?;
    let (mut count, mut bytes) = (0_u64, 0_u64);
    for path in arguments {
        let mut records = RecordReader::new(open(&path)?)?;
        while let Some(record) = records.next_record()? {
            for block in record.blocks.iter().filter(|block| block.relation.to_string() == relation) {
                let Some(image) = block.image else { continue };
                let kind = record.kind().name(record.version);
                let (fork, number, compression) = (block.fork, block.block, image.compression);
                println!(
                    "{} {kind}: {fork} block {number}, {} bytes, {compression:?}",
                    record.lsn, image.len
                );
                count += 1;
                bytes += u64::from(image.len);
            }
        }
    }
    println!("{count} images, {bytes} bytes");
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
