//! The full-screen view of followed WAL.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table, TableState};
use rustix::event::{PollFd, PollFlags, Timespec};
use walden_report::table::harmless;
use walden_report::units::{bytes, count, percent};

use crate::document::{GroupDocument, Grouping, Views, WatchDocument, time_text};
use crate::session::Session;
use crate::table::{image_share, main_cause, state_lines};
use crate::watch::Watch;

/// How often the displayed data is computed.
const REFRESH: Duration = Duration::from_secs(1);
/// Maximum delay of a key.
const KEY_WAIT: Duration = Duration::from_millis(50);
/// Lengths of the displayed windows, in seconds.
const NOW: f64 = 2.0;
const MINUTE: f64 = 60.0;
const MINUTES: f64 = 300.0;
/// Number of rates in the graph of the last minutes.
const MAX_RATES: usize = 600;
/// Maximum number of rows of a list.
const MAX_ROWS: usize = 500;
/// How long a message is displayed.
const MESSAGE: Duration = Duration::from_secs(8);

/// A list that can be shown.
enum List {
    Relations,
    Tables,
    Kinds,
    Databases,
    Causes,
    Groups(Grouping),
}

impl List {
    fn title(&self) -> &'static str {
        match self {
            List::Relations => "Relations",
            List::Tables => "Tables",
            List::Kinds => "Kinds of records",
            List::Databases => "Databases",
            List::Causes => "Causes",
            List::Groups(grouping) => grouping.title(),
        }
    }
}

/// Sort orders of a list.
const ORDERS: [&str; 5] = ["now", "1 min", "5 min", "images", "name"];

/// A row: a group in the three windows.
struct Row {
    text: String,
    /// Bytes per second.
    now: f64,
    minute: f64,
    minutes: f64,
    /// The group in the longest window.
    group: GroupDocument,
}

/// State of the view.
struct Screen {
    lists: Vec<List>,
    list: usize,
    order: usize,
    filter: String,
    /// The user is typing a filter.
    is_typing: bool,
    is_paused: bool,
    is_help: bool,
    /// First displayed line of the help, and its maximum.
    help_line: usize,
    last_help_line: usize,
    /// The row whose details are displayed.
    inside: Option<String>,
    state: TableState,
    rows: Vec<Row>,
    document: Option<WatchDocument>,
    now_rate: f64,
    rates: Vec<u64>,
    message: Option<(Instant, String)>,
}

