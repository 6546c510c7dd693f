//! Charts as data: what is drawn, not how. An HTML page ([`crate::html`]) draws all of them; [`crate::svg`] draws a
//! [`Scatter`] or a [`Curve`] into a file of its own, [`crate::plot`] a [`Curve`] in a terminal.
//!
//! Values are plain numbers in the unit of their axis. What is not finite is left out of the drawing.

use serde::Serialize;

/// A chart of any kind.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Chart {
    StackedOverTime(StackedOverTime),
    CheckpointTimeline(CheckpointTimeline),
    Treemap(Treemap),
    Bars(Bars),
    PredictedAgainstMeasured(PredictedAgainstMeasured),
    Curve(Curve),
    Scatter(Scatter),
}

impl Chart {
    /// What stands above it.
    pub fn title(&self) -> &str {
        match self {
            Chart::StackedOverTime(chart) => &chart.title,
            Chart::CheckpointTimeline(chart) => &chart.title,
            Chart::Treemap(chart) => &chart.title,
            Chart::Bars(chart) => &chart.title,
            Chart::PredictedAgainstMeasured(chart) => &chart.title,
            Chart::Curve(chart) => &chart.title,
            Chart::Scatter(chart) => &chart.title,
        }
    }
}

macro_rules! chart_from {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Chart {
            fn from(chart: $kind) -> Chart {
                Chart::$kind(chart)
            }
        })*
    };
}
chart_from!(StackedOverTime, CheckpointTimeline, Treemap, Bars, PredictedAgainstMeasured, Curve, Scatter);

/// What numbers count, and so how they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes, in decimal units.
    Bytes,
    /// Bytes as PostgreSQL's settings write them, in powers of 1024: `64MB`, `1GB`.
    SettingBytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Things: records, images, rows.
    Count,
    /// Seconds.
    Seconds,
    /// A share from 0 to 1, in per cent.
    Share,
    /// Anything else, as it is.
    #[default]
    Plain,
}

/// One direction of a chart.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Axis {
    /// What is counted.
    pub name: String,
    /// In what.
    pub unit: Unit,
    /// Logarithmic; values that are not above zero are left out then.
    pub log: bool,
}

impl Axis {
    /// An axis with an even scale.
    pub fn new(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, log: false }
    }

    /// The same with a logarithmic scale.
    pub fn log(self) -> Axis {
        Axis { log: true, ..self }
    }
}

/// What a colour stands for. The same thing has the same colour in every chart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// The next colour of the palette that is free.
    #[default]
    Next,
    /// Images of first touches after a checkpoint.
    ImageCheckpoint,
    /// Images that the writer asked for.
    ImageForced,
    /// Images for hint bits.
    ImageHint,
    /// Images for `wal_consistency_checking`.
    ImageConsistency,
    /// What records say.
    Data,
    /// Headers and alignment.
    Header,
    /// Bytes outside of records.
    Framing,
    /// A table's own pages.
    Heap,
    /// An index.
    Index,
    /// TOAST.
    Toast,
    /// What matters less than the rest.
    Muted,
    /// What matters most.
    Emphasis,
}

/// A name, a colour, and a value for each place along the chart.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Layer {
    /// What it is.
    pub name: String,
    /// Its colour.
    pub tone: Tone,
    /// As many as the chart has spans or categories; nothing where nothing is known.
    pub values: Vec<Option<f64>>,
}

/// A volume over time, split by what makes it up.
#[derive(Clone, Debug, Serialize)]
pub struct StackedOverTime {
    /// Above the chart.
    pub title: String,
    /// What is stacked.
    pub y: Axis,
    /// Where the spans begin, in milliseconds since 1970-01-01 UTC; ascending.
    pub starts: Vec<i64>,
    /// Width of each span, in milliseconds.
    pub width: i64,
    /// From the bottom up.
    pub layers: Vec<Layer>,
    /// Moments that are marked by a vertical line.
    pub marks: Vec<Mark>,
}

/// A moment of a [`StackedOverTime`], or a value of a [`Curve`]'s horizontal axis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mark {
    /// Where: milliseconds since 1970-01-01 UTC, or a value of the axis.
    pub at: f64,
    /// What: `volume`, `now 1 GB`.
    pub name: String,
}

/// How the share of images falls along each checkpoint cycle, by position in the log.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointTimeline {
    /// Above the chart.
    pub title: String,
    /// In the log's order.
    pub cycles: Vec<Cycle>,
}

