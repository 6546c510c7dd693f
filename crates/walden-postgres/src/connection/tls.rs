//! TLS as in libpq: which certificates are trusted, and which names they must have (`fe-secure-openssl.c`,
//! `fe-secure-common.c`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, Utf8StringRef};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::{ConnectionError, Endpoint, Parameters};

/// TLS mode: libpq's `sslmode`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS only if the server refuses connections without it.
    Allow,
    /// TLS if the server supports it.
    Prefer,
    /// Always TLS; the certificate is verified only if there is a root certificate.
    Require,
    /// TLS with a certificate signed by a trusted root certificate.
    VerifyCa,
    /// As `VerifyCa`, and the certificate must have the server's name.
    VerifyFull,
}

const MODES: [(&str, TlsMode); 6] = [
    ("disable", TlsMode::Disable),
    ("allow", TlsMode::Allow),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];

/// The value of `sslrootcert` for the certificates that the operating system trusts.
const SYSTEM_ROOTS: &str = "system";

impl Parameters {
    /// Returns the TLS mode by `sslmode`.
    ///
    /// # Errors
    /// An unknown mode, and any mode weaker than `verify-full` with the system's certificates.
    pub fn tls_mode(&self) -> Result<TlsMode, ConnectionError> {
        let failed = |problem| ConnectionError::Parameter { place: "sslmode".to_owned(), problem };
        let is_system = self.get("sslrootcert") == Some(SYSTEM_ROOTS);
        let default = if is_system { TlsMode::VerifyFull } else { TlsMode::Prefer };
        let Some(given) = self.get("sslmode") else { return Ok(default) };
        let mode = MODES.iter().find(|(name, _)| *name == given).map(|(_, mode)| *mode);
        let mode = mode.ok_or_else(|| {
            failed(format!("expected {}, found {given}", MODES.map(|(name, _)| name).join(", ")))
        })?;
        match is_system && mode < TlsMode::VerifyFull {
            true => Err(failed(format!("expected verify-full with sslrootcert=system, found {given}"))),
            false => Ok(mode),
        }
    }

    /// Returns the TLS mode for one server. Unix sockets do not use TLS.
    pub(crate) fn tls_mode_of(&self, endpoint: &Endpoint) -> Result<TlsMode, ConnectionError> {
        let mode = self.tls_mode()?;
        let has_name = self.get("host").is_some() || endpoint.address.is_none();
        if mode == TlsMode::VerifyFull && !has_name {
            return Err(ConnectionError::Parameter {
                place: "hostaddr".to_owned(),
                problem: "expected host in addition for sslmode=verify-full, found none".to_owned(),
            });
        }
        Ok(if endpoint.is_socket() { TlsMode::Disable } else { mode })
    }

    /// Describes the TLS parameters for error messages.
    pub(crate) fn describe_tls(&self, mode: TlsMode) -> String {
        let name = MODES.iter().find(|(_, known)| *known == mode).map_or("", |(name, _)| name);
        match self.root_file().filter(|_| mode >= TlsMode::Require) {
            Some(file) => format!(" (sslmode={name}, sslrootcert={})", file.display()),
            None => format!(" (sslmode={name})"),
        }
    }

    fn root_file(&self) -> Option<PathBuf> {
        self.file("sslrootcert", "root.crt")
    }

