//! The definition of an experiment: a TOML file that a user can copy and change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// An experiment's definition, as in its TOML file.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Definition {
    /// The experiment's name on the command line.
    pub name: String,
    /// The kind of experiment, which determines the meaning of the other fields.
    pub kind: Kind,
    /// One line of description.
    pub about: String,
    /// The publication of the figures.
    #[serde(default)]
    pub source: Option<Source>,
    /// Sizes by name, such as `rows` or `transactions`.
    pub sizes: Sizes,
    /// Server settings that all cases have.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// The cases that are compared.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// Further cases with growing values of one setting, until a step gains too little.
    pub ladder: Option<Ladder>,
    /// The table that statements work on (`full-page-writes`).
    pub table: Option<Table>,
    /// The statements that are measured one after the other (`full-page-writes`); `$rows` represents the
    /// size.
    #[serde(default, rename = "statement")]
    pub statements: Vec<Statement>,
    /// Programs that copy a file (`segment-size`).
    #[serde(default, rename = "command")]
    pub commands: Vec<CopyCommand>,
    /// The workload that is run in each case (`whatif-validation`).
    pub workload: Option<String>,
    /// The cases whose WAL predictions are made from (`whatif-validation`; the first one of
    /// `checkpoint-distance`).
    #[serde(default)]
    pub traces: Vec<String>,
    /// Ratios of figures, with the bounds within which the published result is confirmed.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// The kinds of experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An import and transactions under each `wal_level`.
    WalLevel,
    /// Statements with and without full-page images, compared with other database engines.
    FullPageWrites,
    /// Transactions under different distances between checkpoints.
    CheckpointDistance,
    /// Copying the same bytes in small and in large files.
    SegmentSize,
    /// A workload under several sets of settings, compared with predictions from the WAL of one of them.
    WhatifValidation,
}

/// The publication that an experiment repeats.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Author of the publication.
    pub author: String,
    /// Year of publication.
    pub year: u16,
    /// Server and sizes of the published run.
    pub setup: String,
}

/// The sizes of the three forms of an experiment.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// Sizes that take seconds (`--quick`).
    pub quick: BTreeMap<String, u64>,
    /// Sizes that take a few minutes.
    pub default: BTreeMap<String, u64>,
    /// The published sizes (`--full`).
    pub full: BTreeMap<String, u64>,
}

/// A run of the experiment under its own settings.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    /// The case's name, which is also that of its folder under `--keep`.
    pub name: String,
    /// Server settings that take precedence over those of the experiment.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// The size of a WAL segment in MB.
    pub segment_megabytes: Option<u32>,
    /// Published figures, by `PHASE/MEASURE`.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
    /// If false, `--keep` does not keep its WAL.
    pub keep: Option<bool>,
}

/// Cases with growing values of one setting.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ladder {
    /// Name of the setting.
    pub setting: String,
    /// Its values, ascending.
    pub values: Vec<String>,
    /// Further settings of all steps.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Stops after a step that saves less WAL than this relative to the preceding step, in per cent.
    pub least_gain_percent: f64,
}

/// The statements that create the table, in each engine's dialect.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// For PostgreSQL; they also insert one row.
    pub postgresql: String,
    /// For MariaDB.
    pub mariadb: String,
    /// For Oracle.
    pub oracle: String,
}

/// A statement whose WAL or redo is measured, in each engine's dialect; an engine without one skips it.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Statement {
    /// Name of its phase in the figures.
    pub name: String,
    /// For PostgreSQL.
    pub postgresql: Option<String>,
    /// For MariaDB.
    pub mariadb: Option<String>,
    /// For Oracle.
    pub oracle: Option<String>,
    /// Published bytes of Oracle's redo and undo.
    pub oracle_published: Option<OraclePublished>,
}

/// Published statistics of Oracle, by their names in `V$STATNAME`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OraclePublished {
    /// `redo size`, bytes.
    pub redo: f64,
    /// `undo change vector size`, bytes; part of the redo.
    pub undo: f64,
    /// `redo size` in backup mode.
    pub backup_redo: f64,
    /// `undo change vector size` in backup mode.
    pub backup_undo: f64,
    /// `redo entries`.
    pub entries: f64,
    /// `db block changes`.
    pub changes: f64,
}

