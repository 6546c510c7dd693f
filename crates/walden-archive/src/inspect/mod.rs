//! Inspects an archive: what can be restored, whether all objects are intact, and which files servers have
//! that the archive lacks.

pub mod acknowledge;
pub mod against;
pub mod cost;
pub mod list;
pub mod replay;
pub mod status;
pub mod verify;
