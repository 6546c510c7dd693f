//! Pages with charts, in a real browser: they draw, sort, and log no console messages, with any table names.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use walden_lab::{ClusterBuilder, Wanted, find_or_install};
use walden_report::chart::{
    Axis, Bars, CheckpointTimeline, Curve, CurveLine, Cycle, Layer, Mark, Node, Point,
    PredictedAgainstMeasured, Prediction, Scatter, Series, StackedOverTime, Tone, Treemap, Unit,
};
use walden_report::html::{Cell, Page, Row, Section, Table};
use walden_testing::Outcome;

use crate::browser::Browser;
use crate::material::{golden, say, walden, write};

walden_testing::tests! {
    the_page_of_a_servers_wal_draws_and_sorts_without_console_messages,
    a_forecast_is_a_page_a_picture_and_a_plot,
    charts_are_drawn_whatever_their_figures,
    labels_do_not_cover_each_other,
    a_page_needs_neither_names_nor_times_nor_whole_wal,
    no_output_replaces_another_one,
    rows_keep_their_parts,
}

/// A hostile table name, 63 bytes long, the maximum length.
const HOSTILE: &str = "</script><script>alert()</script><img src=x onerror=alert()>{b}";

fn the_page_of_a_servers_wal_draws_and_sorts_without_console_messages() -> Outcome {
    let mut browser = Browser::start()?;
    let (folder, html) = page_of_a_server();
    let size = fs::metadata(&html).unwrap().len();
    say(&format!("the page has {size} bytes"));
    browser.look(1280, 900, false);
    browser.open(&html);
    assert_drawn(&mut browser);
    assert_names_are_text(&mut browser);
    assert_tables_sort(&mut browser);
    assert_parts_open(&mut browser);
    assert_pointing_shows_figures(&mut browser);
    assert_series_can_be_hidden(&mut browser);
    assert_dark_and_narrow(&mut browser);
    assert_eq!(browser.console_messages(), [""; 0]);
    assert_policy_holds(&mut browser);
    drop(folder);
    Ok(())
}

/// Expects that everything is drawn: time, checkpoints, causes, relations, kinds of records.
fn assert_drawn(browser: &mut Browser) {
    let figures = browser.evaluate("document.querySelectorAll('figure[data-chart]').length");
    assert_eq!(figures, 5);
    assert_eq!(browser.evaluate("document.body.dataset.rendered"), "5");
    for figure in 0..5 {
        let drawn = browser.evaluate(&format!(
            "(() => {{ const svg = document.querySelectorAll('figure svg')[{figure}];
               const {{width, height}} = svg.getBoundingClientRect();
               return width > 500 && height > 50 && svg.querySelectorAll('path').length > 5; }})()"
        ));
        assert_eq!(drawn, true, "figure {figure}");
    }
}

/// Expects that no name is interpreted as part of the page.
fn assert_names_are_text(browser: &mut Browser) {
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert_eq!(browser.evaluate("document.scripts.length"), 3);
    let named = "[...document.querySelectorAll('tbody th')].some((cell) => cell.textContent.includes(NAME))"
        .replace("NAME", &serde_json::to_string(HOSTILE).unwrap());
    assert_eq!(browser.evaluate(&named), true);
}

