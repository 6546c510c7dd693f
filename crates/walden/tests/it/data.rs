//! The WAL as tables, compared with pg_walinspect and `walden explain`, with every query of the
//! documentation.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::{Outcome, postgres};

use crate::material::{explain_json, walden};

walden_testing::tests! {
    records_are_those_of_pg_walinspect on [15, 19],
    results_have_all_columns_as_csv_and_json,
    exports_over_a_gap_have_all_segments,
    exports_are_made_again_when_damage_is_repaired,
    exports_lose_and_repeat_no_rows,
    exports_in_csv_are_known_by_their_descriptions,
    exports_write_through_no_links,
    exports_change_to_files_of_any_size,
    exports_that_were_interrupted_are_marked_until_they_are_repaired,
    positions_are_printed_whatever_their_type,
    times_in_a_range_are_those_in_the_whole,
    rows_before_damage_are_delivered,
    the_log_of_a_server_as_tables,
    transactions_that_a_crash_ended,
    wrong_queries_are_errors,
}

fn sql(query: &str, arguments: &[&str]) -> Vec<Value> {
    let run = walden(&[&["sql", "--format", "json", query], arguments].concat());
    assert_eq!(run.code, 0, "{query}: {run:?}");
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(query: &str, arguments: &[&str]) -> u64 {
    let rows = sql(query, arguments);
    let [row] = rows.as_slice() else { panic!("{query}: {} rows", rows.len()) };
    let value = row.as_object().and_then(|row| row.values().next()).cloned().unwrap_or_default();
    value.as_u64().unwrap_or_else(|| panic!("{query}: {row}"))
}

/// Starts a server with segments of 1 MB, whose WAL has a record that spans several segments.
fn worked(major: u32) -> Result<(Cluster, String), walden_testing::Missing> {
    let cluster = ClusterBuilder::new(postgres(major)?)
        .wal_segsize_mb(1)
        .setting("wal_keep_size", "1GB")
        .setting("autovacuum", "off")
        .start()
        .unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let statements = [
        "CREATE TABLE orders (id bigint PRIMARY KEY, amount int, note text)",
        "CREATE INDEX orders_note ON orders (note)",
        "INSERT INTO orders SELECT n, n % 1000, md5(n::text) FROM generate_series(1, 20000) n",
        "CHECKPOINT",
        "UPDATE orders SET amount = amount + 1 WHERE id % 7 = 0",
        "DELETE FROM orders WHERE id % 11 = 0",
        "VACUUM orders",
        // Writes one record of about 3 MB.
        "SELECT pg_logical_emit_message(true, 'test', repeat('x', 3000000))",
        "SELECT pg_switch_wal()",
        "CHECKPOINT",
        "UPDATE orders SET note = note || 'x' WHERE id % 5 = 0",
    ];
    for statement in statements {
        client.batch_execute(statement).unwrap();
    }
    client.batch_execute("BEGIN; DELETE FROM orders WHERE id < 500; ROLLBACK").unwrap();
    let begin = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap();
    let begin: String = begin.get(0);
    client
        .batch_execute(
            "UPDATE orders SET amount = 0 WHERE id < 100; INSERT INTO orders VALUES (0, 0, 'last')",
        )
        .unwrap();
    drop(client);
    Ok((cluster, begin))
}

fn records_are_those_of_pg_walinspect(major: u32) -> Outcome {
    let (cluster, begin) = worked(major)?;
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("CREATE EXTENSION pg_walinspect").unwrap();
    let end: String = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).unwrap().get(0);
    let expected: Vec<String> = client
        .query(
            "SELECT concat_ws('|', start_lsn - '0/0', end_lsn - '0/0', prev_lsn - '0/0', xid, resource_manager, record_type, record_length,
                              main_data_length, fpi_length)
             FROM pg_get_wal_records_info($1::text::pg_lsn, $2::text::pg_lsn)",
            &[&begin, &end],
        )
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(expected.len() > 100);
    let wal = cluster.data_dir().join("pg_wal");
    let query = format!(
        "SELECT concat_ws('|', start_lsn, end_lsn, prev_lsn, coalesce(xid, 0),
                          resource_manager, record_type, record_length, main_data_length, fpi_length) AS text
         FROM records WHERE start_lsn >= lsn('{begin}') AND end_lsn <= lsn('{end}') ORDER BY start_lsn"
    );
    let rows = sql(&query, &[wal.to_str().unwrap()]);
    let found: Vec<&str> = rows.iter().map(|row| row["text"].as_str().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    let different = found.iter().zip(&expected).find(|(found, expected)| *found != expected);
    assert_eq!(different, None);
    Ok(())
}

