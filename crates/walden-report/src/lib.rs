//! Renders results for the user: tables for a terminal, CSV for a spreadsheet, charts and HTML documents.
#![forbid(unsafe_code)]

pub mod chart;
pub mod csv;
pub mod diff;
pub mod diff_html;
pub mod explain;
pub mod explain_html;
pub mod html;
pub mod page;
pub mod plot;
pub mod redo;
pub mod scale;
pub mod svg;
pub mod sweep;
pub mod table;
pub mod units;
pub mod whatif;
pub mod whatif_html;
