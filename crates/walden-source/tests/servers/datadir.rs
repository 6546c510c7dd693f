//! Data directories of servers.

use walden_format::record::{Fork, RelFileLocator};
use walden_lab::{ClusterBuilder, StopMode};
use walden_redo::Page;
use walden_source::datadir::{DataDir, DatabaseState};
use walden_testing::{ALL_SERVERS, Outcome, postgres};

walden_testing::tests! {
    a_servers_pages_have_their_checksums on ALL_SERVERS,
}

/// Every page that a server wrote is found, and has the computed checksum.
fn a_servers_pages_have_their_checksums(major: u32) -> Outcome {
    let cluster = ClusterBuilder::new(postgres(major)?).checksums(true).start().unwrap();
    let folder = cluster.make_folder("elsewhere").unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client.batch_execute(&format!("CREATE TABLESPACE elsewhere LOCATION '{}'", folder.display())).unwrap();
    let statements = [
        "CREATE TABLE walrus (id bigint PRIMARY KEY) TABLESPACE elsewhere",
        "INSERT INTO walrus SELECT generate_series(1, 5000)",
        "VACUUM walrus",
    ];
    statements.iter().for_each(|statement| client.batch_execute(statement).unwrap());
    assert_eq!(DataDir::open(&cluster.data_dir()).unwrap().control().state, DatabaseState::Other(6));
    let sql = "SELECT coalesce(nullif(c.reltablespace, 0), d.dattablespace),
                      CASE WHEN c.reltablespace = 1664 THEN 0::oid ELSE d.oid END,
                      pg_relation_filenode(c.oid)::oid, f.number, pg_relation_size(c.oid, f.name)
               FROM pg_class c
               CROSS JOIN pg_database d
               CROSS JOIN (VALUES (0, 'main'), (1, 'fsm'), (2, 'vm')) f(number, name)
               WHERE d.datname = current_database() AND pg_relation_filenode(c.oid) IS NOT NULL";
    let files = client.query(sql, &[]).unwrap();
    drop(client);
    cluster.stop(StopMode::Fast).unwrap();

    let mut data = DataDir::open(&cluster.data_dir()).unwrap();
    let control = *data.control();
    assert_eq!(control.system_identifier, cluster.system_identifier());
    assert_eq!((control.state, control.data_checksum_version), (DatabaseState::ShutDown, 1));
    assert_eq!((data.redo_from(), control.checkpoint), (control.redo, control.redo));
    assert!(!data.is_backup() && control.hint_settings().data_checksums);
    let (mut page, mut pages, mut elsewhere) = (Page::default(), 0, 0);
    for row in files {
        let (tablespace, database, relation) = (row.get(0), row.get(1), row.get(2));
        let relation = RelFileLocator { tablespace, database, relation };
        let fork = Fork(row.get::<_, i32>(3) as u8);
        let blocks = (row.get::<_, i64>(4) / 8192) as u32;
        for block in 0..blocks {
            assert!(data.read_page(relation, fork, block, &mut page.0).unwrap(), "{relation} {fork} {block}");
            assert!(data.checksum_holds(block, &page), "{relation} {fork} {block}");
            assert!(page.is_new() || !data.checksum_holds(block + 1, &page), "{relation} {fork} {block}");
        }
        assert!(!data.read_page(relation, fork, blocks, &mut page.0).unwrap());
        pages += blocks;
        elsewhere += u32::from(tablespace > 10_000) * blocks;
    }
    assert!(pages > 500 && elsewhere > 20, "{pages} pages, {elsewhere} in another tablespace");
    Ok(())
}
