//! Prints the columns of compressed files: number, class, form, bytes and CRC-32C of each, one per line.
//!
//! `cargo run --example columns FILE...`. The independent decoder in `tests/format/decode.py` prints the
//! same.

use std::io::Cursor;

use walden_codec::coder::{ColumnDecoder, Decoder, Form, Limits};
use walden_codec::container::{ReadLimits, Reader};
use walden_format::crc::crc32c_append;

#[allow(dead_code)] // The comparing test uses only the other functions.
fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("readable");
        for line in lines_of(&bytes).expect("a compressed file") {
            println!("{line}");
        }
    }
}

/// Returns the lines to print for a file.
pub fn lines_of(file: &[u8]) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut reader = Reader::open(Cursor::new(file), ReadLimits::default())?;
    let mut columns = ColumnDecoder::default();
    let mut lines = Vec::new();
    while let Some(head) = reader.next()? {
        let form = if head.form == Form::Records { "records" } else { "bytes" };
        let name = String::from_utf8_lossy(&head.meta.name);
        lines.push(format!("member {} {form} {name}", head.number));
        for (number, (bytes, coded)) in reader.coded_pieces(&head)?.iter().enumerate() {
            let bytes = usize::try_from(*bytes)?;
            if head.form == Form::Bytes {
                let (mut crc, mut len) = (0, 0);
                Decoder::new(Limits::default()).decode(coded, bytes, &mut |original| {
                    crc = crc32c_append(crc, original);
                    len += original.len();
                })?;
                lines.push(format!("piece {number} {len} {crc:08X}"));
                continue;
            }
            lines.extend(columns.decode(coded, bytes)?.into_iter().map(|column| {
                format!(
                    "column {} class {} form {} {} {:08X}",
                    column.number,
                    column.class as u8,
                    column.form,
                    column.bytes.len(),
                    crc32c_append(0, column.bytes)
                )
            }));
        }
    }
    Ok(lines)
}
