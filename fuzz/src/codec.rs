//! Decodes hostile compressed files: no panic, bounded memory, and output that matches the checksum in the
//! file. Half of the inputs get correct checksums, so that the fuzzer passes these checks.

use std::io::Cursor;

use walden_codec::container::{ReadLimits, walk};
use walden_format::crc::crc32c_append;

const HEADER: usize = 40;
const FRAME: usize = 40;

/// Runs one input.
pub fn run(data: &[u8]) {
    let [mend, data @ ..] = data else { return };
    let mut file = data.to_vec();
    if mend & 1 == 1 {
        mended(&mut file);
    }
    let limits = ReadLimits::default().memory(1 << 30).spill(64 << 20).page_memory(1 << 20);
    let mut out = Vec::new();
    let _ = walk(Cursor::new(&file), limits, &mut |reader, head| {
        out.clear();
        let summary = reader.decode(head, &mut out)?;
        assert_eq!(summary.end.bytes, out.len() as u64);
        assert_eq!(summary.end.hash, *blake3::hash(&out).as_bytes());
        Ok(summary)
    });
}

/// Corrects everything that a reader checks first: magic, numbers and checksums, as far as the lengths of the
/// frames allow.
fn mended(file: &mut [u8]) {
    if file.len() < HEADER {
        return;
    }
    file[..8].copy_from_slice(b"\x8AWLDN\r\n\x1A");
    file[8..12].copy_from_slice(&[2, 0, 2, 0]);
    file[12] = 1 + file[12] % 2;
    // Requirements within the limits: at most 511 MiB, and 8191 blocks.
    (file[25], file[26], file[27]) = (file[25] & 1, 0, 0);
    (file[29], file[30], file[31]) = (file[29] & 0x1F, 0, 0);
    seal(&mut file[..HEADER]);
    let id: [u8; 8] = file[16..24].try_into().unwrap_or_default();
    let (mut at, mut number) = (HEADER, 0_u64);
    while let Some(frame) = file.get_mut(at..).filter(|rest| rest.len() >= FRAME) {
        frame[..4].copy_from_slice(b"\xF7Wlz");
        frame[8..16].copy_from_slice(&id);
        frame[16..24].copy_from_slice(&number.to_le_bytes());
        let length = u64::from_le_bytes(frame[24..32].try_into().unwrap_or_default());
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(frame.len() - FRAME);
        frame[24..32].copy_from_slice(&(length as u64).to_le_bytes());
        if frame[4] == 2 && length > 8 {
            parts(&mut frame[FRAME + 8..FRAME + length]);
        }
        let checksum = crc32c_append(0, &frame[FRAME..FRAME + length]);
        frame[32..36].copy_from_slice(&checksum.to_le_bytes());
        seal(&mut frame[..FRAME]);
        at += FRAME + length;
        number += 1;
    }
}

/// Corrects the checksums of the parts in which columns are stored: coder, two lengths, checksum.
fn parts(mut rest: &mut [u8]) {
    loop {
        let mut at = 1;
        let mut length = 0_usize;
        for _ in 0..2 {
            length = 0;
            let mut shift = 0;
            loop {
                let Some(&byte) = rest.get(at) else { return };
                at += 1;
                length |= usize::from(byte & 0x7F) << shift.min(56);
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
        }
        let Some(end) = length.checked_add(at + 4).filter(|end| *end <= rest.len()) else { return };
        let checksum = crc32c_append(0, &rest[at + 4..end]);
        rest[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        rest = &mut rest[end..];
    }
}

fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let checksum = crc32c_append(0, &bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}