/// The terminal cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{action}")]
#[non_exhaustive]
pub struct ScreenError {
    /// What failed.
    pub action: &'static str,
    /// The error of the terminal.
    #[source]
    pub error: io::Error,
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> ScreenError {
    move |error| ScreenError { action, error }
}

/// Saves everything that a session has observed to a file. Returns the text of an error.
pub type Save<'a> = &'a dyn Fn(&Session, &Path) -> Result<(), String>;

/// Shows the view until the user leaves it, or the session ends.
///
/// # Errors
/// Errors of the terminal.
pub fn run(session: &mut Session, save: Save<'_>) -> Result<(), ScreenError> {
    let mut terminal = ratatui::try_init().map_err(failed("cannot use the terminal"))?;
    let mut screen = Screen::new(session.groupings());
    let result = show(session, &mut terminal, &mut screen, save);
    ratatui::restore();
    result
}

fn show(
    session: &mut Session,
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    save: Save<'_>,
) -> Result<(), ScreenError> {
    const KEYS: &str = "cannot read keys";
    const DRAW: &str = "cannot draw";
    // Keys are read from standard input if it is a terminal.
    let has_terminal = io::stdin().is_terminal();
    let mut refreshed: Option<Instant> = None;
    loop {
        if refreshed.is_none_or(|refreshed| refreshed.elapsed() >= REFRESH) {
            refreshed = Some(Instant::now());
            screen.update(session.watch());
            terminal.draw(|frame| screen.draw(frame)).map_err(failed(DRAW))?;
        }
        let goes_on = session.follow();
        // Otherwise, the search for keys would never end.
        if has_terminal && is_gone(io::stdin()) {
            return Ok(());
        }
        let mut has_key = false;
        while event::poll(if has_key { Duration::ZERO } else { KEY_WAIT }).map_err(failed(KEYS))? {
            has_key = true;
            match event::read().map_err(failed(KEYS))? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let is_interrupt =
                        key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                    if is_interrupt || screen.key(key.code, session, save) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        if has_key {
            if !screen.is_paused {
                screen.update_rows(session.watch());
            }
            terminal.draw(|frame| screen.draw(frame)).map_err(failed(DRAW))?;
        }
        if !goes_on {
            return Ok(());
        }
    }
}

/// Returns whether the other end of a terminal is closed, for example after a connection was lost. Not all of
/// its processes get SIGHUP then.
fn is_gone(terminal: impl AsFd) -> bool {
    let mut ends = [PollFd::new(&terminal, PollFlags::empty())];
    rustix::event::poll(&mut ends, Some(&Timespec::default()))
        .is_ok_and(|_| ends[0].revents().contains(PollFlags::HUP))
}

impl Screen {
    fn new(groupings: &[Grouping]) -> Screen {
        let mut lists = vec![List::Relations, List::Tables, List::Kinds, List::Databases, List::Causes];
        lists.extend(groupings.iter().cloned().map(List::Groups));
        Screen {
            lists,
            list: 0,
            order: 1,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            is_help: false,
            help_line: 0,
            last_help_line: 0,
            inside: None,
            state: TableState::default().with_selected(0),
            rows: Vec::new(),
            document: None,
            now_rate: 0.0,
            rates: Vec::new(),
            message: None,
        }
    }

    /// Handles a key. Returns whether to leave the view.
    fn key(&mut self, key: KeyCode, session: &Session, save: Save<'_>) -> bool {
        if self.is_typing {
            match key {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(character) => self.filter.push(character),
                _ => {}
            }
            self.state.select(Some(0));
            return false;
        }
        if self.is_help {
            match key {
                KeyCode::Down | KeyCode::Char('j') | KeyCode::PageDown if self.last_help_line > 0 => {
                    self.help_line = (self.help_line + 1).min(self.last_help_line);
                }
                KeyCode::Up | KeyCode::Char('k') | KeyCode::PageUp if self.last_help_line > 0 => {
                    self.help_line = self.help_line.saturating_sub(1);
                }
                _ => (self.is_help, self.help_line) = (false, 0),
            }
            return false;
        }
        match key {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.inside.is_some() => self.leave(),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Backspace | KeyCode::Left => self.leave(),
            KeyCode::Char('?' | 'h') => self.is_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.order = (self.order + 1) % ORDERS.len(),
            KeyCode::Char('/') => (self.is_typing, self.filter) = (true, String::new()),
            KeyCode::Char('w') => self.save(session, save),
            KeyCode::Tab => self.turn_to(self.list + 1),
            KeyCode::BackTab => self.turn_to(self.list + self.lists.len() - 1),
            KeyCode::Char(number @ '1'..='9') => self.turn_to_number(number as usize - '1' as usize),
            KeyCode::Down | KeyCode::Char('j') => self.state.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.state.select_previous(),
            KeyCode::PageDown => self.state.scroll_down_by(10),
            KeyCode::PageUp => self.state.scroll_up_by(10),
            KeyCode::Home => self.state.select_first(),
            KeyCode::End => self.state.select_last(),
            KeyCode::Enter | KeyCode::Right => self.enter(),
            _ => {}
        }
        false
    }

    fn turn_to(&mut self, list: usize) {
        self.list = list % self.lists.len();
        self.leave();
    }

    fn turn_to_number(&mut self, list: usize) {
        if list < self.lists.len() {
            self.turn_to(list);
        }
    }

    fn leave(&mut self) {
        self.inside = None;
        self.state.select(Some(0));
    }

    fn enter(&mut self) {
        let is_owner = matches!(self.lists[self.list], List::Relations | List::Tables);
        if self.inside.is_none() && is_owner {
            let selected = self.state.selected().unwrap_or(0);
            let text = self.visible().nth(selected).map(|row| row.text.clone());
            self.inside = text;
            self.state.select(Some(0));
        }
    }

    fn save(&mut self, session: &Session, save: Save<'_>) {
        let time: String =
            time_text(SystemTime::now()).chars().filter(char::is_ascii_alphanumeric).take(15).collect();
        let path = PathBuf::from(format!("walden-watch-{time}.json"));
        let message = match save(session, &path) {
            Ok(()) => format!("saved {}", path.display()),
            Err(error) => error,
        };
        self.message = Some((Instant::now(), message));
    }

    fn update(&mut self, watch: &Watch) {
        let now = watch.window(NOW);
        let rate = now.per_second(now.sums.total().bytes());
        self.rates.push(rate as u64);
        if self.rates.len() > MAX_RATES {
            self.rates.remove(0);
        }
        if !self.is_paused {
            self.now_rate = rate;
            self.document = Some(WatchDocument::new(watch, &watch.window(MINUTE), &[], 0));
            self.update_rows(watch);
        }
    }

    fn update_rows(&mut self, watch: &Watch) {
        let windows = [NOW, MINUTE, MINUTES].map(|seconds| watch.window(seconds));
        // A copy of all sums, which only this list needs.
        let needs_evidence = self.inside.is_none() && matches!(self.lists[self.list], List::Causes);
        let explanation = needs_evidence.then(|| watch.explanation());
        let lists = windows.each_ref().map(|window| {
            let views = Views::new(watch, window);
            match (&self.inside, &self.lists[self.list]) {
                (Some(text), _) => views.kinds_of(text),
                (None, List::Relations) => views.relations(MAX_ROWS),
                (None, List::Tables) => views.tables(MAX_ROWS),
                (None, List::Kinds) => views.record_kinds(MAX_ROWS),
                (None, List::Databases) => views.databases(MAX_ROWS),
                (None, List::Causes) => explanation
                    .as_ref()
                    .map(|explanation| views.cause_groups(explanation, MAX_ROWS))
                    .unwrap_or_default(),
                (None, List::Groups(grouping)) => views.by(grouping, MAX_ROWS),
            }
        });
        let [now, minute, minutes] = lists;
        let rates = |groups: Vec<GroupDocument>| -> HashMap<String, f64> {
            groups.into_iter().map(|group| (group.label.text, group.sum.bytes_per_second)).collect()
        };
        let (now, minute) = (rates(now), rates(minute));
        let rate = |rates: &HashMap<String, f64>, text: &str| rates.get(text).copied().unwrap_or_default();
        self.rows = minutes
            .into_iter()
            .map(|group| Row {
                now: rate(&now, &group.label.text),
                minute: rate(&minute, &group.label.text),
                minutes: group.sum.bytes_per_second,
                text: group.label.text.clone(),
                group,
            })
            .collect();
        let order = ORDERS[self.order];
        let images = |row: &Row| row.group.sum.image_bytes as f64;
        self.rows.sort_by(|one, other| {
            let by = |number: fn(&Row) -> f64| number(other).total_cmp(&number(one));
            let ordering = match order {
                "now" => by(|row| row.now),
                "1 min" => by(|row| row.minute),
                "5 min" => by(|row| row.minutes),
                "images" => images(other).total_cmp(&images(one)),
                _ => one.text.cmp(&other.text),
            };
            ordering.then_with(|| one.text.cmp(&other.text))
        });
    }

    /// Returns the rows that match the filter.
    fn visible(&self) -> impl Iterator<Item = &Row> {
        let filter = self.filter.to_lowercase();
        self.rows.iter().filter(move |row| row.text.to_lowercase().contains(&filter))
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let state: Vec<Line<'_>> = self
            .document
            .as_ref()
            .map(state_lines)
            .unwrap_or_default()
            .iter()
            .flat_map(|line| {
                let style = alarm_style(line);
                wrapped(&harmless(line), area.width.into(), "  ")
                    .into_iter()
                    .map(move |part| Line::styled(part, style))
            })
            .collect();
        // A small window keeps the first line and the list.
        let state_height = (state.len() as u16).min(area.height.saturating_sub(10) / 2);
        let graph_height = if area.height >= 20 { 3 } else { 0 };
        let [top, graph, lines, list, bottom] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(graph_height),
            Constraint::Length(state_height),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.head(area.width)), top);
        if graph_height > 0 {
            let shown = self.rates.len().saturating_sub(graph.width.into());
            let graph_widget =
                Sparkline::default().data(&self.rates[shown..]).style(Style::new().fg(Color::Cyan));
            frame.render_widget(graph_widget, graph);
        }
        frame.render_widget(Paragraph::new(state), lines);
        self.draw_list(frame, list);
        frame.render_widget(Paragraph::new(self.foot(area.width)), bottom);
        if self.is_help {
            self.draw_help(frame);
        }
    }

