//! Runs the body of each fuzz target on damaged copies of real inputs. The inputs are the same in each run:
//! coverage-guided search is left to `cargo fuzz`.

use std::fs::{self, File};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use walden_format::records::RecordReader;
use walden_format::version::Major;

/// Runs a target's body on a number of damaged inputs.
macro_rules! damaged {
    ($($target:ident, $runs:literal, $seeds:expr;)*) => {
        $(#[test]
        fn $target() {
            run(stringify!($target), $runs, &$seeds, walden_fuzz::$target::run);
        })*
    };
}

damaged! {
    // target, number of inputs, seeds
    archive_request, 100_000, requests();
    base_backup, 20_000, base_backups();
    block_headers, 100_000, records().iter().map(|record| [&record.bytes[..], &[0; 3]].concat()).collect::<Vec<_>>();
    codec, 8_000, [0, 1].iter().flat_map(|mend| compressed().into_iter().map(|file| [&[*mend], &file[..]].concat())).collect::<Vec<_>>();
    codec_roundtrip, 300, contents();
    page_stream, 6_000, pages();
    record, 60_000, records().iter().map(Recorded::for_record).collect::<Vec<_>>();
    replication, 100_000, messages();
    tuple, 100_000, tuples();
}

/// The longest input, as `-max_len` of `cargo fuzz`.
const MAX_BYTES: usize = 64 << 10;

fn run(target: &str, inputs: u64, seeds: &[Vec<u8>], body: fn(&[u8])) {
    assert!(!seeds.is_empty());
    for seed in seeds {
        body(&seed[..seed.len().min(MAX_BYTES)]);
    }
    for number in 0..inputs {
        let input = Random(number).damage(seeds);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&input))) {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{target}-{number}"));
            fs::write(&path, &input).expect("a folder of the build");
            eprintln!(
                "{target}: the input is in {}; cargo fuzz run --features libfuzzer {target} FILE repeats it",
                path.display()
            );
            resume_unwind(panic);
        }
    }
}

/// The pseudorandom generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn range(&mut self, bytes: &[u8], most: usize) -> std::ops::Range<usize> {
        let start = self.below(bytes.len());
        start..start + self.below(most.min(bytes.len() - start) + 1)
    }

    /// Returns one of the seeds, with some bytes changed, inserted, removed, repeated or copied from another
    /// seed.
    fn damage(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        bytes.truncate(MAX_BYTES);
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len());
            match self.below(9) {
                _ if bytes.is_empty() => bytes.push(self.next() as u8),
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes[at] = bytes[at].wrapping_add(1 + 254 * self.below(2) as u8),
                3 | 4 => {
                    // Lengths and counts at the limits of their ranges.
                    let number =
                        [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, u64::MAX][self.below(9)];
                    let width = [2, 4, 8][self.below(3)].min(bytes.len() - at);
                    bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
                }
                5 => drop(bytes.drain(self.range(&bytes.clone(), 64))),
                6 => {
                    let copied = bytes[self.range(&bytes, 64)].to_vec();
                    bytes.splice(at..at, copied);
                }
                7 => bytes.truncate(at.max(1)),
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let taken = other[self.range(other, 256)].to_vec();
                    let end = (at + taken.len()).min(bytes.len());
                    bytes.splice(at..end, taken);
                }
            }
        }
        bytes.truncate(MAX_BYTES);
        bytes
    }
}

/// A record of the golden segments.
struct Recorded {
    version: u8,
    manager: u8,
    info: u8,
    bytes: Vec<u8>,
    /// The data of its blocks.
    blocks: Vec<Vec<u8>>,
}

impl Recorded {
    const HEADER: usize = 24;

    /// Builds the input of `record`: version, resource manager and kind, and the bytes after the header.
    fn for_record(&self) -> Vec<u8> {
        [&[self.version, self.manager, self.info], &self.bytes[Self::HEADER..]].concat()
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the golden segments of all versions, each with the index of its version in [`Major::all`].
fn segments() -> &'static [(u8, Vec<u8>)] {
    static SEGMENTS: OnceLock<Vec<(u8, Vec<u8>)>> = OnceLock::new();
    SEGMENTS.get_or_init(|| {
        let versions: Vec<Major> = Major::all().collect();
        let folders = files_in(&root().join("testdata/golden")).into_iter().filter(|path| path.is_dir());
        let unpacked = folders.flat_map(|folder| files_in(&folder)).map(|file| {
            let mut bytes = Vec::new();
            let mut xz = liblzma::read::XzDecoder::new(File::open(file).expect("a file"));
            xz.read_to_end(&mut bytes).expect("a segment");
            let version =
                versions.iter().position(|version| bytes.starts_with(&version.magic().to_le_bytes()));
            (version.expect("a version of PostgreSQL") as u8, bytes)
        });
        unpacked.collect()
    })
}

/// Returns the files in a folder, sorted by name.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
}

