//! Maps the files of relations before a rewrite to the files after it.
//!
//! `VACUUM FULL`, `CLUSTER`, `REPACK`, `TRUNCATE`, `REINDEX` and some forms of `ALTER TABLE` assign a
//! relation a new relfilenumber. The catalogs contain only the new number, but the WAL contains both: the
//! transaction creates the new files, and its commit record drops the old files. Old and new files are
//! matched by the order in which PostgreSQL creates and drops them. Where this order is ambiguous, files are
//! not matched.
//!
//! A transaction can also drop a relation and create another one. The OID of a new relation is the number of
//! its first file, and since 15 the commit record contains the OIDs of dropped relations. These files have no
//! counterpart.

use rustc_hash::FxHashMap;
use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::{Kind, rmid};
use walden_source::names::{Names, Relation, RelationKind};

use crate::dropped::number_of;
use crate::explanation::{Explanation, Rewrite};
use crate::group::Owner;

/// Adds the earlier files of rewritten relations to `names`, which contains their latest files.
pub fn learn(explanation: &Explanation, names: &mut Names) {
    let managers = main_managers(explanation);
    let is_new = |file| explanation.new_relations.contains_key(&file);
    let is_transient = |file| explanation.transient.contains(&file);
    // Latest first: the name of a relation that was rewritten twice passes from its last file back step by
    // step.
    for rewrite in explanation.rewrites.iter().rev() {
        for (old, new) in pairs(rewrite, names, is_new, is_transient) {
            let relation = names.resolve(new).relation().or_else(|| names.resolve(old).relation());
            let fits = |file| match (relation, managers.get(&file)) {
                (Some(relation), Some(manager)) => is_written_by(relation, *manager),
                _ => true,
            };
            if fits(old) && fits(new) {
                names.learn_rewrite(old, new);
            }
        }
    }
}

/// Matches old files with new files. `is_new` returns whether locks show that a file was created for a new
/// relation, and `is_transient` whether this relation was dropped in the same transaction.
fn pairs(
    rewrite: &Rewrite,
    names: &Names,
    is_new: impl Fn(RelFileLocator) -> bool,
    is_transient: impl Fn(RelFileLocator) -> bool,
) -> Vec<(RelFileLocator, RelFileLocator)> {
    // Files that the transaction both created and dropped do not belong to a rewrite.
    let created = rewrite.created.iter().copied().filter(|file| !rewrite.dropped.contains(file));
    let created: Option<Vec<Option<RelFileLocator>>> = created
        .map(|file| {
            let is_of_new = is_of_new_relation(rewrite, names, file, &is_new, &is_transient)?;
            Some((!is_of_new).then_some(file))
        })
        .collect();
    let Some(created) = created else { return Vec::new() };
    let mut created: Vec<RelFileLocator> = created.into_iter().flatten().collect();
    // A swap with a transient relation may drop the old TOAST table and old indexes, and keep the new ones.
    let has_swap = created.iter().any(|file| is_new(*file) || is_transient(*file));
    if !has_swap {
        created.retain(|file| !is_made(rewrite, names, *file));
    }
    let is_gone = |file: &RelFileLocator| !has_swap && rewrite.dropped_relations.contains(&number_of(file));
    let dropped: Vec<_> = rewrite
        .dropped
        .iter()
        .copied()
        .filter(|file| !rewrite.created.contains(file) && !is_gone(file))
        .collect();
    let first = dropped.first().copied();
    if created.is_empty() || created.len() != dropped.len() {
        return Vec::new();
    }
    // TRUNCATE and REINDEX replace one relation after the other. The commit record lists the dropped files
    // from the last to the first.
    let reversed = || dropped.iter().rev().copied().zip(created.iter().copied()).collect();
    // VACUUM FULL and CLUSTER create the new table and its TOAST table first. They drop the old tables last,
    // with their dependent objects. The commit record lists the table and TOAST files first, in order,
    // followed by the indexes in reverse order. A table's file is older than the files of its indexes, so its
    // number is the smallest.
    let table_first = dropped.len() > 1 && first == dropped.iter().min_by_key(|file| file.relation).copied();
    // `TRUNCATE ... RESTART IDENTITY` replaces sequences, which are often older than their table.
    let is_sequence = |file: &RelFileLocator| {
        names.resolve(*file).relation().is_some_and(|relation| relation.kind == RelationKind::Sequence)
    };
    if !table_first || (!has_swap && created.iter().any(is_sequence)) {
        return reversed();
    }
    // The names may be from before or after the rewrite.
    let of_table =
        |files: &[RelFileLocator]| files.iter().take_while(|file| is_table_or_toast(names, **file)).count();
    let of_table = of_table(&created).max(of_table(&dropped));
    if of_table == 0 {
        return Vec::new();
    }
    // REPACK (CONCURRENTLY), since 19, also creates transient indexes and swaps files with them. The
    // transient indexes are dropped with the transient table, in the order of their creation.
    let new_indexes = created.get(of_table..).unwrap_or_default();
    if !new_indexes.is_empty() && new_indexes.iter().all(|file| is_new(*file)) {
        return dropped.into_iter().zip(created).collect();
    }
    let (head, indexes) = dropped.split_at(of_table);
    let (kept, rebuilt) = indexes.split_at(indexes.len() - rebuilt_indexes(rewrite, of_table, indexes.len()));
    // Several rebuilt indexes may be in another order.
    let rebuilt = if rebuilt.len() == 1 { rebuilt } else { &[] };
    head.iter().chain(kept.iter().rev()).chain(rebuilt).copied().zip(created).collect()
}

