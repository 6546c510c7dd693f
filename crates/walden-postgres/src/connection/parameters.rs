//! The parameters of a connection: from the connection string, a service file, the environment, and defaults,
//! in this order.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;

use super::passwords::{self, Found, Wanted};
use super::{ConnectionError, text};

/// How a parameter is used.
enum Use {
    /// Passed to the client library under this name.
    Client(&'static str),
    /// Read in this module or in the module of TLS.
    Here,
    /// Has no effect here.
    Ignored,
    /// Not supported, except for these values.
    Refused(&'static [&'static str]),
}

/// A parameter of libpq (`PQconninfoOptions` in `fe-connect.c`).
struct Known {
    name: &'static str,
    /// The environment variable, if there is one.
    variable: Option<&'static str>,
    use_: Use,
}

const fn known(name: &'static str, variable: &'static str, use_: Use) -> Known {
    Known { name, variable: Some(variable), use_ }
}

const fn without_variable(name: &'static str, use_: Use) -> Known {
    Known { name, variable: None, use_ }
}

const PARAMETERS: &[Known] = &[
    known("service", "PGSERVICE", Use::Here),
    known("servicefile", "PGSERVICEFILE", Use::Here),
    known("user", "PGUSER", Use::Client("user")),
    known("password", "PGPASSWORD", Use::Here),
    known("passfile", "PGPASSFILE", Use::Here),
    known("channel_binding", "PGCHANNELBINDING", Use::Client("channel_binding")),
    known("connect_timeout", "PGCONNECT_TIMEOUT", Use::Here),
    known("dbname", "PGDATABASE", Use::Client("dbname")),
    known("host", "PGHOST", Use::Here),
    known("hostaddr", "PGHOSTADDR", Use::Here),
    known("port", "PGPORT", Use::Here),
    known("client_encoding", "PGCLIENTENCODING", Use::Ignored),
    known("options", "PGOPTIONS", Use::Client("options")),
    known("application_name", "PGAPPNAME", Use::Client("application_name")),
    without_variable("fallback_application_name", Use::Here),
    without_variable("keepalives", Use::Client("keepalives")),
    without_variable("keepalives_idle", Use::Client("keepalives_idle")),
    without_variable("keepalives_interval", Use::Client("keepalives_interval")),
    without_variable("keepalives_count", Use::Client("keepalives_retries")),
    without_variable("tcp_user_timeout", Use::Here),
    known("sslmode", "PGSSLMODE", Use::Here),
    known("sslnegotiation", "PGSSLNEGOTIATION", Use::Client("sslnegotiation")),
    known("sslcompression", "PGSSLCOMPRESSION", Use::Ignored),
    known("sslcert", "PGSSLCERT", Use::Here),
    known("sslkey", "PGSSLKEY", Use::Here),
    known("sslcertmode", "PGSSLCERTMODE", Use::Here),
    without_variable("sslpassword", Use::Refused(&[])),
    known("sslrootcert", "PGSSLROOTCERT", Use::Here),
    known("sslcrl", "PGSSLCRL", Use::Here),
    known("sslcrldir", "PGSSLCRLDIR", Use::Refused(&[])),
    known("sslsni", "PGSSLSNI", Use::Here),
    known("requirepeer", "PGREQUIREPEER", Use::Refused(&[])),
    known("require_auth", "PGREQUIREAUTH", Use::Refused(&[])),
    known("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Use::Here),
    known("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Use::Here),
    known("gssencmode", "PGGSSENCMODE", Use::Refused(&["disable", "prefer"])),
    known("krbsrvname", "PGKRBSRVNAME", Use::Ignored),
    known("gsslib", "PGGSSLIB", Use::Ignored),
    known("gssdelegation", "PGGSSDELEGATION", Use::Ignored),
    without_variable("replication", Use::Here),
    known("target_session_attrs", "PGTARGETSESSIONATTRS", Use::Client("target_session_attrs")),
    known("load_balance_hosts", "PGLOADBALANCEHOSTS", Use::Refused(&["disable"])),
];

/// Folders of the system-wide service file if `PGSYSCONFDIR` is not set: the defaults of PostgreSQL's
/// packages.
const SYSTEM_FOLDERS: [&str; 3] = ["/etc/postgresql-common", "/etc/sysconfig/pgsql", "/usr/local/pgsql/etc"];
/// Folders of Unix sockets.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];
const DEFAULT_PORT: &str = "5432";
/// Default time limit for a login, in seconds. Unlike libpq, no command waits forever.
const CONNECT_TIMEOUT: u32 = 10;

/// The parameters of a connection.
#[derive(Clone)]
pub struct Parameters {
    values: BTreeMap<String, String>,
    home: Option<PathBuf>,
}

impl fmt::Debug for Parameters {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().filter(|(name, _)| *name != "password");
        f.debug_map().entries(shown).finish()
    }
}

/// A server to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Name or address of the server, or the folder of its Unix socket.
    pub host: String,
    /// Address of the server, if given in addition to the name or instead of the name (`hostaddr`).
    pub address: Option<String>,
    /// Port of the server.
    pub port: u16,
}

