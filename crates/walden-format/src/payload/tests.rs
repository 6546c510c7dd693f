//! Hand-made layouts of every version, and a property: any input produces a payload or an error, never a
//! panic.

use proptest::prelude::*;

use super::*;
use crate::lsn::Lsn;
use crate::record::{self, RECORD_HEADER, RecordHeader, RelFileLocator};
use crate::rmgr::rmid;
use crate::version::Major::{V9_5, V9_6, V10, V11, V12, V13, V14, V15, V16, V17, V18, V19};

/// Returns a record's bytes with these block ids, block data and main data.
fn bytes_of(rmid: u8, info: u8, blocks: &[(u8, &[u8])], main: &[u8]) -> (Vec<u8>, RecordHeader) {
    let mut bytes = vec![0; RECORD_HEADER];
    for (id, data) in blocks {
        let flags = if data.is_empty() { 0 } else { 0x20 };
        bytes.extend([*id, flags]);
        bytes.extend((data.len() as u16).to_le_bytes());
        bytes.extend([0; 12 + 4]);
    }
    if !main.is_empty() {
        bytes.push(254);
        bytes.extend((main.len() as u32).to_le_bytes());
    }
    blocks.iter().for_each(|(_, data)| bytes.extend(*data));
    bytes.extend(main);
    let total_len = bytes.len() as u32;
    (bytes, RecordHeader { total_len, rmid, info, ..RecordHeader::default() })
}

