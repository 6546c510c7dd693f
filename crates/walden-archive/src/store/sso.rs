//! Credentials of a profile that logs in by IAM Identity Center (`aws sso login`).

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use object_store::aws::AwsCredential;
use object_store::client::{HttpConnector as _, HttpRequest, HttpRequestBody, ReqwestConnector};
use object_store::{ClientOptions, HeaderValue};
use serde::Deserialize;
use sha1::{Digest as _, Sha1};
use url::Url;
use walden_source::error_text;

/// Names the service's URL instead of that of the region.
const ENDPOINT: &str = "AWS_ENDPOINT_URL_SSO";
/// Time limit of the request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of bytes of the file with the token, and of the answer.
const MAX_BYTES: usize = 1 << 20;

/// The settings of a login.
#[derive(Debug)]
pub(super) struct Sso {
    /// What the name of the file with the token is made of: the name of the session, or the start URL.
    cached_as: String,
    region: String,
    account: String,
    role: String,
}

/// The file with the token, which `aws sso login` writes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    access_token: String,
    expires_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    role_credentials: RoleCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970-01-01 00:00:00 UTC.
    expiration: i64,
}

impl Sso {
    /// Reads the settings of a profile; `session` is the section `[sso-session NAME]` that it names. `None`
    /// if the profile has no account and role.
    pub fn new(
        profile: impl Fn(&str) -> Option<String>,
        session: Option<(String, BTreeMap<String, String>)>,
    ) -> Option<Sso> {
        let (account, role) = (profile("sso_account_id")?, profile("sso_role_name")?);
        let (cached_as, region) = match session {
            Some((name, section)) => (name, section.get("sso_region").cloned()),
            None => (profile("sso_start_url")?, profile("sso_region")),
        };
        Some(Sso { cached_as, region: region?, account, role })
    }

    /// Requests the credentials of the role. Also returns when they expire.
    ///
    /// # Errors
    /// A description of the problem.
    pub async fn request(&self) -> Result<(AwsCredential, Timestamp), String> {
        let token = self.token()?;
        let endpoint = env::var(ENDPOINT).ok().filter(|endpoint| !endpoint.is_empty());
        let domain = if self.region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://portal.sso.{}.{domain}", self.region));
        let mut url: Url = endpoint.parse().map_err(|error| format!("cannot use {endpoint}: {error}"))?;
        url.set_path("/federation/credentials");
        url.query_pairs_mut().extend_pairs([("role_name", &self.role), ("account_id", &self.account)]);
        let options = ClientOptions::new().with_allow_http(true).with_timeout(TIMEOUT);
        let client = ReqwestConnector::default().connect(&options).map_err(|error| error_text(&error))?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() =
            url.as_str().parse().map_err(|error| format!("cannot use {endpoint}: {error}"))?;
        let mut token =
            HeaderValue::from_str(&token).map_err(|_| "expected a token, found other characters")?;
        token.set_sensitive(true);
        request.headers_mut().insert("x-amz-sso_bearer_token", token);
        let response = client.execute(request).await.map_err(|error| error_text(&error))?;
        let status = response.status();
        let (mut pieces, mut body) = (response.into_body().bytes_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| error_text(&error))?);
            if body.len() > MAX_BYTES {
                return Err(format!("expected an answer of at most {MAX_BYTES} bytes, found more"));
            }
        }
        if !status.is_success() {
            return Err(format!("expected the credentials of {} from {endpoint}, found {status}", self.role));
        }
        // The text may contain the secret.
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| {
            format!("expected JSON with roleCredentials, found an error at column {}", error.column())
        })?;
        let RoleCredentials { access_key_id, secret_access_key, session_token, expiration } =
            answer.role_credentials;
        let expires = Timestamp::from_millisecond(expiration);
        let expires = expires.map_err(|error| format!("expected a time in expiration: {error}"))?;
        let token = Some(session_token);
        Ok((AwsCredential { key_id: access_key_id, secret_key: secret_access_key, token }, expires))
    }

    /// Reads the token of the last login.
    fn token(&self) -> Result<String, String> {
        const REMEDY: &str = "log in by aws sso login";
        let name: String = Sha1::digest(&self.cached_as).iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = env::home_dir().unwrap_or_default().join(".aws/sso/cache");
        let path: PathBuf = folder.join(format!("{name}.json"));
        let cannot = |problem: String| format!("cannot read {}: {problem}; {REMEDY}", path.display());
        let mut text = Vec::new();
        let file = File::open(&path).map_err(|error| cannot(error.to_string()))?;
        file.take(MAX_BYTES as u64).read_to_end(&mut text).map_err(|error| cannot(error.to_string()))?;
        let cached: Cached = serde_json::from_slice(&text).map_err(|error| {
            cannot(format!("expected a token, found an error at column {}", error.column()))
        })?;
        let expires: Timestamp = cached.expires_at.replace("UTC", "Z").parse().map_err(|error| {
            cannot(format!("expected a time in expiresAt, found {:?}: {error}", cached.expires_at))
        })?;
        match expires > Timestamp::now() {
            true => Ok(cached.access_token),
            false => Err(format!("expected a login that lasts, found one that ended at {expires}: {REMEDY}")),
        }
    }
}
