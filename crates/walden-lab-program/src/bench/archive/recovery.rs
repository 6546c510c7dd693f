//! Times a server's recovery from an archive.

use anyhow::Result;
use walden_lab::Scratch;

use super::contenders::{self, Contender};
use super::{Segments, drive, make_data_directory};
use crate::bench::{Material, time_recovery};

/// Returns the seconds of redo in the server's log, with the segments from an archive.
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
    // If this process runs as root, the server runs as another user.
    contenders::run(&format!("chmod -R a+rwX \"{}\"", scratch.path().display()))?;
    rustix::fs::sync();
    time_recovery(material, &[], &ready.restore_command)
}
