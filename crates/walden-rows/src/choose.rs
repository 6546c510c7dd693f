//! Which part of a log is read.

use std::path::Path;

use walden_source::datadir::DataDir;
use walden_source::inventory::Run;
use walden_source::timelines::{Lineage, lineages};

use crate::RowsError;

/// The part of a log that is read.
#[derive(Debug)]
pub struct Chosen {
    /// Its segments.
    pub run: Run,
    /// What the caller should know of: that there are other parts.
    pub note: Option<&'static str>,
}

/// Chooses the part that goes on from a base backup; without one the last part.
///
/// # Errors
/// There is no such part, or the base backup is none.
pub fn choose(runs: Vec<Run>, base: Option<&Path>) -> Result<Chosen, RowsError> {
    let base = base.map(DataDir::open_at_rest).transpose()?;
    let mut lineages = lineages(runs);
    let Some(base) = base else {
        let note = "the log has gaps or several ends: only its last part without a gap is read";
        let note = (lineages.len() > 1).then_some(note);
        let last = lineages.pop().ok_or(RowsError::NoLog)?;
        return Ok(Chosen { run: last.run, note });
    };
    let (id, from) = (base.control().system_identifier, base.redo_from());
    let timeline = base.control().timeline;
    let goes_on = |lineage: &Lineage| lineage.run.system_id == id && lineage.run.goes_on_from(from, timeline);
    if let Some(index) = lineages.iter().rposition(goes_on) {
        return Ok(Chosen { run: lineages.swap_remove(index).run, note: None });
    }
    Err(match lineages.iter().find(|lineage| lineage.run.system_id != id) {
        Some(other) => RowsError::OtherCluster { base: id, log: other.run.system_id },
        None => RowsError::NotContinued { base: base.path().into(), from },
    })
}
