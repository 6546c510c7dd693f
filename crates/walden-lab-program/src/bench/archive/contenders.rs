//! The programs that archive and restore WAL, and the commands for PostgreSQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use walden_lab::sshd::{self, Sshd};

/// A program with its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    Cp,
    Scp,
    Rsync,
    Walden { level: u8, ahead: bool },
    WaldenPacks,
    PgBackRest { compression: &'static str, level: u8, ahead: bool },
}

use Contender::{Cp, PgBackRest, Rsync, Scp, Walden, WaldenPacks};

/// All programs, in the order of the tables.
pub const ALL: &[(&str, Contender)] = &[
    ("cp", Cp),
    ("scp", Scp),
    ("rsync", Rsync),
    ("walden", Walden { level: 3, ahead: false }),
    ("walden ahead", Walden { level: 3, ahead: true }),
    ("walden 0 ahead", Walden { level: 0, ahead: true }),
    ("walden pack", WaldenPacks),
    ("pgbackrest zst-3", PgBackRest { compression: "zst", level: 3, ahead: false }),
    ("pgbackrest zst-3 ahead", PgBackRest { compression: "zst", level: 3, ahead: true }),
    ("pgbackrest gz-6", PgBackRest { compression: "gz", level: 6, ahead: false }),
];

/// A program that is prepared for one round: an empty archive, and the commands.
pub struct Ready {
    pub archive_command: String,
    pub restore_command: String,
    pub repository: PathBuf,
    /// The command that converts the archive of pushed segments to the one from which segments are restored.
    pub afterwards: Option<String>,
    _sshd: Option<Sshd>,
}

impl Contender {
    /// Returns the program that it requires, other than this one.
    fn program(self) -> Option<&'static str> {
        match self {
            Cp | Walden { .. } | WaldenPacks => None,
            Scp => Some("scp"),
            Rsync => Some("rsync"),
            PgBackRest { .. } => Some("pgbackrest"),
        }
    }

    /// Returns the reason why it cannot take part, if there is one.
    pub fn problem(self) -> Option<String> {
        let missing = self.program().filter(|program| {
            let found =
                Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
            found.is_err()
        });
        if let Some(program) = missing {
            return Some(format!("{program} is not installed"));
        }
        (self == Scp && sshd::program().is_none())
            .then(|| format!("sshd is not installed (package {})", sshd::PACKAGE))
    }

    /// Returns whether one call also processes other files.
    pub fn works_ahead(self) -> bool {
        matches!(self, Walden { ahead: true, .. } | PgBackRest { ahead: true, .. })
    }

    /// Returns whether the recovery of a server is timed with it: with each program's fastest form, and with
    /// the reference.
    pub fn serves_recovery(self) -> bool {
        self.works_ahead() || matches!(self, Cp | WaldenPacks)
    }

    /// Creates an empty archive in `folder` for the cluster whose data directory is `data`.
    pub fn prepare(self, folder: &Path, data: &Path) -> Result<Ready> {
        let repository = folder.join("repository");
        fs::create_dir_all(&repository)?;
        open_to_all(&repository)?;
        let at = repository.display();
        let mut sshd = None;
        let mut afterwards = None;
        let (archive_command, restore_command) = match self {
            Cp => (format!("cp \"%p\" \"{at}/%f\""), format!("cp \"{at}/%f\" \"%p\"")),
            Rsync => (format!("rsync -a \"%p\" \"{at}/%f\""), format!("rsync -a \"{at}/%f\" \"%p\"")),
            Scp => {
                let program = sshd::program().context("no sshd")?;
                let server = Sshd::start(&program, folder)?;
                let (config, host) = (server.config.display().to_string(), sshd::HOST);
                sshd = Some(server);
                let scp = format!("scp -q -F \"{config}\"");
                (format!("{scp} \"%p\" \"{host}:{at}/%f\""), format!("{scp} \"{host}:{at}/%f\" \"%p\""))
            }
            Walden { .. } | WaldenPacks => {
                let me = crate::programs::path_of("walden")?;
                let walden = format!("\"{}\" archive", me.display());
                run(&format!("{walden} init --repo \"{at}\" -o \"{}/walden.toml\"", folder.display()))?;
                let (level, ahead) = match self {
                    Walden { level, ahead } => (level, ahead),
                    _ => (3, true),
                };
                let push_ahead = if ahead { "" } else { " --look-ahead 0" };
                let get_ahead = if ahead { "" } else { " --prefetch 0" };
                if self == WaldenPacks {
                    afterwards = Some(format!("{walden} pack --repo \"{at}\" --keep 0 --segments 4"));
                }
                (
                    format!("{walden} push --repo \"{at}\" --level {level}{push_ahead} \"%p\""),
                    format!("{walden} get --repo \"{at}\"{get_ahead} %f \"%p\""),
                )
            }
            PgBackRest { compression, level, ahead } => {
                let config = folder.join("pgbackrest.conf");
                fs::write(&config, pgbackrest_conf(folder, data, compression, level, ahead)?)?;
                let program = format!("pgbackrest --config=\"{}\" --stanza=bench", config.display());
                run(&format!("{program} --no-online stanza-create"))?;
                (
                    format!("{program} archive-push \"%p\""),
                    format!("{program} --pg1-path=\"$PWD\" archive-get %f \"%p\""),
                )
            }
        };
        Ok(Ready { archive_command, restore_command, repository, afterwards, _sshd: sshd })
    }
}

fn pgbackrest_conf(folder: &Path, data: &Path, compression: &str, level: u8, ahead: bool) -> Result<String> {
    for name in ["spool", "log", "lock"] {
        let path = folder.join(name);
        fs::create_dir_all(&path)?;
        open_to_all(&path)?;
    }
    let (shown, cores) = (folder.display(), crate::terminal::cores());
    let asynchronous = if ahead { format!("archive-async=y\nprocess-max={cores}\n") } else { String::new() };
    Ok(format!(
        "[global]\nrepo1-path={shown}/repository\nspool-path={shown}/spool\nlog-path={shown}/log\nlock-path={shown}/lock\n\
         log-level-file=off\nlog-level-console=error\ncompress-type={compression}\ncompress-level={level}\n{asynchronous}\
         [bench]\npg1-path={}\n",
        data.display()
    ))
}

/// Makes a file or folder accessible to all users, because the server's user reads and writes it.
pub fn open_to_all(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    Ok(())
}

/// Runs a command in a shell.
pub fn run(command: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output().context("run sh")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command} failed ({}): {}", output.status, said.trim());
    Ok(())
}
