//! The cost of archives: storage classes, prices, and removals before the minimum storage duration.

use std::fs;

use serde_json::Value;
use walden_format::lsn::{Lsn, SegmentName};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_testing::Outcome;
use walden_testing::writer::LogWriter;

use crate::archive::text;
use crate::archive_lock::send;
use crate::archive_s3::{BUCKET, Client, Server};
use crate::material::{Run, golden_dir, make_archive, walden};

walden_testing::tests! {
    segments_and_packs_have_the_configured_class,
    early_removals_are_stated,
    a_class_that_cannot_be_read_is_refused,
    a_folder_has_no_list_prices,
    a_month_of_the_trace_has_a_price,
}

fn parsed(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// Returns the storage class of an object; `None` if it is the default one.
fn class_of(server: &Server, key: &str) -> Option<String> {
    let answer = send(server, "HEAD", &format!("{BUCKET}/main/{key}"), "", "").to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{key}: {answer}");
    let class = answer.split("x-amz-storage-class: ").nth(1)?;
    Some(class.lines().next()?.trim().to_owned()).filter(|class| class != "standard")
}

fn start() -> Result<Server, walden_testing::Missing> {
    Server::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "1000000")])
}

fn segments_and_packs_have_the_configured_class() -> Outcome {
    let server = start()?;
    let client = Client::with(server.port, BUCKET, "storage_class = \"STANDARD_IA\"").create();
    let names = client.names();
    for name in &names {
        assert_eq!(client.push(name).code, 0);
    }
    let segment = format!("wal/00000001/00000000/{}.wlz", names[0]);
    assert_eq!(class_of(&server, &segment).as_deref(), Some("standard_ia"));
    assert_eq!(class_of(&server, "archive.json"), None);
    let packed = client.command(&["pack", "--segments", "2", "--keep", "0", "--format", "json"]);
    let packed = parsed(&packed);
    let pack = packed["packs"][0]["object"].as_str().unwrap();
    assert_eq!(class_of(&server, pack).as_deref(), Some("standard_ia"));
    Ok(())
}

