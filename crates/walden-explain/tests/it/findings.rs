//! Findings appear only if the WAL contains evidence for them.

use walden_explain::document::{CauseDocument, Document};
use walden_explain::evidence::Evidence;
use walden_explain::{Activity, Explanation, Finding, FindingKind, Mechanism, rewrites};
use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::info::{btree, dbase, gin, hash, heap, heap2, logicalmsg, xact, xlog};
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_source::names::{Database, Names, Persistence, Relation, RelationKind};

use crate::material::{GOLDEN, Log, SEGMENT, document, document_with, explain_golden, range, request};

fn rules(log: &Log) -> Vec<&'static str> {
    log.document().findings.iter().map(|finding| finding.rule).collect()
}

/// Inserts into a table and an index, each in its own transaction.
fn inserts(index_bytes: usize) -> Log {
    let mut log = Log::new();
    for xid in 1..1000 {
        log.heap_insert(xid, 16384, 600);
        log.index_insert(xid, 16390, index_bytes);
        log.end(xid, true, xid.into(), &[]);
    }
    log
}

fn file(relation: u32) -> RelFileLocator {
    RelFileLocator { tablespace: 1663, database: 5, relation }
}

/// Names of a table (16384) and its index (16390).
fn names(scans: Option<u64>, is_required: Option<bool>) -> Names {
    let mut names = Names::default();
    let index = Relation {
        oid: 20_001,
        name: "orders_note".into(),
        kind: RelationKind::Index,
        table: Some(20_000),
        scans,
        is_required,
        ..orders(RelationKind::Table)
    };
    names.add(orders(RelationKind::Table), Some(file(16384)));
    names.add(index, Some(file(16390)));
    names
}

fn orders(kind: RelationKind) -> Relation {
    Relation {
        database: 5,
        shared: false,
        oid: 20_000,
        schema: "public".into(),
        name: "orders".into(),
        kind,
        persistence: Persistence::Permanent,
        access_method: None,
        table: None,
        partition_of: None,
        scans: None,
        is_required: None,
        covered_by: None,
    }
}

/// The partition with the given numbers.
fn add_partition(names: &mut Names, number: u32) {
    let partition = Relation {
        oid: 20_001 + number,
        name: format!("orders_{number}"),
        partition_of: Some(20_000),
        ..orders(RelationKind::Table)
    };
    names.add(partition, Some(file(16384 + number)));
}

#[test]
fn an_index_is_unused_only_if_nothing_needs_it() {
    let explanation = inserts(300).explain(&request(Vec::new()));
    let found = |scans, is_required| {
        let document = document_with(&explanation, &names(scans, is_required));
        document.findings.into_iter().find(|finding| finding.rule == "unused-index")
    };
    let finding = found(Some(0), Some(false)).unwrap();
    assert_eq!(finding.points_at, "orders_note");
    assert!(finding.text.contains("since the statistics started"), "{finding:?}");
    let mut with_reset = names(Some(0), Some(false));
    let statistics_reset = Some("2026-11-29 10:00:00".to_owned());
    let database = Database { name: "shop".to_owned(), tablespace: 1663, encoding: None, statistics_reset };
    with_reset.add_database(5, database);
    let reset = document_with(&explanation, &with_reset).findings;
    assert!(
        reset
            .iter()
            .any(|one| one.text.contains("since the statistics were reset at 2026-11-29 10:00:00 UTC")),
        "{reset:?}"
    );
    let index: u64 = 999 * (24 + 20 + 2 + 300 + 3_u64).next_multiple_of(8);
    assert_eq!((finding.bytes, finding.saves_bytes, finding.saves_more_bytes), (index, Some(index), 0));
    assert_eq!(found(Some(1), Some(false)), None);
    assert_eq!(found(Some(0), Some(true)), None);
    assert_eq!(found(Some(0), None), None, "names of an earlier format lack the purpose of an index");
    assert_eq!(found(None, Some(false)), None);
}

/// The same work with and without the index, on a server whose checkpoints are two segments apart. Without
/// the index fewer checkpoints follow, and fewer images.
#[test]
fn the_saving_of_an_index_contains_the_images_of_fewer_checkpoints() {
    const PAGES: usize = 60;
    let work = |has_index| {
        let mut log = Log::new();
        let (mut cycle, mut last_cycles) = (1, [0; PAGES]);
        log.checkpoint(0, true);
        for row in 1..12_000 {
            match std::mem::replace(&mut last_cycles[row * 7919 % PAGES], cycle) == cycle {
                true => log.heap_insert(row as u32, 16384, 600),
                false => log.insert_with_image(row as u32, 16384, 8000),
            };
            if has_index {
                log.index_insert(row as u32, 16390, 300);
            }
            log.end(row as u32, true, row as i64, &[]);
            if log.writer.bytes.len() >= cycle * 2 * SEGMENT {
                log.checkpoint((row / 100) as i64, true);
                cycle += 1;
            }
        }
        log
    };
    let (with, without) = (work(true), work(false));
    let saved = (with.writer.bytes.len() - without.writer.bytes.len()) as u64;
    let explanation = with.explain(&request(Vec::new()));
    let findings = document_with(&explanation, &names(Some(0), Some(false))).findings;
    let finding = findings.iter().find(|finding| finding.rule == "unused-index").unwrap();
    let least = finding.saves_bytes.unwrap();
    assert_eq!((least, finding.saves_error_bytes), (finding.bytes, Some(0)));
    assert!(saved > least * 11 / 10, "{saved} {finding:?}");
    let most = least + finding.saves_more_bytes;
    assert!(saved <= most && most < with.writer.bytes.len() as u64, "{saved} {finding:?}");
    let mut settings = findings.iter().filter(|finding| !finding.try_settings.is_empty());
    assert!(settings.all(|finding| finding.saves_more_bytes == 0), "the saving of a setting contains it");
}

/// Queries use both, and one of them is enough.
#[test]
fn an_index_whose_columns_another_one_starts_with_is_redundant() {
    let explanation = inserts(300).explain(&request(Vec::new()));
    let found = |covered_by| {
        let mut names = Names::default();
        let index = |oid, name: &str, covered_by| Relation {
            oid,
            name: name.into(),
            kind: RelationKind::Index,
            table: Some(20_000),
            scans: Some(7),
            is_required: Some(false),
            covered_by,
            ..orders(RelationKind::Table)
        };
        names.add(orders(RelationKind::Table), Some(file(16384)));
        names.add(index(20_001, "orders_note", covered_by), Some(file(16390)));
        names.add(index(20_002, "orders_note_day", None), Some(file(16391)));
        let document = document_with(&explanation, &names);
        document.findings.into_iter().find(|finding| finding.rule == "redundant-index")
    };
    let finding = found(Some(20_002)).unwrap();
    assert_eq!(finding.points_at, "orders_note");
    assert!(finding.text.contains("orders_note_day starts with the same columns"), "{finding:?}");
    assert!(finding.remedy.starts_with("DROP INDEX CONCURRENTLY orders_note"), "{finding:?}");
    assert_eq!(found(None), None);
    assert_eq!(found(Some(20_009)), None, "names do not have that index");
}

/// Hash and BRIN indexes log their build as they log inserts.
#[test]
fn the_build_of_an_unused_index_is_left_out() {
    let with = |later: u32| {
        let mut log = Log::new();
        log.create(0, 16390);
        log.lock_relation(1000, 16390);
        let mut insert = |xid| {
            log.block_record(rmid::HASH, hash::INSERT, xid, 16390, 300);
        };
        (0..500).for_each(|_| insert(1000));
        (0..later).for_each(|number| insert(1001 + number));
        let document = document_with(&log.explain(&request(Vec::new())), &names(Some(0), Some(false)));
        document.findings.into_iter().find(|finding| finding.rule == "unused-index").map(|one| one.bytes)
    };
    assert_eq!(with(0), None);
    let inserts = 200 * (24 + 20 + 2 + 300 + 3_u64).next_multiple_of(8);
    assert!(with(200).is_some_and(|bytes| (inserts - 200..=inserts).contains(&bytes)), "{:?}", with(200));
}

#[test]
fn statements_have_names_without_the_database() {
    let mut log = inserts(300);
    let found = |log: &Log| {
        let document = document_with(&log.explain(&request(Vec::new())), &names(Some(0), Some(false)));
        document.findings.into_iter().find(|finding| finding.rule == "unused-index").unwrap()
    };
    assert!(found(&log).remedy.starts_with("DROP INDEX CONCURRENTLY orders_note,"), "{:?}", found(&log));
    log.record_of_database(6);
    let finding = found(&log);
    assert_eq!(finding.points_at, "database 5: orders_note");
    assert!(finding.remedy.starts_with("in database 5: DROP INDEX CONCURRENTLY orders_note,"), "{finding:?}");
}

const HEAP_LOCK: (u8, u8) = (rmid::HEAP, heap::LOCK);
const HEAP_UPDATE: (u8, u8) = (rmid::HEAP, heap::UPDATE);
/// `XLHL_XMAX_LOCK_ONLY | XLHL_XMAX_EXCL_LOCK`; the second also has `XLHL_KEYS_UPDATED`.
const NO_KEY_UPDATE: u8 = 0x06;
const FOR_UPDATE: u8 = 0x16;
/// `XLHL_XMAX_LOCK_ONLY | XLHL_XMAX_KEYSHR_LOCK`
const KEY_SHARE: u8 = 0x0A;

fn lock(log: &mut Log, xid: u32, block: u32, offset: u8, infobits: u8) {
    let mut main = xid.to_le_bytes().to_vec();
    main.extend([offset, 0, infobits, 0]);
    log.record(HEAP_LOCK, xid, 16384, &[(block, &[])], &main);
}

