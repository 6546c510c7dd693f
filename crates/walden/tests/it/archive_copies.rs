//! Several repositories: pushes, outages, restores, and copying between repositories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use postgres::Client;
use walden_format::lsn::SegmentName;
use walden_format::rmgr::rmid;
use walden_format::version::Major;
use walden_lab::{Cluster, ClusterBuilder, StopMode};
use walden_testing::writer::LogWriter;
use walden_testing::{Missing, Outcome, postgres};

use crate::archive::{content, json, program_for, recovered, text, wait_until_archived, work};
use crate::archive_care::{Exporter, parse};
use crate::material::{Run, golden, make_archive, walden};

walden_testing::tests! {
    each_repository_gets_all_files_and_can_be_restored_from on [15, 19],
    outages_of_one_of_two_repositories_lose_nothing on [17],
    damaged_and_missing_objects_come_back_from_another_repository,
    an_encrypted_repository_copies_from_a_plain_one,
    a_push_needs_as_many_repositories_as_are_to_acknowledge,
    impossible_lists_of_repositories_are_refused,
    histories_of_two_servers_are_not_mixed,
    repositories_of_two_clusters_are_not_compared,
    damage_of_a_later_repository_is_reported_and_repaired,
    the_exporter_serves_metrics_of_each_repository,
    a_service_brings_a_repository_up_to_date_on_its_own,
    one_bucket_under_two_spellings_is_refused,
}

/// A server that archives into several repositories.
struct Site {
    primary: Cluster,
    config: PathBuf,
    repos: Vec<PathBuf>,
    backup: PathBuf,
    get: String,
}

impl Site {
    fn new(version: u32, settings: &str) -> Result<Site, Missing> {
        let primary = ClusterBuilder::new(postgres(version)?).wal_segsize_mb(1).start().unwrap();
        let program = program_for(&primary);
        let folder = primary.make_folder("repos").unwrap();
        let repos = ["one", "two"].map(|name| folder.join(name)).to_vec();
        repos.iter().for_each(|repo| make_archive(repo));
        let config = folder.join("walden.toml");
        fs::write(&config, format!("[archive]\nrepo = [{:?}, {:?}]\n{settings}", repos[0], repos[1]))
            .unwrap();
        let command =
            |call: &str| format!("{} archive {call} --config {}", program.display(), config.display());
        let push = format!("{} %p", command("push"));
        primary.configure(&[("archive_mode", "on"), ("archive_command", &push)]).unwrap();
        primary.stop(StopMode::Fast).unwrap();
        let backup = primary.dir().join("backup");
        primary.copy_data(&backup).unwrap();
        primary.start().unwrap();
        let get = format!("{} %f \"%p\"", command("get"));
        Ok(Site { primary, config, repos, backup, get })
    }

    fn client(&self) -> Client {
        let mut client = self.primary.client("postgres").unwrap();
        client.batch_execute("CREATE TABLE IF NOT EXISTS t (id int, v text)").unwrap();
        client
    }

    fn run(&self, arguments: &[&str]) -> Run {
        walden(&[&["archive"], arguments, &["--config", text(&self.config)]].concat())
    }

    fn recover(&self) -> Cluster {
        let settings = [("restore_command", self.get.as_str()), ("archive_mode", "off")];
        recovered(&postgres_of(&self.primary), &self.backup, &settings)
    }
}

fn postgres_of(cluster: &Cluster) -> walden_lab::Installation {
    cluster.installation().clone()
}

/// Returns a repository that was renamed to its place. As below a mount point, a file that was being written
/// when it left is hidden.
pub fn come_back(repo: &Path) {
    while fs::rename(repo.with_extension("away"), repo).is_err() {
        assert!(!repo.join("README.txt").exists());
        fs::remove_dir_all(repo).unwrap_or_default();
    }
}