/// A program that copies one file.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CopyCommand {
    /// Name of its phase in the figures.
    pub name: String,
    /// The program and its arguments. `{from}` represents the file, `{to}` the target folder, `{config}` and
    /// `{host}` the ssh configuration and host of the lab's own sshd.
    pub run: Vec<String>,
    /// The Debian package that contains the program.
    pub package: String,
    /// Published seconds, by the files' size in MB.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// A ratio of two figures, and the bounds within which the published result is confirmed.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// The claim in a sentence.
    pub words: String,
    /// The keys of two figures, `CASE/PHASE/MEASURE`: the first is divided by the second.
    pub ratio: [String; 2],
    /// The published ratio, if it differs from that of the published figures.
    pub published: Option<f64>,
    /// The smallest ratio that confirms the claim.
    pub at_least: Option<f64>,
    /// The largest ratio that confirms the claim.
    pub at_most: Option<f64>,
}

/// Definitions that are compiled in.
const SHIPPED: &[&str] = &[
    include_str!("../../experiments/wal-level.toml"),
    include_str!("../../experiments/full-page-writes.toml"),
    include_str!("../../experiments/checkpoint-distance.toml"),
    include_str!("../../experiments/segment-size.toml"),
    include_str!("../../experiments/whatif-validation.toml"),
    include_str!("../../experiments/whatif-validation-paced.toml"),
    include_str!("../../experiments/whatif-validation-mixed.toml"),
];

/// Parses the definitions that are compiled in.
///
/// # Errors
/// One of them is invalid, which a test excludes.
pub fn shipped() -> Result<Vec<Definition>> {
    SHIPPED.iter().map(|text| parse(text)).collect()
}

/// Finds a compiled-in definition by its name, or reads a file whose path ends in `.toml`; `None` if no
/// experiment has the name.
///
/// # Errors
/// The file cannot be read, or is not a definition.
pub fn find(name: &str) -> Result<Option<Definition>> {
    if name.ends_with(".toml") {
        let path = Path::new(name);
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        return parse(&text)
            .with_context(|| format!("cannot use {name} as the definition of an experiment"))
            .map(Some);
    }
    Ok(shipped()?.into_iter().find(|one| one.name == name))
}

/// Parses and checks a definition.
///
/// # Errors
/// It is not TOML of this form, or a field contradicts its kind; the message names the field.
pub fn parse(text: &str) -> Result<Definition> {
    let definition: Definition = toml::from_str(text)?;
    definition.validate()?;
    Ok(definition)
}

