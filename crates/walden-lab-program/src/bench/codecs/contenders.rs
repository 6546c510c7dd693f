//! The compressors that are compared, one row each.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::Serialize;
use walden_server::programs::find_in_path;

/// A program with one set of options.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Its name for `--only`.
    pub name: &'static str,
    /// The program; [`OURSELVES`] is this one.
    pub program: &'static str,
    /// The module that it needs, if it is Python.
    pub module: Option<&'static str>,
    /// The Debian package of the program, or the PyPI package of the module.
    pub package: &'static str,
    /// The name in tables; `{level}` is replaced by the level, here and in the arguments.
    pub label: &'static str,
    /// The first and the last level.
    pub levels: (u8, u8),
    /// Levels in the standard selection.
    pub standard: &'static [u8],
    /// The first level at which a segment takes most of a minute.
    pub slow_from: Option<u8>,
    pub takes: Takes,
    pub threads: Threads,
    /// Suffix of the compressed file's name, for programs that require one.
    pub ending: &'static str,
    /// `{in}` is the file and `{files}` are all files to read, `{out}` is the file and `{dir}` the folder to
    /// write. Without them, the command uses standard input and standard output.
    pub compress: &'static [&'static str],
    pub decompress: &'static [&'static str],
}

/// What one process compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Takes {
    /// One segment, as `archive_command` does.
    Segment,
    /// All segments of a corpus.
    Corpus,
}

/// The number of threads that it starts by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    One,
    All,
}

pub const OURSELVES: &str = "walden";

/// The reference of all ratios: in its parallel form, it was the best one in the comparison of 2017.
pub const REFERENCE: (&str, u8) = ("xz", 2);

const BASE: Contender = Contender {
    name: "",
    program: "",
    module: None,
    package: "",
    label: "",
    levels: (1, 9),
    standard: &[],
    slow_from: None,
    takes: Takes::Segment,
    threads: Threads::One,
    ending: "",
    compress: &["-c", "-{level}"],
    decompress: &["-c", "-d"],
};

