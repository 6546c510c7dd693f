//! The column descriptions in docs/tables.md equal those of the schema.

use std::fmt::Write as _;

use walden_arrow::{ColumnType, Table};

/// Returns the section of a table in docs/tables.md, from its heading to the end of its columns.
fn section(table: Table) -> String {
    let mut text = format!("### `{}`: a row is {}\n\n", table.name(), table.row());
    text.push_str("| Column | Type | NULL | Meaning |\n|---|---|---|---|\n");
    for column in table.columns() {
        let kind = match column.column_type {
            ColumnType::Lsn => "position (UInt64)",
            ColumnType::U8 => "UInt8",
            ColumnType::U16 => "UInt16",
            ColumnType::U32 => "UInt32",
            ColumnType::U64 => "UInt64",
            ColumnType::Bool => "Boolean",
            ColumnType::Text => "Utf8",
            ColumnType::Label => "Utf8, dictionary",
            ColumnType::Time => "Timestamp (µs, UTC)",
        };
        let null = if column.nullable { "yes" } else { "" };
        let _ = writeln!(text, "| `{}` | {kind} | {null} | {} |", column.name, column.description);
    }
    text
}

#[test]
fn the_documentation_has_every_column() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tables.md");
    let found = std::fs::read_to_string(path).unwrap();
    let missing: Vec<String> = Table::all().map(section).filter(|text| !found.contains(text)).collect();
    assert!(missing.is_empty(), "docs/tables.md does not have:\n{}", missing.join("\n"));
}
