#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! A *trace* is a run of WAL segments. The trace is replayed record by record into simulated servers, one per
//! set of settings. The sizes of records determine the insert position, the position and the clock determine
//! when segments fill up and checkpoints start, and checkpoints determine which blocks carry a full-page
//! image. [`survey`] is the first pass over the trace, [`learn`] infers the settings under which the trace
//! was taken, [`trace`] replays it, [`simulate`] is one server under other settings, and [`predict()`] runs
//! all of these.
#![forbid(unsafe_code)]

pub mod advise;
pub mod archive;
mod bounds;
mod buckets;
pub mod document;
pub mod images;
mod in_force;
pub mod learn;
pub mod level;
mod means;
pub mod measure;
pub mod objects;
pub mod outcome;
pub mod predict;
mod predicted;
pub mod recovery;
pub mod recovery_file;
pub mod relations;
pub mod savings;
pub mod settings;
pub mod simulate;
pub mod survey;
pub mod trace;

pub use buckets::{Bucket, Buckets};
pub use outcome::{Basis, Prediction};
pub use predict::{ErrorParts, Forecast, OpenBase, PredictError, Question, predict};
pub use settings::{Effect, SettingError, Settings};
