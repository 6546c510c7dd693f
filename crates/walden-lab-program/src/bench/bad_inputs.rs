//! `walden bench bad-inputs`: tests how archivers treat files that must not be archived.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use walden_lab::{Cluster, ClusterBuilder, Installation, StopMode, Wanted, find_or_install};

use crate::terminal::Format;
use crate::{FOUND, terminal};

/// Offer files that must not be archived to `walden archive push`, pgBackRest and Barman
#[derive(Args, Debug)]
#[command(after_help = "\
Each file is offered to an archive that has one good segment, and then asked for again. Whether a later restore gets it is what counts: \
an archiver that has said 0 has told PostgreSQL that it may remove its own copy.

pgBackRest and Barman are measured if they are installed. Barman's program for servers, barman-wal-archive, reaches Barman by ssh; here \
a script of that name runs the same command on this machine. Barman looks at what it has received later, in `barman archive-wal`.

Exit status: 0 Walden has refused every file; 1 it has not.")]
pub struct BadInputsArgs {
    /// The PostgreSQL version that writes the WAL; pgBackRest and Barman must know it
    #[arg(long, value_name = "VERSION", default_value = "15")]
    pg: Wanted,

    /// The older version
    #[arg(long, value_name = "VERSION", default_value = "14")]
    older: Wanted,

