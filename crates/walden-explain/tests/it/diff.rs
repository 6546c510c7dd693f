//! The same relation has the same label in both ranges of a comparison.

use walden_explain::diff::{self, Diff, DiffFinding, Per, Side, Status};
use walden_explain::document::Context;
use walden_explain::{Bound, Explanation};
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;
use walden_format::rmgr::info::{heap, logicalmsg, xlog};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::names::{Names, Persistence, Relation, RelationKind};

use crate::material::{Log, request};

const ORDERS: u32 = 16384;

/// A table of the same name in two databases.
fn names() -> Names {
    let mut names = Names::default();
    for database in [5, 6] {
        let relation = Relation {
            database,
            shared: false,
            oid: 20_000,
            schema: "public".into(),
            name: "orders".into(),
            kind: RelationKind::Table,
            persistence: Persistence::Permanent,
            access_method: None,
            table: None,
            partition_of: None,
            scans: None,
            is_required: None,
            covered_by: None,
        };
        names.add(relation, Some(RelFileLocator { tablespace: 1663, database, relation: ORDERS }));
    }
    names
}

/// A range in which these databases insert into their table.
fn range(databases: &[u32]) -> Explanation {
    range_of(databases, 100)
}

/// A range of rows with the given number of bytes.
fn range_of(databases: &[u32], bytes: u8) -> Explanation {
    let mut log = Log::new();
    for xid in 1000..1100 {
        for database in databases {
            let mut rest = vec![0, 0x20, bytes, 0];
            [1663, *database, ORDERS, 7].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
            rest.extend([255, 3]);
            rest.resize(rest.len() + usize::from(bytes), 0x11);
            rest.extend([1, 0, 0]);
            log.writer.record(rmid::HEAP, heap::INSERT, xid, &rest);
        }
        log.end(xid, true, xid.into(), &[]);
    }
    log.explain(&request(diff::views().to_vec()))
}

/// A range that ends before the WAL starts.
fn empty() -> Explanation {
    let mut log = Log::new();
    log.end(1000, true, 1000, &[]);
    log.explain(&request(diff::views().to_vec()).to(Some(Bound::Lsn(Lsn(8)))))
}

fn compare(a: &Explanation, b: &Explanation) -> Diff {
    compare_per(Per::Total, a, b)
}

fn compare_per(per: Per, a: &Explanation, b: &Explanation) -> Diff {
    let names = names();
    let context =
        Context { names: &names, checkpoint_settings: None, top: None, pattern: None, writers: None };
    let [of_a, of_b] = diff::documents((a, &context), (b, &context));
    let side = |name, document, explanation| Side { name, document, explanation, micros: 1_000_000 };
    diff::diff(side("A", &of_a, a), side("B", &of_b, b), Some(per))
}

/// The tables of a comparison, by name.
fn tables(diff: &Diff) -> Vec<(&str, Status)> {
    let tables = diff.relations.iter().filter(|change| change.label.contains("orders"));
    let mut tables: Vec<_> = tables.map(|change| (change.label.as_str(), change.status)).collect();
    tables.sort_unstable_by_key(|(label, _)| *label);
    tables
}

#[test]
fn a_second_database_in_one_range_changes_no_other_table() {
    let (one, both) = (range(&[5]), range(&[5, 6]));
    let came = compare(&one, &both);
    assert_eq!(tables(&came), [("database 5: orders", Status::Both), ("database 6: orders", Status::New)]);
    assert!(came.findings.iter().all(|finding| finding.rule != "gone-relation"), "{:?}", came.findings);
    let went = compare(&both, &one);
    assert_eq!(tables(&went), [("database 5: orders", Status::Both), ("database 6: orders", Status::Gone)]);
    assert_eq!(tables(&compare(&one, &one)), [("orders", Status::Both)]);
}

