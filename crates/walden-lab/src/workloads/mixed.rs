//! `mixed`: a shop with the writes of a typical application, so that everything PostgreSQL logs occurs
//! together.
//!
//! Four clients draw operations from a table while a fifth session performs administration. The seed
//! determines each client's operations, but not their interleaving.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use postgres::Client;
use postgres::error::SqlState;
use serde_json::{Value, json};

use super::Context;
use crate::data::{Random, quote};

const CLIENTS: u64 = 4;

const CUSTOMERS: u64 = 2000;
const PRODUCTS: u64 = 1000;

const SCHEMA: &str = "
CREATE TYPE order_state AS ENUM ('new', 'paid', 'shipped', 'returned', 'cancelled');

CREATE TABLE customer (
    id bigint PRIMARY KEY,
    email text NOT NULL,
    name text NOT NULL,
    profile jsonb NOT NULL,
    tags text[] NOT NULL,
    balance numeric(12, 2) NOT NULL DEFAULT 0,
    location point,
    created timestamptz NOT NULL,
    seen timestamptz
) WITH (fillfactor = 85);
CREATE UNIQUE INDEX customer_email ON customer (lower(email));
CREATE INDEX customer_tags ON customer USING gin (tags);
CREATE INDEX customer_location ON customer USING gist (location);
CREATE INDEX customer_debtor ON customer (balance) WHERE balance < 0;

CREATE TABLE product (
    id bigint PRIMARY KEY,
    sku uuid NOT NULL,
    title text NOT NULL,
    price numeric(10, 2) NOT NULL,
    stock int NOT NULL,
    description text,
    attributes jsonb
);
CREATE INDEX product_sku ON product USING hash (sku);
CREATE INDEX product_title ON product USING spgist (title);
CREATE INDEX product_attributes ON product USING gin (attributes jsonb_path_ops);

CREATE SEQUENCE order_number CACHE 10;
CREATE TABLE orders (
    id bigint NOT NULL DEFAULT nextval('order_number'),
    customer bigint NOT NULL REFERENCES customer,
    state order_state NOT NULL DEFAULT 'new',
    total numeric(12, 2) NOT NULL DEFAULT 0,
    note text,
    placed timestamptz NOT NULL,
    PRIMARY KEY (id, placed)
) PARTITION BY RANGE (placed);
CREATE TABLE orders_q1 PARTITION OF orders FOR VALUES FROM ('2025-01-01') TO ('2025-04-01');
CREATE TABLE orders_q2 PARTITION OF orders FOR VALUES FROM ('2025-04-01') TO ('2025-07-01');
CREATE TABLE orders_q3 PARTITION OF orders FOR VALUES FROM ('2025-07-01') TO ('2025-10-01');
CREATE TABLE orders_q4 PARTITION OF orders FOR VALUES FROM ('2025-10-01') TO ('2026-01-01');
CREATE INDEX orders_customer ON orders (customer, placed);
CREATE INDEX orders_open ON orders (placed) WHERE state IN ('new', 'paid');