    /// How to print it: a table is in Markdown
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The results of all archivers.
#[derive(Serialize, Debug)]
struct Outcomes {
    postgresql: String,
    older_postgresql: String,
    archivers: Vec<String>,
    rows: Vec<Row>,
}

/// One file, offered to each archiver.
#[derive(Serialize, Debug)]
struct Row {
    input: &'static str,
    archivers: Vec<Answer>,
}

/// The response of an archiver to a file.
#[derive(Serialize, Debug)]
struct Answer {
    archiver: String,
    /// The exit status of the command that `archive_command` would run.
    status: i32,
    /// The content that the archive returns for that name afterwards.
    restored: Restored,
    /// The last line of its output.
    message: String,
}

/// The content that an archive returns for a name.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
enum Restored {
    Nothing,
    /// The content that was archived under that name before.
    FirstContent,
    /// The content that must not be archived.
    BadContent,
    /// Other content.
    OtherContent,
}

/// Runs the command.
pub fn run(args: &BadInputsArgs) -> Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let material = Material::make(find_or_install(args.pg)?, find_or_install(args.older)?)?;
    let archivers = archivers(folder.path(), material.data.as_path())?;
    let mut rows = Vec::new();
    for (number, input) in material.inputs().into_iter().enumerate() {
        let mut answers = Vec::new();
        for archiver in &archivers {
            let place = folder.path().join(format!("{}-{number}", archiver.name));
            answers.push(offer(archiver, &place, &input)?);
            let _ = fs::remove_dir_all(&place);
        }
        rows.push(Row { input: input.what, archivers: answers });
    }
    let outcomes = Outcomes {
        postgresql: material.version.clone(),
        older_postgresql: material.older_version.clone(),
        archivers: archivers.iter().map(|archiver| archiver.title.clone()).collect(),
        rows,
    };
    terminal::show(args.format, || &outcomes, || table(&outcomes))?;
    let is_refused = |row: &Row| row.archivers.iter().all(|one| one.archiver != WALDEN || one.status != 0);
    Ok(if outcomes.rows.iter().all(is_refused) { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn table(outcomes: &Outcomes) -> String {
    let mut text = format!("| offered | {} |\n", outcomes.archivers.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(outcomes.archivers.len()));
    for row in &outcomes.rows {
        let cells: Vec<String> = row.archivers.iter().map(Answer::cell).collect();
        let _ = writeln!(text, "| {} | {} |", row.input, cells.join(" | "));
    }
    text
}

impl Answer {
    fn cell(&self) -> String {
        let said = match self.status {
            0 => "**0, accepted**".to_owned(),
            status => format!("{status}, refused"),
        };
        match self.restored {
            Restored::Nothing if self.status == 0 => format!("{said}, and gone"),
            Restored::Nothing => said,
            Restored::FirstContent => format!("{said}; the first content is restored"),
            Restored::BadContent => format!("{said}; **restored as it is**"),
            Restored::OtherContent => format!("{said}; **something else is restored**"),
        }
    }
}

/// A file that must not be archived, and a valid file that is archived before it.
struct Input {
    what: &'static str,
    /// The file that is archived before.
    first: (String, Vec<u8>),
    name: String,
    content: Vec<u8>,
}

/// Segments of two servers that diverged from the same backup, of another cluster, and of an older version.
struct Material {
    version: String,
    older_version: String,
    /// A data directory of the first cluster, for archivers that read one.
    data: PathBuf,
    /// Keeps the data directory.
    _cluster: Cluster,
    first: (String, Vec<u8>),
    second: (String, Vec<u8>),
    other_way: (String, Vec<u8>),
    foreign: Vec<u8>,
    older: Vec<u8>,
}

impl Material {
    fn make(installation: Installation, older: Installation) -> Result<Material> {
        let base = ClusterBuilder::new(installation.clone()).start()?;
        base.client("postgres")?.batch_execute("CREATE TABLE t (v text)")?;
        base.stop(StopMode::Fast)?;
        let backup = base.dir().join("backup");
        base.copy_data(&backup)?;
        let one = start_copy(&installation, &base, &backup)?;
        let (first, second) = (segment(&one, "one")?, segment(&one, "two")?);
        let other = start_copy(&installation, &base, &backup)?;
        let other_way = segment(&other, "another")?;
        ensure!(other_way.0 == first.0 && other_way.1 != first.1, "the servers did not go different ways");
        let old = ClusterBuilder::new(older).start()?;
        let foreign = other_segment(&ClusterBuilder::new(installation).start()?, &first.0)?;
        let older = other_segment(&old, &first.0)?;
        Ok(Material {
            version: one.version().to_owned(),
            older_version: old.version().to_owned(),
            data: one.data_dir(),
            _cluster: one,
            first,
            second,
            other_way,
            foreign,
            older,
        })
    }

    fn inputs(&self) -> Vec<Input> {
        let (name, good) = &self.second;
        let input = |what, name: &str, content| Input {
            what,
            first: self.first.clone(),
            name: name.to_owned(),
            content,
        };
        let mut broken = good.clone();
        // After the page header, and well before the end of the records.
        broken[100_000] ^= 1;
        let history = |reason: &str| format!("1\t0/5000000\t{reason}\n").into_bytes();
        let other_history = Input {
            what: "another history under the same name",
            first: ("00000002.history".to_owned(), history("no recovery target specified")),
            name: "00000002.history".to_owned(),
            content: history("before 2026-11-20 10:00:00+00"),
        };
        vec![
            input("random bytes", name, random(good.len())),
            input("an empty file", name, Vec::new()),
            input("a segment cut in half", name, good[..good.len() / 2].to_vec()),
            input("a segment under another's name", name, self.first.1.clone()),
            input("a record with a flipped bit", name, broken),
            // The names match the content, so that only the cluster or version is wrong.
            input("a segment of another cluster", &name_of(&self.foreign), self.foreign.clone()),
            input("a segment of an older version", &name_of(&self.older), self.older.clone()),
            input("other content under the same name", &self.other_way.0, self.other_way.1.clone()),
            other_history,
        ]
    }
}

/// Starts a copy of a stopped cluster; `backup` is its data directory without its WAL.
fn start_copy(installation: &Installation, base: &Cluster, backup: &Path) -> Result<Cluster> {
    let wal = base.data_dir().join("pg_wal");
    ClusterBuilder::new(installation.clone()).copy_of(backup).start_after(|data| {
        for entry in fs::read_dir(&wal)? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.is_file()) {
                fs::copy(&path, data.join("pg_wal").join(name))?;
            }
        }
        Ok(())
    })
}

/// Returns the name of a segment according to its first page.
fn name_of(content: &[u8]) -> String {
    let number = |at: usize, bytes: usize| {
        content[at..at + bytes].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    let segment = number(8, 8) / content.len() as u64;
    format!("{:08X}{:08X}{:08X}", number(4, 4), segment >> 8, segment & 0xFF)
}

/// Returns a segment with a later name than `name`, so that archivers can reject it only because of its
/// cluster.
fn other_segment(cluster: &Cluster, name: &str) -> Result<Vec<u8>> {
    loop {
        let (found, content) = segment(cluster, "foreign")?;
        if found.as_str() > name {
            return Ok(content);
        }
    }
}

/// Fills a segment with work. Returns its name and content.
fn segment(cluster: &Cluster, word: &str) -> Result<(String, Vec<u8>)> {
    let mut client = cluster.client("postgres")?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS t (v text)")?;
    client.batch_execute("SELECT pg_switch_wal()")?;
    let name: String = client.query_one("SELECT pg_walfile_name(pg_current_wal_insert_lsn())", &[])?.get(0);
    client.batch_execute(&format!(
        "INSERT INTO t SELECT '{word}' || md5(i::text) FROM generate_series(1, 20000) i"
    ))?;
    client.batch_execute("SELECT pg_switch_wal()")?;
    let path = cluster.data_dir().join("pg_wal").join(&name);
    let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((name, content))
}

/// Returns pseudorandom bytes (xorshift).
fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut content: Vec<u8> = std::iter::repeat_with(&mut next).take(bytes.div_ceil(8)).flatten().collect();
    content.truncate(bytes);
    content
}

/// An archiver: its commands as shell scripts, with `$repo` for its archive and `$file`, `$name` and
/// `$target`.
struct Archiver {
    name: &'static str,
    title: String,
    /// Creates an empty archive.
    prepare: String,
    push: String,
    /// Work that the archiver does later on its own.
    later: String,
    get: String,
}

const WALDEN: &str = "walden";

fn archivers(folder: &Path, data: &Path) -> Result<Vec<Archiver>> {
    let program = crate::programs::path_of("walden")?;
    let program = program.display();
    let mut archivers = vec![Archiver {
        name: WALDEN,
        title: format!("Walden {}", env!("CARGO_PKG_VERSION")),
        prepare: format!("{program} archive init --repo $repo/archive -o $repo/walden.toml"),
        push: format!("{program} archive push --look-ahead 0 --repo $repo/archive $file"),
        later: String::new(),
        get: format!("{program} archive get --prefetch 0 --repo $repo/archive $name $target"),
    }];
    if let Some(version) = version_of("pgbackrest", "version") {
        let command = "pgbackrest --config=$repo/conf --stanza=main";
        archivers.push(Archiver {
            name: "pgbackrest",
            title: version,
            prepare: format!(
                "printf '[main]\\npg1-path={}\\n[global]\\nrepo1-path=%s\\nlog-path=%s\\nlock-path=%s\\nspool-path=%s\\n\
                 log-level-file=off\\nlog-level-console=warn\\n' $repo/repo $repo $repo $repo > $repo/conf\n\
                 {command} --no-online stanza-create",
                data.display()
            ),
            push: format!("{command} archive-push $file"),
            later: String::new(),
            get: format!("{command} archive-get $name $target"),
        });
    }
    if version_of("barman-wal-archive", "--version").is_some()
        && let Some(version) = version_of("barman", "--version")
    {
        let programs = folder.join("bin");
        fs::create_dir(&programs)?;
        write_program(&programs.join("ssh"), SSH)?;
        archivers.push(Archiver {
            name: "barman",
            title: format!("Barman {}", version.split(' ').next().unwrap_or_default()),
            prepare: "printf '[barman]\\nbarman_home=%s\\nbarman_user=%s\\nlog_file=%s/log\\nbarman_lock_directory=%s\\n\
                      [main]\\ndescription=main\\nconninfo=host=/nowhere\\narchiver=on\\nbackup_method=rsync\\n\
                      backup_options=concurrent_backup\\nssh_command=true\\n' $repo/home $(id -un) $repo $repo > $repo/conf"
                .to_owned(),
            push: format!(
                "PATH={}:$PATH barman-wal-archive --config $repo/conf localhost main $file",
                programs.display()
            ),
            later: "barman -q -c $repo/conf archive-wal main".to_owned(),
            get: "barman -q -c $repo/conf get-wal main $name > $target".to_owned(),
        });
    }
    Ok(archivers)
}

/// A substitute for ssh that ignores options and the host, and runs the command locally.
const SSH: &str = "\
while [ $# -gt 0 ]; do case $1 in -p) shift 2;; -*) shift;; *) break;; esac; done
shift
exec sh -c \"$*\"
";

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Returns the first line of a program's version output; `None` if the program is not installed.
fn version_of(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
}

fn offer(archiver: &Archiver, place: &Path, input: &Input) -> Result<Answer> {
    let offered = place.join("pg_wal");
    fs::create_dir_all(&offered)?;
    let variables = |name: &str| {
        vec![
            ("repo", place.to_owned()),
            ("file", offered.join(name)),
            ("name", PathBuf::from(name)),
            ("target", place.join("target")),
        ]
    };
    let (first, content) = &input.first;
    fs::write(offered.join(first), content)?;
    for script in [&archiver.prepare, &archiver.push, &archiver.later] {
        let (status, output) = shell(script, &variables(first))?;
        ensure!(status == 0, "{} does not take a good file: {script}\n{output}", archiver.title);
    }
    fs::write(offered.join(&input.name), &input.content)?;
    let (status, output) = shell(&archiver.push, &variables(&input.name))?;
    let (_, later) = shell(&archiver.later, &variables(&input.name))?;
    let (got, _) = shell(&archiver.get, &variables(&input.name))?;
    let restored = match fs::read(place.join("target")) {
        Ok(restored) if got == 0 && restored == input.content => Restored::BadContent,
        Ok(restored) if got == 0 && input.name == *first && restored == *content => Restored::FirstContent,
        Ok(_) if got == 0 => Restored::OtherContent,
        _ => Restored::Nothing,
    };
    let printed = output + &later;
    let message = printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
    Ok(Answer { archiver: archiver.name.to_owned(), status, restored, message })
}

/// Runs a script. Returns its exit status and its output.
fn shell(script: &str, variables: &[(&str, PathBuf)]) -> Result<(i32, String)> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.output().context("cannot run sh")?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&printed).into_owned()))
}
