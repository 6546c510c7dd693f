//! Parses and formats the identity of a page: its relation (file numbers or name), fork and block number.

use walden_format::record::{Fork, RelFileLocator};
use walden_redo::BlockKey;

use crate::names::{DEFAULT_TABLESPACE, GLOBAL_TABLESPACE, Names};

/// Returns the block that a text denotes, with the fork and the number of the block. The text is a relation's
/// file numbers, its path, or its name; `has_names` is whether the caller has named sources of names.
///
/// # Errors
/// A text that explains why the text denotes no relation.
pub fn find_block(
    text: &str,
    given: Option<Fork>,
    block: u32,
    names: &Names,
    has_names: bool,
) -> Result<BlockKey, String> {
    let (relation, fork) = match parse_file(text) {
        Some(found) => found,
        None => (by_name(text, names, has_names)?, None),
    };
    if let (Some(given), Some(of_path)) = (given, fork)
        && given != of_path
    {
        return Err(format!("cannot use --fork {given}: {text} is the fork {of_path}"));
    }
    Ok(BlockKey { relation, fork: given.or(fork).unwrap_or(Fork::MAIN), block })
}

/// Parses `1663/5/16384`, or a path relative to the data directory, whose suffix is the fork.
pub fn parse_file(text: &str) -> Option<(RelFileLocator, Option<Fork>)> {
    let parts: Vec<&str> = text.trim_matches('"').split('/').collect();
    let number = |text: &str| text.parse::<u32>().ok();
    let file = |name: &str| {
        let name = name.split_once('.').map_or(name, |(name, _)| name);
        match name.split_once('_') {
            None => Some((number(name)?, None)),
            Some((name, "fsm")) => Some((number(name)?, Some(Fork::FREE_SPACE_MAP))),
            Some((name, "vm")) => Some((number(name)?, Some(Fork::VISIBILITY_MAP))),
            Some((name, "init")) => Some((number(name)?, Some(Fork::INIT))),
            Some(_) => None,
        }
    };
    let locator = |tablespace, database, relation| RelFileLocator { tablespace, database, relation };
    match parts.as_slice() {
        ["global", name] => file(name).map(|(name, fork)| (locator(GLOBAL_TABLESPACE, 0, name), fork)),
        ["base", database, name] => {
            let (name, fork) = file(name)?;
            Some((locator(DEFAULT_TABLESPACE, number(database)?, name), fork))
        }
        ["pg_tblspc", tablespace, _, database, name] => {
            let (name, fork) = file(name)?;
            Some((locator(number(tablespace)?, number(database)?, name), fork))
        }
        [tablespace, database, relation] => {
            Some((locator(number(tablespace)?, number(database)?, number(relation)?), None))
        }
        _ => None,
    }
}

fn by_name(name: &str, names: &Names, are_given: bool) -> Result<RelFileLocator, String> {
    if !are_given {
        return Err(format!(
            "\"{name}\" is a name, which the WAL does not have: give --names with a connection string or a saved file, \
             or TABLESPACE/DATABASE/FILE as numbers (SELECT pg_relation_filepath('{name}') returns base/DATABASE/FILE)"
        ));
    }
    let found = names.files_of(name);
    let current: Vec<_> = found.iter().filter(|(_, _, is_current)| *is_current).collect();
    match (current.as_slice(), found.as_slice()) {
        ([(file, _, _)], _) | ([], [(file, _, _)]) => Ok(*file),
        ([], []) => Err(format!("no table, index or sequence with a file is named {name}")),
        _ => {
            let list: Vec<String> = found
                .iter()
                .map(|(file, relation, _)| {
                    let database =
                        names.database(file.database).map_or("", |database| database.name.as_str());
                    format!("{file} ({database}.{}.{})", relation.schema, relation.name)
                })
                .collect();
            Err(format!("more than one file is named {name}: choose from {}", list.join(", ")))
        }
    }
}

/// Formats a block, by name if the name is known.
pub(super) fn label(key: BlockKey, names: &Names) -> String {
    match names.resolve(key.relation).relation() {
        Some(relation) => {
            let fork = if key.fork == Fork::MAIN { String::new() } else { format!(" {}", key.fork) };
            format!("{relation}{fork} block {} ({})", key.block, key.relation)
        }
        None => key.to_string(),
    }
}

/// Formats numbers as ranges, at most ten ranges.
pub(super) fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    const MAX_SHOWN: usize = 10;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let shown: Vec<String> = runs.iter().take(MAX_SHOWN).map(text).collect();
    let more = if runs.len() > MAX_SHOWN { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_numbers_or_paths() {
        let of = |tablespace, database, relation| RelFileLocator { tablespace, database, relation };
        assert_eq!(parse_file("1663/5/16384"), Some((of(1663, 5, 16384), None)));
        assert_eq!(parse_file("\"base/5/16384\""), Some((of(1663, 5, 16384), None)));
        assert_eq!(parse_file("base/5/16384_vm"), Some((of(1663, 5, 16384), Some(Fork::VISIBILITY_MAP))));
        assert_eq!(parse_file("base/5/16384.3"), Some((of(1663, 5, 16384), None)));
        assert_eq!(parse_file("global/1262"), Some((of(1664, 0, 1262), None)));
        assert_eq!(
            parse_file("pg_tblspc/77/PG_18_202506291/5/16384_fsm"),
            Some((of(77, 5, 16384), Some(Fork::FREE_SPACE_MAP)))
        );
        for name in ["t", "public.t", "base/x/1", "1/2", "base/5/16384_x"] {
            assert_eq!(parse_file(name), None, "{name}");
        }
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([1, 2, 3, 7, 9, 10].into_iter()), "1-3, 7, 9-10");
        assert!(ranges((0..100).map(|number| 2 * number)).ends_with("18, ..."));
    }
}