fn the_log_of_a_server_as_tables() -> Outcome {
    let (cluster, _) = worked(17)?;
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.json");
    let names = names.to_str().unwrap();
    let run = walden(&["explain", "--names", &cluster.dsn("postgres"), "--save-names", names]);
    assert_eq!(run.code, 0, "{run:?}");
    let wal: PathBuf = cluster.data_dir().join("pg_wal");
    cluster.stop(StopMode::Fast).unwrap();
    let wal = wal.to_str().unwrap();
    let explained = explain_json(&["--names", names, wal]);
    let file_bytes = explained["file_bytes"].as_u64().unwrap();

    sums_are_those_of_explain(&explained, wal, names);
    conditions_skip_segments_and_no_rows(wal);
    every_query_of_the_documentation_runs(wal, names);
    exports_are_complete_and_taken_up_again(folder.path(), wal, file_bytes);
    changes_of_rows_are_the_same_in_a_file(folder.path(), wal, names);
    Ok(())
}

/// `walden rows` writes the same content to Parquet and to JSON lines, with typed columns in Parquet.
fn changes_of_rows_are_the_same_in_a_file(folder: &Path, wal: &str, names: &str) {
    let rows = ["rows", wal, "--names", names, "--relation", "public.orders", "--format"];
    let lines = walden(&[&rows[..], &["json"]].concat());
    let path = folder.join("rows.parquet");
    let file = walden(&[&rows[..], &["parquet", "-o", path.to_str().unwrap()]].concat());
    assert!(lines.code == file.code && lines.code < 2, "{file:?}");
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap().build().unwrap();
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    for batch in reader {
        let batch = batch.unwrap();
        let after = batch.schema().field_with_name("after").unwrap().data_type().to_string();
        assert!(after.contains("Int64") && after.contains("Int32"), "{after}");
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();
    let file = String::from_utf8(writer.into_inner()).unwrap();
    let parse =
        |text: &str| -> Vec<Value> { text.lines().map(|line| serde_json::from_str(line).unwrap()).collect() };
    let (found, expected) = (parse(&file), parse(&lines.stdout));
    assert!(found.len() > 20_000 && found.len() == expected.len(), "{}", found.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found["lsn_text"], expected["lsn"]);
        for name in ["state", "xid", "operation", "new_tid", "old_tid", "before_unknown"] {
            assert_eq!(found[name], expected[name], "{name}: {found} {expected}");
        }
        for row in ["before", "after"] {
            // A bigint is a number in Arrow, and text in JSON lines.
            let id = found[row]["id"].as_i64().map(|id| id.to_string());
            assert_eq!(id.as_deref(), expected[row]["id"].as_str(), "{found} {expected}");
            for name in ["amount", "note"] {
                assert_eq!(found[row][name], expected[row][name], "{found} {expected}");
            }
        }
    }
}

fn sums_are_those_of_explain(explained: &Value, wal: &str, names: &str) {
    let file_bytes = explained["file_bytes"].as_u64().unwrap();
    // The number of partitions is the number of threads: 7 partitions split the long record.
    for threads in ["1", "2", "7"] {
        let arguments = ["--threads", threads, wal];
        let records = number("SELECT sum(bytes) FROM records", &arguments);
        let framing = number("SELECT sum(bytes) FROM framing", &arguments);
        assert_eq!(records + framing, file_bytes, "{threads} threads");
        assert_eq!(number("SELECT sum(bytes) FROM segments", &arguments), file_bytes);
        assert_eq!(
            number("SELECT count(*) FROM records", &arguments),
            explained["records"].as_u64().unwrap()
        );
        let committed = "SELECT count(*) FROM transactions WHERE outcome = 'committed'";
        assert_eq!(number(committed, &arguments), explained["transactions"]["committed"].as_u64().unwrap());
    }
    let by_name = sql(
        "SELECT table_name, sum(bytes) AS bytes FROM relations WHERE relation IS NOT NULL GROUP BY 1",
        &["--names", names, wal],
    );
    let by_name: BTreeMap<&str, u64> = by_name
        .iter()
        .map(|row| (row["table_name"].as_str().unwrap(), row["bytes"].as_u64().unwrap()))
        .collect();
    let of_orders =
        explained["relations"].as_array().unwrap().iter().find(|row| row["label"]["name"] == "orders");
    assert_eq!(by_name["orders"], of_orders.unwrap()["bytes"].as_u64().unwrap(), "{by_name:?}");
}

