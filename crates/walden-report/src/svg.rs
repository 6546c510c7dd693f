//! Draws charts as SVG files, for documents.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::chart::{Axis, Curve, CurveLine, Point, Scatter, front};
use crate::scale::Scale;

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "sans-serif";
const LABEL: u32 = 13;
const TICKS: usize = 12;

/// Colours that are distinct on white; black is reserved for emphasis.
const COLOURS: [RGBColor; 12] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 120, 10),
    RGBColor(44, 140, 44),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(210, 90, 170),
    RGBColor(110, 110, 110),
    RGBColor(140, 140, 10),
    RGBColor(10, 150, 170),
    RGBColor(70, 80, 190),
    RGBColor(90, 150, 110),
    RGBColor(180, 130, 70),
];
const EMPHASIS: RGBColor = RGBColor(200, 20, 30);
const FRONT: RGBColor = RGBColor(215, 215, 215);
const GRID: RGBColor = RGBColor(238, 238, 238);
const MARK: RGBColor = RGBColor(110, 110, 110);
const LEGEND_COLUMNS: usize = 4;

/// Draws a scatter chart on logarithmic scales, with the Pareto front as a wide grey line.
///
/// # Errors
/// The drawing library fails.
pub fn scatter(chart: &Scatter) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let usable = |point: &&Point| point.x > 0.0 && point.y > 0.0 && (point.x + point.y).is_finite();
    let pairs: Vec<(f64, f64)> = points().filter(usable).map(|point| (point.x, point.y)).collect();
    let logarithmic = |axis: &Axis| axis.clone().log();
    let x_scale = Scale::fit(&logarithmic(&chart.x), pairs.iter().map(|pair| pair.0));
    let y_scale = Scale::fit(&logarithmic(&chart.y), pairs.iter().map(|pair| pair.1));
    let (xs, ys) = (x_scale.bounds(), y_scale.bounds());
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut builder = ChartBuilder::on(&root);
        builder.caption(&chart.title, (FONT, 18)).margin(14).x_label_area_size(46).y_label_area_size(62);
        let mut area = builder.build_cartesian_2d((xs.0..xs.1).log_scale(), (ys.0..ys.1).log_scale())?;
        area.configure_mesh()
            .x_desc(described(&chart.x))
            .y_desc(described(&chart.y))
            .axis_desc_style((FONT, LABEL + 2))
            .disable_mesh()
            // The library draws too few on short logarithmic scales.
            .x_label_formatter(&|_| String::new())
            .y_label_formatter(&|_| String::new())
            .set_all_tick_mark_size(0)
            .draw()?;
        draw_grid(&root, (&x_scale, &y_scale), |x, y| area.backend_coord(&(x, y)))?;
        let steps = front_in_order(&pairs);
        area.draw_series(LineSeries::new(steps.iter().copied(), FRONT.stroke_width(6)))?;

        let mut labels = Labels { taken: Vec::new() };
        let mut texts: Vec<PointLabel> = Vec::new();
        let mut colours = COLOURS.iter().cycle();
        for series in &chart.series {
            let colour = if series.emphasised { EMPHASIS } else { *colours.next().unwrap_or(&BLACK) };
            let points: Vec<&Point> = series.points.iter().filter(usable).collect();
            let (width, radius) = if series.emphasised { (2, 5) } else { (1, 4) };
            let line = points.iter().map(|point| (point.x, point.y));
            area.draw_series(LineSeries::new(line.clone(), colour.mix(0.6).stroke_width(width)))?;
            area.draw_series(line.map(|point| Circle::new(point, radius, colour.filled())))?;
            let last = points.len().saturating_sub(1);
            for (index, point) in points.iter().enumerate() {
                let best = steps.contains(&(point.x, point.y));
                let place = area.backend_coord(&(point.x, point.y));
                labels.taken.push(Box2::around(place));
                if best || series.emphasised || points.len() <= 3 || index == 0 || index == last {
                    let (text, is_emphasised) = (point.label.clone(), series.emphasised);
                    texts.push(PointLabel { is_optional: !best, is_emphasised, place, text, colour });
                }
            }
        }
        draw_labels(&root, &mut labels, texts)?;
        root.present()?;
    }
    Ok(svg)
}

