//! `walden bench archive-library`: measures how long files wait to be archived, by `archive_command` and by
//! `archive_library`.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use clap::Args;
use postgres::Client;
use serde::Serialize;
use walden_lab::{Cluster, ClusterBuilder, StopMode, Wanted, find_or_install, median};
use walden_server::account;

use super::Background;
use crate::terminal::{self, Format};

/// Time from .ready to .done of segments, by archive_command and by archive_library
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  make -C archive_library PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config
  walden bench archive-library --module archive_library/walden_archive.so --pg 15

Two servers do the same, in turns: one calls `walden archive push` for each file, the other asks `walden archive serve`. First, \
segments become ready one at a time, each after the one before is done: nearly empty ones, as archive_timeout makes them, and full \
ones. Then a queue of full segments is ready at once, as after an outage. PostgreSQL renames .ready to .done, so the file's \
two times say how long it waited.")]
pub struct LibraryArgs {
    /// The module, built for the version of --pg
    #[arg(long, value_name = "FILE")]
    module: PathBuf,

    /// The PostgreSQL version, 15 or later
    #[arg(long, value_name = "VERSION", default_value = "15")]
    pg: Wanted,

    /// Segments of each kind
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    segments: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,

    /// How to print it: a table is in Markdown
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize, Debug)]
struct Measured {
    postgresql: String,
    segments: u32,
    runs: u8,
    command: Waits,
    library: Waits,
}

/// Milliseconds from ready to archived, as medians over segments and rounds; for the queue, divided by its
/// number of segments.
#[derive(Serialize, Debug, Default)]
struct Waits {
    empty: f64,
    full: f64,
    queue: f64,
}

/// Milliseconds in all rounds.
#[derive(Default)]
struct Samples {
    empty: Vec<f64>,
    full: Vec<f64>,
    queue: Vec<f64>,
}

impl Samples {
    fn waits(&self) -> Waits {
        let median = |values: &[f64]| median(values.iter().copied());
        Waits { empty: median(&self.empty), full: median(&self.full), queue: median(&self.queue) }
    }
}

/// Runs the command.
pub fn run(args: &LibraryArgs) -> Result<ExitCode> {
    ensure!(args.module.is_file(), "cannot use the module {}: expected a file", args.module.display());
    let (mut command, mut library) = (Samples::default(), Samples::default());
    let mut version = String::new();
    for _ in 0..args.runs {
        for (samples, is_library) in [(&mut command, false), (&mut library, true)] {
            let server = Server::start(args, is_library)?;
            version = server.cluster.installation().version.to_string();
            server.measure(args.segments, samples)?;
        }
    }
    let measured = Measured {
        postgresql: version,
        segments: args.segments,
        runs: args.runs,
        command: command.waits(),
        library: library.waits(),
    };
    terminal::show(args.format, || &measured, || table(&measured))?;
    Ok(ExitCode::SUCCESS)
}

fn table(measured: &Measured) -> String {
    let mut text =
        "| segments | `archive_command` | `archive_library` | ratio |\n|---|--:|--:|--:|\n".to_owned();
    let (command, library) = (&measured.command, &measured.library);
    for (what, command, library) in [
        ("one at a time, nearly empty", command.empty, library.empty),
        ("one at a time, full", command.full, library.full),
        ("a queue of full ones, each", command.queue, library.queue),
    ] {
        let _ = writeln!(text, "| {what} | {command:.1} ms | {library:.1} ms | {:.2} |", command / library);
    }
    text
}

/// A server, and the process that archives for it, if there is one.
struct Server {
    /// Dropped before the cluster, in whose folder it writes.
    serve: Option<Background>,
    cluster: Cluster,
    is_library: bool,
    program: PathBuf,
    repo: PathBuf,
}

const TIMEOUT: Duration = Duration::from_secs(600);