/// A crash ends interrupted transactions, but not a prepared one. Rolled-back subtransactions do not count as
/// transactions if the WAL identifies them. `walden sql` and `walden explain` must agree.
fn transactions_that_a_crash_ended() -> Outcome {
    for (major, wal_level) in [(15, "replica"), (15, "minimal"), (18, "logical"), (19, "replica")] {
        let settings =
            [("wal_level", wal_level), ("max_wal_senders", "0"), ("max_prepared_transactions", "2")];
        let builder = ClusterBuilder::new(postgres(major)?).wal_segsize_mb(1);
        let builder = settings.iter().fold(builder, |builder, (name, value)| builder.setting(name, value));
        let cluster = builder.setting("wal_keep_size", "1GB").setting("autovacuum", "off").start().unwrap();
        let mut client = cluster.client("postgres").unwrap();
        let xid = |client: &mut postgres::Client| -> u64 {
            let row = client.query_one("SELECT txid_current()::text", &[]).unwrap();
            row.get::<_, String>(0).parse().unwrap()
        };
        client.batch_execute("CREATE TABLE t (id int)").unwrap();
        client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").unwrap();
        let prepared = xid(&mut client);
        client.batch_execute("SAVEPOINT s; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'orphan'").unwrap();
        client
            .batch_execute(
                "DO $$ BEGIN FOR i IN 1..300 LOOP
                     BEGIN
                         INSERT INTO t VALUES (i);
                         IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF;
                     EXCEPTION WHEN raise_exception THEN NULL;
                     END;
                 END LOOP; END $$",
            )
            .unwrap();
        client.batch_execute("BEGIN; INSERT INTO t VALUES (3); ROLLBACK").unwrap();
        let mut other = cluster.client("postgres").unwrap();
        other.batch_execute("BEGIN; INSERT INTO t SELECT generate_series(1, 20000)").unwrap();
        let cut_off = xid(&mut other);
        client.batch_execute("INSERT INTO t VALUES (4)").unwrap();
        cluster.crash().unwrap();
        cluster.start().unwrap();
        let mut client = cluster.client("postgres").unwrap();
        client.batch_execute("INSERT INTO t VALUES (5); CHECKPOINT").unwrap();

        let wal = cluster.data_dir().join("pg_wal").to_str().unwrap().to_owned();
        let explained = explain_json(&[&wal]);
        let sums = &explained["transactions"];
        let outcome = |xid: u64| {
            let largest = sums["largest"].as_array().unwrap();
            largest.iter().find(|one| one["xid"] == xid).map(|one| one["outcome"].as_str().unwrap())
        };
        assert_eq!((outcome(cut_off), outcome(prepared)), (Some("aborted"), Some("prepared")), "{sums}");
        let aborted = sums["aborted"].as_u64().unwrap();
        match wal_level {
            "logical" => assert_eq!(aborted, 2, "the two transactions"),
            // Those after the last record that names subtransactions count as transactions.
            "replica" => assert!((2..=2 + 64 / 3 + 1).contains(&aborted), "{aborted}"),
            _ => assert_eq!(aborted, 102),
        }
        let by_outcome = sql("SELECT outcome, count(*) AS n FROM transactions GROUP BY 1", &[&wal]);
        let count = |outcome: &str| {
            by_outcome.iter().find(|row| row["outcome"] == outcome).map(|row| row["n"].clone())
        };
        assert_eq!(count("aborted"), Some(aborted.into()), "{major} {wal_level}: {by_outcome:?}");
        assert_eq!((count("prepared"), count("open")), (Some(1.into()), None), "{major} {wal_level}");
        assert_eq!((&sums["open"], count("committed")), (&1.into(), Some(sums["committed"].clone())));
    }
    Ok(())
}

