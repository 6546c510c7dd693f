//! Commands that other programs run: `walden sql`, `walden lab` and `walden bench`.

use std::process::Command;

use walden_testing::Outcome;

use crate::material::{Run, link_program, walden};

walden_testing::tests! {
    commands_are_passed_on_to_the_program_in_the_same_folder,
    a_program_that_is_missing_is_named_with_the_way_to_install_it,
}

fn commands_are_passed_on_to_the_program_in_the_same_folder() -> Outcome {
    for (command, usage) in [
        (vec!["sql", "--help"], "Usage: walden-sql "),
        (vec!["lab", "--help"], "Usage: walden-lab "),
        (vec!["bench", "--help"], "Usage: walden-lab bench "),
        (vec!["help", "bench"], "Usage: walden-lab bench "),
    ] {
        let run = walden(&command);
        assert!(run.code == 0 && run.stdout.contains(usage), "{command:?}: {run:?}");
    }
    Ok(())
}

fn a_program_that_is_missing_is_named_with_the_way_to_install_it() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let program = link_program(folder.path());
    for (command, name) in [("sql", "walden-sql"), ("lab", "walden-lab"), ("bench", "walden-lab")] {
        let run = Run::execute(Command::new(&program).args([command, "x"]).env("PATH", folder.path()));
        assert_eq!(run.code, 127, "{run:?}");
        assert!(run.stderr.contains(&format!("cannot run {name}")), "{run:?}");
        assert!(run.stderr.contains(&format!("cargo install --path crates/{name}-program")), "{run:?}");
    }
    Ok(())
}
