//! Encrypts one object: a file in the age format whose header has an additional stanza.
//!
//! ```text
//! age-encryption.org/v1
//! -> X25519 ...                       the file's key, encrypted to the archive's recipient
//! -> walden-object KEY RECIPIENT      base64 of a tag of 32 bytes for each file in the object
//! -> ...-grease ...                   to be ignored, as age demands
//! --- MAC
//! nonce (16 bytes), chunks of 64 KiB with 16 bytes of authentication each
//! ```
//!
//! Other programs ignore the stanza. The MAC covers it, so a reader with the archive's key detects an object
//! that was moved to another key. A tag is a keyed hash of a file's name and content. Anyone with the content
//! can check without a secret whether the object contains it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::iter;
use std::ops::Range;

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, EncryptError, Encryptor};
use age_core::format::{FileKey, Stanza, is_arbitrary_string};

use super::MAX_FILES;
use crate::objects::object::EMPTY;
use crate::store::{Cause, FileHash};

/// The stanza's type.
const STANZA: &str = "walden-object";
/// Domain separation from all other hashes.
const TAG_CONTEXT: &str = "walden-archive 2026-11 tag of an archived file's content";
const CHUNK: u64 = 64 << 10;
/// Size of the authentication tag after each chunk, in bytes.
const AUTHENTICATION: u64 = 16;
const STORED_CHUNK: u64 = CHUNK + AUTHENTICATION;
/// Number of bytes read from an object's start, enough for most headers.
pub const HEADER_READ: u64 = 4 << 10;
/// Largest accepted header, in bytes. New objects have at most [`MAX_FILES`] tags. Older packs have a tag for
/// each segment in 4 GiB of WAL: 4096 tags for segments of 1 MB, which take 178 kB in base64.
pub const MAX_HEADER: u64 = 256 << 10;

/// The statement in an object's header. Only the archive's key authenticates it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stated {
    /// The key under which the object was created.
    pub key: String,
    /// The recipient of the encryption.
    pub recipient: String,
    /// The tags of the object's files.
    pub tags: Vec<[u8; 32]>,
}

/// A problem with an object.
#[derive(Debug)]
pub struct Fault {
    pub cause: Cause,
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl Fault {
    fn damaged(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        Fault { cause: Cause::Damaged, source: source.into() }
    }

    /// Returns the fault for an empty object.
    pub fn empty() -> Fault {
        Fault::damaged(format!("expected an encrypted file, found {EMPTY}"))
    }
}

impl From<DecryptError> for Fault {
    fn from(error: DecryptError) -> Fault {
        match error {
            DecryptError::NoMatchingKeys => {
                Fault { cause: Cause::ForeignKey, source: "no private key decrypts it".into() }
            }
            // The input is in memory, so an I/O error means that it is too short.
            error => Fault::damaged(error.to_string()),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::damaged(error)
    }
}

/// Returns the keyed hash of a file's name and content.
pub fn tag(recipient: &str, file: FileHash<'_>) -> [u8; 32] {
    let key = blake3::derive_key(TAG_CONTEXT, recipient.as_bytes());
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(file.name.as_bytes());
    hasher.update(&[0]);
    hasher.update(file.hash);
    *hasher.finalize().as_bytes()
}

/// Encrypts an object and decrypts it again for comparison.
///
/// The private key is unavailable here, so the comparison proves everything except that the recipient can
/// unwrap the file key.
pub fn seal(recipient: &Recipient, stated: &Stated, content: &[u8]) -> Result<Vec<u8>, Fault> {
    if !is_arbitrary_string(&stated.key) {
        let source = format!("expected a key without blanks and of ASCII, found {:?}", stated.key).into();
        return Err(Fault { cause: Cause::InvalidKey, source });
    }
    let files = stated.tags.len();
    if files as u64 > MAX_FILES {
        let source =
            format!("expected at most {MAX_FILES} files in an encrypted object, found {files}").into();
        return Err(Fault { cause: Cause::Other, source });
    }
    let sealing = Sealing { recipient, stated, file_key: RefCell::new(None) };
    let failed = |error: EncryptError| Fault { cause: Cause::Other, source: error.to_string().into() };
    let encryptor = Encryptor::with_recipients(iter::once(&sealing as _)).map_err(failed)?;
    let mut sealed = Vec::with_capacity(content.len() + content.len() / 4096 + HEADER_READ as usize);
    let mut writer = encryptor.wrap_output(&mut sealed)?;
    writer.write_all(content)?;
    writer.finish()?;
    expect_header(&sealed, stated)?;
    let known = FileKeyIdentity(sealing.file_key);
    let mut reader = Decryptor::new_buffered(&sealed[..])?.decrypt(iter::once(&known as _))?;
    let mut buffer = vec![0; CHUNK as usize];
    let mut compared = 0;
    loop {
        let bytes = reader.read(&mut buffer)?;
        if content.get(compared..compared + bytes) != Some(&buffer[..bytes]) {
            return Err(Fault::damaged("the content differs after decryption"));
        }
        compared += bytes;
        if bytes == 0 {
            break;
        }
    }
    if compared != content.len() {
        return Err(Fault::damaged("the content is incomplete after decryption"));
    }
    Ok(sealed)
}

/// Checks that the header can be read back: otherwise partial reads of the object would fail even if a full
/// read succeeds.
fn expect_header(sealed: &[u8], stated: &Stated) -> Result<(), Fault> {
    match Header::parse(sealed)? {
        Some(header) if header.stated == *stated => Ok(()),
        Some(_) => Err(Fault::damaged("its header differs when read back")),
        None => Err(Fault::damaged(format!(
            "expected a header of at most {MAX_HEADER} bytes, found a longer one"
        ))),
    }
}

/// Decrypts an entire object and checks that it belongs to the key.
pub fn open(identities: &[Identity], key: &str, sealed: &[u8]) -> Result<Vec<u8>, Fault> {
    if sealed.is_empty() {
        return Err(Fault::empty());
    }
    // As strict as partial reads, so that a successful read-back means that all readers can read the object.
    if Header::parse(sealed)?.is_none() {
        return Err(Fault::damaged("it ends within its header, or its header is too long"));
    }
    let opening = Opening { identities, stated: RefCell::new(None) };
    let mut reader = Decryptor::new_buffered(sealed)?.decrypt(iter::once(&opening as _))?;
    opening.expect_key(key)?;
    let mut content = Vec::with_capacity(sealed.len());
    reader.read_to_end(&mut content)?;
    Ok(content)
}

/// The start of an object up to its first chunk: the header and the nonce.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: Vec<u8>,
    /// The statement in the header.
    pub stated: Stated,
}

impl Header {
    /// Reads the header of an entire object. Returns `None` if it exceeds [`MAX_HEADER`].
    pub fn parse(sealed: &[u8]) -> Result<Option<Header>, Fault> {
        Header::read(&sealed[..sealed.len().min(MAX_HEADER as usize)])
    }

