//! The culprits.

use super::ServerKind::{ArchiveTimeout, Checksums, Consistency, Logical, Plain, SmallWal, TimedCheckpoints};
use super::Step::{In, Open, Pause, Pgbench, Rounds, Sessions, Sql, With};
use super::{Culprit, Expected, Step};

const fn cause(rule: &'static str, object: &'static str, remedy: &'static str) -> Option<Expected> {
    Some(Expected { kind: "cause", rule, object, remedy })
}

const fn setting(rule: &'static str, object: &'static str, remedy: &'static str) -> Option<Expected> {
    Some(Expected { kind: "setting", rule, object, remedy })
}

const BASE: Culprit = Culprit {
    name: "",
    about: "",
    server: Plain,
    since: 0,
    setup: &[],
    run: &[],
    expected: None,
    also: UNCOMPRESSED,
};

/// `wal_compression` is off by default, and every page's first change after the checkpoint before the
/// workload has an image.
const UNCOMPRESSED: &[&str] = &["uncompressed-images"];

/// A table of 30,000 rows with a wide text, about 40 rows on a page.
const ROWS: &str =
    "CREATE TABLE item (id int PRIMARY KEY, price int NOT NULL, name text NOT NULL, body text NOT NULL);
INSERT INTO item SELECT i, i, md5(i::text), repeat(md5((i * 3)::text), 4) FROM generate_series(1, 30000) i";

