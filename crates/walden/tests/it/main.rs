//! The program and the crates behind it against PostgreSQL itself, files of known content, damage and every kind of source.

mod golden;
mod material;
mod oracle;
mod robustness;
mod sources;
