//! Synthetic segments, and every way to compress them.

use std::io::Write;
use std::path::{Path, PathBuf};

use walden_format::lsn::{SegmentName, SegmentSize};
use walden_format::version::Major;
use walden_source::open::Compression;

pub const SIZE: u32 = 1 << 20;
const PAGE: usize = 8192;

/// The fields of a segment's page headers. The rest of the segment is not WAL, but compresses about as well.
#[derive(Clone, Copy)]
pub struct Segment {
    pub magic: u16,
    pub system_id: u64,
    pub timeline: u32,
    pub number: u64,
    pub bytes: u32,
}

impl Segment {
    pub fn new(timeline: u32, number: u64) -> Segment {
        Segment { magic: Major::V18.magic(), system_id: 0x6900_1122_3344_5566, timeline, number, bytes: SIZE }
    }

    pub fn name(&self) -> String {
        SegmentName::new(self.timeline, self.number, SegmentSize::new(self.bytes.into()).unwrap()).to_string()
    }

    pub fn content(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.bytes as usize);
        let mut random = self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for page in 0..self.bytes as usize / PAGE {
            let address = self.number * u64::from(self.bytes) + (page * PAGE) as u64;
            content.extend(self.magic.to_le_bytes());
            content.extend(if page == 0 { 2u16 } else { 0 }.to_le_bytes());
            content.extend(self.timeline.to_le_bytes());
            content.extend(address.to_le_bytes());
            content.extend([0; 8]);
            if page == 0 {
                content.extend(self.system_id.to_le_bytes());
                content.extend(self.bytes.to_le_bytes());
                content.extend((PAGE as u32).to_le_bytes());
            }
            while content.len() % PAGE != 0 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                content.extend((random & 0x0F0F_0000_0000_00FF).to_le_bytes());
            }
        }
        content
    }

    /// Writes the segment under a name, which need not be its own.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        write(folder, name, &self.content())
    }
}

pub fn write(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

pub const COMPRESSIONS: [Compression; 7] = [
    Compression::Gzip,
    Compression::Lz4,
    Compression::Zstd,
    Compression::Xz,
    Compression::Lzma,
    Compression::Bzip2,
    Compression::Brotli,
];

pub fn compress(content: &[u8], compression: Compression) -> Vec<u8> {
    let through = |mut encoder: Box<dyn std::io::Read + '_>| {
        let mut out = Vec::new();
        encoder.read_to_end(&mut out).unwrap();
        out
    };
    match compression {
        Compression::None | Compression::Walden => content.to_vec(),
        Compression::Gzip => {
            through(Box::new(flate2::read::GzEncoder::new(content, flate2::Compression::fast())))
        }
        Compression::Lz4 => lz4(content, lz4_flex::frame::FrameInfo::new()),
        Compression::Zstd => zstd::encode_all(content, 1).unwrap(),
        Compression::Xz => through(Box::new(liblzma::read::XzEncoder::new(content, 0))),
        Compression::Lzma => {
            let options = liblzma::stream::LzmaOptions::new_preset(0).unwrap();
            let stream = liblzma::stream::Stream::new_lzma_encoder(&options).unwrap();
            through(Box::new(liblzma::read::XzEncoder::new_stream(content, stream)))
        }
        Compression::Bzip2 => {
            through(Box::new(bzip2::read::BzEncoder::new(content, bzip2::Compression::fast())))
        }
        Compression::Brotli => through(Box::new(brotli::CompressorReader::new(content, 4096, 3, 22))),
    }
}

pub fn lz4(content: &[u8], info: lz4_flex::frame::FrameInfo) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}
