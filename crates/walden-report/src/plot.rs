//! Renders curves in a terminal: lines of Braille dots, and a sign for each point.

use anstyle::AnsiColor;
use unicode_width::UnicodeWidthStr;

use crate::chart::{Curve, CurveLine};
use crate::scale::Scale;
use crate::table::{Look, shorten};

const ROWS: usize = 14;
const WIDEST: usize = 110;
const POINTS: [char; 8] = ['●', '◆', '■', '▲', '○', '◇', '□', '△'];
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// Renders the curve with its scales and a legend. Empty if the terminal is too narrow or there is nothing to
/// draw.
pub fn curve(chart: &Curve, look: Look) -> String {
    let values = |right: bool| {
        let lines = chart.lines.iter().filter(move |line| is_right(chart, line) == right);
        lines.flat_map(|line| line.predicted.iter().chain(&line.measured).copied())
    };
    let all = || values(false).chain(values(true));
    let x = Scale::fit(&chart.x, all().map(|(x, _)| x).chain(chart.marks.iter().map(|mark| mark.at)));
    let left = Scale::fit(&chart.left, values(false).map(|(_, y)| y));
    let right = chart.right.as_ref().map(|axis| Scale::fit(axis, values(true).map(|(_, y)| y)));
    let labels = |scale: &Scale| figures(scale);
    let (of_left, of_right) = (labels(&left), right.as_ref().map(labels).unwrap_or_default());
    let widest =
        |labels: &[Option<String>]| labels.iter().flatten().map(|text| text.width()).max().unwrap_or(0);
    let (before, behind) = (widest(&of_left), widest(&of_right));
    let columns = look.width.min(WIDEST).saturating_sub(before + behind + 6);
    if columns < 20 || all().next().is_none() {
        return String::new();
    }

    let mut canvas = Canvas::new(columns);
    for mark in &chart.marks {
        canvas.mark(x.at(mark.at));
    }
    for (index, line) in chart.lines.iter().enumerate() {
        let y = right.filter(|_| line.right).unwrap_or(left);
        let place = |point: &(f64, f64)| Some((x.at(point.0)?, y.at(point.1)?));
        let places: Vec<Option<(f64, f64)>> = line.predicted.iter().map(place).collect();
        for pair in places.windows(2) {
            if let [Some(from), Some(to)] = pair {
                canvas.line(*from, *to, index);
            }
        }
        places.into_iter().flatten().for_each(|at| canvas.point(at, POINTS[index % POINTS.len()], index));
        line.measured.iter().filter_map(place).for_each(|at| canvas.point(at, '×', index));
    }

    let mut text = format!("{}\n", look.heading(&chart.title));
    for (row, cells) in canvas.rows(look).into_iter().enumerate() {
        let figure = of_left[row].as_deref().unwrap_or("");
        let tick = if figure.is_empty() { '│' } else { '┤' };
        let other = of_right.get(row).and_then(Option::as_deref).unwrap_or("");
        let frame = match right {
            None => "",
            Some(_) if other.is_empty() => "│",
            Some(_) => "├ ",
        };
        let pad = " ".repeat(before - figure.width());
        text += &format!("  {pad}{} {}{cells}", look.faint(figure), look.faint(&tick.to_string()));
        text += &look.faint(&format!("{frame}{other}"));
        text.push('\n');
    }
    text += &below(&x, chart, look, before, columns);
    text += &legend(chart, look);
    text
}

fn is_right(chart: &Curve, line: &CurveLine) -> bool {
    line.right && chart.right.is_some()
}

/// Returns the labels of the scale by row.
fn figures(scale: &Scale) -> Vec<Option<String>> {
    let mut rows = vec![None; ROWS];
    for tick in scale.ticks(6) {
        let row = scale.at(tick).map(|place| ((1.0 - place) * (ROWS as f64 - 0.01)) as usize);
        if let Some(slot) = row.and_then(|row| rows.get_mut(row)) {
            *slot = Some(scale.text(tick));
        }
    }
    rows
}

