//! `jsonlog`: one object per line.

use std::io::{self, BufRead};

use serde::Deserialize;

use super::{Entry, parse_time, read_line, without_port};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Line {
    timestamp: String,
    user: String,
    dbname: String,
    pid: u64,
    remote_host: String,
    session_id: String,
    vxid: String,
    txid: u32,
    message: String,
    statement: String,
    application_name: String,
}

/// Reads all entries. Skips lines that are not a JSON object of a log entry, and lines that are too long.
pub fn read(input: &mut impl BufRead, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
    let mut line = Vec::new();
    while read_line(input, &mut line)? {
        let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
        each(Entry {
            time: parse_time(&line.timestamp),
            session: if line.session_id.is_empty() { line.pid.to_string() } else { line.session_id },
            virtual_xid: line.vxid,
            xid: line.txid,
            user: line.user,
            database: line.dbname,
            client: without_port(&line.remote_host).to_owned(),
            application: line.application_name,
            message: line.message,
            statement: line.statement,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::entries;
    use super::*;

    #[test]
    fn objects_are_read_and_other_lines_are_not() {
        let line = r#"{"timestamp":"2026-11-20 22:00:00.125 UTC","user":"app","dbname":"db","pid":77,"remote_host":"[local]","session_id":"655f.4d","vxid":"3/42","txid":1234,"error_severity":"LOG","message":"statement: INSERT INTO t VALUES ('\"', '\n')","application_name":"psql","query_id":-5}"#;
        let all =
            entries(|input, each| read(input, each), &format!("{line}\nnothing\n{{\"pid\":\n{line}\n{line}"));
        assert_eq!(all.len(), 3);
        assert_eq!(
            (all[0].xid, all[0].message.as_str()),
            (1234, "statement: INSERT INTO t VALUES ('\"', '\n')")
        );
        assert_eq!((all[2].client.as_str(), all[2].session.as_str()), ("[local]", "655f.4d"));
    }
}
