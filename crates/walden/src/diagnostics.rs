//! Codes and hints of errors that passed through `anyhow`.

use std::error::Error;
use std::fmt;
use std::io;
use std::iter;

use walden_archive::{
    acknowledge, against, archive, base, base_backups, check, drill, export, get, object, probe, push,
    recovery, repair, replay, serve, sources, store,
};
use walden_archiving::{ArchivingError, FetchError, PlaceError, base_backup};
#[cfg(feature = "export")]
use walden_arrow::ReadError;
use walden_codec::container;
use walden_compress::VerifyError;
use walden_format::diagnostic::{Diagnosis, Diagnostic, Hint};
use walden_postgres::{backup, connection, follow, names, replication};
use walden_receive::{ReceiveError, UploadError, handover, spool};
use walden_recover::RecoverError;
use walden_rows::RowsError;
use walden_source::{base as source_base, datadir, inventory, names as saved, scan};
use walden_watch::{locate, server};
use walden_whatif::relations::RelationError;

/// Finds the diagnostic of an error of one type.
type Find = for<'e> fn(&'e (dyn Error + 'static)) -> Option<&'e dyn Diagnostic>;

/// The types of errors that have codes or hints. Errors that only pass on those of another type as their
/// source need no row.
const TYPES: &[Find] = &[
    of_type::<Hinted>,
    of_type::<acknowledge::GapError>,
    of_type::<against::AgainstError>,
    of_type::<archive::ArchiveError>,
    of_type::<base::BaseError>,
    of_type::<base_backups::BaseBackupError>,
    of_type::<base_backup::BackupError>,
    of_type::<backup::FileBackupError>,
    of_type::<check::Refusal>,
    of_type::<connection::ConnectionError>,
    of_type::<container::Error>,
    of_type::<datadir::DataDirError>,
    of_type::<drill::DrillError>,
    of_type::<drill::RedirectFileError>,
    of_type::<export::ExportError>,
    of_type::<follow::FollowError>,
    of_type::<get::GetError>,
    of_type::<handover::CopyError>,
    of_type::<inventory::InventoryError>,
    of_type::<names::NamesError>,
    of_type::<object::ObjectError>,
    of_type::<probe::ProbeError>,
    of_type::<push::PushError>,
    of_type::<recovery::RecoveryError>,
    of_type::<repair::RepairError>,
    of_type::<RelationError>,
    of_type::<replay::ReplayError>,
    of_type::<replication::ReplicationError>,
    of_type::<replication::SlotError>,
    of_type::<saved::NamesError>,
    of_type::<scan::Damage>,
    of_type::<serve::protocol::RequestError>,
    of_type::<server::QueryError>,
    of_type::<source_base::BaseError>,
    of_type::<sources::SourcesError>,
    of_type::<spool::SpoolError>,
    of_type::<store::StoreError>,
    #[cfg(feature = "export")]
    of_type::<ReadError>,
    of_type::<locate::LocateError>,
    of_type::<ArchivingError>,
    of_type::<FetchError>,
    of_type::<PlaceError>,
    of_type::<ReceiveError>,
    of_type::<RecoverError>,
    of_type::<RowsError>,
    of_type::<UploadError>,
    of_type::<VerifyError>,
];

fn of_type<'e, D: Diagnostic + 'static>(cause: &'e (dyn Error + 'static)) -> Option<&'e dyn Diagnostic> {
    let boxed = || cause.downcast_ref::<Box<D>>().map(|error| &**error);
    cause.downcast_ref::<D>().or_else(boxed).map(|error| error as &dyn Diagnostic)
}

/// Returns code and hint of the first error in the chain of causes that has any.
pub fn diagnose(error: &anyhow::Error) -> Diagnosis {
    let diagnosis = |cause| TYPES.iter().find_map(|find| find(cause)).map(Diagnostic::diagnose);
    let mut all = error.chain().flat_map(with_inner).filter_map(diagnosis);
    all.find(|it| *it != Diagnosis::default()).unwrap_or_default()
}

/// Returns a cause and the error in it that is not among its sources: an `io::Error` names as its source that
/// of the error in it.
fn with_inner<'e>(cause: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    iter::once(cause).chain(inner.map(|inner| inner as &(dyn Error + 'static)))
}

/// An error with its own hint.
#[derive(Debug)]
struct Hinted {
    text: String,
    hint: Hint,
}

walden_format::diagnostics! { Hinted {
    Self { hint, .. } => none: hint.clone(),
} }

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Hinted {}

