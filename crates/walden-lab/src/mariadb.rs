//! A throw-away MariaDB on a Unix socket, for comparison: started as an unprivileged user, and always
//! stopped.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::account;
use crate::guard::Guard;
use walden_server::folder::{tail, temporary_folder};
use walden_server::programs::find_server_in_path;
use walden_server::signals;

/// A running server, stopped and removed when dropped.
pub struct MariaDb {
    guard: Arc<Guard>,
    programs: Programs,
}

/// Paths of MariaDB's programs.
#[derive(Debug, Clone)]
pub struct Programs {
    server: PathBuf,
    install: PathBuf,
    client: PathBuf,
}

/// An open transaction: InnoDB purges nothing while it is open.
pub struct Snapshot {
    client: Child,
}

/// The Debian package that contains the programs.
pub const PACKAGE: &str = "mariadb-server";

const TIMEOUT: Duration = Duration::from_secs(180);
const SETTLE: Duration = Duration::from_secs(600);

/// With these options InnoDB writes pages only at [`MariaDb::flush`], so that a page is written once per
/// statement.
const OPTIONS: &[&str] = &[
    "--skip-networking",
    "--innodb-buffer-pool-size=1G",
    "--innodb-log-file-size=2G",
    "--innodb-max-dirty-pages-pct=99",
    "--innodb-doublewrite=ON",
    "--skip-log-bin",
];

impl Programs {
    /// Finds the programs in `PATH` and the `sbin` folders.
    pub fn find() -> Option<Programs> {
        Some(Programs {
            server: program(&["mariadbd", "mysqld"])?,
            install: program(&["mariadb-install-db", "mysql_install_db"])?,
            client: program(&["mariadb", "mysql"])?,
        })
    }
}

fn program(names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| find_server_in_path(name))
}

impl MariaDb {
    /// Creates a data directory and starts a server on it.
    pub fn start(programs: Programs) -> Result<MariaDb> {
        let guard = Guard::new(temporary_folder()?)?;
        let server = MariaDb { guard, programs };
        let data = server.dir().join("data");
        fs::create_dir(&data)?;
        account::chown(&data)?;
        server.install(&data)?;
        server.launch(&data)?;
        Ok(server)
    }

    /// The folder of data directory, socket and log.
    pub fn dir(&self) -> &Path {
        self.guard.dir()
    }

    /// The server's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.guard.pid()
    }

    fn log(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    fn socket(&self) -> PathBuf {
        self.dir().join("s.sock")
    }

    fn install(&self, data: &Path) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = account::command(&self.programs.install, self.dir())?;
        command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        command
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", self.dir().display()));
        self.guard.spawn(command.stdout(log.try_clone()?).stderr(log))?;
        match self.guard.wait(TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                signals::wait_for_exit_if_interrupted();
                bail!("{} failed ({status}):\n{}", self.programs.install.display(), tail(&self.log(), 30))
            }
            None => bail!("{} did not end in {TIMEOUT:?}", self.programs.install.display()),
        }
    }

    fn launch(&self, data: &Path) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = account::command(&self.programs.server, self.dir())?;
        command.arg("--no-defaults").args(OPTIONS);
        command
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", self.socket().display()));
        command.arg(format!("--tmpdir={}", self.dir().display()));
        command.arg(format!("--pid-file={}", self.dir().join("pid").display()));
        self.guard.spawn(command.stdout(log.try_clone()?).stderr(log))?;
        let deadline = Instant::now() + TIMEOUT;
        while self.sql("SELECT 1").is_err() {
            if let Some(status) = self.guard.poll()? {
                signals::wait_for_exit_if_interrupted();
                bail!("cannot start MariaDB: it ended with {status}:\n{}", tail(&self.log(), 30));
            }
            ensure!(
                Instant::now() < deadline,
                "cannot start MariaDB: it is not ready after {TIMEOUT:?}:\n{}",
                tail(&self.log(), 30)
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn client(&self) -> Command {
        let mut command = Command::new(&self.programs.client);
        command.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
        command.arg(format!("--socket={}", self.socket().display()));
        command
    }

    /// Runs statements and returns their output, with columns separated by tabs.
    pub fn sql(&self, statements: &str) -> Result<String> {
        let output = self.client().args(["-e", statements]).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", self.programs.client.display()))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "MariaDB: {}", error.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The result of `SELECT VERSION()`.
    pub fn version(&self) -> Result<String> {
        Ok(self.sql("SELECT VERSION()")?.trim().to_owned())
    }

    /// The status variables whose names start with `Innodb`.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.sql("SHOW GLOBAL STATUS LIKE 'Innodb%'")?;
        let pair = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        Ok(text.lines().filter_map(pair).collect())
    }

    /// Makes InnoDB write all dirty pages and waits until it has, like a checkpoint.
    pub fn flush(&self) -> Result<()> {
        self.sql("SET GLOBAL innodb_max_dirty_pages_pct_lwm = 0; SET GLOBAL innodb_max_dirty_pages_pct = 0")?;
        let deadline = Instant::now() + SETTLE;
        while self.counters()?.get("Innodb_buffer_pool_pages_dirty").is_some_and(|pages| *pages > 0) {
            ensure!(
                Instant::now() < deadline,
                "cannot flush MariaDB: it still has dirty pages after {SETTLE:?}"
            );
            thread::sleep(Duration::from_millis(100));
        }
        self.sql("SET GLOBAL innodb_max_dirty_pages_pct = 99")?;
        Ok(())
    }

    /// Opens a snapshot; InnoDB purges nothing while it is open.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut client =
            self.client().arg("--unbuffered").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let words =
            b"START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT COUNT(*) FROM mysql.innodb_table_stats;\n";
        let written = client.stdin.as_mut().context("no pipe")?.write_all(words);
        let snapshot = Snapshot { client };
        written?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let open = "SELECT COUNT(*) FROM information_schema.innodb_trx";
        while self.sql(open)?.trim() == "0" {
            ensure!(Instant::now() < deadline, "cannot open a snapshot in MariaDB");
            // InnoDB refreshes innodb_trx only if it was not read for 100 ms.
            thread::sleep(Duration::from_millis(250));
        }
        Ok(snapshot)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // The client ends at the end of its input.
        drop(self.client.stdin.take());
        let _ = self.client.wait();
    }
}
