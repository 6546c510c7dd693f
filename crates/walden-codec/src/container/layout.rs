//! Byte layouts of the container's structures, as `docs/format.md` specifies them.

use walden_format::crc::crc32c_append;
use walden_format::lsn::{Lsn, SegmentSize, Timeline};
use walden_format::reader::Reader;

use super::file_form::FileForm;
use super::limits::Needs;
use crate::coder::{FORMAT_VERSION, Form};

/// Magic at the start of every file. Text conversion and 7-bit transfers would alter it.
pub const MAGIC: [u8; 8] = *b"\x8AWLDN\r\n\x1A";
/// Magic at the start of every frame. Recovery searches for it after damage.
pub const FRAME_MAGIC: [u8; 4] = *b"\xF7Wlz";

/// Size of a [`FileHeader`] in bytes.
pub const FILE_HEADER: usize = 40;
/// Size of a [`FrameHeader`] in bytes.
pub const FRAME_HEADER: usize = 40;
/// Size of a [`Head`] in bytes, without its name.
const HEAD: usize = 46;
/// Size of an [`End`] in bytes, without fields of later versions.
pub const END: usize = 72;
/// Size of a [`Footer`] in bytes.
pub const FOOTER: usize = 80;
/// Size of the footer's frame in bytes, header included: the distance of the footer from the end of the file.
pub const FOOTER_FRAME: u64 = (FRAME_HEADER + FOOTER) as u64;
/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// Maximum size of a member's head in bytes.
pub const MAX_HEAD: u64 = 1 << 16;
/// Maximum number of original bytes in one piece of a member coded as bytes.
pub const MAX_PIECE: u64 = 64 << 20;
/// Minimum number of original bytes in each piece, except the last piece, of a member coded as bytes. Each
/// piece has a fixed decoding cost.
pub const MIN_PIECE: u64 = 64 << 10;

/// Header at the start of every file.
///
/// ```text
///  0  8  magic
///  8  2  version of the format
/// 10  2  oldest reader version that can decode the file
/// 12  1  form of the file
/// 13  1  level
/// 14  2  reserved
/// 16  8  file ID
/// 24  4  maximum memory that a reader needs, in MiB
/// 28  4  maximum number of blocks that a reader has to keep
/// 32  4  reserved
/// 36  4  CRC-32C of bytes 0 to 35
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// The version of the format that the file was written in.
    pub version: u16,
    /// The oldest version whose readers can decode the file.
    pub least_reader: u16,
    /// Whether the file has one member, or is a pack.
    pub form: FileForm,
    /// The level that the file was compressed with.
    pub level: u8,
    /// ID of the file, repeated in every frame. The ID distinguishes the file's own frames from the frames of
    /// a compressed file embedded in its content.
    pub id: u64,
    /// Maximum memory and blocks needed to decode any member.
    pub needs: Needs,
}

/// Reason why a file header cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderFault {
    /// The file does not start with [`MAGIC`].
    Magic,
    /// The file requires a reader of this newer version.
    Newer(u16),
    /// The checksum does not match.
    Checksum {
        /// The CRC-32C in the header.
        stored: u32,
        /// CRC-32C computed over the header's bytes.
        computed: u32,
    },
    /// The number of a file form that this version does not know.
    Form(u8),
}