/// An update whose new tuple shares everything with the old one except `changed` bytes.
fn update(log: &mut Log, xid: u32, old: (u32, u8), new: (u32, u8), changed: usize) {
    update_of(log, 16384, xid, old, new, changed);
}

fn update_of(
    log: &mut Log,
    relation: u32,
    xid: u32,
    (old_block, old): (u32, u8),
    (block, new): (u32, u8),
    changed: usize,
) {
    /// `XLH_UPDATE_PREFIX_FROM_OLD`
    const PREFIX: u8 = 0x20;
    let mut main = xid.to_le_bytes().to_vec();
    main.extend([old, 0, 0, if old_block == block { PREFIX } else { 0 }, 0, 0, 0, 0, new, 0]);
    let mut tuple = if old_block == block { vec![40, 0] } else { Vec::new() };
    // t_infomask2, t_infomask, t_hoff, padding, attributes.
    tuple.extend([3, 0, 2, 0, 24, 0]);
    tuple.resize(tuple.len() + changed, 0x33);
    let blocks: &[(u32, &[u8])] =
        if old_block == block { &[(block, &tuple)] } else { &[(block, &tuple), (old_block, &[])] };
    log.record(HEAP_UPDATE, xid, relation, blocks, &main);
}

fn evidence(log: &Log) -> Evidence {
    let explanation = log.explain(&request(Vec::new()));
    explanation.evidence.iter().find(|(relation, _)| relation.relation == 16384).unwrap().1
}

#[test]
fn a_lock_belongs_to_what_its_transaction_does_next_to_the_tuple() {
    let mut log = Log::new();
    for xid in 1000..1300 {
        let block = xid - 1000;
        lock(&mut log, xid, block, 1, NO_KEY_UPDATE);
        update(&mut log, xid, (block, 1), (5000 + block, 1), 40);
        log.end(xid, true, xid.into(), &[]);
    }
    let of_updates = evidence(&log);
    assert_eq!((of_updates.update_locks.count, of_updates.moved_updates), (300, 300));
    assert_eq!((of_updates.row_locks.count, of_updates.upsert_locks.count), (0, 0));
    assert!(!rules(&log).contains(&"row-locks"));

    for xid in 2000..2200 {
        lock(&mut log, xid, xid, 1, NO_KEY_UPDATE);
        update(&mut log, xid, (xid, 1), (xid, 2), 4);
    }
    let with_upserts = evidence(&log);
    assert_eq!((with_upserts.update_locks.count, with_upserts.upsert_locks.count), (300, 200));
    for xid in 3000..4000 {
        lock(&mut log, xid, xid, 1, FOR_UPDATE);
        // Another transaction's update, and an update of another tuple.
        update(&mut log, xid + 1, (xid, 1), (xid, 2), 4);
        update(&mut log, xid, (xid, 5), (xid, 6), 4);
        lock(&mut log, xid, xid, 9, KEY_SHARE);
    }
    let all = evidence(&log);
    assert_eq!((all.row_locks.count, all.key_share_locks.count), (1000, 1000));
    assert_eq!((all.update_locks.count, all.upsert_locks.count), (300, 200));
    assert!(rules(&log).contains(&"row-locks") && rules(&log).contains(&"foreign-key-locks"));
}

#[test]
fn updates_that_change_nothing_leave_everything_out() {
    let with = |changed: usize| {
        let mut log = Log::new();
        for xid in 1000..1500 {
            update(&mut log, xid, (xid, 1), (xid, 2), changed);
        }
        let evidence = evidence(&log);
        assert_eq!(evidence.compared_updates, 500);
        (evidence.unchanged_updates, rules(&log).contains(&"no-op-updates"))
    };
    assert_eq!(with(0), (500, true));
    assert_eq!(with(1), (0, false));
}

#[test]
fn updates_of_tuples_just_written_are_counted() {
    let mut log = Log::new();
    for xid in 1000..1010 {
        (0..200).for_each(|round| update(&mut log, xid, (xid, round), (xid, round + 1), 300));
    }
    let evidence = evidence(&log);
    assert_eq!((evidence.same_transaction_updates, evidence.recent_updates), (1990, 1990));
    assert!(rules(&log).contains(&"repeated-updates"));
}

#[test]
fn leaf_pages_show_whether_keys_ascend() {
    let with = |block: fn(u32) -> u32| {
        let mut log = Log::new();
        for number in 0..1000 {
            log.record((rmid::BTREE, btree::INSERT_LEAF), 1000, 16384, &[(block(number), &[7; 24])], &[1, 0]);
        }
        let evidence = evidence(&log);
        assert_eq!(evidence.leaf_inserts, 1000);
        evidence.leaf_changes
    };
    assert_eq!(with(|number| number / 100), 10);
    assert_eq!(with(|number| number * 7919 % 500), 1000);
}

/// An entry of an index for a heap tuple.
fn entry_with_key(log: &mut Log, xid: u32, index: u32, leaf: u32, (block, offset): (u32, u8), key: u32) {
    // t_tid, whose block has its upper half first; t_info; a key.
    let mut tuple = vec![(block >> 16) as u8, 0, block as u8, (block >> 8) as u8, offset, 0, 16, 0];
    tuple.extend(key.to_le_bytes());
    tuple.extend([0; 4]);
    log.record((rmid::BTREE, btree::INSERT_LEAF), xid, index, &[(leaf, &tuple)], &[1, 0]);
}

/// The same with a key of the leaf page, and occasional splits.
fn index_entry(log: &mut Log, xid: u32, leaf: u32, tid: (u32, u8)) {
    entry_with_key(log, xid, 16390, leaf, tid, leaf * 1000 + u32::from(tid.1));
    if xid.is_multiple_of(20) {
        log.record(
            (rmid::BTREE, btree::SPLIT_R),
            xid,
            16390,
            &[(leaf, &[]), (9000 + leaf, &[7; 4000])],
            &[0; 10],
        );
    }
}

#[test]
fn random_keys_need_no_names_and_are_those_of_new_rows() {
    let with = |is_update: bool, leaf: fn(u32) -> u32| {
        let mut log = Log::new();
        for xid in 1000..2000 {
            match is_update {
                true => update(&mut log, xid, (xid, 1), (5000 + xid, 2), 40),
                // COPY: one record contains the rows of many entries.
                false if xid % 50 == 0 => {
                    log.record((rmid::HEAP2, heap2::MULTI_INSERT), xid, 16384, &[(xid, &[3; 400])], &[0; 4]);
                }
                false => {}
            }
            index_entry(&mut log, xid, leaf(xid), (5000 + xid, 2));
        }
        log.explain(&request(Vec::new()))
    };
    let random: fn(u32) -> u32 = |xid| xid * 7919 % 500;
    let found = |explanation: &Explanation, names: &Names| {
        let document = document_with(explanation, names);
        document.findings.into_iter().find(|finding| finding.rule == "random-keys")
    };
    let (inserted, nameless) = (with(false, random), Names::default());
    let finding = found(&inserted, &nameless).unwrap();
    assert_eq!(finding.points_at, "1663/5/16390");
    assert!(
        finding.text.contains("index 1663/5/16390") && finding.text.contains("100 % of 1000"),
        "{finding:?}"
    );
    assert!(finding.remedy.contains("UUIDv7"), "{finding:?}");

    let of_key = found(&inserted, &names(Some(9), Some(true))).unwrap();
    assert!(of_key.points_at == "orders_note" && of_key.remedy.starts_with("keys that ascend"), "{of_key:?}");
    let of_column = found(&inserted, &names(Some(9), Some(false))).unwrap();
    assert!(of_column.remedy.contains("max_wal_size") && !of_column.remedy.contains("UUID"), "{of_column:?}");

    assert_eq!(found(&with(true, random), &nameless), None, "entries of updated rows go where the rows are");
    assert_eq!(found(&with(false, |xid| xid / 100), &nameless), None);
}

/// Soon after a checkpoint, images of their pages replace most entries.
#[test]
fn entries_behind_images_are_not_taken_for_those_of_new_rows() {
    let mut log = Log::new();
    for xid in 1000..2000 {
        update(&mut log, xid, (xid, 1), (5000 + xid, 2), 40);
        let leaf = xid * 7919 % 500;
        match xid % 10 {
            0 => index_entry(&mut log, xid, leaf, (5000 + xid, 2)),
            _ => {
                log.record((rmid::BTREE, btree::INSERT_LEAF), xid, 16390, &[(leaf, &[])], &[1, 0]);
            }
        }
    }
    let document = document_with(&log.explain(&request(Vec::new())), &Names::default());
    assert!(document.findings.iter().all(|finding| finding.rule != "random-keys"), "{:?}", document.findings);
}

#[test]
fn entries_are_of_the_row_that_their_transaction_wrote_last() {
    let mut log = Log::new();
    for xid in 1000..1100 {
        update(&mut log, xid, (xid, 1), (5000 + xid, 2), 40);
        log.index_insert_with_image(xid, 16390, 3000);
        log.heap_insert(xid, 16384, 100);
        log.index_insert_with_image(xid, 16390, 1000);
    }
    let explanation = log.explain(&request(Vec::new()));
    let (_, index) = explanation.evidence.iter().find(|(relation, _)| relation.relation == 16390).unwrap();
    assert_eq!((index.leaf_inserts, index.update_entries), (200, 100));
    assert_eq!((index.update_images / 100 / 1000, index.leaf_images / 100 / 1000), (3, 4));
}

