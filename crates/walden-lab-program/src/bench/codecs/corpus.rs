//! Corpora: segments of a folder or of a workload, copied as plain files to a scratch folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use walden_format::lsn::Lsn;
use walden_lab::Wanted;
use walden_lab::workloads::Workload;
use walden_source::inventory::{Inventory, SegmentFile};
use walden_source::open;

use crate::bench::{Material, find_workloads};

/// The lab's corpora, with the workload size that fills eight to ten segments.
const LAB: &[(&str, u64)] = &[
    ("oltp", 50_000),
    ("oltp-pressure", 15_000),
    ("dense", 500_000),
    ("load", 75),
    ("dml-matrix", 100_000),
    ("mixed", 35_000),
];

/// The segments of a corpus at their original location, compressed or not.
pub struct Found {
    pub name: String,
    /// The folder, or the workload with its size and version; for the table's title.
    pub source: String,
    pub files: Vec<SegmentFile>,
}

/// The origin of a corpus.
pub enum Source {
    Folder(PathBuf),
    /// A workload, and its size.
    Workload(&'static Workload, u64),
}

impl Source {
    /// Finds the segments. Runs a workload first, unless an earlier run's WAL exists.
    pub fn find(&self, pg: Option<Wanted>) -> Result<Found> {
        match self {
            Source::Folder(folder) => read_folder(folder),
            Source::Workload(workload, size) => run_workload(workload, pg, *size),
        }
    }
}

/// Returns each folder as a corpus; without folders, the workloads of these names, or the lab's.
pub fn sources(folders: &[PathBuf], workloads: &[String], size: Option<u64>) -> Result<Vec<Source>> {
    if !folders.is_empty() {
        return Ok(folders.iter().cloned().map(Source::Folder).collect());
    }
    let names: Vec<String> = match workloads.is_empty() {
        true => LAB.iter().map(|(name, _)| (*name).to_owned()).collect(),
        false => workloads.to_vec(),
    };
    let source = |workload: &'static Workload| {
        let own = LAB.iter().find(|(name, _)| *name == workload.name).map(|(_, size)| *size);
        Source::Workload(workload, size.or(own).unwrap_or(workload.default_size))
    };
    Ok(find_workloads(&names)?.into_iter().map(source).collect())
}

/// A corpus copied to plain, uncompressed files.
pub struct Corpus {
    pub name: String,
    pub source: String,
    pub segments: Vec<PathBuf>,
    /// All segments concatenated, if a contender needs that.
    pub whole: Option<PathBuf>,
    pub bytes: u64,
}

/// Returns the segments in a folder, compressed or not.
fn read_folder(folder: &Path) -> Result<Found> {
    let inventory = Inventory::search(&[folder])?;
    let path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    Ok(Found {
        name: path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
        source: folder.display().to_string(),
        files: inventory.segments().cloned().collect(),
    })
}

/// Returns the segments that a workload filled, except for the last one, because the zeros at its end would
/// count as WAL.
fn run_workload(workload: &'static Workload, pg: Option<Wanted>, size: u64) -> Result<Found> {
    let material = Material::generate(workload, pg, Some(size), false)?;
    let end: Lsn = material.end.parse()?;
    let inventory = Inventory::search(&[material.wal()])?;
    let full = |file: &&SegmentFile| file.start.plus(file.segment_size.bytes()) <= end;
    let mut files: Vec<SegmentFile> = inventory.segments().filter(full).cloned().collect();
    if files.is_empty() {
        files = inventory.segments().cloned().collect();
    }
    Ok(Found {
        name: workload.name.to_owned(),
        source: format!(
            "workload {}, {size} {}, PostgreSQL {}",
            workload.name, workload.unit, material.installation.version
        ),
        files,
    })
}

impl Found {
    /// Copies at most `most` segments, spread evenly, to `folder`, uncompressed.
    pub fn stage(&self, folder: &Path, most: Option<usize>, in_one_file: bool) -> Result<Corpus> {
        let copies = folder.join("segments");
        fs::create_dir_all(&copies)?;
        let mut segments = Vec::new();
        let mut bytes = 0;
        for index in spread(self.files.len(), most.unwrap_or(usize::MAX)) {
            let file = &self.files[index];
            let path = copies.join(file.name.to_string());
            if path.exists() {
                bail!(
                    "cannot use {}: found {} of more than one cluster; name a folder for each",
                    self.source,
                    file.name
                );
            }
            bytes += io::copy(&mut open::open(file)?, &mut File::create(&path)?)
                .with_context(|| format!("cannot copy {} to {}", file.path.display(), path.display()))?;
            segments.push(path);
        }
        let whole = in_one_file.then(|| folder.join("whole"));
        if let Some(whole) = &whole {
            let mut output = File::create(whole)?;
            for segment in &segments {
                io::copy(&mut File::open(segment)?, &mut output)?;
            }
        }
        Ok(Corpus { name: self.name.clone(), source: self.source.clone(), segments, whole, bytes })
    }
}

/// Returns at most `most` evenly spaced indexes below `count`.
pub fn spread(count: usize, most: usize) -> Vec<usize> {
    let some = most.min(count);
    (0..some).map(|index| (2 * index + 1) * count / (2 * some)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_spread_evenly() {
        assert_eq!(spread(3, 9), [0, 1, 2]);
        assert_eq!(spread(9, 3), [1, 4, 7]);
        assert_eq!(spread(9, 1), [4]);
        assert_eq!(spread(0, 1), [0; 0]);
    }
}