/// Returns the names of the archived files in a repository.
fn objects(repo: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![repo.join("wal")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120), "it takes too long");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn each_repository_gets_all_files_and_can_be_restored_from(version: u32) -> Outcome {
    let site = Site::new(version, "")?;
    let mut client = site.client();
    work(&mut client, 0);
    client.batch_execute("SELECT pg_switch_wal()").unwrap();
    wait_until_archived(&mut client);
    let expected = content(&mut client);
    let [one, two] = [objects(&site.repos[0]), objects(&site.repos[1])];
    assert_eq!(one, two);
    assert!(one.len() >= 4, "{one:?}");
    let status = site.run(&["status", "--pgdata", text(&site.primary.data_dir()), "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let missing: Vec<&serde_json::Value> =
        report["copies"].as_array().unwrap().iter().map(|copy| &copy["missing_files"]).collect();
    assert_eq!(missing, [0, 0], "{status:?}");

    // Each repository lacks or damages what the other one has.
    let removed = one.iter().step_by(2).map(|name| find(&site.repos[0], name));
    removed.for_each(|path| fs::remove_file(path).unwrap());
    for name in one.iter().skip(1).step_by(2) {
        damage(&find(&site.repos[1], name));
    }
    assert_eq!(content(&mut site.recover().client("postgres").unwrap()), expected);

    // An unreachable repository does not stand in the way either, but the end of the WAL stays unknown.
    fs::rename(&site.repos[1], site.repos[1].with_extension("away")).unwrap();
    let target = site.primary.dir().join("RECOVERYXLOG");
    let get = |name: &str| site.run(&["get", name, text(&target)]).code;
    assert_eq!(get(&one[1][..24]), 0);
    assert_eq!(get("0000000100000000000000FF"), 200);
    fs::rename(site.repos[1].with_extension("away"), &site.repos[1]).unwrap();
    assert_eq!(get("0000000100000000000000FF"), 1);
    Ok(())
}

fn find(repo: &Path, name: &str) -> PathBuf {
    let folder = repo.join("wal").join(&name[..8]).join(&name[8..16]);
    let path = folder.join(name);
    assert!(path.exists(), "{}", path.display());
    path
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    fs::write(path, bytes).unwrap();
}

/// One repository at a time is away at random moments, also while a file is pushed. Then both have all files.
fn outages_of_one_of_two_repositories_lose_nothing(version: u32) -> Outcome {
    let site = Site::new(version, "acknowledge = 1\n")?;
    let mut client = site.client();
    let mut random: u64 = 17;
    let mut next = |limit: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % limit
    };
    for round in 0..25 {
        let away = &site.repos[next(2) as usize];
        fs::rename(away, away.with_extension("away")).unwrap();
        let first = round * 4000;
        let insert =
            format!("INSERT INTO t SELECT i, md5(i::text) FROM generate_series({first}, {first} + 3999) i");
        client.batch_execute(&insert).unwrap();
        client.batch_execute("SELECT pg_switch_wal()").unwrap();
        std::thread::sleep(Duration::from_millis(next(300)));
        come_back(away);
        std::thread::sleep(Duration::from_millis(next(100)));
    }
    let note = site.primary.data_dir().join("pg_wal/walden-behind");
    assert!(note.exists(), "no outage was noticed");
    // The next push that reaches both repositories starts copying in the background.
    client.batch_execute("CREATE TABLE last (i int); SELECT pg_switch_wal()").unwrap();
    // Pushes during which both repositories were away fail, and are repeated.
    const WAITING: &str = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    wait(|| client.query_one(WAITING, &[]).unwrap().get::<_, i64>(0) == 0);
    wait(|| !note.exists());
    let all = objects(&site.repos[0]);
    assert_eq!(all, objects(&site.repos[1]));
    for repo in &site.repos {
        let run = walden(&["archive", "verify", "--repo", text(repo)]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    let expected = content(&mut client);
    for repo in &site.repos {
        fs::rename(repo, repo.with_extension("away")).unwrap();
        // Recovery ends where both repositories end, so the other one must be named alone.
        let other = site.repos.iter().find(|other| *other != repo).unwrap();
        let get = site.get.replace("--config", &format!("--repo {} --config", other.display()));
        let settings = [("restore_command", get.as_str()), ("archive_mode", "off")];
        let server = recovered(&postgres_of(&site.primary), &site.backup, &settings);
        assert_eq!(content(&mut server.client("postgres").unwrap()), expected);
        fs::rename(repo.with_extension("away"), repo).unwrap();
    }
    Ok(())
}

/// An archive of two segments of PostgreSQL 18, in a folder.
fn archive_with_segments(folder: &Path, name: &str) -> PathBuf {
    let (repo, wal) = (folder.join(name), folder.join("pg_wal"));
    make_archive(&repo);
    fs::create_dir_all(&wal).unwrap();
    for (segment, bytes) in golden("18.6").into_iter().take(2) {
        let path = wal.join(segment);
        fs::write(&path, bytes).unwrap();
        let run = walden(&["archive", "push", "--repo", text(&repo), text(&path)]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    repo
}

fn damaged_and_missing_objects_come_back_from_another_repository() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, third] = ["one", "two", "third"].map(|name| archive_with_segments(folder.path(), name));
    let names = objects(&one);
    let verify = |repo: &Path| walden(&["archive", "verify", "--repo", text(repo)]).code;
    let repair = |from: &[&Path]| {
        let mut arguments = vec!["archive", "repair", "--repo", text(&one)];
        from.iter().for_each(|from| arguments.extend(["--from", text(from)]));
        walden(&arguments)
    };
    damage(&find(&one, &names[0]));
    fs::remove_file(find(&one, &names[1])).unwrap();
    // Without an intact copy, the damaged object stays.
    damage(&find(&two, &names[0]));
    let before = fs::read(find(&one, &names[0])).unwrap();
    let run = repair(&[&two]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("NOT COPIED") && run.stdout.contains(&names[0][..24]), "{run:?}");
    assert_eq!(fs::read(find(&one, &names[0])).unwrap(), before);
    let run = repair(&[&two, &third]);
    assert_eq!((run.code, verify(&one)), (0, 0), "{run:?}");
    assert_eq!(objects(&one), names);

    // The segments of a damaged pack become objects of their own.
    let pack = walden(&["archive", "pack", "--repo", text(&one), "--segments", "2", "--keep", "0"]);
    let packs: Vec<String> = objects(&one).into_iter().filter(|name| name.ends_with(".wpk")).collect();
    assert_eq!(packs.len(), 1, "{pack:?}");
    // A pack is copied as it is to an archive without its segments, and not to one that has them.
    let new = folder.path().join("new");
    make_archive(&new);
    for (target, expected) in [(&new, &packs), (&third, &names)] {
        let run = walden(&["archive", "copy", "--repo", text(target), "--from", text(&one)]);
        assert_eq!((run.code, &objects(target)), (0, expected), "{run:?}");
    }
    damage(&find(&one, &packs[0]));
    let run = repair(&[&third]);
    assert_eq!((run.code, verify(&one)), (0, 0), "{run:?}");
    assert_eq!(objects(&one), names);

    // Another cluster's archive is no source.
    let foreign = folder.path().join("foreign");
    make_archive(&foreign);
    let (segment, bytes) = golden("17.10").into_iter().next().unwrap();
    let path = folder.path().join(segment);
    fs::write(&path, bytes).unwrap();
    assert_eq!(walden(&["archive", "push", "--repo", text(&foreign), text(&path)]).code, 0);
    let run = walden(&["archive", "copy", "--repo", text(&one), "--from", text(&foreign)]);
    assert!(run.code == 3 && run.stderr.contains("belongs to another cluster"), "{run:?}");
    assert_eq!(objects(&one), names);
}

fn an_encrypted_repository_copies_from_a_plain_one() {
    let folder = tempfile::tempdir().unwrap();
    let plain = archive_with_segments(folder.path(), "plain");
    let identity = folder.path().join("restore.key");
    let run = walden(&["archive", "key", "generate", "-o", text(&identity)]);
    let recipient = run.stdout.split_whitespace().find(|word| word.starts_with("age1")).unwrap();
    let (sealed, config) = (folder.path().join("sealed"), folder.path().join("walden.toml"));
    let run = walden(&[
        "archive",
        "init",
        "--repo",
        text(&sealed),
        "--recipient",
        recipient,
        "-o",
        text(&folder.path().join("own.toml")),
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    // The archive has a recipient of its own, whose key is encrypted to the user's.
    let written = fs::read_to_string(folder.path().join("own.toml")).unwrap();
    let written: toml::Table = written.parse().unwrap();
    let recipient = written["archive"]["recipient"].as_str().unwrap();
    let list = format!(
        "[archive]\nidentity = {identity:?}\nrepo = [{plain:?}, {{ url = {sealed:?}, recipient = {recipient:?}, level = 1 }}]\n"
    );
    fs::write(&config, list).unwrap();
    let copy = || walden(&["archive", "copy", "--config", text(&config)]);
    let run = copy();
    assert!(run.code == 0 && run.stdout.contains("2 of 2 missing files copied"), "{run:?}");
    let stored: Vec<String> = objects(&sealed);
    assert!(stored.len() == 2 && stored.iter().all(|name| name.ends_with(".age")), "{stored:?}");
    // Now in the other direction.
    fs::remove_file(find(&plain, &objects(&plain)[0])).unwrap();
    let run = copy();
    assert!(run.code == 0 && run.stdout.contains("1 of 1 missing file copied"), "{run:?}");
    for repo in [&plain, &sealed] {
        let run = walden(&["archive", "verify", "--repo", text(repo), "--config", text(&config)]);
        assert_eq!(run.code, 0, "{run:?}");
    }
    let again = json(&["archive", "copy", "--config", text(&config), "--format", "json"]);
    assert!(again.as_array().unwrap().iter().all(|copied| copied["missing"] == 0), "{again}");
}

fn a_push_needs_as_many_repositories_as_are_to_acknowledge() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    [&one, &two].into_iter().for_each(|repo| make_archive(repo));
    let config = folder.path().join("walden.toml");
    let (segment, bytes) = golden("18.6").into_iter().next().unwrap();
    let path = folder.path().join(&segment);
    fs::write(&path, bytes).unwrap();
    let push = |acknowledge: usize| {
        fs::write(&config, format!("[archive]\nrepo = [{one:?}, {two:?}]\nacknowledge = {acknowledge}\n"))
            .unwrap();
        walden(&["archive", "push", "--config", text(&config), text(&path)])
    };
    fs::rename(&two, two.with_extension("away")).unwrap();
    let run = push(2);
    assert!(run.code == 1 && run.stderr.contains("cannot find an archive in"), "{run:?}");
    // The repository that has the file does not count twice.
    assert_eq!(push(2).code, 1);
    let run = push(1);
    assert!(run.code == 0 && run.stderr.contains("not archived in"), "{run:?}");
    assert!(!two.exists(), "nothing is written below a mount point");
    // Each repository that failed is named.
    fs::rename(&one, one.with_extension("away")).unwrap();
    let run = push(2);
    assert!(run.code == 1 && [&one, &two].iter().all(|repo| run.stderr.contains(text(repo))), "{run:?}");
    fs::rename(one.with_extension("away"), &one).unwrap();
    fs::rename(two.with_extension("away"), &two).unwrap();
    assert_eq!(push(2).code, 0);
    assert_eq!(objects(&one), objects(&two));
    // A file that differs is refused, whichever repository has the other one.
    let other = golden("18.6").into_values().nth(1).unwrap();
    fs::write(&path, other).unwrap();
    assert_eq!(push(1).code, 1);
}

fn impossible_lists_of_repositories_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("walden.toml");
    for (lines, expected) in [
        ("repo = [\"/a\", \"/a\"]", "expected each repository once, found /a twice"),
        (
            "repo = [\"/a\", \"/b\"]\nacknowledge = 3",
            "acknowledge in [archive]: expected 1 to 2 (repo), found 3",
        ),
        (
            "repo = [\"/a\", \"/b\"]\nacknowledge = 0",
            "acknowledge in [archive]: expected 1 to 2 (repo), found 0",
        ),
        ("repo = 5", "expected a path or URL, or a list of them"),
        ("repo = [{ url = \"/a\", lvl = 3 }]", "unknown field `lvl`"),
        ("repo = [{ level = 3 }]", "missing field `url`"),
        ("repo = [{ url = \"/a\", level = 10 }]", "expected 0 to 9, found 10"),
    ] {
        fs::write(&config, format!("[archive]\n{lines}\n")).unwrap();
        let run = Run::execute(Command::new(env!("CARGO_BIN_EXE_walden")).args([
            "archive",
            "list",
            "--config",
            text(&config),
        ]));
        assert!(run.code == 3 && run.stderr.contains(expected), "{lines}: {run:?}");
    }
}

/// One of two repositories has a segment with the same name of another cluster.
fn repositories_of_two_clusters_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let [own, foreign] = ["own", "foreign"].map(|name| folder.path().join(name));
    let (config, segment) =
        (folder.path().join("walden.toml"), folder.path().join("000000010000000000000005"));
    let configure = |repos: [&Path; 2]| {
        fs::write(&config, format!("[archive]\nrepo = [{:?}, {:?}]\nacknowledge = 1\n", repos[0], repos[1]))
            .unwrap();
    };
    for (repo, system_id) in [(&own, 77), (&foreign, 78)] {
        make_archive(repo);
        let mut writer = LogWriter::new(Major::V18);
        (writer.info.timeline, writer.info.system_id) = (1, system_id);
        for _ in 0..system_id {
            writer.main_data(rmid::XLOG, 0x20, &[0x5a; 200]);
        }
        writer.switch();
        fs::write(&segment, &writer.bytes).unwrap();
        assert_eq!(walden(&["archive", "push", "--repo", text(repo), text(&segment)]).code, 0);
    }
    for repos in [[&own, &foreign], [&foreign, &own]] {
        configure(repos.map(PathBuf::as_path));
        let run = walden(&["archive", "check", "--config", text(&config)]);
        assert!(run.code == 1 && run.stdout.contains("belongs to another cluster"), "{run:?}");
        assert!(
            !["lacks", "damaged", "archive copy", "archive repair"].iter().any(|it| run.stdout.contains(it)),
            "{run:?}"
        );
        let run = walden(&["archive", "status", "--config", text(&config)]);
        assert!(run.code == 1 && run.stdout.contains("belongs to another cluster"), "{run:?}");
        // No server's data directory shows which cluster is meant.
        let target = folder.path().join("got");
        let name = segment.file_name().unwrap().to_str().unwrap();
        let run = walden(&["archive", "get", "--config", text(&config), name, text(&target)]);
        assert!(run.code == 200 && run.stderr.contains("belongs to another cluster"), "{run:?}");
        assert!(!target.exists());
        // The file is of the cluster 78, and its own repository has it.
        let run = walden(&["archive", "push", "--config", text(&config), text(&segment)]);
        assert!(run.code == 0 && run.stderr.contains("give each cluster its own archive"), "{run:?}");
        assert!(!run.stderr.contains("archive copy"), "{run:?}");
    }
}

/// Writes five segments of 1 MB. Those from the third on differ between the two servers.
fn segments_of(server: u8) -> Vec<(String, Vec<u8>)> {
    let mut writer = LogWriter::new(Major::V18);
    writer.info.timeline = 1;
    let (size, start) = (writer.info.segment_size, writer.start);
    for number in 0..5 {
        let count = if number < 2 { 10 } else { 10 + server };
        for _ in 0..count {
            writer.main_data(rmid::XLOG, 0x20, &[0x5a; 200]);
        }
        writer.switch();
    }
    let numbered = writer.bytes.chunks(1 << 20).zip(size.segment_of(start)..);
    numbered.map(|(bytes, number)| (SegmentName::new(1, number, size).to_string(), bytes.to_vec())).collect()
}

fn histories_of_two_servers_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let repos = ["original", "clone"].map(|name| folder.path().join(name));
    for (repo, server) in repos.iter().zip([0, 1]) {
        make_archive(repo);
        let wal = folder.path().join(format!("wal{server}"));
        fs::create_dir(&wal).unwrap();
        for (name, bytes) in segments_of(server) {
            fs::write(wal.join(&name), bytes).unwrap();
            let run = walden(&["archive", "push", "--repo", text(repo), text(&wal.join(&name))]);
            assert_eq!(run.code, 0, "{run:?}");
        }
    }
    let config = folder.path().join("walden.toml");
    fs::write(&config, format!("[archive]\nrepo = [{:?}, {:?}]\n", repos[0], repos[1])).unwrap();
    let names: Vec<String> = segments_of(0).into_iter().map(|(name, _)| name).collect();
    let target = folder.path().join("RECOVERYXLOG");
    let get = |name: &str| walden(&["archive", "get", "--config", text(&config), name, text(&target)]);
    let object = |repo: &Path, name: &str| find(repo, &format!("{name}.wlz"));
    // A segment from before the histories part is taken from either.
    fs::remove_file(object(&repos[0], &names[1])).unwrap();
    assert_eq!(get(&names[1]).code, 0);
    // One from after that is not, whether the first repository lacks it or has it damaged.
    let kept = fs::read(object(&repos[0], &names[3])).unwrap();
    damage(&object(&repos[0], &names[3]));
    let expect_refused = || {
        let run = get(&names[3]);
        assert!(run.code == 200 && !run.stderr.contains("WARNING"), "{run:?}");
    };
    expect_refused();
    let repair = walden(&["archive", "repair", "--repo", text(&repos[0]), "--from", text(&repos[1])]);
    assert!(
        repair.code == 1 && repair.stdout.contains("does not continue the WAL of the other repositories"),
        "{repair:?}"
    );
    fs::remove_file(object(&repos[0], &names[3])).unwrap();
    expect_refused();
    let before = objects(&repos[0]);
    let copy = walden(&["archive", "copy", "--repo", text(&repos[0]), "--from", text(&repos[1])]);
    assert!(
        copy.code == 1 && copy.stdout.contains("does not continue the WAL of the other repositories"),
        "{copy:?}"
    );
    assert_eq!(objects(&repos[0]), before);
    fs::write(repos[0].join("wal/00000001/00000000").join(format!("{}.wlz", names[3])), kept).unwrap();
    assert_eq!(get(&names[3]).code, 0);

    // A source that does not exist has nothing to copy, which is no success.
    let nowhere = folder.path().join("nowhere");
    let copy = walden(&["archive", "copy", "--repo", text(&repos[0]), "--from", text(&nowhere)]);
    assert!(copy.code == 3 && copy.stderr.contains("cannot find an archive"), "{copy:?}");
    // The same folder under two spellings is one copy.
    let twice = format!("[archive]\nrepo = [{:?}, \"{}/\"]\n", repos[0], repos[0].display());
    fs::write(&config, twice).unwrap();
    let path = folder.path().join("wal0").join(&names[4]);
    let run = walden(&["archive", "push", "--config", text(&config), text(&path)]);
    assert!(run.code != 0 && run.stderr.contains("expected different ones"), "{run:?}");
}

/// Two repositories with the same segments, and their configuration.
fn two_repositories(folder: &Path) -> ([PathBuf; 2], PathBuf) {
    let repos = ["one", "two"].map(|name| archive_with_segments(folder, name));
    let config = folder.join("walden.toml");
    fs::write(&config, format!("[archive]\nrepo = [{:?}, {:?}]\n", repos[0], repos[1])).unwrap();
    (repos, config)
}

fn damage_of_a_later_repository_is_reported_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, two], config) = two_repositories(folder.path());
    let names = objects(&one);
    let status = || walden(&["archive", "status", "--config", text(&config)]);
    let check = || walden(&["archive", "check", "--config", text(&config)]);
    let repair = || {
        walden(&["archive", "repair", "--repo", text(&two), "--from", text(&one), "--config", text(&config)])
    };
    assert!(check().stdout.contains("all 2 have the same files"), "{:?}", check());
    assert!(!status().stdout.contains("damaged"), "{:?}", status());
    // Damage that verify has found, and a truncated object that it has not.
    damage(&find(&two, &names[0]));
    assert_eq!(walden(&["archive", "verify", "--repo", text(&two)]).code, 1);
    let truncated = find(&two, &names[1]);
    let content = fs::read(&truncated).unwrap();
    fs::write(&truncated, &content[..content.len() / 2]).unwrap();
    let hint = format!("walden archive repair --repo {} --from {}", two.display(), one.display());
    for run in [status(), check()] {
        assert!(run.code == 1 && run.stdout.contains("2 damaged objects"), "{run:?}");
        assert!(run.stdout.contains(&hint), "{run:?}");
    }
    // The identity is lost too.
    fs::remove_file(two.join("archive.json")).unwrap();
    let run = repair();
    assert!(run.code == 0 && run.stdout.contains("archive.json was rewritten"), "{run:?}");
    assert_eq!(fs::read(two.join("archive.json")).unwrap(), fs::read(one.join("archive.json")).unwrap());
    for run in [status(), check()] {
        assert!(!run.stdout.contains("damaged object"), "{run:?}");
    }
    assert_eq!(walden(&["archive", "verify", "--repo", text(&two)]).code, 0);
    // A repository that is not mounted.
    fs::rename(&two, two.with_extension("away")).unwrap();
    for run in [status(), check()] {
        assert!(run.code == 1 && run.stdout.contains("mount the file system"), "{run:?}");
        assert!(run.stdout.contains("two cannot be read"), "{run:?}");
    }
}

