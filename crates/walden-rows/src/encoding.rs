//! The encodings of databases: text in values and names as UTF-8.
//!
//! A database's catalogs and values are in its encoding (`pg_database.encoding`, numbers of `pg_enc` in
//! `mb/pg_wchar.h`). Bytes are decoded as PostgreSQL's conversions to UTF-8 do.

use encoding_rs as tables;

/// The encoding of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding(&'static Known);

#[derive(PartialEq, Eq, Debug)]
struct Known {
    number: u32,
    name: &'static str,
    form: Form,
}

#[derive(PartialEq, Eq, Debug)]
enum Form {
    Utf8,
    /// The first characters of Unicode.
    Latin1,
    /// ISO 8859-9. The Encoding Standard decodes it with the table of Windows-1254, which has printable
    /// characters in place of control characters.
    Latin5,
    /// As in the Encoding Standard.
    Table(&'static tables::Encoding),
    /// Only ASCII is supported.
    Ascii,
}

const fn known(number: u32, name: &'static str, form: Form) -> Known {
    Known { number, name, form }
}

/// Encodings of databases. Client-only encodings are never stored.
static ENCODINGS: [Known; 35] = [
    // Bytes without a defined encoding, decoded as UTF-8, which most SQL_ASCII databases contain.
    known(0, "SQL_ASCII", Form::Utf8),
    known(1, "EUC_JP", Form::Table(tables::EUC_JP)),
    known(2, "EUC_CN", Form::Table(tables::GBK)),
    known(3, "EUC_KR", Form::Table(tables::EUC_KR)),
    known(4, "EUC_TW", Form::Ascii),
    known(5, "EUC_JIS_2004", Form::Ascii),
    known(6, "UTF8", Form::Utf8),
    known(7, "MULE_INTERNAL", Form::Ascii),
    known(8, "LATIN1", Form::Latin1),
    known(9, "LATIN2", Form::Table(tables::ISO_8859_2)),
    known(10, "LATIN3", Form::Table(tables::ISO_8859_3)),
    known(11, "LATIN4", Form::Table(tables::ISO_8859_4)),
    known(12, "LATIN5", Form::Latin5),
    known(13, "LATIN6", Form::Table(tables::ISO_8859_10)),
    known(14, "LATIN7", Form::Table(tables::ISO_8859_13)),
    known(15, "LATIN8", Form::Table(tables::ISO_8859_14)),
    known(16, "LATIN9", Form::Table(tables::ISO_8859_15)),
    known(17, "LATIN10", Form::Table(tables::ISO_8859_16)),
    known(18, "WIN1256", Form::Table(tables::WINDOWS_1256)),
    known(19, "WIN1258", Form::Table(tables::WINDOWS_1258)),
    known(20, "WIN866", Form::Table(tables::IBM866)),
    known(21, "WIN874", Form::Table(tables::WINDOWS_874)),
    known(22, "KOI8R", Form::Table(tables::KOI8_R)),
    known(23, "WIN1251", Form::Table(tables::WINDOWS_1251)),
    known(24, "WIN1252", Form::Table(tables::WINDOWS_1252)),
    known(25, "ISO_8859_5", Form::Table(tables::ISO_8859_5)),
    known(26, "ISO_8859_6", Form::Table(tables::ISO_8859_6)),
    known(27, "ISO_8859_7", Form::Table(tables::ISO_8859_7)),
    known(28, "ISO_8859_8", Form::Table(tables::ISO_8859_8)),
    known(29, "WIN1250", Form::Table(tables::WINDOWS_1250)),
    known(30, "WIN1253", Form::Table(tables::WINDOWS_1253)),
    known(31, "WIN1254", Form::Table(tables::WINDOWS_1254)),
    known(32, "WIN1255", Form::Table(tables::WINDOWS_1255)),
    known(33, "WIN1257", Form::Table(tables::WINDOWS_1257)),
    known(34, "KOI8U", Form::Table(tables::KOI8_U)),
];

/// Characters of the Encoding Standard, and PostgreSQL's characters for the same bytes.
const OTHERS: [(&str, char, char); 5] = [
    ("EUC_JP", '\u{A6}', '\u{FFE4}'),
    ("EUC_CN", '\u{B7}', '\u{30FB}'),
    ("EUC_CN", '\u{2014}', '\u{2015}'),
    ("KOI8U", '\u{45E}', '\u{255D}'),
    ("KOI8U", '\u{40E}', '\u{256C}'),
];

impl Default for Encoding {
    fn default() -> Encoding {
        Encoding::UTF8
    }
}

impl Encoding {
    /// The encoding of most databases.
    pub const UTF8: Encoding = Encoding(&ENCODINGS[6]);

