//! Reads segment files, and decompresses every known format.
//!
//! The content decides, never the name: archivers store compressed segments under plain names (Barman) and
//! change their codec over the years. Memory stays bounded for any content.

mod lz4;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brotli_decompressor::BrotliDecoderParameter::BROTLI_DECODER_PARAM_LARGE_WINDOW;
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use rustix::io::Errno;
use walden_format::page::{LONG_HEADER, PageHeader};

use crate::compressed::Members;
pub use crate::compression::Compression;
use crate::regular_file;
use crate::segment_file::SegmentFile;

/// Opens a segment for reading from its first byte, decompressed.
///
/// A segment in a pack is decoded as a whole, which starts at the last keyframe before this segment. A scan
/// of a run decodes each member once.
///
/// # Errors
/// Errors of the file system, with the file's name.
pub fn open(file: &SegmentFile) -> io::Result<SegmentReader> {
    open_with(file, &mut Members::default())
}

/// Opens a segment. `members` keeps the decoder for the next member of the same pack.
pub(crate) fn open_with(file: &SegmentFile, members: &mut Members) -> io::Result<SegmentReader> {
    let Some(member) = file.member else { return open_path(&file.path, file.compression) };
    if let Some(stream) = file.store.as_ref().and_then(|store| store.stream(member)) {
        let named = |error| explain(&file.path, file.compression, error);
        let source = match file.compression {
            Compression::None => Source::Stream(stream),
            compression => Source::Compressed(decoder(stream, compression, COMPRESSED_READ).map_err(named)?),
        };
        let state = State::Reading(source);
        return Ok(SegmentReader { path: file.path.clone(), compression: file.compression, state });
    }
    let content = members.read_segment(file, member)?;
    let source = Source::Decoded { content, at: 0 };
    Ok(SegmentReader {
        path: file.path.clone(),
        compression: file.compression,
        state: State::Reading(source),
    })
}

/// Opens a file whose compression is known; see [`detect`].
///
/// # Errors
/// Errors of the file system, with the file's name.
pub fn open_path(path: &Path, compression: Compression) -> io::Result<SegmentReader> {
    let named = |error| explain(path, compression, error);
    let file = File::open(path).map_err(named)?;
    #[cfg(target_os = "linux")]
    // Only advice: reading also works on a file system without it.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
    if compression == Compression::Walden {
        let content = Members::default().read(path, 0)?;
        let state = State::Reading(Source::Decoded { content, at: 0 });
        return Ok(SegmentReader { path: path.to_owned(), compression, state });
    }
    let source = match compression {
        Compression::None => Source::Plain(file),
        _ => Source::Compressed(decoder(file, compression, COMPRESSED_READ).map_err(named)?),
    };
    Ok(SegmentReader { path: path.to_owned(), compression, state: State::Reading(source) })
}

/// Determines how a file is compressed.
///
/// Returns `None` if the content is neither WAL nor compressed in a known format. A format without a
/// signature is recognised if its decompressed content starts like a segment. [`identify`] also returns other
/// formats (encrypted, snappy, ...).
///
/// # Errors
/// Errors of the file system, and damaged compressed data; each with the file's name.
pub fn detect(path: &Path) -> io::Result<Option<Compression>> {
    Ok(peek(path)?.content.ok().map(|(compression, _)| compression))
}

/// Determines how a file, which need not be a segment, is compressed, or what else it is.
///
/// # Errors
/// Errors of the file system, and damaged compressed data; each with the file's name.
pub fn identify(path: &Path) -> io::Result<Result<Compression, Foreign>> {
    Ok(peek(path)?.content.map(|(compression, _)| compression))
}

/// Opens a file that is not a segment. The reader decompresses the file if it starts with the signature of a
/// compression format.
///
/// # Errors
/// Errors of the file system, with the file's name; anything but a regular file.
pub(crate) fn open_text(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let named = |error| explain(path, Compression::None, error);
    let file = regular_file::open(path).map_err(named)?;
    let raw = read_start(&mut &file, 16).map_err(named)?;
    let known = SIGNATURES.iter().find(|(bytes, _)| raw.starts_with(bytes));
    match known {
        Some((_, Signature::Compressed(compression))) => Ok(Box::new(open_path(path, *compression)?)),
        _ => Ok(Box::new(File::open(path).map_err(named)?)),
    }
}