impl Endpoint {
    /// Returns whether it is the folder of a Unix socket, which does not use TLS.
    pub fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_socket() {
            true => write!(f, "the socket of port {} in {}", self.port, self.host),
            false => write!(f, "{} port {}", self.host, self.port),
        }
    }
}

impl Parameters {
    /// Parses a connection string or URL. Missing parameters come from the service file, the environment and
    /// libpq's defaults.
    ///
    /// # Errors
    /// A malformed string, and parameters that are unknown or not supported.
    pub fn parse(conninfo: &str) -> Result<Parameters, ConnectionError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from).or_else(std::env::home_dir);
        Parameters::parse_in(conninfo, &variable, home)
    }

    fn parse_in(
        conninfo: &str,
        variable: &dyn Fn(&str) -> Option<String>,
        home: Option<PathBuf>,
    ) -> Result<Parameters, ConnectionError> {
        let failed = |place: &str, problem| ConnectionError::Parameter { place: place.to_owned(), problem };
        let here = "the connection string";
        let mut parameters = Parameters { values: BTreeMap::new(), home };
        let pairs = text::parse(conninfo).map_err(|problem| failed(here, problem))?;
        for (name, value) in pairs {
            check(&name, &value).map_err(|problem| failed(here, problem))?;
            // The last one counts.
            parameters.values.insert(name, value);
        }
        parameters.values.retain(|_, value| !value.is_empty());
        parameters.add_service(variable)?;
        for Known { name, variable: named, .. } in PARAMETERS {
            if let Some(named) = named.filter(|_| !parameters.values.contains_key(*name))
                && let Some(value) = variable(named)
            {
                check(name, &value).map_err(|problem| failed(named, problem))?;
                parameters.values.insert((*name).to_owned(), value);
            }
        }
        Ok(parameters)
    }

    /// Returns a parameter by libpq's name, or `None` if it is empty or missing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns a copy in which one parameter is set to another value.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Parameters {
        let mut changed = self.clone();
        changed.values.insert(name.to_owned(), value.to_owned());
        changed
    }

    /// Returns the servers to try, in their order.
    ///
    /// # Errors
    /// Numbers of hosts, addresses and ports that do not match, and invalid ports.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, ConnectionError> {
        let failed =
            |problem| ConnectionError::Parameter { place: "host, hostaddr and port".to_owned(), problem };
        let list =
            |name| self.get(name).map(|value| value.split(',').collect::<Vec<_>>()).unwrap_or_default();
        let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let count = hosts.len().max(addresses.len()).max(1);
        if !addresses.is_empty() && !hosts.is_empty() && hosts.len() != addresses.len() {
            return Err(failed(format!(
                "expected {count} of both, found {} hosts and {} addresses",
                hosts.len(),
                addresses.len()
            )));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(failed(format!("expected one port or {count}, found {}", ports.len())));
        }
        let endpoint = |at: usize| {
            let given = |list: &[&str]| {
                list.get(at).filter(|value| !value.is_empty()).map(|value| (*value).to_owned())
            };
            let port = match ports.as_slice() {
                // One value applies to all hosts.
                [one] => Some((*one).to_owned()).filter(|one| !one.is_empty()),
                several => given(several),
            };
            let port = port.unwrap_or_else(|| DEFAULT_PORT.to_owned());
            let number = port.trim().parse().ok().filter(|&port: &u16| port > 0);
            let number =
                number.ok_or_else(|| failed(format!("expected a port from 1 to 65535, found {port}")))?;
            let address = given(&addresses);
            let host = given(&hosts).or_else(|| address.clone()).unwrap_or_else(|| default_host(number));
            Ok(Endpoint { host, address, port: number })
        };
        (0..count).map(endpoint).collect()
    }

    /// Returns the password for a server: the given one, or else the one in the password file.
    pub fn password(&self, endpoint: &Endpoint) -> Option<String> {
        self.look_up_password(endpoint).ok().flatten()
    }

    /// Returns the password file if it is not used because others may read it.
    pub(crate) fn unused_password_file(&self, endpoint: &Endpoint) -> Option<PathBuf> {
        self.look_up_password(endpoint).err()
    }

    /// Returns the password; as the error, a password file that others may read.
    fn look_up_password(&self, endpoint: &Endpoint) -> Result<Option<String>, PathBuf> {
        if let Some(password) = self.get("password") {
            return Ok(Some(password.to_owned()));
        }
        let default = || Some(self.home.as_ref()?.join(".pgpass"));
        let Some(file) = self.get("passfile").map(PathBuf::from).or_else(default) else { return Ok(None) };
        let is_default_socket = SOCKET_FOLDERS.contains(&endpoint.host.as_str());
        let user = self.get("user").map_or_else(user_name, str::to_owned);
        let wanted = Wanted {
            host: if is_default_socket { "localhost" } else { &endpoint.host },
            port: &endpoint.port.to_string(),
            database: self.get("dbname").unwrap_or(&user),
            user: &user,
        };
        match passwords::look_up(&file, &wanted) {
            Found::Password(password) => Ok(Some(password)),
            Found::Nothing => Ok(None),
            Found::ReadableByOthers => Err(file),
        }
    }

    /// Returns the configuration with which the client library connects to one server.
    pub(crate) fn config(&self, endpoint: &Endpoint) -> Result<Config, ConnectionError> {
        let mut conninfo = String::new();
        let mut add = |name: &str, value: &str| {
            let value = value.replace('\\', "\\\\").replace('\'', "\\'");
            conninfo += &format!("{name}='{value}' ");
        };
        for Known { name, use_, .. } in PARAMETERS {
            if let (Use::Client(theirs), Some(value)) = (use_, self.get(name)) {
                add(theirs, value);
            }
        }
        if self.get("application_name").is_none() {
            add("application_name", self.get("fallback_application_name").unwrap_or("walden"));
        }
        add("host", &endpoint.host);
        if let Some(address) = &endpoint.address {
            add("hostaddr", address);
        }
        add("port", &endpoint.port.to_string());
        match self.seconds("connect_timeout")? {
            // Without a limit, as in libpq.
            Some(..=0) => {}
            given => add("connect_timeout", &given.unwrap_or(CONNECT_TIMEOUT.into()).max(2).to_string()),
        }
        if let Some(milliseconds) = self.seconds("tcp_user_timeout")?.filter(|&given| given > 0) {
            add("tcp_user_timeout", &(milliseconds.saturating_add(999) / 1000).to_string());
        }
        if let Some(password) = self.password(endpoint) {
            add("password", &password);
        }
        conninfo.parse().map_err(|error: postgres::Error| ConnectionError::Parameter {
            place: "the connection's parameters".to_owned(),
            problem: walden_source::error_text(&error),
        })
    }

    fn seconds(&self, name: &str) -> Result<Option<i64>, ConnectionError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| ConnectionError::Parameter {
            place: name.to_owned(),
            problem: format!("expected a whole number, found {value}"),
        })
    }

    /// Returns the named file, or else a default one in `~/.postgresql` if it exists.
    pub(super) fn file(&self, parameter: &str, default: &str) -> Option<PathBuf> {
        let in_home =
            || Some(self.home.as_ref()?.join(".postgresql").join(default)).filter(|path| path.exists());
        self.get(parameter).map(PathBuf::from).or_else(in_home)
    }

    /// Adds the service file's parameters of a service, except for those that are already set.
    fn add_service(&mut self, variable: &dyn Fn(&str) -> Option<String>) -> Result<(), ConnectionError> {
        let Some(service) = self.get("service").map(str::to_owned).or_else(|| variable("PGSERVICE")) else {
            return Ok(());
        };
        let named = self.get("servicefile").map(str::to_owned).or_else(|| variable("PGSERVICEFILE"));
        let own = named.map(PathBuf::from).or_else(|| Some(self.home.as_ref()?.join(".pg_service.conf")));
        let system = match variable("PGSYSCONFDIR") {
            Some(folder) => vec![folder],
            None => SYSTEM_FOLDERS.map(str::to_owned).to_vec(),
        };
        let files =
            own.into_iter().chain(system.iter().map(|folder| Path::new(folder).join("pg_service.conf")));
        let mut looked_in = Vec::new();
        for file in files {
            let text = match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(ConnectionError::Parameter {
                        place: file.display().to_string(),
                        problem: error.to_string(),
                    });
                }
            };
            let found = section(&text, &service).map_err(|problem| ConnectionError::Parameter {
                place: file.display().to_string(),
                problem,
            })?;
            if let Some(pairs) = found {
                for (name, value) in pairs {
                    self.values.entry(name).or_insert(value);
                }
                return Ok(());
            }
            looked_in.push(file.display().to_string());
        }
        let looked_in = if looked_in.is_empty() {
            "there is no service file".to_owned()
        } else {
            format!("found none in {}", looked_in.join(", "))
        };
        Err(ConnectionError::Parameter {
            place: format!("service {service}"),
            problem: format!("expected its section in a service file; {looked_in}"),
        })
    }
}

