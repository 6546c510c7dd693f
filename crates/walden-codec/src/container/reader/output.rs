//! What is done with a member that is decoded: it is written and hashed, or compared with its original.

use std::io::{self, Write};

use super::super::layout::{End, Hash, hex};

/// What is done with a member that is decoded.
pub(super) enum Output<'o> {
    /// It is written, and its hash compared with the one that is stated.
    Hashed(&'o mut dyn Write),
    /// It is compared with its original, and the hash that is stated with the original's.
    Compared { original: &'o [u8], hash: &'o Hash },
}

/// Whether a member is what it should be, as far as it was decoded.
#[derive(Default)]
pub(super) struct OutputCheck {
    hasher: blake3::Hasher,
    bytes: u64,
    differs: bool,
}

impl OutputCheck {
    pub fn take(&mut self, out: &mut Output<'_>, decoded: &[u8]) -> io::Result<()> {
        let from = self.bytes;
        self.bytes = self.bytes.saturating_add(decoded.len() as u64);
        match out {
            Output::Hashed(out) => {
                self.hasher.update(decoded);
                out.write_all(decoded)
            }
            Output::Compared { original, .. } => {
                let expected =
                    usize::try_from(from).ok().and_then(|from| original.get(from..)?.get(..decoded.len()));
                self.differs |= expected != Some(decoded);
                Ok(())
            }
        }
    }

    /// What was expected and what was found, if these differ.
    pub fn finish(&self, out: &Output<'_>, end: End) -> Result<(), (String, String)> {
        let different = |expected: String, found: String| Err((expected, found));
        if self.bytes != end.bytes {
            return different(
                format!("an original of {} bytes", end.bytes),
                format!("one of {}", self.bytes),
            );
        }
        let hash = match out {
            Output::Hashed(_) => *self.hasher.finalize().as_bytes(),
            Output::Compared { original, .. } if self.differs || original.len() as u64 != self.bytes => {
                return different(
                    format!("the {} bytes that were compressed", original.len()),
                    "others".to_owned(),
                );
            }
            Output::Compared { hash, .. } => **hash,
        };
        match hash == end.hash {
            true => Ok(()),
            false => different(format!("an original of BLAKE3 {}", hex(&end.hash)), hex(&hash)),
        }
    }
}
