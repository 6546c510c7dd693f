//! One file through a reader and a writer, without a look at the container's parts.

use std::io::{Cursor, Read, Write};

use walden_format::page::LONG_HEADER;
use walden_format::stream::StreamInfo;

use super::file_form::FileForm;
use super::layout::Meta;
use super::reader::Reader;
use super::writer::{WriteOptions, Writer};
use super::{Error, ReadLimits};

/// Compresses what `input` has to a file in segment form, in the calling thread; returns the output, flushed.
///
/// If it is a segment of WAL, it is held in memory. Anything else is compressed as bytes, some at a time. `meta` says what is
/// stored beside the bytes; whoever extracts the file by name needs one.
///
/// What is written is not read back here; [`decompress`] to [`std::io::sink`] verifies it.
///
/// # Errors
/// Those of `input` ([`Error::Original`]) and `output` ([`Error::Io`]).
pub fn compress<W: Write>(
    mut input: impl Read,
    output: W,
    meta: Meta,
    options: WriteOptions,
) -> Result<W, Error> {
    let options = WriteOptions { form: FileForm::Segment, ..options };
    let mut writer = Writer::new(output, options);
    let mut start = Vec::new();
    let mut read_to = |bytes: u64, start: &mut Vec<u8>| {
        let missing = bytes.saturating_sub(start.len() as u64);
        (&mut input).take(missing).read_to_end(start).map_err(Error::Original)
    };
    read_to(LONG_HEADER as u64, &mut start)?;
    let info = start.first_chunk::<LONG_HEADER>().and_then(|first| StreamInfo::of_segment(first).ok());
    if let Some(info) = info {
        // One byte more would show that it is no segment.
        read_to(info.segment_size.bytes() + 1, &mut start)?;
        if start.len() as u64 == info.segment_size.bytes() {
            writer.add(meta, false, &mut Cursor::new(start))?;
            return writer.finish();
        }
    }
    writer.add_bytes(meta, &mut Cursor::new(start).chain(input))?;
    writer.finish()
}

/// Decompresses a file of either form in the calling thread: all its members, one after another. Returns their bytes.
///
/// What `output` was given is right only if this succeeds.
///
/// # Errors
/// A file that is damaged, of a later version or of greater needs than `limits`; errors of `input` ([`Error::Io`]) and `output`
/// ([`Error::Original`]).
pub fn decompress(input: impl Read, mut output: impl Write, limits: ReadLimits) -> Result<u64, Error> {
    let mut reader = Reader::open_stream(input, limits)?;
    let mut bytes = 0;
    while let Some(head) = reader.next()? {
        bytes += reader.decode(&head, &mut output)?.end.bytes;
    }
    output.flush().map_err(Error::Original)?;
    Ok(bytes)
}