/// Conditions that allow skipping segments return the same rows as equivalent conditions that do not.
fn conditions_skip_segments_and_no_rows(wal: &str) {
    let bounds = sql(
        "WITH ends AS (SELECT min(start_lsn) AS first, max(start_lsn) AS last FROM records)
         SELECT lsn_text(min(start_lsn) FILTER (WHERE start_lsn >= first + (last - first) * 3 / 10)) AS low,
                lsn_text(min(start_lsn) FILTER (WHERE start_lsn >= first + (last - first) * 6 / 10)) AS high,
                min(time)::text AS first, max(time)::text AS last FROM records, ends",
        &[wal],
    );
    let text = |name: &str| bounds[0][name].as_str().unwrap().to_owned();
    let (low, high, first, last) = (text("low"), text("high"), text("first"), text("last"));
    let pairs = [
        (
            format!("start_lsn >= lsn('{low}') AND start_lsn < lsn('{high}')"),
            format!("start_lsn + 1 > lsn('{low}') AND start_lsn + 1 <= lsn('{high}')"),
        ),
        (format!("start_lsn = lsn('{low}')"), format!("start_lsn + 1 = lsn('{low}') + 1")),
        (
            format!("time > '{first}' AND time <= '{last}'"),
            format!("coalesce(time, time) > '{first}' AND coalesce(time, time) <= '{last}'"),
        ),
        (format!("time < '{first}'"), "false".to_owned()),
    ];
    for (condition, hidden) in pairs {
        for table in ["records", "blocks"] {
            let of = |condition: &str| {
                let query =
                    format!("SELECT count(*) AS rows, sum(bytes) AS bytes FROM {table} WHERE {condition}");
                sql(&query, &["--threads", "3", wal])
            };
            assert_eq!(of(&condition), of(&hidden), "{table}: {condition}");
        }
    }
    assert!(number(&format!("SELECT count(*) FROM records WHERE start_lsn < lsn('{low}')"), &[wal]) > 0);
}

/// Runs the queries of docs/tables.md.
fn every_query_of_the_documentation_runs(wal: &str, names: &str) {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tables.md")).unwrap();
    let queries: Vec<&str> =
        text.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(queries.len() >= 10, "{}", queries.len());
    for query in queries {
        let rows = sql(query, &["--names", names, wal]);
        assert!(!rows.is_empty(), "{query}");
    }
}

