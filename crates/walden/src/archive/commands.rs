//! The commands that a server calls, as postgresql.conf has them.

use std::path::Path;

use crate::place::Place;

/// The values of `archive_command` and `restore_command` for the archive of a place, which they name from any working directory.
pub fn commands_of(place: &Place) -> [String; 2] {
    let absolute =
        |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    let mut options = Vec::new();
    if let Ok((_, Some(config))) = place.configuration() {
        options.extend(["--config".to_owned(), absolute(&config)]);
    }
    if let Some(repo) = &place.repo {
        let repo = if repo.contains("://") { repo.clone() } else { absolute(Path::new(repo)) };
        options.extend(["--repo".to_owned(), repo]);
    }
    server_commands(&program(), &options)
}

/// This program's own file.
pub fn program() -> String {
    std::env::current_exe().map_or("walden".to_owned(), |path| path.display().to_string())
}

/// The values of `archive_command` and `restore_command`, as postgresql.conf has them.
pub fn server_commands(program: &str, options: &[String]) -> [String; 2] {
    // PostgreSQL replaces what follows a %, and %% by one.
    let word = |text: &str| word(text).replace('%', "%%");
    let (program, options) =
        (word(program), options.iter().map(|text| format!(" {}", word(text))).collect::<String>());
    let setting = |command: String| format!("'{}'", command.replace('\\', "\\\\").replace('\'', "''"));
    [
        setting(format!("{program} archive push{options} %p")),
        setting(format!("{program} archive get{options} %f \"%p\"")),
    ]
}

/// A word for a shell, in quotation marks if it needs them.
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// A word for a shell, in quotation marks.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The value of a setting as PostgreSQL reads it (`GUC_scanstr` in `guc-file.l`), and the command as it then runs it.
    fn command_of(setting: &str, file: &str, path: &str) -> String {
        let inner = setting.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap();
        let (mut value, mut rest) = (String::new(), inner.chars());
        while let Some(character) = rest.next() {
            match character {
                '\'' => assert_eq!(rest.next(), Some('\''), "the string ends early: {setting}"),
                '\\' => {
                    value.extend(rest.next());
                    continue;
                }
                _ => {}
            }
            value.push(character);
        }
        let (mut command, mut rest) = (String::new(), value.chars());
        while let Some(character) = rest.next() {
            match character {
                '%' => match rest.next() {
                    Some('f') => command.push_str(file),
                    Some('p') => command.push_str(path),
                    Some('%') => command.push('%'),
                    other => panic!("%{other:?} in {value}"),
                },
                other => command.push(other),
            }
        }
        command
    }

    #[test]
    fn plain_paths_are_printed_as_they_are() {
        let options = ["--config".to_owned(), "/etc/walden/18-main.toml".to_owned()];
        let [archive, restore] = server_commands("/usr/bin/walden", &options);
        assert_eq!(archive, "'/usr/bin/walden archive push --config /etc/walden/18-main.toml %p'");
        assert_eq!(restore, "'/usr/bin/walden archive get --config /etc/walden/18-main.toml %f \"%p\"'");
    }

    #[test]
    fn commands_run_a_program_and_name_a_configuration_with_any_characters() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("it's 100%f of \"a\" $HOME \\ path; `x`");
        std::fs::create_dir(&odd).unwrap();
        let program = odd.join("walden");
        std::os::unix::fs::symlink("/bin/echo", &program).unwrap();
        let config = odd.join("walden.toml").display().to_string();
        let options = ["--config".to_owned(), config.clone()];
        let [archive, restore] = server_commands(&program.display().to_string(), &options);
        for (setting, expected) in [
            (archive, format!("archive push --config {config} pg_wal/7")),
            (restore, format!("archive get --config {config} 7 pg_wal/7")),
        ] {
            let command = command_of(&setting, "7", "pg_wal/7");
            let output = Command::new("sh").arg("-c").arg(&command).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{command}: {output:?}");
        }
        let dsn = "host=/run user='it''s'";
        let output = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(dsn))).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), dsn);
    }
}
