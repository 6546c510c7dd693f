//! How an archive is: what can be restored, whether all of it is as it was stored, and what servers have that it lacks.

pub mod acknowledge;
pub mod against;
pub mod list;
pub mod replay;
pub mod status;
pub mod verify;
