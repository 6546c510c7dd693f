//! Clients of the object stores of each cloud, by the scheme of the URL.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderName;
use md5::{Digest as _, Md5};
#[cfg(feature = "encryption")]
use object_store::aws::AwsCredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpConnector as _;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ClientOptions, HeaderMap, HeaderValue, ObjectStore, RetryConfig};
use url::Url;

use super::client::PacedConnector;
use super::client_error::failure;
use super::object_lock::{AmendingConnector, Bucket, Signing};
use super::profile::{self, Profile, Source};
use super::versions::LockRule;
use super::{Cause, StoreError};

/// The setting that names a header which the store understands instead of `If-None-Match: *`: with the value
/// `true`, it refuses to replace an object.
const CREATE_HEADER: &str = "create_header";
/// Region of a store that needs none.
const DEFAULT_REGION: &str = "us-east-1";

/// Clients of one bucket or container.
pub(super) struct Clients {
    /// Limits the time of each request.
    pub limited: Arc<dyn ObjectStore>,
    /// Has no time limit of its own, for requests with content.
    pub unlimited: Arc<dyn ObjectStore>,
    /// The same, and sends a checksum header with each object.
    pub checked: Arc<dyn ObjectStore>,
    /// The same, and locks each object.
    pub locked: Option<Arc<dyn ObjectStore>>,
    /// Versions and locks of a bucket of S3.
    pub bucket: Option<Bucket>,
}

/// Whether a URL of this scheme names an object store.
pub(crate) fn is_object_store(scheme: &str) -> bool {
    matches!(scheme, "s3" | "az" | "azure" | "abfs" | "abfss" | "gs" | "swift")
}

impl Clients {
    /// Creates the clients for a URL. Settings come from the environment, and from `options`, which have
    /// precedence. `timeout` is the time of a request without content, unless a setting names one.
    pub fn new(
        url: &str,
        options: &[(String, String)],
        rule: Option<LockRule>,
        timeout: Duration,
        retries: RetryConfig,
        connector: &PacedConnector,
    ) -> Result<Clients, StoreError> {
        match url.split_once("://").map_or("", |(scheme, _)| scheme) {
            "s3" => s3(url, options, rule, timeout, retries, connector),
            "gs" => google(url, options, timeout, retries, connector),
            _ => azure(url, options, timeout, retries, connector),
        }
    }
}

/// Applies the settings of the environment and the options to a builder, each of which has its own type.
/// Evaluates to the builder and the options of its HTTP client.
macro_rules! configure {
    ($builder:expr, $Key:ident, $endpoint:expr, $prefix:literal, $url:expr, $options:expr) => {{
        let mut builder = $builder;
        // The scheme of the endpoint decides whether the connection is encrypted.
        let mut client = ClientOptions::new().with_allow_http(true);
        let of_environment = variables($prefix).map(|variable| (variable, false));
        let given = $options.iter().cloned().map(|option| (option, true));
        for ((name, value), is_required) in of_environment.chain(given) {
            let key: $Key = match name.to_ascii_lowercase().parse() {
                Ok(key) => key,
                Err(error) if is_required => return Err(failure("open", "the archive", $url, error)),
                Err(_) => continue,
            };
            if key == $endpoint {
                check_endpoint($url, &name, &value)?;
            }
            match key {
                $Key::Client(key) => client = client.with_config(key, value),
                key => builder = builder.with_config(key, value),
            }
        }
        (builder, client)
    }};
}