fn the_exporter_serves_metrics_of_each_repository() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, two], config) = two_repositories(folder.path());
    let names = objects(&one);
    names[1..].iter().for_each(|name| fs::remove_file(find(&two, name)).unwrap());
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    fs::File::open(find(&two, &names[0])).unwrap().set_modified(old).unwrap();
    let exporter = Exporter::with(&["--config", text(&config)]);
    let ask = || parse(&exporter.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").1);
    let sample = |metric: &str, repo: &Path| {
        format!("walden_archive_repository_{metric}{{repository=\"{}\"}}", repo.display())
    };
    let found = ask();
    let value = |metric: &str, repo: &Path| found[&sample(metric, repo)];
    let missing = (names.len() - 1) as f64;
    assert_eq!([value("up", &one), value("up", &two)], [1.0, 1.0]);
    assert_eq!([value("lag_segments", &one), value("lag_segments", &two)], [0.0, missing]);
    let segment_bytes = json(&["archive", "list", "--repo", text(&one), "--format", "json"])["segment_bytes"]
        .as_f64()
        .unwrap();
    assert_eq!([value("lag_bytes", &one), value("lag_bytes", &two)], [0.0, missing * segment_bytes]);
    let last = "last_archived_timestamp_seconds";
    assert_eq!(value(last, &two), 1_700_000_000.0);
    let age =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64() - value(last, &one);
    assert!((0.0..3600.0).contains(&age), "{age}");
    // A repository that cannot be read has no other value.
    fs::rename(&two, two.with_extension("away")).unwrap();
    let away = ask();
    assert_eq!((away[&sample("up", &one)], away[&sample("up", &two)]), (1.0, 0.0));
    assert!(!away.contains_key(&sample("lag_segments", &two)));
    assert_eq!(away["walden_archive_problems"], found["walden_archive_problems"]);
    // One repository has no samples of this kind.
    fs::write(&config, format!("[archive]\nrepo = {one:?}\n")).unwrap();
    assert!(ask().keys().all(|name| !name.contains("repository")));
}

