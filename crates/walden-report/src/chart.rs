//! Charts as data, independent of how they are drawn. An HTML page ([`crate::html`]) draws all of them.
//! [`crate::svg`] draws a [`Scatter`] or a [`Curve`] to a separate file, [`crate::plot`] a [`Curve`] in a
//! terminal.
//!
//! Values are plain numbers in the unit of their axis. Values that are not finite are not drawn.

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
    /// Returns the chart's title.
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

/// The unit of a chart's numbers, which determines their format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes, in decimal units.
    Bytes,
    /// Bytes in powers of 1024, as in PostgreSQL's settings: `64MB`, `1GB`.
    SettingBytes,
    /// Bytes per second.
    BytesPerSecond,
    /// A count: records, images, rows.
    Count,
    /// A duration in seconds.
    Seconds,
    /// A share from 0 to 1, in per cent.
    Share,
    /// Any other number, without unit.
    #[default]
    Plain,
}

/// An axis: name, unit and scale.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Axis {
    /// The quantity, for the label.
    pub name: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Whether the scale is logarithmic; values of at most zero are then not drawn.
    pub log: bool,
}

impl Axis {
    /// Creates an axis with a linear scale.
    pub fn new(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, log: false }
    }

    /// Makes the scale logarithmic.
    pub fn log(self) -> Axis {
        Axis { log: true, ..self }
    }
}

/// The meaning of a colour, so that a kind of bytes has one colour in all charts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// The next unused colour of the palette.
    #[default]
    Next,
    /// Images of first changes after a checkpoint.
    ImageCheckpoint,
    /// Images that the writer has requested.
    ImageForced,
    /// Images for hint bits.
    ImageHint,
    /// Images for `wal_consistency_checking`.
    ImageConsistency,
    /// Data of records.
    Data,
    /// Headers and alignment.
    Header,
    /// Bytes outside of records: page headers, padding, the unused end.
    Framing,
    /// A table's own pages.
    Heap,
    /// An index.
    Index,
    /// TOAST.
    Toast,
    /// Drawn unobtrusively.
    Muted,
    /// Drawn emphasised.
    Emphasis,
}

/// A series of a stacked or grouped chart: a name, a colour, and a value for each span or category.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Layer {
    /// Name of the series in the legend.
    pub name: String,
    /// Colour of the series.
    pub tone: Tone,
    /// One value per span or category of the chart; `None` if it is not known.
    pub values: Vec<Option<f64>>,
}

/// A stacked volume over time.
#[derive(Clone, Debug, Serialize)]
pub struct StackedOverTime {
    /// The title above the chart.
    pub title: String,
    /// The axis of the stacked volume.
    pub y: Axis,
    /// Where the spans start, in milliseconds since 1970-01-01 UTC; ascending.
    pub starts: Vec<i64>,
    /// Width of each span, in milliseconds.
    pub width: i64,
    /// The stacked series, from bottom to top.
    pub layers: Vec<Layer>,
    /// Times that are marked by a vertical line.
    pub marks: Vec<Mark>,
}

/// A moment of a [`StackedOverTime`], or a value of a [`Curve`]'s horizontal axis.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mark {
    /// The position: milliseconds since 1970-01-01 UTC, or a value of the axis.
    pub at: f64,
    /// The label: `volume`, `now 1 GB`.
    pub name: String,
}

/// How the share of images decreases during each checkpoint cycle, by position in the WAL.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointTimeline {
    /// The title above the chart.
    pub title: String,
    /// The cycles in WAL order.
    pub cycles: Vec<Cycle>,
}

/// The WAL from one checkpoint's redo pointer to the next checkpoint's redo pointer.
#[derive(Clone, Debug, Serialize)]
pub struct Cycle {
    /// Time and LSN of its start.
    pub label: String,
    /// The cause of the checkpoint at its start; `None` if the WAL does not contain it.
    pub cause: Option<String>,
    /// Bytes of WAL in the cycle.
    pub bytes: u64,
    /// Bytes of full-page images in the cycle.
    pub image_bytes: u64,
    /// Share of images in each of several parts of equal width; `None` for a part that is not in the WAL.
    pub shares: Vec<Option<f64>>,
}