fn s3(
    url: &str,
    options: &[(String, String)],
    rule: Option<LockRule>,
    timeout: Duration,
    retries: RetryConfig,
    connector: &PacedConnector,
) -> Result<Clients, StoreError> {
    let (builder, client, create_header) = s3_builder(url, options, retries, connector)?;
    let customer_key = check_encryption(&builder).map_err(|problem| invalid(url, problem))?;
    let checked = builder.clone().with_checksum_algorithm(Checksum::SHA256);
    let build = |builder: &AmazonS3Builder, client| builder.clone().with_client_options(client).build();
    let made = clients(url, client.clone(), timeout, |client, is_checked| {
        Ok(Arc::new(build(if is_checked { &checked } else { &builder }, client)?))
    })?;
    let setting = |key| builder.get_config_value(&key).filter(|value| !value.is_empty());
    if is_unsigned(&builder) {
        // Versions, locks and another header need signatures.
        let needs = [("lock_days", rule.is_some()), (CREATE_HEADER, create_header.is_some())];
        return match needs.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => {
                Err(invalid(url, format!("cannot use {name} without signatures (skip_signature)")))
            }
            None => Ok(made),
        };
    }
    let failed = |error| failure("open", "the archive", url, error);
    let region = setting(AmazonS3ConfigKey::Region).unwrap_or_else(|| DEFAULT_REGION.to_owned());
    let has_timeout = client.get_config_value(&ClientConfigKey::Timeout).is_some();
    let own = if has_timeout { client } else { client.with_timeout_disabled() };
    let store = build(&builder, own.clone()).map_err(failed)?;
    let signing = Signing { credentials: Arc::clone(store.credentials()), region, service: "s3" };
    let amended = |builder: &AmazonS3Builder, rule| -> Result<Arc<dyn ObjectStore>, StoreError> {
        let (create_header, signing) = (create_header.clone(), signing.clone());
        let amending = AmendingConnector { rule, create_header, signing, connector: connector.clone() };
        let builder = builder.clone().with_http_connector(amending);
        Ok(Arc::new(build(&builder, own.clone()).map_err(failed)?))
    };
    let locked = rule.map(|rule| amended(&checked, Some(rule))).transpose()?;
    let (unlimited, checked) = match create_header {
        Some(_) => (amended(&builder, None)?, amended(&checked, None)?),
        None => (made.unlimited, made.checked),
    };
    let client = connector.connect(&own).map_err(failed)?;
    let bucket = Some(Bucket { client, store, signing, rule, customer_key });
    Ok(Clients { limited: made.limited, unlimited, checked, locked, bucket })
}

/// Applies the settings of S3, of the environment, and of a profile. Also returns the options of its HTTP
/// client, and the header of [`CREATE_HEADER`].
fn s3_builder(
    url: &str,
    options: &[(String, String)],
    retries: RetryConfig,
    connector: &PacedConnector,
) -> Result<(AmazonS3Builder, ClientOptions, Option<HeaderName>), StoreError> {
    let builder = AmazonS3Builder::from_env()
        .with_url(url)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_http_connector(connector.clone())
        .with_retry(retries);
    let is_profile = |name: &str| matches!(&*name.to_ascii_lowercase(), "profile" | "aws_profile");
    let (profile, options): (Vec<_>, Vec<_>) =
        options.iter().cloned().partition(|(name, _)| is_profile(name));
    let profile = profile.into_iter().next().map(|(_, name)| name);
    let (header, options): (Vec<_>, Vec<_>) =
        options.into_iter().partition(|(name, _)| name.eq_ignore_ascii_case(CREATE_HEADER));
    let header = header.into_iter().next().map(|(name, value)| {
        let header = value.to_ascii_lowercase().parse::<HeaderName>();
        header.map_err(|_| {
            let expected = "expected the name of a header, such as x-oss-forbid-overwrite";
            invalid(url, format!("cannot use {name}: {expected}, found \"{}\"", value.escape_default()))
        })
    });
    let header = header.transpose()?;
    let (builder, client) =
        configure!(builder, AmazonS3ConfigKey, AmazonS3ConfigKey::Endpoint, "AWS_", url, options);
    Ok((with_profile(builder, url, profile.as_deref(), &options)?, client, header))
}

/// Returns the credentials of AWS, as an archive in S3 with these options has them, and the options of its
/// HTTP client.
#[cfg(feature = "encryption")]
pub(super) fn credentials(
    options: &[(String, String)],
    retries: RetryConfig,
    connector: &PacedConnector,
) -> Result<(AwsCredentialProvider, ClientOptions), StoreError> {
    // The bucket is not used.
    let url = "s3://credentials";
    let (builder, client, _) = s3_builder(url, options, retries, connector)?;
    let store = builder.with_client_options(client.clone()).build();
    let store = store.map_err(|error| failure("open", "the archive", url, error))?;
    Ok((Arc::clone(store.credentials()), client))
}

