//! Experiments on an existing server.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use postgres::Client;
use walden_format::lsn::Lsn;
use walden_lab::ClusterBuilder;
use walden_lab::experiments::report::Phase;
use walden_lab::experiments::statements::Relation;
use walden_lab::experiments::{Analysis, Options, PredictedRun, definition, run};
use walden_lab::oracle_model::RowChanges;
use walden_testing::{Outcome, postgres};

walden_testing::tests! {
    settings_are_restored_if_they_cannot_take_effect,
}

/// For an experiment that ends before it has written WAL.
struct NoLog;

impl Analysis for NoLog {
    fn buckets(&self, _: &Path, _: Lsn, _: Lsn) -> Result<BTreeMap<String, u64>> {
        bail!("there is no log")
    }

    fn checkpoints(&self, _: &Path, _: (Lsn, Lsn), _: &BTreeMap<String, String>) -> Result<[u64; 2]> {
        bail!("there is no log")
    }

    fn row_changes(&self, _: &Path, _: &Relation, _: &[Phase]) -> Result<Vec<RowChanges>> {
        bail!("there is no log")
    }

    fn predict(
        &self,
        _: (&Path, Option<&Path>),
        _: (Lsn, Lsn),
        _: &BTreeMap<String, String>,
        _: &[BTreeMap<String, String>],
    ) -> Result<Vec<PredictedRun>> {
        bail!("there is no log")
    }
}

fn own_settings(client: &mut Client) -> Vec<(String, String)> {
    let query = "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%postgresql.auto.conf'";
    client.query(query, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn settings_are_restored_if_they_cannot_take_effect() -> Outcome {
    // The first version with roles that may only change settings.
    let cluster = ClusterBuilder::new(postgres(15)?).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute("ALTER SYSTEM SET max_wal_size = '777MB'").unwrap();
    client
        .batch_execute(
            "CREATE ROLE changer LOGIN;
             GRANT ALTER SYSTEM ON PARAMETER max_wal_size, checkpoint_timeout, autovacuum, full_page_writes TO changer;
             GRANT SELECT ON pg_file_settings TO changer;
             GRANT EXECUTE ON FUNCTION pg_show_all_file_settings() TO changer",
        )
        .unwrap();
    let before = own_settings(&mut client);
    assert_eq!(before, [("max_wal_size".to_owned(), "777MB".to_owned())]);
    let definition = definition::find("full-page-writes").unwrap().unwrap();
    let dsn = cluster.dsn("postgres").replace("user=postgres", "user=changer");
    let options = Options { dsn: Some(dsn), ..Options::default() };
    let error = run(&definition, &options, &NoLog).err().unwrap();
    assert!(format!("{error:?}").contains("pg_reload_conf"), "{error:?}");
    assert_eq!(own_settings(&mut client), before);
    Ok(())
}