/// Rows loaded before the index was built have no entry in the WAL.
#[test]
fn updates_have_all_of_an_index_that_was_built_after_the_load() {
    let with = |loaded: u32| {
        let mut log = Log::new();
        for number in 0..loaded {
            log.record((rmid::HEAP2, heap2::MULTI_INSERT), 900, 16384, &[(number, &[3; 40])], &[0; 4]);
        }
        for xid in 1000..2000 {
            update(&mut log, xid, (xid, 1), (5000 + xid, 2), 40);
            index_entry(&mut log, xid, xid % 50, (5000 + xid, 2));
        }
        let findings =
            document_with(&log.explain(&request(Vec::new())), &names(Some(1), Some(true))).findings;
        let finding = findings.iter().find(|one| one.rule == "updates-without-space");
        finding.unwrap_or_else(|| panic!("{findings:?}")).bytes
    };
    let entries = 1000 * (24 + 20 + 2 + 16 + 2_u64);
    assert!(with(0) > entries);
    assert_eq!(with(1400), with(0));
}

/// A table that is named after its file does not exist on the server.
#[test]
fn a_statement_about_a_relation_without_a_name_has_a_place_for_it() {
    let mut log = Log::new();
    (1000..2000).for_each(|_| {
        log.record((rmid::GIN, gin::INSERT_LISTPAGE), 1000, 16390, &[(5, &[7; 300])], &[0; 12]);
    });
    let found = |names: &Names| {
        let findings = document_with(&log.explain(&request(Vec::new())), names).findings;
        let found = findings.iter().find(|finding| finding.rule == "gin-pending-list");
        found.unwrap_or_else(|| panic!("{findings:?}")).clone()
    };
    let named = found(&names(Some(1), Some(false)));
    assert!(named.remedy.starts_with("ALTER INDEX orders_note SET"), "{named:?}");
    assert!(named.text.contains("the GIN index orders_note of orders takes"), "{named:?}");
    let unnamed = found(&Names::default());
    assert!(unnamed.remedy.starts_with("ALTER INDEX [name of 1663/5/16390] SET"), "{unnamed:?}");
    assert!(unnamed.text.contains("the GIN index 1663/5/16390 takes"), "without its table: {unnamed:?}");
}

/// The server refuses to drop a partition of a partitioned index.
#[test]
fn an_unused_partitioned_index_is_dropped_whole() {
    let mut log = Log::new();
    for xid in 1000..2000 {
        log.heap_insert(xid, 16384 + xid % 2, 600);
        log.index_insert(xid, 16390 + xid % 2, 300);
    }
    let explanation = log.explain(&request(Vec::new()));
    let found = |scans: [u64; 2], has_parent: bool| {
        let mut names = Names::default();
        let index = |oid, name: &str, table| Relation {
            oid,
            name: name.into(),
            table: Some(table),
            is_required: Some(false),
            ..orders(RelationKind::Index)
        };
        names.add(orders(RelationKind::PartitionedTable), None);
        if has_parent {
            let kind = RelationKind::PartitionedIndex;
            names.add(Relation { kind, ..index(21_000, "orders_id_idx", 20_000) }, None);
        }
        for (number, scans) in (0..2).zip(scans) {
            add_partition(&mut names, number);
            let part = Relation {
                partition_of: Some(21_000),
                scans: Some(scans),
                ..index(21_001 + number, &format!("orders_{number}_id_idx"), 20_001 + number)
            };
            names.add(part, Some(file(16390 + number)));
        }
        let findings = document_with(&explanation, &names).findings;
        findings.into_iter().filter(|one| one.rule == "unused-index").collect::<Vec<_>>()
    };
    let whole = found([0, 0], true);
    assert!(whole.len() == 1 && whole[0].points_at == "orders_id_idx", "{whole:?}");
    assert!(whole[0].remedy.starts_with("DROP INDEX orders_id_idx,"), "{whole:?}");
    assert!(whole[0].text.starts_with("index orders_id_idx of orders, in 2 partitions,"), "{whole:?}");
    assert_eq!(whole[0].bytes, 1000 * (24 + 20 + 2 + 300 + 3_u64).next_multiple_of(8));
    assert_eq!(found([0, 1], true), [], "queries use a part of it");
    let parts = found([0, 0], false);
    assert!(
        parts.len() == 2 && parts.iter().all(|one| one.remedy.contains("partitioned table")),
        "{parts:?}"
    );
}

/// Names of a partition of `orders` (16384) and of its index (16390), a partition of a partitioned index with
/// or without a name.
fn names_of_part(has_whole: bool, is_required: Option<bool>) -> Names {
    let index = |oid, name: &str, table| Relation {
        oid,
        name: name.into(),
        table: Some(table),
        is_required,
        ..orders(RelationKind::Index)
    };
    let mut names = Names::default();
    names.add(orders(RelationKind::PartitionedTable), None);
    add_partition(&mut names, 0);
    if has_whole {
        let kind = RelationKind::PartitionedIndex;
        names.add(Relation { kind, ..index(21_000, "orders_id_idx", 20_000) }, None);
    }
    let partition_of = Some(21_000);
    names.add(Relation { partition_of, ..index(21_001, "orders_0_id_idx", 20_001) }, Some(file(16390)));
    names
}

/// The server refuses to drop a partition of a partitioned index; this holds for every finding.
#[test]
fn a_part_of_a_partitioned_index_is_dropped_with_the_whole() {
    let (mut inserted, mut updated) = (Log::new(), Log::new());
    for xid in 1000..2000 {
        index_entry(&mut inserted, xid, xid * 7919 % 500, (5000 + xid, 2));
        // On the same page, but not HOT: a column of the index changes.
        update(&mut updated, xid, (xid, 1), (xid, 2), 40);
        index_entry(&mut updated, xid, xid % 50, (xid, 2));
    }
    let why = ", if few queries need it";
    for (log, rule) in [(inserted, "random-keys"), (updated, "indexed-column-updates")] {
        let explanation = log.explain(&request(Vec::new()));
        let remedy = |names: &Names| {
            let findings = document_with(&explanation, names).findings;
            let found = findings.iter().find(|finding| finding.rule == rule);
            found.unwrap_or_else(|| panic!("{rule}: {findings:?}")).remedy.clone()
        };
        let single = remedy(&names(Some(9), Some(false)));
        assert!(single.starts_with(&format!("DROP INDEX CONCURRENTLY orders_note{why}")), "{single}");
        let whole = remedy(&names_of_part(true, Some(false)));
        let expected = format!("DROP INDEX orders_id_idx, the partitioned index of orders_0_id_idx{why}");
        assert!(whole.starts_with(&expected), "{whole}");
        let part = remedy(&names_of_part(false, Some(false)));
        assert!(part.starts_with("drop the index of the partitioned table that orders_0_id_idx"), "{part}");
        // Names of an earlier format do not record whether an index is required.
        let unknown = remedy(&names_of_part(true, None));
        let is_careful =
            !unknown.contains("DROP INDEX") || unknown.contains("if no constraint and few queries");
        assert!(is_careful, "{unknown}");
    }
}

/// Only the entries of B-trees show whether their keys change. BRIN prevents no HOT update since 16.
#[test]
fn indexes_that_may_prevent_hot_updates_are_all_named() {
    let explanation_of = |version, has_keys: bool| {
        let mut log = Log::with_version(version);
        for xid in 1000..1600 {
            for new in [2, 3] {
                update(&mut log, xid, (xid, new - 1), (xid, new), 40);
                let key = if has_keys { u32::from(new) } else { xid };
                entry_with_key(&mut log, xid, 16391, xid % 50, (xid, if has_keys { new } else { 3 }), key);
                log.record((rmid::GIN, 0x20), xid, 16392, &[(xid % 9, &[7; 40])], &[0; 4]);
                log.record((rmid::BRIN, 0x10), xid, 16393, &[(1, &[7; 40])], &[0; 4]);
            }
        }
        log.explain(&request(Vec::new()))
    };
    let found = |version, has_keys, has_tree: bool| {
        let mut names = Names::default();
        names.add(orders(RelationKind::Table), Some(file(16384)));
        for (oid, name, method) in
            [(16391, "orders_state", "btree"), (16392, "orders_tags", "gin"), (16393, "orders_range", "brin")]
        {
            let index = Relation {
                oid,
                name: name.into(),
                table: Some(20_000),
                scans: Some(9),
                is_required: Some(oid == 16391 && !has_tree),
                access_method: Some(method.into()),
                ..orders(RelationKind::Index)
            };
            names.add(index, Some(file(oid)));
        }
        let findings = document_with(&explanation_of(version, has_keys), &names).findings;
        let is_its = |one: &Finding| one.rule == "indexed-column-updates";
        findings.into_iter().find(is_its).expect("updates are not HOT")
    };
    let any = found(Major::V16, false, true);
    assert_eq!((any.points_at.as_str(), any.saves_bytes), ("orders_state or orders_tags", None), "{any:?}");
    assert!(
        any.text.contains("one of orders_state and orders_tags, and so inserted into all of its 2 indexes")
    );
    assert!(!any.remedy.contains("DROP INDEX") && !any.remedy.contains("orders_range"), "{any:?}");
    // Before 16, BRIN prevents HOT updates as well.
    let all = found(Major::V15, false, true);
    assert_eq!(all.points_at, "orders_state, orders_range or orders_tags");
    // The keys of the B-tree are required, so that the GIN index remains.
    let gin = found(Major::V16, false, false);
    assert!(gin.points_at == "orders_tags" && gin.text.contains("probably of orders_tags"), "{gin:?}");
    // The keys of the B-tree change; those of the GIN index may change as well.
    let tree = found(Major::V16, true, true);
    assert_eq!(tree.points_at, "orders_state");
    assert!(tree.remedy.ends_with(", unless they also change a column of orders_tags"), "{tree:?}");
    assert_eq!(tree.saves_bytes, tree.saves_error_bytes, "the least saving is 0: {tree:?}");
}