/// All contenders, in the order of the tables.
pub const CONTENDERS: &[Contender] = &[
    Contender {
        name: "gzip",
        program: "gzip",
        package: "gzip",
        label: "gzip -{level}",
        standard: &[1, 6],
        ..BASE
    },
    Contender {
        name: "pigz",
        program: "pigz",
        package: "pigz",
        label: "pigz -{level}",
        threads: Threads::All,
        ..BASE
    },
    Contender {
        name: "bzip2",
        program: "bzip2",
        package: "bzip2",
        label: "bzip2 -{level}",
        standard: &[9],
        ..BASE
    },
    Contender {
        name: "lbzip2",
        program: "lbzip2",
        package: "lbzip2",
        label: "lbzip2 -{level}",
        threads: Threads::All,
        ..BASE
    },
    Contender {
        name: "xz",
        program: "xz",
        package: "xz-utils",
        label: "xz -{level}",
        standard: &[2, 9],
        compress: &["-c", "-T1", "-{level}"],
        decompress: &["-c", "-d", "-T1"],
        ..BASE
    },
    Contender {
        name: "pxz",
        program: "xz",
        package: "xz-utils",
        label: "xz -T0 -{level}",
        threads: Threads::All,
        compress: &["-c", "-T0", "-{level}"],
        decompress: &["-c", "-d", "-T0"],
        ..BASE
    },
    Contender {
        name: "pixz",
        program: "pixz",
        package: "pixz",
        label: "pixz -{level}",
        threads: Threads::All,
        compress: &["-t", "-{level}"],
        decompress: &["-d"],
        ..BASE
    },
    Contender {
        name: "7za",
        program: "7za",
        package: "p7zip-full",
        label: "7za -mx={level}",
        threads: Threads::All,
        ending: ".7z",
        compress: &["a", "-bd", "-y", "-t7z", "-mx={level}", "{out}", "{in}"],
        decompress: &["x", "-so", "{in}"],
        ..BASE
    },
    Contender {
        name: "lrzip-l",
        program: "lrzip",
        package: "lrzip",
        label: "lrzip -l -L {level}",
        threads: Threads::All,
        ending: ".lrz",
        compress: &["-q", "-l", "-L", "{level}", "-o", "{out}", "{in}"],
        decompress: &["-q", "-d", "-o", "{out}", "{in}"],
        ..BASE
    },
    Contender {
        name: "lrzip-z",
        program: "lrzip",
        package: "lrzip",
        label: "lrzip -z -L {level}",
        slow_from: Some(4),
        threads: Threads::All,
        ending: ".lrz",
        compress: &["-q", "-z", "-L", "{level}", "-o", "{out}", "{in}"],
        decompress: &["-q", "-d", "-o", "{out}", "{in}"],
        ..BASE
    },
    Contender {
        name: "lz4",
        program: "lz4",
        package: "lz4",
        label: "lz4 -{level}",
        levels: (1, 12),
        standard: &[1],
        ..BASE
    },
    Contender {
        name: "zstd",
        program: "zstd",
        package: "zstd",
        label: "zstd -{level}",
        levels: (1, 19),
        standard: &[3, 12, 19],
        compress: &["-q", "-c", "-T1", "-{level}"],
        decompress: &["-q", "-c", "-d"],
        ..BASE
    },
    Contender {
        name: "zstd-long",
        program: "zstd",
        package: "zstd",
        label: "zstd -{level} --long=31",
        levels: (1, 19),
        standard: &[19],
        takes: Takes::Corpus,
        // As a named file instead of a pipe: zstd then limits its window to the file's size.
        compress: &["-q", "-c", "-T1", "-{level}", "--long=31", "{in}"],
        decompress: &["-q", "-c", "-d", "--long=31", "{in}"],
        ..BASE
    },
    // OpenZL without a description of the data's structure. Its packages do not contain its trainer.
    Contender {
        name: "openzl",
        program: "python3",
        module: Some("openzl"),
        package: "openzl",
        label: "openzl, untrained, {level}",
        standard: &[6],
        compress: &["-c", include_str!("openzl/compress.py"), "{level}"],
        decompress: &["-c", include_str!("openzl/decompress.py")],
        ..BASE
    },
    Contender {
        name: "brotli",
        program: "brotli",
        package: "brotli",
        label: "brotli -q {level}",
        levels: (0, 11),
        standard: &[5, 9],
        slow_from: Some(10),
        compress: &["-c", "-w", "24", "-q", "{level}"],
        ..BASE
    },
    Contender {
        name: "zpaq",
        program: "zpaq",
        package: "zpaq",
        label: "zpaq -m{level}",
        levels: (1, 5),
        standard: &[5],
        slow_from: Some(4),
        threads: Threads::All,
        ending: ".zpaq",
        compress: &["add", "{out}", "{in}", "-m{level}"],
        decompress: &["extract", "{in}", "-to", "{dir}/"],
        ..BASE
    },
    Contender {
        name: "zpaq-all",
        program: "zpaq",
        package: "zpaq",
        label: "zpaq -m{level}, all at once",
        levels: (1, 5),
        slow_from: Some(4),
        takes: Takes::Corpus,
        threads: Threads::All,
        ending: ".zpaq",
        compress: &["add", "{out}", "{files}", "-m{level}"],
        decompress: &["extract", "{in}", "-to", "{dir}/"],
        ..BASE
    },
    Contender {
        name: "walden",
        program: OURSELVES,
        package: "walden",
        label: "walden -{level}",
        standard: &[1, 3, 9],
        // A single file uses one thread. Decompresses to standard output like the others, which do not call
        // fsync either.
        compress: &["compress", "-{level}", "-o", "{dir}", "{files}"],
        decompress: &["decompress", "--stdout", "{files}"],
        ..BASE
    },
    // Comparable to the others, which do not verify their output.
    Contender {
        name: "walden-unverified",
        program: OURSELVES,
        package: "walden",
        label: "walden -{level} --no-verify",
        standard: &[3],
        compress: &["compress", "--no-verify", "-{level}", "-o", "{dir}", "{files}"],
        decompress: &["decompress", "--stdout", "{files}"],
        ..BASE
    },
    Contender {
        name: "walden-pack",
        program: OURSELVES,
        package: "walden",
        label: "walden -{level} --pack",
        standard: &[6, 9],
        takes: Takes::Corpus,
        threads: Threads::All,
        compress: &["compress", "--pack", "-{level}", "-o", "{dir}", "{files}"],
        decompress: &["decompress", "-o", "{dir}", "{files}"],
        ..BASE
    },
];

/// A contender at one level, with its program.
#[derive(Clone, Debug)]
pub struct Entry {
    pub contender: &'static Contender,
    pub level: u8,
    /// `None` if it is not installed.
    pub program: Option<PathBuf>,
}

