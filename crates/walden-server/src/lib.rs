#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod account;
pub mod folder;
pub mod guard;
pub mod programs;
pub mod signals;
