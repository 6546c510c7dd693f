//! Compares the WAL of every workload with PostgreSQL's view of it, by record and in total: with `pg_waldump`
//! and `pg_stat_wal`.
//!
//! A version without an installed `pg_waldump` is reported as ignored.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};

use walden_explain::Request;
use walden_explain::group::Dimension;
use walden_explain::tally::Bucket;
use walden_format::lsn::Lsn;
use walden_format::payload;
use walden_format::record::{BlockRef, Compression, Record};
use walden_format::rmgr::{self, Kind};
use walden_format::stream::Visitor;
use walden_lab::waldump::{self, DumpedBlock, DumpedImage, DumpedRecord};
use walden_lab::workloads::by_name;
use walden_lab::{Facts, Installation, RunOptions, run_workload};
use walden_source::inventory::{Inventory, Run, SegmentFile};
use walden_source::scan::{ScanOptions, SegmentEnd, scan};
use walden_testing::{Body, Outcome, Test, pg_waldump, postgres};

use crate::material::{explain_json, say, sum};

/// One row per workload: the name of its tests, and a size that takes seconds.
macro_rules! workloads {
    ($($test:ident: $name:literal, $size:literal;)*) => {
        const TESTED: &[&str] = &[$($name),*];

        pub const TESTS: &[Test] = &[
            test(concat!(module_path!(), "::every_workload_is_judged"), Body::Once(every_workload_is_judged)),
            test(concat!(module_path!(), "::without_waldump"), Body::OnServers(&[14, 16, 17, 19], judge_by_statistics)),
            $(test(
                concat!(module_path!(), "::", stringify!($test)),
                Body::OnServers(&[15, 18, 19], |major| judge_by_waldump(major, $name, $size)),
            ),)*
        ];
    };
}

workloads! {
    oltp: "oltp", 3000;
    oltp_pressure: "oltp-pressure", 6000;
    oltp_single: "oltp-single", 800;
    oltp_paced: "oltp-paced", 400;
    load: "load", 3;
    dml_matrix: "dml-matrix", 5000;
    dense: "dense", 8000;
    mixed: "mixed", 1500;
    mixed_paced: "mixed-paced", 1200;
    index_types: "index-types", 3000;
    golden: "golden", 1;
}

const fn test(name: &'static str, body: Body) -> Test {
    Test { name, body, is_slow: false }
}

fn every_workload_is_judged() -> Outcome {
    let names: Vec<&str> = walden_lab::workloads::all().iter().map(|workload| workload.name).collect();
    assert_eq!(names, TESTED);
    Ok(())
}

/// 18 and 19 are always compared, with published packages if necessary; other versions if they are installed
/// with pg_waldump.
fn judge_by_waldump(major: u32, workload: &str, size: u64) -> Outcome {
    let (installation, pg_waldump) = pg_waldump(major)?;
    let output = tempfile::tempdir().unwrap();
    let facts = run(&installation, workload, size, output.path());
    let wal = output.path().join("wal");
    let inventory = Inventory::search(&[&wal]).unwrap();
    let [segments] = &inventory.runs[..] else { panic!("{} runs", inventory.runs.len()) };

    let records = the_same_records(&pg_waldump, &wal, segments);
    the_same_statistics(&pg_waldump, &wal, &inventory, &records.lsns);
    assert_eq!(the_buckets_add_up(&wal), records.lsns.len() as u64 - 1);
    assert_eq!(segments_add_up(&wal, segments), records.lsns.len() as u64 - 1);
    assert!(records.blocks > 0, "nothing was compared");
    say(&format!(
        "{workload} on {}: {} records, {} blocks, {} images agree with pg_waldump",
        facts.server.version_num,
        records.lsns.len() - 1,
        records.blocks,
        records.images
    ));
    Ok(())
}

fn run(installation: &Installation, workload: &str, size: u64, output: &Path) -> Facts {
    let options = RunOptions {
        size: Some(size),
        installation: Some(installation.clone()),
        ..RunOptions::new(by_name(workload).unwrap(), output)
    };
    run_workload(options, &mut |_| Ok(())).unwrap().facts
}

/// The values found to be equal.
struct Compared {
    /// Start of each record, and end of the last one.
    lsns: Vec<Lsn>,
    blocks: u64,
    images: u64,
}

/// Compares each record of the folder with pg_waldump's.
///
/// pg_waldump gets only the start, and finds the end of the WAL itself. It runs concurrently with the scan,
/// and at most a few segments' records are buffered.
fn the_same_records(pg_waldump: &Path, wal: &Path, run: &Run) -> Compared {
    let (sender, theirs) = sync_channel(10_000);
    let arguments = ["-p".to_owned(), wal.display().to_string(), "-s".to_owned(), run.start().to_string()];
    std::thread::scope(|scope| {
        let lister = scope.spawn(move || {
            // Sending fails if this test has panicked, which stops pg_waldump.
            let listed = waldump::records(pg_waldump, &arguments, |record| Ok(sender.send(record)?));
            listed.unwrap();
        });
        let compared = compare(run, &theirs);
        let more = theirs.recv();
        drop(theirs);
        assert!(more.is_err(), "pg_waldump continues after the expected end of the WAL: {more:?}");
        lister.join().unwrap();
        compared
    })
}