    /// Parses the header at the start of the bytes. Returns `None` if there are too few bytes.
    pub fn read(beginning: &[u8]) -> Result<Option<Header>, Fault> {
        let opening = Opening { identities: &[], stated: RefCell::new(None) };
        let mut rest = beginning;
        let decryptor = match Decryptor::new_buffered(&mut rest) {
            Ok(decryptor) => decryptor,
            Err(DecryptError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Decrypts nothing because it has no identities, but passes the stanzas to `opening`.
        let _ = decryptor.decrypt(iter::once(&opening as _));
        let bytes = beginning[..beginning.len() - rest.len()].to_vec();
        let stated = opening.stated.into_inner();
        let stated =
            stated.ok_or_else(|| Fault::damaged(format!("expected a stanza {STANZA}, found none")))?;
        Ok(Some(Header { bytes, stated }))
    }

    /// Returns the size of the plaintext of an object with this stored size.
    pub fn content_bytes(&self, stored_bytes: u64) -> Result<u64, Fault> {
        let payload =
            stored_bytes.checked_sub(self.bytes.len() as u64).filter(|&bytes| bytes >= AUTHENTICATION);
        let payload = payload.ok_or_else(|| Fault::damaged("it ends within its header"))?;
        let authentication = payload.div_ceil(STORED_CHUNK) * AUTHENTICATION;
        payload
            .checked_sub(authentication)
            .ok_or_else(|| Fault::damaged("it ends within a chunk's authentication"))
    }

    /// Returns the stored range of the chunks that contain a range of the plaintext.
    pub fn stored_range(&self, content: &Range<u64>, stored_bytes: u64) -> Range<u64> {
        let header = self.bytes.len() as u64;
        let start = header + content.start / CHUNK * STORED_CHUNK;
        let end = header + content.end.div_ceil(CHUNK) * STORED_CHUNK;
        start.min(stored_bytes)..end.min(stored_bytes)
    }

    /// Decrypts a range of the plaintext from the chunks in [`Header::stored_range`].
    pub fn open_range(
        &self,
        identities: &[Identity],
        key: &str,
        content: Range<u64>,
        chunks: (Range<u64>, &[u8]),
        stored_bytes: u64,
    ) -> Result<Vec<u8>, Fault> {
        let (stored, chunks) = chunks;
        if chunks.len() as u64 != stored.end - stored.start {
            return Err(Fault::damaged("it is truncated"));
        }
        let pieces = Pieces { header: &self.bytes, chunks, stored: stored.clone(), stored_bytes, at: 0 };
        let opening = Opening { identities, stated: RefCell::new(None) };
        // Without a buffer, the header would be parsed again for every few bytes.
        let mut reader =
            Decryptor::new_buffered(BufReader::new(pieces))?.decrypt(iter::once(&opening as _))?;
        opening.expect_key(key)?;
        let first = content.start / CHUNK * CHUNK;
        if first > 0 {
            // Seeks to the chunk's second byte first: a seek to the start itself would also read the last
            // chunk.
            reader.seek(SeekFrom::Start(first + 1))?;
            reader.seek(SeekFrom::Current(-1))?;
        }
        io::copy(&mut reader.by_ref().take(content.start - first), &mut io::sink())?;
        let mut part = Vec::with_capacity((content.end - content.start) as usize);
        reader.by_ref().take(content.end - content.start).read_to_end(&mut part)?;
        if stored.end == stored_bytes {
            // Reading to the end checks that the last chunk is marked as last, so nothing was cut off.
            io::copy(&mut reader, &mut io::sink())?;
        }
        Ok(part)
    }
}

/// Reads the fetched parts of an object at their original positions.
struct Pieces<'a> {
    header: &'a [u8],
    chunks: &'a [u8],
    stored: Range<u64>,
    stored_bytes: u64,
    at: u64,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let header = self.header.len() as u64;
        let mut from = match self.at {
            at if at < header => &self.header[at as usize..],
            at if self.stored.contains(&at) => &self.chunks[(at - self.stored.start) as usize..],
            at if at >= self.stored_bytes => &[],
            at => return Err(io::Error::other(format!("byte {at} was not read"))),
        };
        let bytes = from.read(buffer)?;
        self.at += bytes as u64;
        Ok(bytes)
    }
}

impl Seek for Pieces<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.stored_bytes.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

/// Encrypts to the recipient and adds the object's stanza.
struct Sealing<'a> {
    recipient: &'a Recipient,
    stated: &'a Stated,
    /// The file key, for decrypting again to compare.
    file_key: RefCell<Option<FileKey>>,
}

