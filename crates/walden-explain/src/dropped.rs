//! Classifies files that transactions dropped: their relation was dropped or emptied, or was rewritten into
//! another file.
//!
//! Locks distinguish these cases (see [`Explanation::new_relations`]). With `wal_level=minimal` no locks are
//! logged. Also, a transaction has no ID yet when it creates its first file, so the record does not name the
//! transaction. Since 15, commit records contain the OIDs of dropped relations: the transient relation of a
//! rewrite is dropped, but the file created for it is not.
//!
//! [`Explanation::new_relations`]: crate::Explanation::new_relations

use rustc_hash::{FxHashMap, FxHashSet};
use walden_format::lsn::Lsn;
use walden_format::record::RelFileLocator;

use crate::collect::Dropped;
use crate::views::MAX_GROUPS;

/// Files that were dropped, and their classification.
#[derive(Clone, Default)]
pub(crate) struct DroppedFiles {
    /// The commit record that dropped each.
    pub at: FxHashMap<RelFileLocator, Lsn>,
    /// Files created for transient relations that now belong to other relations: see
    /// [`crate::Explanation::transient`].
    pub transient: FxHashSet<RelFileLocator>,
    /// See [`crate::Explanation::perhaps_rewritten`].
    pub perhaps_rewritten: FxHashSet<RelFileLocator>,
    /// Files whose record of creation names no transaction.
    without_transaction: FxHashMap<(u32, u32), RelFileLocator>,
    /// The tablespaces of all files created without a transaction, by database.
    places: FxHashMap<u32, Tablespaces>,
}

/// The tablespaces of some files: one, or more.
#[derive(Clone, Copy)]
struct Tablespaces {
    one: u32,
    has_others: bool,
}

impl DroppedFiles {
    /// Notes a file whose record of creation names no transaction.
    pub fn create_without_transaction(&mut self, file: RelFileLocator) {
        if self.without_transaction.len() < MAX_GROUPS {
            self.without_transaction.insert(number_of(&file), file);
        }
        if self.places.len() < MAX_GROUPS {
            add_place(&mut self.places, &file);
        }
    }

    /// Records the files that a commit record drops. `created` are the files that the committed transaction
    /// is known to have created. If the commit record shows that this transaction also created a file before
    /// it had an ID, that file is inserted at the front.
    pub fn add_commit(&mut self, lsn: Lsn, dropped: &Dropped, created: &mut Vec<RelFileLocator>) {
        if self.at.len() < MAX_GROUPS {
            self.at.extend(dropped.files.iter().map(|file| (*file, lsn)));
        }
        let transient = self.find_transient(dropped, created);
        if !dropped.has_logged_locks {
            self.note_unclear(dropped, created, !transient.is_empty());
        }
        if self.transient.len() < MAX_GROUPS {
            self.transient.extend(transient);
        }
        for file in &dropped.files {
            self.without_transaction.remove(&number_of(file));
        }
    }

    /// Finds the files created for relations that a commit record drops without these files.
    fn find_transient(
        &mut self,
        dropped: &Dropped,
        created: &mut Vec<RelFileLocator>,
    ) -> Vec<RelFileLocator> {
        let relations = dropped.relations.as_deref().unwrap_or_default();
        if relations.is_empty() {
            return Vec::new();
        }
        let now: FxHashSet<RelFileLocator> = dropped.files.iter().copied().collect();
        let own: FxHashMap<(u32, u32), RelFileLocator> =
            created.iter().map(|file| (number_of(file), *file)).collect();
        let (mut transient, mut first) = (Vec::new(), Vec::new());
        for number in relations {
            let known = own.get(number);
            let Some(file) = known.or_else(|| self.without_transaction.get(number)).copied() else {
                continue;
            };
            if now.contains(&file) || self.at.contains_key(&file) {
                continue;
            }
            if known.is_none() {
                self.without_transaction.remove(number);
                first.push(file);
            }
            transient.push(file);
        }
        created.splice(0..0, first);
        transient
    }

    /// Records the dropped files whose reason the WAL does not show, for a transaction that logged no locks.
    fn note_unclear(&mut self, dropped: &Dropped, created: &[RelFileLocator], has_transient: bool) {
        let relations: FxHashSet<(u32, u32)> = dropped.relations.iter().flatten().copied().collect();
        let mut places = FxHashMap::default();
        created.iter().for_each(|file| add_place(&mut places, file));
        for file in &dropped.files {
            if relations.contains(&number_of(file)) || self.perhaps_rewritten.len() >= MAX_GROUPS {
                // The relation itself is dropped.
                continue;
            }
            // If the dropped relations are known and none is transient, a file can still have been copied to
            // another tablespace (`SET TABLESPACE`).
            let can_be_new = |places: &FxHashMap<u32, Tablespaces>| {
                let has_others = |it: &Tablespaces| it.has_others || it.one != file.tablespace;
                places.get(&file.database).is_some_and(|it| dropped.relations.is_none() || has_others(it))
            };
            if has_transient || can_be_new(&self.places) || can_be_new(&places) {
                self.perhaps_rewritten.insert(*file);
            }
        }
    }
}

/// The database and number of a file. The number equals the relation's OID if the relation was created with
/// it.
pub(crate) fn number_of(file: &RelFileLocator) -> (u32, u32) {
    (file.database, file.relation)
}

fn add_place(places: &mut FxHashMap<u32, Tablespaces>, file: &RelFileLocator) {
    let new = Tablespaces { one: file.tablespace, has_others: false };
    let known = places.entry(file.database).or_insert(new);
    known.has_others |= known.one != file.tablespace;
}
