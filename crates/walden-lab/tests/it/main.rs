//! The lab against real servers: one binary, one module per topic.

mod cluster;
mod install;
mod kill;
mod workloads;
