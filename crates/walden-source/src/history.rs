//! Timeline history files: the ancestors of a timeline, and where each was left.
//!
//! There is a line for each ancestor, the oldest first: timeline, the LSN at which it was left, and a reason
//! for the user (`writeTimeLineHistory` in `timeline.c`). Empty lines and comments (`#`) are skipped.
//!
//! Positions may descend. Recovery along timeline 2 to a moment before the start of 2 creates a timeline 3
//! whose file names 2 as an ancestor although its WAL continues that of 1. Recovery searches for each segment
//! on the newest timeline first (`XLogFileReadAnyTLI` in `xlogrecovery.c`), so this module reads such a file
//! according to the WAL.

use walden_format::lsn::{Lsn, Timeline};

/// The ancestors of a timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    /// The timeline whose history this is.
    pub timeline: Timeline,
    /// The timeline's ancestors that contain a part of its WAL, the oldest first.
    pub ancestors: Vec<Ancestor>,
    /// Ancestors in the file that have none of its WAL.
    pub without_log: Vec<Timeline>,
}

/// An ancestor of a timeline, and where it was left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// The timeline.
    pub timeline: Timeline,
    /// The LSN at which the ancestor was left: the first byte of the next timeline.
    pub end: Lsn,
    /// The reason as the server wrote it.
    pub reason: String,
}

/// Why a file is not a timeline history.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: expected {expected}, found \"{found}\"")]
#[non_exhaustive]
pub struct HistoryError {
    /// The line, counted from 1.
    pub line: usize,
    /// The expected content.
    pub expected: &'static str,
    /// The line, shortened.
    pub found: String,
}

impl History {
    /// Parses the history file of a timeline.
    ///
    /// # Errors
    /// A line that is not a timeline and a position, ancestors that do not ascend, or no ancestors at all.
    pub fn parse(timeline: Timeline, content: &[u8]) -> Result<History, HistoryError> {
        let text = String::from_utf8_lossy(content);
        let mut ancestors: Vec<Ancestor> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let error = |expected| HistoryError { line: number + 1, expected, found: shortened(line) };
            let (ancestor, rest) = line
                .split_once(|byte: char| byte.is_whitespace())
                .ok_or_else(|| error("a timeline, a position and a reason"))?;
            let ancestor: Timeline = ancestor.parse().map_err(|_| error("a timeline's number"))?;
            let (end, reason) =
                rest.trim_start().split_once(|byte: char| byte.is_whitespace()).unwrap_or((rest.trim(), ""));
            let end = end.parse().map_err(|_| error("a position such as 0/3000060"))?;
            if ancestors.last().is_some_and(|last| last.timeline >= ancestor) || ancestor >= timeline {
                return Err(error("ascending timelines below the file's own"));
            }
            ancestors.push(Ancestor { timeline: ancestor, end, reason: reason.trim().to_owned() });
        }
        if ancestors.is_empty() {
            let line = text.lines().count().max(1);
            let expected = "the timeline that this one descends from";
            return Err(HistoryError { line, expected, found: shortened(&text) });
        }
        let without_log = separate_without_log(&mut ancestors);
        Ok(History { timeline, ancestors, without_log })
    }

    /// Checks that a history file is complete, as a server writes it: each line has a reason, and the last
    /// line ends with a newline.
    ///
    /// # Errors
    /// The content is no history ([`History::parse`]), or its last line is incomplete.
    pub fn check(timeline: Timeline, content: &[u8]) -> Result<(), HistoryError> {
        let history = History::parse(timeline, content)?;
        let has_reasons = history.ancestors.iter().all(|ancestor| !ancestor.reason.is_empty());
        if has_reasons && content.ends_with(b"\n") {
            return Ok(());
        }
        let text = String::from_utf8_lossy(content);
        let (number, line) = text.lines().enumerate().last().unwrap_or_default();
        let expected = "a timeline, a position, a reason and the end of the line: the file was cut off";
        Err(HistoryError { line: number + 1, expected, found: shortened(line) })
    }

    /// Returns the LSN at which an ancestor was left, or `None` if the timeline is not an ancestor.
    pub fn end_of(&self, timeline: Timeline) -> Option<Lsn> {
        self.ancestors.iter().find(|ancestor| ancestor.timeline == timeline).map(|ancestor| ancestor.end)
    }

    /// Returns the timeline that contains an LSN: this timeline or an ancestor (`tliOfPointInHistory` in
    /// `timeline.c`).
    pub fn timeline_at(&self, lsn: Lsn) -> Timeline {
        let ancestor = self.ancestors.iter().find(|ancestor| lsn < ancestor.end);
        ancestor.map_or(self.timeline, |ancestor| ancestor.timeline)
    }

    /// Returns the direct parent.
    pub fn parent(&self) -> Option<&Ancestor> {
        self.ancestors.last()
    }
}

