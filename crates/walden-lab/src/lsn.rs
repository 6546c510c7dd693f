//! Log sequence numbers as the server prints them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};

/// A byte position in the WAL, written `16/B374D848` as PostgreSQL does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Bytes from `earlier` to `self`; zero if `earlier` is later.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Lsn> {
        let parts = || {
            let (high, low) = text.split_once('/')?;
            Some((u32::from_str_radix(high, 16).ok()?, u32::from_str_radix(low, 16).ok()?))
        };
        let (high, low) = parts().with_context(|| {
            format!("\"{text}\" is not an LSN (expected two hexadecimal numbers, as in 0/16B3748)")
        })?;
        Ok(Lsn(u64::from(high) << 32 | u64::from(low)))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_as_postgresql_does() {
        let lsn: Lsn = "16/B374D848".parse().unwrap();
        assert_eq!(lsn.0, 0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert!("16B3748".parse::<Lsn>().is_err());
    }
}
