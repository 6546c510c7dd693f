//! Decoding stays within the memory that a file's header states, for any content. All allocations are
//! counted.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use walden_codec::container::{Error, FileForm, Meta, Needs, ReadLimits, Reader, WriteOptions, Writer, walk};
use walden_format::crc::crc32c_append;

/// The system allocator with counters.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST_HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST_HELD.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's contract is that of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allows only one test at a time to count.
static COUNTS: Mutex<()> = Mutex::new(());

const HEADER: usize = 40;
const FRAME: usize = 40;
const MIB: usize = 1 << 20;

/// Returns the peak of the bytes allocated by a function, beyond those allocated before.
fn most_held<T>(act: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Ordering::Relaxed);
    MOST_HELD.store(before, Ordering::Relaxed);
    let done = act();
    (MOST_HELD.load(Ordering::Relaxed) - before, done)
}

/// Decodes all members of a file.
fn decode_all(file: &[u8], limits: ReadLimits) -> Result<Vec<Error>, Error> {
    let walked =
        walk(Cursor::new(file), limits, &mut |reader, head| reader.decode(head, &mut std::io::sink()));
    walked.map(|walk| walk.damage)
}

/// Returns the memory that the file header states.
fn stated(file: &[u8]) -> Option<u64> {
    let reader = Reader::open(Cursor::new(file), ReadLimits::default()).ok()?;
    reader.header().map(|header| header.needs.memory())
}

fn golden() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below.max(1)
    }
}

fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let checksum = crc32c_append(0, &bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// Recomputes the checksums of frames and of the parts in them.
fn mend(file: &mut [u8]) {
    seal(&mut file[..HEADER]);
    let mut at = HEADER;
    while let Some(frame) = file.get_mut(at..).filter(|frame| frame.len() >= FRAME) {
        let length = u64::from_le_bytes(frame[24..32].try_into().unwrap());
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(frame.len() - FRAME);
        if frame[4] == 2 && length > 8 {
            mend_parts(&mut frame[FRAME + 8..FRAME + length]);
        }
        let checksum = crc32c_append(0, &frame[FRAME..FRAME + length]);
        frame[32..36].copy_from_slice(&checksum.to_le_bytes());
        seal(&mut frame[..FRAME]);
        at += FRAME + length;
    }
}

/// Returns the LEB128 number at an offset, and the offset after it.
fn number_at(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let (mut number, mut shift) = (0_usize, 0);
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        number |= usize::from(byte & 0x7F) << shift.min(56);
        shift += 7;
        if byte < 0x80 {
            return Some((number, at));
        }
    }
}

fn mend_parts(mut parts: &mut [u8]) {
    loop {
        let Some((stored, at)) = number_at(parts, 1).and_then(|(_, at)| number_at(parts, at)) else { return };
        let Some(end) = stored.checked_add(at + 4).filter(|end| *end <= parts.len()) else { return };
        let checksum = crc32c_append(0, &parts[at + 4..end]);
        parts[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        parts = &mut parts[end..];
    }
}

/// Returns the ranges of pieces in a file.
fn pieces(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut at) = (Vec::new(), HEADER);
    while let Some(frame) = file.get(at..at + FRAME) {
        let length = u64::from_le_bytes(frame[24..32].try_into().unwrap()) as usize;
        if frame[4] == 2 {
            found.push(at + FRAME..at + FRAME + length);
        }
        at += FRAME + length;
    }
    found
}

#[test]
fn golden_files_take_no_more_than_they_state() {
    let _counts = COUNTS.lock();
    for (name, file) in golden() {
        let stated = stated(&file).unwrap() as usize;
        let (most, damage) = most_held(|| decode_all(&file, ReadLimits::default()).unwrap());
        assert!(damage.is_empty() && most < stated, "{name}: {} MiB, {} stated", most / MIB, stated / MIB);
    }
}

