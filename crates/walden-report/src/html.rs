//! Self-contained HTML pages: styles, script, figures and charts are in one file, and its content security
//! policy prevents the browser from fetching anything.
//!
//! Names from WAL or a server are untrusted. They are added to a page only as text: escaped in the markup, or
//! as JSON in an element that is not executed, from which the script inserts them as text nodes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};

use crate::chart::Chart;
use crate::units;

/// A page: title, subtitle, a few large figures, and sections.
#[derive(Clone, Debug, Default)]
pub struct Page {
    title: String,
    subtitle: Vec<String>,
    facts: Vec<Fact>,
    sections: Vec<Section>,
}

#[derive(Clone, Debug)]
struct Fact {
    name: String,
    value: String,
    note: String,
}

/// A part of a page under a heading.
#[derive(Clone, Debug)]
pub struct Section {
    heading: String,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
enum Block {
    Text(String),
    Alarm(String),
    Findings(Vec<(String, String)>),
    Table(Table),
    Chart(Chart, String),
    Terms(Vec<(String, String)>),
    List(Vec<String>),
}

impl Page {
    /// Creates a page with its title as the first heading.
    pub fn new(title: &str) -> Page {
        Page { title: title.to_owned(), ..Page::default() }
    }

    /// Adds a line below the title.
    pub fn subtitle(&mut self, text: &str) -> &mut Page {
        self.subtitle.push(text.to_owned());
        self
    }

    /// Adds a figure in large letters: its name, the figure, and a note, which may be empty.
    pub fn fact(&mut self, name: &str, value: &str, note: &str) -> &mut Page {
        self.facts.push(Fact { name: name.to_owned(), value: value.to_owned(), note: note.to_owned() });
        self
    }

    /// Appends a section.
    pub fn section(&mut self, section: Section) -> &mut Page {
        self.sections.push(section);
        self
    }

    /// Inserts a section at `index` among the existing sections, or appends the section if there are fewer.
    pub fn insert(&mut self, index: usize, section: Section) -> &mut Page {
        self.sections.insert(index.min(self.sections.len()), section);
        self
    }

    /// Renders the page as HTML.
    pub fn render(&self) -> String {
        Renderer::default().page(self)
    }
}

impl Section {
    /// Creates an empty section.
    pub fn new(heading: &str) -> Section {
        Section { heading: heading.to_owned(), blocks: Vec::new() }
    }

    /// Returns whether the section has no content below its heading.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Appends a paragraph.
    pub fn text(mut self, text: &str) -> Section {
        self.blocks.push(Block::Text(text.to_owned()));
        self
    }

    /// Appends a paragraph that is marked as a warning.
    pub fn alarm(mut self, text: &str) -> Section {
        self.blocks.push(Block::Alarm(text.to_owned()));
        self
    }

    /// Appends findings: pairs of a sentence and the setting or object to which it points.
    pub fn findings(mut self, findings: impl IntoIterator<Item = (String, String)>) -> Section {
        self.blocks.push(Block::Findings(findings.into_iter().collect()));
        self
    }

    /// Appends a list.
    pub fn list(mut self, items: impl IntoIterator<Item = String>) -> Section {
        let items: Vec<String> = items.into_iter().collect();
        if !items.is_empty() {
            self.blocks.push(Block::List(items));
        }
        self
    }

    /// Appends a table.
    pub fn table(mut self, table: Table) -> Section {
        self.blocks.push(Block::Table(table));
        self
    }

    /// Appends a chart, with a note below it on how to read it.
    pub fn chart(mut self, chart: impl Into<Chart>, note: &str) -> Section {
        self.blocks.push(Block::Chart(chart.into(), note.to_owned()));
        self
    }

    /// Appends a glossary: pairs of term and definition.
    pub fn terms<'a>(mut self, terms: impl IntoIterator<Item = (&'a str, &'a str)>) -> Section {
        let terms = terms.into_iter().map(|(word, meaning)| (word.to_owned(), meaning.to_owned()));
        self.blocks.push(Block::Terms(terms.collect()));
        self
    }
}

/// A table that its reader can sort by any column.
#[derive(Clone, Debug, Default)]
pub struct Table {
    caption: String,
    head: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    /// Creates a table with these columns. The first one has the rows' labels.
    pub fn new<S: AsRef<str>>(head: &[S]) -> Table {
        let head = head.iter().map(|name| name.as_ref().to_owned()).collect();
        Table { head, ..Table::default() }
    }

    /// Sets the caption above the table.
    pub fn caption(mut self, text: &str) -> Table {
        self.caption = text.to_owned();
        self
    }

