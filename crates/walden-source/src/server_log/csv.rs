//! `csvlog`: one record per entry; messages of several lines are in quotes.

use std::io::{self, BufRead};

use csv_core::{ReadFieldResult, Reader};

use super::{Entry, MAX_FIELD, parse_time, without_port};

/// Number of columns since 9.0. Later versions have more at the end.
const MIN_COLUMNS: usize = 23;
/// Most columns that are kept.
const MAX_COLUMNS: usize = 32;

/// Returns whether the start of a file is like a csvlog: a time and at least ten more columns.
pub fn looks_like(start: &[u8]) -> bool {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut columns = line.split(|byte| *byte == b',');
    let time = columns.next().map(String::from_utf8_lossy).unwrap_or_default();
    parse_time(&time).is_some() && columns.count() >= 10
}

/// Reads all entries. Skips records with too few columns.
pub fn read(input: &mut impl BufRead, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
    let mut reader = Reader::new();
    let mut fields: Vec<Vec<u8>> = Vec::new();
    let mut field = Vec::new();
    let mut output = [0; 4096];
    loop {
        let available = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let (result, used, written) = reader.read_field(available, &mut output);
        input.consume(used);
        field.extend(&output[..written.min(MAX_FIELD.saturating_sub(field.len()))]);
        match result {
            ReadFieldResult::InputEmpty | ReadFieldResult::OutputFull => {}
            ReadFieldResult::Field { record_end } => {
                if fields.len() < MAX_COLUMNS {
                    fields.push(std::mem::take(&mut field));
                }
                field.clear();
                if record_end {
                    each_of(&fields, each);
                    fields.clear();
                }
            }
            ReadFieldResult::End => return Ok(()),
        }
    }
}

fn each_of(fields: &[Vec<u8>], each: &mut dyn FnMut(Entry)) {
    if fields.len() < MIN_COLUMNS {
        return;
    }
    let text = |at: usize| {
        String::from_utf8_lossy(fields.get(at).map(Vec::as_slice).unwrap_or_default()).into_owned()
    };
    let session = text(5);
    each(Entry {
        time: parse_time(&text(0)),
        user: text(1),
        database: text(2),
        session: if session.is_empty() { text(3) } else { session },
        client: without_port(&text(4)).to_owned(),
        virtual_xid: text(9),
        xid: text(10).parse().unwrap_or(0),
        message: text(13),
        statement: text(19),
        application: text(22),
    });
}

#[cfg(test)]
mod tests {
    use super::super::entries;
    use super::*;

    #[test]
    fn quotes_and_lines_within_fields_are_read() {
        let line = "2026-11-20 22:00:00.125 UTC,\"app\",\"db\",77,\"10.0.0.1:4242\",\"655f.4d\",3,\"INSERT\",2026-11-20 21:00:00 UTC,\
                    3/42,1234,LOG,00000,\"statement: INSERT INTO t\n VALUES ('a \"\"b\"\", c')\",,,,,,\"SELECT 1\",,,\"psql, my\",\"client backend\",,0\n";
        assert!(looks_like(line.as_bytes()));
        let all = entries(|input, each| read(input, each), &line.repeat(3));
        assert_eq!(all.len(), 3);
        let one = &all[1];
        assert_eq!((one.user.as_str(), one.xid, one.client.as_str()), ("app", 1234, "10.0.0.1"));
        assert_eq!(one.message, "statement: INSERT INTO t\n VALUES ('a \"b\", c')");
        assert_eq!((one.virtual_xid.as_str(), one.application.as_str()), ("3/42", "psql, my"));
        assert_eq!((one.session.as_str(), one.statement.as_str()), ("655f.4d", "SELECT 1"));
        // An unclosed quote loses no more than one field.
        let open = format!("{line}2026-11-20 22:00:00.125 UTC,\"{}", "x".repeat(1 << 20));
        assert_eq!(entries(|input, each| read(input, each), &open).len(), 1);
        assert!(!looks_like(b"2026-11-20 22:00:00.125 UTC [77] LOG:  a, b"));
    }
}
