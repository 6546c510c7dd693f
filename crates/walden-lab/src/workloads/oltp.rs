//! `oltp` and `oltp-pressure`: pgbench's built-in TPC-B-like script.

use anyhow::Result;
use serde_json::{Value, json};

use super::Context;

/// 10 x 100,000 accounts, 150 MB with the index.
const SCALE: u64 = 10;
const CLIENTS: u64 = 4;

pub(super) fn setup(context: &Context<'_>) -> Result<()> {
    // A small run uses small tables, because otherwise filling tables would dominate it.
    let scale = SCALE.min(1 + context.size / 5000);
    context.cluster.pgbench("postgres", &["--initialize", "--quiet", "--scale", &scale.to_string()])?;
    Ok(())
}

/// Fills the tables for a single client, and sets all hint bits with VACUUM.
pub(super) fn setup_single(context: &Context<'_>) -> Result<()> {
    let scale = SCALE.min(1 + context.size / 2000);
    context.cluster.pgbench("postgres", &["--initialize", "--quiet", "--scale", &scale.to_string()])?;
    context.cluster.client("postgres")?.batch_execute("VACUUM")?;
    Ok(())
}

/// Maximum transactions per second of `oltp-single`. The checkpointer checks every 100 ms whether it is late.
/// A server that fills segments much faster requests a checkpoint while the last one still runs, and whether
/// that one takes place is a race.
const SINGLE_PACE: &str = "--rate=800";

pub(super) fn run_single(context: &Context<'_>) -> Result<Value> {
    single(context, &[SINGLE_PACE])
}

/// Transactions per second of `oltp-paced`.
const PACE: &str = "--rate=200";

pub(super) fn run_paced(context: &Context<'_>) -> Result<Value> {
    single(context, &[PACE])
}

fn single(context: &Context<'_>, more: &[&str]) -> Result<Value> {
    let (size, seed) = (context.size.to_string(), context.seed.to_string());
    let mut arguments = vec!["--client=1", "--no-vacuum", "--protocol=prepared", "--transactions", &size];
    arguments.extend(["--random-seed", &seed]);
    arguments.extend(more);
    let output = context.cluster.pgbench("postgres", &arguments)?;
    Ok(json!({ "clients": 1, "transactions": context.size, "pgbench": output.trim() }))
}

pub(super) fn run(context: &Context<'_>) -> Result<Value> {
    let per_client = context.size.div_ceil(CLIENTS);
    let output = context.cluster.pgbench(
        "postgres",
        &[
            "--client",
            &CLIENTS.to_string(),
            "--jobs",
            "2",
            "--transactions",
            &per_client.to_string(),
            "--random-seed",
            &context.seed.to_string(),
        ],
    )?;
    let tps =
        output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    Ok(
        json!({ "clients": CLIENTS, "transactions": per_client * CLIENTS, "tps": tps, "pgbench": output.trim() }),
    )
}
