//! Throw-away database clusters in temporary folders.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postgres::{Client, Config, NoTls};
use rustix::process::Signal;
use walden_format::lsn::Lsn;
use walden_server::folder::{copy_folder, tail, temporary_folder};
use walden_server::signals;

use crate::account;
use crate::guard::Guard;
use crate::install::{Installation, tools};

/// The superuser of every cluster.
pub const SUPERUSER: &str = "postgres";

pub use walden_server::folder::PORT;

/// The maximum time for starting (including crash recovery) or stopping a server.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Settings of every cluster; settings added by the caller override them.
const BASE_SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", ""),
    // The WAL is the same as with fsync; the server only does not wait for the disk.
    ("fsync", "off"),
    ("log_checkpoints", "on"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
];

/// Options of a cluster; [`ClusterBuilder::start`] creates it and starts its server.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    installation: Installation,
    initdb_options: Vec<String>,
    settings: Vec<(String, String)>,
    archive: bool,
    copy_of: Option<PathBuf>,
}

/// How to stop a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Ends the sessions, writes a checkpoint, and stops (SIGINT).
    Fast,
    /// Stops without a checkpoint (SIGQUIT): the next start runs crash recovery.
    Immediate,
}

/// A cluster and its server. When dropped, the server is stopped and the folder removed.
pub struct Cluster {
    guard: Arc<Guard>,
    installation: Installation,
    initdb_options: Vec<String>,
    archive: bool,
    identity: Identity,
}

/// Facts of a cluster that never change, queried after its server's first start.
struct Identity {
    version: String,
    version_num: u32,
    system_identifier: u64,
    wal_segment_bytes: u64,
}

impl ClusterBuilder {
    /// A cluster with the server's defaults, except that it has no TCP/IP and `fsync=off`.
    pub fn new(installation: Installation) -> ClusterBuilder {
        let settings = BASE_SETTINGS.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let initdb_options = ["--no-sync", "--locale=C", "--encoding=UTF8", "--auth=trust"];
        let initdb_options = initdb_options.iter().map(|&option| option.into()).collect();
        ClusterBuilder { installation, initdb_options, settings, archive: false, copy_of: None }
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.installation.version.major
    }

    /// The size of a WAL segment in MB (a power of two from 1 to 1024; 16 is PostgreSQL's default).
    pub fn wal_segsize_mb(self, megabytes: u32) -> ClusterBuilder {
        self.initdb_option(&format!("--wal-segsize={megabytes}"))
    }

    /// Enables or disables data checksums, overriding the version's default (on since 18).
    pub fn checksums(self, on: bool) -> ClusterBuilder {
        match (on, self.installation.version.major >= 18) {
            (true, _) => self.initdb_option("--data-checksums"),
            (false, true) => self.initdb_option("--no-data-checksums"),
            (false, false) => self,
        }
    }

    /// Adds an option of initdb, such as `--locale-provider=icu`.
    pub fn initdb_option(mut self, option: &str) -> ClusterBuilder {
        self.initdb_options.push(option.into());
        self
    }

    /// Adds a line to `postgresql.conf`; among lines with the same name the last one applies.
    pub fn setting(mut self, name: &str, value: &str) -> ClusterBuilder {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Archives every segment into [`Cluster::archive_dir`].
    pub fn archive(mut self, on: bool) -> ClusterBuilder {
        self.archive = on;
        self
    }

    /// Starts from a copy of this data directory, as created by [`Cluster::copy_data`], instead of a new one.
    pub fn copy_of(mut self, data: &Path) -> ClusterBuilder {
        self.copy_of = Some(data.to_owned());
        self
    }

    /// Creates the cluster in a temporary folder, starts its server and waits until it accepts connections.
    ///
    /// # Errors
    /// initdb or the server failed; the message includes their output.
    pub fn start(self) -> Result<Cluster> {
        self.start_after(|_| Ok(()))
    }

    /// Same as [`ClusterBuilder::start`], but calls `before` with the data directory before the server's
    /// first start.
    ///
    /// # Errors
    /// Errors of [`ClusterBuilder::start`] and of `before`.
    pub fn start_after(self, before: impl FnOnce(&Path) -> Result<()>) -> Result<Cluster> {
        let guard = Guard::new(temporary_folder()?)?;
        let mut cluster = Cluster {
            guard,
            installation: self.installation,
            initdb_options: self.initdb_options,
            archive: self.archive,
            identity: Identity {
                version: String::new(),
                version_num: 0,
                system_identifier: 0,
                wal_segment_bytes: 0,
            },
        };
        for folder in [cluster.socket_dir(), cluster.archive_dir()] {
            fs::create_dir(&folder)?;
            account::chown(&folder)?;
        }
        match &self.copy_of {
            Some(data) => copy_folder(data, &cluster.data_dir(), &|_| true)?,
            None => cluster.initdb()?,
        }
        cluster.configure(&cluster.folder_settings())?;
        cluster.configure(&self.settings)?;
        before(&cluster.data_dir())?;
        account::chown_all(&cluster.data_dir())?;
        cluster.start()?;
        cluster.identity = cluster.identify()?;
        Ok(cluster)
    }
}

impl Cluster {
    /// The installation whose programs run the server.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The output of `version()`.
    pub fn version(&self) -> &str {
        &self.identity.version
    }

