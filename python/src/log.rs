//! The WAL of a source, opened once.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use walden_archive::encryption::KeyOptions;
use walden_archive::source::{self, SourceOptions};
use walden_archive::sources::{self, SourcesError, is_archive};
use walden_archive::url::{self, PlaceOptions};
use walden_arrow::ReadOptions;
use walden_explain::{Bound as Place, ExplainError};
use walden_format::lsn::Lsn;
use walden_postgres::names::{self, NamesError};
use walden_source::datadir::DataDir;
use walden_source::inventory::{Inventory, SegmentFile};
use walden_source::names::Names;

use crate::errors;
use crate::interrupt;

/// The segments of a source, with the names of relations. Each read decodes the segments again.
#[pyclass(frozen, module = "walden._walden")]
pub struct Log {
    pub inventory: Arc<Inventory>,
    pub names: Arc<Names>,
    pub from: Option<Place>,
    pub to: Option<Place>,
    pub threads: usize,
    /// Missing parts of the source, a line each.
    #[pyo3(get)]
    warnings: Vec<String>,
    /// How timelines are followed, a line each.
    #[pyo3(get)]
    notes: Vec<String>,
}

/// Whether segments of archives before and after the range are needed, too.
#[derive(Clone, Copy)]
struct Beyond {
    before: bool,
    behind: bool,
}

