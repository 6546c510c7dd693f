//! The program and the crates behind it against PostgreSQL itself, files of known content, damage and every kind of source.

mod browser;
mod codecs;
mod compress;
mod demo;
mod golden;
mod html;
mod lab;
mod material;
mod oracle;
mod page;
mod redo;
mod rewrites;
mod robustness;
mod sources;
mod whatif;
