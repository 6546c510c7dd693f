//! Golden clusters: the WAL of each version from a tour of its record kinds, and a summary of its content.
//!
//! `testdata/golden/VERSION/` holds segments of 1 MB from `walden lab run golden`, compressed with `xz -9e`;
//! `testdata/golden/VERSION.json` describes their content. To renew the latter after a deliberate change, run
//! `WALDEN_RENEW_GOLDEN=1 cargo test -p walden --test it golden` and inspect the difference. `pg_waldump`
//! verifies the figures of 15, 18 and 19. For the other versions, whose packages lack it, `oracle.rs`
//! compares the WAL of the same workload with the server's own counters.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;

use serde_json::{Value, json};
use walden_explain::Request;
use walden_explain::group::{Dimension, ViewSpec};
use walden_format::payload::{self, Payload};
use walden_format::record::{Fork, Record};
use walden_format::rmgr;
use walden_format::stream::Visitor;
use walden_lab::waldump;
use walden_source::inventory::Inventory;
use walden_testing::{Outcome, pg_waldump};

use crate::material::{GOLDEN, decoder, explain_json, golden, golden_dir, records_of, write};

walden_testing::tests! {
    each_version_reads_as_it_did,
    usual_records_are_counted_as_any_records_are,
    there_is_a_cluster_for_each_supported_major_version,
    every_payload_is_understood,
    heap_records_have_a_visibility_map_block_from_17_11_on,
    expected_figures_are_those_of_pg_waldump on [15, 18, 19],
}

fn each_version_reads_as_it_did() {
    let renew = std::env::var_os("WALDEN_RENEW_GOLDEN").is_some();
    for version in GOLDEN {
        let found = summary(&explain_json(&[golden_dir().join(version)]));
        let path = golden_dir().join(format!("{version}.json"));
        if renew {
            fs::write(&path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
        }
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let expected: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, expected, "{version}");
    }
}