fn compare(run: &Run, theirs: &Receiver<DumpedRecord>) -> Compared {
    let mut compared = Compared { lsns: Vec::new(), blocks: 0, images: 0 };
    let mut end = Lsn(0);
    let options = ScanOptions::new(1);
    scan(
        run,
        options,
        |_| Listing::default(),
        |outcome| {
            for (lsn, record_end, ours) in outcome.visitor.records {
                let theirs = theirs.recv().unwrap_or_else(|_| panic!("pg_waldump ends before {ours:?}"));
                assert_eq!(ours, theirs);
                compared.blocks += ours.blocks.len() as u64;
                compared.images += ours.blocks.iter().filter(|block| block.image.is_some()).count() as u64;
                compared.lsns.push(lsn);
                end = record_end;
            }
            assert!(!matches!(outcome.end, SegmentEnd::Damaged(_)), "{:?}", outcome.end);
            ControlFlow::Continue(())
        },
    );
    compared.lsns.push(end);
    compared
}

/// A visitor that converts records to the form of pg_waldump's.
#[derive(Default)]
struct Listing {
    records: Vec<(Lsn, Lsn, DumpedRecord)>,
}

impl Visitor for Listing {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        payload::parse(record).unwrap_or_else(|error| panic!("{}: {error}", record.lsn));
        let (version, header) = (record.version, &record.header);
        let kind = rmgr::kind(version, header.rmid, header.info);
        let dumped = DumpedRecord {
            manager: kind.resource_manager(version).into_owned(),
            kind: kind.name(version).into_owned(),
            len_without_images: header.total_len - record.image_bytes(),
            total_len: header.total_len,
            xid: header.xid,
            lsn: record.lsn.to_string(),
            prev: header.prev.to_string(),
            description: walden_format::describe(record).expect("a description"),
            blocks: record.blocks.iter().map(dumped_block).collect(),
        };
        self.records.push((record.lsn, record.end, dumped));
        ControlFlow::Continue(())
    }
}

fn dumped_block(block: &BlockRef) -> DumpedBlock {
    let image = block.image.map(|image| {
        let method = match image.compression {
            Compression::None => None,
            Compression::Pglz => Some("pglz"),
            Compression::Lz4 => Some("lz4"),
            Compression::Zstd => Some("zstd"),
        };
        DumpedImage {
            apply: image.apply,
            hole_offset: image.hole_offset,
            hole_len: image.hole_len,
            saved: method.map(|method| (8192 - image.hole_len - image.len, method.to_owned())),
        }
    });
    DumpedBlock {
        id: block.id,
        relation: block.relation.to_string(),
        fork: block.fork.to_string(),
        block: block.block,
        image,
    }
}

/// Compares the sums by kind of record, over all of the WAL and over a range in the middle.
fn the_same_statistics(pg_waldump: &Path, wal: &Path, inventory: &Inventory, lsns: &[Lsn]) {
    let (whole, count) = ((lsns[0], lsns[lsns.len() - 1]), lsns.len() - 1);
    let middle = (lsns[count / 3], lsns[count * 3 / 4]);
    for (from, to) in [whole, middle] {
        let arguments = waldump::range_arguments(wal, &from.to_string(), &to.to_string());
        let rows = waldump::stats(pg_waldump, &arguments).unwrap();
        let theirs: BTreeMap<String, (u64, u64, u64)> =
            rows.into_iter().map(|row| (row.name, (row.count, row.record_bytes, row.image_bytes))).collect();
        assert_eq!(statistics(inventory, from, to), theirs, "from {from} to {to}");
    }
}

/// Returns, by kind of record: number of records, bytes without full-page images and alignment, bytes of
/// full-page images.
fn statistics(inventory: &Inventory, from: Lsn, to: Lsn) -> BTreeMap<String, (u64, u64, u64)> {
    let request = Request::sums(from, to, 2);
    let explanation = walden_explain::explain(&inventory.runs, &request, |_| {}).unwrap();
    let name = |kind: Kind| {
        format!("{}/{}", kind.resource_manager(explanation.version), kind.name(explanation.version))
    };
    let view = explanation.view_by(&[Dimension::Record]);
    let rows = view.rows.iter().filter_map(|(key, tally)| {
        let kind = Kind::from_index(key.kind??.into()).unwrap();
        let (alignment, images) = (tally.buckets.get(Bucket::Alignment), tally.buckets.images());
        Some((name(kind), (tally.records, tally.bytes() - alignment - images, images)))
    });
    rows.collect()
}

