//! Options of output files, and the report of errors with their hints.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use walden_format::diagnostic::{Diagnostic, Hint};
use walden_output::{Inputs, OutputError, Wanted};
pub use walden_output::{
    Output, expect_no_input, expect_no_link_below, expect_removable, expect_writable, is_temporary, meta_of,
    refuse_existing, refuse_other_size, replace,
};
#[cfg(feature = "export")]
pub use walden_output::{lock_folder, sync_folder};
use walden_report::html::Page;
use walden_report::table::harmless;
use walden_source::hint_of_kind;
use walden_source::inventory::{Unreadable, UnreadableReason};
use walden_source::names::Names;

pub use crate::diagnostics::{diagnose, with_hint};
use crate::{DAMAGED, USAGE, terminal};

/// Whether existing files may be replaced; an option of commands that write files.
#[derive(Args, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Overwrite {
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

/// Returns whether a command refused to write a file because it exists or must not change. The exit status is
/// that of wrong usage.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref()).any(OutputError::is_refusal)
}

/// The error for a file that is not written because it exists or must not change.
pub enum Refused {}

impl Refused {
    /// Returns the error for a file.
    pub fn error(target: &Path, reason: impl Into<String>) -> anyhow::Error {
        OutputError::refused(target, reason).into()
    }
}

/// Returns the exit status of a command that continues after errors: that of wrong usage if all errors are
/// refusals.
pub fn status_of(errors: &[anyhow::Error]) -> ExitCode {
    match errors {
        [] => ExitCode::SUCCESS,
        errors if errors.iter().all(is_refusal) => ExitCode::from(USAGE),
        _ => ExitCode::from(DAMAGED),
    }
}

/// Checks that files can be written, before a computation that may take an hour.
///
/// Naming the same file in two options is wrong usage: the second output would replace the first output.
pub fn can_write(wanted: &[Wanted<'_>], overwrite: Overwrite, inputs: &Inputs) -> Result<()> {
    if let Some((one, other, path)) = walden_output::find_named_twice(wanted) {
        crate::wrong_usage(&format!(
            "{one} and {other} name the same file, {}: give each a file of its own",
            harmless(&path.to_string_lossy())
        ));
    }
    Ok(walden_output::can_write(wanted, overwrite.force, inputs)?)
}

/// Writes an HTML page.
pub fn write_page(path: &Path, page: &Page, overwrite: Overwrite) -> Result<()> {
    write(path, page.render(), overwrite)
}

/// Writes names of relations.
pub fn write_names(path: &Path, names: &Names, overwrite: Overwrite) -> Result<()> {
    let mut json = Vec::new();
    names.write(&mut json).context("cannot write the names as JSON")?;
    write(path, json, overwrite)
}

/// Writes a file that [`can_write`] has checked. A file that another process has created meanwhile is
/// replaced only with `--force`.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>, overwrite: Overwrite) -> Result<()> {
    Ok(walden_output::write(path, bytes, overwrite.force)?)
}

/// Returns the hint of an error or of one of its causes, including errors of the file system.
pub fn hint_of(error: &anyhow::Error) -> Option<Hint> {
    if let Some(hint) = diagnose(error).hint {
        return Some(hint);
    }
    // A connection error must not get the hint for an error of a file.
    if error.chain().any(|cause| cause.is::<postgres::Error>()) {
        return None;
    }
    let kind_of = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref().map(io::Error::kind);
    let kind = error.chain().find_map(kind_of)?;
    let is_full = matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full && terminal::is_of_stdout(error) {
        return Some("free some space for standard output; the output so far is not complete".into());
    }
    hint_of_kind(kind).map(Hint::from)
}

/// A hint for a file that was skipped because it cannot be read, if the error of the file system decides it.
pub fn hint_of_unreadable(file: &Unreadable) -> Option<&'static str> {
    match &file.reason {
        UnreadableReason::Io(error) => hint_of_kind(error.kind()),
        _ => None,
    }
}

