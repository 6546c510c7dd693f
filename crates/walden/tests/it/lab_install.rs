//! Installs PostgreSQL from Debian archives that these tests write: tests the releases, suites and signatures
//! that `walden lab install` accepts.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use walden_testing::{Need, Outcome};

use crate::material::Run;

walden_testing::tests! {
    the_newest_release_of_debians_suites_is_installed,
    libraries_are_not_those_of_experimental,
    archives_without_a_signature_are_refused,
    processes_that_install_a_version_share_one_download,
}

/// A folder with an archive, whose packages contain no real programs, and a cache.
struct Archive {
    folder: TempDir,
}

/// A package of the archive: name, source package, version, and names of its dependencies.
type Package<'a> = (&'a str, &'a str, &'a str, &'a str);

const fn server(version: &str) -> Package<'_> {
    ("postgresql-19", "postgresql-19", version, "libtest1")
}

const fn library(version: &str) -> Package<'_> {
    ("libtest1", "libtest", version, "libc6")
}

impl Archive {
    fn new(sid: &[Package<'_>], experimental: &[Package<'_>]) -> Archive {
        let folder = tempfile::tempdir().unwrap();
        // apt reads the archive as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let archive = Archive { folder };
        archive.write_sources("[trusted=yes]");
        archive.write_suite("sid", &[sid, &[("libc6", "glibc", "3", "")]].concat());
        archive.write_suite("experimental", experimental);
        archive
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes the sources of a machine with the archive's release `stable`.
    fn write_sources(&self, options: &str) {
        let list = format!("deb {options} file:{} stable main\n", self.folder.path().display());
        let list = self.write("sources.list", &list);
        let none = self.path("none");
        let lines = [("SourceList", list), ("SourceParts", none)]
            .map(|(name, path)| format!("Dir::Etc::{name} \"{}\";\n", path.display()));
        self.write("apt.conf", &lines.concat());
    }

    fn write_suite(&self, suite: &str, packages: &[Package<'_>]) {
        let architecture = output(Command::new("dpkg").arg("--print-architecture"));
        let architecture = architecture.trim();
        let stanzas: String = packages.iter().map(|package| self.build(suite, package)).collect();
        let index = format!("main/binary-{architecture}/Packages");
        let path = self.write(&format!("dists/{suite}/{index}"), &stanzas);
        let mut release = format!("Suite: {suite}\nArchitectures: {architecture}\nComponents: main\n");
        write!(release, "SHA256:\n {} {} {index}\n", sha256(&path), stanzas.len()).unwrap();
        self.write(&format!("dists/{suite}/Release"), &release);
    }

    /// Builds a package, and returns its stanza in the archive's index.
    fn build(&self, suite: &str, &(name, source, version, depends): &Package<'_>) -> String {
        let root = format!("build/{suite}/{name}");
        let mut control = format!(
            "Package: {name}\nSource: {source}\nVersion: {version}\nArchitecture: all\n\
             Maintainer: Nobody <nobody@example.com>\nDescription: test\n"
        );
        if !depends.is_empty() {
            writeln!(control, "Depends: {depends}").unwrap();
        }
        self.write(&format!("{root}/DEBIAN/control"), &control);
        if name == "libc6" {
            self.write(&format!("{root}/usr/lib/test-linux-gnu/ld-linux-test.so.1"), "");
        } else if source == name {
            let upstream = version.split_once('-').unwrap().0.replace('~', "");
            for program in ["postgres", "initdb"] {
                let text = format!("#!/bin/sh\necho '{program} (PostgreSQL) {upstream}'\n");
                let path = self.write(&format!("{root}/usr/lib/postgresql/19/bin/{program}"), &text);
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        } else {
            self.write(&format!("{root}/usr/lib/test-linux-gnu/{name}.so.1"), version);
        }
        let file = format!("pool/{suite}-{name}.deb");
        self.write(&file, "");
        let path = self.path(&file);
        output(Command::new("dpkg-deb").arg("--build").args([self.path(&root), path.clone()]));
        let size = path.metadata().unwrap().len();
        format!("{control}Filename: {file}\nSize: {size}\nSHA256: {}\n\n", sha256(&path))
    }

    fn install(&self, version: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walden"));
        command.args(["lab", "install", version, "--format", "json"]);
        command.env_remove("WALDEN_PG_BIN").env("WALDEN_CACHE", self.path("cache"));
        command.env("APT_CONFIG", self.path("apt.conf"));
        command
    }

    /// Installs a version, and returns its folder of programs.
    fn installed(&self, version: &str) -> PathBuf {
        let run = Run::execute(&mut self.install(version));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let document: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!((&document["version"], &document["origin"]), (&version.into(), &"package".into()));
        document["bin_dir"].as_str().unwrap().into()
    }

    /// Expects that an installation fails, and returns the printed error.
    fn refused(&self, version: &str) -> String {
        let run = Run::execute(&mut self.install(version));
        assert_eq!(run.code, 3, "{run:?}");
        let cache = fs::read_dir(self.path("cache/postgresql")).unwrap();
        let names: Vec<_> = cache.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [".lock"], "an incomplete download is left");
        run.stderr
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sha256(path: &Path) -> String {
    output(Command::new("sha256sum").arg(path)).split_whitespace().next().unwrap().to_owned()
}

/// These versions do not exist, so they cannot be installed on this machine.
fn the_newest_release_of_debians_suites_is_installed() -> Outcome {
    Need::Apt.find()?;
    let library = library("1");
    for (sid, experimental, newest) in [
        (&[library][..], &[server("19.77-1")][..], "19.77"),
        (&[library, server("19.77-1")], &[server("19~rc1-1")], "19.77"),
        (&[library, server("19.77-1")], &[server("19.78-0.1")], "19.78"),
        (&[library, server("19.78-1+b1")], &[], "19.78"),
    ] {
        let archive = Archive::new(sid, experimental);
        let bin_dir = archive.installed(newest);
        assert!(bin_dir.join("initdb").is_file());
        // The second installation uses the cache.
        fs::remove_dir_all(archive.path("pool")).unwrap();
        assert_eq!(archive.installed(newest), bin_dir);
    }

    let other = Archive::new(&[library, server("19.77-1")], &[]).refused("19.78");
    assert!(other.contains("expected PostgreSQL 19.78 in Debian's postgresql-19, found 19.77-1"), "{other}");
    let none = Archive::new(&[library], &[]).refused("19.77");
    let expected = "expected postgresql-19 in the suites sid and experimental of file:/";
    assert!(none.contains(expected) && none.contains("WALDEN_PG_BIN"), "{none}");
    Ok(())
}

fn libraries_are_not_those_of_experimental() -> Outcome {
    Need::Apt.find()?;
    let archive = Archive::new(&[library("1")], &[library("2"), server("19.77-1")]);
    let bin_dir = archive.installed("19.77");
    let root = bin_dir.ancestors().nth(5).unwrap();
    let library = root.join("usr/lib/test-linux-gnu/libtest1.so.1");
    assert_eq!(fs::read_to_string(library).unwrap(), "1");
    Ok(())
}

fn archives_without_a_signature_are_refused() -> Outcome {
    Need::Apt.find()?;
    let archive = Archive::new(&[library("1"), server("19.77-1")], &[]);
    archive.write_sources("");
    let refused = archive.refused("19.77");
    assert!(refused.contains("is not signed"), "{refused}");
    archive.write_sources("[trusted=yes]");
    archive.installed("19.77");
    Ok(())
}

fn processes_that_install_a_version_share_one_download() -> Outcome {
    Need::Apt.find()?;
    let archive = Archive::new(&[library("1"), server("19.77-1")], &[]);
    let start = || archive.install("19.77").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let outputs = [start(), start()].map(|child| child.wait_with_output().unwrap());
    let [first, second] = &outputs;
    assert!(first.status.success() && second.status.success(), "{outputs:?}");
    assert_eq!(first.stdout, second.stdout);
    let downloads = outputs.iter().filter(|one| !one.stderr.is_empty()).count();
    assert_eq!(downloads, 1, "{outputs:?}");
    Ok(())
}
