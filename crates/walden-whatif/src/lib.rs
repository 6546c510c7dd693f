//! What the log would be under other settings.
//!
//! A trace is replayed record by record into simulations, one per set of settings. Sizes move the position at which the log is
//! written, the position moves the ends of segments, these and the clock move checkpoints, and checkpoints move images.
//! [`survey`] looks at the trace first, [`learn`] tells the settings that it was taken under, [`trace`] replays it, [`simulate`]
//! is one server under other settings, [`predict()`] puts them together.
#![forbid(unsafe_code)]

pub mod advise;
pub mod archive;
pub mod document;
pub mod images;
pub mod learn;
pub mod level;
mod means;
pub mod objects;
pub mod outcome;
pub mod predict;
pub mod settings;
pub mod simulate;
pub mod survey;
pub mod trace;

pub use outcome::{Bucket, Buckets, Prediction, Share};
pub use predict::{Forecast, OpenBase, Question, Reading, predict};
pub use settings::{Effect, SettingError, Settings};
