//! Values of attributes: by what they are of, where that is known.

pub mod changes;
pub mod expand;
mod json;
pub mod vectors;