/// `REINDEX` assigns an index a new file, which does not show which keys change: together with the old file
/// it is one index.
#[test]
fn an_index_that_was_built_anew_is_one_with_what_its_old_file_shows() {
    let mut log = Log::new();
    for xid in 1000..1600 {
        // The first of two indexes has the same key for both versions of the row. The second contains some
        // rows only.
        for new in [2, 3] {
            update(&mut log, xid, (xid, new - 1), (xid, new), 40);
            entry_with_key(&mut log, xid, 16390, xid % 50, (xid, new), xid);
        }
        entry_with_key(&mut log, xid, 16391, xid % 50, (xid, 3), xid);
    }
    log.create(2000, 16400);
    (0..5).for_each(|_| {
        log.page_image(2000, 16400, Fork::MAIN, 2000);
    });
    log.commit_and_drop(2000, &[16390]);
    for xid in 2100..2500 {
        update(&mut log, xid, (xid, 1), (xid, 2), 40);
        entry_with_key(&mut log, xid, 16400, 7, (xid, 2), xid);
    }
    // Another index is built, and has no entry of these updates.
    log.create(2600, 16405);
    log.page_image(2600, 16405, Fork::MAIN, 2000);
    let explanation = log.explain(&request(Vec::new()));
    let found = |rule: &str, scans, are_others_required| {
        let mut names = Names::default();
        names.add(orders(RelationKind::Table), Some(file(16384)));
        for (oid, name, number) in [
            (20_001, "orders_customer", 16400),
            (20_002, "orders_state", 16391),
            (20_003, "orders_added", 16405),
        ] {
            let index = Relation {
                oid,
                name: name.into(),
                table: Some(20_000),
                scans: Some(scans),
                is_required: Some(are_others_required && oid != 20_001),
                ..orders(RelationKind::Index)
            };
            names.add(index, Some(file(number)));
        }
        rewrites::learn(&explanation, &mut names);
        let findings = document_with(&explanation, &names).findings;
        let of_rule: Vec<Finding> = findings.into_iter().filter(|one| one.rule == rule).collect();
        assert_eq!(of_rule.len(), 1, "{rule}: {of_rule:?}");
        of_rule.into_iter().next().unwrap()
    };
    let changed = found("indexed-column-updates", 9, false);
    assert_eq!(changed.points_at, "orders_state");
    assert!(changed.text.contains("all of its 2 indexes,"), "{changed:?}");
    let unused = found("unused-index", 0, true);
    // Entries of both files, and the records of the images that built the second one.
    assert_eq!((unused.points_at.as_str(), unused.bytes), ("orders_customer", 1600 * 64 + 5 * 56));
}

/// `VACUUM` writes images of the free space map with the same record.
#[test]
fn images_of_maps_are_no_reads() {
    let is_found = |fork| {
        let mut log = inserts(300);
        (0..200).for_each(|_| {
            log.hint_image(16384, fork, 4000);
        });
        rules(&log).contains(&"hint-bits")
    };
    assert!(is_found(Fork::MAIN));
    assert!(!is_found(Fork::FREE_SPACE_MAP));
}

/// Vacuum sets hint bits of a page right before it writes its own record of the page.
#[test]
fn hint_bits_of_vacuum_are_no_reads() {
    /// `XLOG_HEAP2_VISIBLE` until 18, whose first block is of the visibility map.
    const VISIBLE: (u8, u8) = (rmid::HEAP2, 0x40);
    let visible = |log: &mut Log, block: u32| {
        // BKPBLOCK_SAME_REL; block 0 is in the fork of the visibility map.
        let mut rest = vec![0, Fork::VISIBILITY_MAP.0, 0, 0];
        [1663, 5, 16384, 0].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.extend([1, 0x80, 0, 0]);
        rest.extend(block.to_le_bytes());
        rest.extend([255, 5, 0, 0, 0, 0, 3]);
        log.writer.record(VISIBLE.0, VISIBLE.1, 0, &rest);
    };
    let who = |write: &dyn Fn(&mut Log)| {
        let mut log = Log::new();
        write(&mut log);
        let document = log.document();
        let finding = document.findings.iter().find(|one| one.rule == "hint-bits").expect("images");
        let mut activities: Vec<_> = document
            .causes
            .iter()
            .filter(|cause| cause.mechanism == Mechanism::HintImage)
            .map(|cause| (cause.activity, cause.images))
            .collect();
        activities.sort();
        (finding.text.split(" of ").next().unwrap().to_owned(), activities)
    };
    let hints = |log: &mut Log, block: u32| _ = log.hint_image_of(16384, block, 4000);
    let by_vacuum = who(&|log| {
        for block in 0..200 {
            hints(log, block);
            visible(log, block);
        }
    });
    assert_eq!(by_vacuum, ("vacuum".to_owned(), vec![(Activity::Vacuum, 200)]));
    // A read of the whole table, then vacuum.
    let by_read = who(&|log| {
        (0..200).for_each(|block| hints(log, block));
        (0..199).for_each(|block| visible(log, block));
    });
    assert_eq!(by_read, ("reads".to_owned(), vec![(Activity::Read, 200)]));
    let by_both = who(&|log| {
        (300..400).for_each(|block| hints(log, block));
        for block in 0..100 {
            hints(log, block);
            // Pruning by vacuum, which has no transaction.
            log.record((rmid::HEAP2, 0x10), 0, 16384, &[(block, &[])], &[0; 8]);
            visible(log, block);
        }
    });
    let activities = vec![(Activity::Read, 100), (Activity::Vacuum, 100)];
    assert_eq!(by_both, ("reads and vacuum".to_owned(), activities));
}

/// A subscription's apply worker locks each row before it changes it. The change has an origin, unlike the
/// lock.
#[test]
fn locks_before_changes_with_an_origin_are_of_a_subscription() {
    let mut log = Log::new();
    for xid in 1000..1500_u32 {
        lock(&mut log, xid, xid, 1, FOR_UPDATE);
        let mut main = xid.to_le_bytes().to_vec();
        main.extend([1, 0, 0, 0]);
        log.record_with_origin((rmid::HEAP, heap::DELETE), xid, 16384, xid, &main);
    }
    // These changes are of no subscription.
    for xid in 2000..2200 {
        lock(&mut log, xid, xid, 9, FOR_UPDATE);
        log.record((rmid::HEAP, heap::DELETE), xid, 16384, &[(xid, &[])], &[0, 0, 0, 0, 9, 0, 0, 0]);
    }
    let document = log.document();
    let locks = |activity| {
        let is_its =
            |cause: &&CauseDocument| (cause.activity, cause.mechanism) == (activity, Mechanism::Lock);
        document.causes.iter().find(is_its).map_or(0, |cause| cause.records)
    };
    assert_eq!((locks(Activity::Apply), locks(Activity::RowLock)), (500, 200));
    let found = document.findings.iter().find(|one| one.rule == "row-locks").unwrap();
    assert!(found.text.starts_with("200 rows"), "{found:?}");
}

/// An update on another page also takes a lock of its own.
#[test]
fn the_lock_of_a_subscription_precedes_the_one_of_its_update() {
    let mut log = Log::new();
    for xid in 1000..1100_u32 {
        lock(&mut log, xid, xid, 1, FOR_UPDATE);
        lock(&mut log, xid, xid, 1, NO_KEY_UPDATE);
        log.moving_update_with_origin(xid, 16384, (xid, 1), (9000 + xid, 2));
    }
    let evidence = evidence(&log);
    let counts = [evidence.applied_locks, evidence.update_locks, evidence.row_locks].map(|one| one.count);
    assert_eq!(counts, [100, 100, 0]);
}

#[test]
fn a_lock_of_an_update_has_its_image() {
    let mut log = Log::new();
    for xid in 1000..1100_u32 {
        let mut main = xid.to_le_bytes().to_vec();
        main.extend([1, 0, NO_KEY_UPDATE, 0]);
        // BKPBLOCK_HAS_IMAGE; an image of 2000 bytes with a hole (BKPIMAGE_HAS_HOLE, BKPIMAGE_APPLY).
        let mut rest = vec![0, 0x10, 0, 0];
        rest.extend(2000_u16.to_le_bytes());
        rest.extend(24_u16.to_le_bytes());
        rest.push(3);
        [1663, 5, 16384, xid].iter().for_each(|field| rest.extend(u32::to_le_bytes(*field)));
        rest.extend([255, main.len() as u8]);
        rest.resize(rest.len() + 2000, 0);
        rest.extend(main);
        log.writer.record(HEAP_LOCK.0, HEAP_LOCK.1, xid, &rest);
        update(&mut log, xid, (xid, 1), (5000 + xid, 1), 40);
    }
    let evidence = evidence(&log);
    assert_eq!(evidence.update_locks.count, 100);
    assert!((100 * 2000..100 * 2020).contains(&evidence.update_locks.image_bytes), "{evidence:?}");
    assert_eq!((evidence.row_locks.count, evidence.row_locks.image_bytes), (0, 0));
}

#[test]
fn many_small_transactions_are_no_bulk_update() {
    let with = |xid: fn(u32) -> u32| {
        let mut log = Log::new();
        for number in 0..15_001 {
            update(&mut log, xid(number), (number, 1), (number, 2), 40);
        }
        rules(&log).contains(&"bulk-update")
    };
    assert!(!with(|number| 1000 + number / 4));
    assert!(with(|_| 1000));
}

