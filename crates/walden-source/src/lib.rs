#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod base;
pub mod block;
pub mod clock;
mod compressed;
mod compression;
pub mod configuration;
mod counted;
pub mod datadir;
mod decoding;
mod denied;
mod error_text;
mod file_kind;
mod held;
pub mod history;
mod intact;
pub mod inventory;
pub mod kept;
pub mod machine;
pub mod names;
pub mod open;
pub mod regular_file;
pub mod replay;
pub mod replay_check;
pub mod scan;
mod segment_file;
pub mod server_log;
pub mod store;
pub mod subtransactions;
mod sync;
pub mod tar_end;
mod tar_file;
pub mod timelines;
mod windows;
pub mod workers;

pub use counted::counted;
pub use error_text::{error_text, hint_of_io, hint_of_kind};
pub use held::FindSegment;
pub use intact::Substitution;
pub use sync::sync;
pub use tar_file::{read_entries, with_offsets};
