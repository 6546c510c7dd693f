//! The content of files of other archives: decompressed, whatever compressed it.

use std::io::{self, Read};

use walden_format::stream::StreamInfo;
use walden_source::open::{self, Compression, Foreign};
use walden_source::regular_file;

use super::layout::{Layout, LayoutError, Source, SourceFile};
use crate::objects::name::ArchivedFile;

/// Refuses an encrypted source, which would fail at every file. The first and the last file reveal it.
///
/// # Errors
/// [`LayoutError::Encrypted`].
pub fn expect_unencrypted(source: &Source) -> Result<(), LayoutError> {
    let is_segment = |file: &&SourceFile| matches!(file.file, ArchivedFile::Segment(_));
    let segments = || source.files.iter().filter(is_segment);
    let ends = [segments().next(), segments().next_back()];
    let encryption = |file: &SourceFile| match open::identify(&file.path) {
        Ok(Err(Foreign::Encrypted(by))) => Some((file.path.clone(), by.to_owned())),
        // WAL-G's libsodium encryption has no signature, but files keep the compressor's extension.
        Ok(Err(Foreign::Unknown(_))) if source.layout == Layout::WalG => {
            Some((file.path.clone(), "or damaged: its content is no compressed segment".to_owned()))
        }
        _ => None,
    };
    let ends: Vec<_> = ends.into_iter().flatten().map(encryption).collect();
    if let Some(Some((file, by))) = ends.first().cloned().filter(|_| ends.iter().all(Option::is_some)) {
        return Err(LayoutError::Encrypted { path: source.path.clone(), file, by });
    }
    Ok(())
}

/// Opens a file by its content. The extension only decides for formats without a signature.
///
/// # Errors
/// The file cannot be read, or its format is not one that can be decompressed.
pub fn open_decompressed(file: &SourceFile) -> io::Result<Box<dyn Read>> {
    if file.ending == Some("wlz") {
        return Ok(Box::new(open::open_path(&file.path, Compression::Walden)?));
    }
    let is_text = matches!(file.file, ArchivedFile::History(_) | ArchivedFile::Backup(..));
    let compression = match open::identify(&file.path)? {
        Ok(compression) => compression,
        Err(Foreign::Unknown(_)) if is_text => match file.ending {
            Some("lzma") => Compression::Lzma,
            Some("br" | "brotli") => Compression::Brotli,
            _ => return Ok(Box::new(regular_file::open(&file.path)?)),
        },
        // Uncompressed data that is not a segment fails the checks of segments, which report the problem.
        Err(Foreign::Unknown(_)) if file.ending.is_none() => Compression::None,
        Err(foreign) => return Err(io::Error::new(io::ErrorKind::InvalidData, refusal(foreign))),
    };
    let content = Box::new(open::open_path(&file.path, compression)?);
    Ok(match (file.file, compression) {
        (ArchivedFile::Partial(_), compression) if compression != Compression::None => {
            Box::new(PaddedSegment { content, first: Vec::new(), bytes: 0, is_at_end: false })
        }
        _ => content,
    })
}

/// A partial segment that pg_receivewal compressed. Unlike an uncompressed one, it has no zeros after the
/// WAL, and the end of the compressed data is missing if pg_receivewal was killed. Reads zeros up to the size
/// of a segment.
struct PaddedSegment {
    content: Box<dyn Read>,
    /// The header of the first page, which has the size of a segment.
    first: Vec<u8>,
    bytes: u64,
    is_at_end: bool,
}

/// Bytes of the longest header of a page.
const LONG_HEADER: usize = 40;

impl Read for PaddedSegment {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_at_end {
            match self.content.read(buffer) {
                Ok(0) if !buffer.is_empty() => self.is_at_end = true,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.is_at_end = true,
                Ok(read) => {
                    let missing = LONG_HEADER - self.first.len();
                    self.first.extend(buffer[..read].iter().take(missing));
                    self.bytes += read as u64;
                    return Ok(read);
                }
                Err(error) => return Err(error),
            }
        }
        let size = StreamInfo::from_first_page(&self.first).map_or(0, |info| info.segment_size.bytes());
        let missing = usize::try_from(size.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let zeros = missing.min(buffer.len());
        buffer[..zeros].fill(0);
        self.bytes += zeros as u64;
        Ok(zeros)
    }
}

fn refusal(foreign: Foreign) -> String {
    match foreign {
        Foreign::Encrypted(by) => {
            format!("encrypted {by}; let the program that stored it fetch it, and import that file")
        }
        Foreign::Format(format) => {
            format!("its format, {format}, is not one that Walden reads; unpack it, and import that file")
        }
        Foreign::Unknown(_) => {
            "neither WAL nor compressed in a known way: damaged, or encrypted by a program that leaves no mark".to_owned()
        }
    }
}
