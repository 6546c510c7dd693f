//! Names of relations, loaded from the sources given by `--names`.

use anyhow::{Result, bail};
use walden_explain::checkpoints::{CheckpointSettings, replace_contradicted};
use walden_explain::{Explanation, rewrites};
use walden_source::inventory::Inventory;
use walden_source::names::Names;

/// Reads names from each source: a server, or a file written by `--save-names`.
pub fn load(sources: &[String]) -> Result<Names> {
    let names = walden_postgres::names::read_all(sources)?;
    for note in &names.notes {
        eprintln!("warning: no names of {note}");
    }
    Ok(names)
}

/// Refuses names of another cluster, in which the same numbers identify other relations.
pub fn check_cluster(names: &Names, inventory: &Inventory) -> Result<()> {
    let Some(named) = names.origin.system_id else { return Ok(()) };
    if let Some(run) = inventory.runs.iter().find(|run| run.system_id != named) {
        bail!(
            "cannot use the names of another cluster: expected system identifier {}, found {named}: \
             take the names from the server that wrote the WAL",
            run.system_id
        );
    }
    Ok(())
}

/// Adds files to names as learned from the WAL. Returns the checkpoint settings, if the names include them;
/// values that the WAL contradicts are replaced and reported.
pub fn complete(names: &mut Names, explanation: &Explanation) -> Option<CheckpointSettings> {
    names.set_version(explanation.version);
    rewrites::learn(explanation, names);
    let Explanation { checkpoints, segment_size, version, .. } = explanation;
    for contradiction in replace_contradicted(&mut names.settings, checkpoints, *segment_size, *version) {
        eprintln!("note: {contradiction}");
    }
    CheckpointSettings::from_settings(&names.settings, explanation.version)
}
