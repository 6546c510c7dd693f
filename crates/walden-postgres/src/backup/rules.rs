//! Which files of a data directory a base backup has: the rules of PostgreSQL's `basebackup.c` (`sendDir`).

/// Folders that a backup has without their content (`excludeDirContents`).
const EMPTY_FOLDERS: [&str; 7] =
    ["pg_stat_tmp", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_subtrans"];
/// Files that a backup does not have (`excludeFiles`), and those of macOS. `pg_control` and `PG_VERSION` of
/// the data directory are read apart.
const EXCLUDED: [&str; 8] = [
    "postgresql.auto.conf.tmp",
    "current_logfiles.tmp",
    "backup_label",
    "tablespace_map",
    "backup_manifest",
    "postmaster.pid",
    "postmaster.opts",
    ".DS_Store",
];
/// Starts of names of files and folders that a backup does not have: caches, temporary files, and sockets.
const EXCLUDED_STARTS: [&str; 3] = ["pg_internal.init", "pgsql_tmp", ".s.PGSQL."];
/// Files that are read apart, by their paths.
const READ_APART: [&str; 2] = ["PG_VERSION", "global/pg_control"];

/// Returns whether a backup has a folder without its content.
pub(super) fn is_empty_folder(name: &str) -> bool {
    EMPTY_FOLDERS.contains(&name)
}

/// Returns whether a backup does not have a file or folder, or has it apart. `folder` is its folder in the
/// data directory, empty for the data directory itself. `siblings` returns whether the folder has a
/// name.
pub(super) fn is_excluded(folder: &str, name: &str, siblings: &dyn Fn(&str) -> bool) -> bool {
    let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    if EXCLUDED.contains(&name)
        || READ_APART.contains(&path.as_str())
        || EXCLUDED_STARTS.iter().any(|start| name.starts_with(start))
    {
        return true;
    }
    if !has_relations(folder) {
        return false;
    }
    if is_temporary_relation(name) {
        return true;
    }
    // An unlogged relation is empty after recovery: of it, a backup has the init fork.
    relation_of(name)
        .is_some_and(|(relation, fork)| fork != Some("init") && siblings(&format!("{relation}_init")))
}

/// Returns whether a folder has the relations of a database: `base/5`, `pg_tblspc/16384/PG_18_202506291/5`.
fn has_relations(folder: &str) -> bool {
    match folder.split('/').collect::<Vec<_>>()[..] {
        ["base", database] => is_number(database),
        ["pg_tblspc", tablespace, version, database] => {
            is_number(tablespace) && version.starts_with("PG_") && is_number(database)
        }
        _ => false,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the number and the fork of a relation's file.
pub(super) fn relation_of(name: &str) -> Option<(&str, Option<&str>)> {
    let (name, file) = name.split_once('.').map_or((name, None), |(name, file)| (name, Some(file)));
    let (relation, fork) = name.split_once('_').map_or((name, None), |(name, fork)| (name, Some(fork)));
    let is_fork = fork.is_none_or(|fork| ["fsm", "vm", "init"].contains(&fork));
    (is_number(relation) && is_fork && file.is_none_or(is_number)).then_some((relation, fork))
}

/// Returns whether a file is one of a temporary relation, such as `t3_16384`
/// (`looks_like_temp_rel_name`).
fn is_temporary_relation(name: &str) -> bool {
    let after = name.strip_prefix('t').and_then(|name| name.split_once('_'));
    after.is_some_and(|(process, relation)| is_number(process) && relation_of(relation).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_and_unlogged_relations_and_caches_are_left_out() {
        let files = ["16384", "16384.1", "16384_fsm", "16384_init", "16385", "16385_vm", "PG_VERSION"];
        let siblings = |name: &str| files.contains(&name);
        let kept = |folder: &str, names: &[&str]| -> Vec<String> {
            let kept = names.iter().filter(|name| !is_excluded(folder, name, &siblings));
            kept.map(|name| (*name).to_owned()).collect()
        };
        let expected = ["16384_init", "16385", "16385_vm", "PG_VERSION"];
        for folder in ["base/5", "pg_tblspc/16390/PG_18_202506291/5"] {
            assert_eq!(kept(folder, &files), expected, "{folder}");
            assert!(kept(folder, &["t3_16384", "t12_1_fsm", "t3_16384.2", "pg_internal.init.77"]).is_empty());
            assert_eq!(kept(folder, &["t_1", "tx_1", "t3_x", "1_x"]), ["t_1", "tx_1", "t3_x", "1_x"]);
        }
        // Elsewhere, names mean nothing.
        assert_eq!(kept("pg_xact", &["16384", "t3_16384"]), ["16384", "t3_16384"]);
        assert_eq!(
            kept("", &["PG_VERSION", "postmaster.pid", "base", "backup_label", "a.conf"]),
            ["base", "a.conf"]
        );
        assert_eq!(kept("global", &["pg_control", "pg_filenode.map", "1262"]), ["pg_filenode.map", "1262"]);
    }
}
