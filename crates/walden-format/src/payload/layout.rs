//! C structures of fixed layout, read and written whole. Hot loops use them to read only the part of a
//! payload that they need.

use crate::record::RelFileLocator;

/// A field of a C structure at a fixed offset.
pub(crate) trait Field: Copy {
    /// Bytes of the field.
    const WIDTH: usize;

    /// Reads the field at an offset within a structure of `N` bytes.
    fn at<const N: usize>(structure: &[u8; N], offset: usize) -> Self;

    /// Writes the bytes that [`Field::at`] reads.
    fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize);
}

/// A structure that [`layout!`] declares.
pub(crate) trait Structure: Sized {
    /// Bytes of the structure.
    const WIDTH: usize;

    /// Reads the structure at the start of `bytes`.
    fn read_whole(bytes: &[u8]) -> Option<Self>;

    #[cfg(test)]
    fn written(&self) -> Vec<u8>;
}

macro_rules! number_field {
    ($($number:ty)*) => {$(
        impl Field for $number {
            const WIDTH: usize = size_of::<$number>();

            #[inline(always)]
            fn at<const N: usize>(structure: &[u8; N], offset: usize) -> Self {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(&structure[offset..offset + size_of::<$number>()]);
                <$number>::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
                structure[offset..offset + size_of::<$number>()].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number_field! { u8 u16 u32 u64 i32 f64 }

impl Field for bool {
    const WIDTH: usize = 1;

    #[inline(always)]
    fn at<const N: usize>(structure: &[u8; N], offset: usize) -> bool {
        structure[offset] != 0
    }

    #[inline(always)]
    fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
        structure[offset] = self.into();
    }
}

impl<const M: usize> Field for [u8; M] {
    const WIDTH: usize = M;

    #[inline(always)]
    fn at<const N: usize>(structure: &[u8; N], offset: usize) -> [u8; M] {
        let mut bytes = [0; M];
        bytes.copy_from_slice(&structure[offset..offset + M]);
        bytes
    }

    #[inline(always)]
    fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
        structure[offset..offset + M].copy_from_slice(&self);
    }
}

/// A block number in two halves of 2 bytes, the high one first (`BlockIdData`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Reads the two halves.
    #[inline]
    pub fn from_bytes([a, b, c, d]: [u8; 4]) -> BlockId {
        BlockId(u32::from(u16::from_le_bytes([a, b])) << 16 | u32::from(u16::from_le_bytes([c, d])))
    }

    /// Returns the bytes that [`BlockId::from_bytes`] reads.
    #[inline]
    pub fn to_bytes(self) -> [u8; 4] {
        let [low, next, high, highest] = self.0.to_le_bytes();
        [high, highest, low, next]
    }
}

impl Field for BlockId {
    const WIDTH: usize = 4;

    #[inline(always)]
    fn at<const N: usize>(structure: &[u8; N], offset: usize) -> BlockId {
        BlockId::from_bytes(<[u8; 4]>::at(structure, offset))
    }

    #[inline(always)]
    fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
        self.to_bytes().put(structure, offset);
    }
}

impl Field for RelFileLocator {
    const WIDTH: usize = RelFileLocator::WIDTH;

    #[inline(always)]
    fn at<const N: usize>(structure: &[u8; N], offset: usize) -> RelFileLocator {
        RelFileLocator {
            tablespace: u32::at(structure, offset),
            database: u32::at(structure, offset + 4),
            relation: u32::at(structure, offset + 8),
        }
    }

    #[inline(always)]
    fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
        structure[offset..offset + Self::WIDTH].copy_from_slice(&self.to_bytes());
    }
}

/// Declares a C structure by its width and its fields' offsets: `layout! { Name[width] { offset field: Type,
/// } }`.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident[$width:literal] { $($(#[$field_doc:meta])* $offset:literal $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of the structure.
            pub const WIDTH: usize = $width;

            /// Reads the structure at the start of `bytes`; `None` if they end within it.
            #[inline]
            pub fn read(bytes: &[u8]) -> Option<$name> {
                bytes.first_chunk().map($name::from_bytes)
            }

            /// Reads the structure.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $width]) -> $name {
                $name { $($field: <$type as $crate::payload::layout::Field>::at(bytes, $offset),)* }
            }

            /// Reads the structure at the start of `bytes`; returns it and the remaining bytes.
            #[inline]
            pub fn split(bytes: &[u8]) -> Option<($name, &[u8])> {
                Some(($name::read(bytes)?, &bytes[$width..]))
            }

            /// Returns the bytes that [`Self::read`] reads, with zeros as padding.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $width] {
                let mut bytes = [0; $width];
                $($crate::payload::layout::Field::put(self.$field, &mut bytes, $offset);)*
                bytes
            }
        }

        const _: () = {
            let mut end = 0;
            $(
                assert!($offset >= end, "fields overlap");
                end = $offset + <$type as $crate::payload::layout::Field>::WIDTH;
            )*
            assert!(end <= $width, "the fields are wider than the structure");
        };

        impl $crate::payload::layout::Structure for $name {
            const WIDTH: usize = $width;

            fn read_whole(bytes: &[u8]) -> Option<$name> {
                $name::read(bytes)
            }

            #[cfg(test)]
            fn written(&self) -> Vec<u8> {
                self.to_bytes().to_vec()
            }
        }
    };
}

