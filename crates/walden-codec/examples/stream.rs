//! Compresses or decompresses standard input to standard output.
//!
//! `cargo run --release --example stream < SEGMENT > SEGMENT.wlz` compresses. With `-d`, it decompresses.

use std::io::{self, BufWriter};

use walden_codec::container::{Error, FileForm, Meta, ReadLimits, WriteOptions};

fn main() -> Result<(), Error> {
    let (input, output) = (io::stdin().lock(), BufWriter::new(io::stdout().lock()));
    if std::env::args().any(|argument| argument == "-d") {
        walden_codec::decompress(input, output, ReadLimits::default())?;
    } else {
        let meta = Meta { name: b"stdin".to_vec(), ..Meta::default() };
        walden_codec::compress(input, output, meta, WriteOptions::new(FileForm::Segment))?;
    }
    Ok(())
}