/// Returns the parameters of a service in a service file (`parseServiceFile`).
fn section(text: &str, service: &str) -> Result<Option<Vec<(String, String)>>, String> {
    let mut found: Option<Vec<(String, String)>> = None;
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (name == service).then(Vec::new);
        } else if let Some(pairs) = &mut found {
            let wrong = |problem: String| format!("line {number}: {problem}");
            let (name, value) =
                line.split_once('=').ok_or_else(|| wrong("expected NAME=VALUE".to_owned()))?;
            if name == "service" || name == "servicefile" {
                return Err(wrong(format!("a service cannot name {name}")));
            }
            check(name, value).map_err(wrong)?;
            pairs.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(found)
}

/// Checks that a parameter is one of libpq's and is supported.
fn check(name: &str, value: &str) -> Result<(), String> {
    let known = PARAMETERS.iter().find(|known| known.name == name);
    match known.map(|known| &known.use_) {
        None => Err(format!("expected a connection parameter of libpq, found \"{name}\"")),
        Some(Use::Refused(values)) if !value.is_empty() && !values.contains(&value) => {
            Err(format!("{name}={value} is not supported here"))
        }
        Some(_) => Ok(()),
    }
}

/// Returns the folder of a server's socket on this machine, or else the loopback interface.
fn default_host(port: u16) -> String {
    let is_there = |folder: &&str| Path::new(folder).join(format!(".s.PGSQL.{port}")).exists();
    SOCKET_FOLDERS.into_iter().find(is_there).unwrap_or("localhost").to_owned()
}

