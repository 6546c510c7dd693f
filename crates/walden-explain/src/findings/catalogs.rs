//! Causes in system catalogs and sequences.

use walden_format::rmgr::info::smgr;
use walden_format::rmgr::rmid;

use super::Candidate;
use super::facts::{Facts, Table};

pub(super) fn churn(facts: &Facts<'_>) -> Vec<Candidate> {
    let catalogs = || facts.tables.iter().filter(|table| table.is_catalog);
    let cells = catalogs().flat_map(|table| table.relations.iter()).flat_map(|one| one.cells.iter().copied());
    let claim = facts.claim(cells, 1.0, 1.0);
    if claim.bytes() == 0 {
        return Vec::new();
    }
    let bytes = |table: &Table| -> u64 {
        let cells = table.relations.iter().flat_map(|one| one.cells.iter().copied());
        cells.map(|cell| facts.tally(cell).bytes()).sum()
    };
    let of = |name: &str| catalogs().filter(|table| table.name.ends_with(name)).map(bytes).sum::<u64>();
    let files = facts.records(
        facts
            .cells_without_relation(|manager, info| manager == rmid::SMGR && info == smgr::CREATE)
            .into_iter(),
    );
    let rows_of_class = facts.records(facts.cells(
        catalogs().filter(|table| table.name.ends_with("pg_class")).flat_map(|table| table.heaps()),
        super::facts::is_insert,
    ));
    // Files of temporary tables are not logged, but their rows in pg_class are.
    let (what, remedy) = if of("pg_statistic") * 2 > claim.bytes() {
        (
            "ANALYZE and autovacuum",
            "less frequent ANALYZE of tables that change little (autovacuum_analyze_scale_factor)",
        )
    } else if rows_of_class > 2 * files {
        (
            "temporary tables",
            "create a temporary table once a session, with ON COMMIT DELETE ROWS; or use a CTE or an array instead",
        )
    } else {
        (
            "tables created and dropped",
            "keep the table and TRUNCATE it, or use partitions that are made in advance",
        )
    };
    vec![Candidate {
        text: format!(
            "{} of the WAL is changes of system catalogs: {rows_of_class} relations were entered in pg_class, {files} with a logged \
             file",
            facts.percent(claim.bytes())
        ),
        points_at: what.into(),
        remedy: remedy.into(),
        ..Candidate::new(claim, (0.8, 1.0))
    }]
}

pub(super) fn sequences(facts: &Facts<'_>) -> Vec<Candidate> {
    let is_sequence = |manager: u8, _: u8| manager == rmid::SEQ;
    let mut found = Vec::new();
    for sequence in &facts.tables {
        let claim = facts.claim(facts.cells(&sequence.relations, is_sequence), 1.0, 1.0);
        let records = facts.records(facts.cells(&sequence.relations, is_sequence));
        if records == 0 {
            continue;
        }
        let name = &sequence.name;
        found.push(Candidate {
            text: format!(
                "sequence {name} takes {} of the WAL: {records} records, one per 32 numbers drawn",
                facts.percent(claim.bytes())
            ),
            points_at: name.clone(),
            remedy: format!(
                "ALTER SEQUENCE {name} CACHE 1000: a session then takes so many numbers with one record"
            ),
            ..Candidate::new(claim, (0.9, 0.98))
        });
    }
    found
}
