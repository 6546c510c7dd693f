//! Published experiments, repeated on real servers.
//!
//! - [`definition`]: the TOML files, shipped or the user's own
//! - [`report`]: figures next to the published ones, and whether the published relations hold
//! - [`run`]: one experiment from its definition
//!
//! This crate does not decode WAL. Bytes by bucket, row changes, checkpoints and predictions come from an
//! [`Analysis`], which the caller implements.

mod checkpoint_distance;
pub mod definition;
mod oracle;
mod prediction;
pub(crate) use prediction::settings_of;
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

/// The size of an experiment's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Takes seconds.
    Quick,
    /// Takes minutes.
    #[default]
    Default,
    /// The published size.
    Full,
}

/// Options of [`run`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The size of the run.
    pub form: Form,
    /// Sizes that replace those of the definition, by name.
    pub sizes: BTreeMap<String, u64>,
    /// The PostgreSQL to run; if `None`, the first one found, or the package of 18.
    pub installation: Option<Installation>,
    /// Server settings (name, value) that take precedence over each case's own.
    pub settings: Vec<(String, String)>,
    /// Connection string of an existing server to use instead of new clusters.
    pub dsn: Option<String>,
    /// Connection string of an Oracle database to run the same statements on, for its thin Python driver:
    /// `user/password@host:port/service`.
    pub oracle_dsn: Option<String>,
    /// A folder to keep each run's WAL and facts in.
    pub keep: Option<PathBuf>,
    /// Uses the runs that an earlier experiment kept in `keep` instead of running them: for predictions
    /// compared with runs.
    pub reuse: bool,
    /// Removes the files of earlier runs in `keep`.
    pub force: bool,
    /// The display of progress.
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
            reuse: false,
            force: false,
            progress: Progress::hidden(),
        }
    }
}

/// Questions about WAL, which the caller answers by decoding it.
pub trait Analysis {
    /// Bytes of the range `from` to `to` by bucket; they add up to the range.
    ///
    /// # Errors
    /// The WAL cannot be read.
    fn buckets(&self, wal: &Path, from: Lsn, to: Lsn) -> Result<BTreeMap<String, u64>>;

    /// Counts the checkpoints that started in a range because of volume, and because of time. `settings` are
    /// in the units of `pg_settings`.
    ///
    /// # Errors
    /// The WAL cannot be read.
    /// The WAL cannot be read.
    fn checkpoints(
        &self,
        wal: &Path,
        range: (Lsn, Lsn),
        settings: &BTreeMap<String, String>,
    ) -> Result<[u64; 2]>;

    /// Returns the row changes of a table in each of consecutive phases. The first phase starts before the
    /// table is created, and the WAL has no full-page images of it.
    ///
    /// # Errors
    /// The WAL cannot be read.
    fn row_changes(&self, wal: &Path, table: &Relation, phases: &[Phase]) -> Result<Vec<RowChanges>>;

    /// Predicts the range under each set of settings in `cases`, for WAL that was written under `traced`; all
    /// in the units of `pg_settings`. `log` contains the folder of WAL and, if there is one, the base backup
    /// from which it starts.
    ///
    /// # Errors
    /// The WAL cannot be read, or a setting is unknown.
    fn predict(
        &self,
        log: (&Path, Option<&Path>),
        range: (Lsn, Lsn),
        traced: &BTreeMap<String, String>,
        cases: &[BTreeMap<String, String>],
    ) -> Result<Vec<PredictedRun>>;
}

/// The prediction for a run.
#[derive(Debug, Clone, Copy)]
pub struct PredictedRun {
    /// Bytes of WAL: the difference of two LSNs.
    pub bytes: u64,
    /// Error of `bytes` in either direction.
    pub error_bytes: u64,
    /// Numbers of checkpoints because of volume, and because of time.
    pub checkpoints: [u64; 2],
}

/// The state of an experiment while it runs: definition, options, and results so far.
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
        // The definition was checked to have all sizes of its kind.
        self.sizes.get(name).copied().unwrap_or(1)
    }
}

/// Runs an experiment.
///
/// # Errors
/// The options do not fit the experiment, or a server, a statement or a program failed.
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
        figures: Figures::from_definition(definition),
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
        lab.notes.push("the figures include all other work on the server during the run".into());
        if options.keep.is_some() {
            lab.unavailable
                .push("cannot keep the WAL of an existing server: its files are not accessible".into());
        }
    }
    options.progress.finish();
    let figures = lab.figures.into_list();
    let checks = report::check_claims(&definition.claims, &figures);
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

/// Checks that the options fit the experiment, before any server or program starts.
///
/// # Errors
/// They do not fit.
pub fn check(definition: &Definition, options: &Options) -> Result<()> {
    if let (Some(why), true) = (definition.kind.refuses_dsn(), options.dsn.is_some()) {
        bail!("cannot run {} on an existing server: {why}", definition.name);
    }
    ensure!(
        options.oracle_dsn.is_none() || definition.kind == Kind::FullPageWrites,
        "cannot run {} on Oracle: expected full-page-writes, the experiment with statements for Oracle",
        definition.name
    );
    ensure!(
        options.dsn.is_none() || options.settings.is_empty(),
        "cannot use --set with --dsn: write settings for an existing server into the definition's cases"
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
        *slot.with_context(|| {
            format!("cannot set the size {name} of {}: expected one of {known}", definition.name)
        })? = *size;
    }
    Ok(sizes)
}

/// Returns the current time in ISO 8601, UTC.
fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a number of days since 1970-01-01. Counts in eras of 400 years and years
/// that start in March, so that the leap day is a year's last.
fn civil_date(days: i64) -> (i64, i64, i64) {
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
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(11_016), (2000, 2, 29));
        assert_eq!(civil_date(20_778), (2026, 11, 21));
        assert_eq!(civil_date(-1), (1969, 12, 31));
    }

    #[test]
    fn options_that_do_not_fit_are_refused_before_anything_starts() {
        let level = definition::find("wal-level").unwrap().unwrap();
        let refused = |options: Options| format!("{:#}", check(&level, &options).unwrap_err());
        let dsn = Some("host=nowhere".to_owned());
        assert!(refused(Options { dsn, ..Options::default() }).contains("wal_level takes effect only when"));
        let sizes = [("rows".to_owned(), 1)].into();
        assert!(
            refused(Options { sizes, ..Options::default() }).contains("expected one of scale, transactions")
        );
        let oracle_dsn = Some("x".to_owned());
        assert!(
            refused(Options { oracle_dsn, ..Options::default() })
                .contains("on Oracle: expected full-page-writes")
        );
        assert!(check(&level, &Options::default()).is_ok());
    }
}