fn early_removals_are_stated() -> Outcome {
    let server = start()?;
    let client = Client::with(server.port, BUCKET, "storage_class = \"GLACIER_IR\"").create();
    for name in client.names() {
        assert_eq!(client.push(&name).code, 0);
    }
    let listing = parsed(&client.command(&["list", "--cost", "--format", "json"]));
    let cost = &listing["cost"];
    let (objects, bytes) = (cost["objects"].as_f64().unwrap(), cost["stored_bytes"].as_f64().unwrap());
    assert_eq!((cost["storage_class"].as_str(), objects), (Some("GLACIER_IR"), 2.0), "{cost:#}");
    // Small objects are billed as 128 kB.
    assert_eq!(cost["billed_bytes"], 2 * (128 << 10), "{cost:#}");
    assert!(cost["prices_from"].as_str().unwrap().contains("list prices as known in 2025"), "{cost:#}");
    let early = &cost["early"];
    assert_eq!((&early["objects"], &early["min_days"]), (&Value::from(2), &Value::from(90)), "{cost:#}");
    let byte_days = early["byte_days"].as_f64().unwrap();
    assert!((byte_days / bytes - 90.0).abs() < 0.1, "{cost:#}");
    assert!(cost["early_price"].as_f64().unwrap() > 0.0, "{cost:#}");
    let shown = client.command(&["list", "--cost"]);
    for part in [
        "in class GLACIER_IR, billed as",
        "younger than the 90 days",
        "restoring all WAL: 1 list request, 2 reads",
    ] {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    // The user's prices.
    let with = client.command(&["list", "--cost", "--price", "storage=1000,put=0", "--format", "json"]);
    let cost = &parsed(&with)["cost"];
    let month = cost["storage_month"].as_f64().unwrap();
    assert!(
        (month - f64::from(2 << 17) / 1_073_741_824.0 * 1000.0).abs() < 1e-9 && cost["prices"]["put"] == 0.0,
        "{cost:#}"
    );
    // The plan and the result state the cost.
    let planned = client.command(&["pack", "--segments", "2", "--keep", "0", "--dry-run"]);
    assert!(
        planned.stdout.contains("NOTE: 2 objects of") && planned.stdout.contains("would cost"),
        "{planned:?}"
    );
    let packed = parsed(&client.command(&["pack", "--segments", "2", "--keep", "0", "--format", "json"]));
    assert_eq!(packed["early"]["objects"], 2, "{packed:#}");
    let again = parsed(&client.command(&["pack", "--segments", "2", "--keep", "0", "--format", "json"]));
    assert!(again["early"].is_null(), "{again:#}");
    let prune = |more: &[&str]| {
        client.command(&[&["prune", "--older-than", "0000000100000000000000FF"], more].concat())
    };
    let planned = prune(&[]);
    assert!(
        planned.stdout.contains("NOTE: 1 object of") && planned.stdout.contains("would cost"),
        "{planned:?}"
    );
    let pruned = parsed(&prune(&["--apply", "--format", "json"]));
    assert_eq!((&pruned["early"]["objects"], &pruned["removed_objects"]), (&Value::from(1), &Value::from(1)));
    // The default class has no minimum.
    client.configure(server.port, BUCKET, "");
    for name in client.names() {
        assert_eq!(client.push(&name).code, 0);
    }
    let pruned = parsed(&prune(&["--apply", "--format", "json"]));
    assert!(pruned["early"].is_null() && pruned["removed_objects"] == 2, "{pruned:#}");
    Ok(())
}

fn a_class_that_cannot_be_read_is_refused() -> Outcome {
    let server = start()?;
    for (more, expected) in [
        ("storage_class = \"DEEP_ARCHIVE\"", "expected a storage class whose objects can be read at once"),
        ("price = { storage = -1.0 }", "expected a price of 0 or more, found -1"),
        ("price = { rent = 1.0 }", "unknown field `rent`"),
    ] {
        let client = Client::with(server.port, BUCKET, more);
        let made = client.command(&["init"]);
        assert!(made.code != 0 && made.stderr.contains(expected), "{made:?}");
    }
    Ok(())
}

fn a_folder_has_no_list_prices() {
    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("repo");
    make_archive(&repo);
    let name = "00000001000000000000000A";
    let segment = crate::material::write(folder.path(), name, &crate::material::golden("18.6")[name]);
    let pushed = walden(&["archive", "push", "--look-ahead", "0", "--repo", text(&repo), text(&segment)]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    let list = |more: &[&str]| {
        let fixed = ["archive", "list", "--repo", text(&repo), "--cost"];
        walden(&[&fixed[..], more].concat())
    };
    let cost = &parsed(&list(&["--format", "json"]))["cost"];
    let bytes = fs::metadata(repo.join(format!("wal/00000001/00000000/{name}.wlz"))).unwrap().len();
    assert_eq!((&cost["stored_bytes"], &cost["objects"]), (&Value::from(bytes), &Value::from(1)), "{cost:#}");
    for field in ["storage_class", "prices", "storage_month", "early"] {
        assert!(cost[field].is_null(), "{field}: {cost:#}");
    }
    assert!(list(&[]).stdout.contains("no list prices of this store are known"));
    let cost = &parsed(&list(&["--price", "storage=1", "--format", "json"]))["cost"];
    // JSON keeps 15 digits.
    let difference = cost["storage_month"].as_f64().unwrap() - bytes as f64 / 1_073_741_824.0;
    assert!(difference.abs() < 1e-15, "{cost:#}");
    let wrong = walden(&["archive", "list", "--repo", text(&repo), "--price", "storage=1"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

fn a_month_of_the_trace_has_a_price() {
    let trace = golden_dir().join("18.6");
    let run = walden(&["whatif", "--archive", "--storage-class", "s3/GLACIER", text(&trace)]);
    assert!(run.code == 2 && run.stderr.contains("s3/GLACIER_IR"), "{run:?}");
    let run = walden(&[
        "whatif",
        "--archive",
        "--storage-class",
        "s3/GLACIER_IR",
        "--format",
        "json",
        text(&trace),
    ]);
    let document = parsed(&run);
    let own = &document["trace"]["archive"][0];
    // The trace is shorter than a minute, so it shows no rate of a month.
    assert!(document["trace"]["seconds"].as_f64().unwrap() < 60.0 && own["month"].is_null(), "{own:#}");
    // A commit each hour. The text and the page have the price of the document.
    let folder = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::new(Major::V18);
    writer.start = Lsn(0x20 << 20);
    writer.previous = Lsn((0x20 << 20) - 32);
    for hour in 0..4_i64 {
        writer.main_data(rmid::XACT, 0, &(hour * 3_600_000_000).to_le_bytes());
        writer.switch();
    }
    let (timeline, size) = (writer.info.timeline, writer.info.segment_size);
    for (number, bytes) in (0x20..).zip(writer.bytes.chunks(1 << 20)) {
        fs::write(folder.path().join(SegmentName::new(timeline, number, size).to_string()), bytes).unwrap();
    }
    let page = folder.path().join("page.html");
    let options =
        ["--archive", "--storage-class", "s3/GLACIER_IR", "--price", "put=1000", text(folder.path())];
    let document = parsed(&walden(&[&["whatif", "--format", "json"], &options[..]].concat()));
    let price = document["trace"]["archive"][0]["month"]["price"].as_f64().unwrap();
    assert!(price > 100.0, "{document:#}");
    let shown = walden(&[&["whatif"], &options[..]].concat());
    assert!(shown.stdout.contains(&format!("{price:.2}")), "{shown:?}");
    let written = walden(&[&["whatif", "--html", text(&page)], &options[..]].concat());
    assert_eq!(written.code, 0, "{written:?}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("a month of walden archive") && html.contains(&format!("{price:.2}")));
}