#[test]
fn findings_name_the_database_where_labels_do() {
    let found = |diff: &Diff, rule: &str| -> Vec<(String, String)> {
        let of_rule = diff.findings.iter().filter(|finding| finding.rule == rule);
        of_rule.map(|finding| (finding.points_at.clone(), finding.text.clone())).collect()
    };
    let (one, both) = (range(&[5]), range(&[5, 6]));
    let new = found(&compare(&one, &both), "new-relation");
    assert_eq!(new.len(), 1, "{new:?}");
    assert_eq!(new[0].0, "database 6: orders");
    assert!(new[0].1.starts_with("table database 6: orders has no WAL before, and writes "), "{new:?}");
    let gone = found(&compare(&both, &one), "gone-relation");
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_eq!(gone[0].0, "database 6: orders");
    // With one database, labels are names without the database.
    let all = found(&compare(&empty(), &one), "new-relation");
    assert_eq!(all[0].0, "orders", "{all:?}");
}

#[test]
fn a_range_without_log_is_noted() {
    let (none, some) = (empty(), range(&[5]));
    let notes = |a: &Explanation, b: &Explanation| {
        let diff = compare(a, b);
        diff.notes.into_iter().filter(|note| note.contains("has no WAL")).collect::<Vec<_>>()
    };
    assert_eq!(notes(&none, &some), ["range A has no WAL: the WAL that was read is outside this range"]);
    assert_eq!(notes(&some, &none), ["range B has no WAL: the WAL that was read is outside this range"]);
    assert!(notes(&some, &some).is_empty());
}

#[test]
fn amounts_are_in_the_unit_of_the_comparison() {
    let (a, b) = (range(&[5]), range_of(&[5], 252));
    let amount = |per| {
        let findings = compare_per(per, &a, &b).findings;
        findings.into_iter().find(|finding| finding.rule == "amount").unwrap().text
    };
    assert_eq!(
        amount(Per::Transaction),
        "orders writes 304 bytes per transaction and wrote 152 bytes: +152 bytes per transaction"
    );
    // Requested explicitly, for ranges that also have rates.
    let notes = compare_per(Per::Transaction, &a, &b).notes;
    assert!(!notes.iter().any(|note| note.contains("shorter than a second")), "{notes:?}");
    assert_eq!(amount(Per::Total), "orders writes 30 kB and wrote 15 kB: +15 kB");
    assert_eq!(amount(Per::Second), "orders writes 304 bytes per transaction and wrote 152 bytes: +15 kB/s");
}

/// A range of the given number of transactions with rows of the given size, followed by messages of no
/// relation and segment switches.
fn range_with(transactions: u32, bytes: usize, messages: usize, switches: usize) -> Explanation {
    let mut log = Log::new();
    for xid in 1000..1000 + transactions {
        log.heap_insert(xid, ORDERS, bytes);
        log.end(xid, true, xid.into(), &[]);
    }
    for _ in 0..messages {
        log.record((rmid::LOGICALMSG, logicalmsg::MESSAGE), 0, 0, &[], &[7; 250]);
    }
    for _ in 0..switches {
        log.writer.switch();
        log.heap_insert(3000, ORDERS, bytes);
    }
    log.explain(&request(diff::views().to_vec()))
}