fn with_payload<T>(
    version: Major,
    (rmid, info): (u8, u8),
    blocks: &[(u8, &[u8])],
    main: &[u8],
    check: impl FnOnce(Result<Payload<'_>, PayloadError>) -> T,
) -> T {
    let (bytes, header) = bytes_of(rmid, info, blocks, main);
    let mut space = Vec::new();
    let record = record::decode(&bytes, header, (Lsn(8), Lsn(16)), version, 8192, &mut space).unwrap();
    check(parse(&record))
}

/// Checks that this main data is decoded and printed like this.
fn prints(version: Major, kind: (u8, u8), main: &[u8], text: &str) {
    prints_with(version, kind, &[], main, text);
}

fn prints_with(version: Major, kind: (u8, u8), blocks: &[(u8, &[u8])], main: &[u8], text: &str) {
    with_payload(version, kind, blocks, main, |payload| {
        assert_eq!(payload.unwrap().to_string(), text, "{version}");
    });
    // One byte less or more is never the same structure.
    for changed in [&main[..main.len() - 1], &[main, &[0]].concat()] {
        if !matches!(kind.0, rmid::SEQ) {
            with_payload(version, kind, blocks, changed, |payload| {
                assert!(payload.is_err(), "{version} {text} with {} bytes", changed.len());
            });
        }
    }
}

/// Concatenates numbers, each with its width: `data![u32 1, u16 2]`.
macro_rules! data {
    ($($type:ident $value:expr),* $(,)?) => {{
        let mut bytes: Vec<u8> = Vec::new();
        $(bytes.extend(($value as $type).to_le_bytes());)*
        bytes
    }};
}

#[test]
fn checkpoints_of_every_version() {
    let kind = (rmid::XLOG, 0x10);
    let tail = "oid: 4, multi: 5, offset: 6, oldest xid: 7 in DB 8, oldest multi: 9 in DB 10, \
                commit timestamp xids: 12/13, oldest running xid: 14, time: 1970-01-01 00:00:11.000000 UTC";
    let start = data![u64 0x1_0000_0028, u32 2, u32 1];
    let split = data![u8 1, u8 9, u16 9, u32 3, u32 77, u32 4, u32 5, u32 6, u32 7, u32 8, u32 9, u32 10,
                      u64 11, u32 12, u32 13, u32 14, u32 9];
    let full = data![u64 3u64 << 32 | 77, u32 4, u32 5, u32 6, u32 7, u32 8, u32 9, u32 10, u32 9,
                     u64 11, u32 12, u32 13, u32 14, u32 9];
    let wide = data![u64 3u64 << 32 | 77, u32 4, u32 5, u64 6, u32 7, u32 8, u32 9, u32 10,
                     u64 11, u32 12, u32 13, u32 14, u32 9];
    for version in Major::all() {
        let (rest, middle) = match version {
            V9_5 | V9_6 | V10 | V11 => (split.clone(), ""),
            V12 | V13 | V14 | V15 | V16 => ([data![u64 1], full.clone()].concat(), ""),
            V17 | V18 => ([data![u32 1, u32 1], full.clone()].concat(), "wal_level: replica, "),
            V19 => (
                [data![u32 1, u32 2, u64 1], wide.clone()].concat(),
                "wal_level: logical, logical decoding: true, ",
            ),
        };
        let main = [start.clone(), rest].concat();
        let text = format!("redo: 1/00000028, tli: 2, prev tli: 1, fpw: true, {middle}xid: 3:77, {tail}");
        prints(version, kind, &main, &text);
    }
}

#[test]
fn settings() {
    let before_12 = data![u32 100, u32 8, u32 0, u32 64, u32 2, u8 1, u8 0, u16 0];
    let text = "max_connections: 100, max_worker_processes: 8, max_prepared_transactions: 0, \
                max_locks_per_transaction: 64, wal_level: hot_standby, wal_log_hints: true, \
                track_commit_timestamp: false";
    prints(V9_5, (rmid::XLOG, 0x60), &before_12, text);
    prints(V11, (rmid::XLOG, 0x60), &before_12, &text.replace("hot_standby", "logical"));
    let since_12 = data![u32 100, u32 8, u32 10, u32 0, u32 64, u32 1, u8 1, u8 0, u16 0];
    let text = "max_connections: 100, max_worker_processes: 8, max_wal_senders: 10, \
                max_prepared_transactions: 0, max_locks_per_transaction: 64, wal_level: replica, \
                wal_log_hints: true, track_commit_timestamp: false";
    prints(V12, (rmid::XLOG, 0x60), &since_12, text);
    prints(V14, (rmid::XLOG, 0x80), &data![u8 1], "fpw: true");
    prints(V14, (rmid::XLOG, 0x30), &data![u32 8192], "oid: 8192");
    prints(V14, (rmid::XLOG, 0x50), &data![u64 0x28], "start: 0/00000028");
    let end = "tli: 2, prev tli: 1, time: 2000-01-01 00:00:00.000001 UTC";
    prints(V16, (rmid::XLOG, 0x90), &data![u64 1, u32 2, u32 1], end);
    prints(
        V17,
        (rmid::XLOG, 0x90),
        &data![u64 1, u32 2, u32 1, u32 0, u32 0],
        &format!("{end}, wal_level: minimal"),
    );
    prints(V17, (rmid::XLOG, 0xE0), &data![u32 1], "wal_level: replica");
    prints(V19, (rmid::XLOG, 0xE0), &data![u32 1], "wal_level: replica");
    prints(V19, (rmid::XLOG, 0xF0), &data![u8 1], "enabled: true");
    prints(V19, (rmid::XLOG, 0xC0), &data![u32 0], "");
    let lost = data![u64 0x5000028, u64 0];
    prints(V13, (rmid::XLOG, 0xD0), &lost, "lsn: 0/05000028, time: 2000-01-01 00:00:00.000000 UTC");
    let mut point = data![u64 0];
    point.extend(b"before migration");
    point.resize(72, 0);
    let text = "name: before migration, time: 2000-01-01 00:00:00.000000 UTC";
    prints(V15, (rmid::XLOG, 0x70), &point, text);
}

#[test]
fn a_plain_commit_is_its_time() {
    for version in Major::all() {
        let text = "time: 2000-01-01 00:00:01.000000 UTC, flags: 0x00";
        prints(version, (rmid::XACT, 0x00), &data![u64 1_000_000], text);
        prints(version, (rmid::XACT, 0x20), &data![u64 1_000_000], text);
    }
}

#[test]
fn a_commit_with_everything() {
    // The name has an odd length, so the origin is not aligned.
    let stats_15 = data![u32 1, u32 2, u32 5, u32 16384];
    let stats_18 = data![u32 1, u32 2, u32 5, u32 16384, u32 1];
    for (version, stats) in [(V15, stats_15), (V17, data![u32 1, u32 2, u32 5, u32 16384]), (V18, stats_18)] {
        let mut main = data![u64 0, u32 0x1BF, u32 5, u32 1663, u32 2, u32 101, u32 102,
                             u32 1, u32 1663, u32 5, u32 16384];
        main.extend(stats);
        main.extend(data![u32 1, u64 0, u64 0, u32 100]);
        main.extend(b"gid-1\0");
        main.extend(data![u64 0x1234, u64 0]);
        let text = "gid: gid-1, prepared xid: 100, time: 2000-01-01 00:00:00.000000 UTC, flags: 0x1BF, db: 5, \
                    tablespace: 1663, subxacts: [101, 102], dropped rels: [1663/5/16384], dropped stats: 1, \
                    invalidations: 1, origin lsn: 0/00001234, origin time: 2000-01-01 00:00:00.000000 UTC";
        prints(version, (rmid::XACT, 0xB0), &main, text);
        with_payload(version, (rmid::XACT, 0xB0), &[], &main, |payload| {
            let Ok(Payload::Commit(commit)) = payload else { panic!("{payload:?}") };
            let object = commit.dropped_stats.into_iter().next().unwrap().object;
            assert_eq!(object, if version == V18 { 1 << 32 | 16384 } else { 16384 });
        });
    }
}

#[test]
fn unknown_flags_of_a_commit_are_an_error() {
    with_payload(V18, (rmid::XACT, 0x80), &[], &data![u64 0, u32 0x200], |payload| {
        let error = payload.unwrap_err();
        assert_eq!((error.field, error.cause), ("xinfo", PayloadFault::Value(0x200)));
        assert_eq!(error.to_string(), "Transaction COMMIT of PostgreSQL 18, xinfo: 0x200 is not valid");
    });
}

#[test]
fn errors_say_lengths() {
    with_payload(V18, (rmid::XACT, 0x00), &[], &[0; 7], |payload| {
        let text = "Transaction COMMIT of PostgreSQL 18, xact_time: expected 8 bytes, found 7";
        assert_eq!(payload.unwrap_err().to_string(), text);
    });
    with_payload(V18, (rmid::XACT, 0x00), &[], &[0; 11], |payload| {
        let text = "Transaction COMMIT of PostgreSQL 18, main data: expected the end, found 3 more bytes";
        assert_eq!(payload.unwrap_err().to_string(), text);
    });
    // A count that exceeds any memory.
    with_payload(V18, (rmid::XACT, 0x50), &[], &data![u32 1, u32 i32::MAX], |payload| {
        let found = PayloadFault::Short { expected: 4 * i32::MAX as u64, found: 0 };
        assert_eq!(payload.unwrap_err().cause, found);
    });
    with_payload(V18, (rmid::XACT, 0x50), &[], &data![u32 1, i32 -1], |payload| {
        assert_eq!(payload.unwrap_err().cause, PayloadFault::Value(0xFFFF_FFFF));
    });
}

#[test]
fn a_record_not_held_whole_says_so() {
    let (bytes, header) = bytes_of(rmid::XACT, 0x50, &[], &data![u32 1, u32 2, u32 3, u32 4]);
    let held = &bytes[..bytes.len() - 4];
    let mut space = Vec::new();
    let record = record::decode(held, header, (Lsn(8), Lsn(16)), V18, 8192, &mut space).unwrap();
    assert_eq!(parse(&record).unwrap_err().cause, PayloadFault::NotHeld);

    let mut main = data![u32 5, u32 1, u64 2, u64 6];
    main.extend(b"p\0held..");
    let (bytes, header) = bytes_of(rmid::LOGICALMSG, 0, &[], &main);
    let held = &bytes[..bytes.len() - 2];
    let record = record::decode(held, header, (Lsn(8), Lsn(16)), V18, 8192, &mut space).unwrap();
    let Ok(Payload::LogicalMessage(message)) = parse(&record) else { panic!() };
    assert_eq!((message.len, message.message, message.prefix), (6, &b"held"[..], Text(b"p")));
}

#[test]
fn prepared_transactions() {
    let text = |rest: &str| {
        format!("gid: gid, xid: 7, db: 5, time: 2000-01-01 00:00:00.000000 UTC, {rest}state: 8 bytes")
    };
    let head = data![u32 0x57F94534, u32 0, u32 7, u32 5, u64 0, u32 10, u32 1, u32 2, u32 3];
    let name = b"gid\0\0\0\0\0";
    let counts = "subxacts: 1, rels (commit): 2, rels (abort): 3, ";
    let stats = "stats (commit): 4, stats (abort): 5, ";
    let messages = "invalidations: 6, ";
    let print = |version, middle: Vec<u8>, text: String| {
        let mut main = head.clone();
        main.extend(middle);
        main.extend([1; 8]);
        with_payload(version, (rmid::XACT, 0x10), &[], &main, |payload| {
            assert_eq!(payload.unwrap().to_string(), text, "{version}");
        });
    };
    let mut array = data![u32 6, u8 0];
    array.extend(b"gid");
    array.resize(5 + 200 + 3, 0);
    print(V9_5, array, text(&format!("{counts}{messages}")));
    let until_10 = [data![u32 6, u16 0, u16 4], name.to_vec()].concat();
    print(V9_6, until_10.clone(), text(&format!("{counts}{messages}")));
    print(V10, until_10, text(&format!("{counts}{messages}")));
    let until_14 = [data![u32 6, u16 0, u16 4, u64 0, u64 0], name.to_vec()].concat();
    print(V11, until_14.clone(), text(&format!("{counts}{messages}")));
    print(V14, until_14, text(&format!("{counts}{messages}")));
    let since_15 = [data![u32 4, u32 5, u32 6, u16 0, u16 4, u64 0, u64 0], name.to_vec()].concat();
    print(V15, since_15, text(&format!("{counts}{stats}{messages}")));
}

#[test]
fn files_and_databases() {
    let relation = data![u32 1663, u32 5, u32 16384];
    prints(
        V18,
        (rmid::SMGR, 0x10),
        &[relation.clone(), data![u32 2]].concat(),
        "rel: 1663/5/16384, fork: vm",
    );
    let cut = [data![u32 9], relation.clone()].concat();
    prints(V9_5, (rmid::SMGR, 0x20), &cut, "rel: 1663/5/16384, blocks: 9");
    let cut = [cut, data![u32 7]].concat();
    prints(V9_6, (rmid::SMGR, 0x20), &cut, "rel: 1663/5/16384, blocks: 9, flags: 0x07");
    let copy = "db: 1, tablespace: 2, source db: 3, source tablespace: 4";
    prints(V14, (rmid::DBASE, 0x00), &data![u32 1, u32 2, u32 3, u32 4], copy);
    prints(V15, (rmid::DBASE, 0x10), &data![u32 1, u32 2], "db: 1, tablespace: 2");
    prints(V12, (rmid::DBASE, 0x10), &data![u32 1, u32 2], "db: 1, tablespaces: [2]");
    prints(V13, (rmid::DBASE, 0x10), &data![u32 1, u32 2, u32 3, u32 4], "db: 1, tablespaces: [3, 4]");
    prints(V15, (rmid::DBASE, 0x20), &data![u32 1, u32 1, u32 3], "db: 1, tablespaces: [3]");
    let path = [data![u32 16400], b"/srv/fast\0".to_vec()].concat();
    prints(V16, (rmid::TBLSPC, 0x00), &path, "tablespace: 16400, path: /srv/fast");
    prints(V16, (rmid::TBLSPC, 0x10), &data![u32 16400], "tablespace: 16400");
    let sequence = [relation, vec![0; 41]].concat();
    prints(V16, (rmid::SEQ, 0x00), &sequence, "rel: 1663/5/16384, tuple: 41 bytes");
    let map = data![u32 5, u32 1663, u32 4, u32 0];
    prints(V16, (rmid::RELMAP, 0x00), &map, "db: 5, tablespace: 1663, map: 4 bytes");
}

#[test]
fn page_numbers_grew_in_17() {
    for rmid in [rmid::CLOG, rmid::COMMIT_TS, rmid::MULTIXACT] {
        prints(V16, (rmid, 0x00), &data![u32 3], "page: 3");
        prints(V17, (rmid, 0x00), &data![u64 3], "page: 3");
    }
    let clog = "page: 3, oldest xid: 4, in db: 5";
    prints(V9_6, (rmid::CLOG, 0x10), &data![u32 3], "page: 3");
    prints(V10, (rmid::CLOG, 0x10), &data![u32 3, u32 4, u32 5], clog);
    prints(V17, (rmid::CLOG, 0x10), &data![u64 3, u32 4, u32 5], clog);
    prints(V9_6, (rmid::COMMIT_TS, 0x10), &data![u32 3], "page: 3");
    prints(V10, (rmid::COMMIT_TS, 0x10), &data![u32 3, u32 4], "page: 3, oldest xid: 4");
    prints(V17, (rmid::COMMIT_TS, 0x10), &data![u64 3, u32 4], "page: 3, oldest xid: 4");
    let set = data![u64 0, u16 1, u16 0, u32 7, u32 8];
    let text = "time: 2000-01-01 00:00:00.000000 UTC, origin: 1, xid: 7, subxacts: [8]";
    prints(V13, (rmid::COMMIT_TS, 0x20), &set, text);
}

#[test]
fn multixact_offsets_grew_in_19() {
    let made = "multi: 3, offset: 4, members: [7 (keysh), 8 (upd)]";
    prints(V18, (rmid::MULTIXACT, 0x20), &data![u32 3, u32 4, u32 2, u32 7, u32 0, u32 8, u32 5], made);
    let wide = data![u32 3, u32 0, u64 4, u32 2, u32 7, u32 0, u32 8, u32 5];
    prints(V19, (rmid::MULTIXACT, 0x20), &wide, made);
    let text = "db: 1, first multi: 2, oldest multi: 3, first offset: 4, oldest offset: 5";
    prints(V18, (rmid::MULTIXACT, 0x30), &data![u32 1, u32 2, u32 3, u32 4, u32 5], text);
    prints(
        V19,
        (rmid::MULTIXACT, 0x30),
        &data![u32 1, u32 3, u64 5],
        "db: 1, oldest multi: 3, oldest offset: 5",
    );
}

#[test]
fn standbys_and_replication() {
    let locks = data![u32 2, u32 7, u32 5, u32 1, u32 8, u32 5, u32 2];
    prints(V14, (rmid::STANDBY, 0x00), &locks, "locks: [xid 7 db 5 rel 1, xid 8 db 5 rel 2]");
    let running = data![u32 1, u32 2, u8 1, u8 0, u16 0, u32 9, u32 7, u32 6, u32 7, u32 17, u32 18];
    let text = "next xid: 9, latest completed xid: 6, oldest running xid: 7, xacts: [7], subxacts: [17, 18], \
                subxid overflow: true";
    prints(V14, (rmid::STANDBY, 0x10), &running, text);
    let list = data![u32 5, u32 1663, u8 1, u8 0, u16 0, u32 1, u64 0, u64 0];
    let text = "db: 5, tablespace: 1663, relcache init file inval: true, invalidations: 1";
    prints(V9_6, (rmid::STANDBY, 0x20), &list, text);
    prints(V14, (rmid::XACT, 0x60), &data![u32 1, u64 0, u64 0], "invalidations: 1");
    let set = data![u64 0x28, u16 3, u8 1, u8 0, u32 0];
    prints(V14, (rmid::REPLORIGIN, 0x00), &set, "origin: 3, lsn: 0/00000028, force: true");
    prints(V14, (rmid::REPLORIGIN, 0x10), &data![u16 3], "origin: 3");
    let message = [data![u32 5, u32 1, u64 4, u64 2], b"pfx\0hi".to_vec()].concat();
    let text = "db: 5, transactional: true, prefix: pfx, message: 2 bytes";
    prints(V14, (rmid::LOGICALMSG, 0x00), &message, text);
}

#[test]
fn rows_come_and_go() {
    let tuple = [data![u16 3, u16 0x0802, u8 24], vec![0; 10]].concat();
    let block: &[(u8, &[u8])] = &[(0, &tuple)];
    prints_with(V9_5, (rmid::HEAP, 0x00), block, &data![u16 7, u8 8], "off: 7, flags: 0x08, tuple: 33");
    prints(V18, (rmid::HEAP, 0x80), &data![u16 7, u8 0], "off: 7, flags: 0x00");
    let delete = data![u32 9, u16 7, u8 0x10, u8 0];
    prints(V9_5, (rmid::HEAP, 0x10), &delete, "xmax: 9, off: 7, infobits: 0x10, flags: 0x00");
    // With the old key for logical decoding.
    with_payload(
        V18,
        (rmid::HEAP, 0x10),
        &[],
        &[data![u32 9, u16 7, u8 0, u8 4], tuple.clone()].concat(),
        |payload| {
            let Ok(Payload::Delete(delete)) = payload else { panic!("{payload:?}") };
            let old = delete.old.unwrap();
            assert_eq!((old.attributes(), old.header_len, old.len()), (3, 24, 33));
            assert!(delete.flags.contains_old_key() && !delete.flags.is_super());
        },
    );
    // The presence of other blocks makes no difference: 17.11 added the visibility map's.
    let new = [data![u16 4, u16 2], tuple].concat();
    let main = data![u32 9, u16 7, u8 0, u8 0x61, u32 0, u16 8];
    for blocks in [&[(0, &new[..])][..], &[(0, &new[..]), (1, &[]), (2, &[]), (3, &[])]] {
        let text = "old_xmax: 9, old_off: 7, old_infobits: 0x00, flags: 0x61, new_xmax: 0, new_off: 8, tuple: 39, \
                    prefix: 4, suffix: 2";
        prints_with(V17, (rmid::HEAP, 0x40), blocks, &main, text);
    }
    prints(
        V9_5,
        (rmid::HEAP, 0x60),
        &data![u32 9, u16 7, u8 6],
        "xmax: 9, off: 7, infobits: 0x06, flags: 0x00",
    );
    let lock = data![u32 9, u16 7, u8 6, u8 1];
    prints(V9_6, (rmid::HEAP, 0x60), &lock, "xmax: 9, off: 7, infobits: 0x06, flags: 0x01");
    prints(V9_6, (rmid::HEAP2, 0x60), &lock, "xmax: 9, off: 7, infobits: 0x06, flags: 0x01");
    prints(V17, (rmid::HEAP, 0x70), &data![u16 7], "off: 7");
    let inplace = data![u16 7, u16 0, u32 5, u32 1663, u32 0, u32 1, u64 0, u64 0];
    prints(V18, (rmid::HEAP, 0x70), &inplace, "off: 7, invalidations: 1");
    let truncate = data![u32 5, u32 2, u8 1, u8 0, u16 0, u32 16384, u32 16385];
    prints(V11, (rmid::HEAP, 0x30), &truncate, "db: 5, flags: 0x01, relids: [16384, 16385]");
    let two = data![u16 2, u16 1, u16 0, u8 24, u8 1, u8 1, u8 0, u16 1, u16 1, u16 0, u8 24, u8 1];
    let blocks: &[(u8, &[u8])] = &[(0, &two)];
    let text = "ntuples: 2, flags: 0x02, offsets: [4, 5], tuples: 18 bytes";
    prints_with(V14, (rmid::HEAP2, 0x50), blocks, &data![u8 2, u8 0, u16 2, u16 4, u16 5], text);
    let text = "ntuples: 2, flags: 0x02, tuples: 18 bytes";
    prints_with(V14, (rmid::HEAP2, 0xD0), blocks, &data![u8 2, u8 0, u16 2], text);
    let cid = data![u32 9, u32 0, u32 1, u32 2, u32 1663, u32 5, u32 2608, u16 1, u16 2, u16 3];
    prints(V14, (rmid::HEAP2, 0x70), &cid, "rel: 1663/5/2608, tid: 65538/3, cmin: 0, cmax: 1, combo: 2");
    let map = [data![u32 9, u32 5, u32 1259, u32 0, u64 0, u32 1, u32 0, u64 0x28], vec![0; 36]].concat();
    prints(V14, (rmid::HEAP2, 0x00), &map, "xid: 9, db: 5, rel: 1259, mappings: 1");
}

#[test]
fn pages_are_pruned_and_frozen() {
    let items = data![u16 1, u16 2, u16 3, u16 4, u16 5];
    let block: &[(u8, &[u8])] = &[(0, &items)];
    let text = "conflict horizon: 9, redirected: [1->2], dead: [3], unused: [4, 5]";
    prints_with(V9_5, (rmid::HEAP2, 0x10), block, &data![u32 9, u16 1, u16 1], text);
    prints_with(V14, (rmid::HEAP2, 0x10), block, &data![u32 9, u16 1, u16 1], text);
    let text = text.replace("9,", "9, catalog: true,");
    prints_with(V16, (rmid::HEAP2, 0x10), block, &data![u32 9, u16 1, u16 1, u8 1], &text);
    prints_with(V14, (rmid::HEAP2, 0x20), block, &data![u16 5], "unused: [1, 2, 3, 4, 5]");

    let plan = data![u32 0, u16 3, u16 0x0B00, u8 0, u8 0, u16 2];
    let parts = [
        data![u16 1, u16 0],
        plan.clone(),
        data![u16 1, u16 1, u16 2, u16 1, u16 3, u16 1, u16 4, u16 6, u16 7],
    ];
    let data = parts.concat();
    let block: &[(u8, &[u8])] = &[(0, &data)];
    let rest = "plans: 1, redirected: [1->2], dead: [3], unused: [4], frozen: [6, 7]";
    let text = format!("conflict horizon: 9, catalog: false, flags: 0xF8, {rest}");
    prints_with(V17, (rmid::HEAP2, 0x20), block, &data![u8 1, u8 0xF8, u32 9], &text);
    let text = format!("catalog: true, flags: 0x1F2, {rest}");
    prints_with(V19, (rmid::HEAP2, 0x20), block, &data![u16 0x1F2], &text);

    let tuple = data![u32 0, u16 4, u16 3, u16 0x0B00, u8 0, u8 0];
    let block: &[(u8, &[u8])] = &[(0, &tuple)];
    prints_with(V9_5, (rmid::HEAP2, 0x20), block, &data![u32 9, u16 1], "cutoff xid: 9, frozen: 1");
    prints_with(V15, (rmid::HEAP2, 0x30), block, &data![u32 9, u16 1], "cutoff xid: 9, frozen: 1");
    let plans = [plan, data![u16 6, u16 7]].concat();
    let block: &[(u8, &[u8])] = &[(0, &plans)];
    let text = "cutoff xid: 9, catalog: false, nplans: 1, frozen: [6, 7]";
    prints_with(V16, (rmid::HEAP2, 0x30), block, &data![u32 9, u16 1, u8 0], text);

    prints(V9_5, (rmid::HEAP2, 0x40), &data![u32 9], "cutoff xid: 9");
    prints(V18, (rmid::HEAP2, 0x40), &data![u32 9, u8 3], "cutoff xid: 9, flags: 0x03");
    let info = data![u32 1663, u32 5, u32 16384, u32 9];
    prints(V13, (rmid::HEAP2, 0x30), &info, "rel: 1663/5/16384, latest removed xid: 9");
}

#[test]
fn index_pages_change() {
    let (index, tuple) = ((rmid::BTREE, 0x00), [0; 16]);
    prints_with(V9_5, index, &[(0, &tuple)], &data![u16 3], "off: 3, tuple: 16");
    let posting = data![u16 5, u64 0, u64 0];
    prints_with(
        V13,
        (rmid::BTREE, 0x50),
        &[(0, &posting)],
        &data![u16 3],
        "off: 3, postingoff: 5, tuple: 16",
    );
    prints(V10, (rmid::BTREE, 0x50), &data![u32 0, u16 3, u16 4], "level: 0, firstright: 3, newitemoff: 4");
    prints(V12, (rmid::BTREE, 0x30), &data![u32 0, u16 3, u16 4], "level: 0, firstright: 3, newitemoff: 4");
    let text = "level: 0, firstright: 3, newitemoff: 4, postingoff: 5";
    prints(V13, (rmid::BTREE, 0x30), &data![u32 0, u16 3, u16 4, u16 5], text);
    let runs = data![u16 3, u16 4];
    prints_with(V13, (rmid::BTREE, 0x60), &[(0, &runs)], &data![u16 1], "nintervals: 1, intervals: [3+4]");

    let until_11 = data![u32 1663, u32 5, u32 16384, u32 2, u16 3, u16 4];
    let text = "heap: 1663/5/16384, ndeleted: 2, nupdated: 0, deleted: [3, 4], updated: []";
    prints(V11, (rmid::BTREE, 0x70), &until_11, text);
    let text = "conflict horizon: 9, ndeleted: 2, nupdated: 0, deleted: [3, 4], updated: []";
    prints(V12, (rmid::BTREE, 0x70), &data![u32 9, u32 2, u16 3, u16 4], text);
    let offsets = data![u16 3, u16 4];
    prints_with(V13, (rmid::BTREE, 0x70), &[(0, &offsets)], &data![u32 9, u32 2], text);
    let updates = data![u16 3, u16 4, u16 5, u16 2, u16 0, u16 1];
    let text = "conflict horizon: 9, ndeleted: 2, nupdated: 1, deleted: [3, 4], updated: [5]";
    prints_with(V14, (rmid::BTREE, 0x70), &[(0, &updates)], &data![u32 9, u16 2, u16 1], text);
    let text = text.replace("1, del", "1, catalog: true, del");
    prints_with(V16, (rmid::BTREE, 0x70), &[(0, &updates)], &data![u32 9, u16 2, u16 1, u8 1], &text);
    let text = "ndeleted: 2, nupdated: 1, deleted: [3, 4]";
    prints_with(V13, (rmid::BTREE, 0xC0), &[(0, &updates)], &data![u16 2, u16 1], text);
    let text = "last block vacuumed: 9, deleted: [3, 4]";
    prints_with(V12, (rmid::BTREE, 0xC0), &[(0, &offsets)], &data![u32 9], text);

    let until_13 = data![u32 1, u32 2, u32 3, u32 4, u32 5, u32 6];
    let text = "left: 1, right: 2, safexid: 6, leafleft: 3, leafright: 4, leaftopparent: 5";
    prints(V13, (rmid::BTREE, 0x80), &until_13, text);
    let since_14 = data![u32 1, u32 2, u32 0, u32 0, u64 6, u32 3, u32 4, u32 5];
    prints(V14, (rmid::BTREE, 0x80), &since_14, &text.replace("safe", "level: 0, safe"));
    let dead = data![u16 1, u16 0, u32 2, u32 3, u32 4, u32 5];
    prints(V14, (rmid::BTREE, 0xB0), &dead, "topparent: 5, leaf: 2, left: 3, right: 4");
    prints(V14, (rmid::BTREE, 0xA0), &data![u32 3, u32 1], "root: 3, level: 1");

    let text = "rel: 1663/5/16384, block: 4, conflict horizon: 9";
    let page = data![u32 1663, u32 5, u32 16384, u32 4];
    prints(V13, (rmid::BTREE, 0xD0), &[page.clone(), data![u32 9]].concat(), text);
    prints(V14, (rmid::BTREE, 0xD0), &[page.clone(), data![u64 9]].concat(), text);
    let text = format!("{text}, catalog: false");
    prints(V16, (rmid::BTREE, 0xD0), &[page, data![u64 9, u8 0]].concat(), &text);
}

#[test]
fn meta_pages_of_every_version() {
    let root = data![u32 3, u32 1, u32 3, u32 1];
    for version in Major::all() {
        let meta = match version {
            V9_5 | V9_6 | V10 => root.clone(),
            V11 => [root.clone(), data![u32 9, u32 0, u64 0]].concat(),
            V12 => [data![u32 4], root.clone(), data![u32 9, u64 0]].concat(),
            V13 => [data![u32 4], root.clone(), data![u32 9, u64 0, u64 1]].concat(),
            _ => [data![u32 4], root.clone(), data![u32 9, u32 1]].concat(),
        };
        with_payload(
            version,
            (rmid::BTREE, 0xA0),
            &[(0, &[]), (2, &meta)],
            &data![u32 3, u32 1],
            |payload| {
                let Ok(Payload::BtreeNewRoot(new)) = payload else { panic!("{version} {payload:?}") };
                assert_eq!(new.meta.unwrap().to_string(), "root 3 level 1");
            },
        );
        let short = &meta[..meta.len() - 1];
        with_payload(version, (rmid::BTREE, 0xA0), &[(2, short)], &data![u32 3, u32 1], |payload| {
            assert!(payload.is_err(), "{version}");
        });
    }
}

#[test]
fn kinds_without_a_decoder_are_opaque() {
    for (rmid, info) in [(rmid::GIN, 0x20), (200, 0), (rmid::HEAP, 0xF0), (rmid::XLOG, 0x20)] {
        with_payload(V18, (rmid, info), &[(0, &[1])], &[1, 2, 3], |payload| {
            assert_eq!(payload, Ok(Payload::Opaque));
        });
    }
}

#[test]
fn lists_can_be_read_again() {
    with_payload(V18, (rmid::XACT, 0x50), &[], &data![u32 1, u32 2, u32 3, u32 4], |payload| {
        let Ok(Payload::Assignment(assignment)) = payload else { panic!("{payload:?}") };
        for _ in 0..2 {
            assert_eq!(assignment.subxacts.collect::<Vec<_>>(), [3, 4]);
        }
        assert_eq!((assignment.subxacts.len(), Items::<RelFileLocator>::EMPTY.len()), (2, 0));
    });
}

#[test]
fn names_of_any_encoding_print() {
    assert_eq!(Text(b"a\xFFb").to_string(), "a\u{FFFD}b");
    assert_eq!(format!("{:?}", Text(b"a\xFF\"")), r#""a\xff\"""#);
}

#[test]
fn plain_ends_are_what_the_parser_says() {
    for version in Major::all() {
        for (info, main_len) in (0..=255u8).flat_map(|info| (0..20).map(move |len| (info, len))) {
            let (bytes, header) = bytes_of(rmid::XACT, info, &[], &vec![3; main_len]);
            let mut space = Vec::new();
            let record =
                record::decode(&bytes, header, (Lsn(8), Lsn(16)), version, 8192, &mut space).unwrap();
            let plain = xact::plain_end(&record);
            let parsed = match parse(&record) {
                Ok(Payload::Commit(end)) => Some((true, end)),
                Ok(Payload::Abort(end)) => Some((false, end)),
                _ => None,
            };
            let nothing_more = |end: &xact::TransactionEnd<'_>| info & 0xB0 & !0x20 == 0 && end.flags.0 == 0;
            let expected = parsed.filter(|(_, end)| nothing_more(end) && info & 0x40 == 0);
            assert_eq!(plain, expected.map(|(committed, end)| (committed, end.time)), "{version} {info:x}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_fields_never_panic(
        at in 0..12usize,
        rmid in prop_oneof![0..23u8, any::<u8>()],
        info: u8,
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..5),
        main in proptest::collection::vec(prop_oneof![0..3u8, any::<u8>()], 0..120),
        held in 0..120usize,
    ) {
        let version = Major::all().nth(at).unwrap();
        let blocks: Vec<(u8, &[u8])> = (0u8..).zip(blocks.iter().map(Vec::as_slice)).collect();
        let use_payload = |payload: Result<Payload<'_>, PayloadError>| match payload {
            Ok(payload) => format!("{payload} {payload:?}").len(),
            Err(error) => error.to_string().len(),
        };
        with_payload(version, (rmid, info), &blocks, &main, use_payload);
        // The same record, without its last bytes in memory.
        let (bytes, header) = bytes_of(rmid, info, &blocks, &main);
        let held = &bytes[..bytes.len() - held.min(main.len())];
        let mut space = Vec::new();
        let record = record::decode(held, header, (Lsn(8), Lsn(16)), version, 8192, &mut space).unwrap();
        use_payload(parse(&record));
    }
}
