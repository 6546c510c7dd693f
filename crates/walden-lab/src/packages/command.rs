//! Programs that download and unpack packages.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Whether a program exists and prints its version.
pub(super) fn runs(program: &[&str]) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("--version");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command to completion and returns its standard output.
///
/// # Errors
/// It does not start, or fails; the message includes its standard error.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}):\n{}", output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
