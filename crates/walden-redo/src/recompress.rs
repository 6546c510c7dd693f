//! What PostgreSQL compressed, compressed again to the same bytes: full-page images, and values within tuples and TOAST.
//!
//! A log that is to be made small holds better the raw bytes, which a stronger method compresses further, if the stored
//! bytes can be made of them again. Of pglz the server has but one version. lz4 and zstd are libraries, whose output may
//! change with their version; so whoever drops the stored bytes has to ask [`Recompressor::reproduces`] for every one, and
//! who keeps none for later versions uses [`lz4`](crate::lz4) and [`zstd`](crate::zstd) instead, which stay as they are.

use std::cell::RefCell;

use walden_format::record::Compression;

use crate::pglz::{self, Pglz};

thread_local! {
    /// Making one takes as long as decompressing a page.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        RefCell::new(zstd::bulk::Decompressor::new().ok());
}

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
            Method::Zstd => {
                ZSTD.with_borrow_mut(|zstd| zstd.as_mut()?.decompress_to_buffer(stored, raw).ok())
            }
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
            Method::Lz4 => ::lz4::block::compress_bound(raw.len()).ok().and_then(|bound| {
                out.resize(bound, 0);
                ::lz4::block::compress_to_buffer(raw, None, false, out).ok()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A value of a row of `pg_statistic` as a server stored it, with its header.
    const VALUE: [u8; 32] = [
        0x82, 0x00, 0x00, 0x00, 0x48, 0x00, 0x00, 0x00, 0x04, 0x01, 0x00, 0x03, 0x01, 0xBC, 0x02, 0x00, 0x00,
        0x0D, 0x08, 0x00, 0x00, 0x00, 0x01, 0x10, 0x6F, 0x12, 0x83, 0x3A, 0x01, 0x0F, 0x04, 0x1E,
    ];

    #[test]
    fn images_of_all_methods_come_back() {
        let raw: Vec<u8> = (0..8000u32).map(|n| if n % 7 < 4 { (n / 70) as u8 } else { 0 }).collect();
        let mut recompressor = Recompressor::new();
        for method in [Method::Pglz, Method::Lz4, Method::Zstd] {
            let mut stored = vec![1; 3];
            assert!(recompressor.compress(method, &raw, &mut stored));
            let mut back = vec![0; raw.len()];
            assert_eq!(method.decompress(&stored, &mut back), Some(raw.len()));
            assert_eq!(back, raw);
            assert!(recompressor.reproduces(method, &raw, &stored));
            stored.push(0);
            assert!(!recompressor.reproduces(method, &raw, &stored));
        }
    }

    #[test]
    fn values_are_found_where_a_tuple_can_have_them() {
        let mut recompressor = Recompressor::new();
        // A row version's data begins 23 bytes into it: with padding, then two columns of which one is the value.
        let mut tuple = vec![0, 7, 0, 0, 0];
        tuple.extend(VALUE);
        let len = VALUE.len();
        tuple.extend(VALUE);
        let found: Vec<_> = recompressor.compressed_values(&tuple, 23).collect();
        let expected =
            |offset| CompressedValue { offset, len, header_len: 8, raw_len: 72, method: Method::Pglz };
        assert_eq!(found, [expected(5), expected(5 + len)]);
        assert_eq!(recompressor.compressed_values(&tuple, 24).count(), 0, "not aligned");
        let cut = &tuple[..tuple.len() - 1];
        assert_eq!(recompressor.compressed_values(cut, 23).count(), 1, "one is cut");
        tuple[5 + 20] ^= 0x40;
        assert_eq!(recompressor.compressed_values(&tuple, 23).count(), 2, "a literal byte may be another");
        tuple[5 + 4] ^= 1;
        assert_eq!(recompressor.compressed_values(&tuple, 23).count(), 1, "the raw size is another");
    }

    #[test]
    fn values_of_toast_are_found() {
        let (mut recompressor, mut raw) = (Recompressor::new(), Vec::new());
        let text = "a log of logs, ".repeat(300);
        for (id, method) in [(0, Method::Pglz), (1, Method::Lz4)] {
            let (mut stored, mut bytes) = (Vec::new(), Vec::new());
            assert!(recompressor.compress(method, text.as_bytes(), &mut stored));
            bytes.extend((text.len() as u32 | id << 30).to_le_bytes());
            bytes.extend(&stored);
            let value = recompressor.toast_value(&bytes, &mut raw).unwrap();
            let (len, raw_len) = (bytes.len(), text.len());
            assert_eq!(value, CompressedValue { offset: 0, len, header_len: 4, raw_len, method });
            assert_eq!(raw, text.as_bytes());
        }
        assert_eq!(recompressor.toast_value(text.as_bytes(), &mut raw), None);
    }

    #[test]
    fn chunks_have_one_form() {
        let mut row = vec![5, 64, 0, 0, 2, 0, 0, 0];
        row.extend((9u32 << 2).to_le_bytes());
        row.extend(b"chunk");
        let expected = ToastChunk { value: 0x4005, number: 2, offset: 12, data: b"chunk" };
        assert_eq!(ToastChunk::read(&row), Some(expected));
        let short = [&row[..8], &[6 << 1 | 1], b"chunk"].concat();
        assert_eq!(ToastChunk::read(&short), Some(ToastChunk { offset: 9, ..expected }));
        for len in 0..row.len() {
            assert_eq!(ToastChunk::read(&row[..len]), None);
        }
        row[8] |= 2;
        assert_eq!(ToastChunk::read(&row), None, "compressed within the chunk");
    }

    proptest! {
        #[test]
        fn any_bytes_are_borne(mut bytes in prop::collection::vec(any::<u8>(), 0..200), start: usize, at in 0..200usize) {
            if let Some(header) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) {
                *header = [0x82, 0, 0, 0, header[4], 0, 0, header[7] & 0x40];
            }
            let (mut recompressor, mut raw) = (Recompressor::new(), Vec::new());
            for value in recompressor.compressed_values(&bytes, start).collect::<Vec<_>>() {
                prop_assert!(value.offset + value.len <= bytes.len() && value.raw_len > value.len - value.header_len);
            }
            recompressor.toast_value(&bytes, &mut raw);
            ToastChunk::read(&bytes);
        }
    }
}