    /// Appends a row.
    pub fn row(&mut self, row: impl Into<Row>) {
        self.rows.push(row.into());
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A row of a table, with the rows of its parts, which stay below it however the table is sorted.
#[derive(Clone, Debug, Default)]
pub struct Row {
    weight: Weight,
    cells: Vec<Cell>,
    parts: Vec<Vec<Cell>>,
}

/// How a row of a table is emphasised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Weight {
    /// Not emphasised.
    #[default]
    Plain,
    /// Bold.
    Strong,
    /// Marked as a failure.
    Alarm,
    /// The sum of rows that are not listed, which stays at the end however the table is sorted.
    Rest,
}

impl Row {
    /// Creates a row without emphasis.
    pub fn new(cells: Vec<Cell>) -> Row {
        Row { cells, ..Row::default() }
    }

    /// Sets the emphasis.
    pub fn weight(self, weight: Weight) -> Row {
        Row { weight, ..self }
    }

    /// Sets the rows of its parts, which the reader can unfold.
    pub fn parts(self, parts: Vec<Vec<Cell>>) -> Row {
        Row { parts, ..self }
    }
}

impl From<Vec<Cell>> for Row {
    fn from(cells: Vec<Cell>) -> Row {
        Row::new(cells)
    }
}

/// A cell of a table: text, sort key, and optionally an exact figure for the tooltip and a bar for a share.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    sort: Option<f64>,
    exact: Option<String>,
    share: Option<f64>,
    is_sentence: bool,
}

impl Cell {
    /// Creates a text cell, sorted as text.
    pub fn text(text: &str) -> Cell {
        Cell { text: text.to_owned(), ..Cell::default() }
    }

    /// Creates a cell with a text of several words, wrapped if it is long.
    pub fn sentence(text: &str) -> Cell {
        Cell { is_sentence: true, ..Cell::text(text) }
    }

    /// Creates a text cell that is sorted by `number`.
    pub fn number(text: &str, number: f64) -> Cell {
        Cell { text: text.to_owned(), sort: Some(number), ..Cell::default() }
    }

    /// Creates a cell with bytes in a suitable unit; the tooltip has all digits.
    pub fn bytes(bytes: u64) -> Cell {
        let exact = (bytes >= 1000).then(|| format!("{} bytes", units::count(bytes)));
        Cell { exact, ..Cell::number(&units::bytes(bytes), bytes as f64) }
    }

    /// Creates a cell with a count in groups of three digits.
    pub fn count(count: u64) -> Cell {
        Cell::number(&units::count(count), count as f64)
    }

    /// Creates a cell with a share from 0 to 1 and a bar.
    pub fn share(share: f64) -> Cell {
        Cell { share: Some(share), ..Cell::number(&units::percent(share), share) }
    }

    /// Creates a cell with a duration in seconds.
    pub fn seconds(seconds: f64) -> Cell {
        Cell { exact: Some(format!("{seconds} s")), ..Cell::number(&units::seconds(seconds), seconds) }
    }

    /// Creates an empty cell, sorted after all others.
    pub fn none() -> Cell {
        Cell::default()
    }
}

const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const ECHARTS: &str = include_str!("../assets/echarts.js");

const NO_SCRIPT: &str = "This browser does not run JavaScript: the charts are missing, and tables cannot be \
                         sorted. The tables have all figures.";

#[derive(Default)]
struct Renderer<'a> {
    text: String,
    charts: Vec<&'a Chart>,
    /// Headings of columns that have numbers.
    numeric: Vec<bool>,
}