#[test]
fn rows_that_move_to_another_partition_are_not_deleted() {
    /// `XLH_DELETE_IS_PARTITION_MOVE`
    const IS_PARTITION_MOVE: u8 = 0x10;
    let with = |flags: u8| {
        let mut log = Log::new();
        for block in 0..6000 {
            let mut main = 1000_u32.to_le_bytes().to_vec();
            main.extend([1, 0, 0, flags]);
            log.record((rmid::HEAP, heap::DELETE), 1000, 16384, &[(block, &[])], &main);
        }
        rules(&log).contains(&"bulk-delete")
    };
    assert!(with(0));
    assert!(!with(IS_PARTITION_MOVE));
}

#[test]
fn a_bulk_update_of_many_partitions_is_one() {
    let mut log = Log::new();
    for number in 0..6000 {
        let block: &[u8] = &[3, 0, 2, 0, 24, 0, 1];
        let main = [&1000_u32.to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0]].concat();
        log.record(HEAP_UPDATE, 1000, 16384 + number % 10, &[(number, block)], &main);
    }
    let explanation = log.explain(&request(Vec::new()));
    let mut names = Names::default();
    names.add(orders(RelationKind::PartitionedTable), None);
    for number in 0..10 {
        add_partition(&mut names, number);
    }
    let findings = document_with(&explanation, &names).findings;
    let bulk: Vec<_> = findings.iter().filter(|one| one.rule == "bulk-update").collect();
    assert!(bulk.len() == 1 && bulk[0].points_at == "orders", "{findings:?}");
    assert!(bulk[0].text.contains("at least 6000 rows of orders;"), "{findings:?}");
    assert!(bulk[0].remedy.contains("for each partition of orders: ALTER TABLE [partition] SET"), "{bulk:?}");
}

/// Without their updates, transactions would write no commit record either.
#[test]
fn updates_take_the_commits_of_transactions_that_did_nothing_else() {
    let mut names = Names::default();
    names.add(orders(RelationKind::PartitionedTable), None);
    (0..2).for_each(|number| add_partition(&mut names, number));
    let found = |relations: [u32; 2], other: fn(&mut Log, u32)| {
        let mut log = Log::new();
        for xid in 1000..1500 {
            for relation in relations {
                update_of(&mut log, relation, xid, (xid, 1), (xid, 2), 0);
            }
            other(&mut log, xid);
            log.end(xid, true, xid.into(), &[]);
        }
        let findings = document_with(&log.explain(&request(Vec::new())), &names).findings;
        let all: Vec<_> = findings.into_iter().filter(|one| one.rule == "no-op-updates").collect();
        assert_eq!(all.len(), 1);
        let has_commits = all[0].text.contains("with the commits of 500 transactions that did nothing else");
        (all[0].points_at.clone(), all[0].bytes, has_commits)
    };
    let (name, without, has_commits) = found([16384, 16385], |log, xid| _ = log.heap_insert(xid, 16400, 40));
    assert_eq!((name.as_str(), has_commits), ("orders", false));
    let (_, _, has_commits) = found([16384, 16384], |log, xid| lock(log, xid, xid, 9, FOR_UPDATE));
    assert!(!has_commits, "the lock of another row stays");
    let (_, with, has_commits) = found([16384, 16385], |_, _| ());
    assert!(has_commits && (500 * 32..=500 * 48).contains(&(with - without)), "{with} {without}");
    // Updates of one partition have its name.
    assert_eq!(found([16384, 16384], |_, _| ()).0, "orders_0");
}

/// A snapshot without a transaction ID is in no record.
#[test]
fn row_versions_that_are_never_pruned_show_an_old_snapshot() {
    let found = |prunes: u32| {
        let mut log = Log::new();
        for round in 0..10 {
            for row in 0..200 {
                let xid = 1000 + round * 200 + row;
                update(&mut log, xid, (round * 200 + row, 1), ((round + 1) * 200 + row, 1), 300);
            }
            for block in 0..prunes {
                log.record((rmid::HEAP2, 0x10), 0, 16384, &[(block, &[])], &[0; 8]);
            }
        }
        let findings = log.document().findings;
        findings.into_iter().find(|one| one.rule == "old-transaction").map(|one| (one.points_at, one.remedy))
    };
    let (points_at, remedy) = found(0).unwrap();
    assert_eq!(points_at, "an old snapshot");
    // An idle transaction has no snapshot.
    let holders = ["backend_xid", "backend_xmin", "pg_prepared_xacts", "age(xmin)", "catalog_xmin"];
    assert!(holders.iter().all(|holder| remedy.contains(holder)), "{remedy}");
    assert_eq!(found(20), None);
}

#[test]
fn a_subtransaction_that_is_rolled_back_is_no_transaction() {
    let mut log = Log::new();
    for xid in 1001..1065 {
        log.heap_insert(xid, 16384, 100);
        log.end(xid, false, 7, &[]);
    }
    let mut main = 1000_u32.to_le_bytes().to_vec();
    main.extend(64_u32.to_le_bytes());
    (1001..1065_u32).for_each(|subxid| main.extend(subxid.to_le_bytes()));
    log.writer.main_data(rmid::XACT, xact::ASSIGNMENT, &main);
    log.end(1000, true, 8, &[]);
    let sums = log.explain(&request(Vec::new())).transaction_sums;
    assert_eq!((sums.committed, sums.aborted, sums.aborted_bytes), (1, 0, 0));
    assert_eq!((sums.subtransactions, sums.aborted_subtransactions), (64, 64));
    assert!(sums.aborted_subtransaction_bytes > 64 * 100);
}

#[test]
fn causes_never_exceed_the_log() {
    let check = |document: &Document| {
        let causes: u64 = document
            .findings
            .iter()
            .filter(|finding| finding.kind == FindingKind::Cause)
            .map(|finding| finding.bytes)
            .sum();
        assert!(causes <= document.file_bytes, "{:#?}", document.findings);
        for finding in &document.findings {
            assert!(finding.saves_bytes.unwrap_or(0) <= finding.bytes, "{finding:#?}");
            assert!(!finding.text.is_empty() && !finding.points_at.is_empty() && !finding.remedy.is_empty());
        }
    };
    for version in GOLDEN {
        explain_golden(version, &request(Vec::new())).iter().for_each(|one| check(&document(one)));
    }
    // Rows written repeatedly by transactions that are rolled back, with an index that no query uses.
    let mut log = Log::new();
    for xid in 1000..3000 {
        lock(&mut log, xid, 1, 1, FOR_UPDATE);
        (0..4).for_each(|round| update(&mut log, xid, (1, round), (1, round + 1), 0));
        log.index_insert(xid, 16390, 100);
        log.end(xid, false, xid.into(), &[]);
    }
    let explanation = log.explain(&request(Vec::new()));
    check(&document_with(&explanation, &names(Some(0), Some(false))));
}

#[test]
fn rolled_back_transactions_are_found_by_their_bytes() {
    let with = |aborted: u32| {
        let mut log = Log::new();
        for xid in 1..1000 {
            log.heap_insert(xid, 16384, 500);
            log.end(xid, xid % 10 >= aborted, xid.into(), &[]);
        }
        rules(&log).contains(&"rolled-back")
    };
    assert!(with(4));
    assert!(!with(0));
}

/// Transactions that a crash ended are no error of the application: the checkpoint at the end of recovery is
/// a shutdown checkpoint.
#[test]
fn a_transaction_that_a_crash_ended_was_not_rolled_back() {
    let found = |aborted: u32| {
        let mut log = Log::new();
        for xid in 1000..1100 {
            log.heap_insert(xid, 16384, 4000);
            log.end(xid, xid >= 1000 + aborted, xid.into(), &[]);
        }
        (0..100).for_each(|_| {
            log.heap_insert(2000, 16384, 4000);
        });
        log.running_xacts(2001);
        let explanation = log.explain(&request(Vec::new()));
        let sums = explanation.transaction_sums;
        assert_eq!((sums.aborted, sums.cut_off, sums.cut_off_xids), (u64::from(aborted) + 1, 1, 1));
        assert_eq!(sums.cut_off_bytes, log.bytes_of(&[2000]));
        let findings = document(&explanation).findings;
        findings.into_iter().filter(|one| one.rule == "rolled-back").collect::<Vec<_>>()
    };
    let [crash]: [Finding; 1] = found(0).try_into().unwrap();
    assert!(crash.text.contains("1 transaction that ended without a commit or abort record"), "{crash:?}");
    assert_eq!((crash.points_at.as_str(), crash.saves_bytes), ("a crash of the server", None));
    let both = found(60);
    let has = |text: &str| both.iter().any(|one| one.text.contains(text));
    assert!(
        both.len() == 2 && has("60 transactions that were rolled back") && has("1 transaction that ended"),
        "{both:?}"
    );
}

#[test]
fn messages_for_logical_decoding_are_found() {
    let mut log = inserts(8);
    assert!(!rules(&log).contains(&"logical-messages"));
    (0..1000).for_each(|_| {
        log.record((rmid::LOGICALMSG, logicalmsg::MESSAGE), 0, 0, &[], &[7; 250]);
    });
    let findings = log.document().findings;
    let messages = findings.iter().find(|one| one.rule == "logical-messages").unwrap();
    assert_eq!(messages.bytes, 1000 * (24 + 2 + 250_u64).next_multiple_of(8));
    assert!(messages.text.starts_with("1000 messages for logical decoding"), "{messages:?}");
    assert!(messages.text.contains("of 280 bytes on average: "), "{messages:?}");
}

