//! Formats errors with their causes.

use std::error::Error;

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
