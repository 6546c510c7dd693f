//! The definition of an experiment: a TOML file that a user can copy and change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// What an experiment is made of.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// What runs it.
    pub kind: Kind,
    /// One line for people.
    pub about: String,
    /// Where the published figures come from.
    #[serde(default)]
    pub source: Option<Source>,
    /// How much of it, by the name of what is counted.
    pub sizes: Sizes,
    /// Server settings of all cases.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// What is compared.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// Cases of one setting that follow the others, until nothing more is gained.
    pub ladder: Option<Ladder>,
    /// The table that statements work on (`full-page-writes`).
    pub table: Option<Table>,
    /// What is measured one after another (`full-page-writes`); `$rows` is the size.
    #[serde(default, rename = "statement")]
    pub statements: Vec<Statement>,
    /// Programs that copy a file (`segment-size`).
    #[serde(default, rename = "command")]
    pub commands: Vec<CopyCommand>,
    /// The workload that is run in each case (`whatif-validation`).
    pub workload: Option<String>,
    /// The cases whose logs are predicted from (`whatif-validation`; the first one of `checkpoint-distance`).
    #[serde(default)]
    pub traces: Vec<String>,
    /// The shape: what must be larger than what.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// What runs an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An import and transactions under each level.
    WalLevel,
    /// Statements with and without full-page images, beside other engines.
    FullPageWrites,
    /// Transactions under settings of checkpoints.
    CheckpointDistance,
    /// Copying the same bytes in small and in large files.
    SegmentSize,
    /// The same work under many settings, beside what is predicted from one of the logs.
    WhatifValidation,
}

/// A published experiment.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Who published it.
    pub author: String,
    /// When.
    pub year: u16,
    /// On which server, with which sizes.
    pub setup: String,
}

/// The sizes of the three forms of an experiment.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// Seconds.
    pub quick: BTreeMap<String, u64>,
    /// A few minutes.
    pub default: BTreeMap<String, u64>,
    /// As published.
    pub full: BTreeMap<String, u64>,
}

/// One of the things compared.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Server settings of its own.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// The size of a WAL segment in MB.
    pub segment_megabytes: Option<u32>,
    /// Published figures, by `PHASE/MEASURE`.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
    /// Not kept by `--keep` if false.
    pub keep: Option<bool>,
}

/// Values of one setting, smallest first.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ladder {
    /// The setting that grows.
    pub setting: String,
    /// Its values.
    pub values: Vec<String>,
    /// Settings of all steps.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// It ends when a step gains less than this over the one before.
    pub least_gain_percent: f64,
}

/// A table, in the words of each engine.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Statements that make it, with one row.
    pub postgresql: String,
    /// The same for MariaDB.
    pub mariadb: String,
    /// The same for Oracle.
    pub oracle: String,
}

/// A statement whose log is measured; an engine that has no words for it goes without.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Statement {
    /// Its name.
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

/// What Oracle's statistics said.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OraclePublished {
    /// `redo size`.
    pub redo: f64,
    /// `undo change vector size`, part of it.
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
    /// Its name.
    pub name: String,
    /// The program and its arguments: `{from}` is the file, `{to}` the folder; `{config}`, `{host}` those of a private sshd.
    pub run: Vec<String>,
    /// The package that has it.
    pub package: String,
    /// Published seconds by the files' megabytes.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// A ratio of two figures, and the bounds within which the published shape has come out.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    /// In words.
    pub words: String,
    /// The keys of two figures, `CASE/PHASE/MEASURE`: the first is divided by the second.
    pub ratio: [String; 2],
    /// The published ratio; if not given, that of the published figures.
    pub published: Option<f64>,
    /// The smallest ratio that has the shape.
    pub at_least: Option<f64>,
    /// The largest.
    pub at_most: Option<f64>,
}