/// In segments with compressed images, others are those that compression did not make smaller. In segments
/// without any, the setting was off.
#[test]
fn images_that_cannot_be_compressed_are_no_fault_of_the_setting() {
    let found = |records: &[(usize, bool)]| {
        let mut log = Log::new();
        for (count, is_compressed) in records {
            (0..*count).for_each(|_| {
                match is_compressed {
                    true => log.insert_with_compressed_image(1000, 16384, 2000),
                    false => log.insert_with_image(1000, 16384, 3000),
                };
            });
        }
        let explanation = log.explain(&request(Vec::new()));
        assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
        let findings = document(&explanation).findings;
        findings.into_iter().find(|one| one.rule == "uncompressed-images").map(|one| one.bytes)
    };
    assert_eq!(found(&[(300, false)]), Some(300 * 3000));
    assert_eq!(found(&[(20, true), (60, false)].repeat(10)), None);
    let before_a_change = found(&[(900, false), (100, true)]);
    assert!(
        before_a_change.is_some_and(|bytes| (1_800_000..2_700_000).contains(&bytes)),
        "{before_a_change:?}"
    );
    assert_eq!(found(&[(300, false), (900, true)]), None, "most are compressed");
}

#[test]
fn one_large_transaction_is_found() {
    let with = |xid: fn(u32) -> u32| {
        let mut log = Log::new();
        for round in 1..2000 {
            log.heap_insert(xid(round), 16384 + round % 5, 500);
        }
        rules(&log).contains(&"large-transaction")
    };
    assert!(with(|_| 7));
    assert!(!with(|round| round));
}

#[test]
fn a_table_that_no_other_cause_explains_is_named_with_what_wrote_it() {
    let with = |xid: fn(u32) -> u32| {
        let mut log = Log::new();
        for round in 1..2000 {
            log.heap_insert(xid(round), 16384, 500);
            log.index_insert(xid(round), 16390, 100);
        }
        let document = document_with(&log.explain(&request(Vec::new())), &names(Some(1), Some(false)));
        let [finding] = document.findings.as_slice() else { panic!("{:?}", document.findings) };
        assert_eq!((finding.rule, finding.points_at.as_str()), ("main-table", "orders"));
        assert!(finding.remedy.contains("COPY"), "{finding:?}");
        finding.text.clone()
    };
    let text = with(|round| round);
    assert!(text.contains(" of the WAL: 1999 rows inserted one by one into orders (table 7"), "{text}");
    assert!(text.contains(", its index 2") && !text.contains("transaction"), "{text}");
    assert!(with(|_| 7).contains("; transaction 7 writes "));
}

/// Most updates show their old row only in records with images.
#[test]
fn a_sample_of_updates_does_not_promise_a_saving() {
    let saves = |compared: u32| {
        let mut log = Log::new();
        for xid in 1000..1500 {
            // Without images, the record does not contain a row that moves to another page.
            let block = if xid < 1000 + compared { xid } else { xid + 5000 };
            update(&mut log, xid, (xid, 1), (block, 2), 0);
        }
        let findings = log.document().findings;
        let found = findings.iter().find(|one| one.rule == "no-op-updates").unwrap();
        (found.saves_bytes.unwrap() - found.saves_error_bytes.unwrap(), found.text.clone())
    };
    let (least, text) = saves(100);
    assert!(least <= 1 && text.starts_with("100 of the 100 updates whose old and new row"), "{text}");
    assert!(text.contains("(of 500 updates)"), "{text}");
    assert!(saves(500).0 > 1000);
}

/// Bytes of records of one kind.
fn bytes_of(log: &Log, (rmid, info): (u8, u8)) -> u64 {
    let is_its = |record: &[u8]| record[16] == info && record[17] == rmid;
    let records = log.writer.records.iter().filter(|(_, record)| is_its(record));
    records.map(|(_, record)| record.len().next_multiple_of(8) as u64).sum()
}

#[test]
fn a_table_is_written_whole_by_images_of_its_own_pages() {
    let found = |log: &Log| {
        let explanation = log.explain(&request(Vec::new()));
        assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
        let findings = document_with(&explanation, &names(Some(9), Some(true))).findings;
        let written = findings.into_iter().filter(|one| ["table-rewrite", "index-build"].contains(&one.rule));
        written.map(|one| (one.rule, one.bytes)).collect::<Vec<_>>()
    };
    // A table that is filled, then slightly truncated by vacuum, which logs a page of each map. The next
    // record is a page that vacuum found empty.
    let mut log = Log::new();
    log.create(1000, 16384);
    log.create(1000, 16390);
    (0..300).for_each(|_| {
        log.heap_insert(1000, 16384, 3000);
    });
    log.page_image(0, 16384, Fork::FREE_SPACE_MAP, 4000);
    log.page_image(0, 16384, Fork::VISIBILITY_MAP, 8000);
    assert_eq!(found(&log), []);
    log.page_image(0, 16384, Fork::MAIN, 24);
    assert_eq!(found(&log), []);
    // An index on it is built.
    (0..100).for_each(|_| {
        log.page_image(1001, 16390, Fork::MAIN, 7000);
    });
    log.page_image(1001, 16390, Fork::FREE_SPACE_MAP, 100);
    assert_eq!(found(&log), [("index-build", 100 * 7000)]);

    // VACUUM FULL, and later rows.
    let mut log = Log::new();
    log.create(1000, 16384);
    log.create(1000, 16390);
    for relation in [16384, 16390] {
        (0..100).for_each(|_| {
            log.page_image(1000, relation, Fork::MAIN, 7000);
        });
    }
    let rewritten = bytes_of(&log, (rmid::XLOG, xlog::FPI));
    (0..100).for_each(|_| {
        log.heap_insert(1001, 16384, 3000);
    });
    assert_eq!(found(&log), [("table-rewrite", rewritten)]);
}

/// The state after `REINDEX CONCURRENTLY` and `CREATE INDEX`, before any insert.
#[test]
fn an_index_without_a_name_is_known_by_its_images() {
    let found = |log: &Log| {
        let findings = document_with(&log.explain(&request(Vec::new())), &Names::default()).findings;
        let built = findings.into_iter().filter(|one| one.rule == "index-build");
        built.map(|one| (one.points_at, one.bytes)).collect::<Vec<_>>()
    };
    let build = |log: &mut Log, relation| {
        log.create(1000, relation);
        (0..100).for_each(|_| {
            log.page_image(1000, relation, Fork::MAIN, 7000);
        });
    };
    let mut log = Log::new();
    build(&mut log, 16390);
    assert_eq!(found(&log), [("1663/5/16390".to_owned(), 100 * 7000)]);
    log.heap_insert(1001, 16390, 100);
    assert_eq!(found(&log), [], "a table has rows");
    let mut log = Log::new();
    log.create(1000, 1259);
    build(&mut log, 16390);
    assert_eq!(found(&log), [], "CREATE DATABASE");
    let mut log = Log::new();
    log.lock_relation(1000, 16400);
    build(&mut log, 16400);
    log.commit_and_drop(1000, &[16384]);
    assert_eq!(found(&log), [], "VACUUM FULL");
}

/// A relation with the OID 20000, which is written into the file 16384 and then, with more rows, into 16400.
/// `new` is the OID that the transactions that create these files lock.
fn written_twice(kind: RelationKind, [first, second]: [u32; 2]) -> Vec<Finding> {
    let mut log = Log::new();
    for (xid, new, file, dropped) in [(1000, first, 16384, &[][..]), (1001, second, 16400, &[16384])] {
        log.lock_relation(xid, new);
        log.create(xid, file);
        (0..xid / 5).for_each(|_| {
            log.heap_insert(xid, file, 3000);
        });
        log.commit_and_drop(xid, dropped);
    }
    (0..100).for_each(|_| {
        log.heap_insert(1002, 16400, 3000);
    });
    let explanation = log.explain(&request(Vec::new()));
    assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
    let mut names = Names::default();
    names.add(orders(kind), Some(file(16400)));
    rewrites::learn(&explanation, &mut names);
    document_with(&explanation, &names).findings
}

#[test]
fn a_table_that_alter_table_writes_anew_is_not_emptied() {
    let rules = |findings: &[Finding]| findings.iter().map(|one| one.rule).collect::<Vec<_>>();
    let altered = written_twice(RelationKind::Table, [16384, 16400]);
    assert_eq!(rules(&altered), ["table-rewrite"]);
    let rows = 200 * (24 + 20 + 2 + 3000 + 3_u64).next_multiple_of(8);
    assert!((rows..rows + 500).contains(&altered[0].bytes), "{altered:?}");
    assert!(
        altered[0].text.contains("SET LOGGED") && altered[0].remedy.contains("ALTER TABLE"),
        "{altered:?}"
    );
    let emptied = written_twice(RelationKind::Table, [16384, 20_000]);
    assert_eq!(rules(&emptied), ["staging-table"]);
    assert!(emptied[0].text.starts_with("orders was filled and truncated 1 time;"), "{emptied:?}");
    let refreshed = written_twice(RelationKind::MaterializedView, [16384, 16400]);
    assert_eq!(rules(&refreshed), ["materialized-view-refresh"]);
    assert!(refreshed[0].text.contains("written whole 1 time, 917 kB each"), "{refreshed:?}");
}