    fn draw_help(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let width = 66.min(area.width);
        let lines: Vec<String> = HELP
            .iter()
            .flat_map(|line| wrapped(line, width.saturating_sub(2).into(), "               "))
            .collect();
        let height = (lines.len() as u16 + 2).min(area.height);
        let popup = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
        self.last_help_line = lines.len().saturating_sub(height.saturating_sub(2).into());
        self.help_line = self.help_line.min(self.last_help_line);
        let title = match self.last_help_line {
            0 => " Keys (any key closes) ",
            _ => " Keys (Down: more, q closes) ",
        };
        let text: Vec<Line<'_>> = lines.into_iter().skip(self.help_line).map(Line::raw).collect();
        frame.render_widget(Clear, popup);
        frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title)), popup);
    }

    /// Returns the title lines: the source and the rates, abbreviated in a narrow window.
    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let Some(document) = &self.document else { return vec![Line::raw("walden watch")] };
        let rate = |rate: f64| format!("{}/s", bytes(rate as u64));
        let paused = if self.is_paused { "  paused" } else { "" };
        let paused = || Span::styled(paused, Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD));
        let images = match document.sum.bytes {
            0 => String::new(),
            all => format!(", images {}", percent(document.sum.image_bytes as f64 / all as f64)),
        };
        let server = format!("PostgreSQL {}, timeline {}", document.postgresql, document.timeline);
        let place = |text: String| Line::from(vec![Span::raw(text), paused()]);
        let places = vec![
            Line::from(vec![
                Span::styled("walden watch", bold),
                Span::raw(format!("  {server}, {}", document.lsn)),
                paused(),
            ]),
            place(format!("{server}, {}", document.lsn)),
            place(format!("PostgreSQL {}, {}", document.postgresql, document.lsn)),
            place(document.lsn.clone()),
        ];
        let now = format!("now {}", rate(self.now_rate));
        let minute = format!("  1 min {}", rate(document.bytes_per_second_1m));
        let minutes = format!("  5 min {}", rate(document.bytes_per_second_5m));
        let commits = count((document.committed as f64 / document.window_seconds.max(0.1)) as u64);
        let rates = [
            format!("{minute}{minutes}{images}, {commits} commits/s"),
            format!("{minute}{minutes}{images}"),
            format!("{minute}{minutes}"),
            minute.clone(),
            String::new(),
        ];
        let rates = rates.map(|more| {
            let now = Span::styled(now.clone(), Style::new().fg(Color::Cyan));
            Line::from(vec![Span::styled("WAL ", bold), now, Span::raw(more)])
        });
        vec![fitting(places, width), fitting(rates.into(), width)]
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let names: Vec<Span<'_>> = self
            .lists
            .iter()
            .map(List::title)
            .enumerate()
            .flat_map(|(index, name)| {
                let style = match index == self.list {
                    true => Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
                    false => Style::new().add_modifier(Modifier::DIM),
                };
                [Span::styled(name, style), Span::raw("  ")]
            })
            .collect();
        let title = match &self.inside {
            Some(text) => Line::from(format!(" {} by fork and kind of record (Esc back) ", harmless(text))),
            None => {
                let all = Line::from([vec![Span::raw(" ")], names].concat());
                let (list, count) = (self.lists[self.list].title(), self.lists.len());
                let one = format!(" {list}, {} of {count} (Tab: next) ", self.list + 1);
                fitting(vec![all, Line::from(one), Line::from(format!(" {list} "))], area.width)
            }
        };
        let order = ORDERS[self.order];
        // Causes have long texts, and a cause is either images or not.
        let are_causes = self.inside.is_none() && matches!(self.lists[self.list], List::Causes);
        let is_for_causes = |name: &str| !["5 min", "images", "why"].contains(&name);
        let is_shown =
            |column: &&Column| area.width >= column.min_width && (!are_causes || is_for_causes(column.name));
        let header = COLUMNS.iter().filter(is_shown).map(|column| {
            let name = column.name;
            let style = match name == order {
                true => Style::new().add_modifier(Modifier::UNDERLINED),
                false => Style::new().add_modifier(Modifier::DIM),
            };
            let alignment = if name == "why" || name.is_empty() { Alignment::Left } else { Alignment::Right };
            Cell::new(Line::styled(name, style).alignment(alignment))
        });
        let number = |text: String| Cell::new(Line::raw(text).alignment(Alignment::Right));
        let per_second =
            |rate: f64| number(if rate > 0.0 { format!("{}/s", bytes(rate as u64)) } else { "-".into() });
        let rows: Vec<TableRow<'_>> = self
            .visible()
            .map(|row| {
                let cells = [
                    Cell::new(harmless(&row.text).into_owned()),
                    per_second(row.now),
                    per_second(row.minute),
                    per_second(row.minutes),
                    number(percent(row.group.share)),
                    number(image_share(&row.group)),
                    Cell::new(main_cause(&row.group).to_owned()),
                ];
                let shown = COLUMNS.iter().zip(cells).filter(|(column, _)| is_shown(column));
                TableRow::new(shown.map(|(_, cell)| cell))
            })
            .collect();
        let widths = COLUMNS.iter().filter(is_shown).map(|column| column.width);
        let table = Table::new(rows, widths)
            .header(TableRow::new(header))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::default().title(title).borders(ratatui::widgets::Borders::TOP));
        frame.render_stateful_widget(table, area, &mut self.state);
    }

    fn foot(&self, width: u16) -> Line<'static> {
        if let Some((_, message)) = self.message.as_ref().filter(|(since, _)| since.elapsed() < MESSAGE) {
            return Line::styled(message.clone(), Style::new().fg(Color::Green));
        }
        if let Some(problem) = self.document.as_ref().and_then(|document| document.problem.clone()) {
            return Line::styled(harmless(&problem).into_owned(), Style::new().fg(Color::Red));
        }
        if self.is_typing || !self.filter.is_empty() {
            let cursor = if self.is_typing { "_" } else { "  (Esc: all)" };
            return Line::raw(format!("filter: {}{cursor}", self.filter));
        }
        let note = self.document.as_ref().and_then(|document| document.notes.last());
        let keys = [
            "q quit  ? help  Tab list  s sort  / filter  Enter open  p pause  w save",
            "q quit  ? help  Tab list  s sort  / filter  p pause",
            "q quit  ? help  Tab list",
            "? help",
        ];
        let dim = Style::new().add_modifier(Modifier::DIM);
        let keys = fitting(keys.map(|keys| Line::styled(keys, dim)).into(), width);
        match note {
            Some(note) => Line::raw(format!("{keys}   {}", harmless(&note.text))),
            None => keys,
        }
    }
}