/// Formats an error with its causes, omitting causes whose text already appears.
pub fn chain_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints an error and a hint.
pub fn report(error: &anyhow::Error) {
    print_line(&format!("error: {}", chain_text(error)));
    if let Some(hint) = hint_of(error) {
        print_line(&format!("hint: {hint}"));
    }
}

/// Prints an error of a library and its hint.
pub fn report_diagnostic(error: &dyn Diagnostic) {
    print_line(&format!("error: {error}"));
    if let Some(hint) = error.diagnose().hint {
        print_line(&format!("hint: {hint}"));
    }
}

/// Prints a line on standard error, with control characters escaped: it may contain names from files.
///
/// If standard error cannot be written, as on a full disk, only the exit status remains.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use walden_archive::Archive;
    use walden_archive::store::Folder;
    use walden_codec::container;
    use walden_source::inventory::InventoryError;

    use super::*;

    #[test]
    fn a_full_standard_output_has_no_incomplete_file() {
        let full = terminal::mark_stdout(io::ErrorKind::StorageFull.into());
        let hint = hint_of(&anyhow::Error::from(full).context("cannot write to standard output")).unwrap();
        assert!(hint.contains("standard output"), "{hint}");
        assert!(!hint.contains("incomplete"), "{hint}");
    }

    #[test]
    fn what_may_not_be_read_has_a_hint_wherever_it_is_met() {
        let denied = || {
            let reason = UnreadableReason::Io(io::ErrorKind::PermissionDenied.into());
            Unreadable { path: "wal/000000010000000000000001".into(), reason }
        };
        let nothing = InventoryError::NoSegments {
            paths: vec!["wal".into()],
            inventory: Box::default(),
            first_unreadable: Some(denied()),
        };
        for error in [InventoryError::Unreadable(denied()), nothing] {
            let hint = hint_of(&anyhow::Error::from(error)).unwrap();
            assert!(hint.contains("needs to read the files"), "{hint}");
        }
    }

    #[test]
    fn a_full_disk_is_seen_through_what_was_done() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let errors = [
            anyhow::Error::from(full()).context("write it"),
            anyhow::Error::from(container::Error::Io(full())).context("compress it"),
            anyhow::Error::from(container::Error::Original(full())),
        ];
        for error in errors {
            assert!(hint_of(&error).is_some_and(|hint| hint.starts_with("free some space")), "{error:#}");
        }
        assert_eq!(hint_of(&anyhow::Error::from(container::Error::Foreign)), None);
    }

    #[test]
    fn a_hint_is_no_part_of_an_errors_text() {
        let error = with_hint("no page".to_owned(), "give one").context("replaying");
        assert_eq!(chain_text(&error), "replaying: no page");
        assert_eq!(hint_of(&error).as_deref(), Some("give one"));
    }

    #[test]
    fn a_lack_of_memory_is_no_damage() {
        let error = container::Error::Io(io::ErrorKind::OutOfMemory.into());
        assert_eq!(error.hint(), None);
        let hint = hint_of(&error.into());
        assert!(hint.as_deref().is_some_and(|hint| hint.contains("free some memory")), "{hint:?}");
    }

    #[test]
    fn an_archive_is_closed_whatever_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("archive/wal")).unwrap();
        fs::write(path("archive/archive.json"), "[\"somebody's\"]").unwrap();
        assert_eq!(Inputs::default().find_conflict(&path("archive/wal/new")), None, "another program's file");
        let is_closed = || {
            Inputs::default()
                .find_conflict(&path("archive/wal/new"))
                .is_some_and(|conflict| conflict.contains("is an archive"))
        };
        fs::write(path("archive/archive.json"), "{\"walden_archive\": 1}").unwrap();
        assert!(is_closed());
        fs::remove_file(path("archive/archive.json")).unwrap();
        assert!(!is_closed());
        // An archive without segments has no identity yet.
        Archive::new(Box::new(Folder::new(path("archive")))).create().unwrap();
        assert!(is_closed());
    }
}