/// A table and its index in new files, written by images or row by row. `locked` are the relations that the
/// transaction locks in addition to the transient table. Returns the text and the remedy of the finding.
fn rewritten(version: Major, has_rows: bool, locked: u32) -> (String, String) {
    let mut log = Log::with_version(version);
    log.lock_relation(1000, 16400);
    log.create(1000, 16400);
    (0..100).for_each(|_| {
        match has_rows {
            true => log.heap_insert(1000, 16400, 3000),
            false => log.page_image(1000, 16400, Fork::MAIN, 7000),
        };
    });
    log.create(1000, 16405);
    log.lock_relation(1000, locked);
    (0..50).for_each(|_| {
        log.page_image(1000, 16405, Fork::MAIN, 7000);
    });
    log.commit_and_drop(1000, &[16384, 16390]);
    let explanation = log.explain(&request(Vec::new()));
    assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
    let mut names = Names::default();
    let kind = RelationKind::Index;
    let index = Relation { oid: 20_001, name: "orders_note".into(), table: Some(20_000), ..orders(kind) };
    names.add(orders(RelationKind::Table), Some(file(16400)));
    names.add(index, Some(file(16405)));
    rewrites::learn(&explanation, &mut names);
    let findings = document_with(&explanation, &names).findings;
    let found = findings.into_iter().find(|one| one.rule == "table-rewrite").unwrap();
    (found.text, found.remedy)
}

/// `REPACK (CONCURRENTLY)` creates new indexes, which it locks. All other commands write the existing indexes
/// into new files.
#[test]
fn since_19_repack_is_told_from_alter_table_and_advised() {
    const CONCURRENTLY: &str = "REPACK (CONCURRENTLY)";
    let (text, _) = rewritten(Major::V19, true, 16405);
    assert!(text.contains("were written whole by REPACK (CONCURRENTLY)"), "{text}");
    for (version, locked) in [(Major::V19, 16390), (Major::V18, 16390), (Major::V18, 16405)] {
        let (text, remedy) = rewritten(version, true, locked);
        assert!(text.contains("as ALTER TABLE does") && !remedy.contains("REPACK"), "{version}: {text}");
    }
    for (version, has_repack) in [(Major::V18, false), (Major::V19, true)] {
        let (text, remedy) = rewritten(version, false, 16390);
        assert!(text.contains("VACUUM FULL") && remedy.starts_with("plain VACUUM"), "{text}: {remedy}");
        assert_eq!((text.contains("REPACK"), remedy.contains(CONCURRENTLY)), (has_repack, has_repack));
    }
}

#[test]
fn since_19_pages_that_are_marked_as_visible_alone_are_not_pruned() {
    let prunes = |version, main: [u8; 2]| {
        let mut log = Log::with_version(version);
        (0..10).for_each(|number| {
            log.record((rmid::HEAP2, heap2::PRUNE_ON_ACCESS), 1000, 16384, &[(number, &[1, 0, 2, 0])], &main);
        });
        evidence(&log).prunes.count
    };
    assert_eq!(prunes(Major::V19, [0x00, 0x01]), 0, "XLHP_VM_ALL_VISIBLE");
    assert_eq!(prunes(Major::V19, [0x80, 0x01]), 10, "with XLHP_HAS_NOW_UNUSED_ITEMS");
    assert_eq!(prunes(Major::V18, [0x00, 0x80]), 10);
}

#[test]
fn a_new_table_is_no_rewrite_of_one_that_is_emptied_with_it() {
    let found = |oid: u32| {
        let mut log = Log::new();
        (0..300).for_each(|_| {
            log.heap_insert(1000, 17000, 1000);
        });
        log.lock_relation(1001, 16400);
        log.create(1001, 16400);
        log.create(1001, 17001);
        log.heap_insert(1001, 16400, 10);
        log.commit_and_drop(1001, &[17000]);
        let mut names = Names::default();
        names.add(Relation { oid, ..orders(RelationKind::Table) }, Some(file(16400)));
        let findings = document_with(&log.explain(&request(Vec::new())), &names).findings;
        findings.iter().any(|one| one.rule == "staging-table")
    };
    assert!(found(16400), "the OID of a new table is the number of its first file");
    assert!(!found(20_000), "the file that was dropped may be that of the table before");
}

/// A table that is filled, and whose file is dropped by a transaction that logs no locks. Returns the
/// finding, and the name of that file according to names that contain the new file. `relations` are the OIDs
/// that the commit record drops; `images` are logged of the new file.
fn dropped_without_locks(version: Major, relations: &[u32], images: u32) -> (Vec<&'static str>, bool) {
    let mut log = Log::with_version(version);
    // A transaction creates its first file before it has an ID.
    log.create(0, 16384);
    (0..300).for_each(|_| {
        log.heap_insert(1000, 16384, 1000);
    });
    log.end(1000, true, 1000, &[]);
    log.create(0, 16400);
    (0..images).for_each(|_| {
        log.page_image(1001, 16400, Fork::MAIN, 2000);
    });
    log.commit_and_drop_without_locks(1001, &[16384], relations);
    let explanation = log.explain(&request(Vec::new()));
    assert!(explanation.damage.is_none(), "{:?}", explanation.damage);
    let mut names = Names::default();
    names.add(orders(RelationKind::Table), Some(file(16400)));
    rewrites::learn(&explanation, &mut names);
    let is_named = names.resolve(file(16384)).relation().is_some();
    let rules: Vec<_> = document_with(&explanation, &names).findings.iter().map(|one| one.rule).collect();
    let without_names = document_with(&explanation, &Names::default()).findings;
    let is_found = without_names.iter().any(|one| one.rule == "staging-table");
    assert_eq!(is_found, rules.contains(&"staging-table"), "{without_names:?}");
    (rules, is_named)
}

#[test]
fn a_rewrite_under_minimal_is_no_staging_table() {
    let has = |found: &(Vec<&str>, bool), rule: &str| found.0.contains(&rule);
    let whole = dropped_without_locks(Major::V15, &[16400], 0);
    assert!(!has(&whole, "staging-table") && !has(&whole, "table-rewrite") && whole.1, "{whole:?}");
    let by_images = dropped_without_locks(Major::V15, &[16400], 100);
    assert!(!has(&by_images, "staging-table") && has(&by_images, "table-rewrite"), "{by_images:?}");
    let truncated = dropped_without_locks(Major::V15, &[], 0);
    assert!(has(&truncated, "staging-table"), "{truncated:?}");
    let dropped = dropped_without_locks(Major::V15, &[16384], 0);
    assert!(has(&dropped, "staging-table") && !dropped.1, "{dropped:?}");
    // The commit record does not list the relations it drops.
    let unclear = dropped_without_locks(Major::V14, &[], 0);
    assert!(!has(&unclear, "staging-table"), "{unclear:?}");
}

#[test]
fn an_index_that_is_dropped_alone_is_no_table() {
    let mut log = Log::new();
    for relation in [16384, 16390, 17000] {
        log.create(1000, relation);
    }
    for _ in 0..300 {
        log.heap_insert(1000, 16384, 1000);
        log.index_insert(1000, 16390, 300);
        log.index_insert(1000, 17000, 1000);
    }
    log.commit_and_drop(1001, &[17000]);
    log.commit_and_drop(1002, &[16384, 16390]);
    let findings = log.document().findings;
    let staging = findings.iter().find(|one| one.rule == "staging-table").unwrap();
    let record = |data: u64| (24 + 20 + 2 + data + 3).next_multiple_of(8);
    assert_eq!(staging.bytes, 300 * (record(1000) + record(300)));
    assert!(staging.text.starts_with("1 table was") && staging.text.contains("it takes"), "{staging:?}");
    assert_eq!(staging.points_at, "1663/5/16384");
    // Expiring partitions look the same.
    assert!(staging.remedy.contains("for partitions that expire, nothing"), "{staging:?}");
    assert_eq!(staging.saves_bytes, staging.saves_error_bytes);
}

/// Relfilenumbers of catalogs whose files initdb created.
const PG_ATTRIBUTE: u32 = 1249;
const PG_CLASS: u32 = 1259;
const PG_LARGEOBJECT: u32 = 2613;
const PG_LARGEOBJECT_INDEX: u32 = 2683;

/// The findings about catalogs.
fn found_in_catalogs(explanation: &Explanation) -> Vec<Finding> {
    let mut names = Names::default();
    names.set_version(explanation.version);
    let findings = document_with(explanation, &names).findings;
    findings.into_iter().filter(|one| ["catalog-churn", "large-objects"].contains(&one.rule)).collect()
}