/// Returns how many of the `indexes` that a table's rewrite replaces are dropped and rebuilt. `ALTER TABLE
/// ... TYPE` drops and rebuilds indexes on the changed column (`ATPostAlterTypeCleanup`). These indexes are
/// dropped first, so the commit record lists them last. The rebuilt indexes get the highest OIDs, so their
/// files are created last.
///
/// Each rebuilt index is first created before the new table, with a file that the rewrite immediately
/// replaces. This temporary file is created first, and dropped after all other indexes. If other files were
/// created and dropped, the order of all indexes is uncertain.
fn rebuilt_indexes(rewrite: &Rewrite, of_table: usize, indexes: usize) -> usize {
    let is_temporary =
        |file: &&RelFileLocator| rewrite.created.contains(file) && rewrite.dropped.contains(file);
    let temporary = rewrite.created.iter().filter(is_temporary).count();
    let first = rewrite.created.iter().take_while(is_temporary).count();
    let behind_table = rewrite.dropped.iter().skip(of_table).take_while(is_temporary).count();
    let is_certain = temporary == first && temporary == behind_table && temporary <= indexes;
    if is_certain { temporary } else { indexes }
}

const TOAST_SCHEMA: &str = "pg_toast";

fn is_index(relation: &Relation) -> bool {
    matches!(relation.kind, RelationKind::Index | RelationKind::PartitionedIndex)
}

/// Whether a file belongs to a table, its TOAST table or the TOAST table's index: the first files of a
/// rewritten table.
fn is_table_or_toast(names: &Names, file: RelFileLocator) -> bool {
    names
        .resolve(file)
        .relation()
        .is_some_and(|relation| !is_index(relation) || relation.schema == TOAST_SCHEMA)
}

/// Whether a transaction created the relation that a file belongs to: the relation's first file has its OID
/// as number.
fn is_made(rewrite: &Rewrite, names: &Names, file: RelFileLocator) -> bool {
    let oid = names.resolve(file).relation().map(|relation| relation.oid);
    oid.is_some_and(|oid| has_created(rewrite, file.database, oid))
}

fn has_created(rewrite: &Rewrite, database: u32, oid: u32) -> bool {
    rewrite.created.iter().any(|file| number_of(file) == (database, oid))
}

/// Whether a created file belongs to a relation without an earlier file; `None` if neither names nor locks
/// show it.
fn is_of_new_relation(
    rewrite: &Rewrite,
    names: &Names,
    file: RelFileLocator,
    is_new: impl Fn(RelFileLocator) -> bool,
    is_transient: impl Fn(RelFileLocator) -> bool,
) -> Option<bool> {
    let Some(relation) = names.resolve(file).relation() else {
        // Nothing else is locked at its creation except a TOAST table, which comes with its index.
        let is_known = rewrite.has_logged_locks || is_new(file);
        return if is_transient(file) { Some(false) } else { is_known.then(|| is_new(file)) };
    };
    if let Some(table) = relation.table {
        if has_created(rewrite, file.database, table) {
            return Some(true);
        }
        if relation.schema == TOAST_SCHEMA {
            // `ALTER TABLE` keeps the new TOAST table of the new heap (`swap_relation_files`).
            let is_tables = |file: &RelFileLocator| {
                names.resolve(*file).relation().is_some_and(|relation| relation.oid == table)
            };
            return Some(relation.oid == file.relation && !rewrite.created.iter().any(is_tables));
        }
    }
    Some(relation.oid == file.relation)
}

