//! Savings of the findings' remedies: estimated, or predicted by replay.

use clap::ValueEnum;
use walden_explain::Explanation;
use walden_explain::checkpoints::CheckpointSettings;
use walden_explain::document::Document;
use walden_source::inventory::Run;
use walden_source::names::Names;

use crate::memory;

/// Memory for pages in bytes; more pages go to a temporary file.
const MEMORY_BYTES: usize = 512 << 20;

/// How to compute the savings of settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Method {
    /// Estimate a range from a sample of images
    #[default]
    Estimate,
    /// Replay, as `walden whatif` does, which reads the WAL twice more
    Exact,
    /// Do not compute savings
    Never,
}

impl Method {
    /// Returns whether the explanation needs a sample of full-page images.
    pub fn needs_sample(self) -> bool {
        self == Method::Estimate
    }

    /// Writes the savings of findings into the document, and ranks the findings.
    pub fn write(
        self,
        document: &mut Document,
        explanation: &Explanation,
        runs: &[Run],
        (names, settings): (&Names, Option<CheckpointSettings>),
        threads: usize,
    ) {
        match self {
            Method::Estimate => walden_explain::savings::estimate(document, explanation, settings),
            Method::Exact => {
                let memory_bytes = MEMORY_BYTES.min(memory::quarter_of_machine());
                let limits = (threads, memory_bytes);
                walden_whatif::savings::predict_savings(document, explanation, runs, names, limits);
            }
            Method::Never => {}
        }
    }
}
