//! Compresses and decompresses one file from a reader to a writer.

use std::io::{Cursor, Read, Write};

use walden_format::page::LONG_HEADER;
use walden_format::stream::StreamInfo;

use super::file_form::FileForm;
use super::layout::Meta;
use super::reader::Reader;
use super::writer::{WriteOptions, Writer};
use super::{Error, ReadLimits};

/// Compresses `input` to a file in segment form, in the calling thread. Flushes the output and returns it.
///
/// A WAL segment is held in memory. Any other input is compressed as bytes, in pieces. `meta` is stored with
/// the content; extraction by name requires that `meta` has a name.
///
/// The result is not verified. To verify it, [`decompress`] it to [`std::io::sink`].
///
/// # Errors
/// Returns errors of `input` ([`Error::Original`]) and `output` ([`Error::Io`]).
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
    let info = start.first_chunk::<LONG_HEADER>().and_then(|first| StreamInfo::from_first_page(first).ok());
    if let Some(info) = info {
        // Requests one extra byte: if it exists, the input is not a segment.
        read_to(info.segment_size.bytes() + 1, &mut start)?;
        if start.len() as u64 == info.segment_size.bytes() {
            writer.add(meta, false, &mut Cursor::new(start))?;
            return writer.finish();
        }
    }
    writer.add_bytes(meta, &mut Cursor::new(start).chain(input))?;
    writer.finish()
}

/// Decompresses a file of either form in the calling thread, all members in order. Returns the number of
/// bytes written.
///
/// The output is valid only if this function succeeds.
///
/// # Errors
/// Returns damage, a file of a later version, needs beyond `limits`, and errors of `input` ([`Error::Io`])
/// and `output` ([`Error::Original`]).
pub fn decompress(input: impl Read, mut output: impl Write, limits: ReadLimits) -> Result<u64, Error> {
    let mut reader = Reader::open_stream(input, limits)?;
    let mut bytes = 0;
    while let Some(head) = reader.next()? {
        bytes += reader.decode(&head, &mut output)?.end.bytes;
    }
    output.flush().map_err(Error::Original)?;
    Ok(bytes)
}
