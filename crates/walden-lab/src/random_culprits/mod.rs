//! Culprits that a seed selects, on servers that a seed selects, for judging findings and their savings.
//!
//! A seed selects the schema (names, types, row sizes, keys, indexes), the number of sessions, a healthy
//! background load, the server's version and settings, and one of the kinds of culprits. The work runs
//! twice: with the culprit, and with the remedy. A finding is judged by its rule and the names that it
//! points at, never by its sentence. The caller provides the findings, because this crate does not read WAL.
//!
//! [`crate::culprits`] has workloads that are the same in each run. None of their statements are used here.

mod kinds;
mod plan;
mod run;
mod schema;
mod verdict;

pub use plan::{Plan, kind_names};
pub(crate) use run::{Names, Work, for_each_seed, run_sessions, set_up};
pub use run::{SeedOptions, run_seeds};
pub use verdict::{Saving, Side, Verdict};