impl<'a> Renderer<'a> {
    fn page(mut self, page: &'a Page) -> String {
        let has_charts = page
            .sections
            .iter()
            .flat_map(|section| &section.blocks)
            .any(|block| matches!(block, Block::Chart(..)));
        let scripts: &[&str] = if has_charts { &[ECHARTS, SCRIPT] } else { &[SCRIPT] };
        let hashes: Vec<String> = scripts.iter().map(|script| format!("'sha256-{}'", hash(script))).collect();
        let title = escape(&page.title);
        // ECharts positions its tooltips by style attributes, which the policy must allow.
        self.text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {}; \
             style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>\n\
             <button type=\"button\" id=\"theme\" hidden></button>\n<h1>{title}</h1>\n",
            hashes.join(" ")
        );
        for line in &page.subtitle {
            self.text += &format!("<p class=\"subtitle\">{}</p>\n", escape(line));
        }
        self.text += &format!("<noscript><p class=\"alarm\">{NO_SCRIPT}</p></noscript>\n");
        if !page.facts.is_empty() {
            self.text += "<dl class=\"facts\">\n";
            for fact in &page.facts {
                let (name, value, note) = (escape(&fact.name), escape(&fact.value), escape(&fact.note));
                self.text +=
                    &format!("<div><dt>{name}</dt><dd><b>{value}</b> <span>{note}</span></dd></div>\n");
            }
            self.text += "</dl>\n";
        }
        if page.sections.len() > 2 {
            self.text += "<nav aria-label=\"Sections\">";
            for (index, section) in page.sections.iter().enumerate() {
                self.text += &format!("<a href=\"#s{index}\">{}</a> ", escape(&section.heading));
            }
            self.text += "</nav>\n";
        }
        self.text += "</header>\n<main>\n";
        for (index, section) in page.sections.iter().enumerate() {
            self.text += &format!("<section id=\"s{index}\">\n<h2>{}</h2>\n", escape(&section.heading));
            section.blocks.iter().for_each(|block| self.block(block));
            self.text += "</section>\n";
        }
        self.text += &format!(
            "</main>\n<footer><p>Made by Walden {}. This page loads nothing from anywhere.</p></footer>\n\
             <script type=\"application/json\" id=\"charts\">{}</script>\n",
            env!("CARGO_PKG_VERSION"),
            json(&self.charts)
        );
        for script in scripts {
            self.text += &format!("<script>{script}</script>\n");
        }
        self.text += "</body>\n</html>\n";
        self.text
    }

    fn block(&mut self, block: &'a Block) {
        match block {
            Block::Text(text) => self.text += &format!("<p>{}</p>\n", escape(text)),
            Block::Alarm(text) => self.text += &format!("<p class=\"alarm\">{}</p>\n", escape(text)),
            Block::Findings(findings) => {
                self.text += "<ol class=\"findings\">\n";
                for (text, points_at) in findings {
                    let (text, points_at) = (escape(text), escape(points_at));
                    self.text += &format!("<li>{text} <span class=\"pointer\">→ {points_at}</span></li>\n");
                }
                self.text += "</ol>\n";
            }
            Block::List(items) => {
                self.text += "<ul>\n";
                for item in items {
                    self.text += &format!("<li>{}</li>\n", escape(item));
                }
                self.text += "</ul>\n";
            }
            Block::Terms(terms) => {
                self.text += "<dl class=\"terms\">\n";
                for (word, meaning) in terms {
                    self.text += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(word), escape(meaning));
                }
                self.text += "</dl>\n";
            }
            Block::Chart(chart, note) => {
                let (index, title, note) = (self.charts.len(), escape(chart.title()), escape(note));
                self.charts.push(chart);
                self.text += &format!(
                    "<figure data-chart=\"{index}\"><h3>{title}</h3><div class=\"legend\"></div>\
                     <div class=\"chart\" role=\"img\" aria-label=\"{title}. {note}\"></div>\
                     <figcaption>{note}</figcaption></figure>\n"
                );
            }
            Block::Table(table) => self.table(table),
        }
    }

    fn table(&mut self, table: &Table) {
        let cells = || table.rows.iter().map(|row| &row.cells);
        let of = |column: usize| cells().filter_map(move |row| row.get(column));
        self.numeric =
            (0..table.head.len()).map(|column| of(column).any(|cell| cell.sort.is_some())).collect();
        self.text += "<div class=\"scroll\" tabindex=\"0\"><table class=\"sortable\">\n";
        if !table.caption.is_empty() {
            self.text += &format!("<caption>{}</caption>\n", escape(&table.caption));
        }
        self.text += "<thead><tr>";
        for (column, name) in table.head.iter().enumerate() {
            let class = if self.numeric[column] { " class=\"n\"" } else { "" };
            self.text += &format!("<th scope=\"col\"{class}>{}</th>", escape(name));
        }
        self.text += "</tr></thead>\n";
        for row in &table.rows {
            let class = match row.weight {
                Weight::Plain => "",
                Weight::Strong => " class=\"strong\"",
                Weight::Alarm => " class=\"alarm\"",
                Weight::Rest => " class=\"rest\"",
            };
            // One tbody for a row and its parts, so that sorting moves them together.
            self.text += &format!("<tbody{class}>");
            self.row(&row.cells, "");
            for part in &row.parts {
                self.row(part, " class=\"part\"");
            }
            self.text += "</tbody>\n";
        }
        self.text += "</table></div>\n";
    }

    fn row(&mut self, cells: &[Cell], class: &str) {
        self.text += &format!("<tr{class}>");
        for (column, cell) in cells.iter().enumerate() {
            let mut attributes = String::new();
            if self.numeric.get(column) == Some(&true) {
                attributes += " class=\"n\"";
            } else if cell.is_sentence {
                attributes += " class=\"words\"";
            }
            if let Some(number) = cell.sort.filter(|number| number.is_finite()) {
                attributes += &format!(" data-v=\"{number}\"");
            }
            if let Some(exact) = &cell.exact {
                attributes += &format!(" title=\"{}\"", escape(exact));
            }
            let bar = cell.share.filter(|share| share.is_finite()).map_or_else(String::new, |share| {
                format!("<i style=\"width:{:.2}em\"></i>", share.clamp(0.0, 1.0) * 5.0)
            });
            let (open, close) = if column == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
            self.text += &format!("<{open}{attributes}>{bar}{}</{close}>", escape(&cell.text));
        }
        self.text += "</tr>";
    }
}

