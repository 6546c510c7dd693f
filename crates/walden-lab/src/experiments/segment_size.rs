//! `segment-size`: the same bytes copied in small and in large files, by the loops as published and by loops
//! over the same bytes; and archiving of segments of real clusters.
//!
//! The published loop over large files takes names from the folder of large files, but copies the files of
//! these names from the folder of small ones: it copies the number of large files, each of the size of a
//! small one.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};

use super::definition::{Case, CopyCommand};
use super::stage::{Stage, remove_folder};
use super::{Form, Lab};
use crate::account;
use crate::guard::Guard;
use crate::median;
use crate::sshd::{self, HOST, Sshd};
use walden_server::folder::temporary_folder;
use walden_server::programs::find_in_path;
use walden_server::signals;

/// Runs of each loop, whose median counts. A loop that takes longer than [`LONG_SECONDS`] is run once, as are
/// all loops in the quick form.
const REPEATS: usize = 3;
const LONG_SECONDS: f64 = 60.0;

/// Files of one size.
struct Files {
    case: String,
    megabytes: u32,
    folder: PathBuf,
    names: Vec<String>,
}

/// The files that a loop copies.
#[derive(Clone, Copy, PartialEq)]
enum Loop {
    /// Every file of the folder.
    All,
    /// The published loop: names from one folder, files from the other.
    AsPublished,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let megabytes = lab.size("megabytes");
    let guard = Guard::new(temporary_folder()?)?;
    lab.options.progress.phase("making files");
    let mut cases = lab.definition.cases.clone();
    cases.sort_by_key(|case| case.segment_megabytes);
    let sets = cases.iter().map(|case| make_files(&guard, case, megabytes)).collect::<Result<Vec<_>>>()?;
    let [small, large] = &sets[..] else { bail!("cannot compare sizes: expected two cases") };
    publish(lab, small, large);

    let mut explained = Vec::new();
    for command in lab.definition.commands.clone() {
        let Some(runner) = Runner::new(lab, &guard, &command)? else { continue };
        let mut seconds = Vec::new();
        for cold in [true, false] {
            for (files, from, which) in
                [(small, small, Loop::All), (large, large, Loop::All), (large, small, Loop::AsPublished)]
            {
                let name = phase_name(&command.name, cold, which);
                lab.options.progress.phase(&format!("{}: {name}", files.case));
                let median = runner.median(files, from, cold)?;
                lab.figures.add(&files.case, &name, "seconds", Some(median));
                if cold {
                    seconds.push(median);
                }
            }
        }
        explained.extend(explain(&command, small, large, &seconds));
    }
    let words: Vec<&str> = explained.iter().filter_map(|one| one["words"].as_str()).collect();
    if !words.is_empty() {
        lab.notes.push(format!("which of the two explains the published figures: {}", words.join("; ")));
    }
    lab.details.insert("explanation".into(), Value::Array(explained));
    let cached = small.cached_percent()?;
    lab.notes.push(match cached {
        Some(percent) => format!(
            "cold: each file was dropped from the page cache before its loop (posix_fadvise); {percent:.0} % of the bytes were still cached after that. Caches below the file system cannot be emptied from here"
        ),
        None => "cold: the cache was asked to let go of each file before its loop (posix_fadvise); without fincore \
                 (package util-linux-extra) it is not known whether it did"
            .into(),
    });
    drop(guard);
    for case in &cases {
        archive(lab, case, megabytes)?;
    }
    Ok(())
}

fn phase_name(command: &str, cold: bool, which: Loop) -> String {
    let cache = if cold { "cold" } else { "warm" };
    let published = if which == Loop::AsPublished { ", as published" } else { "" };
    format!("{command} {cache}{published}")
}

/// Adds the published seconds: those for large files belong to the loop as published.
fn publish(lab: &mut Lab<'_>, small: &Files, large: &Files) {
    for command in &lab.definition.commands {
        for (files, which) in [(small, Loop::All), (large, Loop::AsPublished)] {
            if let Some(seconds) = command.published.get(&files.megabytes.to_string()) {
                let phase = phase_name(&command.name, true, which);
                lab.figures.publish(format!("{}/{phase}/seconds", files.case), *seconds);
            }
        }
    }
}

/// Explains which of the two loops over large files is closer to the published ratio.
fn explain(command: &CopyCommand, small: &Files, large: &Files, seconds: &[f64]) -> Option<Value> {
    let published = |files: &Files| command.published.get(&files.megabytes.to_string()).copied();
    let ratio = published(small)? / published(large)?;
    let [of_small, of_large, as_published] = *seconds else { return None };
    let (same_bytes, printed) = (of_small / of_large, of_small / as_published);
    let distance = |other: f64| (other / ratio).ln().abs();
    let nearer = if distance(printed) < distance(same_bytes) {
        "the loop as published"
    } else {
        "the size of the files"
    };
    Some(json!({
        "command": command.name,
        "published_ratio": ratio,
        "same_bytes_ratio": same_bytes,
        "as_published_ratio": printed,
        "nearer": nearer,
        "words": format!(
            "{}: published {ratio:.2} times; with the same bytes {same_bytes:.2}, by the loop as published {printed:.2}: {nearer}",
            command.name
        ),
    }))
}