/// Fills `buffer`, or reads to the end of `reader`. Returns the number of bytes read, and the error that
/// stopped reading.
pub(crate) fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut got = 0;
    while got < buffer.len() {
        match reader.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (got, Some(error)),
        }
    }
    (got, None)
}

/// A segment's bytes, decompressed while reading.
///
/// `Ok(0)` is the proper end: for a compressed file, the end that its format marks and checks. A compressed
/// file that was cut off is an error of kind [`io::ErrorKind::UnexpectedEof`]. Further reads repeat an error.
/// Every error contains the file's name and a remedy.
///
/// An uncompressed file is read directly into the caller's buffer, so use a large one. Decompression holds at
/// most 128 MB in addition (zstd and xz with the largest accepted window; below 10 MB for files of
/// archivers).
pub struct SegmentReader {
    path: PathBuf,
    compression: Compression,
    state: State,
}

enum State {
    Reading(Source),
    Ended,
    Failed(io::ErrorKind, String),
}

enum Source {
    Plain(File),
    /// A file in a tar file, or one that is held open.
    Stream(Box<dyn Read + Send>),
    Compressed(Box<dyn Read + Send>),
    /// A member of a file that `walden compress` wrote, and the number of bytes already read.
    Decoded {
        content: Arc<Vec<u8>>,
        at: usize,
    },
}

impl SegmentReader {
    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the whole content, if it was decoded when the file was opened.
    pub(crate) fn decoded(&self) -> Option<Arc<Vec<u8>>> {
        match &self.state {
            State::Reading(Source::Decoded { content, at: 0 }) => Some(Arc::clone(content)),
            _ => None,
        }
    }

    /// Returns the file's compression.
    pub fn compression(&self) -> Compression {
        self.compression
    }
}

impl fmt::Debug for SegmentReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentReader")
            .field("path", &self.path)
            .field("compression", &self.compression)
            .finish()
    }
}

impl Read for SegmentReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let result = match &mut self.state {
            State::Reading(Source::Plain(file)) => file.read(buf),
            State::Reading(Source::Stream(stream)) => stream.read(buf),
            State::Reading(Source::Compressed(decoder)) => decoder.read(buf),
            State::Reading(Source::Decoded { content, at }) => {
                let left = content.get(*at..).unwrap_or_default();
                let got = left.len().min(buf.len());
                buf[..got].copy_from_slice(&left[..got]);
                *at += got;
                Ok(got)
            }
            State::Ended => return Ok(0),
            State::Failed(kind, text) => return Err(io::Error::new(*kind, text.clone())),
        };
        match result {
            // A plain file of a running server may grow; a compressed one has a marked end.
            Ok(0) if self.compression != Compression::None => {
                self.state = State::Ended;
                Ok(0)
            }
            Ok(len) => Ok(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let error = explain(&self.path, self.compression, error);
                self.state = State::Failed(error.kind(), error.to_string());
                Err(error)
            }
        }
    }
}

/// Bytes of a compressed file read at a time.
const COMPRESSED_READ: usize = 256 << 10;
/// As [`COMPRESSED_READ`], if only the start is needed.
const COMPRESSED_PEEK: usize = 16 << 10;
/// Decompressed bytes that [`peek`] returns: a WAL page.
const PEEK: usize = 8 << 10;
/// The largest zstd window, as a power of two: 128 MB, the default limit of `zstd -d`.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Most memory for xz: a dictionary of 128 MB and the decoder's own memory. `xz -9` needs 65 MB.
const XZ_MEMORY: u64 = 132 << 20;