/// Escapes text for markup and for attributes in quotation marks.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // Control characters are not allowed in HTML.
            '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => escaped.push('\u{fffd}'),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Formats JSON for a script element. `<` is escaped, so that no string in it can end the element.
fn json(charts: &[&Chart]) -> String {
    let text = serde_json::to_string(charts).expect("charts are made of text and numbers");
    text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

fn hash(script: &str) -> String {
    BASE64.encode(Sha256::digest(script.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Bars, Layer, Tone, Unit};

    const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&<!--\u{2028}\0";

    fn hostile() -> Page {
        let chart = Bars {
            title: HOSTILE.into(),
            x: Axis::new(HOSTILE, Unit::Bytes),
            categories: vec![HOSTILE.into()],
            layers: vec![Layer { name: HOSTILE.into(), tone: Tone::Next, values: vec![Some(1.0), None] }],
            stacked: false,
            ..Bars::default()
        };
        let mut table = Table::new(&[HOSTILE, "bytes"]).caption(HOSTILE);
        let cells = || vec![Cell::text(HOSTILE), Cell::bytes(1234)];
        table.row(Row::new(cells()).parts(vec![cells()]).weight(Weight::Strong));
        let mut page = Page::new(HOSTILE);
        page.subtitle(HOSTILE).fact(HOSTILE, HOSTILE, HOSTILE).section(
            Section::new(HOSTILE)
                .text(HOSTILE)
                .alarm(HOSTILE)
                .findings([(HOSTILE.to_owned(), HOSTILE.to_owned())])
                .terms([(HOSTILE, HOSTILE)])
                .list([HOSTILE.to_owned()])
                .chart(chart, HOSTILE)
                .table(table),
        );
        page
    }

    #[test]
    fn names_stay_text() {
        let text = hostile().render();
        for markup in ["alert(1)</script>", "<img", "<!--", "\"\"&", "\0"] {
            assert!(!text.replace(ECHARTS, "").contains(markup), "{markup}");
        }
        // The data, the library, and the page's own script.
        assert_eq!(text.matches("</script>").count(), 3);
        let data =
            text.split("id=\"charts\">").nth(1).and_then(|rest| rest.split("</script>").next()).unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data[0]["title"], HOSTILE);
        assert_eq!(data[0]["kind"], "bars");
        assert_eq!(data[0]["layers"][0]["values"], serde_json::json!([1.0, null]));
    }

    #[test]
    fn a_page_allows_its_own_scripts_and_nothing_else() {
        let text = hostile().render();
        let policy = text.split("content=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        let scripts: Vec<&str> = text.split("<script>").skip(1).collect();
        assert_eq!(scripts.len(), 2);
        for script in scripts {
            let script = script.split("</script>").next().unwrap();
            assert!(policy.contains(&hash(script)), "a script is not in {policy}");
        }
        let plain = Page::new("plain").section(Section::new("text").text("only")).render();
        assert!(plain.len() < ECHARTS.len(), "a page without charts has no library");
    }

    #[test]
    fn the_scripts_fit_into_markup() {
        for script in [ECHARTS, SCRIPT] {
            let lower = script.to_ascii_lowercase();
            assert!(!lower.contains("</script") && !lower.contains("<!--") && !lower.contains("<script"));
            assert!(!script.contains('\r'), "browsers turn line breaks into others, and the hash is wrong");
        }
        assert!(!STYLE.contains("</") && !STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    #[test]
    fn cells_say_it_short_and_keep_it_exact() {
        let mut table = Table::new(&["name", "bytes", "share"]);
        table.row(vec![Cell::text("a"), Cell::bytes(1_234_567), Cell::share(0.5)]);
        let mut page = Page::new("t");
        page.section(Section::new("s").table(table));
        let text = page.render();
        assert!(text.contains("data-v=\"1234567\" title=\"1 234 567 bytes\">1.2 MB<"), "{text}");
        assert!(text.contains("data-v=\"0.5\"><i style=\"width:2.50em\"></i>50.0 %<"), "{text}");
    }
}