/// Renders the lower edge with its figures and the setting's name.
fn below(x: &Scale, chart: &Curve, look: Look, before: usize, columns: usize) -> String {
    let mut edge: Vec<char> = vec!['─'; columns];
    let mut figures: Vec<char> = vec![' '; columns + 12];
    let mut free = 0;
    for tick in x.ticks(columns / 10) {
        let Some(place) = x.at(tick) else { continue };
        let column = (place * (columns as f64 - 0.01)) as usize;
        let text: Vec<char> = x.text(tick).chars().collect();
        let start = column.saturating_sub(text.len() / 2);
        edge[column] = '┬';
        if start >= free && start + text.len() <= figures.len() {
            free = start + text.len() + 1;
            figures[start..start + text.len()].copy_from_slice(&text);
        }
    }
    let edge: String = edge.into_iter().collect();
    let figures: String = figures.into_iter().collect();
    let indent = " ".repeat(before + 3);
    let name = &chart.x.name;
    let pad = " ".repeat(columns.saturating_sub(name.width()) / 2 + 1);
    format!(
        "{}\n{}\n{}\n",
        look.faint(&format!("{indent}└{edge}{}", if chart.right.is_some() { "┘" } else { "" })),
        look.faint(format!("{indent} {figures}").trim_end()),
        look.faint(&format!("{indent}{pad}{}", shorten(name, columns)))
    )
}

fn legend(chart: &Curve, look: Look) -> String {
    let mut entries = Vec::new();
    for (index, line) in chart.lines.iter().enumerate() {
        let point = look.colour(COLOURS[index % COLOURS.len()], &POINTS[index % POINTS.len()].to_string());
        let side = if is_right(chart, line) { " (right)" } else { "" };
        entries.push(format!("{point} {}{side}", line.name));
    }
    if chart.lines.iter().any(|line| !line.measured.is_empty()) {
        entries.push("× measured".into());
    }
    for mark in &chart.marks {
        entries.push(format!("{} {}", look.faint("┊"), mark.name));
    }
    let mut text = String::new();
    let (mut used, mut line) = (0, String::new());
    for entry in entries {
        let width = columns_of(&entry) + 3;
        if used > 0 && used + width > look.width.saturating_sub(2) {
            text += &format!("  {}\n", line.trim_end());
            (used, line) = (0, String::new());
        }
        line += &format!("{entry}   ");
        used += width;
    }
    format!("{text}  {}\n", line.trim_end())
}

/// Returns the width of text without its colours, in columns.
fn columns_of(text: &str) -> usize {
    let mut width = 0;
    for (index, part) in text.split('\u{1b}').enumerate() {
        let shown = if index == 0 { part } else { part.split_once('m').map_or("", |(_, shown)| shown) };
        width += shown.width();
    }
    width
}

/// Braille dots, two by four in each cell, and the signs that are drawn over them.
struct Canvas {
    columns: usize,
    dots: Vec<u8>,
    points: Vec<Option<char>>,
    owners: Vec<usize>,
}

impl Canvas {
    fn new(columns: usize) -> Canvas {
        let cells = columns * ROWS;
        Canvas { columns, dots: vec![0; cells], points: vec![None; cells], owners: vec![usize::MAX; cells] }
    }

    /// Returns the cell of a position from 0 to 1 in both directions; the vertical one points upwards.
    fn cell(&self, (x, y): (f64, f64)) -> usize {
        let column = (x * (self.columns as f64 - 0.01)) as usize;
        let row = ((1.0 - y) * (ROWS as f64 - 0.01)) as usize;
        row.min(ROWS - 1) * self.columns + column.min(self.columns - 1)
    }

    fn point(&mut self, at: (f64, f64), sign: char, owner: usize) {
        let cell = self.cell(at);
        self.points[cell] = Some(sign);
        self.owners[cell] = owner;
    }

