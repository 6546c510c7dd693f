//! Splits files into frames and assembles frames to files that this version's writer does not write.

use walden_format::crc::crc32c_append;

pub const HEADER: usize = 40;
const FRAME: usize = 40;
pub const HEAD: u8 = 1;
pub const PIECE: u8 = 2;
pub const END: u8 = 3;
pub const INDEX: u8 = 4;
pub const FOOTER: u8 = 5;

/// Frames of a file: kind and content.
pub type Frames = Vec<(u8, Vec<u8>)>;

pub fn frames(file: &[u8]) -> Frames {
    let mut frames = Vec::new();
    let mut rest = &file[HEADER..];
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[24..32].try_into().unwrap()) as usize;
        frames.push((rest[4], rest[FRAME..FRAME + length].to_vec()));
        rest = &rest[FRAME + length..];
    }
    frames
}

/// A file assembled from frames, with correct numbers and checksums.
pub struct Assembly {
    pub file: Vec<u8>,
    /// Number of frames.
    pub frames: u64,
    /// Reserved bytes of the next frames.
    pub reserved: [u8; 3],
}

impl Assembly {
    /// Starts a file with a header, and computes its checksum.
    pub fn new(header: &[u8]) -> Assembly {
        let mut file = header[..HEADER].to_vec();
        seal(&mut file);
        Assembly { file, frames: 0, reserved: [0; 3] }
    }

    pub fn add(&mut self, kind: u8, content: &[u8]) {
        let mut frame = [0; FRAME];
        frame[..4].copy_from_slice(b"\xF7Wlz");
        frame[4] = kind;
        frame[5..8].copy_from_slice(&self.reserved);
        frame[8..16].copy_from_slice(&self.file[16..24]);
        frame[16..24].copy_from_slice(&self.frames.to_le_bytes());
        frame[24..32].copy_from_slice(&(content.len() as u64).to_le_bytes());
        frame[32..36].copy_from_slice(&crc32c_append(0, content).to_le_bytes());
        seal(&mut frame);
        self.file.extend(frame);
        self.file.extend(content);
        self.frames += 1;
    }
}

/// Assembles frames after the header of another file, with correct numbers and checksums. Bindings are
/// unchanged.
pub fn mended(header: &[u8], frames: &Frames) -> Vec<u8> {
    let mut assembly = Assembly::new(header);
    let (mut member, mut index_at) = (0_u64, 0);
    for (kind, content) in frames {
        let mut content = content.clone();
        match *kind {
            HEAD => content[..8].copy_from_slice(&member.to_le_bytes()),
            END => member += 1,
            INDEX => index_at = assembly.file.len() as u64,
            FOOTER => {
                content[..8].copy_from_slice(&index_at.to_le_bytes());
                content[8..16].copy_from_slice(&member.to_le_bytes());
            }
            _ => {}
        }
        assembly.add(*kind, &content);
    }
    assembly.file
}

/// Stores the checksum of the preceding bytes in the last four bytes.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let checksum = crc32c_append(0, &bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}
