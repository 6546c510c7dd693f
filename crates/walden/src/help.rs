//! `walden --help`, with the commands grouped by purpose, and the text that `walden` without arguments
//! prints.

use std::fmt::Write as _;

use clap::builder::styling::Styles;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::{Arguments, terminal};

/// Commands by purpose, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Understand WAL", &["explain", "diff", "watch", "retention", "whatif", "rows", "page", "redo"]),
    ("Open it to other tools", &["sql", "export"]),
    ("Store it", &["compress", "decompress", "test", "archive", "receive", "restore", "backup"]),
    ("Try it out, measure", &["demo", "lab", "bench"]),
    ("Set up", &["completions", "man", "licenses", "help"]),
];

/// Suggestions that `walden` without arguments prints: a command and its purpose.
const FIRST_STEPS: [(&str, &str); 6] = [
    ("walden demo", "all of it on a server of its own"),
    ("walden explain", "your servers; the causes of WAL"),
    ("walden retention /data", "why pg_wal is so large"),
    ("walden whatif --set max_wal_size=8GB DIR", "the same work under another setting"),
    ("walden archive --help", "an archive to restore from (PITR)"),
    ("walden --help", "all commands"),
];

/// Returns the program's arguments, with grouped commands in the help.
pub fn command() -> Command {
    let mut command = Arguments::command();
    command.build();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\n{}\n{{options}}{{after-help}}",
        groups(&command, terminal::width()),
        heading("Options")
    );
    Arguments::command().help_template(template)
}

/// Formats the commands and their descriptions under headings.
fn groups(command: &Command, width: usize) -> String {
    let names = command.get_subcommands().map(|one| one.get_name().len());
    let column = names.max().unwrap_or(0) + 4;
    let style = *Styles::styled().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS {
        let commands: Vec<&Command> = names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if commands.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", heading(title));
        for one in commands {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let about = walden_report::table::wrap(&about, width.saturating_sub(column), column);
            let (name, fill) = (one.get_name(), column - 2 - one.get_name().len());
            let _ = writeln!(text, "  {style}{name}{style:#}{:fill$}{about}", "");
        }
        text.push('\n');
    }
    text.pop();
    text
}

fn heading(text: &str) -> String {
    let style = *Styles::styled().get_header();
    format!("{style}{text}:{style:#}")
}

/// Options with which psql and other PostgreSQL programs select a server.
const OF_CONNECTIONS: [&str; 11] =
    ["-U", "-d", "-h", "-p", "-W", "--username", "--user", "--dbname", "--database", "--host", "--port"];

/// Replaces clap's tip for an error about an option of psql: the tip suggests passing the option as a file
/// name.
pub fn with_tip(mut error: clap::Error) -> clap::Error {
    let name = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) => name.split('=').next().unwrap_or_default().to_owned(),
        _ => return error,
    };
    if error.kind() == ErrorKind::UnknownArgument && OF_CONNECTIONS.contains(&name.as_str()) {
        let tip = "a connection string names the server, its user and database: 'host=/run/postgresql port=5432 user=postgres \
                   dbname=postgres'";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns the suggestions for first steps.
pub fn first_steps() -> String {
    let command = Arguments::command();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let has = |line: &str| {
        let name = line.split(' ').nth(1).unwrap_or_default();
        name.starts_with("--") || command.find_subcommand(name).is_some()
    };
    let steps = FIRST_STEPS.iter().filter(|(line, _)| has(line));
    let column = steps.clone().map(|(line, _)| line.len()).max().unwrap_or(0) + 2;
    let mut text = format!("{about}\n\n{}\n", heading("Try first"));
    for (line, what) in steps {
        let _ = writeln!(text, "  {line:column$}{what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_fit_into_80_columns() {
        let steps = first_steps();
        let steps: Vec<&str> = steps.lines().filter(|line| line.starts_with("  walden")).collect();
        assert!(steps.len() > 4 && steps.iter().all(|line| line.len() <= 80), "{steps:#?}");
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = Arguments::command();
        command.build();
        for one in command.get_subcommands() {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&one.get_name())).count();
            assert_eq!(groups, 1, "{}", one.get_name());
        }
    }

    #[test]
    fn the_help_has_each_command_with_what_it_does() {
        let help = command().render_help().to_string();
        for (title, names) in GROUPS {
            assert!(help.contains(&format!("{title}:")), "{help}");
            for name in names {
                let at = help.find(&format!("\n  {name} ")).unwrap_or_else(|| panic!("no {name} in {help}"));
                assert!(help[at..].trim_start().split('\n').next().unwrap_or_default().len() > 20, "{help}");
            }
        }
        assert!(help.contains("Usage: walden"), "{help}");
    }

    #[test]
    fn what_to_try_first_is_there() {
        let command = Arguments::command();
        for (line, _) in FIRST_STEPS.iter().filter(|(line, _)| !line.ends_with("--help")) {
            let arguments = line.split(' ');
            assert!(command.clone().try_get_matches_from(arguments).is_ok(), "{line}");
        }
    }
}
