//! The setting that a finding suggests: predicted from the WAL, then measured on a second server.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use walden_explain::document::Document;
use walden_lab::demo::Worked;
use walden_report::chart::{Axis, Bars, Layer, Tone, Unit};
use walden_report::html::{Cell, Section, Table};
use walden_report::table::{Look, Row, table, wrap};
use walden_report::units;
use walden_source::inventory::Inventory;
use walden_source::names::Names;
use walden_whatif::document::{Document as Forecast, Recovery};
use walden_whatif::{Question, learn};

use crate::{memory, terminal};

/// A setting that the demo tries, and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Remedy {
    /// The finding's sentence.
    pub finding: String,
    pub name: &'static str,
    pub value: String,
    /// Its value on the first server.
    pub before: String,
}

/// The prediction for a setting, and the bytes that the same work then wrote.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tried {
    /// The finding that suggests the setting.
    pub finding: String,
    pub setting: String,
    pub before: String,
    pub value: String,
    /// Bytes that the work wrote on the first server.
    pub traced_bytes: u64,
    pub predicted_bytes: u64,
    /// The prediction's own error estimate, in bytes.
    pub predicted_error_bytes: u64,
    /// Bytes that the same work wrote on a second server with this setting.
    pub measured_bytes: u64,
    /// The prediction's relative error: 0.01 means 1 % too high.
    pub error: f64,
}

impl Remedy {
    /// Returns the first setting that a finding suggests and that the demo can change.
    ///
    /// `methods` are the values of `wal_compression` that the server supports.
    pub fn find(document: &Document, names: &Names, methods: &[String]) -> Option<Remedy> {
        for finding in &document.findings {
            let points_at = |name: &str| {
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                finding.points_at.split(|c| !is_word(c)).any(|word| word == name)
            };
            let (name, value) = if points_at("max_wal_size") {
                ("max_wal_size", "2GB".to_owned())
            } else if points_at("wal_compression") {
                ("wal_compression", best_compression(methods))
            } else {
                continue;
            };
            let reported = learn::settings_from_server(&names.settings);
            let before = reported.into_iter().find(|(known, _)| known == name);
            let before = before.map_or_else(|| "-".to_owned(), |(_, value)| value);
            return Some(Remedy { finding: finding.text.clone(), name, value, before });
        }
        None
    }

    /// Returns the setting as written in `postgresql.conf`.
    pub fn setting(&self) -> String {
        format!("{}={}", self.name, self.value)
    }

    /// Predicts the WAL of the work under this setting. Returns bytes and the prediction's error estimate in
    /// bytes.
    pub fn predict(&self, worked: &Worked, names: &Names, inventory: &Inventory) -> Result<(u64, u64)> {
        let run = inventory.runs.first().context("cannot predict: expected segments, found none")?;
        let question = Question {
            from: Some(worked.range.0),
            to: Some(worked.range.1),
            traced: learn::settings_from_server(&names.settings),
            changes: vec![vec![(self.name.to_owned(), self.value.clone())]],
            threads: terminal::cores(),
            memory_bytes: memory::quarter_of_machine(),
            ..Question::default()
        };
        let forecast = walden_whatif::predict(run, &question, &|_| ())?;
        if let Some(damage) = &forecast.damage {
            bail!("{damage}");
        }
        let document = Forecast::new(&forecast, &Recovery::Default, Vec::new(), None, &[]);
        let predicted = document.predictions.first().context("cannot predict: the forecast is empty")?;
        Ok((predicted.bytes, predicted.error_bytes))
    }

    /// Returns the outcome after the work was measured.
    pub fn tried(self, traced: u64, (predicted, error_bytes): (u64, u64), measured: u64) -> Tried {
        Tried {
            finding: self.finding,
            setting: self.name.to_owned(),
            before: self.before,
            value: self.value,
            traced_bytes: traced,
            predicted_bytes: predicted,
            predicted_error_bytes: error_bytes,
            measured_bytes: measured,
            error: (predicted as f64 - measured as f64) / measured.max(1) as f64,
        }
    }
}

