//! Mistakes in queries, with their corrections.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;

/// Converts the error of planning a query to [`DataFusionError::Plan`] if the query itself is wrong:
/// `DataFusion` evaluates constants during planning, and reports text that is not a number as an error of a
/// cast.
pub(crate) fn explain(error: DataFusionError, sql: &str, tables: &[String]) -> DataFusionError {
    use DataFusionError::{
        ArrowError, External, Internal, IoError, NotImplemented, Plan, ResourcesExhausted, SQL, SchemaError,
    };
    let text = match error.find_root() {
        External(_) | IoError(_) | Internal(_) | ResourcesExhausted(_) | SQL(..) => None,
        ArrowError(cause, _) => Some(cause.to_string()),
        SchemaError(cause, _) => misplaced_quotes(cause, sql),
        Plan(text) => missing_table(text, tables),
        NotImplemented(text) if text.contains("pg_lsn") => {
            Some(format!("{text}: lsn('16/B374D848') makes a position"))
        }
        NotImplemented(_) => None,
        other => Some(other.message().into_owned()),
    };
    text.map_or(error, Plan)
}

/// Detects a missing column whose name the query has in double quotes.
fn misplaced_quotes(cause: &SchemaError, sql: &str) -> Option<String> {
    let SchemaError::FieldNotFound { field, .. } = cause else { return None };
    let name = &field.name;
    sql.contains(&format!("\"{name}\"")).then(|| {
        let text = name.replace('\'', "''");
        format!("no column is named \"{name}\": names are in double quotes, text in single quotes: '{text}'. {cause}")
    })
}

/// Detects a missing table.
fn missing_table(text: &str, tables: &[String]) -> Option<String> {
    let (before, rest) = text.split_once("table '")?;
    let (name, _) = rest.split_once("' not found")?;
    let name = name.strip_prefix("datafusion.public.").unwrap_or(name);
    before.is_empty().then(|| {
        format!("no table is named {name}: the tables are {}, and row_changes('public.orders') has the rows of a table", tables.join(", "))
    })
}
