//! A MariaDB server.

use std::path::Path;

use walden_lab::mariadb::{MariaDb, Programs};
use walden_testing::{Need, Outcome};

walden_testing::tests! {
    a_server_starts_counts_and_is_gone_in_the_end,
}

fn a_server_starts_counts_and_is_gone_in_the_end() -> Outcome {
    Need::MariaDb.find()?;
    let server = MariaDb::start(Programs::find().unwrap()).unwrap();
    let folder = server.dir().to_owned();
    assert!(server.version().unwrap().contains("MariaDB"));
    let before = server.counters().unwrap()["Innodb_lsn_current"];
    let snapshot = server.snapshot().unwrap();
    server
        .sql("CREATE DATABASE d; USE d; CREATE TABLE t (a int); INSERT INTO t SELECT seq FROM seq_1_to_1000")
        .unwrap();
    server.flush().unwrap();
    let after = server.counters().unwrap();
    assert!(after["Innodb_lsn_current"] > before + 10_000 && after["Innodb_dblwr_pages_written"] > 0);
    let pid = server.pid().unwrap();
    drop(snapshot);
    drop(server);
    assert!(!folder.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}