#[test]
fn padding_has_a_line_and_no_part_exceeds_the_change_alone() {
    const PARTS: [&str; 7] =
        ["new-relation", "gone-relation", "padding", "framing", "work", "amount", "others"];
    let padded = (range_with(1000, 100, 0, 3), range_with(100, 250, 0, 0));
    let fewer = (range_with(1000, 100, 0, 0), range_with(100, 250, 100, 0));
    for per in [Per::Second, Per::Transaction, Per::Total] {
        for (a, b) in [&padded, &fewer] {
            let found = compare_per(per, a, b);
            let parts: Vec<_> = found.findings.iter().filter(|one| PARTS.contains(&one.rule)).collect();
            let share = |one: &&&DiffFinding| one.share_of_change.unwrap();
            let left: f64 = 1.0 - parts.iter().map(|one| share(&one)).sum::<f64>();
            let larger = found.total.a_scaled_bytes.max(found.total.b_bytes) as f64;
            let is_small = left.abs() * found.total.change_bytes.unsigned_abs() as f64 <= 0.01 * larger;
            assert!(is_small || left.abs() < 1e-6, "{per:?}: {left}: {parts:?}");
            let exceeds = parts.iter().any(|one| share(&one) > 1.001);
            assert!(!exceeds || parts.iter().any(|one| share(&one) < 0.0), "{per:?}: {parts:?}");
        }
        let found = compare_per(per, &padded.0, &padded.1);
        let bucket = found.buckets.iter().find(|one| one.label.starts_with("padding")).unwrap();
        let padding = found.findings.iter().find(|one| one.rule == "padding").unwrap();
        assert_eq!(padding.change_bytes, bucket.change_bytes, "{per:?}");
        assert!(padding.text.contains("is 0.0 % of the WAL and was 9"), "{padding:?}");
        assert!(padding.text.contains("(switches: 0, before 3): -"), "{padding:?}");
    }
    let found = compare_per(Per::Second, &fewer.0, &fewer.1).findings;
    let work = found.iter().find(|one| one.rule == "work").unwrap();
    assert!(work.share_of_change.is_some_and(|share| share > 1.0), "{found:?}");
    assert!(
        work.text.starts_with("100.0 transactions are committed per second and were 1000.0, at the "),
        "{work:?}"
    );
    let others = found.iter().find(|one| one.rule == "others").unwrap();
    let messages = 100 * (24 + 2 + 250_i64 + 7) / 8 * 8;
    assert!(others.change_bytes >= messages / 2, "{found:?}");
    // The previous bytes per transaction, without padding.
    let found = compare_per(Per::Second, &padded.0, &padded.1).findings;
    let work = found.iter().find(|one| one.rule == "work").unwrap();
    assert!(work.text.contains(" bytes that each wrote before, without padding: -"), "{work:?}");
}

#[test]
fn tables_of_two_databases_are_two_unless_the_clusters_are() {
    let (a, mut b) = (range(&[5]), range(&[6]));
    let of_one = compare(&a, &b);
    assert_eq!(tables(&of_one), [("database 5: orders", Status::Gone), ("database 6: orders", Status::New)]);
    b.system_id += 1;
    let of_two = compare(&a, &b);
    assert_eq!(tables(&of_two), [("orders", Status::Both)]);
    assert!(
        of_two.notes.iter().any(|note| note.contains("match by the number of their file")),
        "{:?}",
        of_two.notes
    );
}

/// Since 19, a logical slot suffices for the additions of `wal_level=logical`.
#[test]
fn a_logical_slot_is_no_change_of_wal_level() {
    let range = |is_on: bool| {
        let mut log = Log::with_version(Major::V19);
        log.record((rmid::XLOG, xlog::CHECKPOINT_REDO), 0, 0, &[], &[1, 0, 0, 0]);
        log.record((rmid::XLOG, xlog::LOGICAL_DECODING_STATUS_CHANGE), 0, 0, &[], &[is_on.into()]);
        // `XLH_INSERT_CONTAINS_NEW_TUPLE`
        let main = [1, 0, if is_on { 8 } else { 0 }];
        for xid in 1000..1150 {
            log.record((rmid::HEAP, heap::INSERT), xid, ORDERS, &[(7, &[0x11; 40])], &main);
            log.end(xid, true, xid.into(), &[]);
        }
        log.explain(&request(diff::views().to_vec()))
    };
    let (without, with) = (range(false), range(true));
    for (a, b, text) in [
        (&without, &with, "effective_wal_level is logical and was not, as it is under wal_level=replica"),
        (&with, &without, "effective_wal_level is not logical and was, as it is under wal_level=replica"),
    ] {
        let diff = compare(a, b);
        let found: Vec<_> = diff.findings.iter().filter(|one| one.rule == "setting").collect();
        assert!(found.len() == 1 && found[0].text.starts_with(text), "{found:?}");
        assert_eq!(found[0].points_at, "logical slots");
    }
}
