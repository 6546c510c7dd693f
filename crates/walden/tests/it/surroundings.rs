//! What packages have beside the program: its version, completions for shells, manual pages.

use std::collections::BTreeSet;
use std::fs;

use crate::material::walden;

walden_testing::tests! {
    the_version_has_the_commit_and_the_features,
    each_shell_gets_completions_of_all_commands,
    without_arguments_it_says_what_to_try_first,
    each_command_has_a_manual_page,
}

fn the_version_has_the_commit_and_the_features() {
    let short = walden(&["-V"]);
    assert_eq!(short.stdout, concat!("walden ", env!("CARGO_PKG_VERSION"), "\n"));
    let long = walden(&["--version"]);
    let lines: Vec<&str> = long.stdout.lines().collect();
    assert_eq!(lines[0], short.stdout.trim_end());
    for (line, name) in lines[1..].iter().zip(["commit: ", "features: ", "target: "]) {
        assert!(line.strip_prefix(name).is_some_and(|value| !value.is_empty()), "{line}");
    }
    assert_eq!(lines[2], "features: demo, watch, export, s3, encryption");
}

/// The program's commands, from its help: indented by two spaces, in groups before the options.
fn commands() -> BTreeSet<String> {
    let help = walden(&["--help"]).stdout;
    let listed = help.lines().take_while(|line| *line != "Options:");
    let listed = listed.filter_map(|line| line.strip_prefix("  "));
    let names = listed.filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Without arguments the program says what to try first, and that is wrong usage for a script.
fn without_arguments_it_says_what_to_try_first() {
    let run = walden::<&str>(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    for command in ["walden demo", "walden explain ", "walden --help"] {
        assert!(run.stderr.contains(command), "{}", run.stderr);
    }
}

fn each_shell_gets_completions_of_all_commands() {
    let commands = commands();
    assert!(commands.len() >= 10, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = walden(&["completions", shell]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        for command in &commands {
            assert!(run.stdout.contains(command.as_str()), "{shell}: no {command}");
        }
    }
    assert_eq!(walden(&["completions", "cmd"]).code, 2);
}

fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().join("man1");
    for _ in 0..2 {
        let run = walden(&["man", man1.to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{}", run.stderr);
    }
    for command in commands().iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(man1.join(format!("walden-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{command}: {page}");
    }
    let check = fs::read_to_string(man1.join("walden-redo-check.1")).unwrap();
    assert!(check.contains("pgdata"), "{check}");
}