/// Draws lines at the ticks of both scales, each with its figure.
fn draw_grid(
    canvas: &Canvas<'_>,
    (x_scale, y_scale): (&Scale, &Scale),
    place: impl Fn(f64, f64) -> (i32, i32),
) -> Result<(), Box<dyn Error>> {
    let (xs, ys) = (x_scale.bounds(), y_scale.bounds());
    let figure = |text: &str, at, anchor| write(canvas, text, LABEL + 1, at, anchor, &BLACK);
    for x in x_scale.ticks(TICKS) {
        let (bottom, top) = (place(x, ys.0), place(x, ys.1));
        canvas.draw(&PathElement::new([bottom, top], GRID))?;
        figure(&x_scale.text(x), (bottom.0, bottom.1 + 6), (HPos::Center, VPos::Top))?;
    }
    for y in y_scale.ticks(TICKS) {
        let (left, right) = (place(xs.0, y), place(xs.1, y));
        canvas.draw(&PathElement::new([left, right], GRID))?;
        figure(&y_scale.text(y), (left.0 - 6, left.1), (HPos::Right, VPos::Center))?;
    }
    Ok(())
}

/// Returns the points of the Pareto front, from left to right.
fn front_in_order(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> =
        points.iter().zip(front(points)).filter(|(_, best)| *best).map(|(point, _)| *point).collect();
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    steps
}

/// The label of a point, before it has a position.
struct PointLabel {
    /// Whether it may be omitted for lack of space.
    is_optional: bool,
    is_emphasised: bool,
    /// The point, in pixels.
    place: (i32, i32),
    text: String,
    colour: RGBColor,
}

/// Draws the labels for which there is room. The labels of the front are placed first, because the other
/// labels may not fit.
fn draw_labels(
    canvas: &Canvas<'_>,
    labels: &mut Labels,
    mut texts: Vec<PointLabel>,
) -> Result<(), Box<dyn Error>> {
    texts.sort_by_key(|label| (label.is_optional, !label.is_emphasised));
    for PointLabel { is_optional, is_emphasised, place, text, colour } in texts {
        if let Some((at, anchor)) = labels.place(place, &text, is_optional) {
            let font = FontDesc::from((FONT, f64::from(LABEL)));
            let font = if is_emphasised { font.style(FontStyle::Bold) } else { font };
            let style = font.color(&colour).pos(Pos::new(anchor, VPos::Center));
            canvas.draw(&Text::new(text, at, style))?;
        }
    }
    Ok(())
}

/// Draws a curve: lines of predictions with their errors, points of measurements, marks, and a legend.
///
/// # Errors
/// The drawing library fails.
pub fn curve(chart: &Curve) -> Result<String, Box<dyn Error>> {
    let plot = Plot::new(chart);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        plot.draw_axes(&root, chart)?;
        for mark in &chart.marks {
            if let Some(at) = plot.across(mark.at) {
                for from in (plot.top..plot.low).step_by(8) {
                    root.draw(&PathElement::new([(at, from), (at, (from + 4).min(plot.low))], MARK))?;
                }
                write(&root, &mark.name, LABEL, (at + 5, plot.top + 4), (HPos::Left, VPos::Top), &MARK)?;
            }
        }
        for (index, line) in chart.lines.iter().enumerate() {
            plot.draw_line(&root, line, COLOURS[index % COLOURS.len()])?;
            plot.draw_legend(&root, line, index)?;
        }
        root.present()?;
    }
    Ok(svg)
}

type Canvas<'s> = DrawingArea<SVGBackend<'s>, Shift>;