/// Creates files of one size with incompressible content.
fn make_files(guard: &Arc<Guard>, case: &Case, megabytes: u64) -> Result<Files> {
    let size = case.segment_megabytes.context("cannot create files: expected segment-megabytes")?;
    let count = megabytes.div_ceil(u64::from(size)).max(1);
    let folder = guard.dir().join(&case.name);
    fs::create_dir(&folder)?;
    let mut random = 0x9E37_79B9_7F4A_7C15 ^ u64::from(size);
    let mut names = Vec::new();
    for number in 1..=count {
        let name = format!("00000001{number:016X}");
        let mut file = File::create(folder.join(&name))?;
        let mut chunk = vec![0; 1 << 20];
        for _ in 0..size {
            for word in chunk.chunks_exact_mut(8) {
                // splitmix64
                random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut mixed = random;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
            }
            file.write_all(&chunk)?;
        }
        // The kernel cannot drop dirty pages from the page cache.
        file.sync_all()?;
        names.push(name);
    }
    Ok(Files { case: case.name.clone(), megabytes: size, folder, names })
}

impl Files {
    fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.names.iter().map(|name| self.folder.join(name))
    }

    /// Drops the files from the page cache (`cold`), or reads them into it.
    fn cache(&self, cold: bool) -> Result<()> {
        for path in self.paths() {
            let mut file = File::open(&path)?;
            if cold {
                fadvise(&file, 0, None, Advice::DontNeed)?;
            } else {
                std::io::copy(&mut file, &mut std::io::sink())?;
            }
        }
        Ok(())
    }

    /// Returns the share of the files in the page cache after dropping them, in per cent; `None` without
    /// `fincore`.
    fn cached_percent(&self) -> Result<Option<f64>> {
        self.cache(true)?;
        let output = Command::new("fincore").args(["-b", "-n", "-o", "RES"]).args(self.paths()).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let resident: u64 = text.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
        let all = self.names.len() as u64 * (u64::from(self.megabytes) << 20);
        Ok(Some(100.0 * resident as f64 / all.max(1) as f64))
    }
}

/// Runs a copy command, one process per file.
struct Runner<'a> {
    command: &'a CopyCommand,
    guard: &'a Arc<Guard>,
    sshd: Option<Sshd>,
    repeats: usize,
}

