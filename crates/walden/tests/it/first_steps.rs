//! The first commands of a new user: without arguments, with a server instead of files, and errors that name
//! the next step.

use std::process::Command;

use walden_lab::{Cluster, ClusterBuilder};
use walden_testing::{Outcome, postgres};

use crate::material::{Run, golden, golden_segment, walden, write};

walden_testing::tests! {
    a_command_without_a_source_lists_the_servers,
    a_connection_string_stands_for_the_files_of_its_server,
    a_refused_user_is_told_how_to_connect,
    a_range_without_wal_names_what_the_log_has,
    levels_and_servers_are_named_as_other_programs_do,
    errors_of_files_have_a_hint,
}

/// Accepts one role only from the operating system user of that name, as Debian does for all roles.
const HBA: &str = "local all,replication somebody_else peer\nlocal all,replication without_entry reject\nlocal all,replication all trust\n";

fn start() -> Result<Cluster, walden_testing::Missing> {
    let hba = |data: &std::path::Path| std::fs::write(data.join("pg_hba.conf"), HBA).map_err(Into::into);
    let cluster = ClusterBuilder::new(postgres(15)?).start_after(hba).unwrap();
    let mut client = cluster.client("postgres").unwrap();
    client
        .batch_execute(
            "CREATE TABLE plainly_named (id int PRIMARY KEY); INSERT INTO plainly_named VALUES (1)",
        )
        .unwrap();
    Ok(cluster)
}

fn a_command_without_a_source_lists_the_servers() -> Outcome {
    let cluster = start()?;
    let listed = walden(&["explain"]);
    assert_eq!(listed.code, 2, "{listed:?}");
    let data = cluster.data_dir();
    let text = listed.stderr.as_str();
    let title = format!("PostgreSQL 15 in {}, port ", data.display());
    assert!(text.contains(&title), "{text}");
    let ending = format!(" explain {}", data.display());
    let line =
        text.lines().find(|line| line.trim_end().ends_with(&ending)).expect("the command for the files");
    let found = Run::execute(Command::new("sh").args(["-c", line.trim()]));
    assert!(found.code == 0 && found.stdout.contains("WAL of PostgreSQL 15"), "{line}: {found:?}");
    Ok(())
}

fn a_connection_string_stands_for_the_files_of_its_server() -> Outcome {
    let cluster = start()?;
    let dsn = cluster.dsn("postgres");
    let found = walden(&["explain", "--by", "relation", "--top", "0", &dsn]);
    assert!(found.code == 0 && found.stdout.contains("plainly_named"), "{found:?}");
    let alone = walden(&["explain", "--by", "relation", &cluster.data_dir().display().to_string()]);
    assert!(alone.code == 0 && !alone.stdout.contains("plainly_named"), "{alone:?}");
    // The files belong to another server, as with a forwarded port.
    let pid_file = cluster.data_dir().join("postmaster.pid");
    let content = std::fs::read_to_string(&pid_file).unwrap();
    let mut lines: Vec<&str> = content.lines().collect();
    lines[2] = "1000000000";
    std::fs::write(&pid_file, lines.join("\n")).unwrap();
    let elsewhere = walden(&["explain", &dsn]);
    std::fs::write(&pid_file, content).unwrap();
    assert_eq!(elsewhere.code, 3, "{elsewhere:?}");
    for part in ["cannot find the server's data directory", "walden receive", "walden watch"] {
        assert!(elsewhere.stderr.contains(part), "{part}: {elsewhere:?}");
    }
    Ok(())
}

fn a_refused_user_is_told_how_to_connect() -> Outcome {
    let cluster = start()?;
    let socket = cluster.dsn("postgres");
    let host_and_port: Vec<&str> =
        socket.split(' ').filter(|word| word.starts_with("host=") || word.starts_with("port=")).collect();
    let with = |more: &str| format!("{} {more}", host_and_port.join(" "));
    for (dsn, hint) in [
        (with("user=somebody_else"), "sudo -u postgres"),
        (with("user=somebody_else"), "runuser -u postgres"),
        (with("user=without_entry"), "pg_hba.conf"),
        (with("user=missing"), "the role's name"),
        (with("user=missing dbname=x nonsense=1"), "as for psql"),
        ("host=/no/such/folder user=x".to_owned(), "walden explain without a source lists the servers"),
    ] {
        for command in [&["explain", "--names", &dsn, "/tmp"][..], &["watch", "--for", "1", &dsn]] {
            let refused = walden(command);
            assert!(
                refused.code == 3 && refused.stderr.contains("\nhint: ") && refused.stderr.contains(hint),
                "{hint}: {refused:?}"
            );
        }
    }
    Ok(())
}

