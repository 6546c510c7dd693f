//! An sshd on the loopback interface for programs that copy over ssh, with keys generated for the run, sftp
//! only and no shell.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::account::{self, server_account};
use crate::guard::Guard;
use walden_server::folder::tail;
use walden_server::programs::find_server_in_path;
use walden_server::signals;

/// A running sshd, stopped and removed when dropped.
pub struct Sshd {
    guard: Arc<Guard>,
    /// The client's configuration file, for `ssh -F`.
    pub config: PathBuf,
}

/// The `Host` of the client's configuration.
pub const HOST: &str = "walden-lab";

/// The Debian package that contains sshd.
pub const PACKAGE: &str = "openssh-server";

const TIMEOUT: Duration = Duration::from_secs(20);

/// Finds sshd in `PATH` and the `sbin` folders.
pub fn program() -> Option<PathBuf> {
    find_server_in_path("sshd")
}

impl Sshd {
    /// Starts sshd with a new folder in `parent`, which the server's user must be able to enter.
    ///
    /// # Errors
    /// The programs of the package are missing, or the server does not start; the message includes the end of
    /// its log.
    pub fn start(program: &Path, parent: &Path) -> Result<Sshd> {
        let folder = tempfile::Builder::new().prefix("walden-sshd-").tempdir_in(parent)?;
        account::chown(folder.path())?;
        let guard = Guard::new(folder.keep())?;
        let dir = guard.dir().to_owned();
        for key in ["host_key", "user_key"] {
            let made = account::command(Path::new("ssh-keygen"), &dir)?
                .args(["-q", "-t", "ed25519", "-N", "", "-C", HOST, "-f", key])
                .stdout(Stdio::null())
                .status()
                .context("cannot run ssh-keygen (package openssh-client)")?;
            ensure!(made.success(), "cannot make a key: ssh-keygen failed ({made})");
        }
        let user = match server_account()? {
            Some(account) => account.name.to_owned(),
            None => own_name()?,
        };
        // ssh refuses a private key that another user owns, so the client gets a copy that this process owns.
        let key = dir.join("client_key");
        fs::copy(dir.join("user_key"), &key)?;
        fs::rename(dir.join("user_key.pub"), dir.join("authorized_keys"))?;
        // Another program may take a free port before sshd uses it.
        let mut last = None;
        for _ in 0..5 {
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            let sshd = Sshd { guard: guard.clone(), config: dir.join("client_config") };
            match sshd.launch(program, &dir, port, &user, &key) {
                Ok(()) => return Ok(sshd),
                Err(error) => last = Some(error),
            }
            signals::wait_for_exit_if_interrupted();
        }
        Err(last.context("cannot start sshd")?)
    }

    fn launch(&self, program: &Path, dir: &Path, port: u16, user: &str, key: &Path) -> Result<()> {
        let shown = dir.display();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {shown}/host_key\nPidFile none\n\
             AuthorizedKeysFile {shown}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nAllowUsers {user}\nAllowTcpForwarding no\nX11Forwarding no\n\
             Subsystem sftp internal-sftp\nForceCommand internal-sftp\nMaxStartups 100\n"
        );
        let client = format!(
            "Host {HOST}\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             IdentityAgent none\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  \
             BatchMode yes\n",
            key.display()
        );
        let server_config = dir.join("sshd_config");
        fs::write(&server_config, server)?;
        fs::write(&self.config, client)?;
        let log_path = dir.join("sshd.log");
        let log = fs::File::create(&log_path)?;
        let mut command = account::command(program, dir)?;
        command.args(["-D", "-e", "-f"]).arg(&server_config).stdout(log.try_clone()?).stderr(log);
        self.guard.spawn(&mut command)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.guard.poll()? {
                bail!("cannot start sshd: it ended with {status}: {}", tail(&log_path, 5));
            }
            if fs::read_to_string(&log_path)?.contains("Server listening") {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "cannot start sshd: it is not ready after {TIMEOUT:?}: {}",
                tail(&log_path, 5)
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last lines of sshd's log.
    pub fn log_tail(&self) -> String {
        tail(&self.guard.dir().join("sshd.log"), 5)
    }
}

fn own_name() -> Result<String> {
    let output = Command::new("id").arg("-un").stdin(Stdio::null()).output().context("cannot run id")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