fn exports_are_complete_and_taken_up_again(folder: &Path, wal: &str, file_bytes: u64) {
    let export = |format: &str, directory: &Path| {
        let directory = directory.to_str().unwrap();
        let run = walden(&["export", "--segments", "3", "--format", format, "-o", directory, wal]);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout
    };
    let parquet = folder.join("parquet");
    export("parquet", &parquet);
    let files = files_of(&parquet.join("records/timeline=1"));
    assert!(files.len() > 2, "{files:?}");
    let bytes = |folder: &Path| files_of(folder).iter().map(|file| sum_of_bytes(file)).sum::<u64>();
    let both = || bytes(&parquet.join("records/timeline=1")) + bytes(&parquet.join("framing/timeline=1"));
    assert_eq!(both(), file_bytes);
    // All but the last file of each table are kept. A lost or foreign file is written again.
    let before: Vec<_> = files.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect();
    fs::remove_file(&files[0]).unwrap();
    fs::copy(files_of(&parquet.join("framing/timeline=1")).pop().unwrap(), &files[1]).unwrap();
    let said = export("parquet", &parquet);
    assert!(!said.contains(" 0 up to date"), "{said}");
    assert_eq!(both(), file_bytes);
    let after: Vec<_> = files.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect();
    let kept = before.iter().zip(&after).skip(2).filter(|(before, after)| before == after).count();
    assert_eq!(kept, files.len() - 3, "{said}");
    // No temporary file remains.
    assert!(
        files_of(&parquet.join("records/timeline=1"))
            .iter()
            .all(|file| file.extension().unwrap() == "parquet")
    );
    for format in ["arrow", "csv"] {
        let directory = folder.join(format);
        export(format, &directory);
        assert!(with_ending(format, &directory.join("records/timeline=1")).len() == files.len());
    }
    let csv: u64 = with_ending("csv", &folder.join("csv/framing/timeline=1"))
        .iter()
        .chain(&with_ending("csv", &folder.join("csv/records/timeline=1")))
        .map(|file| sum_of_csv(file))
        .sum();
    assert_eq!(csv, file_bytes);
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn with_ending(ending: &str, folder: &Path) -> Vec<PathBuf> {
    files_of(folder)
        .into_iter()
        .filter(|file| file.extension().is_some_and(|found| found == ending))
        .collect()
}

fn sum_of_bytes(file: &Path) -> u64 {
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap();
    let sum = |batch: arrow::array::RecordBatch| {
        let column =
            arrow::compute::cast(batch.column_by_name("bytes").unwrap(), &arrow::datatypes::DataType::UInt64);
        let column = column.unwrap();
        let column = arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt64Type>(&column).clone();
        arrow::compute::sum(&column).unwrap_or_default()
    };
    reader.map(|batch| sum(batch.unwrap())).sum()
}

fn sum_of_csv(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let at = lines.next().unwrap().split(',').position(|name| name == "bytes").unwrap();
    lines.map(|line| line.split(',').nth(at).unwrap().parse::<u64>().unwrap()).sum()
}

fn wrong_queries_are_errors() {
    let golden = crate::material::golden_dir().join("17.11");
    let golden = golden.to_str().unwrap();
    for (query, part) in [
        ("SELEC 1", "SELEC"),
        ("SELECT nothing FROM records", "nothing"),
        ("SELECT * FROM nowhere", "no table is named nowhere: the tables are records, "),
        (
            "SELECT * FROM records WHERE start_lsn > lsn('x')",
            "lsn('x'): expected a position such as 16/B374D848",
        ),
        ("SELECT lsn('0/1', '0/2')", "lsn"),
        ("SELECT lsn_text(-1)", "lsn_text(-1): expected a position"),
        ("SELECT * FROM row_changes('nowhere')", "cannot find the table nowhere: give the names"),
        ("SELECT * FROM row_changes(7)", "expected a table's name"),
        ("SELECT * FROM row_changes()", "expected a table's name"),
        ("SELECT * FROM records WHERE time > 'yesterday'", "now() - interval '1 day'"),
        ("SELECT * FROM records WHERE start_lsn > 'x'", "expected a position such as '16/B374D848'"),
        ("CREATE TABLE t AS SELECT 1", "DDL"),
        ("COPY (SELECT 1) TO '/tmp/never.csv'", "DML"),
        ("SET datafusion.execution.batch_size = 1", "Statement"),
    ] {
        let run = walden(&["sql", query, golden]);
        // The table may exist, which the names do not show.
        let expected = if part.starts_with("cannot find the table") { 3 } else { 2 };
        assert_eq!(run.code, expected, "{query}: {run:?}");
        assert!(run.stderr.contains(part), "{query}: {run:?}");
        run.assert_no_panic();
    }
    for arguments in
        [&["sql", "SELECT 1"][..], &["sql", "--format", "parquet", "SELECT 1", golden], &["export", golden]]
    {
        assert_eq!(walden(arguments).code, 2, "{arguments:?}");
    }
    // A file always holds a complete result: the old file stays until the new result is complete.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result");
    fs::write(&file, "the result before").unwrap();
    for format in ["table", "csv", "json", "parquet", "arrow"] {
        let query = "SELECT 1 / (record_length - record_length) FROM records";
        let options = ["sql", "--format", format, "--force", "-o", file.to_str().unwrap()];
        let run = walden(&[&options[..], &[query, golden]].concat());
        assert!(run.code == 3 && run.stderr.contains("ivide by zero"), "{format}: {run:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "the result before", "{format}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{format}");
    }
    for _ in 0..2 {
        let run = walden(&["sql", "--force", "-o", file.to_str().unwrap(), "SELECT 1 AS one", golden]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(fs::read_to_string(&file).unwrap().contains("| one |"), "{run:?}");
    }
    let run = walden(&["export", "--tables", "nothing", "-o", "/tmp/x", golden]);
    assert!(run.code == 2 && run.stderr.contains("none of records, blocks"), "{run:?}");
}

fn results_have_all_columns_as_csv_and_json() {
    let golden = crate::material::golden_dir().join("17.11");
    let golden = golden.to_str().unwrap();
    let csv = |query: &str| {
        let run = walden(&["sql", "--format", "csv", query, golden]);
        assert_eq!(run.code, 0, "{query}: {run:?}");
        run.stdout
    };
    assert_eq!(csv("SELECT xid, outcome FROM transactions WHERE xid = 4294967295"), "xid,outcome\n");
    assert_eq!(csv("SELECT 1 AS one, NULL AS nothing"), "one,nothing\n1,\n");
    let lines = csv("SELECT xid AS name FROM records");
    assert!(lines.starts_with("name\n") && lines.lines().filter(|line| *line == "name").count() == 1);
    // JSON cannot represent NaN.
    let query = "SELECT 1 AS one, CAST(NULL AS INT) AS nothing, CAST('NaN' AS DOUBLE) AS number";
    assert_eq!(sql(query, &[golden]), [serde_json::json!({"one": 1, "nothing": null, "number": null})]);
}

/// Creates a folder with some of the three segments of a golden cluster.
fn some_segments(folder: &Path, which: &[usize]) -> PathBuf {
    let segments = crate::material::golden("18.6");
    assert_eq!(segments.len(), 3);
    for (index, (name, content)) in segments.iter().enumerate() {
        if which.contains(&index) {
            crate::material::write(folder, name, content);
        }
    }
    folder.to_owned()
}

/// Damages the middle of the second segment in a folder. Returns the segment's original bytes.
fn damage_second_segment(folder: &Path) -> (PathBuf, Vec<u8>) {
    let path = files_of(folder).remove(1);
    let content = fs::read(&path).unwrap();
    let mut damaged = content.clone();
    damaged[60..160].iter_mut().for_each(|byte| *byte ^= 0xFF);
    fs::write(&path, damaged).unwrap();
    (path, content)
}

fn export_with(segments: &str, source: &Path, output: &Path) -> crate::material::Run {
    let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
    walden(&["export", "--segments", segments, "-o", output, source])
}

fn records_in(output: &Path) -> Vec<PathBuf> {
    files_of(&output.join("records/timeline=1"))
}

/// Returns the sum of the bytes of all rows in an export.
fn exported_bytes(output: &Path) -> u64 {
    let files = |table: &str| files_of(&output.join(table).join("timeline=1"));
    ["records", "framing"].iter().flat_map(|table| files(table)).map(|file| sum_of_bytes(&file)).sum()
}

fn exports_over_a_gap_have_all_segments() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 2]);
    let output = folder.path().join("export");
    let run = export_with("16", &source, &output);
    assert!(run.code == 0 && run.stderr.contains("00000001000000000000000B is missing"), "{run:?}");
    assert_eq!((records_in(&output).len(), exported_bytes(&output)), (2, 2 << 20));
    // After the missing segment arrives, one file has all rows.
    some_segments(&source, &[1]);
    let run = export_with("16", &source, &output);
    assert!(run.code == 0 && run.stdout.contains("removed"), "{run:?}");
    assert_eq!((records_in(&output).len(), exported_bytes(&output)), (1, 3 << 20));
    // A table named twice is exported once.
    let twice = folder.path().join("twice");
    let (source, twice) = (source.to_str().unwrap(), twice.to_str().unwrap());
    let run = walden(&["export", "--tables", "records,records", "-o", twice, source]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.starts_with("1 file written"), "{run:?}");
}