CREATE TABLE order_item (
    order_id bigint NOT NULL,
    line smallint NOT NULL,
    product bigint NOT NULL REFERENCES product,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE INDEX order_item_product ON order_item (product);

CREATE TABLE event (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    customer bigint,
    payload jsonb
);
CREATE INDEX event_at ON event USING brin (at) WITH (pages_per_range = 8, autosummarize = on);
CREATE INDEX event_customer ON event (customer) WHERE customer IS NOT NULL;

CREATE TABLE document (
    id uuid PRIMARY KEY,
    title text NOT NULL,
    body text NOT NULL,
    words tsvector GENERATED ALWAYS AS (to_tsvector('simple', body)) STORED,
    attachment bytea,
    changed timestamptz NOT NULL
);
CREATE INDEX document_words ON document USING gin (words);

CREATE TABLE session (token uuid PRIMARY KEY, customer bigint, hits int NOT NULL DEFAULT 1, at timestamptz NOT NULL)
    WITH (fillfactor = 60);

CREATE TABLE staging (line text);
CREATE UNLOGGED TABLE cache (key text PRIMARY KEY, value jsonb);
";

pub(super) fn setup(context: &Context<'_>) -> Result<()> {
    let mut client = context.cluster.client("postgres")?;
    client.batch_execute("CREATE DATABASE shop TEMPLATE template0")?;
    let mut client = context.cluster.client("shop")?;
    client.batch_execute(SCHEMA)?;
    let mut random = Random::new(context.seed, 1000);
    let mut writer = client
        .copy_in("COPY customer (id, email, name, profile, tags, balance, location, created) FROM STDIN")?;
    for id in 1..=CUSTOMERS {
        let (first, last) = (random.name(), random.name());
        let profile = random.json(1);
        let (tag, other) = (random.word(), random.word());
        let (balance, x, y) = (random.amount(900), random.amount(180), random.amount(90));
        let created = random.moment();
        writeln!(
            writer,
            "{id}\t{id}.{}\t{first} {last}\t{profile}\t{{{tag},{other}}}\t{balance}\t({x},{y})\t{created}",
            random.email()
        )?;
    }
    writer.finish()?;
    let mut writer =
        client.copy_in("COPY product (id, sku, title, price, stock, description, attributes) FROM STDIN")?;
    for id in 1..=PRODUCTS {
        let (sku, title, price) = (random.uuid(), random.sentence(4), random.amount(300));
        let (stock, description) = (random.below(5000), random.text(300).replace('\n', "\\n"));
        writeln!(writer, "{id}\t{sku}\t{title}\t{price}\t{stock}\t{description}\t{}", random.json(1))?;
    }
    writer.finish()?;
    client.batch_execute("ANALYZE")?;
    Ok(())
}

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    shop(context, None)
}

/// Runs at a pace that does not depend on the machine and its settings, as long as they can sustain it:
/// autovacuum's periodic work is then much the same each time.
pub(super) fn run_paced(context: &Context<'_>) -> Result<Value> {
    const PACE: f64 = 400.0;
    shop(context, Some(Pace { began: Instant::now(), per_second: PACE }))
}

/// The schedule of operations.
#[derive(Clone, Copy)]
struct Pace {
    began: Instant,
    per_second: f64,
}

impl Pace {
    /// Waits until an operation is due, by its number among those of all clients.
    fn wait(&self, operation: u64) {
        let due = Duration::from_secs_f64(operation as f64 / self.per_second);
        thread::sleep(due.saturating_sub(self.began.elapsed()));
    }
}

fn shop(context: &Context<'_>, pace: Option<Pace>) -> Result<Value> {
    let done = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    context.progress.counted("mixed: running", context.size);
    let given_up = thread::scope(|scope| {
        let administrator = scope.spawn(|| administrate(context, &done));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (done, failed) = (&done, &failed);
                scope.spawn(move || application(context, pace, number, (done, failed)))
            })
            .collect();
        let outcomes: Vec<Result<()>> = clients.into_iter().map(joined).collect();
        // Also after an error: a session that waits for progress must end.
        done.store(context.size, Ordering::Relaxed);
        let given_up = joined(administrator);
        outcomes.into_iter().collect::<Result<()>>().and(given_up)
    })?;
    Ok(json!({
        "clients": CLIENTS,
        "operations": context.size,
        "rolled_back_by_deadlock_or_conflict": failed.load(Ordering::Relaxed),
        "administration_given_up": given_up,
    }))
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")))
}

/// An operation of the application: it returns the SQL of a transaction.
type Operation = fn(&mut Random, &mut Client) -> Result<Vec<String>>;

/// Weight in percent, operation.
const OPERATIONS: &[(u64, Operation)] = &[
    (24, place_order),
    (14, change_order),
    (16, record_event),
    (12, touch_session),
    (8, pay),
    (6, write_document),
    (5, change_customer),
    (4, reserve_stock),
    (3, lock_rows),
    (3, give_up),
    (2, two_phase),
    (1, import),
    (1, clean_up),
    (1, remember),
];

