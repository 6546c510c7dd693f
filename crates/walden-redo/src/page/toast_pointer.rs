//! References to values in TOAST tables (`varatt_external` in `varatt.h`, before 16 in `postgres.h`).
//!
//! ```text
//! offset  width
//!      0      2  TOAST_POINTER_HEADER
//!      2      4  va_rawsize      bytes of the value before compression, with a header of 4 bytes
//!      6      4  va_extinfo      bytes that are stored in 30 bits, compression method in 2
//!     10      4  va_valueid      chunk_id of the value's chunks
//!     14      4  va_toastrelid   OID of the TOAST table
//! ```

use super::varlena::{CompressionInfo, LONG_HEADER_BYTES, TOAST_POINTER_HEADER};

/// The location of a value in a TOAST table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToastPointer {
    /// `va_rawsize`: bytes of the value before compression, with a header of 4 bytes.
    pub raw_bytes: u32,
    /// `va_extinfo`: bytes that are stored, and how they are compressed.
    pub stored: CompressionInfo,
    /// `va_valueid`: `chunk_id` of the value's chunks.
    pub value: u32,
    /// `va_toastrelid`: OID of the TOAST table.
    pub relation: u32,
}

impl ToastPointer {
    /// Reads a reference, header included; `None` if the bytes have another header or are cut off.
    pub fn read(bytes: &[u8]) -> Option<ToastPointer> {
        let content = bytes.strip_prefix(&TOAST_POINTER_HEADER)?;
        let (words, _) = content.as_chunks::<4>();
        let &[raw, info, value, relation] = words.first_chunk()?;
        Some(ToastPointer {
            raw_bytes: u32::from_le_bytes(raw),
            stored: CompressionInfo::from_bytes(info),
            value: u32::from_le_bytes(value),
            relation: u32::from_le_bytes(relation),
        })
    }

    /// Returns whether the stored bytes are compressed (`VARATT_EXTERNAL_IS_COMPRESSED`).
    pub fn is_compressed(&self) -> bool {
        u64::from(self.stored.raw_bytes) + LONG_HEADER_BYTES as u64
            <= u64::from(self.raw_bytes).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::varlena::TOAST_POINTER_BYTES;

    #[test]
    fn a_value_is_compressed_if_it_is_stored_in_fewer_bytes() {
        let mut bytes = TOAST_POINTER_HEADER.to_vec();
        [3004, 2999 | 1 << 30, 16_400, 16_390].iter().for_each(|word: &u32| bytes.extend(word.to_le_bytes()));
        assert_eq!(bytes.len(), TOAST_POINTER_BYTES);
        let pointer = ToastPointer::read(&bytes).expect("a reference");
        assert_eq!((pointer.raw_bytes, pointer.value, pointer.relation), (3004, 16_400, 16_390));
        assert_eq!((pointer.stored.raw_bytes, pointer.stored.method), (2999, 1));
        assert!(pointer.is_compressed());
        let stored = CompressionInfo { raw_bytes: 3000, method: 0 };
        assert!(!ToastPointer { stored, ..pointer }.is_compressed());
        assert_eq!(ToastPointer::read(&bytes[..bytes.len() - 1]), None);
        assert_eq!(ToastPointer::read(&bytes[1..]), None);
    }
}