fn exports_are_made_again_when_damage_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let (damaged, content) = damage_second_segment(&source);
    let output = folder.path().join("export");
    let run = export_with("1", &source, &output);
    assert!(run.code == 3 && !run.stdout.contains(" with 0 rows"), "{run:?}");
    fs::write(&damaged, content).unwrap();
    let run = export_with("1", &source, &output);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(exported_bytes(&output), 3 << 20);
    // Exported rows are kept when the segment is damaged later.
    damage_second_segment(&source);
    let run = export_with("16", &source, &output);
    assert_eq!(run.code, 3, "{run:?}");
    assert_eq!(exported_bytes(&output), 3 << 20);
}

fn exports_lose_and_repeat_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let output = folder.path().join("export");
    let expect = |run: &crate::material::Run, code: i32, files: usize| {
        assert_eq!(run.code, code, "{run:?}");
        assert_eq!((records_in(&output).len(), exported_bytes(&output)), (files, 3 << 20), "{run:?}");
    };
    expect(&export_with("1", &source, &output), 0, 3);
    expect(&export_with("16", &source, &output), 0, 1);
    // An export of fewer segments replaces nothing.
    let middle = some_segments(&folder.path().join("middle"), &[1]);
    let run = export_with("16", &middle, &output);
    expect(&run, 0, 1);
    assert!(run.stderr.contains("the same part of the log and more"), "{run:?}");
    expect(&export_with("1", &source, &output), 0, 3);
    // The new file would hold some of the same rows and others, so neither file would have all.
    let first = some_segments(&folder.path().join("first"), &[0]);
    let other = folder.path().join("other");
    assert_eq!(export_with("16", &first, &other).code, 0);
    let run = export_with("16", &some_segments(&folder.path().join("last"), &[1, 2]), &other);
    assert!(run.code == 3 && run.stderr.contains("another folder"), "{run:?}");
    assert_eq!(exported_bytes(&other), 1 << 20);
    // Each cluster uses the same segment names.
    let run = export_with("16", &crate::material::golden_dir().join("17.11"), &output);
    expect(&run, 3, 3);
    assert_eq!(run.stderr.matches("another cluster: expected system identifier").count(), 1, "{run:?}");
}

/// The user named only the folder, not the targets of links in it.
fn exports_write_through_no_links() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0]);
    let [output, elsewhere] = ["export", "elsewhere"].map(|name| folder.path().join(name));
    fs::create_dir_all(&output).unwrap();
    fs::create_dir_all(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, output.join("records")).unwrap();
    let export = || {
        let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
        walden(&["export", "--format", "csv", "-o", output, source])
    };
    let refused = export();
    assert!(refused.code != 0 && refused.stderr.contains("is a link to another folder"), "{refused:?}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    fs::remove_file(output.join("records")).unwrap();
    assert_eq!(export().code, 0);
}

