//! Published experiments, run again on real servers.
//!
//! - [`definition`]: the TOML files, shipped or the user's own
//! - [`report`]: figures beside the published ones, and whether the shape came out
//! - [`run`]: one experiment from its definition
//!
//! What needs to understand the log (its bytes by category, the rows that it changes) is asked of an [`Analysis`], which the
//! caller brings along.

mod checkpoint_distance;
pub mod definition;
mod oracle;
mod prediction;
pub mod report;
mod segment_size;
mod stage;
pub mod statements;
mod wal_level;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use walden_format::lsn::Lsn;

use definition::{Definition, Kind};
use report::{Figures, Phase, Report, RunResult};
use statements::Relation;

use crate::facts::Server;
use crate::install::{Installation, Wanted, find_or_install};
use crate::oracle_model::RowChanges;
use crate::progress::Progress;

/// How much of an experiment is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Seconds.
    Quick,
    /// Minutes.
    #[default]
    Default,
    /// As published.
    Full,
}

/// How to run an experiment.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which of the definition's sizes.
    pub form: Form,
    /// Sizes instead of those, by name.
    pub sizes: BTreeMap<String, u64>,
    /// The PostgreSQL for servers of its own; whatever is found or obtained if `None`.
    pub installation: Option<Installation>,
    /// Settings on top of each case's own.
    pub settings: Vec<(String, String)>,
    /// A server to use instead of servers of its own.
    pub dsn: Option<String>,
    /// An Oracle to run the same statements on, as its thin driver takes it: `user/password@host:port/service`.
    pub oracle_dsn: Option<String>,
    /// A folder to keep each run's WAL and facts in.
    pub keep: Option<PathBuf>,
    /// Replaces what earlier runs left there.
    pub force: bool,
    /// Where progress is shown.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            form: Form::Default,
            sizes: BTreeMap::new(),
            installation: None,
            settings: Vec::new(),
            dsn: None,
            oracle_dsn: None,
            keep: None,
            force: false,
            progress: Progress::hidden(),
        }
    }
}

/// What is asked of those who understand the log.
pub trait Analysis {
    /// The bytes of a range by what they are, adding up to the range.
    ///
    /// # Errors
    /// The WAL cannot be read.
    fn buckets(&self, wal: &Path, from: Lsn, to: Lsn) -> Result<BTreeMap<String, u64>>;

    /// Checkpoints that began in a range because of volume, and because of time; `settings` in the units of `pg_settings`.
    ///
    /// # Errors
    /// The WAL cannot be read.
    fn checkpoints(
        &self,
        wal: &Path,
        range: (Lsn, Lsn),
        settings: &BTreeMap<String, String>,
    ) -> Result<[u64; 2]>;

    /// What happened to a table's rows in each of consecutive phases. The first one begins before the table is there, and
    /// the log has no images of it.
    ///
    /// # Errors
    /// The WAL cannot be read.
    fn row_changes(&self, wal: &Path, table: &Relation, phases: &[Phase]) -> Result<Vec<RowChanges>>;

    /// What a range of the log would have been under each set of settings instead of those that it was written under,
    /// `traced`; all in the units of `pg_settings`. The log may come with a data directory that it goes on from.
    ///
    /// # Errors
    /// The WAL cannot be read, or a setting is not known.
    fn predict(
        &self,
        log: (&Path, Option<&Path>),
        range: (Lsn, Lsn),
        traced: &BTreeMap<String, String>,
        cases: &[BTreeMap<String, String>],
    ) -> Result<Vec<PredictedRun>>;
}

/// What a run is predicted to be.
#[derive(Debug, Clone, Copy)]
pub struct PredictedRun {
    /// Bytes of WAL, as a distance of positions.
    pub bytes: u64,
    /// Checkpoints for volume, and for time.
    pub checkpoints: [u64; 2],
}

/// An experiment that is being run.
pub(crate) struct Lab<'a> {
    pub definition: &'a Definition,
    pub options: &'a Options,
    pub sizes: BTreeMap<String, u64>,
    pub analysis: &'a dyn Analysis,
    pub figures: Figures,
    pub runs: Vec<RunResult>,
    pub server: Option<Server>,
    pub notes: Vec<String>,
    pub unavailable: Vec<String>,
    pub details: BTreeMap<String, Value>,
}

impl Lab<'_> {
    pub fn size(&self, name: &str) -> u64 {
        // The definition was checked to have all of its kind.
        self.sizes.get(name).copied().unwrap_or(1)
    }
}

