//! The archive as its users see it, on real segments.

mod check;
mod faults;
mod material;
mod round_trip;
mod source;
