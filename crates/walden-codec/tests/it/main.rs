//! The container: what comes back, what damage does, and files that earlier versions wrote.

mod binding;
mod breakdown;
mod cases;
mod container;
mod damage;
mod golden;
mod material;
