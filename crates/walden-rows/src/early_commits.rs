//! Commits of transactions that started before the WAL that is read: their changes before it are not read.

use std::collections::BTreeMap;

use walden_format::lsn::Lsn;
use walden_format::transam::precedes;

/// Maximum number of transactions that are kept while the next transaction ID at the start is not known. More
/// than a server can run at a time with prepared ones.
const MAX_KEPT: usize = 1 << 16;
/// Maximum number of transactions that a message names.
const MAX_NAMED: usize = 5;

/// The commits of transactions with the lowest IDs.
#[derive(Debug, Default)]
pub(crate) struct EarlyCommits {
    /// The next transaction ID at the start, once a record has shown it.
    next_xid: Option<u32>,
    /// IDs as distances from this one.
    origin: Option<u32>,
    /// The records of the commits.
    commits: BTreeMap<i32, Lsn>,
    /// Those of transactions that were prepared before the start.
    prepared: BTreeMap<u32, Lsn>,
}

impl EarlyCommits {
    /// Sets the next transaction ID at the start.
    pub fn set_next_xid(&mut self, next: u32) {
        self.next_xid = Some(next);
        let limit = self.origin.map(|origin| distance(next, origin));
        self.commits.retain(|xid, _| limit.is_some_and(|limit| *xid < limit));
    }

    /// Records a commit.
    pub fn note(&mut self, xid: u32, lsn: Lsn) {
        if self.next_xid.is_some_and(|next| !precedes(xid, next)) {
            return;
        }
        let origin = *self.origin.get_or_insert(xid);
        self.commits.insert(distance(xid, origin), lsn);
        if self.commits.len() > MAX_KEPT {
            self.commits.pop_last();
        }
    }

    /// Records the commit of a transaction that was prepared before the start.
    pub fn note_prepared(&mut self, xid: u32, lsn: Lsn) {
        if self.prepared.len() < MAX_KEPT {
            self.prepared.insert(xid, lsn);
        }
    }

    /// Describes the transactions, or returns `None` if there are none. Without `knows_start`, the start is
    /// not that of a checkpoint, and only prepared transactions are known to be earlier.
    pub fn describe(&self, knows_start: bool) -> Option<String> {
        let mut all = self.prepared.clone();
        if let Some(origin) = self.origin.filter(|_| knows_start && self.next_xid.is_some()) {
            let xids = self.commits.iter().map(|(xid, lsn)| (origin.wrapping_add_signed(*xid), *lsn));
            all.extend(xids);
        }
        let named: Vec<String> =
            all.iter().take(MAX_NAMED).map(|(xid, lsn)| format!("{xid} (committed at {lsn})")).collect();
        let others = match all.len() - named.len() {
            0 => String::new(),
            count => format!(" and {count} others"),
        };
        let noun = if all.len() == 1 { "transaction" } else { "transactions" };
        (!named.is_empty()).then(|| format!("{noun} {}{others}", named.join(", ")))
    }
}

/// The distance between two IDs, which is negative for an earlier one.
fn distance(xid: u32, origin: u32) -> i32 {
    xid.wrapping_sub(origin).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_before_the_next_id_are_early() {
        let mut commits = EarlyCommits::default();
        for (xid, lsn) in [(100, 1), (u32::MAX - 1, 2), (105, 3)] {
            commits.note(xid, Lsn(lsn));
        }
        // The start is not known.
        assert_eq!(commits.describe(true), None);
        commits.set_next_xid(104);
        commits.note(103, Lsn(4));
        commits.note(104, Lsn(5));
        let expected = "transactions 100 (committed at 0/00000001), 103 (committed at 0/00000004), 4294967294 (committed at 0/00000002)";
        assert_eq!(commits.describe(true).as_deref(), Some(expected));
        assert_eq!(commits.describe(false), None);
        commits.note_prepared(90, Lsn(6));
        assert_eq!(commits.describe(false).as_deref(), Some("transaction 90 (committed at 0/00000006)"));
    }

    #[test]
    fn the_number_of_kept_commits_is_bounded() {
        let mut commits = EarlyCommits::default();
        (0..MAX_KEPT as u32 + 100).for_each(|xid| commits.note(1000 + xid, Lsn(u64::from(xid))));
        assert_eq!(commits.commits.len(), MAX_KEPT);
        commits.set_next_xid(1001);
        assert_eq!(commits.describe(true).as_deref(), Some("transaction 1000 (committed at 0/00000000)"));
    }
}