impl FileHeader {
    /// Encodes the header, with its checksum.
    pub fn to_bytes(self) -> [u8; FILE_HEADER] {
        let mut bytes = [0; FILE_HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.least_reader.to_le_bytes());
        bytes[12] = self.form as u8;
        bytes[13] = self.level;
        bytes[16..24].copy_from_slice(&self.id.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.needs.memory_mib.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.needs.blocks.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Decodes a header and ignores reserved fields.
    ///
    /// # Errors
    /// Returns an error if the magic or the checksum is wrong, the file requires a newer reader, or its form
    /// is unknown.
    pub fn parse(bytes: &[u8; FILE_HEADER]) -> Result<FileHeader, HeaderFault> {
        if bytes[0..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        let (stored, computed) = checksums(bytes);
        if stored != computed {
            return Err(HeaderFault::Checksum { stored, computed });
        }
        let (version, least_reader) = (u16_at(bytes, 8), u16_at(bytes, 10));
        if least_reader > FORMAT_VERSION {
            return Err(HeaderFault::Newer(least_reader));
        }
        let form = match bytes[12] {
            1 => FileForm::Segment,
            2 => FileForm::Pack,
            form => return Err(HeaderFault::Form(form)),
        };
        let needs = Needs { memory_mib: u32_at(bytes, 24), blocks: u32_at(bytes, 28) };
        Ok(FileHeader { version, least_reader, form, level: bytes[13], id: u64_at(bytes, 16), needs })
    }
}

/// Returns the binding of the first member: BLAKE3 of the stored header, including fields of later versions.
pub fn header_binding(bytes: &[u8; FILE_HEADER]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind(pub u8);

impl Kind {
    /// Start of a member: its [`Head`].
    pub const HEAD: Kind = Kind(1);
    /// Part of a member's compressed content.
    pub const PIECE: Kind = Kind(2);
    /// End of a member: its [`End`].
    pub const END: Kind = Kind(3);
    /// The entries of all members of a pack.
    pub const INDEX: Kind = Kind(4);
    /// End of a pack: its [`Footer`].
    pub const FOOTER: Kind = Kind(5);

    /// Returns whether a reader that does not know the kind may skip the frame.
    pub fn may_be_skipped(self) -> bool {
        self.0 >= 0x80
    }
}

/// Header of a frame. Every byte of a file after the file header belongs to a frame.
///
/// ```text
///  0  4  magic
///  4  1  kind
///  5  3  reserved
///  8  8  file ID
/// 16  8  number of the frame in the file, from 0
/// 24  8  length of the content after this header, in bytes
/// 32  4  CRC-32C of the content
/// 36  4  CRC-32C of bytes 0 to 35
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: Kind,
    /// [`FileHeader::id`] of the file.
    pub id: u64,
    /// Number of the frame in the file, from 0.
    pub number: u64,
    /// Length of the content after the header, in bytes.
    pub bytes: u64,
    /// CRC-32C of the content.
    pub checksum: u32,
}

impl FrameHeader {
    /// Encodes the header, with its checksum.
    pub fn to_bytes(self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4] = self.kind.0;
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Decodes a frame header.
    ///
    /// # Errors
    /// Returns the expected and the found value if the magic or the checksum is wrong.
    pub fn parse(bytes: &[u8; FRAME_HEADER]) -> Result<FrameHeader, (String, String)> {
        if bytes[0..4] != FRAME_MAGIC {
            return Err((format!("magic {}", hex(&FRAME_MAGIC)), hex(&bytes[0..4])));
        }
        let (stored, computed) = checksums(bytes);
        if stored != computed {
            return Err((format!("CRC-32C {stored:08X}"), format!("{computed:08X}")));
        }
        Ok(FrameHeader {
            kind: Kind(bytes[4]),
            id: u64_at(bytes, 8),
            number: u64_at(bytes, 16),
            bytes: u64_at(bytes, 24),
            checksum: u32_at(bytes, 32),
        })
    }
}

/// Position of a segment in the WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The timeline in the segment's name.
    pub timeline: Timeline,
    /// LSN of the segment's start.
    pub start: Lsn,
    /// `wal_segment_size`.
    pub size: SegmentSize,
}

impl Place {
    /// Returns the LSN of the segment's end.
    pub fn end(self) -> Lsn {
        self.start.plus(self.size.bytes())
    }
}

/// Attributes of a file that are restored with its content.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Meta {
    /// Relative path of the file, with `/` as separator.
    pub name: Vec<u8>,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Permission bits (`st_mode & 07777`).
    pub mode: Option<u32>,
}

/// Header of a member.
///
/// ```text
///  0  8  number of the member in the file, from 0
///  8  1  form of the content
///  9  1  flags: 1 keyframe, 2 modification time present, 4 permissions present
/// 10  2  reserved
/// 12  4  timeline, 0 for bytes
/// 16  8  LSN of the first byte, 0 for bytes
/// 24  4  segment size in bytes, 0 for bytes
/// 28  4  permissions
/// 32  8  modification time: seconds since 1970, signed
/// 40  4  its nanoseconds
/// 44  2  length of the name in bytes
/// 46     name
///        fields of later versions
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Number of the member in the file, from 0.
    pub number: u64,
    /// How the content is coded: as records or as bytes.
    pub form: Form,
    /// Whether the member can be decoded without the members before it.
    pub keyframe: bool,
    /// Position in the WAL; `None` for members coded as bytes.
    pub place: Option<Place>,
    /// Name, permissions and modification time of the original.
    pub meta: Meta,
}