impl age::Recipient for Sealing<'_> {
    fn wrap_file_key(&self, file_key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        self.file_key.replace(Some(FileKey::new(Box::new(*file_key.expose_secret()))));
        let (mut stanzas, labels) = self.recipient.wrap_file_key(file_key)?;
        stanzas.push(Stanza {
            tag: STANZA.to_owned(),
            args: vec![self.stated.key.clone(), self.stated.recipient.clone()],
            body: self.stated.tags.concat(),
        });
        Ok((stanzas, labels))
    }
}

/// Supplies a known file key.
pub struct FileKeyIdentity(pub RefCell<Option<FileKey>>);

impl age::Identity for FileKeyIdentity {
    fn unwrap_stanza(&self, _: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.0.take().map(Ok)
    }
}

/// Decrypts with the archive's identities and captures the object's stanza.
struct Opening<'a> {
    identities: &'a [Identity],
    stated: RefCell<Option<Stated>>,
}

impl Opening<'_> {
    fn expect_key(&self, key: &str) -> Result<(), Fault> {
        match self.stated.borrow().as_ref() {
            Some(stated) if stated.key == key => Ok(()),
            Some(stated) => Err(Fault::damaged(format!("it was stored as {}, and moved since", stated.key))),
            None => Err(Fault::damaged(format!("expected a stanza {STANZA}, found none"))),
        }
    }
}

impl age::Identity for Opening<'_> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.identities.iter().find_map(|identity| identity.unwrap_stanza(stanza))
    }

    fn unwrap_stanzas(&self, stanzas: &[Stanza]) -> Option<Result<FileKey, DecryptError>> {
        let own = stanzas.iter().find(|stanza| stanza.tag == STANZA && stanza.args.len() == 2);
        self.stated.replace(own.map(|stanza| Stated {
            key: stanza.args[0].clone(),
            recipient: stanza.args[1].clone(),
            tags: stanza.body.as_chunks().0.to_vec(),
        }));
        stanzas.iter().find_map(|stanza| self.unwrap_stanza(stanza))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(recipient: &Recipient, files: usize) -> Stated {
        let tags = (0..files).map(|file| *blake3::hash(&file.to_le_bytes()).as_bytes()).collect();
        Stated { key: "wal/x".to_owned(), recipient: recipient.to_string(), tags }
    }

    #[test]
    fn what_is_sealed_has_a_header_that_is_read() {
        let identity = Identity::generate();
        let recipient = identity.to_public();
        let content = vec![7; 3 * CHUNK as usize];
        for files in [0, 1, MAX_FILES as usize] {
            let stated = stated(&recipient, files);
            let sealed = seal(&recipient, &stated, &content).expect("sealed");
            let header = Header::parse(&sealed).expect("a header").expect("whole");
            assert_eq!(header.stated, stated);
            assert_eq!(open(std::slice::from_ref(&identity), "wal/x", &sealed).expect("open"), content);
        }
        let refused =
            seal(&recipient, &stated(&recipient, MAX_FILES as usize + 1), &content).expect_err("too many");
        assert!(format!("{:?}", refused.source).contains("at most 512 files"), "{refused:?}");
    }
}