#[test]
fn large_objects_are_no_churn_of_catalogs() {
    let with = |kinds: &[u8]| {
        let mut log = Log::new();
        for xid in 1000..1300 {
            for kind in kinds {
                log.block_record(rmid::HEAP, *kind, xid, PG_LARGEOBJECT, 2000);
                log.index_insert(xid, PG_LARGEOBJECT_INDEX, 16);
            }
        }
        let mut found = found_in_catalogs(&log.explain(&request(Vec::new())));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let loaded = with(&[heap::INSERT]);
    assert_eq!((loaded.rule, loaded.points_at.as_str()), ("large-objects", "pg_largeobject"));
    assert!(loaded.text.contains("300 rows of pg_largeobject were inserted, 0 updated"), "{loaded:?}");
    assert!(loaded.remedy.starts_with("compress the content") && loaded.saves_bytes.is_none(), "{loaded:?}");
    let unlinked = with(&[heap::DELETE]);
    assert!(unlinked.remedy.contains("partitions") && !unlinked.remedy.contains("compress"), "{unlinked:?}");
    let in_pieces = with(&[heap::INSERT, heap::UPDATE, heap::HOT_UPDATE]);
    assert!(
        in_pieces.text.contains("300 rows of pg_largeobject were inserted, 600 updated"),
        "{in_pieces:?}"
    );
    assert!(in_pieces.remedy.contains("multiples of 2048 bytes"), "{in_pieces:?}");
    assert!(in_pieces.saves_bytes.is_some_and(|bytes| bytes < in_pieces.bytes / 2), "{in_pieces:?}");
}

#[test]
fn causes_of_changed_catalogs_are_named_where_rows_or_files_show_them() {
    let with = |write: fn(&mut Log, u32)| {
        let mut log = Log::new();
        (1000..1200).for_each(|xid| write(&mut log, xid));
        let mut found = found_in_catalogs(&log.explain(&request(Vec::new())));
        assert_eq!(found.len(), 1, "{found:?}");
        let Finding { points_at, text, .. } = found.remove(0);
        (points_at, text)
    };
    let (cause, text) = with(|log, xid| {
        log.heap_insert(xid, PG_CLASS, 2000);
        log.create(xid, 20_000 + xid);
        log.commit_and_drop(10_000 + xid, &[20_000 + xid]);
    });
    assert_eq!(cause, "tables created and dropped");
    assert!(text.contains("200 relations were entered in pg_class, 200 with a logged file"), "{text}");
    assert!(text.contains("200 of 200 new files were dropped again"), "{text}");
    // Partitions that are created in advance.
    let (cause, text) = with(|log, xid| {
        log.heap_insert(xid, PG_CLASS, 2000);
        log.create(xid, 20_000 + xid);
    });
    assert_eq!(cause, "tables created");
    assert!(text.contains("0 of 200 new files were dropped again"), "{text}");
    let (cause, _) = with(|log, xid| {
        log.heap_insert(xid, PG_CLASS, 2000);
    });
    assert_eq!(cause, "temporary tables");
    // TRUNCATE: a file without a row.
    let (cause, text) = with(|log, xid| {
        log.block_record(rmid::HEAP, heap::UPDATE, xid, PG_CLASS, 2000);
        log.create(xid, 20_000 + xid);
    });
    assert_eq!(cause, "pg_class");
    assert!(text.contains("no relation was entered in pg_class"), "{text}");
    // DROP TABLE of older tables, ten in each transaction and fifteen in the last.
    let (cause, text) = with(|log, xid| {
        log.block_record(rmid::HEAP, heap::DELETE, xid, PG_CLASS, 2000);
        if xid % 10 == 9 {
            let files = if xid == 1199 { 15 } else { 10 };
            log.commit_and_drop(xid, &Vec::from_iter(10 * xid..10 * xid + files));
        }
    });
    assert_eq!(cause, "tables dropped");
    let dropped = "205 files of older relations were dropped, 15 of them by the commit at ";
    assert!(text.contains(dropped), "{text}");
    let (cause, text) = with(|log, xid| {
        if xid == 1000 {
            log.record((rmid::DBASE, dbase::CREATE_WAL_LOG), xid, 0, &[], &[0; 12]);
        }
        log.create(xid, xid);
        log.page_image(xid, PG_ATTRIBUTE, Fork::MAIN, 5000);
    });
    assert_eq!(cause, "CREATE DATABASE");
    assert!(text.contains("1 database was created"), "{text}");
}

/// initdb's checkpoints are requests by its CREATE DATABASE, not by scripts of the server's users.
#[test]
fn checkpoints_of_initdb_are_left_out() {
    let with = |start| {
        let mut log = Log::new();
        log.writer.start = start;
        // BootStrapXLOG; the end of bootstrap mode; CREATE DATABASE, four times; the end of initdb.
        log.shutdown(1000);
        log.shutdown(1000);
        (0..4).for_each(|_| log.checkpoint(1001, true));
        log.shutdown(1002);
        for number in 1..=3 {
            while log.writer.bytes.len() < number * 4 * SEGMENT {
                log.insert_with_image(1000, 16384, 8000);
            }
            log.checkpoint(1000 + number as i64 * 17, true);
        }
        let explanation = log.explain(&request(Vec::new()));
        let found = document_with(&explanation, &Names::default()).findings;
        let found = found.into_iter().find(|finding| finding.rule == "checkpoint-images");
        found.unwrap().points_at
    };
    assert_eq!(with(Lsn(SEGMENT as u64)), "max_wal_size");
    assert_eq!(with(Lsn(5 * SEGMENT as u64)), "CHECKPOINT");
}

/// The server's settings would show whether volume or time triggered them.
#[test]
fn few_checkpoints_without_settings_have_no_cause() {
    let mut log = Log::new();
    log.writer.start = Lsn(5 * SEGMENT as u64);
    let mut written = 0;
    for time in [1000, 1040, 1170] {
        written += SEGMENT / 2;
        while log.writer.bytes.len() < written {
            log.insert_with_image(1000, 16384, 8000);
        }
        log.checkpoint(time, true);
    }
    let explanation = log.explain(&request(Vec::new()));
    let found = document_with(&explanation, &Names::default()).findings;
    let found = found.into_iter().find(|finding| finding.rule == "checkpoint-images").unwrap();
    assert_eq!(found.points_at, "max_wal_size");
    assert!(found.text.contains("of causes that so few checkpoints do not show"), "{}", found.text);
    assert!(!found.remedy.contains("CHECKPOINT"), "{}", found.remedy);
}

/// The first segment of a cluster.
#[test]
fn catalogs_of_a_new_cluster_are_from_initdb() {
    let explanation = explain_golden("15.18-first", &request(Vec::new())).remove(0);
    let found = found_in_catalogs(&explanation);
    assert_eq!(found.iter().map(|one| one.points_at.as_str()).collect::<Vec<_>>(), ["initdb"]);
    assert!(found[0].text.contains("the WAL starts with initdb"), "{found:?}");
    assert_eq!(found[0].saves_bytes, None);
}

#[test]
fn segment_switches_are_found_by_their_padding() {
    let mut log = inserts(8);
    assert!(!rules(&log).contains(&"switch-padding"));
    log.writer.switch();
    log.heap_insert(5, 16384, 10);
    log.writer.switch();
    log.heap_insert(5, 16384, 10);
    assert!(rules(&log).contains(&"switch-padding"));
}

#[test]
fn full_page_writes_off_is_found_if_a_checkpoint_says_so() {
    let with = |full_page_writes| {
        let mut log = inserts(8);
        log.checkpoint(1000, full_page_writes);
        rules(&log).contains(&"no-full-page-writes")
    };
    assert!(with(false));
    assert!(!with(true));
}

/// A quiet server: most of its last segment is unused.
#[test]
fn the_unused_end_of_the_last_segment_changes_no_share_and_no_finding() {
    let mut log = Log::new();
    for number in 0..200 {
        log.heap_insert(700, 1000, 100 + number % 7);
    }
    log.end(700, true, 60, &[]);
    let whole = log.document();
    assert!(whole.wal_bytes * 10 < whole.file_bytes, "{} of {}", whole.wal_bytes, whole.file_bytes);
    let end = whole.ranges[0].start.parse::<Lsn>().unwrap().plus(whole.wal_bytes);
    let cut = document(&log.explain(&range(None, Some(end))));
    assert_eq!((cut.file_bytes, cut.wal_bytes), (whole.wal_bytes, whole.wal_bytes));
    let shares = |document: &Document| document.relations.iter().map(|one| one.sum.share).sum::<f64>();
    assert!((shares(&whole) - 1.0).abs() < 1e-9, "{}", shares(&whole));
    let findings = |document: &Document| {
        document.findings.iter().map(|one| (one.rule, one.text.clone(), one.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(findings(&whole), findings(&cut));
    assert!(!findings(&whole).is_empty(), "one transaction writes all of it");
    let end_of_log = whole.ranges[0].end_of_log.as_deref().unwrap_or_default();
    assert!(end_of_log.contains("of its last segment are unused"), "{end_of_log}");
}

/// Entries of indexes do not make a transaction larger.
#[test]
fn transactions_of_a_row_are_tiny_whatever_the_number_of_indexes() {
    let with = |rows: u32| {
        let mut log = Log::new();
        for xid in 1000..2500 {
            for _ in 0..rows {
                log.heap_insert(xid, 16384, 8);
                (0..3).for_each(|index| {
                    log.index_insert(xid, 16390 + index, 8);
                });
            }
            log.end(xid, true, xid.into(), &[]);
        }
        rules(&log).contains(&"tiny-transactions")
    };
    assert!(with(1));
    assert!(!with(3));
}

/// A table with 70 % of its bytes in images is named, although compression is a finding; one with 95 % is
/// not.
#[test]
fn a_table_whose_images_are_not_nearly_all_of_it_is_named() {
    let with = |plain: u32| {
        let mut log = Log::new();
        for xid in 1000..1100 {
            log.insert_with_image(xid, 16384, 4000);
            (0..plain).for_each(|_| {
                log.heap_insert(xid, 16384, 76);
            });
            // Other tables have the rest.
            (0..60).for_each(|table| {
                log.heap_insert(xid, 16500 + table, 100);
            });
        }
        rules(&log)
    };
    let [few, more] = [with(2), with(12)];
    assert!(few.contains(&"uncompressed-images") && !few.contains(&"main-table"), "{few:?}");
    assert!(more.contains(&"uncompressed-images") && more.contains(&"main-table"), "{more:?}");
}

/// A narrower table saves prunings only if few rows fill a page.
#[test]
fn many_rows_on_a_page_make_the_saving_of_a_narrower_table_uncertain() {
    let least = |offset: u8| {
        let mut log = Log::new();
        for xid in 1000..1500_u32 {
            update(&mut log, xid, (xid % 20, offset - 1), (xid % 20, offset), 20);
            log.record((rmid::HEAP2, 0x10), xid, 16384, &[(xid % 20, &[7; 60])], &[0; 8]);
        }
        let findings = log.document().findings;
        let found = findings.iter().find(|one| one.rule == "pruning").unwrap();
        (found.saves_bytes.unwrap() - found.saves_error_bytes.unwrap()) as f64 / found.bytes as f64
    };
    assert!(least(100) < 0.01, "{}", least(100));
    assert!((0.25..0.35).contains(&least(6)), "{}", least(6));
}
