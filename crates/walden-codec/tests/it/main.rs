//! The container: what comes back, what damage does, and files that earlier versions wrote.

mod additions;
mod binding;
mod breakdown;
mod cases;
mod container;
mod damage;
mod frames;
mod golden;
mod hostile;
mod magics;
mod material;
mod replay;
