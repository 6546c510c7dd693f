#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod backup;
pub mod connection;
pub mod follow;
pub mod names;
pub mod replication;
