//! Formats figures of experiments for readers.

/// Returns the label of a measure.
pub fn measure_name(name: &str) -> String {
    let known = [
        ("wal_mb", "MB of WAL (2^20)"),
        ("tps", "transactions per second"),
        ("images", "full-page images"),
        ("images_mb", "MB of it in full-page images"),
        ("written_mb", "MB by write() calls"),
        ("redo_mb", "MB of redo"),
        ("redo_written_mb", "MB of redo as written"),
        ("undo_mb", "MB of it undo"),
        ("doublewrite_mb", "MB of doublewrite pages"),
        ("archived_mb", "MB archived"),
    ];
    known
        .iter()
        .find(|(short, _)| *short == name)
        .map_or_else(|| name.replace('_', " "), |(_, long)| (*long).into())
}

/// Formats a figure with a suitable number of digits.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}