/// Nested rectangles whose areas are sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Treemap {
    /// The title above the chart.
    pub title: String,
    /// The unit of the areas.
    pub unit: Unit,
    /// The outer rectangles, by descending size.
    pub nodes: Vec<Node>,
    /// The meaning of the colours.
    pub legend: Vec<(Tone, String)>,
}

/// A rectangle of a [`Treemap`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Node {
    /// Name of the rectangle.
    pub name: String,
    /// Size of the rectangle, including its parts.
    pub value: f64,
    /// Its colour, if it has no parts.
    pub tone: Tone,
    /// Names and values in its tooltip.
    pub facts: Vec<(String, String)>,
    /// The rectangles within it.
    pub parts: Vec<Node>,
}

/// Horizontal bars, one row per category.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Bars {
    /// The title above the chart.
    pub title: String,
    /// The axis of the bars' lengths.
    pub x: Axis,
    /// Names of the rows, the first on top.
    pub categories: Vec<String>,
    /// The series: each has one bar per row.
    pub layers: Vec<Layer>,
    /// Whether the series are stacked into one bar per row, instead of one below the other.
    pub stacked: bool,
    /// The error of each row's bar in both directions, empty or one per category. Without stacking it is the
    /// error of the first series.
    pub errors: Vec<Option<f64>>,
}

/// Predicted values against measured values: points on the diagonal are exact predictions.
#[derive(Clone, Debug, Serialize)]
pub struct PredictedAgainstMeasured {
    /// The title above the chart.
    pub title: String,
    /// The quantity, for both axes.
    pub axis: Axis,
    /// The error, as a share of the measured value, at which lines parallel to the diagonal are drawn.
    pub tolerance: Option<f64>,
    /// The points, in any order.
    pub points: Vec<Prediction>,
}

/// A predicted value and the measured one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Prediction {
    /// The point's label.
    pub name: String,
    /// Its series; predictions of one series have the same colour.
    pub series: String,
    /// The predicted value.
    pub predicted: f64,
    /// The measured value.
    pub measured: f64,
}

/// Quantities against a setting: predictions as lines, measurements as points.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The title above the chart.
    pub title: String,
    /// The setting's axis.
    pub x: Axis,
    /// The left vertical axis.
    pub left: Axis,
    /// The right vertical axis, if there is one.
    pub right: Option<Axis>,
    /// Lines and their points.
    pub lines: Vec<CurveLine>,
    /// Values of the setting that are marked, such as the current one.
    pub marks: Vec<Mark>,
}

/// A line of a [`Curve`] with its measured points.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CurveLine {
    /// Name of the line in the legend.
    pub name: String,
    /// Colour of the line.
    pub tone: Tone,
    /// Whether the line's values belong to the right axis.
    pub right: bool,
    /// The line: pairs of setting and predicted value, ascending by the setting.
    pub predicted: Vec<(f64, f64)>,
    /// Whether the line consists of measured values, too.
    #[serde(rename = "measured")]
    pub is_measured: bool,
    /// The error of each predicted value in both directions; empty or one per value.
    pub errors: Vec<f64>,
    /// The points: pairs of setting and measured value.
    pub measured: Vec<(f64, f64)>,
}

/// Two measures of several contenders as points; smaller is better in both.
#[derive(Clone, Debug, Serialize)]
pub struct Scatter {
    /// The title above the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The contenders.
    pub series: Vec<Series>,
    /// Whether the Pareto front is drawn, see [`front`].
    pub front: bool,
}

/// The points of one contender (its levels), joined by a line.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The contender's name.
    pub name: String,
    /// Whether it is drawn with larger points and bold names.
    pub emphasised: bool,
    /// The points in the order in which the line joins them.
    pub points: Vec<Point>,
}

/// A contender at one level.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Name of the contender.
    pub label: String,
    /// Value on the horizontal axis; above zero on a logarithmic axis.
    pub x: f64,
    /// Value on the vertical axis; above zero on a logarithmic axis.
    pub y: f64,
}

/// Returns for each point `(x, y)` whether it is on the Pareto front: no other point is at most as large in
/// both and smaller in one.
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
    fn the_front_has_the_points_that_none_dominates() {
        let points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (3.0, 4.0), (9.0, 1.0), (9.0, 1.0)];
        assert_eq!(front(&points), [true, true, false, false, true, true]);
    }
}
