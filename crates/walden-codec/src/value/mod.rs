//! Values of attributes of a known type or form.

pub mod changes;
pub mod expand;
mod json;
pub mod vectors;