/// Ends each ancestor at the earliest start of its descendants, and removes ancestors that would then be
/// empty. The first one always stays.
fn separate_without_log(ancestors: &mut Vec<Ancestor>) -> Vec<Timeline> {
    let mut end = Lsn(u64::MAX);
    for ancestor in ancestors.iter_mut().rev() {
        end = end.min(ancestor.end);
        ancestor.end = end;
    }
    let mut reached = None;
    let mut without_log = Vec::new();
    ancestors.retain(|ancestor| {
        let has_log = reached.replace(ancestor.end).is_none_or(|before| before < ancestor.end);
        without_log.extend((!has_log).then_some(ancestor.timeline));
        has_log
    });
    without_log
}

fn shortened(text: &str) -> String {
    text.trim().chars().take(80).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_read_as_the_server_wrote_them() {
        let text = b"1\t0/3000158\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-20\n";
        let history = History::parse(3, text).unwrap();
        assert_eq!(history.end_of(1), Some(Lsn(0x300_0158)));
        assert_eq!(history.parent().map(|parent| (parent.timeline, parent.end)), Some((2, Lsn(0x500_0000))));
        assert_eq!(history.ancestors[0].reason, "no recovery target specified");
        for (lsn, timeline) in [(0, 1), (0x300_0157, 1), (0x300_0158, 2), (0x500_0000, 3)] {
            assert_eq!(history.timeline_at(Lsn(lsn)), timeline);
        }
    }

    #[test]
    fn a_history_that_was_cut_off_is_not_complete() {
        let text = b"1\t0/3000158\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-20\n";
        History::check(3, text).unwrap();
        for end in 0..text.len() {
            // The file may also end after the line of an earlier ancestor.
            let is_line = text[..end].ends_with(b"\n");
            assert_eq!(History::check(3, &text[..end]).is_ok(), is_line, "{end}");
        }
    }

    /// As written by PostgreSQL 15 after recovery along timeline 2 to a moment before its start.
    #[test]
    fn recovery_to_before_a_promotion_leaves_the_timeline_before_it() {
        let text =
            b"1\t0/A000000\tno recovery target specified\n\n2\t0/9342CD8\tbefore 2026-11-28 00:54:52+00\n";
        let ends = |history: &History| {
            history.ancestors.iter().map(|one| (one.timeline, one.end.0)).collect::<Vec<_>>()
        };
        let history = History::parse(3, text).unwrap();
        assert_eq!((ends(&history), &history.without_log[..]), (vec![(1, 0x934_2CD8)], &[2][..]));
        for (lsn, timeline) in [(0x934_2CD7, 1), (0x934_2CD8, 3), (0xA00_0000, 3)] {
            assert_eq!(history.timeline_at(Lsn(lsn)), timeline);
        }
        let later = [&text[..], b"3\t0/B000000\tno recovery target specified\n"].concat();
        assert_eq!(ends(&History::parse(4, &later).unwrap()), [(1, 0x934_2CD8), (3, 0xB00_0000)]);
    }

    #[test]
    fn what_is_no_history_is_refused() {
        for (text, expected) in [
            (&b""[..], "the timeline that this one descends from"),
            (b"# nothing\n", "the timeline that this one descends from"),
            (b"x\t0/1\t", "a timeline's number"),
            (b"1\tnowhere\t", "a position such as 0/3000060"),
            (b"2\t0/1\ta\n1\t0/2\tb\n", "ascending timelines below the file's own"),
            (b"3\t0/1\ta\n", "ascending timelines below the file's own"),
            (b"\0\0\0\0\0\0\0\0", "a timeline, a position and a reason"),
        ] {
            assert_eq!(History::parse(3, text).unwrap_err().expected, expected, "{text:?}");
        }
    }
}
