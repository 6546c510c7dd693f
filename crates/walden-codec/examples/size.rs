//! Measures compressed size and speed, for developers of the codec.
//!
//! `LEVEL` is from 0 to 9. Unlike in a container, records are coded at level 0 as well. With `PACK`, files
//! follow each other. `ENCODES` and `DECODES` set how many times each file is coded and decoded; the fastest
//! run counts. With `PACK`, files are coded once, and each decoding of all files prints a line. `MEMORY` is
//! the memory for pages in MB (64). Times are processor seconds, if Linux reports them.

use std::time::Instant;

use walden_codec::coder::{Decoder, Encoder, Limits};

fn main() {
    let level = number("LEVEL").unwrap_or(5) as u8;
    let pack = std::env::var_os("PACK").is_some();
    let [encodes, decodes] = ["ENCODES", "DECODES"].map(|name| number(name).unwrap_or(1).max(1));
    let (encodes, decodes, more_decodes) = if pack { (1, 1, decodes - 1) } else { (encodes, decodes, 0) };
    let page_memory =
        number("MEMORY").map_or(Limits::default().page_memory, |megabytes| (megabytes as usize) << 20);
    let limits = Limits { page_memory, ..Limits::default() };
    let mut total = (0, 0, 0.0, 0.0);
    let (encoder, decoder) = (Encoder::new(level, limits), Decoder::new(limits));
    let (mut encoder, mut decoder) =
        if pack { (encoder, decoder) } else { (encoder.alone(), decoder.alone()) };
    let mut members = Vec::new();
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("readable");
        let (packed, c) = fastest(encodes, || encoder.encode(&bytes));
        let (decoded, d) = fastest(decodes, || {
            let mut decoded = Vec::with_capacity(bytes.len());
            let whole = decoder.decode(&packed, bytes.len(), &mut |more| decoded.extend_from_slice(more));
            whole.map(|()| decoded)
        });
        assert!(decoded.expect("decodes") == bytes);
        println!(
            "{path} {:?} {} -> {} ({:.2}x) c {c:.2}s d {d:.2}s",
            packed.form,
            bytes.len(),
            packed.content.len(),
            bytes.len() as f64 / packed.content.len() as f64
        );
        total = (total.0 + bytes.len(), total.1 + packed.content.len(), total.2 + c, total.3 + d);
        if more_decodes > 0 {
            members.push((packed, bytes.len()));
        }
    }
    for _ in 0..more_decodes {
        let mut decoder = Decoder::new(limits);
        let ((), seconds) = fastest(1, || {
            for (packed, bytes) in &members {
                decoder.decode(packed, *bytes, &mut |_| ()).expect("decodes");
            }
        });
        println!("all once more: d {seconds:.2}s");
    }
    println!(
        "total {} -> {} = {:.2}x; {:.2}s {:.2}s",
        total.0,
        total.1,
        total.0 as f64 / total.1 as f64,
        total.2,
        total.3
    );
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a function `times` times. Returns the last result and the seconds of the fastest run.
fn fastest<T>(times: u32, mut run: impl FnMut() -> T) -> (T, f64) {
    let mut timed = || {
        let (wall, before) = (Instant::now(), on_processor());
        let result = run();
        let seconds = before.zip(on_processor()).map(|(before, after)| after - before);
        (result, seconds.unwrap_or_else(|| wall.elapsed().as_secs_f64()))
    };
    let mut last = timed();
    for _ in 1..times {
        let (result, seconds) = timed();
        last = (result, seconds.min(last.1));
    }
    last
}

/// Returns the processor time of the first thread in seconds.
fn on_processor() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}
