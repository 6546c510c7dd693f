//! The column descriptions in docs/tables.md equal those of the schema.

use walden_arrow::Table;

/// Returns the text from a heading of docs/tables.md to the next one.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, rest) =
        document.split_once(heading).unwrap_or_else(|| panic!("no {heading:?} in docs/tables.md"));
    rest.split("\n#").next().unwrap_or(rest)
}

/// A column has a row in the section of its table. If several tables have the same row, it is in the section
/// of shared columns, and the section of the table has the column's name, or states that it has all of them.
#[test]
fn the_documentation_has_every_column() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tables.md");
    let document = std::fs::read_to_string(path).unwrap();
    let shared = section(&document, "### Shared columns\n");
    let mut missing = Vec::new();
    for table in Table::all() {
        let own = section(&document, &format!("### `{}`: a row is {}\n", table.name(), table.row()));
        for column in table.columns() {
            let row = format!("| `{}` | {} |", column.name, column.description);
            let has_shared =
                own.contains("\nShared columns: all.\n") || own.contains(&format!("`{}`", column.name));
            if !(own.contains(&row) || has_shared && shared.contains(&row)) {
                missing.push(format!("{}: {row}", table.name()));
            }
        }
    }
    assert!(missing.is_empty(), "docs/tables.md does not have:\n{}", missing.join("\n"));
}