fn a_range_without_wal_names_what_the_log_has() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (name, content) = golden_segment();
    let segment = write(folder.path(), &name, &content).display().to_string();
    for (range, part) in [
        (["--to", "2001-01-01 00:00 UTC"], "has transactions that ended from 20"),
        (["--to", "0/1"], "has transactions that ended from 20"),
        (["--from", "2999-01-01 00:00 Europe/Berlin"], "has transactions that ended from 20"),
        (["--from", "2026-11-28 21:00 Europe/Nowhere"], "no time zone"),
        (["--from", "yesterday"], "2026-11-20 22:00 Europe/Berlin"),
    ] {
        let found = walden(&[&["explain", &segment][..], &range].concat());
        assert!(found.stderr.contains(part), "{range:?}: {found:?}");
    }
    // An archive yields only the segments of a range; the whole archive is named.
    let (wal, repo) = (folder.path().join("wal"), folder.path().join("repo").display().to_string());
    std::fs::create_dir(&wal).unwrap();
    // The third segment is not complete.
    for (name, content) in golden("18.6").into_iter().take(2) {
        write(&wal, &name, &content);
    }
    let wal = wal.display().to_string();
    let imported = walden(&["archive", "import", "--repo", &repo, &wal]);
    assert_eq!(imported.code, 0, "{imported:?}");
    for range in [
        ["--to", "2001-01-01 00:00 UTC"],
        ["--to", "0/1"],
        ["--from", "2999-01-01 00:00 UTC"],
        ["--from", "F0/0"],
    ] {
        // Positions and times of the line that has both.
        let extent = |source: &str| {
            let found = walden(&[&["explain", source][..], &range].concat());
            let line = found.stderr.lines().find(|line| line.contains("transactions that ended from"));
            let line = line.unwrap_or_else(|| panic!("{range:?}: {found:?}"));
            let words = line
                .split([' ', ',', '(', ')'])
                .filter(|word| word.starts_with("0/") || word.starts_with("20") && word.ends_with('Z'));
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(extent(&wal).len(), 4, "{range:?}");
        assert_eq!(extent(&repo), extent(&wal), "{range:?}");
    }
    let program = env!("CARGO_BIN_EXE_walden");
    let from_local = ["explain", "--from", "2026-11-28 21:00", &segment];
    let found = Run::execute(Command::new(program).args(from_local).env("TZ", "Europe/Nowhere"));
    assert!(found.code == 2 && found.stderr.contains("TZ=Europe/Nowhere is no time zone"), "{found:?}");
    Ok(())
}

fn levels_and_servers_are_named_as_other_programs_do() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (name, content) = golden_segment();
    let segment = write(folder.path(), &name, &content).display().to_string();
    let size = |flags: &[&str]| {
        let made = walden(&[&["compress", "--force", &segment][..], flags].concat());
        assert_eq!(made.code, 0, "{made:?}");
        std::fs::metadata(format!("{segment}.wlz")).unwrap().len()
    };
    assert_eq!(size(&["-1"]), size(&["--level", "1"]));
    assert_ne!(size(&["--level=1"]), size(&["--level=6"]));
    let repo = folder.path().join("archive").display().to_string();
    let configuration = folder.path().join("walden.toml").display().to_string();
    assert_eq!(walden(&["archive", "init", "--repo", &repo, "-o", &configuration]).code, 0);
    let pushed = walden(&["archive", "push", "-1", "--repo", &repo, &segment]);
    assert_eq!(pushed.code, 0, "{pushed:?}");
    assert_eq!(walden(&["archive", "pack", "-9", "--dry-run", "--repo", &repo]).code, 0);
    for (command, part) in [
        (&["compress", "-1", "-9", &segment][..], "cannot be used with"),
        (&["compress", "-1", "--level", "9", &segment], "cannot be used with"),
        (&["retention", "-U", "postgres"], "a connection string names the server"),
        (&["explain", "--database", "shop", &segment], "a connection string names the server"),
    ] {
        let refused = walden(command);
        assert!(
            refused.code == 2 && refused.stderr.contains(part) && !refused.stderr.contains("as a value"),
            "{refused:?}"
        );
    }
    let unknown = walden(&["archive", "list", "--repo", "s4://bucket/main"]);
    assert!(unknown.stderr.contains("cannot open s4://bucket/main: expected a path"), "{unknown:?}");
    Ok(())
}

fn errors_of_files_have_a_hint() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let (name, content) = golden_segment();
    let segment = write(folder.path(), &name, &content).display().to_string();
    let text = write(folder.path(), "text", b"no segment").display().to_string();
    let empty = folder.path().join("empty").display().to_string();
    std::fs::create_dir(&empty).unwrap();
    let missing = folder.path().join("missing").display().to_string();
    for (command, part) in [
        (&["explain", &missing][..], "lists the data directories"),
        (&["explain", &empty], "name a data directory"),
        (&["explain", &text], "name files of pg_wal"),
        (&["explain", "--names", &text, &segment], "--save-names FILE writes such a file"),
        (&["rows", "--relation", "public.t", "--base", &empty, &segment], "pg_basebackup -D FOLDER"),
        (&["retention", &empty], "name the data directory of the server"),
        (&["watch", "--for", "1", &empty], "name the data directory of the server"),
    ] {
        let failed = walden(command);
        let hint = failed.stderr.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert!(failed.code == 3 && hint.contains(part), "{command:?}: {failed:?}");
    }
    Ok(())
}
