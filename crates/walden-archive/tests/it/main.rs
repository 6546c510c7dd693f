//! Tests the archive through its public interface, with real segments.

mod against;
mod base_backups;
mod check;
mod copies;
mod crossing;
mod encryption;
mod faults;
mod import;
mod listing;
mod material;
mod oversized;
mod pack;
mod prefetch;
mod prune;
mod races;
mod recovery;
mod repair;
mod requests;
mod round_trip;
mod source;
mod tampering;
mod unmounted;
mod watched;