/// Writes a text whose edge or middle is at a position.
fn write(
    canvas: &Canvas<'_>,
    text: &str,
    size: u32,
    at: (i32, i32),
    (horizontal, vertical): (HPos, VPos),
    colour: &RGBColor,
) -> Result<(), Box<dyn Error>> {
    let style = FontDesc::from((FONT, f64::from(size))).color(colour).pos(Pos::new(horizontal, vertical));
    canvas.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// The part of a drawing with the curves: its edges in pixels, and the scales along them.
struct Plot {
    first: i32,
    last: i32,
    top: i32,
    low: i32,
    x: Scale,
    left: Scale,
    right: Option<Scale>,
}

impl Plot {
    fn new(chart: &Curve) -> Plot {
        let rows = chart.lines.len().div_ceil(LEGEND_COLUMNS).max(1);
        let values = |right: bool| {
            let lines = chart.lines.iter().filter(move |line| (line.right && chart.right.is_some()) == right);
            lines.flat_map(|line| {
                let ends = line.predicted.iter().zip(&line.errors);
                let ends = ends.flat_map(|(&(x, y), error)| [(x, least_of(y, *error)), (x, y + error)]);
                line.predicted.iter().chain(&line.measured).copied().chain(ends)
            })
        };
        let all = values(false).chain(values(true)).map(|(x, _)| x);
        Plot {
            first: 84,
            last: if chart.right.is_some() { 874 } else { 936 },
            top: 48,
            low: SIZE.1 as i32 - 62 - 20 * rows as i32,
            x: Scale::fit(&chart.x, all.chain(chart.marks.iter().map(|mark| mark.at))),
            left: Scale::fit(&chart.left, values(false).map(|(_, y)| y)),
            right: chart.right.as_ref().map(|axis| Scale::fit(axis, values(true).map(|(_, y)| y))),
        }
    }

    fn across(&self, value: f64) -> Option<i32> {
        let width = f64::from(self.last - self.first);
        self.x.at(value).map(|place| (f64::from(self.first) + place * width).round() as i32)
    }

    fn up(&self, scale: &Scale, value: f64) -> Option<i32> {
        let height = f64::from(self.low - self.top);
        scale.at(value).map(|place| (f64::from(self.low) - place * height).round() as i32)
    }

    fn draw_axes(&self, canvas: &Canvas<'_>, chart: &Curve) -> Result<(), Box<dyn Error>> {
        let Plot { first, last, top, low, .. } = *self;
        let title = |text: &str, at, place| write(canvas, text, LABEL + 1, at, place, &BLACK);
        write(canvas, &chart.title, 18, (SIZE.0 as i32 / 2, 14), (HPos::Center, VPos::Top), &BLACK)?;
        title(&chart.x.name, ((first + last) / 2, low + 28), (HPos::Center, VPos::Top))?;
        title(&chart.left.name, (first - 7, top - 8), (HPos::Left, VPos::Bottom))?;
        if let Some(axis) = &chart.right {
            title(&axis.name, (last + 7, top - 8), (HPos::Right, VPos::Bottom))?;
        }
        let label = |text: &str, at, place| write(canvas, text, LABEL, at, place, &BLACK);
        for (at, tick) in self.x.ticks(8).into_iter().filter_map(|tick| Some((self.across(tick)?, tick))) {
            canvas.draw(&PathElement::new([(at, top), (at, low)], GRID))?;
            label(&self.x.text(tick), (at, low + 7), (HPos::Center, VPos::Top))?;
        }
        let heights = |scale: &Scale| -> Vec<(i32, String)> {
            let ticks = scale.ticks(8).into_iter();
            ticks.filter_map(|tick| Some((self.up(scale, tick)?, scale.text(tick)))).collect()
        };
        for (at, text) in heights(&self.left) {
            canvas.draw(&PathElement::new([(first, at), (last, at)], GRID))?;
            label(&text, (first - 7, at), (HPos::Right, VPos::Center))?;
        }
        for (at, text) in self.right.iter().flat_map(heights) {
            label(&text, (last + 7, at), (HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    fn draw_line(
        &self,
        canvas: &Canvas<'_>,
        line: &CurveLine,
        colour: RGBColor,
    ) -> Result<(), Box<dyn Error>> {
        let scale = self.right.as_ref().filter(|_| line.right).unwrap_or(&self.left);
        let place = |&(x, y): &(f64, f64)| Some((self.across(x)?, self.up(scale, y)?));
        for (&(x, y), error) in line.predicted.iter().zip(&line.errors) {
            let ends = self.up(scale, y + error).zip(self.up(scale, least_of(y, *error)));
            if let Some((x, (high, low))) = self.across(x).zip(ends).filter(|(_, (high, low))| low - high > 2)
            {
                canvas.draw(&PathElement::new([(x, high), (x, low)], colour))?;
                canvas.draw(&PathElement::new([(x - 4, high), (x + 4, high)], colour))?;
                canvas.draw(&PathElement::new([(x - 4, low), (x + 4, low)], colour))?;
            }
        }
        let places: Vec<(i32, i32)> = line.predicted.iter().filter_map(place).collect();
        canvas.draw(&PathElement::new(places.clone(), colour.stroke_width(line_width(line))))?;
        for at in places {
            canvas.draw(&Circle::new(at, 3, colour.filled()))?;
        }
        for at in line.measured.iter().filter_map(place) {
            canvas.draw(&Circle::new(at, 6, colour.stroke_width(2)))?;
        }
        Ok(())
    }

    fn draw_legend(&self, canvas: &Canvas<'_>, line: &CurveLine, index: usize) -> Result<(), Box<dyn Error>> {
        let colour = COLOURS[index % COLOURS.len()];
        let (column, row) = ((index % LEGEND_COLUMNS) as i32, (index / LEGEND_COLUMNS) as i32);
        let x = self.first + column * (self.last - self.first) / LEGEND_COLUMNS as i32;
        let y = self.low + 62 + 20 * row;
        canvas.draw(&PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(line_width(line))))?;
        canvas.draw(&Circle::new((x + 9, y), 3, colour.filled()))?;
        let side = if line.right && self.right.is_some() { " (right)" } else { "" };
        let text = format!("{}{side}", line.name);
        write(canvas, &text, LABEL, (x + 25, y), (HPos::Left, VPos::Center), &BLACK)
    }
}

fn line_width(line: &CurveLine) -> u32 {
    if line.right { 1 } else { 2 }
}

/// Returns the lower end of an error bar, which is not below zero unless the value is.
fn least_of(value: f64, error: f64) -> f64 {
    (value - error).max(value.min(0.0))
}

fn described(axis: &Axis) -> String {
    format!("{} (logarithmic)", axis.name)
}

/// Pixels: left, top, right, bottom.
#[derive(Clone, Copy)]
struct Box2(i32, i32, i32, i32);

impl Box2 {
    fn around((x, y): (i32, i32)) -> Box2 {
        Box2(x - 4, y - 4, x + 4, y + 4)
    }

    fn meets(self, other: Box2) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }
}

/// Areas that labels and points already cover.
struct Labels {
    taken: Vec<Box2>,
}

impl Labels {
    /// Finds a free position next to a point. Returns the text's anchor and alignment, or `None` if every
    /// position is taken.
    fn place(&mut self, (x, y): (i32, i32), label: &str, optional: bool) -> Option<((i32, i32), HPos)> {
        // Without a font to measure, a letter counts as seven pixels wide.
        let width = i32::try_from(label.chars().count()).unwrap_or(0) * 7;
        let half = i32::try_from(LABEL).unwrap_or(0) / 2;
        let rows = [0, -12, 12, -24, 24];
        let sides = rows.into_iter().flat_map(|row| [(8, row), (-8, row)]);
        let free = |&(side, row): &(i32, i32)| {
            let (left, right) =
                if side > 0 { (x + side, x + side + width) } else { (x + side - width, x + side) };
            let this = Box2(left, y + row - half, right, y + row + half);
            let inside = left > 70 && right < i32::try_from(SIZE.0).unwrap_or(0);
            (inside && !self.taken.iter().any(|other| other.meets(this))).then_some(((side, row), this))
        };
        let found = sides.clone().find_map(|side| free(&side));
        let ((side, row), this) = match found {
            Some(found) => found,
            None if optional => return None,
            None => ((8, 0), Box2(x + 8, y - half, x + 8 + width, y + half)),
        };
        self.taken.push(this);
        Some(((x + side, y + row), if side > 0 { HPos::Left } else { HPos::Right }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{CurveLine, Mark, Series, Unit};

    #[test]
    fn a_chart_names_its_points_whatever_they_are() {
        let point = |label: &str, x, y| Point { label: label.into(), x, y };
        let series = |points| Series { name: String::new(), emphasised: false, points };
        let mut chart = Scatter {
            title: "a < b".into(),
            x: Axis::new("seconds", Unit::Plain).log(),
            y: Axis::new("size", Unit::Plain).log(),
            front: true,
            series: vec![series(vec![point("one -1", 0.1, 4.0), point("one -9", 3.0, 2.0)])],
        };
        let svg = scatter(&chart).unwrap();
        for text in ["<svg", "one -1", "one -9", "a &lt; b", "seconds"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        for points in [vec![], vec![point("zero", 0.0, f64::NAN)], vec![point("alone", 1e-9, 1e9)]] {
            chart.series = vec![series(points)];
            assert!(scatter(&chart).unwrap().contains("</svg>"));
        }
    }

    #[test]
    fn a_curve_has_its_lines_its_errors_and_both_scales() {
        let line = |name: &str, right| CurveLine {
            name: name.into(),
            right,
            predicted: vec![(64e6, 50.0), (1e9, 10.0)],
            errors: vec![20.0, 5.0],
            measured: vec![(64e6, 55.0)],
            ..CurveLine::default()
        };
        let mut chart = Curve {
            title: "WAL < before".into(),
            x: Axis::new("max_wal_size", Unit::SettingBytes).log(),
            left: Axis::new("WAL", Unit::Bytes),
            right: Some(Axis::new("recovery", Unit::Seconds)),
            lines: vec![line("volume", false), line("time", true)],
            marks: vec![Mark { at: 64e6, name: "as traced".into() }],
        };
        let svg = curve(&chart).unwrap();
        for text in [
            "<svg",
            "WAL &lt; before",
            "max_wal_size",
            "512MB",
            "60 B",
            "60 s",
            "volume",
            "time (right)",
            "as traced",
        ] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        // Six dots including those of the legend, two points.
        assert_eq!(svg.matches("<circle").count(), 8);
        chart.lines[0].predicted = vec![(f64::NAN, 1.0), (1e300, f64::INFINITY)];
        chart.lines[1].predicted.clear();
        assert!(curve(&chart).unwrap().contains("</svg>"));
    }
}
