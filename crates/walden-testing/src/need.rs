//! The programs that tests need, how they are found, and the consequences of their absence.

use std::env;
use std::path::PathBuf;

/// The major versions of PostgreSQL on which tests of servers run.
pub const ALL_SERVERS: [u32; 6] = [14, 15, 16, 17, 18, 19];

/// A program or extension that a machine may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// PostgreSQL of a major version: installed, in the cache, or from a published package.
    Postgres(u32),
    /// `pg_waldump` of a version other than 18 and 19, whose published packages contain it.
    PgWaldump,
    /// The extension `pageinspect`, which most published packages of PostgreSQL lack.
    Pageinspect,
    /// The extension `amcheck` and its program `pg_amcheck`, which published packages of PostgreSQL do not
    /// contain.
    Amcheck,
    /// A Chromium browser, which renders pages.
    Browser,
    /// The headers of PostgreSQL 15's server, its build files (PGXS), a C compiler and make.
    ServerHeaders,
    /// MariaDB's server.
    MariaDb,
    /// The OpenSSH server and its client.
    Sshd,
    /// `rsync`
    Rsync,
    /// `strace`, with permission to trace.
    Strace,
    /// `faketime`, which runs a program with another system time.
    Faketime,
    /// `npm`, which fetches published packages of PostgreSQL 14 to 17.
    Npm,
    /// `apt-get`, which fetches Debian's package of PostgreSQL 19.
    Apt,
    /// `gzip`
    Gzip,
    /// Python, which runs the decoder of `tests/format`.
    Python,
    /// pgBackRest, an archiver.
    PgBackRest,
    /// Barman, an archiver, with its command for servers.
    Barman,
    /// `age`, the reference implementation of the format.
    Age,
    /// The Python package `pyrage`, another implementation of age. The test itself checks whether Python has
    /// it.
    Pyrage,
    /// `moto_server`, an S3-compatible object store.
    Moto,
    /// Azurite, the emulator of Azure Blob Storage.
    Azurite,
    /// OpenStack Swift, an object store, as a Python package.
    Swift,
    /// `tmux`, a terminal that tests can type in and read.
    Tmux,
}

/// Why a test cannot run here.
#[derive(Debug)]
pub struct Missing {
    /// The missing program, and the package to install.
    pub reason: String,
}

struct Row {
    need: Need,
    /// Its name in `WALDEN_REQUIRE`.
    name: &'static str,
    /// Each of these programs is sufficient.
    programs: &'static [&'static str],
    /// Debian's package, or the command that installs it.
    package: &'static str,
}