    /// Returns the configuration of the TLS library.
    ///
    /// # Errors
    /// Files and parameters that cannot be used.
    pub fn tls_config(&self) -> Result<ClientConfig, ConnectionError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let library = |error: Error| ConnectionError::Parameter {
            place: "the parameters of TLS".to_owned(),
            problem: error.to_string(),
        };
        let verifier = self.verifier(&provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.protocol_versions()?)
            .map_err(library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match self.own_certificate()? {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(library)?,
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = self.get("sslsni") != Some("0");
        if self.get("sslnegotiation") == Some("direct") {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(config)
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Verifier, ConnectionError> {
        let mode = self.tls_mode()?;
        let signatures = provider.signature_verification_algorithms;
        let file = self.root_file().filter(|file| mode >= TlsMode::VerifyCa || file.exists());
        let Some(file) = file.filter(|_| mode >= TlsMode::Require) else {
            if mode >= TlsMode::VerifyCa {
                return Err(ConnectionError::Parameter {
                    place: "sslmode".to_owned(),
                    problem: "expected a root certificate to verify the server's with, found none: name its file by sslrootcert, put it into ~/.postgresql/root.crt, or say sslrootcert=system".to_owned(),
                });
            }
            return Ok(Verifier { chain: None, trusted: Vec::new(), has_name: false, signatures });
        };
        let (mut roots, trusted) = (RootCertStore::empty(), self.trusted(&file)?);
        // A certificate that is not a certificate authority's may still be the server's own.
        roots.add_parsable_certificates(trusted.iter().cloned());
        let mut lists = Vec::new();
        if let Some(file) = self.file("sslcrl", "root.crl").filter(|file| file.exists()) {
            for list in
                CertificateRevocationListDer::pem_file_iter(&file).map_err(|error| unusable(&file, error))?
            {
                lists.push(list.map_err(|error| unusable(&file, error))?);
            }
        }
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .with_crls(lists)
            .build()
            .map_err(|error| unusable(&file, error))?;
        Ok(Verifier { chain: Some(chain), trusted, has_name: mode == TlsMode::VerifyFull, signatures })
    }

    fn trusted(&self, file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectionError> {
        if file == Path::new(SYSTEM_ROOTS) {
            return Ok(rustls_native_certs::load_native_certs().certs);
        }
        certificates(file)
    }

    /// Returns the certificate and key for a server that asks for them: the named files, or the files in
    /// `~/.postgresql`.
    #[allow(clippy::type_complexity)]
    fn own_certificate(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, ConnectionError> {
        let is_unwanted = match self.get("sslcertmode") {
            None | Some("allow" | "require") => false,
            Some("disable") => true,
            Some(other) => {
                return Err(ConnectionError::Parameter {
                    place: "sslcertmode".to_owned(),
                    problem: format!("expected disable, allow or require, found {other}"),
                });
            }
        };
        let certificate = self.file("sslcert", "postgresql.crt").filter(|_| !is_unwanted);
        let Some(certificate) = certificate.filter(|file| file.exists()) else { return Ok(None) };
        let key = self.file("sslkey", "postgresql.key").ok_or_else(|| {
            unusable(
                &certificate,
                "expected the certificate's private key in ~/.postgresql/postgresql.key, or in the file that sslkey names, found none",
            )
        })?;
        let metadata = std::fs::metadata(&key).map_err(|error| unusable(&key, error))?;
        // The group may read a key that root owns (`initialize_SSL`).
        let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
        if metadata.mode() & forbidden != 0 {
            return Err(unusable(
                &key,
                "group or others may access the private key; its permissions should be u=rw (0600) or less, or, of root's, u=rw,g=r (0640)",
            ));
        }
        let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| {
            unusable(&key, format!("{error} (expected a private key in PEM without a password)"))
        })?;
        Ok(Some((certificates(&certificate)?, private)))
    }

    /// Returns the versions from `ssl_min_protocol_version` to `ssl_max_protocol_version`.
    fn protocol_versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, ConnectionError> {
        const VERSIONS: [(&str, &SupportedProtocolVersion); 2] =
            [("TLSv1.2", &rustls::version::TLS12), ("TLSv1.3", &rustls::version::TLS13)];
        let position = |name: &str, default: usize| match self.get(name) {
            None => Ok(default),
            // Older versions are not supported here.
            Some("TLSv1" | "TLSv1.1") if default == 0 => Ok(0),
            Some(given) => VERSIONS.iter().position(|(known, _)| *known == given).ok_or_else(|| {
                ConnectionError::Parameter {
                    place: name.to_owned(),
                    problem: format!("expected TLSv1.2 or TLSv1.3, found {given}"),
                }
            }),
        };
        let (first, last) =
            (position("ssl_min_protocol_version", 0)?, position("ssl_max_protocol_version", 1)?);
        let versions = VERSIONS.get(first..=last).unwrap_or_default();
        Ok(versions.iter().map(|(_, version)| *version).collect())
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectionError> {
    let found = CertificateDer::pem_file_iter(file).map_err(|error| unusable(file, error))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.map_err(|error| unusable(file, error))?;
    match found.is_empty() {
        true => Err(unusable(file, "expected a certificate in PEM, found none")),
        false => Ok(found),
    }
}

fn unusable(file: &Path, problem: impl ToString) -> ConnectionError {
    ConnectionError::File { path: file.to_owned(), problem: problem.to_string() }
}

/// Verifies a server's certificate as far as the mode demands. Always verifies that the server has the
/// certificate's key.
#[derive(Debug)]
struct Verifier {
    /// `None` if every certificate is accepted.
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// The root certificates, among which may be the certificate of the server itself.
    trusted: Vec<CertificateDer<'static>>,
    /// Whether the certificate must have the server's name.
    has_name: bool,
    signatures: rustls::crypto::WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        if self.trusted.iter().any(|trusted| trusted.as_ref() == certificate.as_ref()) {
            // A self-signed certificate of the server, copied to the client; it is not a certificate
            // authority's.
            verify_dates(certificate, now)?;
        } else {
            match chain.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
                // The name is checked last, and below.
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        if self.has_name {
            verify_name(certificate, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.signatures)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.signatures)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_schemes()
    }
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
}

fn verify_dates(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let validity = parse(certificate)?.tbs_certificate.validity;
    let seconds = |time: x509_cert::time::Time| time.to_unix_duration().as_secs();
    if now.as_secs() < seconds(validity.not_before) {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    match now.as_secs() > seconds(validity.not_after) {
        true => Err(Error::InvalidCertificate(CertificateError::Expired)),
        false => Ok(()),
    }
}

/// Verifies the name. The names in the certificate's extension decide; if it has none, the common name does
/// (`pq_verify_peer_name_matches_certificate`).
fn verify_name(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let by_extension = rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name);
    let Err(error) = by_extension else { return Ok(()) };
    let parsed = parse(certificate)?.tbs_certificate;
    let names = parsed.get::<SubjectAltName>().ok().flatten();
    let is_name = |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
    let has_names = names.is_some_and(|(_, names)| names.0.iter().any(is_name));
    let common_names = parsed.subject.0.iter().flat_map(|names| names.0.iter());
    let fits = |found: &str| fits_name(found, &name.to_str());
    match !has_names && common_names.filter_map(common_name).any(|found| fits(&found)) {
        true => Ok(()),
        false => Err(error),
    }
}

fn common_name(attribute: &x509_cert::attr::AttributeTypeAndValue) -> Option<String> {
    const COMMON_NAME: &str = "2.5.4.3";
    if attribute.oid.to_string() != COMMON_NAME {
        return None;
    }
    let value = &attribute.value;
    let text = Utf8StringRef::try_from(value).ok().map(|text| text.to_string());
    let text = text.or_else(|| PrintableStringRef::try_from(value).ok().map(|text| text.to_string()));
    text.or_else(|| Ia5StringRef::try_from(value).ok().map(|text| text.to_string()))
}

/// Returns whether a common name matches a host. An asterisk as its first label matches one label
/// (`wildcard_certificate_match`).
fn fits_name(found: &str, host: &str) -> bool {
    if found.eq_ignore_ascii_case(host) {
        return true;
    }
    let (Some(pattern), Some((_, domain))) = (found.strip_prefix("*."), host.split_once('.')) else {
        return false;
    };
    pattern.contains('.') && pattern.eq_ignore_ascii_case(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_fit_as_libpq_says() {
        for (found, host, fits) in [
            ("db.example.net", "DB.example.net", true),
            ("*.example.net", "db.example.net", true),
            ("*.example.net", "a.db.example.net", false),
            ("*.example.net", "example.net", false),
            ("*.net", "example.net", false),
            ("*", "localhost", false),
            ("localhost", "127.0.0.1", false),
        ] {
            assert_eq!(fits_name(found, host), fits, "{found} {host}");
        }
    }

    #[test]
    fn modes_are_libpqs() {
        let mode = |text: &str| Parameters::parse(text).unwrap().tls_mode();
        assert_eq!(mode("sslmode=allow").unwrap(), TlsMode::Allow);
        assert_eq!(mode("sslrootcert=system").unwrap(), TlsMode::VerifyFull);
        for wrong in ["sslmode=yes", "sslmode=require sslrootcert=system"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