/// Runs one client: its share of the operations, each drawn by weight.
fn application(
    context: &Context<'_>,
    pace: Option<Pace>,
    number: u64,
    (done, failed): (&AtomicU64, &AtomicU64),
) -> Result<()> {
    let mut client = context.cluster.client("shop")?;
    // One of the clients does not wait for its commits.
    if number == 0 {
        client.batch_execute("SET synchronous_commit = off")?;
    }
    let mut random = Random::new(context.seed, number);
    let total: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
    let operations = context.size / CLIENTS + u64::from(number < context.size % CLIENTS);
    for index in 0..operations {
        if let Some(pace) = pace {
            pace.wait(index * CLIENTS + number);
        }
        let mut drawn = random.below(total);
        let chosen = OPERATIONS.iter().find(|(weight, _)| match drawn.checked_sub(*weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        let Some((_, operation)) = chosen else { continue };
        for statement in operation(&mut random, &mut client)? {
            match client.batch_execute(&statement) {
                Ok(()) => {}
                Err(error) if is_conflict(&error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    client.batch_execute("ROLLBACK")?;
                }
                Err(error) => return Err(error).with_context(|| format!("in the statement: {statement}")),
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        context.progress.advance(1);
    }
    Ok(())
}

/// Whether an application must expect this error because of concurrent sessions.
fn is_conflict(error: &postgres::Error) -> bool {
    let expected =
        [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE, SqlState::LOCK_NOT_AVAILABLE];
    error.code().is_some_and(|code| expected.contains(code))
}

fn place_order(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let customer = 1 + random.skewed(CUSTOMERS);
    let (placed, words) = (random.moment(), 3 + random.below(15));
    let note = if random.chance(30) { quote(&random.sentence(words)) } else { "NULL".into() };
    let mut products: Vec<u64> = (0..1 + random.below(5)).map(|_| 1 + random.skewed(PRODUCTS)).collect();
    // Sorted in every transaction, to avoid deadlocks.
    products.sort_unstable();
    products.dedup();
    let mut sql = format!(
        "BEGIN;
         INSERT INTO orders (customer, note, placed) VALUES ({customer}, {note}, '{placed}');"
    );
    for (line, product) in products.iter().enumerate() {
        sql += &format!(
            "INSERT INTO order_item VALUES (currval('order_number'), {line}, {product}, {}, {});
             UPDATE product SET stock = stock - 1 WHERE id = {product};",
            1 + random.below(9),
            random.amount(300)
        );
    }
    sql += &format!(
        "UPDATE orders SET total = (SELECT sum(quantity * price) FROM order_item WHERE order_id = currval('order_number'))
             WHERE id = currval('order_number') AND placed = '{placed}';
         COMMIT"
    );
    Ok(vec![sql])
}

fn change_order(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let state = random.pick(&["paid", "paid", "shipped", "shipped", "returned", "cancelled"]);
    let customer = 1 + random.skewed(CUSTOMERS);
    Ok(vec![format!(
        "UPDATE orders SET state = '{state}' WHERE (id, placed) = (
             SELECT id, placed FROM orders WHERE customer = {customer} ORDER BY placed DESC LIMIT 1)"
    )])
}

fn record_event(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let rows: Vec<String> = (0..1 + random.below(4))
        .map(|_| {
            let kind = random.pick(&["view", "search", "click", "login", "error"]);
            let customer =
                if random.chance(60) { (1 + random.skewed(CUSTOMERS)).to_string() } else { "NULL".into() };
            format!("(clock_timestamp(), '{kind}', {customer}, {})", quote(&random.json(2)))
        })
        .collect();
    Ok(vec![format!("INSERT INTO event (at, kind, customer, payload) VALUES {}", rows.join(", "))])
}

fn touch_session(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    // A few tokens recur: they are derived from a number, not from the stream.
    let token = Random::new(random.skewed(3000), 7).uuid();
    let customer = 1 + random.below(CUSTOMERS);
    Ok(vec![format!(
        "INSERT INTO session (token, customer, at) VALUES ('{token}', {customer}, now())
         ON CONFLICT (token) DO UPDATE SET hits = session.hits + 1, at = now()"
    )])
}

fn pay(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let (from, to) = (1 + random.skewed(CUSTOMERS), 1 + random.below(CUSTOMERS));
    let amount = random.amount(200);
    Ok(vec![format!(
        "BEGIN;
         UPDATE customer SET balance = balance - {amount}, seen = now() WHERE id = {from};
         SAVEPOINT other;
         UPDATE customer SET balance = balance + {amount} WHERE id = {to};
         {} other;
         INSERT INTO event (at, kind, customer, payload) VALUES (now(), 'payment', {from}, '{{\"amount\": {amount}}}');
         COMMIT",
        if random.chance(10) { "ROLLBACK TO" } else { "RELEASE" }
    )])
}

fn write_document(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let id = Random::new(random.below(4000), 8).uuid();
    let title = random.sentence(5);
    let longest = if random.chance(15) { 20_000 } else { 1500 };
    let length = 300 + random.below(longest);
    let body = random.text(length as usize);
    let attachment: String = match random.below(10) {
        0 => (0..200 + random.below(800)).map(|_| format!("{:016x}", random.bits())).collect(),
        _ => String::new(),
    };
    Ok(vec![format!(
        "INSERT INTO document (id, title, body, attachment, changed)
         VALUES ('{id}', {}, {}, decode('{attachment}', 'hex'), now())
         ON CONFLICT (id) DO UPDATE SET title = excluded.title, body = excluded.body, changed = now()",
        quote(&title),
        quote(&body)
    )])
}

fn change_customer(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let id = 1 + random.below(CUSTOMERS);
    Ok(vec![match random.below(4) {
        0 => format!("UPDATE customer SET profile = profile || {} WHERE id = {id}", quote(&random.json(1))),
        1 => format!("UPDATE customer SET tags = tags || ARRAY['{}'] WHERE id = {id}", random.word()),
        2 => format!(
            "UPDATE customer SET location = point({}, {}) WHERE id = {id}",
            random.below(180),
            random.below(90)
        ),
        _ => format!("UPDATE customer SET email = '{id}.{}' WHERE id = {id}", random.email()),
    }])
}

fn reserve_stock(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let product = 1 + random.skewed(PRODUCTS);
    Ok(vec![format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ;
         SELECT stock FROM product WHERE id = {product} FOR NO KEY UPDATE;
         UPDATE product SET stock = stock + {}, price = price * 1.01 WHERE id = {product};
         COMMIT",
        random.below(500)
    )])
}

/// Shared row locks that overlap with the other clients' become multixacts.
fn lock_rows(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let first = 1 + random.below(20);
    let strength = random.pick(&["KEY SHARE", "SHARE", "KEY SHARE"]);
    Ok(vec![format!(
        "BEGIN;
         SELECT id FROM customer WHERE id BETWEEN {first} AND {first} + 9 ORDER BY id FOR {strength};
         SELECT pg_sleep(0.002);
         COMMIT"
    )])
}

fn give_up(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let (customer, placed) = (1 + random.skewed(CUSTOMERS), random.moment());
    Ok(vec![format!(
        "BEGIN;
         INSERT INTO orders (customer, placed) VALUES ({customer}, '{placed}');
         UPDATE customer SET seen = now() WHERE id = {customer};
         DELETE FROM session WHERE customer = {customer};
         ROLLBACK"
    )])
}

fn two_phase(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let (name, customer) = (random.uuid(), 1 + random.below(CUSTOMERS));
    Ok(vec![
        format!(
            "BEGIN;
             INSERT INTO event (at, kind, customer) VALUES (now(), 'transfer', {customer});
             DELETE FROM session WHERE customer = {customer};
             PREPARE TRANSACTION '{name}'"
        ),
        format!("{} PREPARED '{name}'", if random.chance(25) { "ROLLBACK" } else { "COMMIT" }),
    ])
}

fn import(random: &mut Random, client: &mut Client) -> Result<Vec<String>> {
    let mut writer = client.copy_in("COPY event (at, kind, payload) FROM STDIN")?;
    for _ in 0..50 + random.below(100) {
        let moment = random.moment();
        writeln!(writer, "{moment}\timport\t{}", random.json(1))?;
    }
    writer.finish()?;
    Ok(Vec::new())
}

fn clean_up(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    Ok(vec![match random.below(3) {
        0 => "DELETE FROM session WHERE token IN (SELECT token FROM session ORDER BY token LIMIT 30)".into(),
        1 => "DELETE FROM event WHERE id IN (SELECT id FROM event ORDER BY id LIMIT 100)".into(),
        _ => format!("DELETE FROM document WHERE id = '{}'", Random::new(random.below(4000), 8).uuid()),
    }])
}

fn remember(random: &mut Random, _: &mut Client) -> Result<Vec<String>> {
    let word = random.word();
    Ok(vec![
        format!(
            "INSERT INTO cache VALUES ('{word}', {}) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            quote(&random.json(0))
        ),
        format!("SELECT pg_logical_emit_message({}, 'shop', '{word}')", random.chance(50)),
    ])
}

/// The administrator's statements, in this order, spread evenly over the run.
const ADMINISTRATION: &[&str] = &[
    "VACUUM (ANALYZE) customer",
    "CREATE INDEX CONCURRENTLY event_kind ON event (kind, at)",
    "INSERT INTO staging SELECT md5(n::text) FROM generate_series(1, 500) n",
    "TRUNCATE staging",
    "CHECKPOINT",
    "VACUUM session",
    "CREATE TABLE orders_2026 PARTITION OF orders FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
    "CREATE MATERIALIZED VIEW revenue AS SELECT customer, sum(total) AS total FROM orders GROUP BY customer",
    "CREATE UNIQUE INDEX revenue_customer ON revenue (customer)",
    "CREATE DATABASE report TEMPLATE template0",
    "ALTER TABLE product ADD COLUMN rating numeric(3, 2) DEFAULT 0",
    "VACUUM FULL session",
    "REFRESH MATERIALIZED VIEW CONCURRENTLY revenue",
    "SELECT brin_summarize_new_values('event_at')",
    "SELECT gin_clean_pending_list('document_words')",
    "REINDEX TABLE CONCURRENTLY customer",
    "ALTER TABLE orders DETACH PARTITION orders_2026",
    "DROP TABLE orders_2026",
    "DROP DATABASE report",
    "DROP INDEX CONCURRENTLY event_kind",
    "SELECT pg_create_restore_point('almost done')",
    "VACUUM (FREEZE, ANALYZE)",
];

/// Runs the administration. Returns the statements that were given up because of other sessions' locks.
fn administrate(context: &Context<'_>, done: &AtomicU64) -> Result<Vec<&'static str>> {
    let mut client = context.cluster.client("shop")?;
    // Give up and try the next statement rather than block the whole shop.
    client.batch_execute("SET lock_timeout = '10s'")?;
    let steps = ADMINISTRATION.len() as u64 + 1;
    let mut given_up = Vec::new();
    for (index, statement) in ADMINISTRATION.iter().enumerate() {
        while done.load(Ordering::Relaxed) * steps < (index as u64 + 1) * context.size {
            thread::sleep(Duration::from_millis(2));
        }
        match client.batch_execute(statement) {
            Ok(()) => {}
            Err(error) if is_conflict(&error) => given_up.push(*statement),
            Err(error) => return Err(error).with_context(|| format!("in the statement: {statement}")),
        }
    }
    Ok(given_up)
}
