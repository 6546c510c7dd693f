//! Where the files of a base backup go: into a new folder, or over the files of an existing one.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use walden_source::tar_end::cut_off;

use crate::error::RecoverError;
use crate::private;

/// Receives the folders and files of a base backup, in the order of its tar file.
pub(crate) trait Destination {
    /// The next folder.
    fn folder(&mut self, name: &Path, permissions: Option<Permissions>) -> Result<(), RecoverError>;

    /// The next file, with its size in bytes.
    fn file(&mut self, name: &Path, size: u64, content: &mut dyn Read) -> Result<(), RecoverError>;

    /// A folder that may have the same files already.
    fn existing(&self) -> Option<&Path> {
        None
    }
}

/// A new folder.
pub(crate) struct NewFolder<'f> {
    pub root: &'f Path,
    /// Receives the bytes of each file.
    pub done: &'f mut dyn FnMut(u64),
}

impl Destination for NewFolder<'_> {
    fn folder(&mut self, name: &Path, permissions: Option<Permissions>) -> Result<(), RecoverError> {
        let path = self.root.join(name);
        private::create_folders(&path).map_err(RecoverError::io("create", &path))?;
        let set = permissions.map_or(Ok(()), |permissions| fs::set_permissions(&path, permissions));
        set.map_err(RecoverError::io("write", &path))
    }

    fn file(&mut self, name: &Path, size: u64, content: &mut dyn Read) -> Result<(), RecoverError> {
        let path = self.root.join(name);
        let above = path.parent().map_or(Ok(()), private::create_folders);
        above.map_err(RecoverError::io("create", &path))?;
        // A file that exists, or a link, is not followed.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(RecoverError::io("create", &path))?;
        let copied = io::copy(content, &mut file).map_err(RecoverError::io("copy", &path))?;
        if copied != size {
            return Err(RecoverError::io("read", &path)(cut_off()));
        }
        (self.done)(copied);
        Ok(())
    }
}
