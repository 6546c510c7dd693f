//! A test harness like the standard one, whose tests can report that they cannot run here.

use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, mem, thread};

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::need::{Missing, unknown_requirement};

/// The result of a test. A test panics to fail, as usual.
pub type Outcome = Result<(), Missing>;

/// A test of the harness: name and function.
#[derive(Clone, Copy)]
pub struct Test {
    /// Module and function. The first part, which is the binary's name, is omitted when tests are listed.
    pub name: &'static str,
    /// The test's function.
    pub body: Body,
    /// Whether the test runs only with `--include-ignored`, except on the newest of its versions of
    /// PostgreSQL.
    pub is_slow: bool,
}

/// A test's function.
#[derive(Clone, Copy)]
pub enum Body {
    /// One function.
    Once(fn() -> Outcome),
    /// A function that is a separate test for each of these major versions of PostgreSQL.
    OnServers(&'static [u32], fn(u32) -> Outcome),
}

/// The return value of tests: `()`, or an [`Outcome`] for tests that may be skipped.
pub trait IntoOutcome {
    /// Converts the value to an outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Ok(())
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// Registers a module's tests as the constant `TESTS`. For a function that is in no list, the compiler warns
/// that it is unused.
///
/// `name on ALL_SERVERS` and `name on [15, 18]` run a function for each of these major versions of
/// PostgreSQL, as tests `name::on_15` and so on. `#[slow]` before the name marks tests that take longer than
/// about 20 seconds. They run only with `--include-ignored`, except on the newest version of the list.
#[macro_export]
macro_rules! tests {
    (@is_slow) => { false };
    (@is_slow slow) => { true };
    (@body $test:ident) => {
        $crate::Body::Once(|| $crate::IntoOutcome::into_outcome($test()))
    };
    (@body $test:ident $servers:expr) => {
        $crate::Body::OnServers(&$servers, |version| $crate::IntoOutcome::into_outcome($test(version)))
    };
    ($($(#[$speed:ident])? $test:ident $(on $servers:expr)?),* $(,)?) => {
        /// Tests that this module registers.
        pub const TESTS: &[$crate::Test] = &[$($crate::Test {
            name: concat!(module_path!(), "::", stringify!($test)),
            body: $crate::tests!(@body $test $($servers)?),
            is_slow: $crate::tests!(@is_slow $($speed)?),
        }),*];
    };
}

/// Runs tests according to the command line, and returns the process's exit status. If `WALDEN_TEST_TIMES` is
/// set, prints the time of each test that succeeded or was skipped. If `WALDEN_RETRY` is set, tests that
/// failed beside others run again at the end, one at a time, and the second result counts.
///
/// This harness ignores the attribute `#[test]`, so a function with it would silently not be a test. The
/// files in `folder` (that of the binary's `main.rs`) must not contain it.
pub fn run(folder: &str, modules: &[&[Test]]) -> ExitCode {
    if let Some(error) = unknown_requirement() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let (options, filters) = split(env::args().collect());
    if let Some(status) = run_in_memory(&options) {
        return status;
    }
    let mut arguments = Arguments::from_iter(options);
    // Tests mostly wait for servers, which wait for the disk.
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    arguments.test_threads.get_or_insert(2 * cores);
    let folder = PathBuf::from(folder);
    let all = || modules.iter().copied().flatten().flat_map(trials_of);
    let mut trials: Vec<Trial> = all().collect();
    trials.push(Trial::test("every_test_is_registered", move || every_test_is_registered(&folder)));
    let matches = |name: &str, filter: &String| {
        if arguments.exact { name == filter } else { name.contains(filter.as_str()) }
    };
    trials.retain(|trial| filters.is_empty() || filters.iter().any(|filter| matches(trial.name(), filter)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    let retry = env::var_os("WALDEN_RETRY").is_some();
    if retry { run_again(&mut arguments, conclusion, all()) } else { conclusion }.exit_code()
}

/// Available memory and free space, in bytes, at which tests keep their temporary files in memory. They need
/// less than half.
const ENOUGH_MEMORY: u64 = 12 << 30;

/// The file system in memory that Linux has, mostly half as large as the memory.
const MEMORY_FOLDER: &str = "/dev/shm";

/// Runs this process again with a temporary folder in memory, where servers create their thousands of files
/// in a fraction of the time. Returns `None` if `TMPDIR` is set, or if there is not enough memory.
fn run_in_memory(options: &[String]) -> Option<ExitCode> {
    let is_listed = options.iter().any(|option| option == "--list");
    if is_listed || env::var_os("TMPDIR").is_some() || available_memory()? < ENOUGH_MEMORY {
        return None;
    }
    let folder = tempfile::Builder::new().prefix("walden-tests-").tempdir_in(MEMORY_FOLDER).ok()?;
    // As in /tmp: servers run as another user.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).ok()?;
    let mut command = Command::new(env::current_exe().ok()?);
    let status = command.args(env::args_os().skip(1)).env("TMPDIR", folder.path()).status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Bytes that processes and files in memory can still use.
fn available_memory() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let folder = rustix::fs::statvfs(MEMORY_FOLDER).ok()?;
    Some((kilobytes << 10).min(folder.f_bavail.saturating_mul(folder.f_frsize)))
}

/// Runs the tests that panicked again, one at a time, and returns their result.
fn run_again(
    arguments: &mut Arguments,
    conclusion: Conclusion,
    all: impl Iterator<Item = Trial>,
) -> Conclusion {
    let panicked = mem::take(&mut *PANICKED.lock().unwrap_or_else(PoisonError::into_inner));
    // A test that failed without a panic depends on nothing that a second attempt changes.
    if panicked.is_empty() || conclusion.num_failed != panicked.len() as u64 {
        return conclusion;
    }
    eprintln!("run again, one at a time: {}", panicked.join(", "));
    arguments.test_threads = Some(1);
    libtest_mimic::run(
        arguments,
        all.filter(|trial| panicked.iter().any(|name| name == trial.name())).collect(),
    )
}

/// The names of tests that panicked.
static PANICKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Splits options from the names that select tests: the standard harness accepts several names, libtest-mimic
/// only one.
fn split(arguments: Vec<String>) -> (Vec<String>, Vec<String>) {
    const WITH_VALUE: [&str; 6] = ["--test-threads", "--skip", "--logfile", "--color", "--format", "-Z"];
    let (mut options, mut filters) = (Vec::new(), Vec::new());
    let mut is_value = true; // the program's name
    for argument in arguments {
        let is_option = is_value || argument.starts_with('-');
        is_value = !is_value && WITH_VALUE.contains(&argument.as_str());
        if is_option { &mut options } else { &mut filters }.push(argument);
    }
    (options, filters)
}

fn trials_of(test: &Test) -> Vec<Trial> {
    let name = test.name.split_once("::").map_or(test.name, |(_, name)| name);
    match test.body {
        Body::Once(body) => {
            let name = name.to_owned();
            let trial = Trial::ignorable_test(name.clone(), move || complete(&name, body));
            vec![trial.with_ignored_flag(test.is_slow)]
        }
        Body::OnServers(versions, body) => {
            let on_version = |&version: &u32| {
                let name = format!("{name}::on_{version}");
                let trial = Trial::ignorable_test(name.clone(), move || complete(&name, || body(version)));
                trial.with_ignored_flag(test.is_slow && Some(&version) != versions.iter().max())
            };
            versions.iter().map(on_version).collect()
        }
    }
}

fn complete(name: &str, body: impl FnOnce() -> Outcome) -> Result<Completion, Failed> {
    let began = Instant::now();
    let outcome = panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        PANICKED.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        panic::resume_unwind(payload)
    });
    if env::var_os("WALDEN_TEST_TIMES").is_some() {
        eprintln!("{:8.2} s {name}", began.elapsed().as_secs_f64());
    }
    match outcome {
        Ok(()) => Ok(Completion::Completed),
        Err(missing) => Ok(Completion::ignored_with(missing.reason)),
    }
}

fn every_test_is_registered(folder: &Path) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            every_test_is_registered(&path)?;
            continue;
        }
        let text = fs::read_to_string(&path)?;
        if text.lines().any(|line| line.trim_start().starts_with("#[test]")) {
            return Err(format!("{} has #[test], which this harness does not run", path.display()).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn succeed_on(_version: u32) -> Outcome {
        Ok(())
    }

    #[test]
    fn a_test_on_servers_is_one_test_for_each() {
        crate::tests! { succeed_on on [15, 19] }
        let names: Vec<String> =
            TESTS.iter().flat_map(trials_of).map(|trial| trial.name().to_owned()).collect();
        assert_eq!(names, ["harness::tests::succeed_on::on_15", "harness::tests::succeed_on::on_19"]);
    }

    fn succeed() {}

    #[test]
    fn slow_tests_run_on_the_newest_version_unless_ignored_tests_are_included() {
        crate::tests! { succeed, #[slow] succeed_on on [15, 19, 14] }
        let selected = |trials: Vec<Trial>| -> Vec<bool> {
            trials.iter().map(|trial| !trial.has_ignored_flag()).collect()
        };
        assert_eq!(selected(TESTS.iter().flat_map(trials_of).collect()), [true, false, true, false]);
        let slow = Test { is_slow: true, ..TESTS[0] };
        assert_eq!(selected(trials_of(&slow)), [false]);
    }

    #[test]
    fn a_test_that_fails_once_runs_again() {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        fn fail_once() -> Outcome {
            assert!(RUNS.fetch_add(1, Relaxed) > 0, "the first run");
            Ok(())
        }
        fn fail() -> Outcome {
            panic!("each run");
        }
        for (tests, runs, failed) in [(&[fail_once as fn() -> Outcome][..], 2, 0), (&[fail_once, fail], 2, 1)]
        {
            RUNS.store(0, Relaxed);
            let names = ["harness::first", "harness::second"];
            let trials = || {
                let trial = |(&test, &name): (&fn() -> Outcome, &&'static str)| {
                    Trial::ignorable_test(name, move || complete(name, test))
                };
                tests.iter().zip(&names).map(trial).collect::<Vec<_>>()
            };
            let nowhere = Some("/dev/null".to_owned());
            let mut arguments = Arguments { logfile: nowhere, ..Arguments::default() };
            let first = libtest_mimic::run(&arguments, trials());
            assert_eq!(first.num_failed, tests.len() as u64);
            let again = run_again(&mut arguments, first, trials().into_iter());
            assert_eq!((again.num_failed, RUNS.load(Relaxed)), (failed, runs));
        }
    }

    #[test]
    fn several_names_select_tests_and_values_of_options_do_not() {
        let arguments = ["it", "--skip", "a", "b", "--exact", "--test-threads=2", "c", "--color", "never"];
        let (options, filters) = split(arguments.map(str::to_owned).into());
        assert_eq!(options, ["it", "--skip", "a", "--exact", "--test-threads=2", "--color", "never"]);
        assert_eq!(filters, ["b", "c"]);
    }
}