/// A column of a list.
struct Column {
    name: &'static str,
    width: Constraint,
    /// Minimum width of a window that shows the column.
    min_width: u16,
}

static COLUMNS: [Column; 7] = [
    Column { name: "", width: Constraint::Min(16), min_width: 0 },
    Column { name: "now", width: Constraint::Length(11), min_width: 0 },
    Column { name: "1 min", width: Constraint::Length(11), min_width: 50 },
    Column { name: "5 min", width: Constraint::Length(11), min_width: 62 },
    Column { name: "share", width: Constraint::Length(7), min_width: 38 },
    Column { name: "images", width: Constraint::Length(8), min_width: 72 },
    Column { name: "why", width: Constraint::Length(11), min_width: 84 },
];

/// Returns the first line that fits, otherwise the last line.
fn fitting(mut lines: Vec<Line<'_>>, width: u16) -> Line<'_> {
    let fits = lines.iter().position(|line| line.width() <= usize::from(width));
    match fits {
        Some(at) => lines.swap_remove(at),
        None => lines.pop().unwrap_or_default(),
    }
}

/// Breaks a line between words at the window's width. Continuation lines are indented.
fn wrapped(line: &str, width: usize, indent: &str) -> Vec<String> {
    let (mut lines, mut current) = (Vec::new(), String::new());
    for (index, word) in line.split(' ').enumerate() {
        if index > 0 && current.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut current, format!("{indent}{word}")));
            continue;
        }
        if index > 0 {
            current.push(' ');
        }
        current.push_str(word);
    }
    lines.push(current);
    lines
}