/// The resource manager of the first kind of record, other than images, that changed each main fork.
fn main_managers(explanation: &Explanation) -> FxHashMap<RelFileLocator, u8> {
    let mut managers = FxHashMap::default();
    for (cell, _) in &explanation.cells {
        let Owner::Relation(file, Fork::MAIN) = cell.owner else { continue };
        let kind = cell.kind.and_then(|kind| Kind::from_index(kind.into()));
        if let Some(kind) = kind.filter(|kind| kind.rmid() != rmid::XLOG) {
            managers.entry(file).or_insert(kind.rmid());
        }
    }
    managers
}

/// Whether a resource manager's records change relations of a relation's kind and access method.
fn is_written_by(relation: &Relation, manager: u8) -> bool {
    let method = match manager {
        rmid::HEAP | rmid::HEAP2 => return !is_index(relation) && relation.kind != RelationKind::Sequence,
        rmid::SEQ => return relation.kind == RelationKind::Sequence,
        rmid::BTREE => "btree",
        rmid::HASH => "hash",
        rmid::GIN => "gin",
        rmid::GIST => "gist",
        rmid::SPGIST => "spgist",
        rmid::BRIN => "brin",
        _ => return true,
    };
    is_index(relation) && relation.access_method.as_deref().is_none_or(|of| of == method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use walden_source::names::Persistence;

    fn file(relation: u32) -> RelFileLocator {
        RelFileLocator { tablespace: 1663, database: 5, relation }
    }

    fn rewrite(created: &[u32], dropped: &[u32]) -> Rewrite {
        let files = |numbers: &[u32]| numbers.iter().map(|number| file(*number)).collect();
        let (created, dropped) = (files(created), files(dropped));
        Rewrite { xid: 1000, created, dropped, dropped_relations: Vec::new(), has_logged_locks: true }
    }

    /// Pairs where `is_new` shows new relations, none of them transient.
    fn pairs(
        rewrite: &Rewrite,
        names: &Names,
        is_new: impl Fn(RelFileLocator) -> bool,
    ) -> Vec<(RelFileLocator, RelFileLocator)> {
        super::pairs(rewrite, names, is_new, |_| false)
    }

    fn names(files: &[(u32, &str, RelationKind)]) -> Names {
        let mut names = Names::default();
        for (oid, (number, name, kind)) in files.iter().enumerate() {
            let schema = if name.starts_with("pg_toast") { "pg_toast" } else { "public" };
            let relation = Relation {
                database: 5,
                shared: false,
                oid: 20_000 + oid as u32,
                schema: schema.into(),
                name: (*name).into(),
                kind: *kind,
                persistence: Persistence::Permanent,
                access_method: None,
                table: None,
                partition_of: None,
                scans: None,
                is_required: None,
                covered_by: None,
            };
            names.add(relation, Some(file(*number)));
        }
        names
    }

    fn numbers(pairs: Vec<(RelFileLocator, RelFileLocator)>) -> Vec<(u32, u32)> {
        let mut numbers: Vec<_> = pairs.iter().map(|(old, new)| (old.relation, new.relation)).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Numbers as PostgreSQL 15 assigns them; 18 assigns them in the same order.
    #[test]
    fn files_are_paired_as_postgresql_replaces_them() {
        use RelationKind::{Index, Table, Toast};
        let after = |heap, toast, toast_index, key, a, b| {
            names(&[
                (heap, "t", Table),
                (toast, "pg_toast_16384", Toast),
                (toast_index, "pg_toast_16384_index", Index),
                (key, "t_pkey", Index),
                (a, "ta", Index),
                (b, "tb", Index),
            ])
        };
        let vacuum_full =
            rewrite(&[16393, 16396, 16397, 16398, 16399, 16400], &[16384, 16387, 16388, 16392, 16391, 16389]);
        assert_eq!(
            numbers(pairs(&vacuum_full, &after(16393, 16396, 16397, 16398, 16399, 16400), |_| false)),
            [(16384, 16393), (16387, 16396), (16388, 16397), (16389, 16398), (16391, 16399), (16392, 16400)]
        );
        let truncate =
            rewrite(&[16402, 16403, 16404, 16405, 16406, 16407], &[16401, 16400, 16399, 16398, 16397, 16394]);
        assert_eq!(
            numbers(pairs(&truncate, &after(16402, 16403, 16404, 16405, 16406, 16407), |_| false)),
            [(16394, 16402), (16397, 16403), (16398, 16404), (16399, 16405), (16400, 16406), (16401, 16407)]
        );
        let reindex = rewrite(&[16407, 16408, 16409, 16410], &[16406, 16405, 16404, 16403]);
        assert_eq!(
            numbers(pairs(&reindex, &Names::default(), |_| false)),
            [(16403, 16407), (16404, 16408), (16405, 16409), (16406, 16410)]
        );
        assert_eq!(numbers(pairs(&rewrite(&[9], &[7]), &Names::default(), |_| false)), [(7, 9)]);
        // As in 19, where VACUUM FULL creates only the transient table and its TOAST table as new relations.
        let concurrently =
            rewrite(&[16428, 16431, 16432, 16433, 16434, 16435], &[16415, 16418, 16419, 16420, 16422, 16424]);
        assert_eq!(
            numbers(pairs(&concurrently, &after(16428, 16431, 16432, 16433, 16434, 16435), |_| true)),
            [(16415, 16428), (16418, 16431), (16419, 16432), (16420, 16433), (16422, 16434), (16424, 16435)]
        );
    }

    /// Files as PostgreSQL 15 assigns them, for a table with a primary key and the indexes `ta`, `tn`, `tb`
    /// and `tm`.
    #[test]
    fn indexes_on_a_column_that_gets_another_type_are_made_last() {
        use RelationKind::{Index, Table, Toast};
        let after = |files: [(u32, &'static str); 5], [heap, toast, toast_index]: [u32; 3]| {
            let table = [
                (heap, "t", Table),
                (toast, "pg_toast_16384", Toast),
                (toast_index, "pg_toast_16384_index", Index),
            ];
            names(&table.into_iter().chain(files.map(|(file, name)| (file, name, Index))).collect::<Vec<_>>())
        };
        let indexes = [(16401, "t_pkey"), (16402, "ta"), (16403, "tn"), (16404, "tm"), (16405, "tb")];
        // The column of `tb`, whose new index has the file 16395 at first.
        let one = rewrite(
            &[16395, 16396, 16399, 16400, 16401, 16402, 16403, 16404, 16405],
            &[16384, 16387, 16388, 16395, 16394, 16392, 16391, 16389, 16393],
        );
        let mut expected = vec![(16384, 16396), (16387, 16399), (16388, 16400)];
        expected.extend([(16389, 16401), (16391, 16402), (16392, 16403), (16393, 16405), (16394, 16404)]);
        let found = numbers(pairs(&one, &after(indexes, [16396, 16399, 16400]), |_| false));
        assert_eq!(found, expected);
        // The column of `tn` and `tm`, which cannot be distinguished.
        let two = rewrite(
            &[16406, 16407, 16408, 16411, 16412, 16413, 16414, 16415, 16416, 16417],
            &[16396, 16399, 16400, 16407, 16406, 16405, 16402, 16401, 16404, 16403],
        );
        let indexes = [(16413, "t_pkey"), (16414, "ta"), (16415, "tb"), (16416, "tn"), (16417, "tm")];
        let mut expected = vec![(16396, 16408), (16399, 16411), (16400, 16412)];
        expected.extend([(16401, 16413), (16402, 16414), (16405, 16415)]);
        let found = numbers(pairs(&two, &after(indexes, [16408, 16411, 16412]), |_| false));
        assert_eq!(found, expected);
        // The transaction also created and dropped another table: only the table is certain.
        let other = rewrite(&[16396, 16397, 16401, 16402], &[16384, 16392, 16389, 16397]);
        let found = numbers(pairs(&other, &names(&[(16396, "t", Table)]), |_| false));
        assert_eq!(found, [(16384, 16396)]);
    }

    #[test]
    fn ambiguous_rewrites_are_not_matched() {
        // One table dropped, another created with its index.
        assert_eq!(pairs(&rewrite(&[20, 21], &[10]), &Names::default(), |_| false), []);
        // The order matches a new table, but its first index is unknown.
        assert_eq!(pairs(&rewrite(&[20, 21, 22], &[10, 12, 11]), &Names::default(), |_| false), []);
        assert_eq!(pairs(&rewrite(&[20], &[20]), &Names::default(), |_| false), []);
    }

    /// Migrations drop relations and create others in one transaction.
    #[test]
    fn dropped_relations_are_no_earlier_files_of_created_ones() {
        use RelationKind::{Index, Sequence, Table, Toast};
        let of = |relations: &[(u32, u32, &str, RelationKind, Option<u32>)]| {
            let mut all = Names::default();
            for (number, oid, name, kind, table) in relations {
                let mut one = names(&[(*number, name, *kind)]).relations().next().unwrap().clone();
                (one.oid, one.table) = (*oid, *table);
                all.add(one, Some(file(*number)));
            }
            all
        };
        let no_locks = |rewrite: Rewrite| Rewrite { has_logged_locks: false, ..rewrite };
        // DROP INDEX, CREATE INDEX.
        let swap = rewrite(&[30], &[20]);
        let after = of(&[(30, 30, "ib", Index, Some(10))]);
        assert_eq!(pairs(&swap, &after, |_| true), []);
        assert_eq!(pairs(&no_locks(swap.clone()), &after, |_| false), []);
        // The new index was dropped later, or the names are from before.
        assert_eq!(pairs(&swap, &Names::default(), |_| true), []);
        assert_eq!(pairs(&no_locks(swap.clone()), &Names::default(), |_| false), []);
        // REINDEX of another index, whose file is replaced, with both.
        let after = of(&[(30, 30, "ib", Index, Some(10)), (31, 11, "ic", Index, Some(10))]);
        let mixed = rewrite(&[30, 31], &[20, 11]);
        assert_eq!(pairs(&mixed, &after, |file| file.relation == 30), []);
        let known = Rewrite { dropped_relations: vec![(5, 20)], ..mixed };
        assert_eq!(numbers(pairs(&known, &after, |file| file.relation == 30)), [(11, 31)]);
        // DROP TABLE of a table with a sequence; CREATE TABLE of another one with a TOAST table.
        let table = rewrite(&[40, 43, 44], &[10, 12, 11]);
        let toast = Some(40);
        let after = of(&[
            (40, 40, "u", Table, None),
            (43, 43, "pg_toast_40", Toast, toast),
            (44, 44, "pg_toast_40_index", Index, toast),
        ]);
        assert_eq!(pairs(&table, &after, |file| file.relation != 43), []);
        assert_eq!(pairs(&no_locks(table.clone()), &after, |_| false), []);
        // A new table that the same transaction rewrites, and an older index that it drops.
        let filled = rewrite(&[50, 51], &[50, 20]);
        assert_eq!(pairs(&filled, &of(&[(51, 50, "v", Table, None)]), |_| false), []);
        // ALTER TABLE ... ADD COLUMN gives an older table its first TOAST table.
        let first = rewrite(&[60, 61], &[20, 21]);
        let after =
            of(&[(60, 60, "pg_toast_9", Toast, Some(9)), (61, 61, "pg_toast_9_index", Index, Some(9))]);
        assert_eq!(pairs(&first, &after, |file| file.relation == 61), []);
        // ALTER TABLE ... TYPE rewrites a table, and keeps the transient table's TOAST table.
        let altered = rewrite(&[70, 73, 74], &[9, 12, 13]);
        let after = of(&[
            (70, 9, "t", Table, None),
            (73, 73, "pg_toast_9", Toast, Some(9)),
            (74, 74, "pg_toast_9_index", Index, Some(9)),
        ]);
        let is_new = |file: RelFileLocator| file.relation != 73;
        assert_eq!(numbers(pairs(&altered, &after, is_new)), [(9, 70), (12, 73), (13, 74)]);
        let known = Rewrite { dropped_relations: vec![(5, 70), (5, 12), (5, 13)], ..altered };
        assert_eq!(numbers(pairs(&known, &after, is_new)), [(9, 70), (12, 73), (13, 74)]);
        // TRUNCATE ... RESTART IDENTITY.
        let truncated = of(&[(81, 9, "t", Table, None), (82, 8, "s", Sequence, None)]);
        assert_eq!(numbers(pairs(&rewrite(&[81, 82], &[8, 9]), &truncated, |_| false)), [(8, 82), (9, 81)]);
    }

    #[test]
    fn records_fit_the_kind_and_the_access_method() {
        let relation = |kind, method: Option<&str>| {
            let one = names(&[(1, "x", kind)]).relations().next().unwrap().clone();
            Relation { access_method: method.map(str::to_owned), ..one }
        };
        let gin = relation(RelationKind::Index, Some("gin"));
        let fits = |manager| is_written_by(&gin, manager);
        assert_eq!(
            [rmid::GIN, rmid::BTREE, rmid::HEAP, rmid::SEQ, rmid::GENERIC].map(fits),
            [true, false, false, false, true]
        );
        let is_btree = |of: &Relation| is_written_by(of, rmid::BTREE);
        assert!(is_btree(&relation(RelationKind::Index, None)));
        assert!(!is_btree(&relation(RelationKind::Sequence, None)));
        assert!(is_written_by(&relation(RelationKind::Sequence, None), rmid::SEQ));
        assert!(!is_written_by(&relation(RelationKind::Toast, Some("heap")), rmid::SEQ));
    }
}