fn exports_in_csv_are_known_by_their_descriptions() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let output = folder.path().join("export");
    let records = output.join("records/timeline=1");
    let export = |segments: &str, source: &Path| {
        let (source, output) = (source.to_str().unwrap(), output.to_str().unwrap());
        walden(&["export", "--format", "csv", "--segments", segments, "-o", output, source])
    };
    let expect = |run: &crate::material::Run, code: i32, files: usize| {
        assert_eq!(run.code, code, "{run:?}");
        let count = |ending| with_ending(ending, &records).len();
        assert_eq!((count("csv"), count("walden")), (files, files), "{run:?}");
    };
    expect(&export("1", &source), 0, 3);
    // All files are kept, except the last one, in which the WAL ends.
    let first = with_ending("csv", &records).remove(0);
    let modified = || fs::metadata(&first).unwrap().modified().unwrap();
    let before = modified();
    expect(&export("1", &source), 0, 3);
    assert_eq!(modified(), before);
    let run = export("16", &source);
    expect(&run, 0, 1);
    assert!(run.stdout.contains("removed"), "{run:?}");
    let run = export("16", &some_segments(&folder.path().join("middle"), &[1]));
    expect(&run, 0, 1);
    assert!(run.stderr.contains("the same part of the log and more"), "{run:?}");
    let run = export("16", &crate::material::golden_dir().join("17.11"));
    expect(&run, 3, 1);
    assert_eq!(run.stderr.matches("another cluster: expected system identifier").count(), 1, "{run:?}");
    // A file changed by another program belongs to that program, and stays.
    let file = with_ending("csv", &records).remove(0);
    let content = fs::read(&file).unwrap();
    fs::write(&file, "bytes\n1\n").unwrap();
    expect(&export("16", &source), 2, 1);
    assert_eq!(fs::read(&file).unwrap(), b"bytes\n1\n");
    fs::remove_file(&file).unwrap();
    expect(&export("16", &source), 0, 1);
    assert!(fs::read(&file).unwrap() == content);
}

/// Returns the path of the marker for a table whose rows may be in two files.
fn mark(output: &Path) -> PathBuf {
    output.join("records/.walden-replacing")
}

/// This includes cases in which a new file has the name of one with more rows: a file of 16 has the segments
/// A, B and C, of 12 A and B, of 11 only A, and all are named after segment 0.
fn exports_change_to_files_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let output = folder.path().join("export");
    let csv = folder.path().join("csv");
    for (segments, files) in
        [("16", 1), ("12", 2), ("11", 2), ("12", 2), ("1", 3), ("11", 2), ("16", 1), ("11", 2)]
    {
        let run = export_with(segments, &source, &output);
        assert_eq!(run.code, 0, "{segments}: {run:?}");
        assert_eq!(
            (records_in(&output).len(), exported_bytes(&output)),
            (files, 3 << 20),
            "{segments}: {run:?}"
        );
        assert!(!mark(&output).exists(), "{segments}: {run:?}");
        let (source, csv) = (source.to_str().unwrap(), csv.to_str().unwrap());
        let run = walden(&["export", "--format", "csv", "--segments", segments, "-o", csv, source]);
        assert_eq!(run.code, 0, "{segments}: {run:?}");
        let found = |table: &str| with_ending("csv", &Path::new(csv).join(table).join("timeline=1"));
        let bytes: u64 =
            ["records", "framing"].iter().flat_map(|table| found(table)).map(|file| sum_of_csv(&file)).sum();
        assert_eq!((found("records").len(), bytes), (files, 3 << 20), "{segments}: {run:?}");
        let hidden = with_ending("walden", &Path::new(csv).join("records/timeline=1"));
        assert_eq!(hidden.len(), files, "{segments}: {run:?}");
    }
    // With damage, all rows stay in their files, each once.
    assert_eq!(export_with("16", &source, &output).code, 0);
    damage_second_segment(&source);
    let run = export_with("12", &source, &output);
    assert_eq!((run.code, exported_bytes(&output)), (3, 3 << 20), "{run:?}");
    assert!(!mark(&output).exists(), "{run:?}");
}

