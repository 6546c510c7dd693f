//! How small files become: for those who work on the codec.
//!
//! `LEVEL` is from 1 to 9; `PACK` lets files follow each other; `SIZES` shows what became of classes.

use std::collections::BTreeMap;
use std::time::Instant;

use walden_codec::coder::{Decoder, Encoder, Limits};

fn main() {
    let level = std::env::var("LEVEL").ok().and_then(|level| level.parse().ok()).unwrap_or(5);
    let pack = std::env::var_os("PACK").is_some();
    let mut total = (0, 0, 0.0, 0.0);
    let mut encoder = Encoder::new(level, Limits::default());
    let mut decoder = Decoder::new(Limits::default());
    let mut classes = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("readable");
        let t = Instant::now();
        if !pack {
            count(&mut classes, &encoder);
            encoder.restart();
        }
        let packed = encoder.encode(&bytes);
        let c = t.elapsed().as_secs_f64();
        let t = Instant::now();
        assert!(decoder.decode(&packed, bytes.len()).expect("decodes") == bytes);
        let d = t.elapsed().as_secs_f64();
        println!(
            "{path} {:?} {} -> {} ({:.2}x) c {c:.2}s d {d:.2}s",
            packed.form,
            bytes.len(),
            packed.content.len(),
            bytes.len() as f64 / packed.content.len() as f64
        );
        total = (total.0 + bytes.len(), total.1 + packed.content.len(), total.2 + c, total.3 + d);
    }
    count(&mut classes, &encoder);
    if std::env::var_os("SIZES").is_some() {
        for (class, (bytes, stored)) in classes {
            println!("{class} {bytes} -> {stored}");
        }
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

fn count(classes: &mut BTreeMap<String, (u64, u64)>, encoder: &Encoder) {
    for of in encoder.statistics() {
        let (bytes, stored) = classes.entry(format!("{:?}", of.class)).or_default();
        *bytes += of.bytes;
        *stored += of.stored;
    }
}
