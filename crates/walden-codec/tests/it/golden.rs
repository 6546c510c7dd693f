//! Files that a version wrote, one per feature of the format: every later version reads them.
//!
//! `tests/golden/` holds them; what is in them comes from `testdata/golden/`. Until the first release, a change of the
//! format makes them anew: `WALDEN_RENEW_GOLDEN=1 cargo test -p walden-codec --test it golden`. After it, files are only
//! added.

use std::fs;
use std::path::Path;

use walden_codec::container::{FileForm, WriteOptions};

use crate::material::{File, consecutive, first_pages, mixture, noise, options, read, segment, write};

/// A file: its name, how it is written, what is in it.
type Golden = (&'static str, WriteOptions, Vec<File>);

fn all() -> Vec<Golden> {
    let [first, second, third] = consecutive();
    let of = |version, name: &'static str, pages| (name, first_pages(&segment(version, name), pages));
    let single = |level| options(FileForm::Segment, level);
    let pack = |level| options(FileForm::Pack, level);
    vec![
        ("empty.wlz", single(5), vec![("empty", Vec::new())]),
        ("stored.wlz", single(5), vec![("noise", noise(1000))]),
        ("bytes.wlz", single(5), vec![("text", b"The quick brown fox\n".repeat(50))]),
        ("pieces.wlz", single(1), vec![("zeros", vec![0; (16 << 20) + 1])]),
        ("records-14.wlz", single(9), vec![of("14.23", "00000001000000000000000B", 64)]),
        ("records-17.wlz", single(5), vec![of("17.11", "000000010000000000000009", 64)]),
        ("records-18.wlz", single(1), vec![of("18.6", "00000001000000000000000C", 16)]),
        ("records-zstd.wlz", single(5), vec![of("15.18-zstd", "00000001000000000000000A", 40)]),
        ("records-lz4.wlz", single(5), vec![of("15.18-lz4", "00000001000000000000000F", 14)]),
        ("cut-record.wlz", single(5), vec![(second.0, second.1.clone())]),
        ("none.wpk", pack(5), Vec::new()),
        ("sharing.wpk", pack(5), vec![first.clone(), second.clone(), third.clone()]),
        ("keyframes.wpk", WriteOptions { keyframe: 1, ..pack(5) }, vec![first, second, third]),
        ("mixture.wpk", pack(1), mixture()),
    ]
}

#[test]
fn every_version_reads_what_was_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let renew = std::env::var_os("WALDEN_RENEW_GOLDEN").is_some();
    for (name, options, files) in all() {
        let path = folder.join(name);
        if renew {
            fs::write(&path, write(options, &files).0).unwrap();
        }
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes.len() < 50_000, "{name} is too large to be kept");
        let back = read(&bytes);
        assert_eq!(back.len(), files.len(), "{name}");
        for ((name_back, bytes_back), (name_then, bytes_then)) in back.iter().zip(&files) {
            assert!(name_back == name_then && bytes_back == bytes_then, "{name}: {name_then}");
        }
    }
}
