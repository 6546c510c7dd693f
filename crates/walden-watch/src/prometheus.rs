//! Prometheus' text format, version 0.0.4, which node_exporter's textfile collector and every scraper read.

use std::fmt::Write;

/// A metric: its name, type and description.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name of the metric, with the unit.
    pub name: &'static str,
    /// Type of the metric: `counter` or `gauge`.
    pub kind: &'static str,
    /// Description of the metric, a sentence.
    pub help: &'static str,
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// Formats all metrics that have samples. A sample has labels and a value.
pub fn render(metrics: &[Metric], mut samples: impl FnMut(&str) -> Vec<(Labels, f64)>) -> String {
    let mut text = String::new();
    for metric in metrics {
        let samples = samples(metric.name);
        if samples.is_empty() {
            continue;
        }
        let _ = writeln!(text, "# HELP {} {}", metric.name, escape_help(metric.help));
        let _ = writeln!(text, "# TYPE {} {}", metric.name, metric.kind);
        for (labels, value) in samples {
            let _ = writeln!(text, "{}{} {value}", metric.name, braced(&labels));
        }
    }
    text
}

fn braced(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let label = |(name, value): &(&str, String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(label).collect::<Vec<_>>().join(","))
}

fn escape_help(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let labels = vec![("cause", "a\"b\\c\nd".to_owned()), ("command", "push".to_owned())];
        assert_eq!(braced(&labels), "{cause=\"a\\\"b\\\\c\\nd\",command=\"push\"}");
        assert_eq!(escape_help("a\\b\nc"), "a\\\\b\\nc");
    }
}
