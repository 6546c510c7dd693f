//! Destination of a decoded member: it is written and hashed, or compared with its original.

use std::io::{self, Write};

use super::super::layout::{End, Hash, hex};

/// Destination of a decoded member.
pub(super) enum Output<'o> {
    /// Writes the content and compares its hash with the stored one.
    Hashed(&'o mut dyn Write),
    /// Compares the content with `original`, and the stored hash with `hash`.
    Compared { original: &'o [u8], hash: &'o Hash },
}

/// Running check of a decoded member.
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

    /// Returns the expected and the found value as an error if the member is wrong.
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
