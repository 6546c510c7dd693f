//! Pieces and end of a member. The end binds the member to its name and position.

use std::io::{self, Read, Seek};

use walden_format::reader::Reader as Cursor;

use super::super::layout::{End, Entry, FrameHeader, Head, Kind, MAX_PIECE, MIN_PIECE};
use super::super::{Damage, Error};
use super::output::{Output, OutputCheck};
use super::{Binding, LastHead, Reader, Summary, name_of};
use crate::Corrupt;
use crate::coder::{Encoded, Form};

/// Maximum number of bytes by which a piece may exceed its decoded length.
const MAX_OVERHEAD: u64 = 2 << 20;

impl<R: Read + Seek> Reader<R> {
    /// Reads the frames after a member's head. Without `out`, the pieces are skipped.
    pub(super) fn pieces(&mut self, head: &Head, mut out: Option<Output<'_>>) -> Result<Summary, Error> {
        let start = self.last.offset;
        let mut check = OutputCheck::default();
        let mut pieces = 0;
        // Length of the last piece's original in bytes.
        let mut last_original = MIN_PIECE;
        let end = loop {
            let offset = self.at;
            let frame = self.frame_header()?;
            match frame.kind {
                Kind::END => break self.end(frame, offset)?,
                Kind::PIECE if head.form == Form::Records && pieces == 1 => {
                    return Err(self.damage(
                        "a piece",
                        offset,
                        "the member's end",
                        "another piece".to_owned(),
                    ));
                }
                Kind::PIECE if last_original < MIN_PIECE => {
                    let expected = format!("the member's end, after a piece of fewer than {MIN_PIECE} bytes");
                    return Err(self.damage("a piece", offset, expected, "another piece".to_owned()));
                }
                Kind::PIECE => {
                    pieces += 1;
                    let Some(out) = &mut out else {
                        self.pass(frame);
                        continue;
                    };
                    let mut written = Ok(());
                    last_original = self.piece(head, frame, offset, &mut |decoded| {
                        if written.is_ok() {
                            written = check.take(out, decoded);
                        }
                    })?;
                    written.map_err(Error::Original)?;
                }
                kind if kind.may_be_skipped() => self.pass(frame),
                kind => {
                    let found = format!("a frame of kind {}", kind.0);
                    return Err(self.damage("a frame", offset, "a piece or the member's end", found));
                }
            }
        };
        self.member = head.number.saturating_add(1);
        if head.form == Form::Records && pieces == 0 {
            return Err(self.damage("the pieces", start, "one piece", "none".to_owned()));
        }
        if let Some(out) = &out {
            check
                .finish(out, end)
                .map_err(|(expected, found)| self.damage("the pieces", start, expected, found))?;
        }
        let stored = self.at - start;
        let binding = self.bind(head, stored, end)?;
        Ok(Summary { stored, end, binding })
    }