impl Entry {
    pub fn new(contender: &'static Contender, level: u8) -> Result<Entry> {
        let program = match contender.program {
            OURSELVES => Some(crate::programs::path_of("walden")?),
            name => find_in_path(name),
        };
        let program = program.filter(|program| {
            contender.module.is_none_or(|module| succeeds(program, &["-c", &format!("import {module}")]))
        });
        Ok(Entry { contender, level, program })
    }

    pub fn label(&self) -> String {
        self.contender.label.replace("{level}", &self.level.to_string())
    }

    pub fn is_reference(&self) -> bool {
        (self.contender.name, self.level) == REFERENCE
    }

    pub fn is_slow(&self) -> bool {
        self.contender.slow_from.is_some_and(|slow| self.level >= slow)
    }
}

impl Contender {
    /// Returns the module or program that must be installed for it.
    pub fn needs(&self) -> &'static str {
        self.module.unwrap_or(self.program)
    }
}

/// Returns the label of a contender at a level.
pub fn label(name: &str, level: u8) -> String {
    let row = CONTENDERS.iter().find(|row| row.name == name);
    row.map_or(name, |row| row.label).replace("{level}", &level.to_string())
}

/// The files of one process.
pub struct Task<'a> {
    /// At least one.
    pub files: &'a [PathBuf],
    /// The folder to write to.
    pub folder: &'a Path,
    /// The file to write, in that folder.
    pub output: &'a Path,
}

impl Task<'_> {
    /// Fills in a row's arguments, and redirects standard input and output unless the arguments name files.
    pub fn command(&self, program: &Path, arguments: &[&str], level: u8) -> Result<Command> {
        let first = self.files.first().context("cannot run: expected a file to read")?;
        let mut command = Command::new(program);
        for argument in arguments {
            match *argument {
                "{files}" => drop(command.args(self.files)),
                "{in}" => drop(command.arg(first)),
                "{out}" => drop(command.arg(self.output)),
                "{dir}" => drop(command.arg(self.folder)),
                "{dir}/" => {
                    let mut folder: OsString = self.folder.into();
                    folder.push("/");
                    command.arg(folder);
                }
                text => drop(command.arg(text.replace("{level}", &level.to_string()))),
            }
        }
        let names = |names: &[&str]| arguments.iter().any(|argument| names.contains(argument));
        let open = |path: &Path| {
            std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))
        };
        let create = |path: &Path| {
            std::fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))
        };
        command.stdin(if names(&["{in}", "{files}"]) { Stdio::null() } else { open(first)?.into() });
        let named = names(&["{out}", "{dir}", "{dir}/"]);
        command.stdout(if named { Stdio::null() } else { create(self.output)?.into() });
        Ok(command)
    }
}

/// Returns whether a program runs with these arguments without an error.
fn succeeds(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the version line of a program, or of one of its modules. This also loads the program into the page
/// cache before it is timed.
pub fn version(program: &Path, module: Option<&str>) -> Option<String> {
    let arguments = match module {
        Some(module) => vec![
            "-c".to_owned(),
            format!("import {module}, importlib.metadata as m; print('{module}', m.version('{module}'))"),
        ],
        None => vec!["--version".to_owned()],
    };
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let says = |line: &&str| {
        let after = |pair: &[u8]| pair[0].is_ascii_digit() && pair[1] == b'.' && pair[2].is_ascii_digit();
        line.as_bytes().windows(3).any(after)
    };
    let line = text.iter().flat_map(|text| text.lines()).find(says)?;
    Some(line.trim_matches(['*', ' ', '.']).chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete_and_their_names_are_their_own() {
        for (index, row) in CONTENDERS.iter().enumerate() {
            let name = row.name;
            assert!(!name.is_empty() && !row.program.is_empty() && !row.package.is_empty(), "{name}");
            assert!(CONTENDERS[..index].iter().all(|other| other.name != name), "{name} twice");
            let levelled = |texts: &[&str]| texts.iter().any(|text| text.contains("{level}"));
            assert!(levelled(&[row.label]) && levelled(row.compress), "{name}");
            let within = |level: &u8| (row.levels.0..=row.levels.1).contains(level);
            assert!(row.standard.iter().all(within) && row.slow_from.iter().all(within), "{name}");
            // A contender for a whole corpus reads named files: all segments, or one file of them.
            assert!(
                row.takes == Takes::Segment
                    || row.compress.iter().any(|text| *text == "{in}" || *text == "{files}")
            );
        }
        assert!(
            CONTENDERS
                .iter()
                .any(|row| (row.name, row.standard.contains(&REFERENCE.1)) == (REFERENCE.0, true))
        );
    }
}