/// Expects that a click sorts, a second one reverses the order, and the parts of a table stay with it.
fn assert_tables_sort(browser: &mut Browser) {
    let heading = |name: &str| {
        format!(
            "[...document.querySelector('#relations table, section:has(tr.part) table').tHead.rows[0].cells]
             .find((cell) => cell.textContent === '{name}')"
        )
    };
    let order = "[...document.querySelector('section:has(tr.part) table').tBodies]
                 .map((body) => Number(body.rows[0].cells[5].dataset.v))";
    let before = numbers(browser.evaluate(order));
    assert!(before.len() > 5, "{before:?}");
    let parts = "[...document.querySelectorAll('tr.part')].map((row) =>
                 row.parentElement.rows[0].cells[0].textContent + row.textContent).sort()";
    let parts_before = browser.evaluate(parts);
    let mut sorted = before.clone();
    sorted.sort_by(|one, other| other.total_cmp(one));
    assert_ne!(before, sorted, "sorted by records already");
    browser.click(&format!("{}.querySelector('button')", heading("records")));
    assert_eq!(browser.evaluate(&format!("{}.getAttribute('aria-sort')", heading("records"))), "descending");
    assert_eq!(numbers(browser.evaluate(order)), sorted);
    browser.click(&format!("{}.querySelector('button')", heading("records")));
    assert_eq!(browser.evaluate(&format!("{}.getAttribute('aria-sort')", heading("records"))), "ascending");
    sorted.reverse();
    assert_eq!(numbers(browser.evaluate(order)), sorted);
    assert_eq!(browser.evaluate(parts), parts_before);
    browser.click(&format!("{}.querySelector('button')", heading("relation")));
    assert_eq!(browser.evaluate("document.querySelectorAll('[aria-sort]').length"), 1);
}

/// Expects that the parts of a table are shown on request.
fn assert_parts_open(browser: &mut Browser) {
    let visible = "[...document.querySelectorAll('tr.part')].filter((row) => row.offsetHeight > 0).length";
    assert_eq!(browser.evaluate(visible), 0);
    browser.click("document.querySelector('button.more')");
    assert!(browser.evaluate(visible).as_u64() >= Some(1));
    assert_eq!(browser.evaluate("document.querySelector('button.more').ariaExpanded"), "true");
}

/// Expects that pointing at a chart shows exact figures as text.
fn assert_pointing_shows_figures(browser: &mut Browser) {
    for (figure, said) in
        [(0, "bytes)"), (1, "its checkpoint came for"), (2, "records"), (3, "of all"), (4, "record data")]
    {
        let place = browser.place(&format!("document.querySelectorAll('figure .chart')[{figure}]"));
        for step in 0..6 {
            browser.point(place.x + place.width * 0.4 + f64::from(step), place.y + place.height * 0.4);
        }
        browser.wait_for(&format!(
            "(document.querySelectorAll('figure .chart')[{figure}].querySelector('.tip')?.textContent ?? '').includes('{said}')"
        ));
    }
}

/// Expects that a series can be hidden, so that nothing with its colour remains.
fn assert_series_can_be_hidden(browser: &mut Browser) {
    let of_its_colour = "(() => { const entry = document.querySelector('figure .legend button i');
         const colour = getComputedStyle(entry).backgroundColor;
         return [...document.querySelectorAll('figure svg')[0].querySelectorAll('path')]
                .filter((path) => getComputedStyle(path).fill === colour).length; })()";
    assert!(browser.evaluate(of_its_colour).as_u64() > Some(0));
    browser.click("document.querySelector('figure .legend button')");
    assert_eq!(browser.evaluate(of_its_colour), 0);
    assert_eq!(browser.evaluate("document.querySelector('figure .legend button').ariaPressed"), "false");
}

/// Expects a dark page if the reader prefers it or by the button, and a narrow one on a phone.
fn assert_dark_and_narrow(browser: &mut Browser) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(ground);
    browser.look(1280, 900, true);
    browser.wait_for(&format!("{ground} !== {light}"));
    browser.click("document.getElementById('theme')");
    assert_eq!(browser.evaluate(ground), light);
    browser.look(390, 844, false);
    browser.wait_for("document.querySelector('figure svg').getBoundingClientRect().width < 390");
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), 390);
    // The shares are visible without scrolling a table horizontally.
    let hidden = "[...document.querySelectorAll('thead th')].filter((head) => head.textContent.trim() === 'share' \
                  && head.getBoundingClientRect().right > 390).length";
    assert_eq!(browser.evaluate(hidden), 0);
}