fn decoder(
    compressed: impl Read + Send + 'static,
    compression: Compression,
    buffer: usize,
) -> io::Result<Box<dyn Read + Send>> {
    let input = BufReader::with_capacity(buffer, compressed);
    let decoder: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(MultiGzDecoder::new(input)),
        Compression::Lz4 => Box::new(lz4::Lz4Reader::new(input)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        Compression::Xz => {
            Box::new(XzDecoder::new_stream(input, Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?))
        }
        Compression::Lzma => Box::new(XzDecoder::new_stream(input, Stream::new_lzma_decoder(XZ_MEMORY)?)),
        Compression::Bzip2 => Box::new(MultiBzDecoder::new(input)),
        Compression::Brotli => Box::new(BrotliReader::new(input, buffer)),
        Compression::Walden => return Err(io::ErrorKind::Unsupported.into()),
    };
    Ok(decoder)
}

/// Brotli's decoder, which distinguishes a cut file from a damaged one.
struct BrotliReader<R: BufRead>(brotli_decompressor::Decompressor<EndNoticing<R>>);

struct EndNoticing<R> {
    input: R,
    ended: bool,
}

impl<R: Read> Read for EndNoticing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buf)?;
        self.ended |= len == 0 && !buf.is_empty();
        Ok(len)
    }
}

impl<R: BufRead> BrotliReader<R> {
    fn new(input: R, buffer: usize) -> BrotliReader<R> {
        let mut decoder = brotli_decompressor::Decompressor::new(EndNoticing { input, ended: false }, buffer);
        // Windows of up to 1 GB are an extension that no archiver uses; without it, the limit is 16 MB.
        decoder.set_parameter(BROTLI_DECODER_PARAM_LARGE_WINDOW, 0);
        BrotliReader(decoder)
    }
}

impl<R: BufRead> Read for BrotliReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let result = match self.0.read(buf) {
            // Only a read after the end checks for bytes that follow it.
            Ok(0) => self.0.read(buf),
            other => other,
        };
        result.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData if self.0.get_ref().ended => io::ErrorKind::UnexpectedEof.into(),
            _ => error,
        })
    }
}

/// Adds the file's name and a remedy to an error.
fn explain(path: &Path, compression: Compression, error: io::Error) -> io::Error {
    let file = path.display();
    if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
        let text = format!("{file}: {error}: raise the limit (ulimit -n), or use fewer threads");
        return io::Error::new(error.kind(), text);
    }
    let of_decoder = error.get_ref().is_some() || error.kind() == io::ErrorKind::UnexpectedEof;
    if error.raw_os_error().is_some() || compression == Compression::None || !of_decoder {
        return io::Error::new(error.kind(), format!("{file}: {error}"));
    }
    let too_much_memory = error.get_ref().is_some_and(|inner| {
        inner.downcast_ref::<liblzma::stream::Error>() == Some(&liblzma::stream::Error::MemLimit)
            || inner.to_string().contains("too much memory")
    });
    let no_memory = error.get_ref().is_some_and(|inner| {
        inner.downcast_ref::<liblzma::stream::Error>() == Some(&liblzma::stream::Error::Mem)
            || inner.to_string().contains("not enough memory")
    });
    let (kind, text) = if no_memory {
        let text = format!("{file}: cannot allocate memory to decompress its {compression} data");
        (io::ErrorKind::OutOfMemory, text)
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        let text = format!(
            "{file}: the {compression} data ends early: the file was cut off; get a complete copy of it"
        );
        (io::ErrorKind::UnexpectedEof, text)
    } else if too_much_memory {
        let program = if compression == Compression::Zstd { "zstd -d --long=31" } else { "xz -d" };
        let text = format!(
            "{file}: to decompress its {compression} data takes more than the 128 MB that Walden allows; decompress it \
             with {program} first"
        );
        (io::ErrorKind::InvalidData, text)
    } else {
        let text = format!("{file}: damaged {compression} data ({error}); get another copy of it");
        (io::ErrorKind::InvalidData, text)
    };
    io::Error::new(kind, text)
}

/// The start of a file.
pub(crate) struct Peek {
    /// Bytes on disk.
    pub size: u64,
    /// The first [`PEEK`] bytes decompressed, or fewer if there are no more; or the other kind of content.
    pub content: Result<(Compression, Vec<u8>), Foreign>,
}

