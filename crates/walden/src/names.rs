//! Names of relations, loaded from the sources given by `--names`.

use anyhow::{Context as _, Result, bail};
use walden_explain::checkpoints::{CheckpointSettings, replace_contradicted};
use walden_explain::{Explanation, rewrites};
use walden_source::inventory::Inventory;
use walden_source::names::Names;

/// Reads names from each source: a server, or a file written by `--save-names`.
pub fn load(sources: &[String]) -> Result<Names> {
    let mut names = Names::default();
    for source in sources {
        let path = std::path::Path::new(source);
        let more = if path.is_file() {
            Names::load(path)?
        } else if path.exists() {
            bail!(
                "cannot read names from {source}: expected a file that --save-names made, found no regular file"
            )
        } else if source.is_empty() {
            bail!("--names is empty: expected a connection string or a file that --save-names made")
        } else if looks_like_path(source) {
            bail!(
                "{source}: no such file (--names takes a connection string or a file that --save-names made)"
            );
        } else {
            // Errors do not repeat the connection string: it may contain a password.
            walden_postgres::names::from_server(source)?
        };
        let place = if path.is_file() { source } else { "the server" };
        names.merge(more).with_context(|| format!("cannot use the names of {place}"))?;
    }
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
            "the names are of the cluster with the system identifier {named}, the WAL is of {}: \
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

/// Returns whether a text is not a connection string: that would be a URL or contain an equals sign.
fn looks_like_path(text: &str) -> bool {
    !text.contains("://") && !text.contains('=')
}