#[rustfmt::skip]
const ROWS: [Row; 28] = [
    Row { need: Need::Postgres(14),      name: "pg14",        programs: &[],           package: "" },
    Row { need: Need::Postgres(15),      name: "pg15",        programs: &[],           package: "postgresql-15" },
    Row { need: Need::Postgres(16),      name: "pg16",        programs: &[],           package: "" },
    Row { need: Need::Postgres(17),      name: "pg17",        programs: &[],           package: "" },
    Row { need: Need::Postgres(18),      name: "pg18",        programs: &[],           package: "" },
    Row { need: Need::Postgres(19),      name: "pg19",        programs: &[],           package: "" },
    Row { need: Need::PgWaldump,         name: "waldump",     programs: &[],           package: "postgresql-15" },
    Row { need: Need::Pageinspect,       name: "pageinspect", programs: &[],           package: "postgresql-15" },
    Row { need: Need::Amcheck,           name: "amcheck",     programs: &[],           package: "postgresql-15" },
    Row { need: Need::Browser,           name: "browser",     programs: BROWSERS,      package: "chromium" },
    Row { need: Need::ServerHeaders,     name: "pgheaders",   programs: &["make"],     package: "postgresql-server-dev-15" },
    Row { need: Need::MariaDb,           name: "mariadb",     programs: MARIADB,       package: "mariadb-server" },
    Row { need: Need::Sshd,              name: "sshd",        programs: &["sshd"],     package: "openssh-server" },
    Row { need: Need::Rsync,             name: "rsync",       programs: &["rsync"],    package: "rsync" },
    Row { need: Need::Strace,            name: "strace",      programs: &["strace"],   package: "strace" },
    Row { need: Need::Faketime,          name: "faketime",    programs: &["faketime"], package: "faketime" },
    Row { need: Need::Npm,               name: "npm",         programs: &["npm"],      package: "npm" },
    Row { need: Need::Apt,               name: "apt",         programs: &["apt-get"],  package: "apt" },
    Row { need: Need::Gzip,              name: "gzip",        programs: &["gzip"],     package: "gzip" },
    Row { need: Need::Python,            name: "python",      programs: &["python3"],  package: "python3" },
    Row { need: Need::PgBackRest,    name: "pgbackrest",  programs: &["pgbackrest"], package: "pgbackrest" },
    Row { need: Need::Barman,        name: "barman",      programs: &["barman-wal-archive"], package: "barman-cli, barman" },
    Row { need: Need::Age,               name: "age",         programs: &["age"],      package: "age" },
    Row { need: Need::Pyrage,            name: "pyrage",      programs: &["python3"],  package: "pip install pyrage" },
    Row { need: Need::Moto,              name: "moto",        programs: &["moto_server"], package: "pip install 'moto[server]'" },
    Row { need: Need::Azurite,           name: "azurite",     programs: &["azurite-blob"], package: "npm install -g azurite" },
    Row { need: Need::Swift,             name: "swift",       programs: &["swift-proxy-server"], package: "pip install swift" },
    Row { need: Need::Tmux,              name: "tmux",        programs: &["tmux"],     package: "tmux" },
];

const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const MARIADB: &[&str] = &["mariadbd", "mysqld"];

/// Names the needs whose absence is a failure, separated by commas; `all` names each of them.
const REQUIRE: &str = "WALDEN_REQUIRE";
/// Names the browser's program.
const BROWSER: &str = "WALDEN_BROWSER";
/// Folders of server programs, which may be missing in a user's `PATH`.
const MORE_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

impl Need {
    /// Returns the path of the program.
    ///
    /// # Errors
    /// It is not installed.
    ///
    /// # Panics
    /// It is not installed, and `WALDEN_REQUIRE` names it.
    pub fn find(self) -> Result<PathBuf, Missing> {
        let row = self.row();
        if self == Need::Browser
            && let Some(named) = env::var_os(BROWSER)
        {
            return on_path(&named.to_string_lossy())
                .ok_or_else(|| panic!("{BROWSER} names {}, which is not there", named.display()));
        }
        row.programs
            .iter()
            .find_map(|program| on_path(program))
            .ok_or_else(|| self.missing(&format!("no {}", row.programs.join(", "))))
    }

    /// Returns whether the program is installed, for tests that can do without it.
    pub fn is_there(self) -> bool {
        self.row().programs.iter().any(|program| on_path(program).is_some())
    }

    /// Returns the error for a test that found something missing.
    ///
    /// # Panics
    /// `WALDEN_REQUIRE` names it.
    pub fn missing(self, why: &str) -> Missing {
        let Row { name, package, .. } = self.row();
        assert!(!is_required(name), "{REQUIRE} names {name}: {why}");
        let hint = match *package {
            "" => String::new(),
            command if command.contains(' ') => format!(" ({command})"),
            package => format!(" (Debian's package {package})"),
        };
        Missing { reason: format!("needs {name}: {why}{hint}") }
    }

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.need == self).unwrap_or_else(|| panic!("{self:?} is not in the table"))
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn is_required(name: &str) -> bool {
    required().iter().any(|required| required == name || required == "all")
}

fn required() -> Vec<String> {
    let value = env::var(REQUIRE).unwrap_or_default();
    value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Returns a message for the first unknown name in `WALDEN_REQUIRE`: a misspelt name would require nothing.
pub(crate) fn unknown_requirement() -> Option<String> {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    let required = required();
    let unknown = required.iter().find(|name| *name != "all" && !names.contains(&name.as_str()))?;
    Some(format!("{REQUIRE} names {unknown}, expected one of: all, {}", names.join(", ")))
}