    /// Decodes a piece and returns the length of its original in bytes.
    fn piece(
        &mut self,
        head: &Head,
        frame: FrameHeader,
        offset: u64,
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, Error> {
        let limit = self.coder_limits.columns as u64;
        let mut content = self.content(frame, offset, limit.saturating_add(MAX_OVERHEAD), "a piece")?;
        let Some(original) = Cursor::new(&content).u64() else {
            let found = format!("{} bytes", content.len());
            return Err(self.damage("a piece", offset, "8 bytes or more", found));
        };
        let allowed = limit.min(MAX_PIECE);
        if head.form == Form::Bytes && !(1..=allowed).contains(&original) {
            let expected = format!("an original of 1 to {allowed} bytes");
            return Err(self.damage("a piece", offset, expected, format!("one of {original} bytes")));
        }
        if let Some(segment) = head.place.map(|place| place.size.bytes()).filter(|size| *size != original) {
            let expected = format!("an original of {segment} bytes, a whole segment");
            return Err(self.damage("a piece", offset, expected, format!("one of {original} bytes")));
        }
        content.drain(..8);
        let encoded = Encoded { form: head.form, keyframe: head.keyframe, content };
        let decoded = self.decoder.decode(&encoded, original as usize, out);
        if let Some(breakdown) = self.breakdown.as_mut().filter(|_| decoded.is_ok()) {
            breakdown.add(&encoded, original, self.decoder.take_metered().as_ref());
        }
        if let Some(failure) = self.decoder.failure() {
            return Err(Error::Temporary(failure.to_owned()));
        }
        if decoded == Err(Corrupt::NO_MEMORY) {
            return Err(Error::Io(io::Error::new(io::ErrorKind::OutOfMemory, Corrupt::NO_MEMORY)));
        }
        decoded.map(|()| original).map_err(|corrupt| {
            let expected = head.place.map_or_else(
                || format!("{original} compressed bytes"),
                |place| format!("the records of the segment at LSN {}", place.start),
            );
            let found = "content that cannot be decoded".to_owned();
            let (member, part, source) = (None, "a piece", Some(corrupt));
            Error::Damage(Box::new(Damage { member, part, offset, expected, found, source }))
        })
    }

    /// Compares the last member with its binding and with the index.
    fn bind(&mut self, head: &Head, stored: u64, end: End) -> Result<Binding, Error> {
        let LastHead { offset, frame, bytes: head_bytes } = &self.last;
        let bound = self.binding.map(|before| End::bound(end.bytes, end.hash, &before, head_bytes) == end);
        let index = self.index.as_ref();
        let in_index = index.map(|index| {
            let entry = usize::try_from(head.number).ok().and_then(|number| index.get(number));
            entry.is_some_and(|entry| {
                (&entry.head_bytes, entry.stored, entry.end) == (head_bytes, stored, end)
            })
        });
        let binding = match (bound, in_index) {
            (Some(false), _) | (_, Some(false)) => Binding::Broken,
            (Some(true), _) | (None, Some(true)) => Binding::Verified,
            (None, None) => Binding::Unknown,
        };
        if !self.is_salvaging && binding == Binding::Broken {
            return Err(broken(head, *offset));
        }
        if let Some(walked) = &mut self.walked {
            let (offset, frame, head_bytes) = (*offset, *frame, head_bytes.clone());
            Entry { offset, frame, stored, head: head.clone(), head_bytes, end }.put(walked);
        }
        self.binding = Some(end.binding);
        Ok(binding)
    }

    /// Returns the coded pieces of the member whose head was read last, each with the length of its original
    /// in bytes.
    ///
    /// # Errors
    /// Returns errors of the file system, and damage to the member's frames.
    pub fn coded_pieces(&mut self, head: &Head) -> Result<Vec<(u64, Encoded)>, Error> {
        let mut pieces = Vec::new();
        loop {
            let offset = self.at;
            let frame = self.frame_header()?;
            match frame.kind {
                Kind::PIECE => {
                    let mut content = self.content(frame, offset, self.bytes, "a piece")?;
                    let original = Cursor::new(&content).u64().unwrap_or(0);
                    content.drain(..content.len().min(8));
                    pieces.push((original, Encoded { form: head.form, keyframe: head.keyframe, content }));
                }
                _ => self.pass(frame),
            }
            if frame.kind == Kind::END {
                // The binding was not verified, so it cannot verify the next member.
                (self.binding, self.walked) = (None, None);
                self.member = head.number.saturating_add(1);
                return Ok(pieces);
            }
        }
    }
}

/// Creates the error for a member that was moved or renamed.
pub(in crate::container) fn broken(head: &Head, offset: u64) -> Error {
    Error::Damage(Box::new(Damage {
        member: Some((head.number, Some(name_of(head)))),
        part: "the binding",
        offset,
        expected: "a member that is bound to its name and to the members before it".to_owned(),
        found: "one of another place or name".to_owned(),
        source: None,
    }))
}

/// Adds the member's number and name to an error.
pub(super) fn add_member(error: Error, head: &Head) -> Error {
    match error {
        Error::Damage(damage) => {
            Error::Damage(Box::new(Damage { member: Some((head.number, Some(name_of(head)))), ..*damage }))
        }
        error => error,
    }
}