/// Returns the best supported method; PostgreSQL 14 supports only `on`.
fn best_compression(methods: &[String]) -> String {
    const BY_PREFERENCE: [&str; 3] = ["lz4", "zstd", "pglz"];
    let best = BY_PREFERENCE.into_iter().find(|method| methods.iter().any(|known| known == method));
    best.unwrap_or("on").to_owned()
}

impl Tried {
    /// Returns the table for the terminal.
    pub fn table(&self, look: Look) -> String {
        let share = |bytes: u64| units::percent(bytes as f64 / self.traced_bytes.max(1) as f64);
        let row = |label: String, bytes: u64, note: String| Row {
            depth: 0,
            label,
            cells: vec![units::bytes(bytes), share(bytes), note],
            share: Some(bytes as f64 / self.traced_bytes.max(1) as f64),
        };
        let (name, before, value) = (&self.setting, &self.before, &self.value);
        let rows = [
            row(format!("{name}={before}, as explained"), self.traced_bytes, String::new()),
            row(
                format!("{name}={value}, predicted"),
                self.predicted_bytes,
                format!("± {}", units::bytes(self.predicted_error_bytes)),
            ),
            row(format!("{name}={value}, measured"), self.measured_bytes, self.verdict()),
        ];
        let title = format!("The same work under {name}={value}");
        let mut text = table(look, &title, ("", &["bytes", "of the WAL", "prediction"]), &rows);
        let why = format!(
            "The finding that points at it: {}. Predicted from the WAL alone; then a second server did the same work.",
            self.finding
        );
        let _ = writeln!(text, "  {}", look.faint(&wrap(&why, look.width.saturating_sub(2), 2)));
        text
    }

    fn verdict(&self) -> String {
        let error = units::percent(self.error.abs());
        match self.error {
            error if error.abs() < 0.000_5 => "exact to 0.1 %".into(),
            high if high > 0.0 => format!("{error} too high"),
            _ => format!("{error} too low"),
        }
    }

    /// Returns the section of the HTML page.
    pub fn section(&self) -> Section {
        let (name, before, value) = (&self.setting, &self.before, &self.value);
        let categories = [
            format!("{name}={before}, explained above"),
            format!("{name}={value}, predicted"),
            format!("{name}={value}, measured"),
        ];
        let bytes = [self.traced_bytes, self.predicted_bytes, self.measured_bytes];
        let chart = Bars {
            title: format!("The same work under {name}={value}"),
            x: Axis::new("WAL", Unit::Bytes),
            categories: categories.to_vec(),
            layers: vec![Layer {
                name: "WAL".into(),
                tone: Tone::Emphasis,
                values: bytes.iter().map(|bytes| Some(*bytes as f64)).collect(),
            }],
            stacked: true,
            errors: vec![None, Some(self.predicted_error_bytes as f64), None],
        };
        let mut table = Table::new(&["", "bytes", "share of the WAL"]);
        for (label, bytes) in categories.iter().zip(bytes) {
            let share = bytes as f64 / self.traced_bytes.max(1) as f64;
            table.row(vec![Cell::text(label), Cell::bytes(bytes), Cell::share(share)]);
        }
        let note = format!(
            "The prediction was made from the WAL of the first server, before the second one was started: {}. The thin line at its \
             bar is the error that it states.",
            self.verdict()
        );
        Section::new("Another setting: predicted, then measured")
            .text(&format!("The finding that points at {name}: {}.", self.finding))
            .chart(chart, &note)
            .table(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_one_that_the_server_was_built_with() {
        let best =
            |methods: &[&str]| best_compression(&methods.iter().map(|&m| m.to_owned()).collect::<Vec<_>>());
        assert_eq!(best(&["pglz", "lz4", "zstd", "on", "off"]), "lz4");
        assert_eq!(best(&["pglz", "on", "off"]), "pglz");
        assert_eq!(best(&[]), "on");
    }
}
