//! Compares an explanation with the statistics of PostgreSQL's pg_waldump for the same records.

use std::collections::BTreeMap;

use walden_explain::Explanation;
use walden_explain::group::Dimension;
use walden_explain::tally::Bucket;
use walden_format::rmgr::Kind;
use walden_lab::waldump::StatsRow;

/// Number of records, their bytes without full-page images, and bytes of full-page images.
type Sums = (u64, u64, u64);

/// The number of kinds that agree, and the differences.
pub struct Verdict {
    /// Number of kinds of records whose three figures are equal.
    pub agreed: usize,
    /// Number of records of those kinds.
    pub records: u64,
    /// A line for each kind of record that differs.
    pub differences: Vec<String>,
}

/// Compares the figures of each kind of record.
pub fn compare(explanation: &Explanation, stats: &[StatsRow]) -> Verdict {
    let ours = our_sums(explanation);
    let theirs: BTreeMap<String, Sums> =
        stats.iter().map(|row| (row.name.clone(), (row.count, row.record_bytes, row.image_bytes))).collect();
    let mut verdict = Verdict { agreed: 0, records: 0, differences: Vec::new() };
    for name in ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name))) {
        match (ours.get(name), theirs.get(name)) {
            (Some(ours), Some(theirs)) if ours == theirs => {
                verdict.agreed += 1;
                verdict.records += ours.0;
            }
            (ours, theirs) => {
                let text = |sums: Option<&Sums>| match sums {
                    Some((count, record, image)) => format!("{count} records of {record} + {image} bytes"),
                    None => "none".to_owned(),
                };
                verdict.differences.push(format!("{name}: {}, pg_waldump: {}", text(ours), text(theirs)));
            }
        }
    }
    verdict
}

fn our_sums(explanation: &Explanation) -> BTreeMap<String, Sums> {
    let version = explanation.version;
    let view = explanation.view_by(&[Dimension::Record]);
    let kinds = view.rows.iter().filter_map(|(key, tally)| {
        let kind = Kind::from_index(key.kind.flatten()?.into())?;
        let images = tally.buckets.images();
        // pg_waldump counts neither alignment nor bytes outside of records.
        let record = tally.bytes() - images - tally.buckets.get(Bucket::Alignment);
        let name = format!("{}/{}", kind.resource_manager(version), kind.name(version));
        Some((name, (tally.records, record, images)))
    });
    kinds.collect()
}
