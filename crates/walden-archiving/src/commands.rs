//! The commands that PostgreSQL runs, as values for postgresql.conf, and the archives that these commands
//! name.

use std::path::Path;

use walden_archive::Archive;

use crate::configuration::FILE;
use crate::place::Place;

/// Returns `archive_command` and `restore_command` for an archive, valid in any working directory. `program`
/// is the path of Walden's program.
pub fn commands_of(program: &str, place: &Place) -> [String; 2] {
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
    server_commands(program, &options)
}

/// Returns `archive_command` and `restore_command` with the quoting of postgresql.conf.
pub fn server_commands(program: &str, options: &[String]) -> [String; 2] {
    // PostgreSQL expands % sequences, and replaces %% by a single %.
    let word = |text: &str| word(text).replace('%', "%%");
    let (program, options) =
        (word(program), options.iter().map(|text| format!(" {}", word(text))).collect::<String>());
    let setting = |command: String| format!("'{}'", command.replace('\\', "\\\\").replace('\'', "''"));
    [
        setting(format!("{program} archive push{options} %p")),
        setting(format!("{program} archive get{options} %f \"%p\"")),
    ]
}

/// Quotes a word for a shell if necessary.
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// Quotes a word for a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the archive that the words of a command name by `--repo` or by a readable configuration; `None` if
/// they name no known archive.
fn named_archive(words: &[String]) -> Option<String> {
    let mut words = words.iter().map(String::as_str);
    let (mut repo, mut config) = (None, None);
    while let Some(word) = words.next() {
        let (option, value) =
            word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        match option {
            "--repo" => repo = value.or_else(|| words.next()),
            "--config" => config = value.or_else(|| words.next()),
            _ => {}
        }
    }
    let named = match (repo, config) {
        (Some(repo), _) => repo.to_owned(),
        (None, Some(config)) => {
            let place = Place::from_configuration(Some(config.into()));
            place.configuration().ok()?.0.first_repo()?.to_owned()
        }
        (None, None) => return None,
    };
    // A relative path is relative to the server's data directory.
    (named.contains("://") || Path::new(&named).is_absolute()).then_some(named)
}

/// Divides a setting such as `push A && push B` into the words of its simple commands, by the quoting rules
/// of a POSIX shell. Commands in `sh -c 'push A'` are commands too.
fn simple_commands(setting: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut pending = vec![setting.replace("%%", "%")];
    while let Some(text) = pending.pop() {
        let parsed = parse_commands(&text);
        let nested = parsed.iter().flat_map(|words| words.windows(2)).filter(|pair| pair[0] == "-c");
        pending.extend(nested.map(|pair| pair[1].clone()));
        commands.extend(parsed);
    }
    commands
}