/// Runs an experiment.
///
/// # Errors
/// The options don't fit the experiment, or a server, a statement or a program failed.
pub fn run(definition: &Definition, options: &Options, analysis: &dyn Analysis) -> Result<Report> {
    check(definition, options)?;
    let mut options = options.clone();
    if options.dsn.is_none() && options.installation.is_none() {
        options.progress.phase("finding PostgreSQL");
        options.installation = Some(find_or_install(Wanted::Any)?);
    }
    let mut lab = Lab {
        definition,
        options: &options,
        sizes: sizes(definition, &options)?,
        analysis,
        figures: Figures::of(definition),
        runs: Vec::new(),
        server: None,
        notes: Vec::new(),
        unavailable: Vec::new(),
        details: BTreeMap::new(),
    };
    let started_at = now();
    let clock = Instant::now();
    match definition.kind {
        Kind::WalLevel => wal_level::run(&mut lab)?,
        Kind::CheckpointDistance => checkpoint_distance::run(&mut lab)?,
        Kind::FullPageWrites => statements::run(&mut lab)?,
        Kind::SegmentSize => segment_size::run(&mut lab)?,
        Kind::WhatifValidation => prediction::run(&mut lab)?,
    }
    if options.dsn.is_some() {
        lab.notes.push("what else was at work on the server meanwhile is counted too".into());
        if options.keep.is_some() {
            lab.unavailable
                .push("cannot keep the WAL of an existing server: its files are not accessible".into());
        }
    }
    options.progress.finish();
    let figures = lab.figures.into_list();
    let checks = report::judge(&definition.claims, &figures);
    Ok(Report {
        experiment: definition.name.clone(),
        about: definition.about.clone(),
        source: definition.source.clone(),
        published_size: lab.sizes == definition.sizes.full,
        sizes: lab.sizes,
        server: lab.server,
        started_at,
        seconds: clock.elapsed().as_secs_f64(),
        runs: lab.runs,
        figures,
        verdict: report::verdict(&checks),
        checks,
        notes: lab.notes,
        unavailable: lab.unavailable,
        details: lab.details,
    })
}

/// Whether the options fit the experiment; nothing is started if not.
///
/// # Errors
/// They don't.
pub fn check(definition: &Definition, options: &Options) -> Result<()> {
    if let (Some(why), true) = (definition.kind.refuses_dsn(), options.dsn.is_some()) {
        bail!("cannot run {} on an existing server: {why}", definition.name);
    }
    ensure!(
        options.oracle_dsn.is_none() || definition.kind == Kind::FullPageWrites,
        "{} has nothing for Oracle; full-page-writes has",
        definition.name
    );
    ensure!(
        options.dsn.is_none() || options.settings.is_empty(),
        "--set is for servers of its own; settings of a server that is there belong into the definition's cases"
    );
    sizes(definition, options).map(drop)
}

fn sizes(definition: &Definition, options: &Options) -> Result<BTreeMap<String, u64>> {
    let mut sizes = match options.form {
        Form::Quick => definition.sizes.quick.clone(),
        Form::Default => definition.sizes.default.clone(),
        Form::Full => definition.sizes.full.clone(),
    };
    for (name, size) in &options.sizes {
        let known = definition.kind.sizes().join(", ");
        let slot = sizes.get_mut(name);
        *slot.with_context(|| format!("{} has no size {name}; it has: {known}", definition.name))? = *size;
    }
    Ok(sizes)
}

/// The time by the system's clock, UTC.
fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01: eras of 400 years, years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
        assert_eq!(civil(-1), (1969, 12, 31));
    }

    #[test]
    fn options_that_do_not_fit_are_refused_before_anything_starts() {
        let level = definition::find("wal-level").unwrap().unwrap();
        let refused = |options: Options| format!("{:#}", check(&level, &options).unwrap_err());
        let dsn = Some("host=nowhere".to_owned());
        assert!(refused(Options { dsn, ..Options::default() }).contains("wal_level takes effect only when"));
        let sizes = [("rows".to_owned(), 1)].into();
        assert!(refused(Options { sizes, ..Options::default() }).contains("it has: scale, transactions"));
        let oracle_dsn = Some("x".to_owned());
        assert!(refused(Options { oracle_dsn, ..Options::default() }).contains("nothing for Oracle"));
        assert!(check(&level, &Options::default()).is_ok());
    }
}