/// Returns a few hundred records of each version: the first one of each kind and rounded length, up to two
/// pages.
fn records() -> &'static [Recorded] {
    static RECORDS: OnceLock<Vec<Recorded>> = OnceLock::new();
    RECORDS.get_or_init(|| {
        let mut seen = std::collections::HashSet::new();
        let mut records = Vec::new();
        for (version, segment) in segments() {
            let mut reader = RecordReader::new(&segment[..]).expect("a segment");
            while let Ok(Some(record)) = reader.next_record() {
                let header = record.header;
                let length = header.total_len.next_power_of_two();
                if header.total_len > 16_384 || !seen.insert((*version, header.rmid, header.info, length)) {
                    continue;
                }
                records.push(Recorded {
                    version: *version,
                    manager: header.rmid,
                    info: header.info,
                    bytes: record.bytes().to_vec(),
                    blocks: record.blocks.iter().map(|block| record.block_data(block).to_vec()).collect(),
                });
            }
        }
        records
    })
}

/// Returns compressed files with all features of the format.
fn compressed() -> Vec<Vec<u8>> {
    let folder = root().join("crates/walden-codec/tests/golden");
    let paths: Vec<PathBuf> =
        ["v1", "v2"].iter().flat_map(|version| files_in(&folder.join(version))).collect();
    paths.iter().map(|path| fs::read(path).expect("a golden file")).collect()
}

/// Builds the inputs of `codec_roundtrip`: version, whether to frame, where to cut, and records as length,
/// transaction, info, manager and content.
fn contents() -> Vec<Vec<u8>> {
    let of_version = |version: u8| {
        let mut input = vec![version, 1, 128];
        for record in records().iter().filter(|record| record.version == version) {
            let content = &record.bytes[Recorded::HEADER..];
            let Ok(length) = u8::try_from(content.len()) else { continue };
            input.extend([length, 9, record.info, record.manager]);
            input.extend(content);
        }
        input
    };
    let mut inputs: Vec<Vec<u8>> = (0..Major::all().count() as u8).map(of_version).collect();
    // Bytes that are not WAL.
    inputs.push([&[0, 0, 0], &inputs[0][..]].concat());
    inputs
}

/// Builds the inputs of `page_stream`: version, parts to correct, pages per call, and pages.
fn pages() -> Vec<Vec<u8>> {
    let of_segment = |(version, segment): &(u8, Vec<u8>)| {
        [1, 3].map(|mend| [&[*version, mend, 3], &segment[..segment.len().min(MAX_BYTES - 3)]].concat())
    };
    segments().iter().flat_map(of_segment).collect()
}

/// Builds the inputs of `tuple`: number of columns, the type of each, and values.
fn tuples() -> Vec<Vec<u8>> {
    let blocks =
        records().iter().flat_map(|record| &record.blocks).filter(|data| (6..4096).contains(&data.len()));
    blocks
        .enumerate()
        .map(|(number, data)| {
            let mut random = Random(number as u64);
            let columns = 1 + random.below(15);
            let mut input = vec![columns as u8];
            input.extend((0..columns).map(|_| random.next() as u8));
            // The bytes after a tuple's header in a record.
            input.extend(&data[5..]);
            input
        })
        .collect()
}

/// Builds a server's messages: a response to startup, WAL data with a keepalive message, and an error.
/// A tar archive with a folder and files, and a list of pieces.
fn base_backups() -> Vec<Vec<u8>> {
    let entry = |name: &[u8], kind: u8, content: &[u8]| {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name);
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let padding = vec![0; content.len().next_multiple_of(512) - content.len()];
        [&header[..], content, &padding].concat()
    };
    let archive = [
        entry(b"backup_label", b'0', b"START WAL LOCATION: 0/2000028\n"),
        entry(b"base/1", b'5', b""),
        entry(b"base/1/1259", b'0', &[7; 8192]),
        vec![0; 1024],
    ]
    .concat();
    let (name, hash) = (walden_fuzz::base_backup::NAME, "0f".repeat(32));
    let list = format!(
        "{{\"walden_pieces\":1,\"folders\":[\"{name}\"],\"archives\":[{{\"tablespace\":null,\"pieces\":[[\"{hash}\",8192,99,0],\"00ff\"]}}]}}"
    );
    vec![archive, list.into_bytes()]
}

fn messages() -> Vec<Vec<u8>> {
    let message =
        |kind: u8, content: &[u8]| [&[kind], &(content.len() as u32 + 4).to_be_bytes()[..], content].concat();
    let status = [&b"S"[..], b"server_version\0", b"15.18\0"].concat();
    let data = [&b"w"[..], &[0; 24], &segments()[0].1[..512]].concat();
    let alive = [&b"k"[..], &[0; 17]].concat();
    vec![
        [message(b'R', &[0; 4]), message(b'S', &status[1..]), message(b'Z', b"I")].concat(),
        [message(b'W', &[0; 3]), message(b'd', &data), message(b'd', &alive), message(b'c', b"")].concat(),
        message(b'E', b"SERROR\0C58P01\0Mrequested WAL segment has already been removed\0\0"),
    ]
}

/// Builds requests of `walden_archive.so`.
fn requests() -> Vec<Vec<u8>> {
    let request = |fields: [&str; 4]| {
        let fields: Vec<u8> = fields
            .iter()
            .flat_map(|field| [&(field.len() as u16).to_be_bytes()[..], field.as_bytes()].concat())
            .collect();
        [&b"WALD\x01\0"[..], &(fields.len() as u16).to_be_bytes(), &fields].concat()
    };
    vec![
        request(["/var/lib/postgresql/15/main", "000000010000000000000009", "", ""]),
        request(["/srv/pg", "00000002.history", "s3://bucket/prefix", "/etc/walden.toml"]),
    ]
}
