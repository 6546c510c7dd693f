//! Progress on standard error, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the phase of a long task, with a bar if the amount of work is known.
///
/// Nothing is printed if standard error is not a terminal, or for [`Progress::hidden`].
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a spinner with a text.
    pub fn new(phase: &str) -> Progress {
        let bar = ProgressBar::new_spinner();
        let progress = Progress { bar };
        progress.bar.enable_steady_tick(Duration::from_millis(120));
        progress.phase(phase);
        progress
    }

    /// Creates progress that is not shown.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden() }
    }

    /// Changes to a phase of unknown length.
    pub fn phase(&self, text: &str) {
        self.bar.unset_length();
        self.bar.set_style(style("{spinner} {msg} ({elapsed})"));
        self.bar.set_message(text.to_owned());
    }

    /// Changes to a phase of `steps` steps, counted by [`Progress::advance`].
    pub fn counted(&self, text: &str, steps: u64) {
        self.bar.set_style(style("{spinner} {msg} {wide_bar} {percent}% ({elapsed})"));
        self.bar.set_message(text.to_owned());
        self.bar.set_length(steps);
        self.bar.set_position(0);
    }

    /// Changes the text next to the bar.
    pub fn label(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// Counts completed steps.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Removes the progress line from the terminal.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