const KEYFRAME: u8 = 1;
const HAS_TIME: u8 = 2;
const HAS_MODE: u8 = 4;
/// Mask of flags that a reader must know.
const MUST_KNOW: u8 = 0x0F;

impl Head {
    /// Encodes the head.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (seconds, nanoseconds) = self.meta.modified.unwrap_or_default();
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.keyframe, KEYFRAME)
            | flag(self.meta.modified.is_some(), HAS_TIME)
            | flag(self.meta.mode.is_some(), HAS_MODE);
        let mut bytes = Vec::with_capacity(HEAD + self.meta.name.len());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend([self.form as u8, flags, 0, 0]);
        bytes.extend(self.place.map_or(0, |place| place.timeline).to_le_bytes());
        bytes.extend(self.place.map_or(0, |place| place.start.0).to_le_bytes());
        bytes.extend(self.place.map_or(0, |place| place.size.bytes() as u32).to_le_bytes());
        bytes.extend(self.meta.mode.unwrap_or(0).to_le_bytes());
        bytes.extend(seconds.to_le_bytes());
        bytes.extend(nanoseconds.to_le_bytes());
        bytes.extend((self.meta.name.len() as u16).to_le_bytes());
        bytes.extend(&self.meta.name);
        bytes
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// Returns the expected and the found value if the head is too short or holds a value unknown to this
    /// version.
    pub fn parse(bytes: &[u8]) -> Result<Head, (&'static str, String)> {
        let short = || ("a whole head", format!("{} bytes", bytes.len()));
        let mut reader = Reader::new(bytes);
        let number = reader.u64().ok_or_else(short)?;
        let [form, flags, _, _] = reader.array().ok_or_else(short)?;
        let form = match form {
            0 => Form::Bytes,
            1 => Form::Records,
            form => return Err(("a form of content that this version knows", format!("form {form}"))),
        };
        if flags & MUST_KNOW & !(KEYFRAME | HAS_TIME | HAS_MODE) != 0 {
            return Err(("flags that this version knows", format!("flags {flags:#04x}")));
        }
        let timeline = reader.u32().ok_or_else(short)?;
        let start = Lsn(reader.u64().ok_or_else(short)?);
        let size = reader.u32().ok_or_else(short)?;
        let mode = reader.u32().ok_or_else(short)?;
        let seconds = reader.i64().ok_or_else(short)?;
        let nanoseconds = reader.u32().ok_or_else(short)?;
        let name = reader.u16().ok_or_else(short)?;
        let name = reader.take(name.into()).ok_or_else(short)?.to_vec();
        let place = match form {
            Form::Bytes => None,
            Form::Records => {
                let size = SegmentSize::new(size.into())
                    .ok_or(("the size of a segment", format!("{size} bytes")))?;
                Some(Place { timeline, start, size })
            }
        };
        let keyframe = flags & KEYFRAME != 0;
        if form == Form::Bytes && !keyframe {
            return Err(("a keyframe", "a member of form bytes that is none".to_owned()));
        }
        let modified = (flags & HAS_TIME != 0).then_some((seconds, nanoseconds));
        let mode = (flags & HAS_MODE != 0).then_some(mode);
        Ok(Head { number, form, keyframe, place, meta: Meta { name, modified, mode } })
    }
}

/// Trailer of a member.
///
/// ```text
///  0  8  length of the original in bytes
///  8 32  BLAKE3 of the original
/// 40 32  binding: BLAKE3 of the previous member's binding, the head's length, the head, and bytes 0 to 39
/// 72     fields of later versions
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Length of the original in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the original.
    pub hash: Hash,
    /// Binds the member to its head and to all members before it.
    pub binding: Hash,
}

