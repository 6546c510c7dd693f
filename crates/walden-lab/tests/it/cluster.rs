//! Clusters: start, stop, crash, archive, and complete removal.

use std::path::Path;

use walden_lab::{Cluster, ClusterBuilder, StopMode, Wanted, find_or_install};

walden_testing::tests! {
    options_and_settings_take_effect_and_nothing_remains,
    a_crash_is_recovered_from_and_the_segments_are_collected_in_order,
    a_server_that_does_not_start_shows_its_log,
    initdb_that_fails_shows_its_output,
}

fn builder() -> ClusterBuilder {
    ClusterBuilder::new(find_or_install(Wanted::Any).unwrap())
}

fn setting(cluster: &Cluster, name: &str) -> String {
    cluster.client("postgres").unwrap().query_one("SELECT current_setting($1)", &[&name]).unwrap().get(0)
}

fn options_and_settings_take_effect_and_nothing_remains() {
    let cluster = builder().wal_segsize_mb(1).checksums(true).setting("work_mem", "7MB").start().unwrap();
    assert_eq!(setting(&cluster, "wal_segment_size"), "1MB");
    assert_eq!(cluster.wal_segment_bytes(), 1 << 20);
    assert_eq!(setting(&cluster, "data_checksums"), "on");
    assert_eq!(setting(&cluster, "work_mem"), "7MB");
    assert_eq!(setting(&cluster, "listen_addresses"), "");
    assert_eq!(cluster.major(), cluster.installation().version.major);
    assert!(cluster.system_identifier() > 0);
    // PostgreSQL refuses to run as root, so the running server shows that it was started as another user.
    let dir = cluster.dir().to_owned();
    let pid = cluster.pid().unwrap();
    drop(cluster);
    assert!(!dir.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

fn a_crash_is_recovered_from_and_the_segments_are_collected_in_order() {
    let cluster = builder().wal_segsize_mb(1).archive(true).start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute("CREATE TABLE t AS SELECT n, repeat('x', 300) FROM generate_series(1, 10000) n")
        .unwrap();
    drop(client);
    cluster.crash().unwrap();
    assert!(!cluster.is_running());
    cluster.start().unwrap();
    let mut client = cluster.client("postgres").unwrap();
    let rows: i64 = client.query_one("SELECT count(*) FROM t", &[]).unwrap().get(0);
    assert_eq!(rows, 10000);
    let last: String =
        client.query_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &[]).unwrap().get(0);
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();

    let to = tempfile::tempdir().unwrap();
    let missing = cluster.collect_wal("0000000100000000FFFFFFFF", to.path()).unwrap_err();
    assert!(missing.to_string().contains("recycled it"), "{missing}");
    let archived = std::fs::read_dir(cluster.archive_dir()).unwrap();
    let archived: Vec<String> =
        archived.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let oldest = archived.iter().filter(|name| name.len() == 24).min().expect("some segments are archived");
    let segments = cluster.collect_wal(oldest, to.path()).unwrap();
    assert!(segments.is_sorted() && segments.len() > 2);
    assert!(segments.last().unwrap() >= &last, "{segments:?} reach {last}");
    for segment in &segments {
        assert_eq!(to.path().join(segment).metadata().unwrap().len(), 1 << 20);
    }
}

fn a_server_that_does_not_start_shows_its_log() {
    let error = builder().setting("shared_buffers", "one").start().err().unwrap();
    assert!(format!("{error:#}").contains("shared_buffers"), "{error:#}");
}

fn initdb_that_fails_shows_its_output() {
    let error = builder().initdb_option("--no-such-option").start().err().unwrap();
    assert!(format!("{error:#}").contains("no-such-option"), "{error:#}");
}
