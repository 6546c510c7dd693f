//! `dense`: small transactions without full-page images, so that records are small and numerous.

use anyhow::Result;
use serde_json::{Value, json};

use super::Context;
use crate::data::Random;

/// Transactions per statement: a DO block on the server loops and commits, which is faster than a client.
const BATCH: u64 = 2000;

const ACCOUNTS: u64 = 50_000;

pub(super) fn setup(context: &Context<'_>) -> Result<()> {
    let mut client = context.cluster.client("postgres")?;
    client.batch_execute(&format!(
        "CREATE TABLE account (
             id bigint PRIMARY KEY, owner int NOT NULL, balance numeric(12, 2) NOT NULL, changed timestamptz, note text
         ) WITH (fillfactor = 80);
         CREATE INDEX account_owner ON account (owner);
         CREATE TABLE entry (
             id bigserial PRIMARY KEY, account bigint NOT NULL, amount numeric(12, 2) NOT NULL, at timestamptz NOT NULL
         );
         INSERT INTO account
             SELECT n, n * 7919 % 9973, n % 1000, '2025-01-01', md5(n::text) FROM generate_series(1, {ACCOUNTS}) n"
    ))?;
    client.batch_execute("VACUUM (FREEZE, ANALYZE) account")?;
    Ok(())
}

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    let mut client = context.cluster.client("postgres")?;
    let mut random = Random::new(context.seed, 0);
    context.progress.counted("dense: running", context.size);
    let mut done = 0;
    while done < context.size {
        let count = BATCH.min(context.size - done);
        let seed = random.below(1 << 40);
        client.batch_execute(&format!(
            "DO $$
             DECLARE
                 mixed bigint;
                 target bigint;
                 kind int;
             BEGIN
                 FOR n IN 1..{count} LOOP
                     mixed := ({seed}::bigint + n) % 1000000007 * 48271 % 1000000007;
                     target := mixed % {ACCOUNTS} + 1;
                     kind := mixed / 7 % 100;
                     IF kind < 55 THEN
                         UPDATE account SET balance = balance + 1.25, changed = clock_timestamp() WHERE id = target;
                         INSERT INTO entry (account, amount, at) VALUES (target, 1.25, clock_timestamp());
                     ELSIF kind < 75 THEN
                         INSERT INTO entry (account, amount, at)
                             VALUES (target, mixed % 10000 / 100.0, clock_timestamp());
                     ELSIF kind < 85 THEN
                         UPDATE account SET owner = mixed % 9973 WHERE id = target;
                     ELSIF kind < 92 THEN
                         DELETE FROM entry WHERE id = (SELECT min(id) FROM entry WHERE id > mixed % ({done} + n));
                     ELSIF kind < 97 THEN
                         PERFORM 1 FROM account WHERE id = target FOR UPDATE;
                         UPDATE account SET note = md5(mixed::text) WHERE id = target;
                     ELSE
                         UPDATE account SET balance = 0 WHERE id = target;
                         ROLLBACK;
                         CONTINUE;
                     END IF;
                     COMMIT;
                 END LOOP;
             END $$"
        ))?;
        done += count;
        context.progress.advance(count);
    }
    Ok(json!({ "transactions": done }))
}