/// Checks that the program's JSON adds up to the size of the files. Returns its number of records.
fn the_buckets_add_up(wal: &Path) -> u64 {
    let json = explain_json(&[wal]);
    let sizes = fs::read_dir(wal).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(sum(&json["buckets"]), json["file_bytes"].as_u64().unwrap());
    assert_eq!(json["file_bytes"], sizes.sum::<u64>());
    json["records"].as_u64().unwrap()
}

/// Explains each segment as a separate range. A record that continues in the next segment counts where it
/// starts, with the page headers that it crosses. Returns the number of records.
fn segments_add_up(wal: &Path, run: &Run) -> u64 {
    let one = |segment: &SegmentFile| {
        let bounds = [segment.start, segment.start.plus(run.segment_size.bytes())].map(|lsn| lsn.to_string());
        let [from, to] = &bounds;
        let json =
            explain_json(&["--from".as_ref(), from.as_ref(), "--to".as_ref(), to.as_ref(), wal.as_os_str()]);
        assert_eq!(sum(&json["buckets"]), json["file_bytes"].as_u64().unwrap(), "{from} to {to}");
        json["records"].as_u64().unwrap()
    };
    run.segments.iter().map(one).sum()
}

/// Compares with the server's own counters, for versions without pg_waldump, and for 19, which counts bytes
/// of images.
fn judge_by_statistics(major: u32) -> Outcome {
    let installation = postgres(major)?;
    // Autovacuum is off, so the counters cover exactly the sessions' WAL.
    for (workload, size) in [("dense", 5000), ("dml-matrix", 3000), ("load", 2), ("golden", 1)] {
        let output = tempfile::tempdir().unwrap();
        let facts = run(&installation, workload, size, output.path());
        let wal = output.path().join("wal");
        the_buckets_add_up(&wal);
        the_same_counters(&facts, &wal, workload);
    }
    Ok(())
}

/// `pg_stat_wal` counts records, full-page images and bytes (`xl_tot_len`) when they are inserted.
///
/// Every session of the workload has ended and reported before the counters are read. Small differences
/// remain. The session that switched to the first segment reports its switch record (24 bytes) after the
/// first reading, so one more record is counted. A background process may write one or two records (a list of
/// running transactions, at most one per 15 s) between a reading and the recorded LSN, or report one late.
/// None of these has an image. So a difference of more than 8 records, 2 kB or any image is an error of the
/// decoder.
fn the_same_counters(facts: &Facts, wal: &Path, workload: &str) {
    let delta = &facts.statistics["pg_stat_wal"].delta;
    let mut decoded = Counters { from: facts.workload_lsn, to: facts.end_lsn, sums: [0; 4] };
    let inventory = Inventory::search(&[wal]).unwrap();
    let options = ScanOptions::new(1);
    for run in &inventory.runs {
        scan(
            run,
            options,
            |_| Counters { sums: [0; 4], ..decoded },
            |outcome| {
                for (sum, more) in decoded.sums.iter_mut().zip(outcome.visitor.sums) {
                    *sum += more;
                }
                ControlFlow::Continue(())
            },
        );
    }
    let limits = [("wal_records", 8), ("wal_fpi", 0), ("wal_fpi_bytes", 0), ("wal_bytes", 2048)];
    for ((name, most), decoded) in limits.into_iter().zip(decoded.sums) {
        if name == "wal_fpi_bytes" && facts.server.version_num < 190_000 {
            continue;
        }
        let counted = delta[name].as_u64().unwrap();
        assert!(counted > 0 || name.starts_with("wal_fpi"), "{workload}: nothing was counted as {name}");
        let difference = decoded.abs_diff(counted);
        assert!(difference <= most, "{workload}: {name}: decoded {decoded}, counted by the server {counted}");
    }
    say(&format!(
        "{workload} on {}: decoded {:?}, counted {delta:?}",
        facts.server.version_num, decoded.sums
    ));
}

#[derive(Clone, Copy)]
struct Counters {
    from: Lsn,
    to: Lsn,
    /// Records, full-page images, bytes of full-page images, and bytes.
    sums: [u64; 4],
}

impl Visitor for Counters {
    fn record(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        payload::parse(record).unwrap_or_else(|error| panic!("{}: {error}", record.lsn));
        if (self.from..self.to).contains(&record.lsn) {
            let images = record.blocks.iter().filter_map(|block| block.image.as_ref());
            self.sums[0] += 1;
            for image in images {
                self.sums[1] += 1;
                self.sums[2] += u64::from(image.len);
            }
            self.sums[3] += u64::from(record.header.total_len);
        }
        ControlFlow::Continue(())
    }
}
