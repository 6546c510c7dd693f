//! The settings that differ between the predictions of a document, and curves along them.

use walden_whatif::document::{Document, Predicted};
use walden_whatif::settings;

use crate::chart::{Axis, Curve, CurveLine, Mark, Unit};

/// Most lines in a chart: there are no more distinct colours.
pub const MAX_LINES: usize = 12;

/// The settings that differ between predictions.
#[derive(Clone, PartialEq, Debug)]
pub struct Sweep {
    /// Names of the settings; the first setting has numeric values, if any setting has.
    pub names: Vec<String>,
    /// For each prediction, the values of these settings.
    pub values: Vec<Vec<String>>,
    /// The values under which the trace was written.
    pub traced: Vec<Option<String>>,
    /// Settings that all predictions change in the same way: names and values.
    pub common: Vec<(String, String)>,
}

impl Sweep {
    /// Returns whether these values of all settings but the first are those under which the trace was
    /// written.
    fn is_of_trace(&self, others: &[String]) -> bool {
        let traced = self.traced.iter().skip(1);
        self.common.is_empty()
            && others.iter().zip(traced).all(|(value, traced)| Some(value) == traced.as_ref())
    }

    /// Finds the settings that differ between a document's predictions.
    pub fn from_document(document: &Document) -> Sweep {
        let traced = |name: &str| {
            let known = document.traced_settings.iter().find(|traced| traced.name == name);
            known.map(|traced| traced.value.clone())
        };
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in document.predictions.iter().flat_map(|one| &one.changed) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let value = |one: &Predicted, name: &str| {
            let changed = one.changed.iter().filter(|(other, _)| other == name);
            let changed: Vec<&str> = changed.map(|(_, value)| value.as_str()).collect();
            // A sweep may add several indexes.
            if changed.is_empty() {
                traced(name).unwrap_or_else(|| "as traced".into())
            } else {
                changed.join(", ")
            }
        };
        let differs = |name: &&str| {
            let mut values = document.predictions.iter().map(|one| value(one, name));
            let first = values.next();
            values.any(|other| Some(other) != first)
        };
        let (mut swept, same): (Vec<&str>, Vec<&str>) = names.into_iter().partition(differs);
        let distinct = |name: &str| {
            let mut numbers: Vec<f64> =
                document.predictions.iter().filter_map(|one| Some(quantity(&value(one, name))?.0)).collect();
            numbers.sort_by(f64::total_cmp);
            numbers.dedup();
            numbers.len()
        };
        // A stable sort keeps the order of settings among equals.
        swept.sort_by_key(|name| std::cmp::Reverse(distinct(name)));
        let common = document.predictions.first().map(|one| &one.changed).into_iter().flatten();
        Sweep {
            values: document
                .predictions
                .iter()
                .map(|one| swept.iter().map(|name| value(one, name)).collect())
                .collect(),
            traced: swept.iter().map(|name| traced(name)).collect(),
            names: swept.into_iter().map(str::to_owned).collect(),
            common: common.filter(|(name, _)| same.contains(&name.as_str())).cloned().collect(),
        }
    }

    /// Returns a prediction's label: its values of the settings that differ.
    pub fn label(&self, document: &Document, index: usize) -> String {
        match self.values.get(index).filter(|values| !values.is_empty()) {
            Some(values) => values.join(", "),
            None => document.predictions.get(index).map_or_else(String::new, |one| one.name.clone()),
        }
    }

    /// Returns the setting along which curves are drawn, and the unit of its values.
    fn along(&self) -> Option<(&str, Unit)> {
        let name = self.names.first()?;
        let mut quantities = self.values.iter().filter_map(|values| quantity(values.first()?));
        let (first, unit) = quantities.next()?;
        quantities.any(|(other, _)| other != first).then_some((name, unit))
    }
}

/// Parses the number in a setting's value, in bytes or seconds if it has a unit of these.
pub fn quantity(value: &str) -> Option<(f64, Unit)> {
    if let Ok(number) = value.parse::<f64>() {
        return number.is_finite().then_some((number, Unit::Plain));
    }
    if let Some(bytes) = settings::size(value) {
        return Some((bytes as f64, Unit::SettingBytes));
    }
    settings::seconds(value).map(|seconds| (seconds as f64, Unit::Seconds))
}