/// Returns the name of the user that runs this program, as the client library finds it.
fn user_name() -> String {
    Config::new().get_user().map_or_else(|| std::env::var("USER").unwrap_or_default(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(conninfo: &str, variables: &[(&str, &str)], home: &Path) -> Result<Parameters, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Parameters::parse_in(conninfo, &variable, Some(home.to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_string_goes_before_the_service_and_the_service_before_the_environment() {
        let home = tempfile::tempdir().unwrap();
        let services =
            "# services\n[other]\nhost=wrong\n\n[mine]\nhost=h\nport=6\nuser=from service\n[last]\nport=7\n";
        std::fs::write(home.path().join(".pg_service.conf"), services).unwrap();
        let variables = [("PGSERVICE", "mine"), ("PGUSER", "env"), ("PGDATABASE", "d"), ("PGPORT", "9")];
        let found = parse("port=5", &variables, home.path()).unwrap();
        let values = ["host", "port", "user", "dbname"].map(|name| found.get(name).unwrap());
        assert_eq!(values, ["h", "5", "from service", "d"]);
        assert_eq!(parse("", &[("PGPORT", "9")], home.path()).unwrap().get("port"), Some("9"));
        let missing = parse("service=none", &[], home.path()).unwrap_err();
        assert!(missing.contains("service none") && missing.contains(".pg_service.conf"), "{missing}");
    }

    #[test]
    fn what_cannot_be_kept_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        for (conninfo, variables) in [
            ("hots=x", vec![]),
            ("require_auth=scram-sha-256", vec![]),
            ("", vec![("PGGSSENCMODE", "require")]),
            ("host=x sslpassword=y", vec![]),
        ] {
            assert!(parse(conninfo, &variables, home.path()).is_err(), "{conninfo}");
        }
        assert!(parse("gssencmode=prefer sslcompression=1 client_encoding=UTF8", &[], home.path()).is_ok());
        for conninfo in
            ["host=a,b port=1,2,3", "host=a hostaddr=1.1.1.1,2.2.2.2", "host=a port=x", "host=a port=0"]
        {
            assert!(parse(conninfo, &[], home.path()).unwrap().endpoints().is_err(), "{conninfo}");
        }
    }

    #[test]
    fn each_host_has_its_port_and_its_password() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".pgpass");
        std::fs::write(&file, "a:5432:*:me:one\nb:7:*:me:two\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let found = parse("host=a,b,/run/x port=,7,8 user=me", &[], home.path()).unwrap();
        let endpoints = found.endpoints().unwrap();
        let shown: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
        assert_eq!(shown, ["a port 5432", "b port 7", "the socket of port 8 in /run/x"]);
        let passwords: Vec<_> = endpoints.iter().map(|endpoint| found.password(endpoint)).collect();
        assert_eq!(passwords, [Some("one".to_owned()), Some("two".to_owned()), None]);
        let given = found.with("password", "it's \\ mine");
        assert_eq!(given.config(&endpoints[1]).unwrap().get_password(), Some(&b"it's \\ mine"[..]));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        // As in libpq, connecting continues without it.
        assert_eq!(found.password(&endpoints[0]), None);
        assert_eq!(found.unused_password_file(&endpoints[0]), Some(file));
        assert!(!format!("{given:?}").contains("mine"), "{given:?}");
    }
}
