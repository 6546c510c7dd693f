//! Out of the archive: what `restore_command` asks for, from where it was fetched ahead or from the archive itself.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use walden_codec::container::{Head, Reader};
use walden_format::lsn::SegmentName;

use crate::archive::{Archive, ArchiveError};
use crate::name::{ArchivedFile, Object, PackName};
use crate::object::{self, ObjectError, ObjectReader, READ_LIMITS};
use crate::store::{Cause, Store};

/// Why a file was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The archive has no such file: recovery goes on without it.
    #[error("{name} is not in the archive at {location}")]
    NotThere {
        /// The file's name.
        name: String,
        /// Where the archive is.
        location: String,
    },
    /// The archive cannot be used: recovery must stop.
    #[error("cannot get {name}")]
    Archive {
        /// The file's name.
        name: String,
        /// Why.
        #[source]
        source: ArchiveError,
    },
    /// The file cannot be written: recovery must stop.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file that was asked for.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl GetError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            GetError::Archive { source, .. } => source.hint(),
            GetError::NotThere { .. } | GetError::Write { .. } => None,
        }
    }
}

/// Finds a file's object: of its own, or a pack. Names are exact: a segment never answers for a backup history file.
///
/// # Errors
/// The store's.
pub fn find(archive: &Archive, file: ArchivedFile) -> Result<Option<(Object, u64)>, ArchiveError> {
    let key = file.key();
    match archive.store().size(&key) {
        Ok(bytes) => return Ok(Some((Object::File(file), bytes))),
        Err(error) if error.cause == Cause::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    match file {
        ArchivedFile::Segment(name) => Ok(archive.segments_beside(name)?.find(file)),
        _ => Ok(None),
    }
}

/// Writes a file under a path, which gets it whole or not at all.
///
/// # Errors
/// [`GetError::NotThere`] if nothing of the name is archived; everything else means that the archive has it, or may have it, and
/// that it cannot be read.
pub fn get(archive: &Archive, file: ArchivedFile, target: &Path) -> Result<(), GetError> {
    let name = || file.to_string();
    let failed = |source| GetError::Archive { name: name(), source };
    let Some((object, bytes)) = find(archive, file).map_err(failed)? else {
        return Err(GetError::NotThere { name: name(), location: archive.store().location().to_owned() });
    };
    let mut output = Incoming::create(target)?;
    match object {
        Object::File(_) => {
            let object = archive.store().read(&object.key()).map_err(|error| failed(error.into()))?;
            object::decode(file, &object, &mut output).map_err(|error| failed(error.into()))?;
        }
        Object::Pack(pack) => {
            let ArchivedFile::Segment(segment) = file else { return Ok(()) };
            let mut members = PackMembers::open(archive, pack, bytes, segment).map_err(failed)?;
            members.decode_next(&mut output).map_err(failed)?;
        }
    }
    output.publish()
}

/// A file that is being written under another name.
pub struct Incoming {
    temporary: PathBuf,
    target: PathBuf,
    file: BufWriter<File>,
    is_published: bool,
}

impl Incoming {
    /// Begins a file in the target's folder.
    ///
    /// # Errors
    /// [`GetError::Write`].
    pub fn create(target: &Path) -> Result<Incoming, GetError> {
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = target.with_file_name(name);
        let open = || {
            let file = File::create(&temporary)?;
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            Ok(BufWriter::with_capacity(1 << 18, file))
        };
        let failed = |source| GetError::Write { path: target.to_owned(), source };
        let file = open().map_err(failed)?;
        Ok(Incoming { temporary, target: target.to_owned(), file, is_published: false })
    }

    /// Gives the file its name. It is not synchronised: after a crash, recovery asks for it again.
    ///
    /// # Errors
    /// [`GetError::Write`].
    pub fn publish(mut self) -> Result<(), GetError> {
        let result = self.file.flush().and_then(|()| fs::rename(&self.temporary, &self.target));
        self.is_published = result.is_ok();
        result.map_err(|source| GetError::Write { path: self.target.clone(), source })
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_published {
            // What is left over is hidden and of no use to anybody.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Segments of a pack, one after the other: each is decoded once, however many follow.
pub struct PackMembers<'a> {
    key: String,
    reader: Reader<ObjectReader<&'a dyn Store>>,
    /// The head of the next member, if it was read already.
    head: Option<Head>,
    next: SegmentName,
    pack: PackName,
}

impl<'a> PackMembers<'a> {
    /// Goes to a segment of a pack of so many bytes; those from the last keyframe on are decoded on the way.
    ///
    /// # Errors
    /// A pack that is damaged or does not have the segment.
    pub fn open(
        archive: &'a Archive,
        pack: PackName,
        bytes: u64,
        segment: SegmentName,
    ) -> Result<PackMembers<'a>, ArchiveError> {
        let key = pack.key();
        let failed = |source| ObjectError::Container { key: key.clone(), source };
        let input = ObjectReader::new(archive.store(), key.clone(), bytes);
        let mut reader = Reader::open(input, READ_LIMITS).map_err(failed)?;
        let index = reader.index().map_err(failed)?;
        let wanted = segment.to_string();
        let at =
            index.iter().position(|entry| entry.head.meta.name == wanted.as_bytes()).ok_or_else(|| {
                let (expected, found) = (format!("{wanted} in the pack"), "none".to_owned());
                ObjectError::Mismatch { key: key.clone(), expected, found }
            })?;
        let keyframe = index[..=at].iter().rposition(|entry| entry.head.keyframe).unwrap_or(0);
        let mut head = reader.seek(&index[keyframe]).map_err(failed)?;
        let missing = || ObjectError::Mismatch {
            key: key.clone(),
            expected: wanted.clone(),
            found: "the pack's end".to_owned(),
        };
        for _ in keyframe..at {
            reader.decode(&head, &mut io::sink()).map_err(failed)?;
            head = reader.next().map_err(failed)?.ok_or_else(missing)?;
        }
        Ok(PackMembers { key, reader, head: Some(head), next: segment, pack })
    }

    /// The segment that [`PackMembers::decode_next`] decodes; nothing at the end.
    pub fn next_segment(&self) -> Option<SegmentName> {
        self.pack.contains(self.next).then_some(self.next)
    }

    /// Decodes a segment.
    ///
    /// # Errors
    /// A pack that is damaged.
    pub fn decode_next(&mut self, out: &mut dyn Write) -> Result<(), ArchiveError> {
        let key = &self.key;
        let failed = |source| ObjectError::Container { key: key.clone(), source };
        let wanted = self.next.to_string();
        let head = match self.head.take() {
            None => self.reader.next().map_err(failed)?,
            head => head,
        };
        let found = head.as_ref().map(|head| String::from_utf8_lossy(&head.meta.name).into_owned());
        let Some(head) = head.filter(|_| found.as_ref() == Some(&wanted)) else {
            let found = found.unwrap_or_else(|| "the pack's end".to_owned());
            return Err(ObjectError::Mismatch { key: key.clone(), expected: wanted, found }.into());
        };
        self.reader.decode(&head, out).map_err(failed)?;
        self.next.segment += 1;
        Ok(())
    }
}
