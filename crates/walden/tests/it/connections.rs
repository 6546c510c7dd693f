//! Connections compatible with libpq: TLS in every mode, client certificates, passwords and services, tested
//! with a server.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use serde_json::Value;
use walden_lab::{Cluster, ClusterBuilder};
use walden_postgres::connection::{Parameters, connect};
use walden_postgres::replication::Replication;
use walden_source::error_text;
use walden_testing::{Outcome, postgres};

use crate::archive::text;
use crate::material::Run;

walden_testing::tests! {
    a_server_with_tls_is_reached_as_libpq_reaches_it,
}

/// The server's name, which occurs only in its certificate.
const NAME: &str = "db.example.test";

/// A certificate authority.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut parameters = named(name, &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(parameters, key) }
    }

    /// Creates a certificate and its key.
    fn sign(&self, parameters: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Returns parameters of a certificate with a common name and other names.
fn named(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names).unwrap();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, common_name);
    parameters
}

fn self_signed(parameters: &CertificateParams) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// A folder with files for clients.
struct Files(tempfile::TempDir);

impl Files {
    fn write(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// A server on its own loopback address, with a certificate, and a user for each authentication method.
struct Server {
    cluster: Cluster,
    address: Ipv4Addr,
    port: u16,
}

const HBA: &str = "\
local all all trust
hostssl all with_password all scram-sha-256
hostssl all with_certificate all cert
hostnossl all without_tls all trust
local replication all trust
hostssl replication with_password all scram-sha-256
hostssl replication with_certificate all cert
hostssl replication with_md5 all md5
";

impl Server {
    fn start(authority: &Authority) -> Result<Server, walden_testing::Missing> {
        let id = std::process::id();
        let address = Ipv4Addr::new(127, 77, (id >> 8) as u8, (id as u8).clamp(1, 254));
        let (certificate, key) = authority.sign(&named("not this one", &[NAME]));
        let cluster = ClusterBuilder::new(postgres(15)?)
            .setting("listen_addresses", &address.to_string())
            .setting("ssl", "on")
            .setting("ssl_ca_file", "authority.crt")
            .start_after(|data| {
                fs::write(data.join("pg_hba.conf"), HBA)?;
                fs::write(data.join("authority.crt"), &authority.certificate)?;
                install(data, &certificate, &key);
                Ok(())
            })
            .unwrap();
        let mut client = cluster.client("postgres").unwrap();
        let users = "CREATE USER with_password PASSWORD 'it''s \\ secret'; CREATE USER with_certificate; CREATE USER without_tls; \
                     GRANT pg_monitor TO with_password; ALTER USER with_password REPLICATION; ALTER USER with_certificate REPLICATION; \
                     SET password_encryption = md5; CREATE USER with_md5 REPLICATION PASSWORD 'old'";
        client.batch_execute(users).unwrap();
        let port: String = client.query_one("SHOW port", &[]).unwrap().get(0);
        Ok(Server { cluster, address, port: port.parse().unwrap() })
    }

    /// Returns a connection string for a user, with the server's name.
    fn conninfo(&self, user: &str, more: &str) -> String {
        format!("host={NAME} hostaddr={} port={} user={user} dbname=postgres {more}", self.address, self.port)
    }

    /// Replaces the server's certificate.
    fn replace_certificate(&self, (certificate, key): &(String, String)) {
        install(&self.cluster.data_dir(), certificate, key);
        let chown = Command::new("chown")
            .arg("--reference")
            .arg(self.cluster.data_dir())
            .args([self.cluster.data_dir().join("server.key"), self.cluster.data_dir().join("server.crt")])
            .status();
        assert!(chown.unwrap().success());
        self.cluster.restart(walden_lab::StopMode::Fast).unwrap();
    }
}

fn install(data: &Path, certificate: &str, key: &str) {
    let key_file = data.join("server.key");
    fs::write(data.join("server.crt"), certificate).unwrap();
    fs::write(&key_file, key).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns whether a connection uses TLS, or why it failed.
fn has_tls(conninfo: &str) -> Result<bool, String> {
    let mut client = connect(conninfo).map_err(|error| walden_source::error_text(&error))?;
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    Ok(client.query_one(query, &[]).unwrap().get(0))
}

fn expect_refusal(conninfo: &str, reason: &str) {
    let error = has_tls(conninfo).expect_err(conninfo);
    assert!(error.contains(reason), "{conninfo}: expected {reason}, found {error}");
}

fn a_server_with_tls_is_reached_as_libpq_reaches_it() -> Outcome {
    let (authority, stranger) = (Authority::new("an authority"), Authority::new("another one"));
    let server = Server::start(&authority)?;
    let files = Files(tempfile::tempdir().unwrap());
    let root = files.write("root.crt", &authority.certificate, 0o644);
    let other_root = files.write("other.crt", &stranger.certificate, 0o644);
    let (root, other_root) = (text(&root), text(&other_root));

    try_modes(&server, root, other_root);
    try_replication(&server, &authority, &files, root, other_root);
    try_client_certificates(&server, &authority, &files, root);
    try_services_and_password_files(&server, root);
    try_self_made_certificates(&server, &files);
    Ok(())
}

/// Tries the modes of `sslmode`, with users for whom `pg_hba.conf` requires TLS, or forbids it.
fn try_modes(server: &Server, root: &str, other_root: &str) {
    let with_password =
        |more: &str| server.conninfo("with_password", &format!(r"password='it\'s \\ secret' {more}"));
    for more in [
        format!("sslmode=verify-full sslrootcert={root} channel_binding=require"),
        format!("sslmode=verify-ca sslrootcert={root}"),
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        "sslmode=allow".to_owned(),
        String::new(),
        format!("sslmode=verify-full sslrootcert={root} ssl_min_protocol_version=TLSv1.3"),
        format!(
            "sslmode=verify-full sslrootcert={root} ssl_max_protocol_version=TLSv1.2 channel_binding=require"
        ),
    ] {
        assert_eq!(has_tls(&with_password(&more)), Ok(true), "{more}");
    }
    expect_refusal(&with_password("sslmode=disable"), "no pg_hba.conf entry");
    expect_refusal(
        &server.conninfo("with_password", "password=wrong sslmode=require"),
        "password authentication failed",
    );
    // Checks the certificate's issuer, and its name.
    let stranger = format!("sslmode=verify-ca sslrootcert={other_root}");
    expect_refusal(&with_password(&stranger), "UnknownIssuer");
    expect_refusal(&with_password(&stranger), "sslmode=verify-ca");
    // With a root certificate, require means verify-ca, as in libpq.
    expect_refusal(&with_password(&format!("sslmode=require sslrootcert={other_root}")), "UnknownIssuer");
    let other_name =
        with_password(&format!("sslmode=verify-full sslrootcert={root}")).replace(NAME, "other.example.test");
    expect_refusal(&other_name, "other.example.test");
    assert_eq!(has_tls(&other_name.replace("verify-full", "verify-ca")), Ok(true));
    expect_refusal(&with_password("sslmode=verify-full sslrootcert=/nowhere/root.crt"), "/nowhere/root.crt");
    // A user for whom TLS is forbidden.
    for (mode, is_refused) in [("prefer", false), ("allow", false), ("disable", false), ("require", true)] {
        let conninfo = server.conninfo("without_tls", &format!("sslmode={mode}"));
        match is_refused {
            true => expect_refusal(&conninfo, "no pg_hba.conf entry"),
            false => assert_eq!(has_tls(&conninfo), Ok(false), "{mode}"),
        }
    }
    // Connections over a socket never use TLS, in any mode.
    let by_socket = format!("{} sslmode=verify-full sslrootcert={root}", server.cluster.dsn("postgres"));
    assert_eq!(has_tls(&by_socket), Ok(false));
}

/// Streaming replication uses another client, which must support TLS and passwords in the same way.
fn try_replication(server: &Server, authority: &Authority, files: &Files, root: &str, other_root: &str) {
    let identify = |conninfo: &str| -> Result<(u64, bool), String> {
        let parameters = Parameters::parse(conninfo).unwrap();
        let mut replication = Replication::connect(&parameters).map_err(|error| error_text(&error))?;
        let system = replication.identify().map_err(|error| error_text(&error))?;
        Ok((system.system_id, replication.is_encrypted()))
    };
    let id = server.cluster.system_identifier();
    let with_password =
        |more: &str| server.conninfo("with_password", &format!(r"password='it\'s \\ secret' {more}"));
    for more in [
        format!("sslmode=verify-full sslrootcert={root} channel_binding=require"),
        format!("sslmode=verify-full sslrootcert={root} channel_binding=disable"),
        format!("sslmode=verify-ca sslrootcert={root} ssl_max_protocol_version=TLSv1.2"),
        "sslmode=require".to_owned(),
        "sslmode=allow".to_owned(),
        String::new(),
    ] {
        assert_eq!(identify(&with_password(&more)), Ok((id, true)), "{more}");
    }
    let (certificate, key) = authority.sign(&named("with_certificate", &[]));
    let certificate = files.write("replication.crt", &certificate, 0o644);
    let key = files.write("replication.key", &key, 0o600);
    let with_certificate = format!(
        "sslmode=verify-full sslrootcert={root} sslcert={} sslkey={}",
        text(&certificate),
        text(&key)
    );
    assert_eq!(identify(&server.conninfo("with_certificate", &with_certificate)), Ok((id, true)));
    assert_eq!(identify(&server.conninfo("with_md5", "password=old sslmode=require")), Ok((id, true)));
    assert_eq!(identify(&server.cluster.dsn("postgres")), Ok((id, false)));
    for (conninfo, reason) in [
        (with_password("sslmode=disable"), "no pg_hba.conf entry"),
        (
            server.conninfo("with_password", "password=wrong sslmode=require"),
            "password authentication failed",
        ),
        (server.conninfo("with_password", "sslmode=require"), "expected a password"),
        (with_password(&format!("sslmode=verify-ca sslrootcert={other_root}")), "UnknownIssuer"),
        (
            with_password(&format!("sslmode=verify-full sslrootcert={root}"))
                .replace(NAME, "other.example.test"),
            "other.example.test",
        ),
        (
            server.conninfo("with_md5", "password=old sslmode=require channel_binding=require"),
            "expected a login with channel binding",
        ),
        (
            format!("{} channel_binding=require", server.cluster.dsn("postgres")),
            "expected a login with channel binding",
        ),
        (server.conninfo("without_tls", "sslmode=disable"), "no pg_hba.conf entry for replication"),
    ] {
        let found = identify(&conninfo).expect_err(&conninfo);
        assert!(found.contains(reason), "{conninfo}: expected {reason}, found {found}");
    }
}

fn try_client_certificates(server: &Server, authority: &Authority, files: &Files, root: &str) {
    let (certificate, key) = authority.sign(&named("with_certificate", &[]));
    let certificate = files.write("client.crt", &certificate, 0o644);
    let conninfo = |key: &Path| {
        let more = format!(
            "sslmode=verify-full sslrootcert={root} sslcert={} sslkey={}",
            text(&certificate),
            text(key)
        );
        server.conninfo("with_certificate", &more)
    };
    let private = files.write("client.key", &key, 0o600);
    assert_eq!(has_tls(&conninfo(&private)), Ok(true));
    expect_refusal(&server.conninfo("with_certificate", "sslmode=require"), "certificate");
    let readable = files.write("readable.key", &key, 0o644);
    expect_refusal(&conninfo(&readable), "permissions should be u=rw (0600)");
    expect_refusal(&conninfo(&files.write("no.key", "none", 0o600)), "no.key");
}

/// Tests that the program reads the user's files and the environment.
fn try_services_and_password_files(server: &Server, root: &str) {
    let home = Files(tempfile::tempdir().unwrap());
    let service = format!(
        "[main]\nhost={NAME}\nhostaddr={}\nport={}\nuser=with_password\nsslmode=verify-full\n",
        server.address, server.port
    );
    home.write(".pg_service.conf", &service, 0o644);
    home.write(".pgpass", &format!("{NAME}:{}:*:with_password:it's \\\\ secret\n", server.port), 0o600);
    let repo = home.0.path().join("repo");
    let check = |dsn: &str, variables: &[(&str, &str)]| {
        let run = Run::execute(
            Command::new(env!("CARGO_BIN_EXE_walden"))
                .args(["archive", "check", "--repo", text(&repo), "--dsn", dsn, "--format", "json"])
                .env("HOME", home.0.path())
                .envs(variables.iter().copied()),
        );
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        let checks = report["checks"].as_array().unwrap().clone();
        let server = checks.into_iter().find(|check| check["name"] == "server").unwrap();
        (server["status"].as_str().unwrap().to_owned(), server["found"].as_str().unwrap().to_owned())
    };
    let found = check("service=main", &[("PGSSLROOTCERT", root)]);
    assert_eq!(found.0, "ok", "{found:?}");
    let found = check("", &[("PGSERVICE", "main"), ("PGSSLROOTCERT", root)]);
    assert_eq!(found.0, "ok", "{found:?}");
    let found = check("service=main", &[("PGSSLROOTCERT", root), ("PGPASSWORD", "wrong")]);
    assert!(found.0 == "fail" && found.1.contains("password authentication failed"), "{found:?}");
    let found = check("service=main", &[]);
    assert!(found.0 == "fail" && found.1.contains("~/.postgresql/root.crt"), "{found:?}");
    fs::create_dir(home.0.path().join(".postgresql")).unwrap();
    fs::copy(root, home.0.path().join(".postgresql/root.crt")).unwrap();
    let found = check("service=main", &[]);
    assert_eq!(found.0, "ok", "{found:?}");
    home.write(".pgpass", "*:*:*:*:whatever\n", 0o644);
    let found = check("service=main", &[]);
    assert!(found.0 == "fail" && found.1.contains(".pgpass was not used"), "{found:?}");
    let found = check("postgresql://without_tls@127.0.0.1/?hots=x", &[]);
    assert!(found.0 == "fail" && found.1.contains("found \"hots\""), "{found:?}");
}

/// Self-signed certificates as in PostgreSQL's documentation, with the server's name only as the common name.
fn try_self_made_certificates(server: &Server, files: &Files) {
    let own = self_signed(&named(NAME, &[]));
    server.replace_certificate(&own);
    let root = files.write("own.crt", &own.0, 0o644);
    let conninfo =
        |more: &str| server.conninfo("with_password", &format!(r"password='it\'s \\ secret' {more}"));
    let verified =
        conninfo(&format!("sslmode=verify-full sslrootcert={} channel_binding=require", text(&root)));
    assert_eq!(has_tls(&verified), Ok(true));
    expect_refusal(&verified.replace(NAME, "other.example.test"), "other.example.test");
    let mut expired = named(NAME, &[]);
    (expired.not_before, expired.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    let expired = self_signed(&expired);
    server.replace_certificate(&expired);
    let root = files.write("expired.crt", &expired.0, 0o644);
    let verified = conninfo(&format!("sslmode=verify-ca sslrootcert={}", text(&root)));
    expect_refusal(&verified, "Expired");
}