    /// The encoding with a number from `pg_database.encoding`.
    pub fn from_number(number: u32) -> Option<Encoding> {
        ENCODINGS.iter().find(|known| known.number == number).map(Encoding)
    }

    /// The encoding with a name from `pg_encoding_to_char`.
    pub fn from_name(name: &str) -> Option<Encoding> {
        ENCODINGS.iter().find(|known| known.name == name).map(Encoding)
    }

    /// Returns PostgreSQL's name of the encoding.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Decodes bytes; `None` if they are invalid in this encoding, or not ASCII and only ASCII is supported.
    pub fn decode(self, bytes: &[u8]) -> Option<String> {
        let is_plain = bytes.is_ascii() || self.0.form == Form::Utf8;
        if is_plain {
            return std::str::from_utf8(bytes).ok().map(str::to_owned);
        }
        match self.0.form {
            Form::Latin1 => Some(bytes.iter().map(|&byte| char::from(byte)).collect()),
            Form::Latin5 => {
                let text = tables::WINDOWS_1254.decode_without_bom_handling_and_without_replacement(bytes)?;
                let is_control = |byte: u8| (0x80..0xA0).contains(&byte);
                let chars = text.chars().zip(bytes);
                Some(chars.map(|(c, &byte)| if is_control(byte) { char::from(byte) } else { c }).collect())
            }
            Form::Table(table) => {
                let text = table.decode_without_bom_handling_and_without_replacement(bytes)?;
                // In Windows tables, the standard maps bytes without a character to the control character of
                // the same number.
                let is_none = |c: char| self.0.name.starts_with("WIN") && ('\u{80}'..'\u{A0}').contains(&c);
                if text.contains(is_none) {
                    return None;
                }
                let other = |c: char| OTHERS.iter().find(|other| (other.0, other.1) == (self.0.name, c));
                Some(text.chars().map(|c| other(c).map_or(c, |other| other.2)).collect())
            }
            Form::Utf8 | Form::Ascii => None,
        }
    }

    /// Decodes a name. If it is invalid in this encoding, the name has U+FFFD ([`is_exact`]).
    pub(crate) fn decode_name(self, bytes: &[u8]) -> String {
        let lossy = || match self.0.form {
            Form::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            // The bytes may be UTF-8 by chance.
            _ => bytes.iter().map(|&byte| if byte.is_ascii() { char::from(byte) } else { UNKNOWN }).collect(),
        };
        self.decode(bytes).unwrap_or_else(lossy)
    }
}

/// U+FFFD, the character for bytes of a name that cannot be decoded.
const UNKNOWN: char = char::REPLACEMENT_CHARACTER;

/// Whether a name, or the text of a value from names, is exact. Several names may have the same inexact text,
/// so statements must not use inexact names.
pub(crate) fn is_exact(name: &str) -> bool {
    !name.contains(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_decoded_are_not_exact() {
        for known in &ENCODINGS {
            let encoding = Encoding(known);
            assert!(is_exact(&encoding.decode_name(b"plain")), "{}", known.name);
            for first in 0x80..=0xFF {
                for bytes in
                    [vec![first], vec![b'x', first, b'y'], vec![0xC3, first], vec![first, 0xA9, first]]
                {
                    let name = encoding.decode_name(&bytes);
                    assert_eq!(
                        is_exact(&name),
                        encoding.decode(&bytes).is_some(),
                        "{}: {bytes:?}",
                        known.name
                    );
                }
            }
        }
    }
}