/// The definitions that come with the program.
const SHIPPED: &[&str] = &[
    include_str!("../../experiments/wal-level.toml"),
    include_str!("../../experiments/full-page-writes.toml"),
    include_str!("../../experiments/checkpoint-distance.toml"),
    include_str!("../../experiments/segment-size.toml"),
    include_str!("../../experiments/whatif-validation.toml"),
    include_str!("../../experiments/whatif-validation-paced.toml"),
    include_str!("../../experiments/whatif-validation-mixed.toml"),
];

/// The definitions that come with the program.
///
/// # Errors
/// None that a test would let through.
pub fn shipped() -> Result<Vec<Definition>> {
    SHIPPED.iter().map(|text| parse(text)).collect()
}

/// A shipped experiment's definition by name, or a file's by its path (which ends in `.toml`); `None` if the name is no
/// experiment's.
///
/// # Errors
/// The file cannot be read, or is not a definition.
pub fn find(name: &str) -> Result<Option<Definition>> {
    if name.ends_with(".toml") {
        let path = Path::new(name);
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        return parse(&text).with_context(|| format!("{name} is no definition of an experiment")).map(Some);
    }
    Ok(shipped()?.into_iter().find(|one| one.name == name))
}

/// Reads a definition.
///
/// # Errors
/// What is wrong with it.
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
                    Some(0) => bail!("sizes.{form}.{name} is 0"),
                    None => bail!("sizes.{form} lacks {name}"),
                }
            }
            if let Some(other) = sizes.keys().find(|name| !wanted.contains(&name.as_str())) {
                bail!("sizes.{form}.{other} means nothing; there are: {}", wanted.join(", "));
            }
        }
        needs(!self.cases.is_empty(), "at least one [[case]]")?;
        let mut names: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("two cases have the name {}", pair[0]);
        }
        if let Some(bad) =
            names.iter().find(|name| name.is_empty() || name.contains(['/', '\\']) || **name == "..")
        {
            bail!("the case name {bad:?} is not the name of a folder");
        }
        let is_no_case = |trace: &&String| !names.contains(&trace.as_str());
        if let Some(trace) = self.traces.iter().find(is_no_case) {
            bail!("no case has the name {trace}, which traces names");
        }
        match self.kind {
            Kind::FullPageWrites => needs(
                self.table.is_some() && !self.statements.is_empty(),
                "[table] and at least one [[statement]]",
            ),
            Kind::SegmentSize => {
                needs(!self.commands.is_empty(), "at least one [[command]]")?;
                for case in &self.cases {
                    let size =
                        case.segment_megabytes.context("each case of segment-size has segment-megabytes")?;
                    ensure!(
                        size.is_power_of_two() && size <= 1024,
                        "segment-megabytes is a power of two from 1 to 1024"
                    );
                }
                if let Some(bad) = self.commands.iter().find(|command| command.run.is_empty()) {
                    bail!("the command {} runs nothing", bad.name);
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

    /// The cases' figures as published, by `CASE/PHASE/MEASURE`.
    pub fn published(&self) -> BTreeMap<String, f64> {
        let of_case = |case: &Case| -> Vec<(String, f64)> {
            case.published.iter().map(|(key, value)| (format!("{}/{key}", case.name), *value)).collect()
        };
        self.cases.iter().flat_map(of_case).collect()
    }
}

impl Kind {
    /// What is counted.
    pub fn sizes(self) -> &'static [&'static str] {
        match self {
            Kind::WalLevel => &["scale", "transactions"],
            Kind::FullPageWrites => &["rows"],
            Kind::CheckpointDistance => &["scale", "transactions", "clients"],
            Kind::SegmentSize => &["megabytes"],
            Kind::WhatifValidation => &["transactions"],
        }
    }

    /// Why an experiment of this kind cannot run on an existing server, if so.
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
        assert!(wrong("name = \"minimal\"", "name = \"../minimal\"").contains("not the name of a folder"));
        assert!(wrong("name = \"minimal\"", "name = \"replica\"").contains("two cases"));
        assert!(wrong("scale = 100", "scale = 0").contains("sizes.full.scale is 0"));
        assert!(wrong("scale = 100", "skale = 100").contains("lacks scale"));
    }
}