    fn mark(&mut self, x: Option<f64>) {
        for row in 0..ROWS {
            if let Some(x) = x {
                let cell = self.cell((x, 1.0 - (row as f64 + 0.5) / ROWS as f64));
                self.points[cell] = Some('┊');
            }
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), owner: usize) {
        // Bits of the Braille dots, by row and column.
        const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let (width, height) = (self.columns * 2, ROWS * 4);
        let steps = 2 * (width + height);
        for step in 0..=steps {
            let part = step as f64 / steps as f64;
            let (x, y) = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            let column = ((x * (width as f64 - 0.01)) as usize).min(width - 1);
            let row = (((1.0 - y) * (height as f64 - 0.01)) as usize).min(height - 1);
            let cell = row / 4 * self.columns + column / 2;
            self.dots[cell] |= BITS[row % 4][column % 2];
            self.owners[cell] = owner;
            if self.points[cell] == Some('┊') {
                self.points[cell] = None;
            }
        }
    }

    fn rows(&self, look: Look) -> Vec<String> {
        let cell = |index: usize| {
            let sign = match (self.points[index], self.dots[index]) {
                (Some(sign), _) => sign,
                (None, 0) => return " ".to_owned(),
                (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
            };
            match self.owners[index] {
                usize::MAX => look.faint(&sign.to_string()),
                owner => look.colour(COLOURS[owner % COLOURS.len()], &sign.to_string()),
            }
        };
        (0..ROWS)
            .map(|row| (0..self.columns).map(|column| cell(row * self.columns + column)).collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Mark, Unit};

    fn sweep() -> Curve {
        let sizes = [64.0, 128.0, 256.0, 1024.0].map(|size: f64| size * 1_048_576.0);
        let points = |values: [f64; 4]| sizes.into_iter().zip(values).collect();
        Curve {
            title: "WAL and recovery".into(),
            x: Axis::new("max_wal_size", Unit::SettingBytes).log(),
            left: Axis::new("WAL", Unit::Bytes),
            right: Some(Axis::new("recovery", Unit::Seconds)),
            lines: vec![
                CurveLine {
                    name: "WAL".into(),
                    predicted: points([5e8, 4e8, 3e8, 1e8]),
                    measured: vec![(sizes[0], 5.1e8)],
                    ..CurveLine::default()
                },
                CurveLine {
                    name: "recovery".into(),
                    right: true,
                    predicted: points([10.0, 20.0, 40.0, 60.0]),
                    ..CurveLine::default()
                },
            ],
            marks: vec![Mark { at: sizes[0], name: "as traced: 64MB".into() }],
        }
    }

    fn look(width: usize) -> Look {
        Look { width, table_width: width, colour: false }
    }

    #[test]
    fn a_curve_falls_from_the_left_to_the_right_between_its_scales() {
        for width in [60, 80, 200] {
            let text = curve(&sweep(), look(width));
            for line in text.lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
            for word in
                ["500 MB", "60 s", "64MB", "1GB", "max_wal_size", "● WAL", "◆ recovery (right)", "× measured"]
            {
                assert!(text.contains(word), "{word} is not in\n{text}");
            }
            let lines: Vec<&str> = text.lines().collect();
            let column = |line: &str| line.chars().position(|c| c == '●');
            let points: Vec<usize> = lines[..=ROWS].iter().filter_map(|line| column(line)).collect();
            assert!(
                points.len() >= 3 && points.windows(2).all(|pair| pair[0] < pair[1]),
                "{points:?}\n{text}"
            );
        }
    }

    #[test]
    fn odd_curves_are_drawn_or_left_out() {
        let mut chart = sweep();
        let coloured = Look { colour: true, ..look(80) };
        assert_eq!(curve(&chart, look(20)), "");
        for values in
            [vec![(f64::NAN, 1.0), (0.0, f64::INFINITY), (5.0, 5.0)], vec![(1e300, 1e300), (-1.0, -1.0)]]
        {
            chart.lines = vec![CurveLine { name: "x".into(), predicted: values, ..CurveLine::default() }];
            assert!(curve(&chart, coloured).contains("max_wal_size"));
        }
        chart.lines.clear();
        assert_eq!(curve(&chart, coloured), "");
    }
}