#[test]
fn changed_files_take_no_more_than_they_state() {
    let _counts = COUNTS.lock();
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    for (name, original) in golden() {
        let Some(pieces) = Some(pieces(&original)).filter(|pieces| !pieces.is_empty()) else { continue };
        // Context mixing is slow in unoptimized builds.
        let rounds = if original[13] >= 7 { 4 } else { 60 };
        for round in 0..rounds {
            let mut file = original.clone();
            for _ in 0..=numbers.next(4) {
                let piece = &pieces[numbers.next(pieces.len())];
                // Half of the changes are near the start, where the lengths are.
                let span = if round % 2 == 0 { piece.len() } else { piece.len().min(64) };
                let at = piece.start + 8 + numbers.next(span.saturating_sub(8));
                file[at.min(original.len() - 1)] ^= 1 << numbers.next(8);
            }
            mend(&mut file);
            let stated = stated(&file).unwrap() as usize;
            let (most, _) = most_held(|| decode_all(&file, ReadLimits::default()));
            assert!(most < stated, "{name}, round {round}: {} MiB, {} stated", most / MIB, stated / MIB);
        }
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns a zstd part.
fn part(content: &[u8], claimed: u64) -> Vec<u8> {
    let stored = zstd::bulk::compress(content, 19).unwrap();
    let mut out = vec![1];
    put_number(&mut out, claimed);
    put_number(&mut out, stored.len() as u64);
    out.extend(crc32c_append(0, &stored).to_le_bytes());
    out.extend(stored);
    out
}

/// Returns a file of one segment of 1 GiB with a chunk of columns. Its header states `memory_mib`.
fn file_of(chunk: &[u8], memory_mib: u32) -> Vec<u8> {
    let frame = |number: u64, kind: u8, content: &[u8]| {
        let mut frame = vec![0; FRAME];
        frame[..4].copy_from_slice(b"\xF7Wlz");
        frame[4] = kind;
        frame[16..24].copy_from_slice(&number.to_le_bytes());
        frame[24..32].copy_from_slice(&(content.len() as u64).to_le_bytes());
        frame[32..36].copy_from_slice(&crc32c_append(0, content).to_le_bytes());
        seal(&mut frame);
        [&frame[..], content].concat()
    };
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(b"\x8AWLDN\r\n\x1A");
    header[8..14].copy_from_slice(&[1, 0, 1, 0, 1, 3]);
    header[24..28].copy_from_slice(&memory_mib.to_le_bytes());
    header[28..32].copy_from_slice(&1000_u32.to_le_bytes());
    seal(&mut header);
    let mut head = vec![0; 46];
    (head[8], head[9], head[12]) = (1, 1, 1);
    head[24..28].copy_from_slice(&(1_u32 << 30).to_le_bytes());
    let piece = [&(1_u64 << 30).to_le_bytes()[..], chunk].concat();
    [&header[..], &frame(0, 1, &head), &frame(1, 2, &piece), &frame(2, 3, &[0; 72])].concat()
}

/// Each file has a few kB and would take gigabytes if its lengths were trusted.
#[test]
fn bombs_take_no_more_than_they_state() {
    let _counts = COUNTS.lock();
    const STATED: u32 = 100;
    let directory = |columns: u64, bytes: u64| {
        let mut directory = Vec::new();
        put_number(&mut directory, columns);
        // Class 0, form bytes.
        (0..columns).for_each(|_| directory.extend([0, 1]));
        (0..columns).for_each(|_| put_number(&mut directory, bytes));
        directory
    };
    let zeros = vec![0; 64 * MIB];
    let directories = [
        directory(1, 4 << 30),
        directory(1, 8 << 20),
        directory(1, 60 << 20),
        directory(2000, 2 << 20),
        directory(4_000_000, 0),
        directory(300_000, 1),
        zeros.clone(),
    ];
    for (which, directory) in directories.iter().enumerate() {
        for claimed in [zeros.len() as u64, 8 << 20, 1 << 40] {
            let chunk = [part(directory, directory.len() as u64), part(&zeros, claimed)].concat();
            let file = file_of(&chunk, STATED);
            assert!(file.len() < 300_000, "{which}: {} bytes", file.len());
            let (most, found) = most_held(|| decode_all(&file, ReadLimits::default()));
            assert!(found.is_err() || found.is_ok_and(|damage| !damage.is_empty()), "{which}");
            assert!(most < STATED as usize * MIB, "{which}: {} MiB", most / MIB);
        }
    }
    // The stated needs are compared with the limits before anything else.
    let file = file_of(&part(&zeros, 64 << 20), 1 << 20);
    let (most, refused) = most_held(|| decode_all(&file, ReadLimits::default()));
    assert!(matches!(refused, Err(Error::Needs(_))) && most < MIB, "{refused:?}, {most} bytes");
}

/// A reader needs as much as a writer states, and a member that needs more is coded as bytes.
#[test]
fn a_writer_keeps_within_what_it_states() {
    let _counts = COUNTS.lock();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/17.11");
    let mut segment = Vec::new();
    let packed = std::fs::File::open(folder.join("000000010000000000000009.xz")).unwrap();
    liblzma::read::XzDecoder::new(packed).read_to_end(&mut segment).unwrap();
    for (mib, blocks, is_coded) in [(400_u32, 10_000_u32, true), (400, 3, false), (125, 10_000, false)] {
        let needs = Needs { memory_mib: mib, blocks };
        let options = WriteOptions::with_level(FileForm::Pack, 3).needs(needs);
        let mut writer = Writer::new(Vec::new(), options);
        let meta = Meta { name: "a".into(), ..Meta::default() };
        let added = writer.add(meta, false, &mut Cursor::new(&segment)).unwrap();
        assert_eq!(added.entry.head.place.is_some(), is_coded, "{needs:?}");
        let file = writer.finish().unwrap();
        assert_eq!(stated(&file), Some(needs.memory()));
        let exact = ReadLimits::default().memory(needs.memory()).spill(needs.pages()).page_memory(0);
        assert!(decode_all(&file, exact).unwrap().is_empty());
        let less = exact.memory(needs.memory() - 1);
        assert!(matches!(decode_all(&file, less), Err(Error::Needs(_))));
    }
}