fn parse_commands(text: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let is_redirection = word.as_deref().is_some_and(|word| word.ends_with(['<', '>']));
        match character {
            '&' if is_redirection => word.get_or_insert_default().push('&'),
            '&' | '|' | ';' | '(' | ')' | '\n' => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            '#' if word.is_none() => while rest.next_if(|&next| next != '\n').is_some() {},
            '\'' => word.get_or_insert_default().extend(rest.by_ref().take_while(|&next| next != '\'')),
            '"' => {
                let word = word.get_or_insert_default();
                while let Some(next) = rest.next().filter(|&next| next != '"') {
                    let is_escape = next == '\\' && rest.peek().is_some_and(|&next| "\"\\$`".contains(next));
                    word.extend(if is_escape { rest.next() } else { Some(next) });
                }
            }
            '\\' => word.get_or_insert_default().extend(rest.next()),
            space if space.is_ascii_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Returns the archive that a command of the server names, unless it also names `archive`.
pub fn other_archive(command: &str, archive: Option<&Archive>) -> Option<String> {
    let archive = archive?;
    let mut named: Vec<String> =
        simple_commands(command).iter().filter_map(|words| named_archive(words)).collect();
    let is_own = named.iter().any(|named| is_place_of(archive, named));
    (!is_own && !named.is_empty()).then(|| named.swap_remove(0))
}

/// Returns whether a path or URL is the location of an archive.
fn is_place_of(archive: &Archive, place: &str) -> bool {
    let resolved = |place: &str| match place.contains("://") {
        true => place.trim_end_matches('/').to_owned(),
        false => std::fs::canonicalize(place)
            .map_or_else(|_| place.trim_end_matches('/').to_owned(), |path| path.display().to_string()),
    };
    resolved(place) == resolved(archive.store().location())
}

/// Returns whether an `archive_command` certainly archives into this archive. Without options, the
/// configuration in the server's data directory names the archive, if there is one.
pub fn archives_into(command: &str, data: Option<&Path>, archive: &Archive) -> bool {
    let beside = || {
        let config = data?.join(FILE);
        let place = Place::from_configuration(Some(config));
        place.configuration().ok()?.0.first_repo().map(str::to_owned)
    };
    let is_push = |words: &&Vec<String>| words.windows(2).any(|pair| pair == ["archive", "push"]);
    simple_commands(command)
        .iter()
        .filter(is_push)
        .any(|words| named_archive(words).or_else(beside).is_some_and(|named| is_place_of(archive, &named)))
}

/// Describes a command that names another archive.
pub fn describe_other(other: &str, archive: Option<&Archive>) -> String {
    let own = archive.map(|archive| archive.store().location()).unwrap_or_default();
    format!("it names the archive {other}, not {own}")
}

/// Returns whether an `archive_library` is `walden_archive.so`.
pub fn is_own_library(value: &str) -> bool {
    Path::new(value).file_stem().is_some_and(|name| name == "walden_archive")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the command that PostgreSQL runs for the value of a setting (`GUC_scanstr` in `guc-file.l`).
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
    fn a_command_may_archive_into_several_archives() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).display().to_string();
        let archive = |name: &str| {
            std::fs::create_dir_all(place(name)).unwrap();
            Archive::new(Box::new(walden_archive::store::Folder::new(folder.path().join(name))))
        };
        let (first, second, third) = (archive("a"), archive("b"), archive("c"));
        let push = |name: &str| format!("walden archive push --repo {} %p", place(name));
        let both = format!("{} && {}", push("a"), push("b"));
        for own in [&first, &second] {
            assert_eq!(other_archive(&both, Some(own)), None);
            assert!(archives_into(&both, None, own));
        }
        assert_eq!(other_archive(&both, Some(&third)), Some(place("a")));
        assert!(!archives_into(&both, None, &third));
    }

    #[test]
    fn separators_and_spaces_in_quotes_are_part_of_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let other = Archive::new(Box::new(walden_archive::store::Folder::new(folder.path().to_owned())));
        for name in ["R&D", "a|b", "a;b", "a b", "it's", "a\"b", "a\\b", "50%f", "a#b (old)"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let own = Archive::new(Box::new(walden_archive::store::Folder::new(path.clone())));
            let options = ["--repo".to_owned(), path.display().to_string()];
            let [setting, _] = server_commands("/opt/R&D tools/walden", &options);
            let setting = setting[1..setting.len() - 1].replace("''", "'").replace("\\\\", "\\");
            let in_double = path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
            let in_double = format!("walden archive push --repo=\"{}\" %p", in_double.replace('%', "%%"));
            let in_shell = format!("sh -c {} 2>&1 || exit 1", quoted(&in_double));
            for command in [setting, in_double, in_shell] {
                assert_eq!(other_archive(&command, Some(&own)), None, "{command}");
                assert!(archives_into(&command, None, &own), "{command}");
                assert_eq!(other_archive(&command, Some(&other)), Some(path.display().to_string()));
            }
        }
        let redirected = "test -f x && walden archive push 2>&1 --repo /backup/main %p # --repo /other";
        assert_eq!(other_archive(redirected, Some(&other)).as_deref(), Some("/backup/main"));
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

    #[test]
    fn the_archive_that_a_command_names_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("walden.toml");
        std::fs::write(&config, "[archive]\nrepo = \"s3://bucket/main\"\n").unwrap();
        let config = config.display();
        let named = |command: &str| named_archive(&simple_commands(command)[0]);
        let by_config = format!("/usr/bin/walden archive get --config '{config}' %f \"%p\"");
        assert_eq!(named(&by_config).as_deref(), Some("s3://bucket/main"));
        assert_eq!(named(&format!("{by_config} --repo=/backup/50%%")).as_deref(), Some("/backup/50%"));
        assert_eq!(named("walden archive push --repo /backup/main %p").as_deref(), Some("/backup/main"));
        for unknown in
            ["cp %p /backup/%f", "walden archive push %p", "walden archive push --config /nowhere %p --repo"]
        {
            assert_eq!(named(unknown), None, "{unknown}");
        }
    }
}