/// Values of the other settings, and the predictions for each value of the swept one.
type Group<'a> = (&'a [String], Vec<(f64, &'a Predicted)>);

/// Returns curves of WAL and recovery time along the swept setting, with a line for each combination of the
/// other settings: one chart if there is one line, otherwise two. Empty if the swept setting is not numeric.
pub fn curves(document: &Document) -> Vec<Curve> {
    let sweep = Sweep::from_document(document);
    let Some((name, unit)) = sweep.along() else { return Vec::new() };
    let groups = groups(&sweep, document);
    let xs = || groups.iter().flat_map(|group| &group.1).map(|(x, _)| *x);
    let (least, most) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
    let x = Axis { log: least > 0.0 && most / least >= 4.0, ..Axis::new(name, unit) };
    let seconds = || groups.iter().flat_map(|group| &group.1).map(|(_, one)| one.recovery_seconds);
    let (soonest, latest) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
    let recovery_axis = Axis {
        log: soonest > 0.0 && latest / soonest > 10.0,
        ..Axis::new("recovery takes at most", Unit::Seconds)
    };
    let traced = sweep.traced.first().cloned().flatten();
    let now = traced.as_deref().and_then(quantity).map(|(x, _)| x);
    let marks: Vec<Mark> = now
        .zip(traced)
        .map(|(at, value)| Mark { at, name: format!("as traced: {value}") })
        .into_iter()
        .collect();
    let only = groups.len() == 1;
    let title = |what: &str, others: &[String]| match others {
        [] => format!("{what} against {name}"),
        others => format!("{what} against {name}, by {}", others.join(" and ")),
    };
    let others = sweep.names.get(1..).unwrap_or_default();
    let label =
        |values: &[String], alone: &str| if values.is_empty() { alone.to_owned() } else { values.join(", ") };
    let volume = groups.iter().map(|group| {
        let measured = now.filter(|_| sweep.is_of_trace(group.0)).map(|x| (x, document.trace_bytes as f64));
        volume_line(label(group.0, "WAL"), group, measured)
    });
    let volume: Vec<CurveLine> = volume.collect();
    let recovery = groups.iter().map(|(values, points)| CurveLine {
        name: label(values, "recovery takes at most"),
        right: only,
        predicted: points.iter().map(|(x, one)| (*x, one.recovery_seconds)).collect(),
        ..CurveLine::default()
    });
    let recovery: Vec<CurveLine> = recovery.collect();
    let left = Axis::new("WAL", Unit::Bytes);
    if only {
        let lines = volume.into_iter().chain(recovery).collect();
        let title = title("WAL and time of recovery", others);
        return vec![Curve { title, x, left, right: Some(recovery_axis), lines, marks }];
    }
    vec![
        Curve {
            title: title("WAL", others),
            x: x.clone(),
            left,
            right: None,
            lines: volume,
            marks: marks.clone(),
        },
        Curve {
            title: title("Time of recovery", others),
            x,
            left: recovery_axis,
            right: None,
            lines: recovery,
            marks,
        },
    ]
}

/// Groups the predictions by the values of the other settings. Each group is ordered along the swept setting.
fn groups<'a>(sweep: &'a Sweep, document: &'a Document) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (values, one) in sweep.values.iter().zip(&document.predictions) {
        let Some((first, others)) = values.split_first() else { continue };
        let Some((x, _)) = quantity(first) else { continue };
        match groups.iter_mut().find(|group| group.0 == others) {
            Some(group) => group.1.push((x, one)),
            None => groups.push((others, vec![(x, one)])),
        }
    }
    groups.truncate(MAX_LINES);
    groups.iter_mut().for_each(|group| group.1.sort_by(|one, other| one.0.total_cmp(&other.0)));
    groups
}

fn volume_line(name: String, (_, points): &Group<'_>, measured: Option<(f64, f64)>) -> CurveLine {
    CurveLine {
        name,
        predicted: points.iter().map(|(x, one)| (*x, one.bytes as f64)).collect(),
        errors: points.iter().map(|(_, one)| one.error_bytes as f64).collect(),
        measured: measured.into_iter().collect(),
        ..CurveLine::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_with_units_or_none() {
        assert_eq!(quantity("0.9"), Some((0.9, Unit::Plain)));
        assert_eq!(quantity("64MB"), Some((67_108_864.0, Unit::SettingBytes)));
        assert_eq!(quantity("5min"), Some((300.0, Unit::Seconds)));
        assert_eq!(quantity("1h"), Some((3600.0, Unit::Seconds)));
        for none in ["zstd", "on", "as traced", "", "NaN", "inf"] {
            assert_eq!(quantity(none), None, "{none}");
        }
    }
}
