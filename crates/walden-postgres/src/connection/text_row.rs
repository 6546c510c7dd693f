//! Rows as text, also if the text is not UTF-8.
//!
//! The client library reads UTF-8 only. Names may be in other encodings: names in SQL_ASCII databases, and
//! names of databases and roles, which may have been created in a database of another encoding. The server
//! then escapes each value, without a conversion.

use postgres::{SimpleQueryMessage, SimpleQueryRow};

/// A row of a query, as text.
#[derive(Debug)]
pub struct TextRow(Form);

#[derive(Debug)]
enum Form {
    /// UTF-8 in each column.
    Plain(SimpleQueryRow),
    /// Decoded values, each with whether it is UTF-8.
    Decoded(Vec<Option<(String, bool)>>),
}

impl TextRow {
    /// Returns a column's value; `None` for null and for a missing column. Bytes that are not UTF-8 are
    /// U+FFFD.
    pub fn get(&self, column: usize) -> Option<&str> {
        match &self.0 {
            // An index beyond the row's end panics in the client library.
            Form::Plain(row) if column < row.len() => row.try_get(column).ok().flatten(),
            Form::Plain(_) => None,
            Form::Decoded(values) => Some(values.get(column)?.as_ref()?.0.as_str()),
        }
    }

    /// Returns whether a column's value is UTF-8, so that [`TextRow::get`] returns it exactly.
    pub fn is_exact(&self, column: usize) -> bool {
        match &self.0 {
            Form::Plain(_) => true,
            Form::Decoded(values) => !matches!(values.get(column), Some(Some((_, false)))),
        }
    }
}

/// Returns the rows of an answer; `None` if a value is not UTF-8.
pub(super) fn plain(messages: Vec<SimpleQueryMessage>) -> Option<Vec<TextRow>> {
    let rows = messages.into_iter().filter_map(row);
    let is_text = |row: &SimpleQueryRow| (0..row.len()).all(|column| row.try_get(column).is_ok());
    rows.map(|row| is_text(&row).then_some(TextRow(Form::Plain(row)))).collect()
}

/// Returns a query whose answer has the columns of `query` and no rows.
pub(super) fn without_rows(query: &str) -> String {
    format!("SELECT * FROM ({query}) AS q LIMIT 0")
}

/// Returns a query for the escaped values of `query`. `described` is the answer to [`without_rows`].
pub(super) fn escaping(settings: &str, query: &str, described: &[SimpleQueryMessage]) -> String {
    let width = described.iter().find_map(|message| match message {
        SimpleQueryMessage::RowDescription(columns) => Some(columns.len()),
        _ => None,
    });
    let names: Vec<String> = (0..width.unwrap_or(0)).map(|column| format!("c{column}")).collect();
    // `concat` prints a value as the answer to a query does. With this encoding of the client, `textsend`
    // returns bytes as they are.
    let escaped = |name: &String| {
        format!("CASE WHEN {name} IS NOT NULL THEN encode(textsend(concat({name})), 'escape') END")
    };
    let values: Vec<String> = names.iter().map(escaped).collect();
    format!(
        "{settings} SET LOCAL client_encoding = 'SQL_ASCII'; SELECT {} FROM ({query}) AS q ({})",
        values.join(", "),
        names.join(", ")
    )
}

/// Returns the rows of an answer to a query of [`escaping`].
pub(super) fn unescape(messages: Vec<SimpleQueryMessage>) -> Vec<TextRow> {
    let decoded = |row: SimpleQueryRow| {
        let value = |column| row.try_get(column).ok().flatten().map(|text| decode(&bytes_of(text)));
        TextRow(Form::Decoded((0..row.len()).map(value).collect()))
    };
    messages.into_iter().filter_map(row).map(decoded).collect()
}

fn row(message: SimpleQueryMessage) -> Option<SimpleQueryRow> {
    match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    }
}

fn decode(bytes: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes);
    let is_exact = matches!(text, std::borrow::Cow::Borrowed(_));
    (text.into_owned(), is_exact)
}

/// Returns the bytes of a text in PostgreSQL's format `escape`: `\\` for a backslash, and `\ooo` for a byte
/// of 0 or above 127, in octal digits (`esc_encode`).
fn bytes_of(escaped: &str) -> Vec<u8> {
    const DIGITS: usize = 3;
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..DIGITS).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let (byte, length) = match octal {
            _ if first != b'\\' => (first, 0),
            Some(byte) => (byte, DIGITS),
            None => (first, 1),
        };
        bytes.push(byte);
        rest = after.get(length..).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_are_decoded() {
        for (escaped, bytes) in [
            ("plain", &b"plain"[..]),
            (r"caf\351", b"caf\xe9"),
            (r"\000\377", b"\0\xff"),
            (r"a\\b", br"a\b"),
            (r"\\351", br"\351"),
            ("", b""),
            (r"\", br"\"),
        ] {
            assert_eq!(bytes_of(escaped), bytes, "{escaped}");
        }
        assert_eq!(decode(b"caf\xe9"), ("caf\u{FFFD}".to_owned(), false));
        assert_eq!(decode("caf\u{FFFD}".as_bytes()), ("caf\u{FFFD}".to_owned(), true));
    }
}