fn a_service_brings_a_repository_up_to_date_on_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, two], config) = two_repositories(folder.path());
    let names = objects(&one);
    fs::remove_file(find(&two, &names[1])).unwrap();
    fs::rename(&two, two.with_extension("away")).unwrap();
    let (data, socket) = (folder.path().join("data"), folder.path().join("socket/archive.sock"));
    fs::create_dir_all(data.join("pg_wal/archive_status")).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_walden"))
        .args(["archive", "serve", "--config", text(&config), "--data", text(&data), "--socket"])
        .arg(&socket)
        .stderr(fs::File::create(folder.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(folder.path().join("log")).unwrap();
    wait(|| said().contains("up to date yet"));
    assert!(said().contains("HINT: mount the file system"), "{}", said());
    assert!(!two.exists(), "nothing is written below a mount point");
    fs::rename(two.with_extension("away"), &two).unwrap();
    wait(|| objects(&two) == names);
    wait(|| said().contains("1 file copied from other repositories"));
    let pid = rustix::process::Pid::from_child(&serve);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    serve.wait().unwrap();
}

fn one_bucket_under_two_spellings_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("walden.toml");
    let endpoint = |host: &str| format!("store = {{ endpoint = \"http://{host}\" }}");
    for (one, other) in [
        ("\"s3://backups/main\"".to_owned(), "\"s3://backups/main/\"".to_owned()),
        ("\"s3://backups/main\"".to_owned(), "\"s3://backups//main\"".to_owned()),
        (
            format!("{{ url = \"s3://b/main\", {} }}", endpoint("minio.example:9000")),
            format!("{{ url = \"s3://b/main/\", {} }}", endpoint("MINIO.example:9000/")),
        ),
    ] {
        fs::write(&config, format!("[archive]\nrepo = [{one}, {other}]\n")).unwrap();
        for command in ["copy", "status"] {
            let run = walden(&["archive", command, "--config", text(&config)]);
            assert!(
                run.code == 3 && run.stderr.contains("which are the same place"),
                "{one} {other}: {run:?}"
            );
        }
    }
}
