//! A test harness like the standard one, whose tests may find out that they cannot run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::need::{Missing, unknown_requirement};

/// What a test ends in. It panics to fail, as any test does.
pub type Outcome = Result<(), Missing>;

/// A test: its name, by modules, and its body.
pub type Test = (&'static str, fn() -> Outcome);

/// Runs tests as the command line says, and gives the process's exit status.
///
/// The attribute `#[test]` means nothing to this harness, and a test with it would silently be none. So the files in `folder`
/// (that of the binary's `main.rs`) must not have it.
pub fn run(folder: &str, tests: impl IntoIterator<Item = Test>) -> ExitCode {
    if let Some(error) = unknown_requirement() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let arguments = Arguments::from_args();
    let trial = |(name, body): Test| Trial::ignorable_test(name, move || complete(body));
    let folder = PathBuf::from(folder);
    let mut trials: Vec<Trial> = tests.into_iter().map(trial).collect();
    trials.push(Trial::test("every_test_is_registered", move || every_test_is_registered(&folder)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn complete(body: fn() -> Outcome) -> Result<Completion, Failed> {
    match body() {
        Ok(()) => Ok(Completion::Completed),
        Err(missing) => Ok(Completion::ignored_with(missing.reason)),
    }
}

fn every_test_is_registered(folder: &Path) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        if text.lines().any(|line| line.trim_start().starts_with("#[test]")) {
            return Err(format!("{} has #[test], which this harness does not run", path.display()).into());
        }
    }
    Ok(())
}
