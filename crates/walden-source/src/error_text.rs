//! Formats errors with their causes, and names remedies for errors of the file system.

use std::error::Error;
use std::io;

/// Formats an error with its causes on one line. Omits a cause whose text ends the error's text already.
pub fn error_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns the remedy for an error of the file system, if its kind decides it.
pub fn hint_of_kind(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::NotFound => "check the name; a file may also have been removed or recycled meanwhile",
        io::ErrorKind::PermissionDenied => {
            "the user that runs walden needs to read the files, and to write in the folder of its output: the files of a server belong to its user (sudo -u \
             postgres walden ..., or as root: runuser -u postgres -- walden ...)"
        }
        io::ErrorKind::OutOfMemory => {
            "the file may be good: free some memory, raise the limit of the process (ulimit -v), or use fewer --threads"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name a file or folder on another disk (TMPDIR for temporary files); no incomplete file remains"
        }
        io::ErrorKind::FileTooLarge => {
            "the limit on files' sizes (ulimit -f) or that of the file system was reached; no incomplete file remains"
        }
        io::ErrorKind::ReadOnlyFilesystem => "name a file or folder that can be written to",
        _ => return None,
    })
}

/// Returns the remedy for the first error of the file system among an error and its causes.
pub fn hint_of_io(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref().map(io::Error::kind)).and_then(hint_of_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] std::io::Error);

    #[test]
    fn causes_follow_and_none_stands_twice() {
        let cause = || std::io::Error::other("the disk failed");
        assert_eq!(error_text(&Outer("cannot read", cause())), "cannot read: the disk failed");
        assert_eq!(
            error_text(&Outer("cannot read: the disk failed", cause())),
            "cannot read: the disk failed"
        );
    }
}
