#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod checkpoints;
mod collect;
pub mod diff;
pub mod document;
mod dropped;
pub mod evidence;
mod explain;
mod explanation;
mod findings;
pub mod group;
mod image_sample;
mod labels;
pub mod live;
mod merge;
pub mod moment;
mod old_transactions;
mod request;
pub mod rewrites;
pub mod savings;
mod slices;
pub mod tally;
mod time;
mod timeline;
mod transactions;
mod views;
pub mod writers;

pub use explain::explain;
pub use explanation::{
    Along, Cycle, Explanation, LoggedSettings, Outcome, Range, Rewrite, SettingChange, Transaction,
    TransactionSums, View,
};
pub use findings::causes::{Activity, Mechanism};
pub use findings::{Finding, FindingKind, RULES, Rule, merge_lists as merge_findings, rank as rank_findings};
pub use image_sample::Sample;
pub use labels::{Label, Labels, Part};
pub use old_transactions::OldTransaction;
pub use request::{Bound, BoundError, ExplainError, Request};
pub use time::second_text;
pub use timeline::Timeline;
pub use walden_source::clock::StepBack;