/// Expects that the content security policy holds: nothing can be fetched, no script can be added. (The
/// console would report it.)
fn assert_policy_holds(browser: &mut Browser) {
    let fetched = "fetch('data:text/plain,x').then(() => 'fetched', () => 'refused')";
    assert_eq!(browser.evaluate(fetched), "refused");
    browser.evaluate(
        "(() => { const added = document.createElement('script'); added.textContent = 'window.ran = 1';
          document.body.append(added); })()",
    );
    assert_eq!(browser.evaluate("window.ran === undefined"), true);
    assert!(!browser.console_messages().is_empty(), "the console reports the error");
}

/// Creates the page of a server's WAL, with tables of all kinds of names.
fn page_of_a_server() -> (TempDir, PathBuf) {
    let cluster = ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
        .wal_segsize_mb(1)
        .setting("wal_log_hints", "on")
        .setting("wal_keep_size", "1GB")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute(&format!("CREATE TABLE \"{HOSTILE}\" (id bigint PRIMARY KEY, tusk text);")).unwrap();
    for round in 0..4 {
        let text = format!(
            "INSERT INTO \"{HOSTILE}\" SELECT {round} * 4000 + n, repeat(md5(n::text), 3) FROM generate_series(1, 4000) n;
             CREATE TABLE walrus_{round} AS SELECT n, md5(n::text) FROM generate_series(1, 500) n;
             CREATE INDEX walrus_{round}_n ON walrus_{round} (n);"
        );
        client.batch_execute(&text).unwrap();
        let text = format!("UPDATE \"{HOSTILE}\" SET tusk = tusk || 'x' WHERE id % 7 = {round}");
        client.batch_execute(&text).unwrap();
        client.batch_execute("CHECKPOINT").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("page.html");
    let pg_wal = cluster.data_dir().join("pg_wal");
    let (file, dsn) = (html.to_str().unwrap(), cluster.dsn("postgres"));
    let run = walden(&["explain", "--names", &dsn, "--html", file, pg_wal.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("Where the bytes are"), "the usual tables are printed as well");
    (folder, html)
}

/// Opens a page in a browser, if one is installed. Expects this number of charts, in light and dark mode,
/// that the page fits a phone, and an empty console.
pub fn assert_draws(page: &Path, charts: u64) -> Outcome {
    let mut browser = Browser::start()?;
    browser.look(1280, 900, false);
    browser.open(page);
    assert_eq!(browser.evaluate("document.querySelectorAll('figure[data-chart]').length"), charts);
    assert_eq!(browser.evaluate("document.body.dataset.rendered"), charts.to_string());
    let empty = "[...document.querySelectorAll('figure .chart')]
                 .filter((place) => (place.querySelectorAll('svg path').length ?? 0) < 3).length";
    assert_eq!(browser.evaluate(empty), 0);
    browser.look(390, 844, true);
    browser.wait_for(
        "[...document.querySelectorAll('figure svg')].every((svg) => svg.getBoundingClientRect().width <= 390)",
    );
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), 390);
    assert_eq!(browser.console_messages(), [""; 0]);
    Ok(())
}