/// Compares records, full-page images and bytes of each kind of record with pg_waldump's.
fn expected_figures_are_those_of_pg_waldump(major: u32) -> Outcome {
    let (_, pg_waldump) = pg_waldump(major)?;
    let versions = GOLDEN.iter().filter(|version| version.starts_with(&format!("{major}.")));
    for version in versions {
        let folder = tempfile::tempdir().unwrap();
        // pg_waldump stops at a missing segment.
        let mut starts = Vec::new();
        let mut next = None;
        for (name, segment) in golden(version) {
            let records = records_of(&segment);
            let number = u32::from_str_radix(&name[16..], 16).unwrap();
            if next.replace(number + 1) != Some(number) {
                starts.push(records[0].lsn);
            }
            write(folder.path(), &name, &segment);
        }
        let folder = folder.path().to_str().unwrap();
        let mut listed: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
        for start in starts {
            let arguments = ["-p", folder, "-s", &start.to_string()].map(str::to_owned);
            waldump::records(&pg_waldump, &arguments, |record| {
                let sums = listed.entry(format!("{} {}", record.manager, record.kind)).or_default();
                sums.0 += 1;
                sums.1 += record.blocks.iter().filter(|block| block.image.is_some()).count() as u64;
                // Records are aligned to 8 bytes, and the padding counts with the record.
                sums.2 += u64::from(record.total_len).next_multiple_of(8);
                Ok(())
            })
            .unwrap();
        }
        let text = fs::read_to_string(golden_dir().join(format!("{version}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let number = |kind: &Value, name: &str| kind[name].as_u64().unwrap();
        let kinds = expected["kinds"].as_object().unwrap();
        let expected: BTreeMap<String, (u64, u64, u64)> = kinds
            .iter()
            // Page headers and partial records have separate rows, with bytes only.
            .filter(|(_, kind)| number(kind, "records") > 0)
            .map(|(name, kind)| {
                (name.clone(), (number(kind, "records"), number(kind, "images"), number(kind, "bytes")))
            })
            .collect();
        assert_eq!(expected, listed, "{version}");
    }
    Ok(())
}

/// A view by transaction processes every record in the general way. Without it, most records take the fast
/// path for usual records.
fn usual_records_are_counted_as_any_records_are() {
    for version in GOLDEN {
        let inventory = Inventory::search(&[golden_dir().join(version)]).unwrap();
        let explained = |views| {
            let request = Request::new(2).views(views).top(1000);
            walden_explain::explain(&inventory.runs, &request, |_| {}).unwrap()
        };
        let (usual, any) = (explained(vec![]), explained(vec![ViewSpec::by(Dimension::Xid)]));
        assert_eq!(usual.cells, any.cells, "{version}");
        assert_eq!(usual.transactions, any.transactions, "{version}");
        assert_eq!(usual.transaction_sums, any.transaction_sums, "{version}");
        assert_eq!(usual.evidence, any.evidence, "{version}");
        assert_eq!(usual.checkpoints.len(), any.checkpoints.len(), "{version}");
    }
}

fn summary(json: &Value) -> Value {
    let kinds: BTreeMap<&str, Value> = json["record_kinds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let name = row["keys"][0]["text"].as_str().unwrap();
            (name, json!({"records": row["records"], "images": row["images"], "bytes": row["bytes"]}))
        })
        .collect();
    json!({
        "postgresql": json["postgresql"],
        "file_bytes": json["file_bytes"],
        "records": json["records"],
        "buckets": json["buckets"],
        "images": json["images"],
        "kinds": kinds,
    })
}

fn there_is_a_cluster_for_each_supported_major_version() {
    let mut majors: Vec<&str> = GOLDEN.map(|version| version.split_once('.').unwrap().0).into();
    majors.dedup();
    assert_eq!(majors, ["14", "15", "16", "17", "18", "19"]);
    for version in GOLDEN {
        assert_eq!(
            explain_json(&[golden_dir().join(version)])["postgresql"],
            version.split_once('.').unwrap().0
        );
    }
}

fn every_payload_is_understood() {
    for version in GOLDEN {
        let seen = look(version);
        assert!(seen.parsed > seen.records / 2, "{version}: {} of {} records", seen.parsed, seen.records);
    }
}

/// 17.11 (and 18.6) register the visibility map's page when a heap record clears its bits; the page magic is
/// unchanged.
fn heap_records_have_a_visibility_map_block_from_17_11_on() {
    assert_eq!(look("17.10").with_map, BTreeMap::new());
    let with_map = look("17.11").with_map;
    for kind in ["INSERT", "DELETE", "UPDATE"] {
        assert!(with_map.get(kind).is_some_and(|count| *count > 0), "{kind}: {with_map:?}");
    }
}

#[derive(Default)]
struct Look {
    records: u64,
    /// Records whose payload was parsed.
    parsed: u64,
    /// Number of heap records that change rows and refer to a visibility map, by kind.
    with_map: BTreeMap<String, u64>,
}

impl Visitor for Look {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        let payload = payload::parse(record).unwrap_or_else(|error| panic!("{}: {error}", record.lsn));
        self.records += 1;
        self.parsed += u64::from(payload != Payload::Opaque);
        let kind = rmgr::kind(record.version, record.header.rmid, record.header.info);
        let name = kind.name(record.version).replace("+INIT", "");
        let changes_rows = record.header.rmid == rmgr::rmid::HEAP
            && ["INSERT", "DELETE", "UPDATE", "HOT_UPDATE"].contains(&name.as_str());
        if changes_rows && record.blocks.iter().any(|block| block.fork == Fork::VISIBILITY_MAP) {
            *self.with_map.entry(name).or_default() += 1;
        }
        ControlFlow::Continue(())
    }
}

fn look(version: &str) -> Look {
    let mut look = Look::default();
    for (name, segment) in golden(version) {
        if let Err(fault) = decoder(&segment, 0).push(&segment, &mut look) {
            // The last segment of a cluster ends in zeros.
            assert!(fault.is_unwritten(), "{version}, {name}: {fault}");
        }
    }
    look
}
