//! Scales of terminal and SVG charts: positions of values, labels and their format.

use crate::chart::{Axis, Unit};
use crate::units;

/// The scale of an axis, with its bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    unit: Unit,
    log: bool,
    least: f64,
    most: f64,
}

impl Scale {
    /// Returns a scale that includes the values. A linear scale starts at zero; a logarithmic one ignores
    /// values of at most zero.
    pub fn fit(axis: &Axis, values: impl IntoIterator<Item = f64>) -> Scale {
        let usable = |value: &f64| value.is_finite() && (!axis.log || (1e-15..1e18).contains(value));
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(usable) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if axis.log {
            let margin = (most / least).powf(0.06).max(1.15);
            (least, most) = (least / margin, most * margin);
        } else {
            (least, most) = (least.min(0.0), most.max(0.0) * 1.04);
            most = if most > least { most } else { least + 1.0 };
        }
        Scale { unit: axis.unit, log: axis.log, least, most }
    }

    /// Returns the smallest and the largest value on the scale.
    pub fn bounds(&self) -> (f64, f64) {
        (self.least, self.most)
    }

    /// Returns a value's position from 0 to 1, or `None` outside of the bounds.
    pub fn at(&self, value: f64) -> Option<f64> {
        let place = match self.log {
            true => (value / self.least).ln() / (self.most / self.least).ln(),
            false => (value - self.least) / (self.most - self.least),
        };
        (place.is_finite() && (-1e-9..=1.0 + 1e-9).contains(&place)).then(|| place.clamp(0.0, 1.0))
    }

    /// Returns round values within the bounds that label the scale, at most `most`.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        let mut ticks = match (self.log, self.unit) {
            (true, Unit::SettingBytes) => self.powers_of_two(),
            (true, _) => self.logarithmic(most.min(5)),
            (false, _) => self.even(most),
        };
        let every = ticks.len().div_ceil(most).max(1);
        let mut index = 0;
        ticks.retain(|_| {
            index += 1;
            (index - 1) % every == 0
        });
        ticks
    }

    /// Returns the label of a value.
    pub fn text(&self, value: f64) -> String {
        text(self.unit, value)
    }

    fn powers_of_two(&self) -> Vec<f64> {
        let powers = self.least.log2().ceil() as i32..=self.most.log2().floor() as i32;
        powers.map(|power| 2f64.powi(power)).collect()
    }

    fn logarithmic(&self, enough: usize) -> Vec<f64> {
        const STEPS: [&[f64]; 4] = [
            &[1.0],
            &[1.0, 2.0, 5.0],
            &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            &[1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        ];
        let decades = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
        let within = |steps: &&[f64]| -> Vec<f64> {
            let all =
                decades.clone().flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
            all.filter(|tick| (self.least..=self.most).contains(tick)).collect()
        };
        let found = STEPS.iter().map(within).find(|ticks| ticks.len() >= enough);
        found.unwrap_or_else(|| within(&STEPS[STEPS.len() - 1]))
    }

    fn even(&self, most: usize) -> Vec<f64> {
        let span = self.most - self.least;
        let decades = -12..19;
        let steps = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
        let clock =
            [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0];
        let fits = |step: &f64| span / step < most as f64;
        let step = match self.unit {
            Unit::Seconds if span > 2.0 => clock.into_iter().find(fits).or_else(|| steps.clone().find(fits)),
            Unit::SettingBytes => (0..60).map(|power| 2f64.powi(power)).find(fits),
            _ => steps.clone().find(fits),
        };
        let step = step.unwrap_or(span);
        let (first, last) = ((self.least / step).ceil(), (self.most / step).floor());
        (0..=(last - first).clamp(0.0, 1000.0) as u32)
            .map(|index| (first + f64::from(index)) * step)
            .collect()
    }
}

/// Returns a short label of a value in its unit: `100 MB`, `64MB` for settings, `0.05`, `12 s`.
pub fn text(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => format!("{}/s", bytes(value)),
        Unit::SettingBytes => setting(value),
        Unit::Count => units::count(value.max(0.0).round() as u64),
        Unit::Seconds => seconds(value),
        Unit::Share => format!("{} %", plain(value * 100.0)),
        Unit::Plain => plain(value),
    }
}

fn bytes(value: f64) -> String {
    units::bytes(value.max(0.0).round() as u64).replace(".0 ", " ")
}

fn setting(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut size, mut unit) = (value, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{}{}", plain(size), UNITS[unit])
}

fn seconds(value: f64) -> String {
    let (minutes, rest) = ((value / 60.0).floor(), value % 60.0);
    match value {
        ..=0.0 => "0 s".into(),
        ..1.0 => format!("{} ms", plain(value * 1e3)),
        ..120.0 => format!("{} s", plain(value)),
        ..7200.0 if rest < 0.5 => format!("{minutes} min"),
        ..7200.0 => format!("{minutes} min {rest:.0} s"),
        _ if value % 3600.0 < 30.0 => format!("{:.0} h", value / 3600.0),
        _ => units::seconds(value),
    }
}

fn plain(value: f64) -> String {
    let digits = if value.abs() >= 10.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(unit: Unit, log: bool, values: [f64; 2]) -> Vec<String> {
        let scale = Scale::fit(&Axis { log, ..Axis::new("", unit) }, values);
        scale.ticks(7).into_iter().map(|tick| scale.text(tick)).collect()
    }

    #[test]
    fn figures_along_a_scale_are_round_and_short() {
        assert_eq!(shown(Unit::Plain, true, [0.05, 5.0]), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]);
        assert_eq!(
            shown(Unit::SettingBytes, true, [48e6, 1.1e9]),
            ["64MB", "128MB", "256MB", "512MB", "1GB"]
        );
        assert_eq!(shown(Unit::Bytes, false, [0.0, 5.9e8])[..3], ["0 B", "100 MB", "200 MB"]);
        assert_eq!(
            shown(Unit::Seconds, false, [5.0, 170.0]),
            ["0 s", "30 s", "60 s", "90 s", "2 min", "2 min 30 s"]
        );
        assert_eq!(shown(Unit::Share, false, [0.0, 0.5]), ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %"]);
    }

    #[test]
    fn any_values_make_a_scale() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, 1e300, 7.0];
        for unit in [Unit::Bytes, Unit::SettingBytes, Unit::Seconds, Unit::Plain] {
            for log in [false, true] {
                for values in [&odd[..], &odd[..4], &odd[6..], &[]] {
                    let scale = Scale::fit(&Axis { log, ..Axis::new("", unit) }, values.iter().copied());
                    let ticks = scale.ticks(6);
                    assert!(ticks.len() <= 6, "{ticks:?}");
                    assert!(ticks.iter().all(|tick| scale.at(*tick).is_some()), "{scale:?} {ticks:?}");
                }
            }
        }
        let scale = Scale::fit(&Axis::new("", Unit::Plain).log(), [1.0, 100.0]);
        assert!((scale.at(10.0).unwrap() - 0.5).abs() < 1e-9 && scale.at(0.0).is_none());
    }
}
