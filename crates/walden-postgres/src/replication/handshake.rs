//! From an open socket to a server that accepts commands: TLS, the startup message, the password.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ChannelBinding, ScramSha256};
use tokio_postgres::Config;
use tokio_postgres::config::ChannelBinding as Wanted;

use super::message::Authentication;
use super::transport::{Keepalive, Transport};
use super::{Replication, ReplicationError, protocol};
use crate::connection::{ConnectionError, Endpoint, Parameters, TlsMode};

/// SSLRequest: a length, and a number instead of a protocol version (`NEGOTIATE_SSL_CODE` in `pqcomm.h`).
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// Version 3.0 of the protocol.
const PROTOCOL_VERSION: u32 = 3 << 16;
/// SQLSTATE if `pg_hba.conf` has no line for this kind of connection. It may have a line for the same
/// connection with or without TLS.
const NOT_ADMITTED: &str = "28000";

/// Connects with the wanted TLS mode as libpq does: if the server refuses TLS, tries plain text, and vice
/// versa, as `sslmode` allows.
pub(super) fn connect(parameters: &Parameters, endpoint: &Endpoint) -> Result<Replication, ReplicationError> {
    let mode = parameters.tls_mode_of(endpoint)?;
    let attempt = |mode| Attempt { parameters, endpoint, mode }.connect();
    let is_refused =
        |error: &ReplicationError| matches!(error.server_error(), Some(error) if error.code == NOT_ADMITTED);
    match mode {
        TlsMode::Allow => match attempt(TlsMode::Disable) {
            Err(error) if is_refused(&error) => attempt(TlsMode::Require),
            other => other,
        },
        TlsMode::Prefer => match attempt(TlsMode::Prefer) {
            Err(error) if is_refused(&error) || matches!(error, ReplicationError::Tls { .. }) => {
                // The first error is more helpful: without TLS, the server may have no matching line at all.
                attempt(TlsMode::Disable).map_err(|_| error)
            }
            other => other,
        },
        other => attempt(other),
    }
}

struct Attempt<'p> {
    parameters: &'p Parameters,
    endpoint: &'p Endpoint,
    mode: TlsMode,
}