impl<'a> Runner<'a> {
    fn new(lab: &mut Lab<'_>, guard: &'a Arc<Guard>, command: &'a CopyCommand) -> Result<Option<Runner<'a>>> {
        let program = &command.run[0];
        if !program.contains('/') && find_in_path(program).is_none() {
            let CopyCommand { name, package, .. } = command;
            lab.unavailable.push(format!("{name}: {program} is not installed (package {package})"));
            return Ok(None);
        }
        let over_ssh = command.run.iter().any(|word| word.contains("{config}"));
        let mut sshd = None;
        if over_ssh {
            let Some(program) = sshd::program() else {
                lab.unavailable.push(format!(
                    "{}: sshd is not installed (package {})",
                    command.name,
                    sshd::PACKAGE
                ));
                return Ok(None);
            };
            match Sshd::start(&program, guard.dir()) {
                Ok(started) => sshd = Some(started),
                Err(error) => {
                    lab.unavailable.push(format!("{}: {error:#}", command.name));
                    return Ok(None);
                }
            }
        }
        let repeats = if lab.options.form == Form::Quick { 1 } else { REPEATS };
        Ok(Some(Runner { command, guard, sshd, repeats }))
    }

    /// Returns the median seconds of a loop over the names in `names` that copies the files of these names
    /// from `from`.
    fn median(&self, names: &Files, from: &Files, cold: bool) -> Result<f64> {
        let mut seconds = Vec::new();
        while seconds.len() < self.repeats && seconds.iter().sum::<f64>() < LONG_SECONDS {
            from.cache(cold)?;
            seconds.push(self.once(names, from)?);
        }
        Ok(median(seconds))
    }

    fn once(&self, names: &Files, from: &Files) -> Result<f64> {
        let to = self.guard.dir().join("to");
        remove_folder(&to)?;
        fs::create_dir(&to)?;
        account::chown(&to)?;
        fs::set_permissions(&to, Permissions::from_mode(0o755))?;
        let config = self.sshd.as_ref().map(|sshd| sshd.config.display().to_string()).unwrap_or_default();
        let clock = Instant::now();
        for name in &names.names {
            signals::wait_for_exit_if_interrupted();
            let file = from.folder.join(name);
            let words: Vec<String> = self
                .command
                .run
                .iter()
                .map(|word| {
                    let word = word.replace("{from}", &file.display().to_string());
                    let word = word.replace("{to}", &to.display().to_string());
                    word.replace("{config}", &config).replace("{host}", HOST)
                })
                .collect();
            let mut command = Command::new(&words[0]);
            let output = command.args(&words[1..]).stdin(Stdio::null()).output();
            let output = output.with_context(|| format!("cannot run {}", words[0]))?;
            if !output.status.success() {
                let error = String::from_utf8_lossy(&output.stderr);
                let log = self.sshd.as_ref().map(Sshd::log_tail).unwrap_or_default();
                bail!("cannot copy: {} failed ({}): {} {log}", words.join(" "), output.status, error.trim());
            }
        }
        let seconds = clock.elapsed().as_secs_f64();
        let copied = bytes_in(&to)?;
        let expected = names.names.len() as u64 * (u64::from(from.megabytes) << 20);
        ensure!(
            copied == expected,
            "cannot use the times of {}: expected {expected} bytes copied, found {copied}",
            self.command.name
        );
        remove_folder(&to)?;
        Ok(seconds)
    }
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}

/// Measures the time that a cluster's archiver takes to archive the same bytes, all written before.
fn archive(lab: &mut Lab<'_>, case: &Case, megabytes: u64) -> Result<()> {
    const PHASE: &str = "archive_command";
    let mut case = case.clone();
    // Without an archive_command the archiver waits, so that all segments exist when it is set.
    for (name, value) in
        [("archive_mode", "on"), ("archive_command", ""), ("max_wal_size", "100GB"), ("autovacuum", "off")]
    {
        case.settings.insert(name.into(), value.into());
    }
    let mut stage = Stage::start(lab, &case, false)?;
    let mut client = stage.client()?;
    client.batch_execute("CREATE TABLE filler (t text); ALTER TABLE filler ALTER t SET STORAGE EXTERNAL")?;
    lab.options.progress.phase(&format!("{}: writing WAL", case.name));
    let (_, phase) = stage.phase("fill", |_| {
        // About 1 MB of WAL per statement: incompressible values, stored out of line.
        for _ in 0..megabytes.max(1) {
            client.batch_execute(
                "INSERT INTO filler SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 31000)",
            )?;
            client.batch_execute("TRUNCATE filler")?;
        }
        Ok(())
    })?;
    client.batch_execute("SELECT pg_switch_wal()")?;
    drop(client);
    let cluster = stage.cluster().context("cannot archive: expected a new cluster")?;
    let waiting = |cluster: &crate::Cluster| -> Result<u64> {
        let entries = fs::read_dir(cluster.data_dir().join("pg_wal/archive_status"))?;
        Ok(entries.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".ready")).count()
            as u64)
    };
    let files = waiting(cluster)?;
    let folder = cluster.archive_dir();
    let command = format!("cp \"%p\" \"{}/%f\"", folder.display());
    lab.options.progress.phase(&format!("{}: archiving", case.name));
    cluster.configure(&[("archive_command", command.as_str())])?;
    let clock = Instant::now();
    cluster.reload();
    while waiting(cluster)? > 0 {
        signals::wait_for_exit_if_interrupted();
        ensure!(
            cluster.is_running() && clock.elapsed() < Duration::from_secs(3600),
            "cannot measure archiving: the archiver has not archived all segments in time"
        );
        // The archiver searches for segments when a backend signals a new one, and once a minute. A segment
        // switch signals it.
        if clock.elapsed() > Duration::from_millis(500) && bytes_in(&folder)? == 0 {
            stage.client()?.batch_execute("SELECT txid_current(); SELECT pg_switch_wal()")?;
            thread::sleep(Duration::from_millis(300));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let seconds = clock.elapsed().as_secs_f64();
    let archived = bytes_in(&folder)?;
    ensure!(archived > 0, "cannot measure archiving: expected archived segments, found none");
    let figures = &mut lab.figures;
    figures.add(&case.name, PHASE, "seconds", Some(seconds));
    figures.add(&case.name, PHASE, "files", Some(files as f64));
    figures.add(&case.name, PHASE, "archived_mb", Some(super::report::megabytes(archived)));
    figures.add(&case.name, PHASE, "wal_mb", Some(super::report::megabytes(super::stage::bytes(&phase))));
    lab.runs.push(stage.finish(&lab.definition.about, &lab.definition.name, &mut |_, _| Ok(()))?);
    Ok(())
}
