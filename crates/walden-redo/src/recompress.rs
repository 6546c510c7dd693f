//! What PostgreSQL compressed, compressed again to the same bytes: full-page images, and values within tuples and TOAST.
//!
//! A log that is to be made small holds better the raw bytes, which a stronger method compresses further, if the stored
//! bytes can be made of them again. Of pglz the server has but one version. lz4 and zstd are libraries, whose output may
//! change with their version; so whoever drops the stored bytes has to ask [`Recompressor::reproduces`] for every one.

use walden_format::record::Compression;

use crate::pglz::{self, Pglz};

/// How something is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// PostgreSQL's own.
    Pglz,
    /// A block of lz4, without a frame.
    Lz4,
    /// A frame of zstd.
    Zstd,
}

impl Method {
    /// That of a full-page image, if it is compressed.
    pub fn of(compression: Compression) -> Option<Method> {
        match compression {
            Compression::None => None,
            Compression::Pglz => Some(Method::Pglz),
            Compression::Lz4 => Some(Method::Lz4),
            Compression::Zstd => Some(Method::Zstd),
        }
    }

    /// Decompresses `stored` into `raw`, which it should fill exactly; how many bytes it wrote, nothing if `stored` is
    /// damaged.
    pub fn decompress(self, stored: &[u8], raw: &mut [u8]) -> Option<usize> {
        match self {
            Method::Pglz => pglz::decompress(stored, raw),
            Method::Lz4 => lz4_flex::block::decompress_into(stored, raw).ok(),
            Method::Zstd => zstd::bulk::decompress_to_buffer(stored, raw).ok(),
        }
    }

    /// The method that the two bits beside a compressed value's raw size tell (`ToastCompressionId`).
    fn of_value(id: u32) -> Option<Method> {
        match id {
            0 => Some(Method::Pglz),
            1 => Some(Method::Lz4),
            _ => None,
        }
    }

    /// More than this many raw bytes can't come of one stored byte.
    fn most_per_byte(self) -> usize {
        match self {
            Method::Pglz => 273 / 3 + 1,
            Method::Lz4 => 255,
            Method::Zstd => usize::MAX,
        }
    }
}

/// A compressed value as it lies in a tuple, or as the chunks of a TOAST value put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedValue {
    /// Where it begins, its headers included.
    pub offset: usize,
    /// Bytes that it takes there, its headers included.
    pub len: usize,
    /// Bytes of its headers: 8 in a tuple, 4 in TOAST.
    pub header_len: usize,
    /// Bytes that it has when decompressed.
    pub raw_len: usize,
    /// How it is compressed.
    pub method: Method,
}

/// Compresses as servers do.
pub struct Recompressor {
    pglz: Pglz,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    compressed: Vec<u8>,
}

impl Default for Recompressor {
    fn default() -> Recompressor {
        Recompressor::new()
    }
}