/// Returns whether requests are sent without signatures.
fn is_unsigned(builder: &AmazonS3Builder) -> bool {
    let value = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
    value.is_some_and(|value| !value.is_empty() && value != "false")
}

/// Adds the region, endpoint and credentials of a profile. `named` is that of the configuration, which has
/// precedence over keys in the environment.
fn with_profile(
    builder: AmazonS3Builder,
    url: &str,
    named: Option<&str>,
    options: &[(String, String)],
) -> Result<AmazonS3Builder, StoreError> {
    use AmazonS3ConfigKey as Key;
    let has = |builder: &AmazonS3Builder, key| {
        builder.get_config_value(&key).is_some_and(|value| !value.is_empty())
    };
    let is_key = |name: &str| matches!(name.to_ascii_lowercase().parse(), Ok(Key::AccessKeyId));
    if let (Some(name), Some((key, _))) = (named, options.iter().find(|(name, _)| is_key(name))) {
        return Err(invalid(url, format!("cannot use profile = \"{name}\" and {key}: expected one of them")));
    }
    if is_unsigned(&builder) {
        return Ok(builder);
    }
    let variable = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
    let name = named.or(variable.as_deref());
    let of_environment = [
        Key::AccessKeyId,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
    ];
    let mut of_environment = of_environment.into_iter();
    let has_credentials = match (named, name) {
        (Some(_), _) => false,
        (None, Some(_)) => has(&builder, Key::AccessKeyId),
        (None, None) => of_environment.any(|key| has(&builder, key)),
    };
    if has_credentials && name.is_none() {
        return Ok(builder);
    }
    let found = profile::read(name).map_err(|problem| invalid(url, problem))?;
    let Some(Profile { region, endpoint, credentials }) = found else { return Ok(builder) };
    let mut builder = builder;
    if let Some(region) = region.filter(|_| !has(&builder, Key::Region)) {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = endpoint.filter(|_| !has(&builder, Key::Endpoint)) {
        check_endpoint(url, "endpoint_url of the profile", &endpoint)?;
        builder = builder.with_endpoint(endpoint);
    }
    Ok(match credentials.filter(|_| !has_credentials) {
        Some(Source::Provider(provider)) => builder.with_credentials(provider),
        // The client library would use the keys.
        Some(Source::WebIdentity { .. }) if has(&builder, Key::AccessKeyId) => {
            let problem = "cannot use a profile with web_identity_token_file: expected no keys in the environment, found AWS_ACCESS_KEY_ID";
            return Err(invalid(url, problem.to_owned()));
        }
        Some(Source::WebIdentity { token_file, role }) => {
            builder.with_config(Key::WebIdentityTokenFile, token_file).with_config(Key::RoleArn, role)
        }
        None => builder,
    })
}

/// Checks the settings of encryption in the store, some of which the client library ignores without others.
/// Returns the headers of requests for objects that the user's own key encrypts (SSE-C).
fn check_encryption(builder: &AmazonS3Builder) -> Result<HeaderMap, String> {
    let setting = |name: &str| {
        let value = builder.get_config_value(&name.parse().ok()?);
        value.filter(|value| !value.is_empty())
    };
    let kind = setting("server_side_encryption");
    let is_kms = matches!(kind.as_deref(), Some("aws:kms" | "aws:kms:dsse"));
    for name in ["sse_kms_key_id", "sse_bucket_key_enabled"] {
        if setting(name).is_some() && !is_kms {
            let found = kind.as_deref().map_or("none".to_owned(), |kind| format!("\"{kind}\""));
            return Err(format!(
                "cannot use {name}: expected server_side_encryption = \"aws:kms\" or \"aws:kms:dsse\", found {found}"
            ));
        }
    }
    let mut headers = HeaderMap::new();
    match (kind.as_deref(), setting("sse_customer_key_base64")) {
        (Some("sse-c"), Some(key)) => {
            let bytes = BASE64_STANDARD.decode(&key).ok().filter(|bytes| bytes.len() == 32).ok_or(
                "cannot use sse_customer_key_base64: expected 32 bytes in base64 (openssl rand -base64 32), found something else",
            )?;
            let digest = BASE64_STANDARD.encode(Md5::digest(bytes));
            // Both are valid characters.
            if let (Ok(mut key), Ok(digest)) = (HeaderValue::from_str(&key), HeaderValue::from_str(&digest)) {
                key.set_sensitive(true);
                headers.insert(
                    "x-amz-server-side-encryption-customer-algorithm",
                    HeaderValue::from_static("AES256"),
                );
                headers.insert("x-amz-server-side-encryption-customer-key", key);
                headers.insert("x-amz-server-side-encryption-customer-key-md5", digest);
            }
        }
        (Some("sse-c"), None) => {
            return Err(
                "cannot use server_side_encryption = \"sse-c\": expected sse_customer_key_base64, found none"
                    .to_owned(),
            );
        }
        (_, Some(_)) => {
            return Err("cannot use sse_customer_key_base64: expected server_side_encryption = \"sse-c\", found another".to_owned());
        }
        (_, None) => {}
    }
    Ok(headers)
}

fn azure(
    url: &str,
    options: &[(String, String)],
    timeout: Duration,
    retries: RetryConfig,
    connector: &PacedConnector,
) -> Result<Clients, StoreError> {
    let builder = MicrosoftAzureBuilder::from_env()
        .with_url(url)
        .with_retry(retries)
        .with_http_connector(connector.clone());
    let (builder, client) =
        configure!(builder, AzureConfigKey, AzureConfigKey::Endpoint, "AZURE_", url, options);
    clients(url, client, timeout, |client, _| {
        Ok(Arc::new(builder.clone().with_client_options(client).build()?))
    })
}

fn google(
    url: &str,
    options: &[(String, String)],
    timeout: Duration,
    retries: RetryConfig,
    connector: &PacedConnector,
) -> Result<Clients, StoreError> {
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_url(url)
        .with_retry(retries)
        .with_http_connector(connector.clone());
    let (builder, client) =
        configure!(builder, GoogleConfigKey, GoogleConfigKey::BaseUrl, "GOOGLE_", url, options);
    clients(url, client, timeout, |client, _| {
        Ok(Arc::new(builder.clone().with_client_options(client).build()?))
    })
}

/// Builds the clients. `build` receives the options of the HTTP client, and whether to send checksums.
fn clients(
    url: &str,
    options: ClientOptions,
    timeout: Duration,
    build: impl Fn(ClientOptions, bool) -> object_store::Result<Arc<dyn ObjectStore>>,
) -> Result<Clients, StoreError> {
    let has_timeout = options.get_config_value(&ClientConfigKey::Timeout).is_some();
    let [limited, unlimited] = match has_timeout {
        true => [options.clone(), options],
        false => [options.clone().with_timeout(timeout), options.with_timeout_disabled()],
    };
    let build = |options, is_checked| {
        build(options, is_checked).map_err(|error| failure("open", "the archive", url, error))
    };
    Ok(Clients {
        limited: build(limited, false)?,
        unlimited: build(unlimited.clone(), false)?,
        checked: build(unlimited, true)?,
        locked: None,
        bucket: None,
    })
}

/// Returns the variables of the environment whose name starts with a prefix.
pub(super) fn variables(prefix: &'static str) -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(move |(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(prefix))?;
        Some((name, value.into_string().ok()?))
    })
}

/// Checks the URL of a store's endpoint, which the client library does not validate.
pub(super) fn check_endpoint(location: &str, setting: &str, endpoint: &str) -> Result<(), StoreError> {
    let problem = match Url::parse(endpoint) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => "no such scheme".to_owned(),
        Ok(url) if url.host_str().is_none_or(str::is_empty) => "no host".to_owned(),
        Ok(_) => return Ok(()),
        Err(error) => error.to_string(),
    };
    let text = format!(
        "cannot use {setting} = \"{endpoint}\": expected a URL such as https://minio.example.net:9000, found {problem}"
    );
    Err(invalid(location, text))
}

pub(super) fn invalid(location: &str, problem: String) -> StoreError {
    StoreError {
        operation: "open",
        key: "the archive".to_owned(),
        location: location.to_owned(),
        cause: Cause::Other,
        source: Some(problem.into()),
    }
}