fn a_forecast_is_a_page_a_picture_and_a_plot() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    for (name, bytes) in golden("17.11") {
        write(folder.path(), &format!("wal/{name}"), &bytes);
    }
    let (html, svg) = (folder.path().join("page.html"), folder.path().join("curve.svg"));
    let files = ["--html", html.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let sizes = ["whatif", "--sweep", "max_wal_size=2MB,8MB,64MB", wal.to_str().unwrap()];
    let run = walden(&[&sizes[..], &files].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    for word in
        ["WAL and time of recovery against max_wal_size", "● WAL", "◆ recovery takes at most (right)", "8MB"]
    {
        assert!(run.stdout.contains(word), "{word} is not in {}", run.stdout);
    }
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.contains("max_wal_size") && picture.contains("\n8MB\n"),
        "{picture}"
    );
    let text = fs::read_to_string(&html).unwrap();
    for heading in [
        "Predicted",
        "Where the bytes are",
        "Checkpoints",
        "How sure it is",
        "Settings learned from the trace",
    ] {
        assert!(text.contains(&format!("<h2>{heading}</h2>")), "{heading}");
    }
    let charts = text.matches("<figure ").count() as u64;
    assert!(charts >= 4, "{charts}");
    let drawn = assert_draws(&html, charts);

    // Pointing at a prediction shows its error bar, and a click sorts by size, not alphabetically.
    if drawn.is_ok() {
        let mut browser = Browser::start()?;
        browser.look(1280, 900, false);
        browser.open(&html);
        let sizes =
            "[...document.querySelector('table').tBodies].map((body) => body.rows[0].cells[0].textContent)";
        browser.click("document.querySelector('table').tHead.rows[0].cells[0].querySelector('button')");
        let sorted = browser.evaluate(sizes);
        let sorted: Vec<&str> = sorted.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let predicted: Vec<&str> = sorted.into_iter().filter(|size| !size.contains("the trace")).collect();
        assert_eq!(predicted, ["64MB", "8MB", "2MB"]);
        // The bar of the first prediction, below that of the trace.
        let place = browser.place("document.querySelectorAll('figure .chart')[1]");
        for step in 0..20 {
            browser.point(place.x + place.width * 0.3, place.y + 40.0 + f64::from(step) * 3.0);
        }
        browser.wait_for(
            "document.querySelectorAll('figure .chart')[1].querySelector('.tip')?.textContent.includes('may be off by') ?? false",
        );
        assert_eq!(browser.console_messages(), [""; 0]);
    }

    // With several lines, volume and time each get a chart and an SVG file.
    let crossed = ["--force", "--sweep", "wal_compression=off,pglz"];
    let run = walden(&[&sizes[..], &files, &crossed].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("WAL against max_wal_size, by wal_compression"), "{}", run.stdout);
    assert!(folder.path().join("curve-2.svg").exists());
    let text = fs::read_to_string(&html).unwrap();
    assert_eq!(text.matches("<figure ").count() as u64, charts + 1);

    // A single prediction has no curve, only its bytes before and after.
    let traced = ["whatif", "--traced", "full_page_writes=on"];
    let set = [&traced[..], &["--set", "full_page_writes=off", "--force", "--html", files[1]]].concat();
    let run = walden(&[&set[..], &[wal.to_str().unwrap()]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let text = fs::read_to_string(&html).unwrap();
    assert!(text.contains("What if: full_page_writes=off") && text.contains("share then"));
    let run =
        walden(&["whatif", "--svg", files[3], "--sweep", "wal_compression=off,pglz", wal.to_str().unwrap()]);
    assert!(run.code == 2 && run.stderr.contains("whose values are numbers"), "{run:?}");
    drawn
}

fn numbers(value: Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
}

fn charts_are_drawn_whatever_their_figures() -> Outcome {
    let mut browser = Browser::start()?;
    let folder = tempfile::tempdir().unwrap();
    for (name, page) in [("usual", usual()), ("odd", odd())] {
        let path = write(folder.path(), &format!("{name}.html"), page.render().as_bytes());
        browser.look(1280, 900, false);
        browser.open(&path);
        let count = browser.evaluate("document.querySelectorAll('figure[data-chart]').length");
        assert!(count.as_u64() >= Some(7), "{count}");
        assert_eq!(browser.evaluate("document.body.dataset.rendered"), count.to_string(), "{name}");
        let empty = "[...document.querySelectorAll('figure .chart')].filter((place) => !place.querySelector('svg')).length";
        assert_eq!(browser.evaluate(empty), 0, "{name}");
        for (width, dark) in [(390, true), (1280, false)] {
            browser.look(width, 900, dark);
            browser.wait_for(&format!(
                "[...document.querySelectorAll('figure svg')].every((svg) => svg.getBoundingClientRect().width <= {width})"
            ));
            assert_eq!(
                browser.evaluate("document.documentElement.scrollWidth <= innerWidth"),
                true,
                "{name}"
            );
        }
        assert_eq!(browser.console_messages(), [""; 0], "{name}");
        assert_eq!(browser.evaluate("document.images.length"), 0);
    }
    // The tooltip of a prediction shows its error.
    browser.open(&folder.path().join("usual.html"));
    browser.evaluate("document.querySelector('figure[data-chart=\"1\"]').scrollIntoView()");
    let dot = browser.place("[...document.querySelectorAll('figure[data-chart=\"1\"] svg > g path')].at(-1)");
    browser.point(dot.x + dot.width / 2.0, dot.y + dot.height / 2.0);
    browser.wait_for(
        "document.querySelector('figure[data-chart=\"1\"] .tip')?.textContent.includes('+20 %') ?? false",
    );
    Ok(())
}

fn labels_do_not_cover_each_other() -> Outcome {
    let mut browser = Browser::start()?;
    let folder = tempfile::tempdir().unwrap();
    let mut page = Page::new("Labels");
    let chart = Scatter {
        title: "Size against time".into(),
        x: Axis::new("time", Unit::Seconds).log(),
        y: Axis::new("size", Unit::Plain).log(),
        series: vec![
            series("point", true, &[(1.0, 1.0), (1.01, 1.0), (50.0, 0.1)]),
            series("point", false, &[(1.02, 1.0)]),
        ],
        front: false,
    };
    page.section(Section::new("Three at one place").chart(chart, ""));
    let path = write(folder.path(), "labels.html", page.render().as_bytes());
    browser.look(1280, 900, false);
    browser.open(&path);
    browser.wait_for("document.body.dataset.rendered === '1'");
    let labels = "[...document.querySelectorAll('figure svg text')].map((text) => text.textContent).filter((text) => text.startsWith('point '))";
    assert_eq!(browser.evaluate(&format!("{labels}.length")), 2);
    assert_eq!(browser.evaluate(&format!("{labels}.includes('point 50')")), true);
    assert_eq!(browser.console_messages(), [""; 0]);
    Ok(())
}

/// Creates a page with one regular chart of each kind.
fn usual() -> Page {
    let table = |name: &str| Node {
        name: name.into(),
        value: 30e6,
        parts: vec![
            Node { name: "heap".into(), value: 20e6, tone: Tone::Heap, ..Node::default() },
            Node { name: HOSTILE.into(), value: 10e6, tone: Tone::Index, ..Node::default() },
        ],
        ..Node::default()
    };
    let mut page = Page::new("Charts");
    let layer = |name: &str, tone, values: &[f64]| Layer {
        name: name.into(),
        tone,
        values: values.iter().copied().map(Some).collect(),
    };
    let line = CurveLine {
        name: "WAL".into(),
        predicted: vec![(1e9, 9e9), (4e9, 5e9), (64e9, 3e9)],
        errors: vec![5e8, 1e9, 2e8],
        measured: vec![(1e9, 8.8e9), (4e9, 5.2e9)],
        ..CurveLine::default()
    };
    let recovery = CurveLine {
        name: "recovery".into(),
        right: true,
        predicted: vec![(1e9, 3.0), (64e9, 150.0)],
        measured: vec![(1e9, 3.5)],
        ..CurveLine::default()
    };
    page.section(
        Section::new("All kinds")
            .chart(
                Curve {
                    title: "WAL and recovery against max_wal_size".into(),
                    x: Axis::new("max_wal_size", Unit::SettingBytes).log(),
                    left: Axis::new("WAL in a day", Unit::Bytes),
                    right: Some(Axis::new("recovery", Unit::Seconds).log()),
                    lines: vec![line, recovery],
                    marks: vec![Mark { at: 2e9, name: "now".into() }],
                },
                "Lines are predicted, points measured.",
            )
            .chart(
                PredictedAgainstMeasured {
                    title: "WAL, predicted and measured".into(),
                    axis: Axis::new("WAL", Unit::Bytes).log(),
                    tolerance: Some(0.1),
                    points: [(1e8, 1e8), (5.1e8, 5e8), (6e9, 5e9)]
                        .map(|(predicted, measured)| Prediction {
                            name: HOSTILE.into(),
                            series: "oltp".into(),
                            predicted,
                            measured,
                        })
                        .into(),
                },
                "On the line it is right.",
            )
            .chart(
                StackedOverTime {
                    title: "Over time".into(),
                    y: Axis::new("WAL", Unit::Bytes),
                    starts: (0..20).map(|n| 1_763_700_000_000 + n * 60_000).collect(),
                    width: 60_000,
                    layers: vec![
                        layer("data", Tone::Data, &[3e6; 20]),
                        layer("images", Tone::ImageCheckpoint, &[5e6; 20]),
                    ],
                    marks: vec![Mark { at: 1_763_700_300_000.0, name: "checkpoint: time".into() }],
                },
                "",
            )
            .chart(
                CheckpointTimeline {
                    title: "Cycles".into(),
                    cycles: ["time", "volume"]
                        .map(|cause| Cycle {
                            label: HOSTILE.into(),
                            cause: Some(cause.into()),
                            bytes: 40_000_000,
                            image_bytes: 15_000_000,
                            shares: (0..10).map(|n| Some(0.9 / f64::from(n + 1))).collect(),
                        })
                        .into(),
                },
                "",
            )
            .chart(
                Treemap {
                    title: "Relations".into(),
                    unit: Unit::Bytes,
                    nodes: vec![table("accounts"), table(HOSTILE)],
                    legend: vec![(Tone::Heap, "table".into())],
                },
                "",
            )
            .chart(
                Bars {
                    title: "Speed".into(),
                    x: Axis::new("WAL per second", Unit::BytesPerSecond),
                    categories: vec!["one".into(), HOSTILE.into()],
                    layers: vec![
                        layer("then", Tone::Muted, &[1e9, 2e9]),
                        layer("now", Tone::Next, &[3e9, 4e9]),
                    ],
                    stacked: false,
                    ..Bars::default()
                },
                "",
            )
            .chart(
                Scatter {
                    title: "Size against time".into(),
                    x: Axis::new("time", Unit::Seconds).log(),
                    y: Axis::new("size", Unit::Plain).log(),
                    series: vec![
                        series("xz", false, &[(0.5, 1.0), (2.0, 0.8), (6.0, 0.7)]),
                        series(HOSTILE, true, &[(0.2, 0.5), (3.0, 0.4)]),
                    ],
                    front: true,
                },
                "",
            ),
    );
    page
}

fn series(name: &str, emphasised: bool, points: &[(f64, f64)]) -> Series {
    let point = |&(x, y): &(f64, f64)| Point { label: format!("{name} {x}"), x, y };
    Series { name: name.into(), emphasised, points: points.iter().map(point).collect() }
}

/// Creates a page of edge cases: no data, no finite value, a single value, and values too far apart for any
/// scale.
fn odd() -> Page {
    let mut page = Page::new(HOSTILE);
    let layer =
        |values: &[Option<f64>]| Layer { name: HOSTILE.into(), tone: Tone::Next, values: values.into() };
    let figures: [&[f64]; 4] = [&[], &[f64::NAN, f64::INFINITY, 0.0, -1.0], &[7.0], &[1e-300, 1e300, 5.0]];
    for figures in figures {
        let values: Vec<Option<f64>> = figures.iter().copied().map(Some).chain([None]).collect();
        let pairs: Vec<(f64, f64)> = figures.iter().map(|figure| (*figure, *figure)).collect();
        let names: Vec<String> = values.iter().map(|_| HOSTILE.to_owned()).collect();
        let mut section = Section::new(HOSTILE);
        for log in [false, true] {
            let axis = || Axis { log, ..Axis::new(HOSTILE, Unit::Seconds) };
            section = section
                .chart(
                    Curve {
                        title: HOSTILE.into(),
                        x: axis(),
                        left: axis(),
                        right: Some(axis()),
                        lines: vec![CurveLine {
                            name: HOSTILE.into(),
                            right: log,
                            predicted: pairs.clone(),
                            errors: figures.to_vec(),
                            measured: pairs.clone(),
                            ..CurveLine::default()
                        }],
                        marks: Vec::new(),
                    },
                    HOSTILE,
                )
                .chart(
                    PredictedAgainstMeasured {
                        title: HOSTILE.into(),
                        axis: axis(),
                        tolerance: None,
                        points: pairs
                            .iter()
                            .map(|&(predicted, measured)| Prediction {
                                name: HOSTILE.into(),
                                series: HOSTILE.into(),
                                predicted,
                                measured,
                            })
                            .collect(),
                    },
                    HOSTILE,
                )
                .chart(
                    Scatter {
                        title: HOSTILE.into(),
                        x: axis(),
                        y: axis(),
                        series: vec![series(HOSTILE, log, &pairs)],
                        front: true,
                    },
                    HOSTILE,
                )
                .chart(
                    Bars {
                        title: HOSTILE.into(),
                        x: axis(),
                        categories: names.clone(),
                        layers: vec![layer(&values)],
                        stacked: !log,
                        errors: values.clone(),
                    },
                    HOSTILE,
                );
        }
        let node = |value: f64| Node { name: HOSTILE.into(), value, ..Node::default() };
        section = section
            .chart(
                StackedOverTime {
                    title: HOSTILE.into(),
                    y: Axis::new(HOSTILE, Unit::Share),
                    starts: (0..values.len() as i64).map(|index| index * 1000).collect(),
                    width: 1000,
                    layers: vec![layer(&values)],
                    marks: vec![Mark { at: 0.0, name: HOSTILE.into() }],
                },
                HOSTILE,
            )
            .chart(
                StackedOverTime {
                    title: HOSTILE.into(),
                    y: Axis::new(HOSTILE, Unit::Count),
                    starts: Vec::new(),
                    width: 0,
                    layers: Vec::new(),
                    marks: Vec::new(),
                },
                HOSTILE,
            )
            .chart(
                CheckpointTimeline {
                    title: HOSTILE.into(),
                    cycles: vec![Cycle {
                        label: HOSTILE.into(),
                        cause: Some(HOSTILE.into()),
                        bytes: figures.len() as u64,
                        image_bytes: 0,
                        shares: values.clone(),
                    }],
                },
                HOSTILE,
            )
            .chart(
                Treemap {
                    title: HOSTILE.into(),
                    unit: Unit::Plain,
                    nodes: figures.iter().copied().map(node).collect(),
                    legend: vec![(Tone::Next, HOSTILE.into())],
                },
                HOSTILE,
            );
        page.section(section);
    }
    page
}

fn a_page_needs_neither_names_nor_times_nor_whole_wal() {
    let folder = tempfile::tempdir().unwrap();
    let (name, mut segment) = golden("17.11").pop_first().unwrap();
    let page = |path: &Path, more: &[&str]| {
        let html = folder.path().join("page.html");
        let mut arguments =
            vec!["explain", "--force", "--html", html.to_str().unwrap(), path.to_str().unwrap()];
        arguments.extend(more);
        (walden(&arguments), fs::read_to_string(html).unwrap_or_default())
    };
    let whole = write(folder.path(), &format!("whole/{name}"), &segment);
    let (run, text) = page(&whole, &[]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(text.contains("Full-page images") && text.contains("\"kind\":\"treemap\""));
    // The page's additional views do not change the printed result.
    let (run, text) = page(&whole, &["--format", "json", "--by", "record,checkpoint"]);
    let document = run.json();
    assert_eq!(document["views"].as_array().unwrap().len(), 1);
    assert!(text.contains("<h2>By record, checkpoint</h2>"));
    let alone =
        walden(&["explain", "--format", "json", "--by", "record,checkpoint", whole.to_str().unwrap()]);
    assert_eq!(document, alone.json());

    segment.truncate(300_000);
    segment[250_000..].fill(0xAA);
    let damaged = write(folder.path(), &format!("damaged/{name}"), &segment);
    let (run, text) = page(&damaged, &[]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(text.contains("The WAL could not be read any further"), "{}", run.stderr);

    let run = walden(&["explain", "--html", "/nowhere/page.html", whole.to_str().unwrap()]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stderr.contains("write /nowhere/page.html") && run.stdout.is_empty(), "{run:?}");

    // A segment named with the wrong option stays unchanged.
    let before = fs::read(&damaged).unwrap();
    for options in [
        vec!["explain", "--html"],
        vec!["explain", "--names", "names.json", "--save-names"],
        vec!["whatif", "--html"],
        vec!["whatif", "--sweep", "max_wal_size=1GB,2GB", "--svg"],
        vec!["bench", "decode", "--html"],
        vec!["bench", "redo", "--html"],
        vec!["bench", "codecs", "--html"],
        vec!["bench", "codecs", "--svg"],
        vec!["lab", "run", "segment-size", "--out"],
        vec!["lab", "run", "segment-size", "--html"],
    ] {
        let source = options[0] != "lab" && options[0] != "bench";
        let paths = [damaged.to_str().unwrap(), whole.to_str().unwrap()];
        let arguments: Vec<&str> =
            options.iter().copied().chain(paths.into_iter().take(1 + usize::from(source))).collect();
        let run = walden(&arguments);
        assert!(run.code == 2 && run.stderr.contains("exists already"), "{options:?}: {run:?}");
        assert_eq!(fs::read(&damaged).unwrap(), before);
    }
}

/// The error appears before any work: the input does not even exist.
fn no_output_replaces_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let outputs = ["new", "./new", "new-2"].map(path);
    let [new, again, second] = [&outputs[0], &outputs[1], &outputs[2]].map(String::as_str);
    let swept = ["whatif", "nothing", "--sweep", "max_wal_size=1GB,2GB", "--sweep", "wal_compression=off,on"];
    for (command, options, files) in [
        (&["explain", "--names", "nothing", "nothing"][..], ["--save-names", "--html"], [new, again]),
        (&swept[..4], ["--html", "--svg"], [again, new]),
        (&swept[..], ["--html", "--svg"], [second, new]),
        (&["bench", "codecs"][..], ["--html", "--svg"], [new, new]),
        (&["lab", "run", "segment-size"][..], ["--out", "--html"], [new, new]),
    ] {
        let named = [options[0], files[0], options[1], files[1]];
        let run = walden(&[command, &named].concat());
        assert!(run.code == 2 && run.stderr.contains("name the same file"), "{named:?}: {run:?}");
        assert!(run.stdout.is_empty() && options.iter().all(|one| run.stderr.contains(*one)), "{run:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{named:?}");
    }
}

/// Other code builds pages with the row type, so its parts must stay.
fn rows_keep_their_parts() {
    let mut table = Table::new(&["name", "bytes"]);
    table.row(
        Row::new(vec![Cell::text("a"), Cell::bytes(1)]).parts(vec![vec![Cell::text("b"), Cell::none()]]),
    );
    let mut page = Page::new("rows");
    page.section(Section::new("rows").table(table));
    let text = page.render();
    let (row, part) = (text.find(">a<").unwrap(), text.find("<tr class=\"part\"").unwrap());
    assert!(row < part && !text[row..part].contains("</tbody>"));
}