impl Server {
    fn start(args: &LibraryArgs, is_library: bool) -> Result<Server> {
        let installation = find_or_install(args.pg)?;
        // Segments are kept until they are inspected.
        let cluster = ClusterBuilder::new(installation)
            .setting("wal_keep_size", "100GB")
            .setting("max_wal_size", "100GB")
            .setting("checkpoint_timeout", "1h")
            .setting("autovacuum", "off")
            .start()?;
        let folder = cluster.make_folder("walden")?;
        let program = folder.join("walden");
        fs::copy(crate::programs::path_of("walden")?, &program)?;
        let module = folder.join("walden_archive.so");
        fs::copy(&args.module, &module)?;
        let (socket, repo) =
            (cluster.make_folder("serve")?.join("socket"), cluster.make_folder("archives")?.join("repo"));
        cluster.configure(&[("archive_mode", "on")])?;
        if is_library {
            let library = module.with_extension("");
            let settings = [("archive_library", &*library), ("walden.socket", &*socket)];
            cluster.configure(&settings.map(|(name, path)| (name, path.display().to_string())))?;
        }
        let mut init = account::command(&program, cluster.dir())?;
        init.args(["archive", "init", "--repo"]).arg(&repo).arg("-o").arg(repo.with_extension("toml"));
        ensure!(
            init.stdout(Stdio::null()).status()?.success(),
            "cannot make an archive in {}",
            repo.display()
        );
        let mut server = Server { cluster, serve: None, is_library, program, repo };
        server.set_archiving(true)?;
        server.cluster.restart(StopMode::Fast)?;
        Ok(server)
    }

    /// Enables or disables archiving.
    fn set_archiving(&mut self, is_on: bool) -> Result<()> {
        self.serve = None;
        if !self.is_library {
            let push = format!("{} archive push --repo {} %p", self.program.display(), self.repo.display());
            let command = if is_on { push.as_str() } else { "false" };
            self.cluster.configure(&[("archive_command", command)])?;
            self.cluster.reload();
        } else if is_on {
            let socket = self.cluster.dir().join("serve/socket");
            let _ = fs::remove_file(&socket);
            let mut command = account::command(&self.program, self.cluster.dir())?;
            command.args(["archive", "serve", "--repo"]).arg(&self.repo).arg("--socket").arg(&socket);
            command.arg("--data").arg(self.cluster.data_dir()).stderr(Stdio::null());
            self.serve = Some(Background::start(&mut command)?);
            wait_until("walden archive serve listens", || Ok(socket.exists()))?;
        }
        Ok(())
    }

    fn measure(mut self, segments: u32, samples: &mut Samples) -> Result<()> {
        let mut client = self.cluster.client("postgres")?;
        client.batch_execute("CREATE TABLE t (id int, v text)")?;
        // The first segment registers the cluster in the archive.
        self.wait_until_done(&switch(&mut client)?)?;
        for (is_full, waits) in [(false, &mut samples.empty), (true, &mut samples.full)] {
            for _ in 0..segments {
                if is_full {
                    fill(&mut client)?;
                }
                let name = switch(&mut client)?;
                let (ready, done) = self.wait_until_done(&name)?;
                waits.push(1e3 * (done - ready));
            }
        }
        self.set_archiving(false)?;
        let mut last = String::new();
        for _ in 0..segments {
            fill(&mut client)?;
            last = switch(&mut client)?;
        }
        // The archiver fails three times, with a second between attempts, and then sleeps until the next file
        // is ready.
        thread::sleep(Duration::from_secs(5));
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        self.set_archiving(true)?;
        switch(&mut client)?;
        let (_, done) = self.wait_until_done(&last)?;
        samples.queue.push(1e3 * (done - began) / f64::from(segments));
        drop(client);
        self.cluster.stop(StopMode::Fast)
    }

    /// Returns when a segment was ready and when it was archived, in seconds since 1970: the status file is
    /// written once and renamed once.
    fn wait_until_done(&self, name: &str) -> Result<(f64, f64)> {
        let mark = self.cluster.data_dir().join("pg_wal/archive_status").join(format!("{name}.done"));
        wait_until(name, || Ok(mark.exists()))?;
        let found = fs::metadata(&mark)?;
        let seconds = |seconds: i64, nanoseconds: i64| seconds as f64 + nanoseconds as f64 / 1e9;
        Ok((seconds(found.mtime(), found.mtime_nsec()), seconds(found.ctime(), found.ctime_nsec())))
    }
}

/// Writes most of a segment.
fn fill(client: &mut Client) -> Result<()> {
    client.batch_execute("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 120000) i")?;
    Ok(())
}

/// Ends the current segment, which has at least one record. Returns its name.
fn switch(client: &mut Client) -> Result<String> {
    client.batch_execute("SELECT txid_current()")?;
    Ok(client.query_one("SELECT pg_walfile_name(pg_switch_wal())", &[])?.get(0))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > TIMEOUT {
            bail!("cannot continue: waited {TIMEOUT:?} for {what}");
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