/// Creates an error with a hint, which [`diagnose`] returns.
pub fn with_hint(text: String, hint: impl Into<Hint>) -> anyhow::Error {
    Hinted { text, hint: hint.into() }.into()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use walden_archive::store::Cause;

    use super::*;

    /// Returns the content of all sources below a folder, except for tests.
    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension() {
                None if entry.is_dir() && !entry.ends_with("tests") => sources(&entry, found),
                Some(extension) if extension == "rs" => found.push(fs::read_to_string(&entry).unwrap()),
                _ => {}
            }
        }
    }

    /// Returns the codes of each type of error, by the source of its declaration and its name, and whether
    /// other crates can use it.
    fn types() -> BTreeMap<(usize, String), (BTreeSet<String>, bool)> {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut files);
        let mut types = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            for text in file.split("\nwalden_format::diagnostics! { ").skip(1) {
                let (name, rows) = text.split_once("\n} }").unwrap().0.split_once(" {").unwrap();
                let codes = rows.split("=> \"").skip(1).map(|row| row.split('"').next().unwrap().to_owned());
                let is_public = !file.contains(&format!("pub(crate) enum {name}"));
                types.insert((index, name.to_owned()), (codes.collect(), is_public));
            }
        }
        types
    }

    #[test]
    fn each_code_is_documented_and_belongs_to_one_type() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
        let page = fs::read_to_string(page).unwrap();
        let rows =
            page.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
        let mut documented: Vec<&str> =
            rows.flat_map(|codes| codes.trim_matches([' ', '`']).split(", ")).collect();
        let mut used: Vec<String> = types().into_values().flat_map(|(codes, _)| codes).collect();
        documented.sort_unstable();
        used.sort_unstable();
        assert!(used.len() > 150, "{used:?}");
        assert_eq!(documented, used);
        let is_word =
            |code: &String| code.split('-').all(|word| word.chars().all(|char| char.is_ascii_lowercase()));
        assert!(used.iter().all(is_word), "{used:?}");
    }

    #[test]
    fn all_types_with_codes_are_found_in_a_chain() {
        let text = include_str!("diagnostics.rs").split("\n];").next().unwrap();
        let rows = text.lines().filter_map(|line| line.trim().strip_prefix("of_type::<")?.strip_suffix(">,"));
        let mut listed: Vec<&str> = rows.map(|path| path.rsplit("::").next().unwrap()).collect();
        let types = types();
        let mut expected: Vec<&str> = types
            .iter()
            .filter(|(_, (_, is_public))| *is_public)
            .map(|((_, name), _)| name.as_str())
            .collect();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn messages_of_libraries_contain_no_hints() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut files);
        let with_hint = |file: &&String| file.contains("\\nhint: ");
        let found: Vec<&str> =
            files.iter().filter(with_hint).map(|file| &file[..file.len().min(80)]).collect();
        // Those of this program: this file, the text of another program that is missing, wrong usage, and
        // exhausted memory.
        assert_eq!(found.len(), 4, "use a row of diagnostics! in {found:?}");
    }

    #[test]
    fn wrapping_errors_and_contexts_keep_code_and_hint() {
        let store = || store::StoreError::new("read", "archive.json", "s3://bucket", Cause::Unavailable);
        let archive = || archive::ArchiveError::from(store());
        let get = || get::GetError::Archive { name: "A".into(), source: archive() };
        let push = || push::PushError::Archive { name: "A".into(), source: archive() };
        let place = || "s3://bucket".to_owned();
        let errors: Vec<anyhow::Error> = vec![
            store().into(),
            archive().into(),
            archive::ArchiveError::from(object::ObjectError::from(store())).into(),
            get().into(),
            export::ExportError::from(get()).into(),
            push().into(),
            push::PushError::Copies { name: "A".into(), problems: Vec::new(), first: Box::new(push()) }
                .into(),
            probe::ProbeError::Push(push()).into(),
            recovery::RecoveryError::from(archive()).into(),
            repair::RepairError::from(archive()).into(),
            replay::ReplayError::from(archive()).into(),
            acknowledge::GapError::from(archive()).into(),
            against::AgainstError::from(archive()).into(),
            sources::SourcesError::Archive { place: place(), error: Box::new(archive()) }.into(),
            drill::DrillError::from(archive()).into(),
            drill::DrillError::from(sources::SourcesError::Archive {
                place: place(),
                error: Box::new(archive()),
            })
            .into(),
            ReceiveError::from(archive()).into(),
            UploadError::Archive { location: place(), source: archive() }.into(),
            io::Error::other(store()).into(),
        ];
        for error in errors {
            let error = error.context("cannot do it").context("cannot run the command");
            let Diagnosis { code, hint, .. } = diagnose(&error);
            assert_eq!(code, Some("archive-unreachable"), "{error:?}");
            assert!(hint.is_some_and(|hint| hint.starts_with("check the network")), "{error:?}");
        }
    }

    #[test]
    fn the_outermost_error_with_a_code_decides() {
        let damage =
            || archive::ArchiveError::Identity { location: "here".into(), problem: "cut off".into() };
        let error = archive::ArchiveError::DamagedBefore { name: "A".into(), source: Box::new(damage()) };
        assert_eq!(diagnose(&error.into()).code, Some("archive-damaged-before"));
        // Damage of a compressed form that was just written has no other copy.
        let damaged = container::Error::Foreign;
        assert_eq!(diagnose(&VerifyError::from(damaged).into()).code, Some("compress-not-verified"));
        let error = with_hint("no page".to_owned(), "give one").context("replaying");
        assert_eq!((diagnose(&error).code, diagnose(&error).hint.as_deref()), (None, Some("give one")));
        assert_eq!(diagnose(&io::Error::from(io::ErrorKind::NotFound).into()), Diagnosis::default());
    }
}