    /// `server_version_num`: 180006 for 18.6.
    pub fn version_num(&self) -> u32 {
        self.identity.version_num
    }

    /// The server's major version, `18`.
    pub fn major(&self) -> u32 {
        self.identity.version_num / 10000
    }

    /// The system identifier (`xlp_sysid` in the first page header of each segment).
    pub fn system_identifier(&self) -> u64 {
        self.identity.system_identifier
    }

    /// The size of a WAL segment in bytes.
    pub fn wal_segment_bytes(&self) -> u64 {
        self.identity.wal_segment_bytes
    }

    /// The options that initdb was run with.
    pub fn initdb_options(&self) -> &[String] {
        &self.initdb_options
    }

    /// The temporary folder with data directory, socket, archive and the server's log.
    pub fn dir(&self) -> &Path {
        self.guard.dir()
    }

    /// The data directory (`PGDATA`).
    pub fn data_dir(&self) -> PathBuf {
        self.dir().join("data")
    }

    /// The folder of the Unix socket, for a connection string's `host`.
    pub fn socket_dir(&self) -> PathBuf {
        self.dir().join("s")
    }

    /// The folder that segments are archived to; empty unless [`ClusterBuilder::archive`] is enabled.
    pub fn archive_dir(&self) -> PathBuf {
        self.dir().join("archive")
    }

    /// The path of the server's log.
    pub fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    /// The process id of the postmaster, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.guard.pid()
    }