/// All culprits.
pub const CULPRITS: &[Culprit] = &[
    Culprit {
        name: "healthy",
        about: "single-row inserts with ascending keys and HOT updates over a table with free space",
        setup: &[Sql(
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int, note text);
             CREATE TABLE account (id int PRIMARY KEY, balance int, name text) WITH (fillfactor = 50);
             INSERT INTO account SELECT i, 0, repeat(md5(i::text), 4) FROM generate_series(1, 20000) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..3000 LOOP
               INSERT INTO orders (customer, note) SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, 4);
               UPDATE account SET balance = balance + i WHERE id = 1 + (i * 7919) % 20000; COMMIT; END LOOP; END $$",
        )],
        expected: None,
        ..BASE
    },
    Culprit {
        name: "pgbench",
        about: "pgbench's TPC-B-like transactions: accounts fill their pages, so half of their updates leave their page",
        setup: &[Pgbench(&["--initialize", "--quiet", "--scale=2"])],
        run: &[Pgbench(&["--client=2", "--transactions=5000", "--no-vacuum", "--random-seed=42", "--protocol=prepared"])],
        expected: cause("updates-without-space", "pgbench_accounts", "fillfactor"),
        ..BASE
    },
    Culprit {
        name: "unused-index",
        about: "inserts into a table with an index that no query uses, next to one that is used",
        setup: &[Sql(
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int, note text, sku text UNIQUE);
             CREATE INDEX orders_customer ON orders (customer);
             CREATE INDEX orders_note ON orders (note);
             INSERT INTO orders (customer, note, sku)
               SELECT i % 500, md5(i::text), lpad(i::text, 12, '0') FROM generate_series(1, 20000) i",
        )],
        run: &[
            Sql("SET enable_seqscan = off; SELECT count(*) FROM orders WHERE customer = 5; RESET enable_seqscan"),
            Sql(
                "DO $$ BEGIN FOR i IN 20001..26000 LOOP
                   INSERT INTO orders (customer, note, sku) VALUES (i % 500, md5(i::text), lpad(i::text, 12, '0'));
                   IF i % 3 = 0 THEN COMMIT; END IF; END LOOP; END $$",
            ),
        ],
        expected: cause("unused-index", "orders_note", "DROP INDEX"),
        ..BASE
    },
    Culprit {
        name: "index-on-hot-column",
        about: "updates of an indexed time stamp, in a table with free space on each page",
        setup: &[Sql(
            "CREATE TABLE ticket (id int PRIMARY KEY, owner int NOT NULL, touched timestamptz NOT NULL, body text);
             CREATE INDEX ticket_owner ON ticket (owner);
             CREATE INDEX ticket_touched ON ticket (touched);
             INSERT INTO ticket SELECT i, i % 900, now(), repeat(md5(i::text), 4) FROM generate_series(1, 16000) i;
             DELETE FROM ticket WHERE id % 2 = 0",
        )],
        run: &[
            Sql(
                "SET enable_seqscan = off; SELECT count(*) FROM ticket WHERE owner = 5;
                 SELECT count(*) FROM ticket WHERE touched > now(); RESET enable_seqscan",
            ),
            Sql(
                "DO $$ BEGIN FOR i IN 1..9000 LOOP
                   UPDATE ticket SET touched = clock_timestamp() WHERE id = 1 + 2 * ((i * 7919) % 8000); COMMIT; END LOOP; END $$",
            ),
        ],
        expected: cause("indexed-column-updates", "ticket_touched", "DROP INDEX"),
        ..BASE
    },
    Culprit {
        name: "uuid-keys",
        about: "inserts into three tables, keyed by random UUIDs, by ascending UUIDs and by numbers, with two checkpoints",
        setup: &[Sql(
            "CREATE TABLE random_key (id uuid PRIMARY KEY, what int);
             CREATE TABLE ascending_key (id uuid PRIMARY KEY, what int);
             CREATE TABLE number_key (id bigint PRIMARY KEY, what int);
             INSERT INTO random_key SELECT md5(i::text)::uuid, i FROM generate_series(1, 60000) i;
             INSERT INTO ascending_key SELECT (lpad(to_hex(i), 12, '0') || left(md5(i::text), 20))::uuid, i FROM generate_series(1, 60000) i;
             INSERT INTO number_key SELECT i, i FROM generate_series(1, 60000) i",
        )],
        run: &[Sql(UUID_INSERTS_1), Sql("CHECKPOINT"), Sql(UUID_INSERTS_2)],
        expected: cause("random-keys", "random_key_pkey", "UUIDv7"),
        also: &["uncompressed-images", "checkpoint-images"],
        ..BASE
    },
    Culprit {
        name: "toast-rewrites",
        about: "updates that change a little in a value of 10 kB, which is written again whole",
        setup: &[Sql(
            "CREATE TABLE document (id int PRIMARY KEY, title text, body text);
             ALTER TABLE document ALTER body SET STORAGE EXTERNAL;
             INSERT INTO document SELECT i, 'title ' || i, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 320) j)
               FROM generate_series(1, 100) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..500 LOOP
               UPDATE document SET body = overlay(body PLACING lpad(i::text, 8, '0') FROM 100) WHERE id = 1 + i * 7 % 100;
               COMMIT; END LOOP; END $$",
        )],
        expected: cause("toast-rewrites", "document", "table of its own"),
        ..BASE
    },
    Culprit {
        name: "no-op-updates",
        about: "updates that set each column to the value that it has, beside ones that change something",
        setup: &[Sql(
            "CREATE TABLE person (id int PRIMARY KEY, name text, email text, city text) WITH (fillfactor = 60);
             CREATE TABLE visit (id int PRIMARY KEY, n int, name text) WITH (fillfactor = 60);
             INSERT INTO person SELECT i, md5(i::text), md5((i * 3)::text), repeat(md5((i * 7)::text), 2) FROM generate_series(1, 8000) i;
             INSERT INTO visit SELECT i, 0, md5(i::text) FROM generate_series(1, 8000) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..9000 LOOP
               UPDATE person SET name = name, email = email, city = city WHERE id = 1 + (i * 7919) % 8000;
               IF i % 5 = 0 THEN UPDATE visit SET n = n + 1 WHERE id = 1 + (i * 7919) % 8000; END IF;
               IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("no-op-updates", "person", "IS DISTINCT FROM"),
        ..BASE
    },
    Culprit {
        name: "no-op-bulk-update",
        about: "an UPDATE of all rows of a full table that changes none of them",
        setup: &[Sql(ROWS)],
        run: &[Sql("UPDATE item SET price = price, name = name")],
        expected: cause("no-op-updates", "item", "IS DISTINCT FROM"),
        ..BASE
    },
    Culprit {
        name: "repeated-updates",
        about: "transactions that update the same few rows again and again",
        setup: &[Sql(
            "CREATE TABLE counter (name text PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO counter SELECT 'shop ' || i, 0 FROM generate_series(1, 20) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR t IN 1..40 LOOP FOR i IN 1..20 LOOP
               UPDATE counter SET n = n + 1; END LOOP; COMMIT; END LOOP; END $$",
        )],
        expected: cause("repeated-updates", "counter", "once"),
        ..BASE
    },
    Culprit {
        name: "hot-rows",
        about: "many transactions that each add to one of ten rows",
        setup: &[Sql(
            "CREATE TABLE page_views (page int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO page_views SELECT i, 0 FROM generate_series(1, 10) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..15000 LOOP
               UPDATE page_views SET n = n + 1 WHERE page = 1 + i % 10; COMMIT; END LOOP; END $$",
        )],
        expected: cause("repeated-updates", "page_views", "collect"),
        also: &["uncompressed-images", "tiny-transactions"],
        ..BASE
    },
    Culprit {
        name: "bulk-update",
        about: "one UPDATE that changes all rows of a table with two indexes",
        setup: &[Sql(ROWS), Sql("CREATE INDEX item_name ON item (name)")],
        run: &[
            Sql("SET enable_seqscan = off; SELECT count(*) FROM item WHERE name = 'x'; RESET enable_seqscan"),
            Sql("UPDATE item SET price = price + 1 + id % 7"),
        ],
        expected: cause("bulk-update", "item", "fillfactor"),
        ..BASE
    },
    Culprit {
        name: "bulk-delete",
        about: "one DELETE of most rows of a table, and the VACUUM that follows",
        setup: &[Sql(ROWS)],
        run: &[Sql("DELETE FROM item WHERE id % 10 <> 0"), Sql("VACUUM item")],
        expected: cause("bulk-delete", "item", "partition"),
        ..BASE
    },
    Culprit {
        name: "staging-table",
        about: "a table that is filled, read and truncated again and again",
        setup: &[Sql(
            "CREATE TABLE stage (id int PRIMARY KEY, line text);
             CREATE TABLE daily (day int, n bigint)",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR day IN 1..5 LOOP
               INSERT INTO stage SELECT i, repeat(md5(i::text), 3) FROM generate_series(1, 8000) i; COMMIT;
               INSERT INTO daily SELECT day, count(*) FROM stage; COMMIT;
               TRUNCATE stage; COMMIT; END LOOP; END $$",
        )],
        expected: cause("staging-table", "stage", "UNLOGGED"),
        ..BASE
    },
    Culprit {
        name: "tables-created-and-dropped",
        about: "results written to a table by CREATE TABLE AS, and dropped soon",
        setup: &[Sql(ROWS)],
        run: &[Sql(
            "DO $$ BEGIN FOR t IN 1..4 LOOP
               CREATE TABLE result AS SELECT id, name, body FROM item WHERE id % 3 = t % 3; COMMIT;
               DROP TABLE result; COMMIT; END LOOP; END $$",
        )],
        expected: cause("staging-table", "", "UNLOGGED"),
        ..BASE
    },
    Culprit {
        name: "materialized-view",
        about: "a materialized view that is refreshed whole several times",
        setup: &[
            Sql(ROWS),
            Sql("CREATE MATERIALIZED VIEW summary AS SELECT id, price, name FROM item WHERE id % 2 = 0"),
            Sql("CREATE UNIQUE INDEX summary_id ON summary (id)"),
        ],
        run: &[
            Sql("REFRESH MATERIALIZED VIEW summary"),
            Sql("UPDATE item SET price = 0 WHERE id < 10"),
            Sql("REFRESH MATERIALIZED VIEW summary"),
            Sql("REFRESH MATERIALIZED VIEW summary"),
        ],
        expected: cause("materialized-view-refresh", "summary", "CONCURRENTLY"),
        ..BASE
    },
    Culprit {
        name: "index-build",
        about: "an index built on a table that is large",
        setup: &[Sql(ROWS)],
        run: &[Sql("CREATE INDEX item_body ON item (body, name)")],
        expected: cause("index-build", "item_body", "wal_compression"),
        ..BASE
    },
    Culprit {
        name: "table-rewrite",
        about: "VACUUM FULL of a table",
        setup: &[Sql(ROWS)],
        run: &[Sql("VACUUM FULL item")],
        expected: cause("table-rewrite", "item", "VACUUM"),
        ..BASE
    },
    Culprit {
        name: "vacuum-freeze",
        about: "VACUUM FREEZE of a table that was loaded earlier",
        setup: &[Sql(ROWS)],
        run: &[Sql("VACUUM FREEZE item")],
        expected: cause("freezing", "item", "COPY"),
        ..BASE
    },
    Culprit {
        name: "pruning",
        about: "updates of a small column in rows of 1.5 kB, whose pages are pruned again and again",
        setup: &[Sql(
            "CREATE TABLE profile (id int PRIMARY KEY, seen int NOT NULL, about text NOT NULL) WITH (fillfactor = 60);
             ALTER TABLE profile ALTER about SET STORAGE PLAIN;
             INSERT INTO profile SELECT i, 0, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 50) j)
               FROM generate_series(1, 600) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..12000 LOOP
               UPDATE profile SET seen = i WHERE id = 1 + (i * 7919) % 600; IF i % 2 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("pruning", "profile", "table of its own"),
        also: &["uncompressed-images", "repeated-updates"],
        ..BASE
    },
    Culprit {
        name: "hint-bits",
        about: "the first query of a table after its load, with data checksums",
        server: Checksums,
        setup: &[],
        run: &[
            Sql(ROWS),
            Sql("CHECKPOINT"),
            Sql("SELECT count(*) FROM item"),
        ],
        expected: cause("hint-bits", "item", "COPY"),
        ..BASE
    },
    Culprit {
        name: "select-for-update",
        about: "a queue whose rows are locked by SELECT FOR UPDATE and mostly not changed",
        setup: &[Sql(
            "CREATE TABLE job (id int PRIMARY KEY, state text, payload text) WITH (fillfactor = 70);
             INSERT INTO job SELECT i, 'new', md5(i::text) FROM generate_series(1, 6000) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..12000 LOOP
               PERFORM 1 FROM job WHERE id = 1 + (i * 7919) % 6000 FOR UPDATE;
               IF i % 20 = 0 THEN UPDATE job SET state = 'done' WHERE id = 1 + (i * 7919) % 6000; END IF;
               IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("row-locks", "job", "FOR UPDATE"),
        ..BASE
    },
    Culprit {
        name: "foreign-keys",
        about: "inserts by four sessions that refer to the same few rows: share locks and multixacts",
        setup: &[Sql(
            "CREATE TABLE shop (id int PRIMARY KEY, name text);
             CREATE TABLE sale (shop int NOT NULL REFERENCES shop, n int NOT NULL);
             INSERT INTO shop SELECT i, md5(i::text) FROM generate_series(1, 10) i",
        )],
        run: &[Sessions(
            4,
            "DO $$ BEGIN FOR i IN 1..1500 LOOP
               INSERT INTO sale VALUES (1 + i % 10, $session); INSERT INTO sale VALUES (1 + (i + 3) % 10, $session);
               IF i % 10 = 0 THEN PERFORM pg_sleep(0.001); END IF; COMMIT; END LOOP; END $$",
        )],
        expected: cause("foreign-key-locks", "shop", "foreign key"),
        also: &["uncompressed-images", "tiny-transactions"],
        ..BASE
    },
    Culprit {
        name: "on-conflict",
        about: "INSERT ... ON CONFLICT DO UPDATE where the row already exists",
        setup: &[Sql(
            "CREATE TABLE reading (sensor int PRIMARY KEY, value int, at timestamptz);
             INSERT INTO reading SELECT i, 0, now() FROM generate_series(1, 18000) i;
             DELETE FROM reading WHERE sensor % 2 = 0",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..9000 LOOP
               INSERT INTO reading VALUES (1 + 2 * ((i * 7919) % 9000), i, clock_timestamp())
                 ON CONFLICT (sensor) DO UPDATE SET value = excluded.value, at = excluded.at;
               IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("upserts", "reading", "ON CONFLICT"),
        ..BASE
    },
    Culprit {
        name: "savepoints",
        about: "a subtransaction per row: PL/pgSQL blocks with EXCEPTION, of which some catch an error",
        setup: &[Sql("CREATE TABLE import (id int, line text)")],
        run: &[Sql(
            "DO $$ BEGIN FOR t IN 1..60 LOOP
               FOR i IN 1..150 LOOP BEGIN
                   INSERT INTO import VALUES (i, 'line'); IF i % 3 = 0 THEN RAISE EXCEPTION 'bad line'; END IF;
                 EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; COMMIT; END LOOP; END $$",
        )],
        expected: cause("savepoints", "", "savepoint"),
        ..BASE
    },
    Culprit {
        name: "rollbacks",
        about: "transactions that insert rows and are rolled back, beside ones that commit",
        setup: &[Sql("CREATE TABLE booking (id int PRIMARY KEY, what text)")],
        run: &[Sql(
            "DO $$ BEGIN FOR t IN 1..400 LOOP
               INSERT INTO booking SELECT t * 20 + i, md5(i::text) FROM generate_series(1, 20) i;
               IF t % 3 = 0 THEN COMMIT; ELSE ROLLBACK; END IF; END LOOP; END $$",
        )],
        expected: cause("rolled-back", "", "before"),
        ..BASE
    },
    Culprit {
        name: "tiny-transactions",
        about: "rows inserted in a transaction each",
        setup: &[Sql("CREATE TABLE event (id int, n int)")],
        run: &[Sql("DO $$ BEGIN FOR i IN 1..15000 LOOP INSERT INTO event VALUES (i, i); COMMIT; END LOOP; END $$")],
        expected: cause("tiny-transactions", "", "COPY"),
        ..BASE
    },
    Culprit {
        name: "sequences",
        about: "numbers drawn from a sequence",
        setup: &[Sql("CREATE SEQUENCE ticket_number")],
        run: &[Sql("SELECT count(nextval('ticket_number')) FROM generate_series(1, 300000)")],
        expected: cause("sequences", "ticket_number", "CACHE"),
        ..BASE
    },
    Culprit {
        name: "gin-pending-list",
        about: "inserts into a table with a GIN index, whose entries go to its pending list first",
        setup: &[Sql(
            "CREATE TABLE article (id int, tags text[]);
             CREATE INDEX article_tags ON article USING gin (tags);
             INSERT INTO article SELECT i, ARRAY(SELECT 'tag ' || (i * j) % 3000 FROM generate_series(1, 15) j) FROM generate_series(1, 5000) i",
        )],
        run: &[
            Sql("SET enable_seqscan = off; SELECT count(*) FROM article WHERE tags @> ARRAY['tag 5']; RESET enable_seqscan"),
            Sql(
                "DO $$ BEGIN FOR i IN 1..4000 LOOP
                   INSERT INTO article SELECT i, ARRAY(SELECT 'tag ' || (i * j) % 3000 FROM generate_series(1, 15) j);
                   IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
            ),
            Sql("VACUUM article"),
        ],
        expected: cause("gin-pending-list", "article_tags", "fastupdate"),
        ..BASE
    },
    Culprit {
        name: "replica-identity-full",
        about: "updates of a table whose old rows are logged whole for logical replication",
        server: Logical,
        setup: &[Sql(
            "CREATE TABLE customer (id int PRIMARY KEY, seen int, address text) WITH (fillfactor = 50);
             ALTER TABLE customer REPLICA IDENTITY FULL;
             CREATE TABLE supplier (id int PRIMARY KEY, seen int, address text) WITH (fillfactor = 50);
             INSERT INTO customer SELECT i, 0, repeat(md5(i::text), 12) FROM generate_series(1, 3000) i;
             INSERT INTO supplier SELECT * FROM customer",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..4000 LOOP
               UPDATE customer SET seen = i WHERE id = 1 + (i * 7919) % 3000;
               IF i % 8 = 0 THEN UPDATE supplier SET seen = i WHERE id = 1 + (i * 7919) % 3000; END IF;
               IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("replica-identity", "customer", "REPLICA IDENTITY"),
        // Without a slot, the level alone is a finding too.
        also: &["uncompressed-images", "logical-level"],
        ..BASE
    },
    Culprit {
        name: "archive-timeout",
        about: "an almost idle server whose segments are switched every second",
        server: ArchiveTimeout,
        setup: &[Sql("CREATE TABLE beat (at timestamptz)")],
        run: &[
            Sql("INSERT INTO beat VALUES (now())"), Pause(1600), Sql("INSERT INTO beat VALUES (now())"), Pause(1600),
            Sql("INSERT INTO beat VALUES (now())"), Pause(1600), Sql("INSERT INTO beat VALUES (now())"), Pause(1600),
        ],
        expected: setting("switch-padding", "archive_timeout", "archive_timeout"),
        also: &[],
        ..BASE
    },
    Culprit {
        name: "manual-switches",
        about: "segments switched by pg_switch_wal()",
        setup: &[Sql("CREATE TABLE beat (at timestamptz)")],
        run: &[
            Sql("INSERT INTO beat VALUES (now())"), Sql("SELECT pg_switch_wal()"),
            Sql("INSERT INTO beat VALUES (now())"), Sql("SELECT pg_switch_wal()"),
            Sql("INSERT INTO beat VALUES (now())"), Sql("SELECT pg_switch_wal()"),
        ],
        expected: cause("segment-switches", "pg_switch_wal", "archive_timeout"),
        also: &[],
        ..BASE
    },
    Culprit {
        name: "temporary-tables",
        about: "a temporary table in each transaction",
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..250 LOOP
               CREATE TEMP TABLE scratch (id int, name text, at timestamptz, total numeric) ON COMMIT DROP;
               INSERT INTO scratch SELECT j, 'x', now(), j FROM generate_series(1, 100) j; COMMIT; END LOOP; END $$",
        )],
        expected: cause("catalog-churn", "temporary tables", "ON COMMIT DELETE ROWS"),
        ..BASE
    },
    Culprit {
        name: "catalog-churn",
        about: "tables created and dropped, each with an index, without a row in them",
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..250 LOOP
               CREATE TABLE job_result (id int PRIMARY KEY, name text, at timestamptz, total numeric); COMMIT;
               DROP TABLE job_result; COMMIT; END LOOP; END $$",
        )],
        expected: cause("catalog-churn", "tables created and dropped", "TRUNCATE"),
        ..BASE
    },
    Culprit {
        name: "checkpoints-by-volume",
        about: "updates all over a table with a small max_wal_size",
        server: SmallWal,
        setup: &[Sql(SPREAD)],
        run: &[COMPRESS, Sql(SPREAD_PASSES)],
        expected: setting("checkpoint-images", "max_wal_size", "max_wal_size"),
        ..BASE
    },
    Culprit {
        name: "checkpoints-by-time",
        about: "updates all over a table with a checkpoint every 30 seconds",
        server: TimedCheckpoints,
        setup: &[Sql(SPREAD)],
        // Halfway between checkpoints, the first of which starts half a minute after the one before the
        // workload. WAL contains a checkpoint's record once it has ended, which takes several seconds.
        run: &[
            COMPRESS, Sql(SPREAD_UPDATES), Pause(40_000), Sql(SPREAD_UPDATES), Pause(30_000), Sql(SPREAD_UPDATES),
        ],
        expected: setting("checkpoint-images", "checkpoint_timeout", "checkpoint_timeout"),
        ..BASE
    },
    Culprit {
        name: "checkpoints-by-command",
        about: "updates all over a table with a CHECKPOINT command every so often",
        setup: &[Sql(SPREAD)],
        run: &[
            COMPRESS, Sql(SPREAD_UPDATES), Sql("CHECKPOINT"), Sql(SPREAD_UPDATES), Sql("CHECKPOINT"), Sql(SPREAD_UPDATES),
            Sql("CHECKPOINT"), Sql(SPREAD_UPDATES), Sql("CHECKPOINT"),
        ],
        expected: setting("checkpoint-images", "CHECKPOINT", "CHECKPOINT"),
        ..BASE
    },
    Culprit {
        name: "uncompressed-images",
        about: "updates all over a table after a checkpoint, without wal_compression",
        setup: &[Sql(SPREAD)],
        run: &[Sql(SPREAD_UPDATES)],
        expected: setting("uncompressed-images", "wal_compression", "wal_compression"),
        also: &[],
        ..BASE
    },
    Culprit {
        name: "consistency-checking",
        about: "a production server with a developers' setting",
        server: Consistency,
        setup: &[Sql(SPREAD)],
        run: &[COMPRESS, Sql(SPREAD_UPDATES)],
        expected: setting("consistency-images", "wal_consistency_checking", "wal_consistency_checking"),
        ..BASE
    },
    Culprit {
        name: "create-database",
        about: "a database that is created from one with a table of 30,000 rows",
        since: 15,
        setup: &[Sql(ROWS)],
        run: &[Sql("CREATE DATABASE \"create-database-copy\" TEMPLATE \"create-database\"")],
        expected: cause("catalog-churn", "CREATE DATABASE", "file_copy"),
        ..BASE
    },
    Culprit {
        name: "create-and-drop-database",
        about: "the same with a database that is dropped again, so that its tables have no names",
        since: 15,
        setup: &[Sql(ROWS)],
        run: &[
            Sql("CREATE DATABASE \"dropped-copy\" TEMPLATE \"create-and-drop-database\""),
            Sql("DROP DATABASE \"dropped-copy\""),
        ],
        expected: cause("catalog-churn", "CREATE DATABASE", "file_copy"),
        ..BASE
    },
    Culprit {
        name: "batch-updates",
        about: "four transactions that update each row of a full table",
        setup: &[Sql(ROWS)],
        run: &[Rounds(4, &["UPDATE item SET price = price + $round"])],
        expected: cause("bulk-update", "item", "fillfactor"),
        ..BASE
    },
    Culprit {
        name: "purge-jobs",
        about: "four transactions that delete the oldest rows of a table",
        setup: &[Sql(ROWS)],
        run: &[Rounds(4, &["DELETE FROM item WHERE id <= 6000 * $round"])],
        expected: cause("bulk-delete", "item", "partition"),
        ..BASE
    },
    Culprit {
        name: "drip-deletes",
        about: "transactions that delete a few rows each",
        setup: &[Sql(ROWS)],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..2400 LOOP DELETE FROM item WHERE id BETWEEN i * 12 AND i * 12 + 9; COMMIT; END LOOP; END $$",
        )],
        expected: cause("main-table", "item", "partitions"),
        ..BASE
    },
    Culprit {
        name: "delete-cascade",
        about: "deletes of single rows, which delete 20 rows each that refer to them",
        setup: &[Sql(
            "CREATE TABLE purchase (id int PRIMARY KEY);
             CREATE TABLE line (purchase int REFERENCES purchase ON DELETE CASCADE, n int, what text);
             CREATE INDEX line_purchase ON line (purchase);
             INSERT INTO purchase SELECT i FROM generate_series(1, 1500) i;
             INSERT INTO line SELECT 1 + i % 1500, i, md5(i::text) FROM generate_series(1, 30000) i",
        )],
        run: &[Sql("DO $$ BEGIN FOR i IN 1..1500 LOOP DELETE FROM purchase WHERE id = i; COMMIT; END LOOP; END $$")],
        expected: cause("main-table", "line", "CASCADE"),
        ..BASE
    },
    Culprit {
        name: "refresh-concurrently",
        about: "a materialized view whose rows all differ at each REFRESH CONCURRENTLY",
        setup: &[Sql(
            "CREATE TABLE sale (day int, amount int); INSERT INTO sale SELECT i, i FROM generate_series(1, 9000) i;
             CREATE MATERIALIZED VIEW daily AS SELECT day, sum(amount) AS amount, max(md5(day::text)) AS tag FROM sale GROUP BY day;
             CREATE UNIQUE INDEX daily_day ON daily (day)",
        )],
        run: &[
            Sql("CREATE OR REPLACE FUNCTION pg_temp.nothing() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
            Sql("ALTER TABLE sale ADD factor int DEFAULT 2"),
            Rounds(3, &["INSERT INTO sale SELECT day, $round FROM daily", "REFRESH MATERIALIZED VIEW CONCURRENTLY daily"]),
        ],
        expected: cause("materialized-view-refresh", "daily", "less often"),
        ..BASE
    },
    Culprit {
        name: "audit-trigger",
        about: "updates of narrow rows with a trigger that inserts both versions as JSON",
        setup: &[Sql(
            "CREATE TABLE contact (id int PRIMARY KEY, name text, mail text, n int) WITH (fillfactor = 50);
             CREATE TABLE audit_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz, was jsonb, is_now jsonb);
             CREATE INDEX audit_log_at ON audit_log (at);
             INSERT INTO contact SELECT i, md5(i::text), md5((i * 3)::text), 0 FROM generate_series(1, 4000) i;
             CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO audit_log (at, was, is_now) VALUES (clock_timestamp(), to_jsonb(OLD), to_jsonb(NEW)); RETURN NULL; END $$;
             CREATE TRIGGER audit AFTER UPDATE ON contact FOR EACH ROW EXECUTE FUNCTION audit()",
        )],
        run: &[
            Sql("SET enable_seqscan = off; SELECT count(*) FROM audit_log WHERE at > now(); RESET enable_seqscan"),
            Sql(
                "DO $$ BEGIN FOR i IN 1..8000 LOOP UPDATE contact SET n = n + 1 WHERE id = 1 + (i * 7919) % 4000;
                 IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
            ),
        ],
        expected: cause("main-table", "audit_log", "trigger"),
        also: &["uncompressed-images", "pruning"],
        ..BASE
    },
    Culprit {
        name: "gin-without-list",
        about: "inserts of documents with a GIN index of their words that has fastupdate off",
        setup: &[Sql(
            "CREATE TABLE note (id int, words text[]);
             CREATE INDEX note_words ON note USING gin (words) WITH (fastupdate = off);
             SET enable_seqscan = off; SELECT count(*) FROM note WHERE words @> ARRAY['x']; RESET enable_seqscan",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..1200 LOOP
               INSERT INTO note SELECT i, array_agg(left(md5((i * j % 3000)::text), 8)) FROM generate_series(1, 12) j;
               COMMIT; END LOOP; END $$",
        )],
        expected: cause("gin-entries", "note_words", "fastupdate = on"),
        ..BASE
    },
    Culprit {
        name: "hash-index",
        about: "inserts into a table with a hash index",
        setup: &[Sql(
            "CREATE TABLE token (id int, token text); CREATE INDEX token_token ON token USING hash (token);
             INSERT INTO token SELECT i, md5(i::text) FROM generate_series(1, 5000) i;
             SET enable_seqscan = off; SELECT count(*) FROM token WHERE token = 'x'; RESET enable_seqscan",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 10001..22000 LOOP INSERT INTO token VALUES (i, md5(i::text));
             IF i % 10 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("hash-index", "token_token", "B-tree"),
        ..BASE
    },
    Culprit {
        name: "partition-moves",
        about: "updates of the column by which a table is partitioned",
        setup: &[Sql(
            "CREATE TABLE task (id int, state text, body text) PARTITION BY LIST (state);
             CREATE TABLE task_open PARTITION OF task FOR VALUES IN ('open');
             CREATE TABLE task_done PARTITION OF task FOR VALUES IN ('done');
             CREATE INDEX ON task (id);
             INSERT INTO task SELECT i, 'open', md5(i::text) || md5((i * 3)::text) FROM generate_series(1, 8000) i",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..8000 LOOP UPDATE task SET state = 'done' WHERE id = i;
             IF i % 3 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("partition-moves", "task", "does not change"),
        ..BASE
    },
    Culprit {
        name: "two-phase-commit",
        about: "transactions of one row that are prepared before they are committed",
        setup: &[Sql("CREATE TABLE transfer (id int, amount int)")],
        run: &[Rounds(
            1500,
            &["BEGIN", "INSERT INTO transfer VALUES ($round, 5)", "PREPARE TRANSACTION 't$round'", "COMMIT PREPARED 't$round'"],
        )],
        expected: cause("two-phase-commit", "PREPARE TRANSACTION", "one server"),
        ..BASE
    },
    Culprit {
        name: "setval",
        about: "a sequence that is set for each row",
        setup: &[Sql("CREATE TABLE import (id int); CREATE SEQUENCE import_number")],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 1..6000 LOOP INSERT INTO import VALUES (i); PERFORM setval('import_number', i);
             IF i % 50 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("sequences", "import_number", "nextval"),
        ..BASE
    },
    Culprit {
        name: "wide-updates-for-decoding",
        about: "updates of one column of wide rows with wal_level=logical and no slot",
        server: Logical,
        setup: &[Sql(
            "CREATE TABLE profile (id int PRIMARY KEY, n int, body text) WITH (fillfactor = 50);
             INSERT INTO profile SELECT i, 0, (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 40) j)
               FROM generate_series(1, 2000) i",
        )],
        run: &[
            COMPRESS,
            Sql(
                "DO $$ BEGIN FOR i IN 1..6000 LOOP UPDATE profile SET n = n + 1 WHERE id = 1 + (i * 7919) % 2000;
                 IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
            ),
        ],
        expected: setting("logical-level", "wal_level", "pg_replication_slots"),
        also: &["uncompressed-images", "updates-without-space"],
        ..BASE
    },
    Culprit {
        name: "checkpoints-with-checksums",
        about: "updates and reads all over a table with data checksums and a CHECKPOINT command every so often",
        server: Checksums,
        setup: &[Sql(SPREAD)],
        run: &[
            COMPRESS,
            Rounds(6, &[SPREAD_UPDATES, "CHECKPOINT", "SELECT count(*) FROM spread"]),
        ],
        expected: setting("checkpoint-images", "CHECKPOINT", "CHECKPOINT"),
        ..BASE
    },
    Culprit {
        name: "idle-transaction",
        about: "a session that stays idle in a transaction, and repeated updates of the same rows",
        setup: &[Sql(
            "CREATE TABLE sensor (id int PRIMARY KEY, n int NOT NULL, name text) WITH (fillfactor = 50);
             CREATE TABLE note (what text);
             INSERT INTO sensor SELECT i, 0, md5(i::text) FROM generate_series(1, 2000) i",
        )],
        run: &[
            Open("BEGIN; INSERT INTO note VALUES ('forgotten')"), Sql("CHECKPOINT"), Sql(SENSOR_UPDATES), Sql("CHECKPOINT"),
        ],
        expected: cause("old-transaction", "transaction", "idle_in_transaction_session_timeout"),
        ..BASE
    },
    Culprit {
        name: "updates-with-pruning",
        about: "the same updates without that session: pruning keeps them on their pages",
        setup: &[Sql(
            "CREATE TABLE sensor (id int PRIMARY KEY, n int NOT NULL, name text) WITH (fillfactor = 50);
             INSERT INTO sensor SELECT i, 0, md5(i::text) FROM generate_series(1, 2000) i",
        )],
        run: &[Sql("CHECKPOINT"), Sql(SENSOR_UPDATES), Sql("CHECKPOINT")],
        expected: cause("pruning", "sensor", "narrow table"),
        also: &["uncompressed-images", "tiny-transactions"],
        ..BASE
    },
    Culprit {
        name: "set-logged",
        about: "a table that is loaded unlogged and then logged, again and again",
        setup: &[Sql("CREATE TABLE feed (id int PRIMARY KEY, line text)")],
        run: &[Rounds(
            3,
            &[
                "TRUNCATE feed", "ALTER TABLE feed SET UNLOGGED",
                "INSERT INTO feed SELECT i, md5((i * $round)::text) FROM generate_series(1, 15000) i", "ALTER TABLE feed SET LOGGED",
            ],
        )],
        expected: cause("table-rewrite", "feed", "load it with COPY"),
        ..BASE
    },
    Culprit {
        name: "reindex-concurrently",
        about: "REINDEX CONCURRENTLY of the same index again and again",
        setup: &[Sql(ROWS), Sql("CREATE INDEX item_body ON item (body)")],
        run: &[Rounds(4, &["REINDEX INDEX CONCURRENTLY item_body"])],
        expected: cause("index-build", "item_body", "bloated"),
        also: &["uncompressed-images", "index-build"],
        ..BASE
    },
    Culprit {
        name: "reindex",
        about: "REINDEX of the same index again and again",
        setup: &[Sql(ROWS), Sql("CREATE INDEX item_body ON item (body)")],
        run: &[Rounds(4, &["REINDEX INDEX item_body"])],
        expected: cause("index-build", "item_body", "bloated"),
        ..BASE
    },
    Culprit {
        name: "failing-index-builds",
        about: "CREATE INDEX CONCURRENTLY and DROP INDEX CONCURRENTLY of the same index again and again",
        setup: &[Sql(ROWS)],
        run: &[Rounds(
            4,
            &["CREATE INDEX CONCURRENTLY item_body ON item (body)", "DROP INDEX CONCURRENTLY item_body"],
        )],
        expected: cause("index-build", "CREATE INDEX", "fails"),
        ..BASE
    },
    Culprit {
        name: "dead-entry-hints",
        about: "scans of an index whose rows were deleted, with data checksums, after a checkpoint",
        server: Checksums,
        // A prepared transaction keeps the rows from the VACUUM before the workload.
        setup: &[
            Sql(ROWS), Sql("CREATE INDEX item_name ON item (name)"),
            Sql("BEGIN; CREATE TABLE other (); PREPARE TRANSACTION 'keeps'"), Sql("DELETE FROM item WHERE id % 2 = 0"),
            // Hint bits of the table are set once the WAL of the DELETE is on disk.
            Pause(1_000), Sql("SELECT count(*) FROM item"),
        ],
        run: &[
            COMPRESS, Sql("COMMIT PREPARED 'keeps'"),
            Sql(
                "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
                 SELECT sum(length(body)) OVER (ORDER BY name) FROM item OFFSET 40000",
            ),
        ],
        expected: cause("hint-bits", "item", "before queries scan"),
        also: &["uncompressed-images", "hint-bits", "pruning"],
        ..BASE
    },
    Culprit {
        name: "initial-copy",
        about: "a subscription that copies a table with two indexes when it starts",
        server: Logical,
        setup: &[
            Sql("CREATE DATABASE \"initial-copy-source\""),
            In("initial-copy-source", ROWS),
            In("initial-copy-source", "CREATE PUBLICATION items FOR TABLE item"),
            In("initial-copy-source", "SELECT pg_create_logical_replication_slot('initial_copy', 'pgoutput')"),
            Sql(
                "CREATE TABLE item (id int PRIMARY KEY, price int NOT NULL, name text NOT NULL, body text NOT NULL);
                 CREATE INDEX item_name ON item (name)",
            ),
        ],
        run: &[
            Sql("SET enable_seqscan = off; SELECT count(*) FROM item WHERE name = 'x'; RESET enable_seqscan"),
            With(
                "initial-copy-source",
                "CREATE SUBSCRIPTION items CONNECTION '$dsn' PUBLICATION items WITH (create_slot = false, slot_name = 'initial_copy')",
            ),
            Sql(
                "DO $$ BEGIN FOR i IN 1..600 LOOP
                   EXIT WHEN NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r');
                   PERFORM pg_sleep(0.1); COMMIT; END LOOP;
                 IF EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r') THEN RAISE 'the copy did not end'; END IF; END $$",
            ),
            Sql("ALTER SUBSCRIPTION items DISABLE"),
            Sql("ALTER SUBSCRIPTION items SET (slot_name = NONE)"),
            Sql("DROP SUBSCRIPTION items"),
            In(
                "initial-copy-source",
                "DO $$ BEGIN FOR i IN 1..100 LOOP
                   EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'initial_copy' AND active);
                   PERFORM pg_sleep(0.1); COMMIT; END LOOP; PERFORM pg_drop_replication_slot('initial_copy'); END $$",
            ),
        ],
        expected: cause("initial-copy", "item", "pg_createsubscriber"),
        also: &["uncompressed-images", "random-keys", "logical-level"],
        ..BASE
    },
    Culprit {
        name: "redundant-index",
        about: "inserts into a table with an index on a column, and one on that column and another one, which queries use both",
        setup: &[Sql(
            "CREATE TABLE event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device int, kind int, note text);
             CREATE INDEX event_device ON event (device);
             INSERT INTO event (device, kind, note) SELECT i % 700, i % 7, md5(i::text) FROM generate_series(1, 20000) i;
             SET enable_seqscan = off; SELECT count(*) FROM event WHERE device = 5;
             CREATE INDEX event_device_kind ON event (device, kind); CREATE INDEX event_kind ON event (kind) WHERE kind > 5;
             SELECT count(note) FROM event WHERE device = 5 AND kind = 3; SELECT count(note) FROM event WHERE kind = 6",
        )],
        run: &[Sql(
            "DO $$ BEGIN FOR i IN 20001..32000 LOOP
               INSERT INTO event (device, kind, note) VALUES (i * 7919 % 700, i % 7, md5(i::text));
               IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$",
        )],
        expected: cause("redundant-index", "event_device", "DROP INDEX"),
        also: &["uncompressed-images", "random-keys"],
        ..BASE
    },
];

/// Ten updates of each of 2,000 rows.
const SENSOR_UPDATES: &str = "DO $$ BEGIN FOR i IN 1..20000 LOOP
  UPDATE sensor SET n = n + 1 WHERE id = 1 + (i * 7919) % 2000; IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$";

const UUID_INSERTS_1: &str = "DO $$ BEGIN FOR i IN 100001..103000 LOOP
  INSERT INTO random_key VALUES (md5(i::text)::uuid, i);
  INSERT INTO ascending_key VALUES ((lpad(to_hex(i), 12, '0') || left(md5(i::text), 20))::uuid, i);
  INSERT INTO number_key VALUES (i, i); IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$";
const UUID_INSERTS_2: &str = "DO $$ BEGIN FOR i IN 103001..106000 LOOP
  INSERT INTO random_key VALUES (md5(i::text)::uuid, i);
  INSERT INTO ascending_key VALUES ((lpad(to_hex(i), 12, '0') || left(md5(i::text), 20))::uuid, i);
  INSERT INTO number_key VALUES (i, i); IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$";

/// For workloads whose culprit is another setting.
const COMPRESS: Step = Sql("SET wal_compression = on");

/// A table of 1,000 pages with free space on each.
const SPREAD: &str = "CREATE TABLE spread (id int PRIMARY KEY, n int, filler text);
INSERT INTO spread SELECT i, 0, md5(i::text) || md5((i * 3)::text) || repeat('x', 60) FROM generate_series(1, 56000) i;
DELETE FROM spread WHERE id % 2 = 0";
/// Updates one row on most of its pages.
const SPREAD_UPDATES: &str = "DO $$ BEGIN FOR i IN 1..1000 LOOP
  UPDATE spread SET n = n + 1 WHERE id = 1 + 2 * ((i * 28 + (i * 7919) % 28) % 28000); IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$";
/// Sixteen passes of the same updates.
const SPREAD_PASSES: &str = "DO $$ BEGIN FOR i IN 1..16000 LOOP
  UPDATE spread SET n = n + 1 WHERE id = 1 + 2 * ((i * 28 + (i * 7919) % 28) % 28000); IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$";