/// What was written from one redo pointer to the next.
#[derive(Clone, Debug, Serialize)]
pub struct Cycle {
    /// When it began, and where.
    pub label: String,
    /// Why the checkpoint at its start came; nothing if none did.
    pub cause: Option<String>,
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of images in it.
    pub image_bytes: u64,
    /// The share of images in each part of it, all of the same width; nothing where no byte is at hand.
    pub shares: Vec<Option<f64>>,
}

/// Things by size, with what they are made of.
#[derive(Clone, Debug, Serialize)]
pub struct Treemap {
    /// Above the chart.
    pub title: String,
    /// What the areas count.
    pub unit: Unit,
    /// The largest first.
    pub nodes: Vec<Node>,
    /// What the colours stand for.
    pub legend: Vec<(Tone, String)>,
}

/// A thing of a [`Treemap`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its size; of one with parts, all of it.
    pub value: f64,
    /// Its colour, if it has no parts.
    pub tone: Tone,
    /// What else is to be said when it is pointed at: a word and a value each.
    pub facts: Vec<(String, String)>,
    /// What it is made of.
    pub parts: Vec<Node>,
}

/// Bars that lie, one row per category.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Bars {
    /// Above the chart.
    pub title: String,
    /// What their length is.
    pub x: Axis,
    /// Names of the rows, the first on top.
    pub categories: Vec<String>,
    /// One bar per row each.
    pub layers: Vec<Layer>,
    /// One behind the other in one bar, instead of one below the other.
    pub stacked: bool,
    /// By how much the end of each row's bar may be off either way; none or as many as categories. Of bars that stand
    /// below each other it is the first layer's.
    pub errors: Vec<Option<f64>>,
}

/// Predictions held against what came: points on the diagonal are right.
#[derive(Clone, Debug, Serialize)]
pub struct PredictedAgainstMeasured {
    /// Above the chart.
    pub title: String,
    /// What was predicted and measured.
    pub axis: Axis,
    /// Lines beside the diagonal where the prediction is wrong by this share of what was measured.
    pub tolerance: Option<f64>,
    /// In any order.
    pub points: Vec<Prediction>,
}

/// A prediction and what came.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// What it was of.
    pub name: String,
    /// Predictions with the same have the same colour.
    pub series: String,
    /// What was predicted.
    pub predicted: f64,
    /// What came.
    pub measured: f64,
}

/// What follows from a setting: lines of predictions, points of measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Above the chart.
    pub title: String,
    /// The setting.
    pub x: Axis,
    /// What the left scale counts.
    pub left: Axis,
    /// What the right scale counts, if there is a second one.
    pub right: Option<Axis>,
    /// What is drawn.
    pub lines: Vec<CurveLine>,
    /// Values of the setting that are marked, such as the present one.
    pub marks: Vec<Mark>,
}

/// A line of a [`Curve`] with the points that were measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CurveLine {
    /// What it is of.
    pub name: String,
    /// Its colour.
    pub tone: Tone,
    /// By the right scale instead of the left one.
    pub right: bool,
    /// The line: values of the setting, and what is predicted; ascending by the setting.
    pub predicted: Vec<(f64, f64)>,
    /// By how much each of these may be off either way; none or as many.
    pub errors: Vec<f64>,
    /// The points: values of the setting, and what was measured.
    pub measured: Vec<(f64, f64)>,
}

/// What costs little and gives much lies at the lower left: two figures of many contenders.
#[derive(Clone, Debug, Serialize)]
pub struct Scatter {
    /// Above the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Points that belong together.
    pub series: Vec<Series>,
    /// Draws the line of those that no other beats in both, see [`front`].
    pub front: bool,
}

/// The settings of one contender, joined by a line.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The contender.
    pub name: String,
    /// Drawn with larger points and bold names.
    pub emphasised: bool,
    /// In the order in which the line joins them.
    pub points: Vec<Point>,
}

/// One contender at one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Its name.
    pub label: String,
    /// Above zero on logarithmic axes.
    pub x: f64,
    /// Above zero on logarithmic axes.
    pub y: f64,
}

/// Of the points `(x, y)`: is there no other that is at least as small in both and smaller in one?
pub fn front(points: &[(f64, f64)]) -> Vec<bool> {
    let beats = |one: &(f64, f64), other: &(f64, f64)| {
        one.0 <= other.0 && one.1 <= other.1 && (one.0 < other.0 || one.1 < other.1)
    };
    points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_nothing_beats() {
        let points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (3.0, 4.0), (9.0, 1.0), (9.0, 1.0)];
        assert_eq!(front(&points), [true, true, false, false, true, true]);
    }
}
