//! Tests of the container: round trips, damage, and files written by earlier versions.

mod additions;
mod binding;
mod breakdown;
mod container;
mod damage;
mod frames;
mod golden;
mod hostile;
mod magics;
mod material;
mod replay;
mod sizes;