impl Definition {
    fn validate(&self) -> Result<()> {
        let needs = |wanted: bool, what: &str| {
            ensure!(wanted, "an experiment of the kind {:?} needs {what}", self.kind);
            Ok(())
        };
        let wanted = self.kind.sizes();
        for (form, sizes) in self.sizes.forms() {
            for name in wanted {
                match sizes.get(*name) {
                    Some(1..) => {}
                    Some(0) => bail!("expected sizes.{form}.{name} to be at least 1, found 0"),
                    None => bail!("expected {name} in sizes.{form}, found none"),
                }
            }
            if let Some(other) = sizes.keys().find(|name| !wanted.contains(&name.as_str())) {
                bail!("found unknown sizes.{form}.{other}, expected {}", wanted.join(", "));
            }
        }
        needs(!self.cases.is_empty(), "at least one [[case]]")?;
        let mut names: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("expected distinct names of cases, found {} twice", pair[0]);
        }
        if let Some(bad) =
            names.iter().find(|name| name.is_empty() || name.contains(['/', '\\']) || **name == "..")
        {
            bail!("expected a case name that can name a folder, found {bad:?}");
        }
        let is_no_case = |trace: &&String| !names.contains(&trace.as_str());
        if let Some(trace) = self.traces.iter().find(is_no_case) {
            bail!("expected the name of a case in traces, found {trace}");
        }
        match self.kind {
            Kind::FullPageWrites => needs(
                self.table.is_some() && !self.statements.is_empty(),
                "[table] and at least one [[statement]]",
            ),
            Kind::SegmentSize => {
                needs(!self.commands.is_empty(), "at least one [[command]]")?;
                for case in &self.cases {
                    let size = case
                        .segment_megabytes
                        .context("expected segment-megabytes in each case of segment-size")?;
                    ensure!(
                        size.is_power_of_two() && size <= 1024,
                        "segment-megabytes is a power of two from 1 to 1024"
                    );
                }
                if let Some(bad) = self.commands.iter().find(|command| command.run.is_empty()) {
                    bail!("expected a program in the command {}, found none", bad.name);
                }
                needs(self.cases.len() == 2, "two cases: small files and large ones")
            }
            Kind::WhatifValidation => needs(
                self.workload.is_some() && !self.traces.is_empty(),
                "a workload and at least one of traces",
            ),
            Kind::WalLevel | Kind::CheckpointDistance => Ok(()),
        }
    }

    /// Returns all published figures, by `CASE/PHASE/MEASURE`.
    pub fn published(&self) -> BTreeMap<String, f64> {
        let of_case = |case: &Case| -> Vec<(String, f64)> {
            case.published.iter().map(|(key, value)| (format!("{}/{key}", case.name), *value)).collect()
        };
        self.cases.iter().flat_map(of_case).collect()
    }
}

impl Kind {
    /// Returns the names of the sizes that a definition of this kind must have.
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Kind::WalLevel => &["scale", "transactions"],
            Kind::FullPageWrites => &["rows"],
            Kind::CheckpointDistance => &["scale", "transactions", "clients"],
            Kind::SegmentSize => &["megabytes"],
            Kind::WhatifValidation => &["transactions"],
        }
    }

    /// Returns the reason why an experiment of this kind cannot run on an existing server, if any.
    pub fn refuses_dsn(self) -> Option<&'static str> {
        match self {
            Kind::WalLevel => {
                Some("wal_level takes effect only when a server starts, and each case needs a fresh cluster")
            }
            Kind::SegmentSize => {
                Some("the size of a segment is chosen by initdb, and copying files needs no server")
            }
            Kind::WhatifValidation => Some("every case needs a fresh cluster with settings of its own"),
            Kind::FullPageWrites | Kind::CheckpointDistance => None,
        }
    }
}

impl Sizes {
    fn forms(&self) -> [(&'static str, &BTreeMap<String, u64>); 3] {
        [("quick", &self.quick), ("default", &self.default), ("full", &self.full)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_definition_is_valid_and_found_by_its_name() {
        let all = shipped().unwrap();
        assert_eq!(all.len(), SHIPPED.len());
        for one in &all {
            assert_eq!(find(&one.name).unwrap().unwrap().about, one.about);
            let proves_itself = one.kind == Kind::WhatifValidation;
            assert!(
                proves_itself || one.source.is_some() && !one.claims.is_empty(),
                "{} claims nothing",
                one.name
            );
        }
        assert!(find("nothing").unwrap().is_none());
        assert!(find("/no/such/file.toml").unwrap_err().to_string().contains("/no/such/file.toml"));
    }

    #[test]
    fn mistakes_in_a_definition_are_named() {
        let text = SHIPPED[0];
        let wrong = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            format!("{:#}", parse(&text.replacen(from, to, 1)).unwrap_err())
        };
        assert!(wrong("kind = \"wal-level\"", "kind = \"wall\"").contains("unknown variant"));
        assert!(wrong("about =", "abuot =").contains("abuot"));
        assert!(
            wrong("name = \"minimal\"", "name = \"../minimal\"")
                .contains("a case name that can name a folder")
        );
        assert!(
            wrong("name = \"minimal\"", "name = \"replica\"").contains("expected distinct names of cases")
        );
        assert!(wrong("scale = 100", "scale = 0").contains("expected sizes.full.scale to be at least 1"));
        assert!(wrong("scale = 100", "skale = 100").contains("expected scale in sizes.full"));
    }
}