#[pymethods]
impl Log {
    /// Finds the segments and reads the names.
    #[new]
    #[pyo3(signature = (sources, *, store, identity, timeline, start, end, names, threads, before=false, behind=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords of a function of Python")]
    fn open(
        py: Python<'_>,
        sources: Vec<String>,
        store: Vec<(String, String)>,
        identity: Option<PathBuf>,
        timeline: Option<u32>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        names: Vec<String>,
        threads: Option<usize>,
        before: bool,
        behind: bool,
    ) -> PyResult<Log> {
        let from = start.map(|start| bound("start", start)).transpose()?;
        let to = end.map(|end| bound("end", end)).transpose()?;
        if sources.is_empty() {
            return Err(errors::wrong_value("source: expected at least one path or URL"));
        }
        if timeline == Some(0) {
            return Err(errors::wrong_value("timeline: expected 1 or more, found 0"));
        }
        let threads = match threads {
            Some(0) => return Err(errors::wrong_value("threads: expected 1 or more, found 0")),
            Some(threads) => threads.min(1024),
            None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        let place = PlaceOptions::default().store(store).keys(KeyOptions::default().identity(identity));
        let range = Beyond { before, behind }.range(timeline, from, to);
        let opened = interrupt::run(py, move |_| open(&sources, &place, &range))?;
        let found = opened.map_err(|error| error.exception())?;
        expect_one_cluster(&found.inventory)?;
        let named = interrupt::run(py, move |_| read_names(&names))?;
        let mut named = named.map_err(|error| errors::from_names(&error))?;
        check_cluster(&named, &found.inventory)?;
        if let Some(first) = found.inventory.runs.first() {
            named.set_version(first.version);
        }
        let warnings = warnings(&found.inventory, &named);
        let (inventory, names) = (Arc::new(found.inventory), Arc::new(named));
        Ok(Log { inventory, names, from, to, threads, warnings, notes: found.notes })
    }

    /// The start of the range: `None`, or whether it is a time, and the LSN or the microseconds since
    /// 1970-01-01 UTC.
    #[getter]
    fn start(&self) -> Option<(bool, i128)> {
        self.from.map(number)
    }

    /// The end of the range, in the same form as `start`.
    #[getter]
    fn end(&self) -> Option<(bool, i128)> {
        self.to.map(number)
    }
}

fn number(place: Place) -> (bool, i128) {
    match place {
        Place::Lsn(lsn) => (false, lsn.0.into()),
        Place::Time(micros) => (true, micros.into()),
    }
}

impl Log {
    /// Returns options that read the requested range, on a base backup if there is one. A bound by time
    /// requires a pass over the WAL.
    pub fn options(&self, py: Python<'_>, base: Option<&Path>) -> PyResult<ReadOptions> {
        let mut options = ReadOptions::new(Arc::clone(&self.names), self.threads);
        // An error is reported where the backup is read.
        let base = base.and_then(|base| DataDir::open_at_rest(base).ok()).map(|base| base.redo_from());
        let (inventory, from, to) = (Arc::clone(&self.inventory), self.from, self.to);
        let ranged = interrupt::run(py, move |cancel| -> Result<_, ExplainError> {
            let step = options.set_range(&inventory.runs, from, to, base, |_| cancel.check())?;
            Ok((options, step))
        })?;
        let (options, step) = ranged.map_err(|error| errors::from_explain(&error))?;
        if let Some(step) = step {
            let text = CString::new(format!("{step}: the range may be incomplete; use positions (LSNs)"))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?;
        }
        Ok(options)
    }
}

impl Beyond {
    fn range(self, timeline: Option<u32>, from: Option<Place>, to: Option<Place>) -> SourceOptions {
        let place = |place| match place {
            Place::Lsn(lsn) => source::Bound::Lsn(lsn),
            Place::Time(micros) => source::Bound::Time(micros),
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        SourceOptions::new((2 * cores).min(16))
            .timeline(timeline)
            .from(from.filter(|_| !self.before).map(place))
            .to(to.filter(|_| !self.behind).map(place))
    }
}

/// Reasons why a source cannot be opened.
enum OpenError {
    Place(walden_archive::store::StoreError),
    Sources(SourcesError),
}

impl OpenError {
    fn exception(&self) -> PyErr {
        match self {
            OpenError::Place(error) => errors::other(error),
            OpenError::Sources(error) => errors::from_sources(error),
        }
    }
}

fn open(
    names: &[String],
    place: &PlaceOptions,
    options: &SourceOptions,
) -> Result<sources::Sources, OpenError> {
    let (archives, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        names.iter().map(PathBuf::from).partition(|path| is_archive(path));
    let mut opened = Vec::with_capacity(archives.len());
    for archive in archives {
        let name = archive.to_string_lossy().into_owned();
        let archive = url::open(&name, place).map_err(OpenError::Place)?;
        opened.push((name, archive));
    }
    sources::open(&opened, &paths, options).map_err(OpenError::Sources)
}

fn read_names(sources: &[String]) -> Result<Names, NamesError> {
    let mut names = Names::default();
    for source in sources {
        names.merge(names::read(source)?)?;
    }
    Ok(names)
}

/// Rejects segments of two clusters, as the program does: LSNs, blocks and transactions of another cluster
/// have another meaning.
fn expect_one_cluster(inventory: &Inventory) -> PyResult<()> {
    let mut clusters = inventory.runs.iter().map(|run| run.system_id);
    let first = clusters.next();
    match first.zip(clusters.find(|other| Some(*other) != first)) {
        None => Ok(()),
        Some((one, other)) => Err(errors::WaldenError::new_err(format!(
            "cannot read segments of two clusters together, with the system identifiers {one} and {other}: name the folder or \
             the segments of one"
        ))),
    }
}

/// Rejects names of another cluster, where the same numbers denote other relations.
fn check_cluster(names: &Names, inventory: &Inventory) -> PyResult<()> {
    let Some(named) = names.origin.system_id else { return Ok(()) };
    match inventory.runs.iter().find(|run| run.system_id != named) {
        None => Ok(()),
        Some(run) => Err(errors::WaldenError::new_err(format!(
            "cannot use the names of another cluster: expected system identifier {}, found {named}: take the names from \
             the server that wrote the WAL",
            run.system_id
        ))),
    }
}

fn warnings(inventory: &Inventory, names: &Names) -> Vec<String> {
    let gaps = inventory.gaps().into_iter().map(|gap| gap.to_string());
    let unreadable = inventory.unreadable.iter().map(ToString::to_string);
    let unnamed = names.notes.iter().map(|note| format!("no names of {note}"));
    let restarts = inventory.restarts().map(SegmentFile::restart_text);
    gaps.chain(restarts).chain(unreadable).chain(unnamed).collect()
}

/// Parses an LSN or a time: an LSN as text or number, a `datetime`, or a time as text.
fn bound(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Place> {
    let wrong = |problem: &dyn std::fmt::Display| errors::wrong_value(format!("{name}: {problem}"));
    if let Ok(text) = value.cast::<PyString>() {
        return text.to_str()?.parse().map_err(|error| wrong(&error));
    }
    // numpy's integers are not instances of Python's.
    if value.hasattr("__index__")? && !value.is_instance_of::<PyBool>() {
        return value
            .call_method0("__index__")?
            .extract::<u64>()
            .map(|lsn| Place::Lsn(Lsn(lsn)))
            .map_err(|_| wrong(&"expected an LSN from 0 to 2**64 - 1"));
    }
    let module = value.py().import("datetime")?;
    let datetime = module.getattr("datetime")?;
    if value.is_instance(&module.getattr("date")?)? && !value.is_instance(&datetime)? {
        let midnight = module.getattr("time")?.call0()?;
        return bound(name, &datetime.call_method1("combine", (value, midnight))?);
    }
    if value.is_instance(&datetime)? {
        // A float cannot represent all microseconds of a time. Its seconds and the fraction are each exact.
        let timestamp: f64 = value.call_method0("timestamp")?.extract()?;
        let fraction: u32 = value.getattr("microsecond")?.extract()?;
        let seconds = (timestamp - f64::from(fraction) / 1e6).round() as i64;
        return Ok(Place::Time(seconds.saturating_mul(1_000_000).saturating_add(fraction.into())));
    }
    let found = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("{name}: expected an LSN, a time, a datetime or a date, found {found}")))
}
