//! Runs programs of the user's configuration.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of bytes of a program's output that are read.
const MAX_OUTPUT: u64 = 1 << 20;
/// Pause between two checks whether a program has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs a program with these bytes as its standard input, and returns its standard output. Stops it after the
/// time limit. Its messages go to standard error.
///
/// # Errors
/// It cannot be run, does not end in time, or its status is not 0. The text has none of the output, which may
/// be secret.
pub(crate) fn run(words: &[String], input: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
    let (program, arguments) = words.split_first().ok_or("expected a command, found none")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let result = exchange(&mut child, input, limit);
    if result.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    result
}

fn exchange(child: &mut Child, input: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
    let end = Instant::now() + limit;
    let late = || format!("expected its end within {} s, found it running", limit.as_secs());
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (sender, receiver) = mpsc::channel();
    let input = input.to_vec();
    // Both threads end with the program, or with the last process that has its pipes.
    thread::spawn(move || {
        // A program may end without reading its input.
        let _ = stdin.map(|mut stdin| stdin.write_all(&input));
    });
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(MAX_OUTPUT).read_to_end(&mut text));
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(limit).map_err(|_| late())?.map_err(|error| error.to_string())?;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(text),
            Some(status) => return Err(format!("expected status 0, found {status}")),
            None if Instant::now() >= end => return Err(late()),
            None => thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Vec<u8>, String> {
        run(&["sh", "-c", script].map(str::to_owned), b"input", limit)
    }

    #[test]
    fn a_program_gets_its_input_and_its_failure_is_described() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("cat; echo", long).unwrap(), b"input\n");
        assert_eq!(shell("exec <&-; true", long).unwrap(), b"");
        assert!(shell("exit 3", long).unwrap_err().contains("expected status 0, found exit status: 3"));
        shell("head -c 3000000 /dev/zero", long).unwrap_err();
        assert!(run(&["/no/such/program".to_owned()], b"", long).is_err());
        for script in ["sleep 60", "exec >&-; sleep 60", "sleep 60 & sleep 60"] {
            let began = Instant::now();
            let error = shell(script, Duration::from_secs(1)).unwrap_err();
            assert!(error.contains("within 1 s") && began.elapsed() < Duration::from_secs(40), "{error}");
        }
    }
}