/// Content that is neither WAL nor compressed in a known format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// Encrypted; the text describes how.
    Encrypted(&'static str),
    /// Compressed in another format.
    Format(&'static str),
    /// Unknown: damaged, encrypted, or not from PostgreSQL. The first bytes of the file.
    Unknown([u8; 2]),
}

/// Determines a file's content, and reads only as much of it as necessary.
pub(crate) fn peek(path: &Path) -> io::Result<Peek> {
    let plain = |error| explain(path, Compression::None, error);
    let file = File::open(path).map_err(plain)?;
    let size = file.metadata().map_err(plain)?.len();
    let raw = read_start(&mut &file, PEEK).map_err(plain)?;
    let content = match signature(&file, &raw).map_err(plain)? {
        Some(Signature::Compressed(compression)) => {
            let start =
                decompressed_start(path, compression).map_err(|error| explain(path, compression, error))?;
            Ok((compression, start))
        }
        Some(Signature::Foreign(foreign)) => Err(foreign),
        Some(Signature::Plain) => Ok((Compression::None, raw)),
        None => without_signature(path, &raw),
    };
    Ok(Peek { size, content })
}

/// Returns whether `is` accepts the first bytes of a file, without decompression.
pub(crate) fn start_is(path: &Path, is: impl Fn(&[u8]) -> bool) -> bool {
    first_bytes(path).is_ok_and(|start| is(&start))
}

/// Returns the first bytes of a file, without decompression, at most a WAL page.
pub(crate) fn first_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let start = File::open(path).and_then(|file| read_start(&mut &file, PEEK));
    start.map_err(|error| explain(path, Compression::None, error))
}

enum Signature {
    Plain,
    Compressed(Compression),
    Foreign(Foreign),
}

#[rustfmt::skip]
const SIGNATURES: &[(&[u8], Signature)] = &[
    (b"\x1F\x8B\x08",                   Signature::Compressed(Compression::Gzip)),
    (b"\x04\x22\x4D\x18",               Signature::Compressed(Compression::Lz4)),
    (b"\x02\x21\x4C\x18",               Signature::Compressed(Compression::Lz4)),
    (b"\x28\xB5\x2F\xFD",               Signature::Compressed(Compression::Zstd)),
    (b"\xFD7zXZ\0",                     Signature::Compressed(Compression::Xz)),
    (b"BZh",                            Signature::Compressed(Compression::Bzip2)),
    (b"\xFF\x06\0\0sNaPpY",             Signature::Foreign(Foreign::Format("snappy"))),
    (b"\x89LZO\0\r\n\x1A\n",            Signature::Foreign(Foreign::Format("lzop"))),
    (b"LZIP",                           Signature::Foreign(Foreign::Format("lzip"))),
    (b"PK\x03\x04",                     Signature::Foreign(Foreign::Format("zip"))),
    (b"7z\xBC\xAF\x27\x1C",             Signature::Foreign(Foreign::Format("7z"))),
    (b"\x1F\x9D",                       Signature::Foreign(Foreign::Format("compress"))),
    // pgBackRest's cipher writes OpenSSL's header.
    (b"Salted__",                       Signature::Foreign(Foreign::Encrypted("in OpenSSL's form, as pgBackRest does it"))),
    (b"-----BEGIN PGP",                 Signature::Foreign(Foreign::Encrypted("by PGP"))),
    (b"age-encryption.org/",            Signature::Foreign(Foreign::Encrypted("by age"))),
];

fn signature(file: &File, raw: &[u8]) -> io::Result<Option<Signature>> {
    if PageHeader::parse(raw).is_ok() || raw.iter().all(|byte| *byte == 0) {
        return Ok(Some(Signature::Plain));
    }
    // Both zstd and lz4 have frames to skip. The frame that follows identifies the format.
    let mut at = 0;
    let mut start: [u8; 16] = [0; 16];
    for _ in 0..16 {
        let len = file.read_at(&mut start, at)?;
        let word = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
        if len >= 8 && word(0) & !0xF == lz4::SKIPPABLE_MAGIC {
            at = at.saturating_add(8 + u64::from(word(4)));
            continue;
        }
        let start = if at == 0 { raw } else { &start[..len] };
        let known = SIGNATURES.iter().find(|(bytes, _)| start.starts_with(bytes));
        return Ok(known.map(|(_, signature)| match signature {
            Signature::Plain => Signature::Plain,
            Signature::Compressed(compression) => Signature::Compressed(*compression),
            Signature::Foreign(foreign) => Signature::Foreign(*foreign),
        }));
    }
    Ok(None)
}