fn exports_that_were_interrupted_are_marked_until_they_are_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let middle = some_segments(&folder.path().join("middle"), &[1]);
    for (segments, files) in [("12", 2), ("16", 1), ("1", 3)] {
        let output = folder.path().join(segments);
        // The state after a run was killed between two files: the renamed old file, and the first new one.
        assert_eq!(export_with("16", &source, &output).code, 0);
        let old = records_in(&output).remove(0);
        let all = fs::read(&old).unwrap();
        assert_eq!(export_with("12", &source, &output).code, 0);
        fs::remove_file(records_in(&output).remove(1)).unwrap();
        fs::write(old.with_file_name("old-replaced-1.parquet"), all).unwrap();
        fs::write(mark(&output), "").unwrap();
        assert!(exported_bytes(&output) > 3 << 20);
        // A run over other segments neither repairs this nor removes the marker.
        let run = export_with("12", &middle, &output);
        assert!(run.code == 0 && mark(&output).exists(), "{run:?}");
        let run = export_with(segments, &source, &output);
        assert_eq!(run.code, 0, "{run:?}");
        assert_eq!((records_in(&output).len(), exported_bytes(&output)), (files, 3 << 20), "{run:?}");
        assert!(!mark(&output).exists(), "{run:?}");
    }
}

fn positions_are_printed_whatever_their_type() {
    let golden = crate::material::golden_dir().join("17.11");
    let golden = golden.to_str().unwrap();
    let query = "SELECT lsn_text(8192) AS a, lsn_text(CAST(1 AS SMALLINT)) AS b, lsn_text(NULL) AS c, \
                 lsn_text(lsn('16/B374D848') + 8) AS d, lsn_text(lsn('16/B374D848') - lsn('0/48')) AS e, \
                 lsn_text(CAST(NULL AS BIGINT)) AS f, pg_lsn_text(lsn('16/74D848')) AS g, pg_lsn_text(NULL) AS h";
    let expected = serde_json::json!({
        "a": "0/00002000", "b": "0/00000001", "c": null, "d": "16/B374D850", "e": "16/B374D800", "f": null,
        "g": "16/74D848", "h": null
    });
    assert_eq!(sql(query, &[golden]), [expected]);
    let query =
        "SELECT count(*) FROM records WHERE lsn('0/0') + start_lsn = lsn(lsn_text(start_lsn + 8192)) - 8192";
    assert_eq!(number(query, &[golden]), number("SELECT count(*) FROM records", &[golden]));
    for (query, part) in [
        ("SELECT lsn_text(-1)", "expected a position, from 0 to 18446744073709551615"),
        ("SELECT lsn_text(start_lsn - 9223372036854775807) FROM records", "expected a position, from 0 to"),
        ("SELECT lsn_text(start_lsn * 9223372036854775807) FROM records", "expected a position, from 0 to"),
        ("SELECT lsn_text('0/1')", "expected a whole number"),
        ("SELECT lsn_text(1.5)", "expected a whole number"),
    ] {
        let run = walden(&["sql", query, golden]);
        assert!(run.code != 0 && run.stderr.contains(part), "{query}: {run:?}");
    }
}

/// The last commit before a record may precede the range.
fn times_in_a_range_are_those_in_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    let source = source.to_str().unwrap();
    let query = "SELECT start_lsn, lsn_text(start_lsn) AS text, time FROM records ORDER BY start_lsn";
    let all = sql(query, &[source]);
    for tenth in 1..10 {
        let expected = &all[all.len() * tenth / 10..];
        let from = expected[0]["text"].as_str().unwrap();
        for threads in ["1", "4"] {
            assert_eq!(sql(query, &["--from", from, "--threads", threads, source]), expected, "{from}");
        }
        // Conditions on times omit no rows of the range.
        let from_time = expected.iter().find_map(|row| row["time"].as_str());
        let Some(time) = from_time else { continue };
        let query = format!("SELECT count(*) FROM records WHERE time >= '{time}'");
        let count = expected.iter().filter(|row| row["time"].as_str() >= Some(time)).count() as u64;
        assert_eq!(number(&query, &["--from", from, source]), count, "{from}");
    }
}

/// With one thread, rows are delivered in WAL order.
fn rows_before_damage_are_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let source = some_segments(&folder.path().join("wal"), &[0, 1, 2]);
    damage_second_segment(&source);
    let source = source.to_str().unwrap();
    let explained = walden(&["explain", "--format", "json", source]);
    assert_eq!(explained.code, 3, "{explained:?}");
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    let expected = explained["records"].as_u64().unwrap();
    let query = "SELECT start_lsn FROM records";
    let run = walden(&["sql", "--threads", "1", "--format", "csv", query, source]);
    assert_eq!(run.code, 3, "{}", run.stderr);
    assert_eq!(run.stdout.lines().count() as u64, expected + 1);
}