impl Recompressor {
    /// With tables that are used again.
    pub fn new() -> Recompressor {
        let zstd = zstd::bulk::Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).ok();
        Recompressor { pglz: Pglz::new(), zstd, compressed: Vec::new() }
    }

    /// Replaces what is in `out` by `raw`, compressed as the server does it for a full-page image or a value; whether
    /// it could be (else `out` is empty).
    pub fn compress(&mut self, method: Method, raw: &[u8], out: &mut Vec<u8>) -> bool {
        let len = match method {
            Method::Pglz => return self.pglz.compress(raw, out),
            Method::Lz4 => lz4::block::compress_bound(raw.len()).ok().and_then(|bound| {
                out.resize(bound, 0);
                lz4::block::compress_to_buffer(raw, None, false, out).ok()
            }),
            Method::Zstd => self.zstd.as_mut().and_then(|zstd| {
                out.resize(zstd::zstd_safe::compress_bound(raw.len()), 0);
                zstd.compress_to_buffer(raw, out.as_mut_slice()).ok()
            }),
        };
        out.truncate(len.unwrap_or(0));
        len.is_some()
    }

    /// Whether `raw` compresses to the very bytes of `stored`.
    pub fn reproduces(&mut self, method: Method, raw: &[u8], stored: &[u8]) -> bool {
        let mut compressed = std::mem::take(&mut self.compressed);
        let same = self.compress(method, raw, &mut compressed) && compressed == stored;
        self.compressed = compressed;
        same
    }

    /// The compressed values in a part of a tuple that can be reproduced, found by their form alone; see
    /// [`Recompressor::next_value`].
    pub fn compressed_values<'a>(
        &'a mut self,
        bytes: &'a [u8],
        start: usize,
    ) -> impl Iterator<Item = CompressedValue> + 'a {
        let (mut from, mut raw) = (0, Vec::new());
        std::iter::from_fn(move || {
            let value = self.next_value(bytes, start, from, &mut raw)?;
            from = value.offset + value.len;
            Some(value)
        })
    }

    /// The first compressed value at or after `from` in a part of a tuple that can be reproduced; `raw` becomes what it
    /// decompresses to.
    ///
    /// `start` is how far into the tuple `bytes` begin; in a record that logs a row version whole that is 23. No
    /// catalog tells the columns: whatever looks like a value with a header of four bytes, as one compressed within its
    /// tuple has, is tried. That may hit something else that looks so, but its bytes will come back just as well.
    pub fn next_value(
        &mut self,
        bytes: &[u8],
        start: usize,
        from: usize,
        raw: &mut Vec<u8>,
    ) -> Option<CompressedValue> {
        let mut offset = from + start.wrapping_add(from).wrapping_neg() % 4;
        while let Some(header) = bytes.get(offset..).and_then(|rest| rest.first_chunk()) {
            let header = u32::from_le_bytes(*header);
            // The length counts the header, and its lowest bits tell that it is compressed.
            let len = (header >> 2) as usize;
            if header & 3 == 2
                && len > VALUE_HEADER
                && let Some(content) = bytes[offset + 4..].get(..len - 4)
                && let Some(value) = self.toast_value(content, raw)
            {
                return Some(CompressedValue { offset, len, header_len: VALUE_HEADER, ..value });
            }
            offset += 4;
        }
        raw.clear();
        None
    }

    /// The value that a TOAST value's chunks put together are, if it is compressed and can be reproduced; `raw` becomes
    /// what it decompresses to. The row that points to it knows whether it is compressed; its chunks don't.
    pub fn toast_value(&mut self, bytes: &[u8], raw: &mut Vec<u8>) -> Option<CompressedValue> {
        let (info, stored) = bytes.split_first_chunk()?;
        let info = u32::from_le_bytes(*info);
        let raw_len = (info & 0x3FFF_FFFF) as usize;
        let method = Method::of_value(info >> 30)?;
        // Neither would the server have kept what does not get smaller, nor is memory taken for what can't come.
        if raw_len <= stored.len() || raw_len / method.most_per_byte() > stored.len() {
            return None;
        }
        raw.resize(raw_len, 0);
        let sound = method.decompress(stored, raw) == Some(raw_len) && self.reproduces(method, raw, stored);
        let (offset, len, header_len) = (0, bytes.len(), 4);
        sound.then_some(CompressedValue { offset, len, header_len, raw_len, method })
    }
}

/// A header of a value, and the raw size and method (`varattrib_4b.va_compressed`).
const VALUE_HEADER: usize = 8;

/// A row of a TOAST table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToastChunk<'a> {
    /// The value that it is a part of (`chunk_id`).
    pub value: u32,
    /// Which part, from 0 (`chunk_seq`).
    pub number: u32,
    /// Where its data begins in what was read.
    pub offset: usize,
    /// The part's bytes (`chunk_data`).
    pub data: &'a [u8],
}

impl<'a> ToastChunk<'a> {
    /// Reads a row's columns, what follows its header and padding, as those of a TOAST table; nothing if they don't
    /// have that form.
    pub fn read(columns: &'a [u8]) -> Option<ToastChunk<'a>> {
        let (value, rest) = columns.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (&first, data) = rest.split_first()?;
        // A length of one byte has its lowest bit set, one of four has its lowest two unset; both count themselves.
        let (offset, data, len) = if first & 1 == 1 {
            (9, data, usize::from(first >> 1))
        } else {
            let (len, data) = rest.split_first_chunk()?;
            let len = u32::from_le_bytes(*len);
            (12, data, if len & 3 == 0 { (len >> 2) as usize } else { 0 })
        };
        (offset - 8 + data.len() == len).then_some(ToastChunk {
            value: u32::from_le_bytes(*value),
            number: u32::from_le_bytes(*number),
            offset,
            data,
        })
    }
}
