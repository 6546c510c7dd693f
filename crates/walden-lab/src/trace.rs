//! Counts the bytes that a server's processes write to the WAL, by tracing their system calls with `strace`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postgres::Client;
use rustix::process::Signal;
use serde::Serialize;

use crate::guard::Guard;

/// A running trace; it ends when dropped.
pub(crate) struct Trace {
    guard: Arc<Guard>,
    kinds: BTreeMap<u32, String>,
}

/// WAL written by one kind of process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Written {
    /// Bytes written into segments.
    pub bytes: u64,
    /// Number of system calls that wrote them.
    pub calls: u64,
    /// Bytes of these in segments that the process closed during the trace: a tool that counts at `close`
    /// sees only these.
    pub closed_bytes: u64,
    /// Zeros written to new files before they become segments (`wal_init_zero`).
    pub new_segment_bytes: u64,
}

/// The name of processes that are not in `pg_stat_activity`.
const OTHER: &str = "other";

/// The maximum time for strace to attach to all processes, and to end.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Trace {
    /// Starts tracing the server's current processes, and those that they start. An inner `Err` is the reason
    /// why tracing is impossible.
    pub fn start(postmaster: u32, client: &mut Client) -> Result<Result<Trace, String>> {
        let rows = client.query("SELECT pid, backend_type FROM pg_stat_activity", &[])?;
        let mut kinds: BTreeMap<u32, String> = BTreeMap::new();
        for row in rows {
            let kind: Option<String> = row.get(1);
            kinds.insert(row.get::<_, i32>(0).unsigned_abs(), kind.unwrap_or_else(|| OTHER.into()));
        }
        let folder = tempfile::Builder::new().prefix("walden-trace-").tempdir()?.keep();
        let guard = Guard::new(folder)?;
        let messages = guard.dir().join("messages");
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-ff",
            "-y",
            "-s",
            "0",
            "-e",
            "trace=write,pwrite64,writev,pwritev,pwritev2,close",
            "-o",
        ]);
        command.arg(guard.dir().join("trace"));
        let traced: Vec<u32> = kinds.keys().copied().chain([postmaster]).collect();
        for pid in &traced {
            command.args(["-p", &pid.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&messages)?);
        if let Err(error) = guard.spawn(&mut command) {
            return Ok(Err(match error.downcast_ref::<io::Error>() {
                Some(error) if error.kind() == io::ErrorKind::NotFound => {
                    "strace is not installed (package strace)".into()
                }
                _ => format!("{error:#}"),
            }));
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = fs::read_to_string(&messages).unwrap_or_default();
            // A session that has just ended may still be in the list.
            let settled = |line: &&str| line.ends_with("attached") || line.ends_with("No such process");
            let (done, others): (Vec<&str>, Vec<&str>) =
                text.lines().map(str::trim_end).partition(|line| settled(line));
            if done.len() >= traced.len() && done.iter().any(|line| line.ends_with("attached")) {
                return Ok(Ok(Trace { guard, kinds }));
            }
            if guard.poll()?.is_some() || Instant::now() > deadline {
                let why = others.first().copied().unwrap_or("it does not attach");
                return Ok(Err(format!("strace is not permitted to trace the server: {}", why.trim())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the trace, and returns the bytes written by kind of process.
    pub fn finish(self) -> Result<BTreeMap<String, Written>> {
        self.guard.signal(Signal::INT);
        self.guard.wait(TIMEOUT)?.context("cannot stop strace")?;
        let mut written: BTreeMap<String, Written> = BTreeMap::new();
        for entry in fs::read_dir(self.guard.dir())? {
            let path: PathBuf = entry?.path();
            let pid = path.file_name().and_then(|name| name.to_str()?.strip_prefix("trace.")?.parse().ok());
            let Some(pid) = pid else { continue };
            let kind = self.kinds.get(&pid).map_or(OTHER, String::as_str);
            let one = written_by(&fs::read_to_string(&path)?);
            let sum = written.entry(kind.into()).or_default();
            sum.bytes += one.bytes;
            sum.calls += one.calls;
            sum.closed_bytes += one.closed_bytes;
            sum.new_segment_bytes += one.new_segment_bytes;
        }
        written.retain(|_, one| *one != Written::default());
        Ok(written)
    }
}

/// Sums up the trace of one process, with lines such as `pwrite64(5</data/pg_wal/000000010000000000000003>,
/// ""..., 8192, 0) = 8192`.
fn written_by(text: &str) -> Written {
    let mut sum = Written::default();
    let mut open: BTreeMap<&str, u64> = BTreeMap::new();
    for line in text.lines() {
        let parts = || -> Option<(&str, &str, Option<u64>)> {
            let (call, rest) = line.split_once('(')?;
            let (path, _) = rest.split_once('<')?.1.split_once('>')?;
            let result = line.rsplit_once(" = ")?.1.split_whitespace().next()?.parse().ok();
            Some((call, path, result))
        };
        let Some((call, path, result)) = parts() else { continue };
        let Some((_, file)) = path.rsplit_once("/pg_wal/") else { continue };
        let segment = file.len() == 24 && file.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (call, result) {
            ("close", _) => sum.closed_bytes += open.remove(path).unwrap_or(0),
            (_, Some(bytes)) if segment => {
                sum.bytes += bytes;
                sum.calls += 1;
                *open.entry(path).or_default() += bytes;
            }
            (_, Some(bytes)) if file.starts_with("xlogtemp.") => sum.new_segment_bytes += bytes,
            _ => {}
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_summed_up_by_what_the_file_is() {
        let text = r#"pwrite64(5</d/pg_wal/000000010000000000000003>, ""..., 8192, 0) = 8192
pwrite64(5</d/pg_wal/000000010000000000000003>, ""..., 16384, 8192) = 16384
close(5</d/pg_wal/000000010000000000000003>) = 0
write(5</d/pg_wal/xlogtemp.77>, ""..., 8192) = 8192
pwrite64(5</d/pg_wal/000000010000000000000004>, ""..., 8192, 0) = 8192
pwrite64(5</d/pg_wal/000000010000000000000004>, ""..., 8192, 0) = -1 EINTR (Interrupted system call)
write(1</dev/null>, ""..., 10) = 10
pwrite64(7</d/base/5/16384>, ""..., 8192, 0) = 8192
nonsense
+++ exited with 0 +++"#;
        let expected = Written { bytes: 32_768, calls: 3, closed_bytes: 24_576, new_segment_bytes: 8192 };
        assert_eq!(written_by(text), expected);
    }
}