pub(crate) use layout;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::payload::heap::{
        DeleteFlags, InfoBits, InsertFlags, SharedLengths, UpdateFlags, XlHeapDelete, XlHeapHeader,
        XlHeapInsert, XlHeapMultiInsert, XlHeapUpdate,
    };
    use crate::payload::{brin, btree, generic, gin, gist, hash, heap, seq, spgist};

    /// Reading, writing and reading again yields the same structure; writing preserves all bytes except
    /// padding and booleans.
    fn check<T: Structure>(bytes: &[u8]) {
        let written = T::read_whole(bytes).unwrap().written();
        assert_eq!(written.len(), T::WIDTH);
        assert_eq!(T::read_whole(&written).unwrap().written(), written);
        for (read, written) in bytes.iter().zip(&written) {
            assert!(read == written || *written <= 1, "{read:02X} became {written:02X}");
        }
        assert!(T::read_whole(&bytes[..T::WIDTH - 1]).is_none());
    }

    macro_rules! check_all {
        ($bytes:ident: $($module:ident { $($name:ident)* })*) => { $($(check::<$module::$name>(&$bytes);)*)* };
    }

    proptest! {
        #[test]
        fn structures_round_trip(bytes in any::<[[u8; 16]; 6]>()) {
            let bytes = bytes.as_flattened();
            check_all! { bytes:
                heap {
                    XlHeapInsert XlHeapMultiInsert XlMultiInsertTuple XlHeapHeader XlHeapDelete XlHeapUpdate XlHeapLock
                    XlHeapOffset XlHeapPrune16 XlHeapVacuum XlHeapFreezePage XlHeapVisible XlHeapNewCid
                    FreezePlan FrozenTuple
                }
                generic { GenericFragment }
                seq { XlSeqRec }
                btree { XlBtreeInsert BtreePostingOffset XlBtreeUpdate }
                hash {
                    XlHashInitMetaPage XlHashInitBitmapPage XlHashInsert XlHashAddOvflPage XlHashSplitAllocatePage
                    XlHashSplitComplete XlHashMovePageContents XlHashSqueezePage XlHashDelete XlHashUpdateMetaPage
                    XlHashVacuumOnePage HashBitmapBit HashFirstFree HashSplitMasks HashSplitPoint
                }
                gin {
                    XlGinInsert GinChildren GinInsertEntry XlGinSplit XlGinDeletePage XlGinUpdateMeta XlGinInsertListPage
                    XlGinDeleteListPages GinInsertDataInternal GinRecompressDataLeaf GinSegmentChange GinAddedItems
                }
                gist { XlGistPageUpdate XlGistDelete XlGistPageSplit XlGistPageDelete }
                spgist {
                    XlSpgistAddLeaf XlSpgistState XlSpgistMoveLeafs XlSpgistAddNode XlSpgistSplitTuple XlSpgistPickSplit
                    XlSpgistVacuumLeaf XlSpgistVacuumRoot XlSpgistVacuumRedirect
                }
                brin {
                    XlBrinCreateIndex XlBrinInsert XlBrinUpdate XlBrinSamepageUpdate XlBrinRevmapExtend XlBrinDesummarize
                }
            }
        }

        #[test]
        fn shared_lengths_are_read_as_written(prefix: u16, suffix: u16, flags: u8, rest: [u8; 3]) {
            let shared = SharedLengths { prefix, suffix };
            let mut data = Vec::new();
            shared.write(&mut data);
            let whole = [&data[..], &rest].concat();
            let flags = shared.flagged(UpdateFlags(flags));
            prop_assert_eq!(SharedLengths::split(flags, &whole), Some((shared, &rest[..])));
            if let Some(cut) = data.len().checked_sub(1) {
                prop_assert_eq!(SharedLengths::split(flags, &data[..cut]), None);
            }
        }
    }

    #[test]
    fn fields_lie_where_postgresql_has_them() {
        let flags = UpdateFlags(UpdateFlags::PREFIX_FROM_OLD);
        let update = XlHeapUpdate {
            old_xmax: 0x0403_0201,
            old_offset: 0x0605,
            old_infobits: InfoBits(7),
            flags,
            new_xmax: 0x0C0B_0A09,
            new_offset: 0x0E0D,
        };
        assert_eq!(update.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 0x20, 9, 10, 11, 12, 13, 14]);
        assert!(flags.prefix_from_old() && !flags.suffix_from_old());
        let delete = XlHeapDelete { xmax: 1, offset: 2, infobits: InfoBits(3), flags: DeleteFlags(4) };
        assert_eq!(delete.to_bytes(), [1, 0, 0, 0, 2, 0, 3, 4]);
        let insert = XlHeapInsert { offset: 0x0201, flags: InsertFlags(3) };
        assert_eq!(insert.to_bytes(), [1, 2, 3]);
        let multi_insert = XlHeapMultiInsert { flags: InsertFlags(1), count: 0x0302 };
        assert_eq!(multi_insert.to_bytes(), [1, 0, 2, 3]);
        let header = XlHeapHeader { infomask2: 0x8002, infomask: 0x0902, header_len: 24 };
        assert_eq!(header.to_bytes(), [2, 0x80, 2, 9, 24]);
        assert_eq!((header.attributes(), header.null_bitmap_len()), (2, Some(1)));
        assert_eq!(BlockId(0x0403_0201).to_bytes(), [3, 4, 1, 2]);
    }
}
