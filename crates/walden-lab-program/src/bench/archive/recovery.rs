//! A server that recovers from an archive.

use anyhow::Result;
use walden_lab::Scratch;

use super::contenders::{self, Contender};
use super::{Segments, drive, make_data_directory};
use crate::bench::{Material, time_recovery};

/// Seconds that redo takes by the server's own log, with the segments out of an archive.
pub fn seconds(material: &Material, segments: &Segments, contender: Contender) -> Result<f64> {
    let scratch = Scratch::new()?;
    contenders::open_to_all(scratch.path())?;
    let data = scratch.path().join("data");
    make_data_directory(material, segments, &data)?;
    let ready = contender.prepare(scratch.path(), &data)?;
    drive("archiver", &data, &ready.archive_command, segments, false)?;
    if let Some(command) = &ready.afterwards {
        contenders::run(command)?;
    }
    // The server runs as another user if this is root.
    contenders::run(&format!("chmod -R a+rwX \"{}\"", scratch.path().display()))?;
    rustix::fs::sync();
    time_recovery(material, &[], &ready.restore_command)
}