impl End {
    /// Creates a member's end. `before` is the binding of the previous member, or the binding of the file
    /// header for the first member.
    pub fn bound(bytes: u64, hash: Hash, before: &Hash, head: &[u8]) -> End {
        let mut hasher = blake3::Hasher::new();
        hasher.update(before).update(&(head.len() as u64).to_le_bytes()).update(head);
        hasher.update(&bytes.to_le_bytes()).update(&hash);
        End { bytes, hash, binding: *hasher.finalize().as_bytes() }
    }

    /// Encodes the end.
    pub fn to_bytes(self) -> [u8; END] {
        let mut bytes = [0; END];
        bytes[0..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..40].copy_from_slice(&self.hash);
        bytes[40..72].copy_from_slice(&self.binding);
        bytes
    }

    /// Decodes an end; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<End> {
        let mut reader = Reader::new(bytes);
        Some(End { bytes: reader.u64()?, hash: reader.array()?, binding: reader.array()? })
    }
}

/// A member's entry in the index of a pack.
///
/// ```text
///  0  8  offset of the head's frame in the file
///  8  8  number of the head's frame
/// 16  8  length of the member's frames in bytes
/// 24 72  the member's end
/// 96  4  length of the head in bytes
/// 100    the member's head, as stored
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Offset of the member's first frame in the file.
    pub offset: u64,
    /// Number of the member's first frame.
    pub frame: u64,
    /// Length of the member's frames in bytes.
    pub stored: u64,
    /// The member's head.
    pub head: Head,
    /// The stored head, including fields of later versions.
    pub head_bytes: Vec<u8>,
    /// The member's end.
    pub end: End,
}

impl Entry {
    /// Encodes the entry and appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        for number in [self.offset, self.frame, self.stored] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.end.to_bytes());
        out.extend((self.head_bytes.len() as u32).to_le_bytes());
        out.extend(&self.head_bytes);
    }

    /// Decodes an entry and advances the reader.
    pub fn take(reader: &mut Reader<'_>) -> Option<Entry> {
        let (offset, frame, stored) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let end = End::parse(reader.take(END)?)?;
        let head = reader.u32()?;
        let head_bytes = reader.take(head as usize)?.to_vec();
        let head = Head::parse(&head_bytes).ok()?;
        Some(Entry { offset, frame, stored, head, head_bytes, end })
    }
}

/// Content of a pack's last frame.
///
/// ```text
///  0  8  offset of the index's frame
///  8  8  number of members
/// 16 32  binding of the last member; that of the file header if the pack is empty
/// 48 32  BLAKE3 of the index's content
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// Offset of the index's frame in the file.
    pub index: u64,
    /// Number of members.
    pub members: u64,
    /// Binding of the last member, to which the index is bound.
    pub binding: Hash,
    /// BLAKE3 hash of the index's content.
    pub index_hash: Hash,
}

impl Footer {
    /// Encodes the footer.
    pub fn to_bytes(self) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        bytes[0..8].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.members.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.binding);
        bytes[48..80].copy_from_slice(&self.index_hash);
        bytes
    }

    /// Decodes a footer; `None` unless it has exactly this length.
    pub fn parse(bytes: &[u8]) -> Option<Footer> {
        let mut reader = Reader::new(bytes);
        let footer = Footer {
            index: reader.u64()?,
            members: reader.u64()?,
            binding: reader.array()?,
            index_hash: reader.array()?,
        };
        (reader.left() == 0).then_some(footer)
    }
}

/// Formats bytes as upper-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Stores the CRC-32C of the preceding bytes in the last four bytes.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let checksum = crc32c_append(0, &bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the checksum stored in the last four bytes, and the checksum computed over the preceding bytes.
fn checksums(bytes: &[u8]) -> (u32, u32) {
    let at = bytes.len() - 4;
    (u32_at(bytes, at), crc32c_append(0, &bytes[..at]))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Reader::new(&bytes[at..]).u32().unwrap_or(0)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Reader::new(&bytes[at..]).u64().unwrap_or(0)
}