    /// Connection parameters of the superuser and the database `postgres`; change them before connecting.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.socket_dir())
            .port(PORT)
            .user(SUPERUSER)
            .dbname("postgres")
            .application_name("walden");
        config
    }

    /// Bytes of WAL that the server has written so far.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub fn wal_written(&self) -> Result<u64> {
        insert_lsn(&mut self.client("postgres")?).map(|lsn| lsn.0)
    }

    /// A connection string for a database, as libpq and the `postgres` crate understand it.
    pub fn dsn(&self, database: &str) -> String {
        format!("host={} port={PORT} user={SUPERUSER} dbname={database}", self.socket_dir().display())
    }

    /// Connects to a database as the superuser.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub fn client(&self, database: &str) -> Result<Client> {
        let result = self.config().dbname(database).connect(NoTls);
        result.with_context(|| format!("cannot connect to the database {database}"))
    }

    /// A command for a client program such as pgbench, with connection parameters in its environment.
    pub fn client_command(&self, program: &Path, database: &str) -> Command {
        let mut command = Command::new(program);
        account::clean_environment(&mut command);
        command
            .stdin(Stdio::null())
            .env("PGHOST", self.socket_dir())
            .env("PGPORT", PORT.to_string())
            .env("PGUSER", SUPERUSER)
            .env("PGDATABASE", database);
        command
    }

    /// Runs pgbench on a database, and returns its output.
    ///
    /// # Errors
    /// pgbench is missing or fails.
    pub fn pgbench(&self, database: &str, arguments: &[&str]) -> Result<String> {
        run_pgbench(self.client_command(&tools().pgbench()?, database), arguments, None)
    }

    /// Creates a folder that the server may write to, for a tablespace for example.
    ///
    /// # Errors
    /// Returns the file system's error.
    pub fn make_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir().join(name);
        fs::create_dir(&path)?;
        account::chown(&path)?;
        Ok(path)
    }

    /// Appends lines to `postgresql.conf`; they take effect after [`Cluster::reload`] or a restart.
    ///
    /// # Errors
    /// Returns the file system's error.
    pub fn configure<N: AsRef<str>, V: AsRef<str>>(&self, settings: &[(N, V)]) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let mut text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for (name, value) in settings {
            let value = value.as_ref().replace('\\', "\\\\").replace('\'', "''");
            text += &format!("{} = '{value}'\n", name.as_ref());
        }
        fs::write(&path, text)?;
        Ok(())
    }

    /// Reloads the server's configuration.
    pub fn reload(&self) {
        self.guard.signal(Signal::HUP);
    }

    /// Starts the server, if it was stopped, and waits until it accepts connections.
    ///
    /// # Errors
    /// It ended or did not become ready; the message includes the end of its log.
    pub fn start(&self) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let mut command = account::command(&self.installation.postgres(), self.dir())?;
        command.arg("-D").arg(self.data_dir()).stdout(log.try_clone()?).stderr(log);
        self.guard.spawn(&mut command)?;

        let deadline = Instant::now() + TIMEOUT;
        let mut config = self.config();
        config.connect_timeout(Duration::from_secs(10));
        loop {
            if let Some(status) = self.guard.poll()? {
                signals::wait_for_exit_if_interrupted();
                bail!(
                    "cannot start the server: it ended with {status}; the end of its log:\n{}",
                    self.log_tail()
                );
            }
            match config.connect(NoTls) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    bail!(
                        "cannot start the server: it takes no connections after {TIMEOUT:?} ({error}); the end of its log:\n{}",
                        self.log_tail()
                    )
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Stops the server and waits until it has ended.
    ///
    /// # Errors
    /// It is not running, or does not end in time.
    pub fn stop(&self, mode: StopMode) -> Result<()> {
        self.guard.signal(match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        });
        match self.guard.wait(TIMEOUT)? {
            Some(_) => Ok(()),
            None => {
                bail!(
                    "cannot stop the server: it still runs after {TIMEOUT:?}; the end of its log:\n{}",
                    self.log_tail()
                )
            }
        }
    }

    /// Stops the server as a crash would: no checkpoint, recovery at the next start.
    ///
    /// # Errors
    /// The errors of [`Cluster::stop`].
    pub fn crash(&self) -> Result<()> {
        self.stop(StopMode::Immediate)
    }

    /// Stops and starts the server.
    ///
    /// # Errors
    /// The errors of [`Cluster::stop`] and [`Cluster::start`].
    pub fn restart(&self, mode: StopMode) -> Result<()> {
        self.stop(mode)?;
        self.start()
    }

    /// Whether the server process is running.
    pub fn is_running(&self) -> bool {
        self.guard.pid().is_some() && matches!(self.guard.poll(), Ok(None))
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path(), 30)
    }

    /// Copies the WAL segments from `first` to the last written one into the folder `to`.
    ///
    /// Searches `pg_wal` and the archive folder. The last segment is complete only after [`Cluster::stop`].
    /// Returns the names in WAL order.
    ///
    /// # Errors
    /// A segment in this range is missing (the server has recycled it), or the file system's error.
    pub fn collect_wal(&self, first: &str, to: &Path) -> Result<Vec<String>> {
        let archived = segment_files(&self.archive_dir())?;
        let mut segments = segment_files(&self.data_dir().join("pg_wal"))?;
        segments.retain(|name, path| archived.contains_key(name) || self.is_written(name, path));
        segments.extend(archived);
        let segments: Vec<_> = segments.into_iter().filter(|(name, _)| name.as_str() >= first).collect();
        match segments.first() {
            Some((name, _)) if name == first => {}
            _ => bail!(
                "cannot collect WAL: expected the segment {first}, found that the server has recycled it"
            ),
        }
        for pair in segments.windows(2) {
            let (number, next) = (self.segment_number(&pair[0].0)?, self.segment_number(&pair[1].0)?);
            if next > number + 1 {
                bail!(
                    "cannot collect WAL: expected the segments between {} and {}, found none",
                    pair[0].0,
                    pair[1].0
                );
            }
        }
        fs::create_dir_all(to)?;
        for (name, path) in &segments {
            let copy = to.join(name);
            fs::copy(path, &copy)
                .with_context(|| format!("cannot copy {} to {}", path.display(), to.display()))?;
        }
        Ok(segments.into_iter().map(|(name, _)| name).collect())
    }

    /// Copies the data directory without its WAL. The server must be stopped.
    ///
    /// # Errors
    /// The server runs, or the file system's error.
    pub fn copy_data(&self, to: &Path) -> Result<()> {
        if self.is_running() {
            bail!("cannot copy the data directory: expected a stopped server, found it running");
        }
        let pg_wal = self.data_dir().join("pg_wal");
        copy_folder(&self.data_dir(), to, &|path| path.is_dir() || path.parent() != Some(&pg_wal))
    }

    /// Whether a file in `pg_wal` contains the segment of its name, not zeros or the old content of a
    /// recycled file: compares the first page's address (`xlp_pageaddr`, bytes 8 to 15).
    fn is_written(&self, name: &str, path: &Path) -> bool {
        let mut header = [0; 16];
        let Ok(number) = self.segment_number(name) else { return false };
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
        let [.., a, b, c, d, e, f, g, h] = header;
        read.is_ok() && u64::from_ne_bytes([a, b, c, d, e, f, g, h]) == number * self.wal_segment_bytes()
    }

    /// The number of a segment in the order of the WAL, from its file name (see `XLogFromFileName`).
    fn segment_number(&self, name: &str) -> Result<u64> {
        let part = |range| u64::from_str_radix(&name[range], 16);
        Ok(part(8..16)? * (0x1_0000_0000 / self.wal_segment_bytes()) + part(16..24)?)
    }

    fn initdb(&self) -> Result<()> {
        let log_path = self.dir().join("initdb.log");
        let log = File::create(&log_path)?;
        let program = self.installation.initdb();
        let mut command = account::command(&program, self.dir())?;
        command.arg("-D").arg(self.data_dir()).args(["-U", SUPERUSER]).args(&self.initdb_options);
        self.guard.spawn(command.stdout(log.try_clone()?).stderr(log))?;
        match self.guard.wait(TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                signals::wait_for_exit_if_interrupted();
                bail!("{} failed ({status}):\n{}", program.display(), tail(&log_path, 30))
            }
            None => bail!("{} did not end in {TIMEOUT:?}:\n{}", program.display(), tail(&log_path, 30)),
        }
    }

    /// Settings that contain the temporary folder's path.
    fn folder_settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("unix_socket_directories", self.socket_dir().display().to_string())];
        if self.archive {
            // Never overwrites; the final name exists only once the file is complete.
            let to = self.archive_dir().display().to_string();
            let command =
                format!(r#"test ! -f "{to}/%f" && cp "%p" "{to}/.%f.tmp" && mv "{to}/.%f.tmp" "{to}/%f""#);
            settings.push(("archive_mode", "on".into()));
            settings.push(("archive_command", command));
        }
        settings
    }

    fn identify(&self) -> Result<Identity> {
        let row = self.client("postgres")?.query_one(
            "SELECT version(), current_setting('server_version_num'), system_identifier::text,
                    (SELECT setting FROM pg_settings WHERE name = 'wal_segment_size')
             FROM pg_control_system()",
            &[],
        )?;
        Ok(Identity {
            version: row.get(0),
            version_num: row.get::<_, String>(1).parse()?,
            // SQL returns it as a signed int8; everywhere else it is unsigned.
            system_identifier: row.get::<_, String>(2).parse::<i64>()?.cast_unsigned(),
            wal_segment_bytes: row.get::<_, String>(3).parse()?,
        })
    }
}

/// Runs pgbench through a command that connects it, or with a connection string, and returns its output.
/// Errors omit the string, which may contain a password.
pub(crate) fn run_pgbench(mut command: Command, arguments: &[&str], dsn: Option<&str>) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.args(arguments).args(dsn).stdin(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "cannot run the workload: {program} {} failed ({}):\n{}",
            arguments.join(" "),
            output.status,
            stderr.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the current WAL insert position of the server.
///
/// # Errors
/// Returns the connection's error.
pub fn insert_lsn(client: &mut Client) -> Result<Lsn> {
    let text: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[])?.get(0);
    Ok(text.parse()?)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        signals::wait_for_exit_if_interrupted();
    }
}

/// Returns the files in a folder that are named like WAL segments.
fn segment_files(folder: &Path) -> Result<std::collections::BTreeMap<String, PathBuf>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && name.len() == 24
            && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
        {
            found.insert(name, entry.path());
        }
    }
    Ok(found)
}
