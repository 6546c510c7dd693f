//! Charts as SVG files: pictures that stand still, for documents and reviews.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::chart::{Axis, Point, Scatter, front};

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "sans-serif";
const LABEL: u32 = 13;

/// Distinct on white; black is kept for what is emphasised.
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

/// The chart, on logarithmic scales whatever its axes say, and with its front as a wide grey line.
///
/// # Errors
/// The drawing library refuses.
pub fn scatter(chart: &Scatter) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let usable = |point: &&Point| point.x > 0.0 && point.y > 0.0 && (point.x + point.y).is_finite();
    let pairs: Vec<(f64, f64)> = points().filter(usable).map(|point| (point.x, point.y)).collect();
    let (xs, ys) = (bounds(pairs.iter().map(|pair| pair.0)), bounds(pairs.iter().map(|pair| pair.1)));
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
            // The library's own are too few on short logarithmic scales.
            .x_label_formatter(&|_| String::new())
            .y_label_formatter(&|_| String::new())
            .set_all_tick_mark_size(0)
            .draw()?;
        let figure = |horizontal, vertical| {
            let font = FontDesc::from((FONT, f64::from(LABEL + 1)));
            font.color(&BLACK).pos(Pos::new(horizontal, vertical))
        };
        for x in ticks(xs) {
            let (bottom, top) = (area.backend_coord(&(x, ys.0)), area.backend_coord(&(x, ys.1)));
            root.draw(&PathElement::new([bottom, top], GRID))?;
            root.draw(&Text::new(short(x), (bottom.0, bottom.1 + 6), figure(HPos::Center, VPos::Top)))?;
        }
        for y in ticks(ys) {
            let (left, right) = (area.backend_coord(&(xs.0, y)), area.backend_coord(&(xs.1, y)));
            root.draw(&PathElement::new([left, right], GRID))?;
            root.draw(&Text::new(short(y), (left.0 - 6, left.1), figure(HPos::Right, VPos::Center)))?;
        }

        let mut steps: Vec<(f64, f64)> =
            pairs.iter().zip(front(&pairs)).filter(|(_, best)| *best).map(|(pair, _)| *pair).collect();
        steps.sort_by(|one, other| one.0.total_cmp(&other.0));
        area.draw_series(LineSeries::new(steps.iter().copied(), FRONT.stroke_width(6)))?;

        let mut labels = Labels { taken: Vec::new() };
        let mut texts = Vec::new();
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
                    texts.push((!best, !series.emphasised, place, point.label.clone(), colour));
                }
            }
        }
        // The front's names first: they always find room.
        texts.sort_by_key(|text| (text.0, text.1));
        for (optional, light, place, label, colour) in texts {
            if let Some((at, anchor)) = labels.place(place, &label, optional) {
                let font = FontDesc::from((FONT, f64::from(LABEL)));
                let font = if light { font } else { font.style(FontStyle::Bold) };
                let style = font.color(&colour).pos(Pos::new(anchor, VPos::Center));
                root.draw(&Text::new(label, at, style))?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}

fn described(axis: &Axis) -> String {
    format!("{} (logarithmic)", axis.name)
}

/// Room around the smallest and the largest, on a logarithmic scale.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) =
        values.fold((f64::INFINITY, 0.0f64), |(least, most), value| (least.min(value), most.max(value)));
    if most <= 0.0 {
        return (0.1, 10.0);
    }
    let room = (most / least).powf(0.06).max(1.15);
    (least / room, most * room)
}

/// Round figures within bounds, as few as make a scale.
fn ticks((least, most): (f64, f64)) -> Vec<f64> {
    const STEPS: [&[f64]; 4] = [
        &[1.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        &[1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    ];
    const ENOUGH: usize = 5;
    let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let within = |steps: &&[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (least..=most).contains(tick)).collect()
    };
    let found = STEPS.iter().map(within).find(|ticks| ticks.len() >= ENOUGH);
    found.unwrap_or_else(|| within(&STEPS[STEPS.len() - 1]))
}

/// A figure of an axis: `0.05`, `2`, `150`.
fn short(value: f64) -> String {
    let digits = if value >= 10.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
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

/// Where names and points are already.
struct Labels {
    taken: Vec<Box2>,
}

impl Labels {
    /// A free place beside a point: where the text goes and which of its ends is there; `None` if all are taken.
    fn place(&mut self, (x, y): (i32, i32), label: &str, optional: bool) -> Option<((i32, i32), HPos)> {
        // No font is at hand to measure with: seven pixels are a wide letter of this size.
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
    use crate::chart::{Series, Unit};

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
    fn figures_of_axes_are_short() {
        assert_eq!([0.05, 0.5, 2.0, 150.0].map(short), ["0.05", "0.5", "2", "150"]);
        assert_eq!(
            ticks((0.04, 6.0)).into_iter().map(short).collect::<Vec<_>>(),
            ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]
        );
        assert!(ticks((0.9, 2.1)).len() >= 5 && ticks((1e-9, 1e9)).len() >= 5);
    }
}
