//! Maps the files of relations before a rewrite to the files after it.
//!
//! `VACUUM FULL`, `CLUSTER`, `REPACK`, `TRUNCATE`, `REINDEX` and some forms of `ALTER TABLE` assign a
//! relation a new relfilenumber. The catalogs contain only the new number, but the WAL contains both: the
//! transaction creates the new files, and its commit record drops the old files. Old and new files are
//! matched by the order in which PostgreSQL creates and drops them. Where this order is ambiguous, files are
//! not matched.

use walden_format::record::{Fork, RelFileLocator};
use walden_format::rmgr::{Kind, rmid};
use walden_source::names::{Names, Relation, RelationKind};

use crate::explanation::{Explanation, Rewrite};
use crate::group::Owner;

/// Adds the earlier files of rewritten relations to `names`, which contains their latest files.
pub fn learn(explanation: &Explanation, names: &mut Names) {
    // Latest first: the name of a relation that was rewritten twice passes from its last file back step by
    // step.
    for rewrite in explanation.rewrites.iter().rev() {
        let is_new = |file: RelFileLocator| explanation.new_relations.contains_key(&file);
        for (old, new) in pairs(rewrite, names, is_new) {
            let of_index = names.resolve(new).relation().map(is_index);
            let was_index = wrote_index_records(explanation, old);
            // The record kinds on the old file must agree.
            if of_index.is_none() || was_index.is_none() || of_index == was_index {
                names.learn_rewrite(old, new);
            }
        }
    }
}

/// Matches old files with new files. `is_new` returns whether a new file was created for a new relation.
fn pairs(
    rewrite: &Rewrite,
    names: &Names,
    is_new: impl Fn(RelFileLocator) -> bool,
) -> Vec<(RelFileLocator, RelFileLocator)> {
    // Files that the transaction both created and dropped do not belong to a rewrite.
    let created: Vec<_> =
        rewrite.created.iter().copied().filter(|file| !rewrite.dropped.contains(file)).collect();
    let dropped: Vec<_> =
        rewrite.dropped.iter().copied().filter(|file| !rewrite.created.contains(file)).collect();
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
    if !table_first {
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

fn is_index(relation: &Relation) -> bool {
    matches!(relation.kind, RelationKind::Index | RelationKind::PartitionedIndex)
}

/// Whether a file belongs to a table, its TOAST table or the TOAST table's index: the first files of a
/// rewritten table.
fn is_table_or_toast(names: &Names, file: RelFileLocator) -> bool {
    names
        .resolve(file)
        .relation()
        .is_some_and(|relation| !is_index(relation) || relation.schema == "pg_toast")
}

/// Returns whether index records changed a relation's main fork; `None` if its records do not show whether it
/// is an index.
fn wrote_index_records(explanation: &Explanation, file: RelFileLocator) -> Option<bool> {
    let kinds = explanation.cells.iter().filter(|(cell, _)| cell.owner == Owner::Relation(file, Fork::MAIN));
    let managers = kinds.filter_map(|(cell, _)| Kind::from_index(cell.kind?.into())).map(Kind::rmid);
    managers.into_iter().find_map(|manager| match manager {
        rmid::HEAP | rmid::HEAP2 => Some(false),
        rmid::BTREE | rmid::HASH | rmid::GIN | rmid::GIST | rmid::SPGIST | rmid::BRIN => Some(true),
        _ => None,
    })
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
        Rewrite { xid: 1000, created: files(created), dropped: files(dropped) }
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
}
