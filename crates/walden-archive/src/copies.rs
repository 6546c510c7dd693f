//! The archives that hold the WAL of one cluster.

use crate::archive::Archive;

/// One or more archives of the same cluster. A push stores each file in every archive.
#[derive(Clone)]
pub struct Copies {
    copies: Vec<Copy>,
    acknowledge: usize,
}

/// An archive among [`Copies`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Copy {
    /// The archive.
    pub archive: Archive,
    /// Compression level for segments in this archive; `None` uses the level of the push.
    pub level: Option<u8>,
}

impl Copy {
    /// Creates a copy that uses the compression level of each push.
    pub fn new(archive: Archive) -> Copy {
        Copy { archive, level: None }
    }
}

walden_format::setters!(Copy { level: Option<u8> });

impl From<Archive> for Copies {
    fn from(archive: Archive) -> Copies {
        Copies { copies: vec![Copy::new(archive)], acknowledge: 1 }
    }
}

impl From<&Archive> for Copies {
    fn from(archive: &Archive) -> Copies {
        archive.clone().into()
    }
}

impl Copies {
    /// Creates copies. A file counts as archived if at least `acknowledge` copies have it, or all copies if
    /// there are fewer.
    ///
    /// Returns `None` without a copy.
    pub fn new(copies: Vec<Copy>, acknowledge: usize) -> Option<Copies> {
        let acknowledge = acknowledge.clamp(1, copies.len().max(1));
        (!copies.is_empty()).then_some(Copies { copies, acknowledge })
    }

    /// Returns the number of copies that must have a file before it counts as archived.
    pub fn acknowledge(&self) -> usize {
        self.acknowledge
    }

    /// Returns the copies in the configured order.
    pub fn iter(&self) -> impl Iterator<Item = &Copy> {
        self.copies.iter()
    }

    /// Returns the first archive.
    pub fn first(&self) -> &Archive {
        &self.copies[0].archive
    }

    /// Returns the same copies without cached state.
    #[must_use]
    pub fn afresh(&self) -> Copies {
        let afresh = |copy: &Copy| Copy { archive: copy.archive.afresh(), level: copy.level };
        Copies { copies: self.copies.iter().map(afresh).collect(), acknowledge: self.acknowledge }
    }
}
