//! Commands for packagers: version, shell completions, manual pages, licences.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::material::{Run, walden};

walden_testing::tests! {
    the_version_has_the_commit_and_the_features,
    each_shell_gets_completions_of_all_commands,
    bash_completes_commands_but_no_hidden_ones,
    the_other_programs_have_completions_and_manual_pages,
    the_documented_lines_install_completions_and_manual_pages,
    each_program_prints_the_licences_of_what_it_contains,
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
    assert_eq!(lines[2], "features: demo, watch, export, s3, sftp, encryption");
}

/// Returns the program's commands, from its help: indented by two spaces, in groups before the options.
fn commands() -> BTreeSet<String> {
    let help = walden(&["--help"]).stdout;
    let listed = help.lines().take_while(|line| *line != "Options:");
    let listed = listed.filter_map(|line| line.strip_prefix("  "));
    let names = listed.filter_map(|line| line.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Without arguments, the program suggests first steps. For a script, that is wrong usage.
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

/// Returns the words that bash offers for the last, incomplete word.
fn completed(program: &[&str], words: &[&str]) -> BTreeSet<String> {
    let script = walden(&[program, &["completions", "bash"]].concat()).stdout;
    let function = format!("_{}", words[0].replace('-', "__"));
    let (last, list) = (words.last().unwrap(), words.join(" "));
    // The script is too long for an argument.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("completions");
    std::fs::write(&file, script).unwrap();
    let ask = format!(
        "source '{}'\nCOMP_WORDS=({list}); COMP_CWORD={}; {function} {} '{last}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.len() - 1,
        words[0]
    );
    let run = Run::execute(Command::new("bash").args(["--norc", "-c", &ask]));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    run.stdout.lines().map(str::to_owned).collect()
}

fn bash_completes_commands_but_no_hidden_ones() {
    let offered = completed(&[], &["walden", "archive", "p"]);
    assert_eq!(offered, ["pack", "prune", "push"].map(str::to_owned).into());
    assert_eq!(completed(&[], &["walden", "archive", "get", "--redirect"]), [String::new()].into());
    let offered = completed(&["lab"], &["walden-lab", "bench", "d"]);
    assert_eq!(offered, ["data", "decode"].map(str::to_owned).into());
}

fn the_other_programs_have_completions_and_manual_pages() {
    assert!(completed(&["sql"], &["walden-sql", "--f"]).contains("--format"));
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().to_str().unwrap();
    assert_eq!(walden(&["man", man1]).code, 0);
    for (program, page) in [("sql", "walden-sql.1"), ("lab", "walden-lab-bench-decode.1")] {
        let run = walden(&[program, "man", man1]);
        assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{}", run.stderr);
        let text = fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    // A word of the query, or a folder with such a name, is not a command.
    let run = walden(&["sql", "SELECT 1", "man"]);
    assert!(run.stderr.contains("man"), "{run:?}");
    assert_eq!(run.code, 3, "{run:?}");
}

/// Uses a new home, whose folders do not exist yet.
fn the_documented_lines_install_completions_and_manual_pages() {
    let page = include_str!("../../../../docs/install.md");
    let lines: Vec<&str> = page.lines().filter(|line| line.contains("~/.local/share")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let home = tempfile::tempdir().unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_walden")).parent().unwrap();
    for line in lines {
        let path = format!("{}:/usr/bin:/bin", programs.display());
        let shell = |line| {
            Run::execute(Command::new("bash").args(["-ec", line]).env("HOME", home.path()).env("PATH", &path))
        };
        let run = shell(line);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{line}");
    }
    let shared = home.path().join(".local/share");
    assert!(shared.join("bash-completion/completions/walden").metadata().unwrap().len() > 1000);
    assert!(shared.join("man/man1/walden.1").exists());
}

fn each_program_prints_the_licences_of_what_it_contains() {
    for program in [&[][..], &["sql"], &["lab"]] {
        let run = walden(&[program, &["licenses"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        for owner in [
            "PostgreSQL Global Development Group",
            "Meta Platforms",
            "Julian Seward",
            "UNICODE LICENSE V3",
            "Brian Smith",
            "Baidu Inc.",
        ] {
            assert!(run.stdout.contains(owner), "{program:?}: {owner}");
        }
    }
}

fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let man1 = folder.path().join("man1");
    for _ in 0..2 {
        let run = walden(&["man", man1.to_str().unwrap()]);
        assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{}", run.stderr);
    }
    for command in commands().iter().filter(|command| !["help", "sql", "lab"].contains(&command.as_str())) {
        let page = fs::read_to_string(man1.join(format!("walden-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{command}: {page}");
    }
    assert!(!man1.join("walden-archive-prefetch.1").exists());
    let check = fs::read_to_string(man1.join("walden-redo-check.1")).unwrap();
    assert!(check.contains("\\-\\-data"), "{check}");
}
