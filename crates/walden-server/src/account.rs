//! The operating-system user that servers run as.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};

/// The user to run PostgreSQL's programs as if this process is root.
#[derive(Debug, Clone)]
pub struct Account {
    /// Name of the user.
    pub name: &'static str,
    /// User ID of the user.
    pub uid: u32,
    /// Group ID of the user.
    pub gid: u32,
}

/// Returns the unprivileged user to switch to, or `None` if this process is not root and can run the programs
/// as it is.
///
/// # Errors
/// This process is root, and the server's user does not exist.
pub fn server_account() -> Result<Option<&'static Account>> {
    static ACCOUNT: OnceLock<Result<Option<Account>, String>> = OnceLock::new();
    ACCOUNT
        .get_or_init(|| {
            if !is_root() {
                return Ok(None);
            }
            ["postgres", "nobody"].into_iter().find_map(find_account).map(Some).ok_or_else(|| {
                "cannot run PostgreSQL as root: expected a user postgres or nobody to run it as, found neither; create one".into()
            })
        })
        .as_ref()
        .map(Option::as_ref)
        .map_err(|message| anyhow!("{message}"))
}

/// Returns whether this process is root. PostgreSQL refuses to run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Creates a command that runs as the server's user, in `directory`, without the caller's PG* variables.
///
/// # Errors
/// The errors of [`server_account`].
pub fn command(program: &Path, directory: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    clean_environment(&mut command);
    // The caller's working directory may be closed to the server's user, and initdb and postgres read their
    // own.
    command.current_dir(directory).stdin(Stdio::null());
    if let Some(account) = server_account()? {
        // As root, std also drops the supplementary groups when a uid is set.
        command.uid(account.uid).gid(account.gid).env("HOME", directory).env("USER", account.name);
    }
    Ok(command)
}

/// Removes `PG*`, `LC_*` and `LANG` from a command's environment, because they change where PostgreSQL's
/// programs connect and the language of their output.
pub fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("PG") || name.starts_with("LC_") || name == "LANG")
        {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C").env("TZ", "UTC");
}

/// Changes a path's owner to the server's user; for a symbolic link, the owner of the link itself. Does
/// nothing if this process is not root.
///
/// # Errors
/// Errors of the file system.
pub fn chown(path: &Path) -> Result<()> {
    if let Some(account) = server_account()? {
        std::os::unix::fs::lchown(path, Some(account.uid), Some(account.gid))
            .with_context(|| format!("cannot change the owner of {} to {}", path.display(), account.name))?;
    }
    Ok(())
}

/// Changes the owner of a folder and its content to the server's user. Does nothing if this process is not
/// root.
///
/// # Errors
/// Errors of the file system.
pub fn chown_all(folder: &Path) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    chown(folder)?;
    let reading = || format!("cannot read {}", folder.display());
    for entry in std::fs::read_dir(folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path.is_dir() && !path.is_symlink() { chown_all(&path)? } else { chown(&path)? }
    }
    Ok(())
}

/// Finds uid and gid with the program `id`, which also knows users that are not in /etc/passwd.
fn find_account(name: &'static str) -> Option<Account> {
    let number = |flag: &str| -> Option<u32> {
        let output = Command::new("id").args([flag, name]).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().parse().ok()).flatten()
    };
    Some(Account { name, uid: number("-u")?, gid: number("-g")? })
}