/// Returns the style of a line. Slots and archivers with a problem stand out.
fn alarm_style(line: &str) -> Style {
    let is_alarming = line.starts_with("Slot") && (line.contains("inactive") || line.contains("lost"))
        || line.starts_with("Checkpoint") && line.contains("is not running")
        || line.starts_with("Server")
        || line.starts_with("Not counted");
    let waits = line.starts_with("Archiver") && line.contains("wait (");
    match (is_alarming, waits) {
        (true, _) => Style::new().fg(Color::Red),
        (_, true) => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

const HELP: &[&str] = &[
    "Tab, 1-5       relations, tables, kinds of records, databases,",
    "               causes: relation, statement or task, mechanism;",
    "6-9            groups of --by and --group",
    "Up, Down       choose a row",
    "Enter          open a relation or table, Esc back",
    "s              order: now, 1 min, 5 min, images, name",
    "/              filter by a part of the name, Esc: all",
    "p              pause the display; counting continues",
    "w              save all since the start as the JSON of explain",
    "q              quit",
    "",
    "now: the last 2 seconds. share, images and why: of the last",
    "5 minutes; why is the cause of most images: checkpoint (first",
    "change after one), forced, hint, consistency.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_whose_other_end_is_closed_is_gone() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_gone(&one));
        drop(other);
        assert!(is_gone(&one));
    }

    #[test]
    fn columns_that_a_window_has_fit_in_it() {
        for width in 28..200 {
            let shown = COLUMNS.iter().filter(|column| width >= column.min_width);
            let widths: Vec<u16> = shown
                .map(|column| match column.width {
                    Constraint::Min(width) | Constraint::Length(width) => width,
                    other => panic!("{other:?}"),
                })
                .collect();
            let all = widths.iter().sum::<u16>() + widths.len() as u16 - 1;
            assert!(all <= width, "{all} of {width}");
        }
    }

    #[test]
    fn lines_are_broken_between_words() {
        let line = "Checkpoint: 39.0 MB, 14.6 s since the last; next in 36.2 s by max_wal_size";
        let lines = wrapped(line, 40, "  ");
        assert!(lines.len() == 2 && lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join(" ")), words(line));
        assert_eq!(wrapped(line, 200, "  "), [line]);
        let lines = ["wide enough for some", "short"].map(Line::raw).to_vec();
        assert_eq!(fitting(lines.clone(), 20), lines[0]);
        assert_eq!(fitting(lines.clone(), 19), lines[1]);
        assert_eq!(fitting(lines.clone(), 1), lines[1]);
    }
}