/// Tries the compression formats without a signature. The file has a format if it decompresses to a segment
/// in this format.
fn without_signature(path: &Path, raw: &[u8]) -> Result<(Compression, Vec<u8>), Foreign> {
    for compression in [Compression::Lzma, Compression::Brotli] {
        if compression == Compression::Lzma && !could_be_lzma(raw) {
            continue;
        }
        match decompressed_start(path, compression) {
            Ok(start) if PageHeader::parse(&start).is_ok() => return Ok((compression, start)),
            _ => {}
        }
    }
    if could_be_openpgp(raw) {
        return Err(Foreign::Encrypted("by PGP"));
    }
    Err(Foreign::Unknown([raw.first().copied().unwrap_or(0), raw.get(1).copied().unwrap_or(0)]))
}

/// As `lzma_alone_decoder` of xz: properties, and a dictionary of 2^n or 2^n + 2^(n-1) bytes.
fn could_be_lzma(raw: &[u8]) -> bool {
    let Some(&[properties, a, b, c, d]) = raw.first_chunk() else { return false };
    let dictionary = u32::from_le_bytes([a, b, c, d]);
    let highest = dictionary.checked_ilog2().map_or(0, |n| 1u32 << n);
    let rest = dictionary - highest;
    properties < 9 * 5 * 5 && (rest == 0 || rest == highest >> 1 || dictionary == u32::MAX)
}

/// Returns whether a file starts like an encrypted OpenPGP message: with the packet of a session key (RFC
/// 9580, sections 5.1 and 5.3) of version 3 to 6. One in several thousand files of random bytes does too.
fn could_be_openpgp(raw: &[u8]) -> bool {
    let &[tag, ..] = raw else { return false };
    let body = match tag {
        // Old packet format, length of one or two bytes.
        0x84 | 0x8C => 2,
        0x85 | 0x8D => 3,
        // New packet format.
        0xC1 | 0xC3 if raw.get(1).is_some_and(|len| *len < 192) => 2,
        0xC1 | 0xC3 => 3,
        _ => return false,
    };
    raw.get(body).is_some_and(|version| (3..=6).contains(version))
}

/// Decompresses the start of a file. Fails only if not even the header of a segment can be decompressed.
fn decompressed_start(path: &Path, compression: Compression) -> io::Result<Vec<u8>> {
    start_of(decoder(File::open(path)?, compression, COMPRESSED_PEEK)?)
}

/// Returns the compression and the decompressed start of a file in a store. `raw` is the start of the file
/// itself.
pub(crate) fn peek_stream(stream: Box<dyn Read + Send>, raw: &[u8]) -> io::Result<(Compression, Vec<u8>)> {
    let known = SIGNATURES.iter().find(|(bytes, _)| raw.starts_with(bytes));
    match known {
        Some((_, Signature::Compressed(compression))) if PageHeader::parse(raw).is_err() => {
            Ok((*compression, start_of(decoder(stream, *compression, COMPRESSED_PEEK)?)?))
        }
        _ => Ok((Compression::None, raw.to_vec())),
    }
}

fn start_of(mut source: Box<dyn Read + Send>) -> io::Result<Vec<u8>> {
    let mut start = vec![0; PEEK];
    let mut len = 0;
    while len < PEEK {
        match source.read(&mut start[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if len >= LONG_HEADER => break,
            Err(error) => return Err(error),
        }
    }
    start.truncate(len);
    Ok(start)
}

fn read_start(source: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(len);
    source.take(len as u64).read_to_end(&mut start)?;
    Ok(start)
}