impl Attempt<'_> {
    fn connect(&self) -> Result<Replication, ReplicationError> {
        let config = self.parameters.config(self.endpoint)?;
        let transport = self.connect_transport(&config)?;
        let mut replication = Replication::new(transport, self.endpoint.to_string());
        self.log_in(&mut replication, &config)?;
        Ok(replication)
    }

    fn connect_transport(&self, config: &Config) -> Result<Transport, ReplicationError> {
        let failed = |source| ReplicationError::Connect {
            place: self.endpoint.to_string(),
            notes: String::new(),
            source,
        };
        let keepalive = config.get_keepalives().then(|| Keepalive {
            idle: config.get_keepalives_idle(),
            interval: config.get_keepalives_interval(),
            retries: config.get_keepalives_retries(),
        });
        let limit = config.get_connect_timeout().copied();
        let mut transport = Transport::connect(self.endpoint, limit, keepalive.as_ref()).map_err(failed)?;
        if self.mode == TlsMode::Disable {
            return Ok(transport);
        }
        let is_direct = self.parameters.get("sslnegotiation") == Some("direct");
        if !is_direct && !ask_for_tls(&mut transport).map_err(failed)? {
            if self.mode == TlsMode::Prefer {
                return Ok(transport);
            }
            return Err(self.untrusted("expected TLS, found that the server has none".to_owned()));
        }
        let tls = self.parameters.tls_config()?;
        transport
            .start_tls(tls, &self.endpoint.host)
            .map_err(|error| self.untrusted(walden_source::error_text(&error)))?;
        Ok(transport)
    }

    fn log_in(&self, replication: &mut Replication, config: &Config) -> Result<(), ReplicationError> {
        let user = config.get_user().unwrap_or_default();
        let first = startup_message(user, config);
        let limit = config.get_connect_timeout().copied().unwrap_or(super::ANSWER_WITHIN);
        replication.transport.deadline = Some(Instant::now() + limit.max(Duration::from_secs(2)));
        replication.transport.write_all(&first).map_err(ReplicationError::Lost)?;

        let mut scram: Option<ScramSha256> = None;
        let mut is_proved = false;
        loop {
            let message = replication.wait_for_message()?;
            match message.kind {
                b'R' => {}
                // The key for cancelling queries; protocol options that the server does not know.
                b'K' | b'v' => continue,
                b'Z' => break,
                _ => return Err(protocol("a request to log in", &message)),
            }
            let Some(wanted) = Authentication::parse(message.content) else {
                return Err(protocol("a request to log in", &message));
            };
            let answer = match wanted {
                Authentication::Ok => {
                    if must_bind(config) && !is_proved {
                        return Err(self
                            .refused("expected a login with channel binding, found one without".to_owned()));
                    }
                    continue;
                }
                Authentication::CleartextPassword => zero_ended(self.password(config)?),
                Authentication::Md5Password(salt) => {
                    zero_ended(md5_hash(user.as_bytes(), self.password(config)?, salt).as_bytes())
                }
                Authentication::Sasl(mechanisms) => {
                    let (name, binding) = self.choose(&mechanisms, replication, config)?;
                    is_proved = name == sasl::SCRAM_SHA_256_PLUS;
                    let begun = scram.insert(ScramSha256::new(self.password(config)?, binding));
                    let data = begun.message();
                    [&zero_ended(name.as_bytes())[..], &(data.len() as u32).to_be_bytes(), data].concat()
                }
                Authentication::SaslContinue(data) => {
                    let begun = scram.as_mut().ok_or_else(|| self.refused(out_of_order()))?;
                    begun.update(&data).map_err(|error| self.refused(error.to_string()))?;
                    begun.message().to_vec()
                }
                Authentication::SaslFinal(data) => {
                    let begun = scram.as_mut().ok_or_else(|| self.refused(out_of_order()))?;
                    begun.finish(&data).map_err(|error| self.refused(error.to_string()))?;
                    continue;
                }
                Authentication::Other(number) => {
                    return Err(self.refused(format!(
                        "expected a password, SCRAM or trust, found authentication method {number}"
                    )));
                }
            };
            let length = (answer.len() as u32 + 4).to_be_bytes();
            let answer = [&b"p"[..], &length, &answer].concat();
            replication.transport.write_all(&answer).map_err(ReplicationError::Lost)?;
        }
        replication.transport.deadline = None;
        Ok(())
    }

    fn choose(
        &self,
        mechanisms: &[String],
        replication: &Replication,
        config: &Config,
    ) -> Result<(&'static str, ChannelBinding), ReplicationError> {
        let has = |wanted: &str| mechanisms.iter().any(|name| name == wanted);
        let may_bind = !matches!(config.get_channel_binding(), Wanted::Disable);
        let hash = replication.transport.certificate_hash().filter(|_| may_bind);
        match hash {
            Some(hash) if has(sasl::SCRAM_SHA_256_PLUS) => {
                Ok((sasl::SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash)))
            }
            _ if must_bind(config) => {
                Err(self
                    .refused(format!("expected SCRAM with channel binding, found {}", mechanisms.join(", "))))
            }
            // Reports to the server that the client supports channel binding, so that an attacker in between
            // cannot hide the server's.
            hash if has(sasl::SCRAM_SHA_256) => Ok(match hash {
                Some(_) => (sasl::SCRAM_SHA_256, ChannelBinding::unrequested()),
                None => (sasl::SCRAM_SHA_256, ChannelBinding::unsupported()),
            }),
            _ => Err(self.refused(format!(
                "expected {} among the ways to log in, found {}",
                sasl::SCRAM_SHA_256,
                mechanisms.join(", ")
            ))),
        }
    }

    fn password<'c>(&self, config: &'c Config) -> Result<&'c [u8], ReplicationError> {
        config.get_password().ok_or_else(|| {
            self.refused(
                "expected a password (password=, PGPASSWORD or a line in the password file), found none"
                    .to_owned(),
            )
        })
    }

    fn untrusted(&self, problem: String) -> ReplicationError {
        let notes = self.parameters.describe_tls(self.mode);
        ReplicationError::Tls { place: self.endpoint.to_string(), problem, notes }
    }

    fn refused(&self, problem: String) -> ReplicationError {
        let mut notes = String::new();
        if let Some(file) = self.parameters.unused_password_file(self.endpoint) {
            notes += &ConnectionError::unused_password_file(&file);
        }
        ReplicationError::Authentication { place: self.endpoint.to_string(), problem, notes }
    }
}

/// Returns the startup message of a replication connection.
fn startup_message(user: &str, config: &Config) -> Vec<u8> {
    let mut first = Vec::new();
    let parameters = [
        ("user", Some(user)),
        // No database of this name is opened. Password files have it in their lines for replication.
        ("database", Some("replication")),
        ("replication", Some("true")),
        ("application_name", config.get_application_name()),
        ("options", config.get_options()),
    ];
    for (name, value) in parameters {
        if let Some(value) = value {
            first.extend([name.as_bytes(), &[0], value.as_bytes(), &[0]].concat());
        }
    }
    first.push(0);
    let length = (first.len() as u32 + 8).to_be_bytes();
    [&length[..], &PROTOCOL_VERSION.to_be_bytes(), &first].concat()
}

fn must_bind(config: &Config) -> bool {
    matches!(config.get_channel_binding(), Wanted::Require)
}

fn out_of_order() -> String {
    "expected the start of SCRAM, found its continuation".to_owned()
}

fn zero_ended(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[0]].concat()
}

/// Asks whether the server supports TLS. Reads only the answer: further bytes would be unprotected.
fn ask_for_tls(transport: &mut Transport) -> io::Result<bool> {
    transport.write_all(&TLS_REQUEST)?;
    let mut answer = [0];
    loop {
        match transport.read(&mut answer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => transport.wait_until_deadline(false)?,
            Err(error) => return Err(error),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
        }
    }
    match answer {
        [b'S'] => Ok(true),
        [b'N'] => Ok(false),
        [other] => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!(
                "expected S or N as the server's answer to the request for TLS, found '{}'",
                other.escape_ascii()
            ),
        )),
    }
}
