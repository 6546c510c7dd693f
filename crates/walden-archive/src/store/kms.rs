//! Requests to the key management service (KMS) of AWS.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt as _;
use object_store::client::{HttpClient, HttpConnector as _, HttpRequest};
use object_store::{HeaderValue, RetryConfig};
use serde::Deserialize;
use tokio::runtime::Builder;
use url::Url;

use super::client::PacedConnector;
use super::clouds;
use super::object_lock::Signing;
use super::remote::catch_panics;

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of attempts of a request that fails for a reason that may pass.
const ATTEMPTS: u32 = 4;
/// Pause after the first attempt. It doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// Names the service's URL instead of that of the key's region.
const ENDPOINT: &str = "AWS_ENDPOINT_URL_KMS";

/// Encrypts or decrypts bytes with a key, whose ARN has the form `arn:aws:kms:REGION:ACCOUNT:key/ID`.
/// `options` are those of an archive in S3, whose credentials are used.
///
/// # Errors
/// A description of the problem.
pub(crate) fn call(
    operation: &str,
    arn: &str,
    bytes: &[u8],
    options: &[(String, String)],
) -> Result<Vec<u8>, String> {
    let text = |error: &(dyn std::error::Error + 'static)| walden_source::error_text(error);
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let called = catch_panics("use", "the key", arn, || {
        let kms = Kms::new(arn, options)?;
        runtime.block_on(kms.call(operation, bytes))
    });
    called.map_err(|error| text(&error))?
}

struct Kms<'a> {
    client: HttpClient,
    signing: Signing,
    url: Url,
    arn: &'a str,
}

/// A successful answer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    ciphertext_blob: Option<String>,
    plaintext: Option<String>,
}

/// The answer to a request that failed.
#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "__type", default)]
    kind: String,
    #[serde(alias = "Message", default)]
    message: String,
}

/// Why a request failed.
struct Failure {
    problem: String,
    may_pass: bool,
}

impl Kms<'_> {
    fn new<'a>(arn: &'a str, options: &[(String, String)]) -> Result<Kms<'a>, String> {
        let parts: Vec<&str> = arn.split(':').collect();
        let (partition, region) =
            (parts.get(1).copied().unwrap_or_default(), parts.get(3).copied().unwrap_or_default());
        let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = std::env::var(ENDPOINT).ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| format!("https://kms.{region}.{domain}"));
        let connector = PacedConnector::default();
        let failed = |error: &(dyn std::error::Error + 'static)| walden_source::error_text(error);
        let (credentials, client) = clouds::credentials(options, RetryConfig::default(), &connector)
            .map_err(|error| failed(&error))?;
        let client = connector.connect(&client.with_timeout(TIMEOUT)).map_err(|error| failed(&error))?;
        let url =
            endpoint.parse().map_err(|error| format!("cannot use {ENDPOINT} = \"{endpoint}\": {error}"))?;
        Ok(Kms {
            client,
            signing: Signing { credentials, region: region.to_owned(), service: "kms" },
            url,
            arn,
        })
    }

    async fn call(&self, operation: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let (action, field) = match operation {
            "encrypt" => ("TrentService.Encrypt", "Plaintext"),
            _ => ("TrentService.Decrypt", "CiphertextBlob"),
        };
        let mut body = serde_json::Map::new();
        body.insert("KeyId".to_owned(), self.arn.into());
        body.insert(field.to_owned(), BASE64_STANDARD.encode(bytes).into());
        let body = serde_json::Value::Object(body).to_string();
        let mut attempt = 1;
        let answer = loop {
            match self.send(action, body.clone()).await {
                Err(Failure { may_pass: true, .. }) if attempt < ATTEMPTS => {}
                result => break result.map_err(|failure| failure.problem)?,
            }
            tokio::time::sleep(FIRST_PAUSE * (1 << attempt)).await;
            attempt += 1;
        };
        let Answer { ciphertext_blob, plaintext } = answer;
        let found = if field == "Plaintext" { ciphertext_blob } else { plaintext };
        let found = found.and_then(|text| BASE64_STANDARD.decode(text).ok());
        found.ok_or_else(|| format!("expected the result of {action} in base64, found none"))
    }

    async fn send(&self, action: &'static str, body: String) -> Result<Answer, Failure> {
        let failed = |problem: String| Failure {
            problem: format!("{action} at {}: {problem}", self.url),
            may_pass: false,
        };
        let passing = |problem: String| Failure { may_pass: true, ..failed(problem) };
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() =
            self.url.as_str().parse().map_err(|error: http::uri::InvalidUri| failed(error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert("x-amz-target", HeaderValue::from_static(action));
        headers.insert("content-type", HeaderValue::from_static("application/x-amz-json-1.1"));
        let signed = self.signing.sign(&mut request).await;
        signed.map_err(|error| failed(walden_source::error_text(&error)))?;
        let response = self.client.execute(request).await;
        let response = response.map_err(|error| passing(walden_source::error_text(&error)))?;
        let status = response.status();
        let (mut pieces, mut body) = (response.into_body().bytes_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| passing(walden_source::error_text(&error)))?);
            if body.len() > MAX_ANSWER {
                return Err(failed(format!("expected an answer of at most {MAX_ANSWER} bytes, found more")));
            }
        }
        if status.is_success() {
            // The text may contain the secret.
            return serde_json::from_slice(&body)
                .map_err(|_| failed("expected JSON, found something else".to_owned()));
        }
        let refusal: Refusal = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Refusal { kind: String::new(), message: String::new() });
        let problem = format!("{status}: {} {}", refusal.kind, refusal.message);
        let may_pass =
            status.is_server_error() || status.as_u16() == 429 || refusal.kind.contains("Throttling");
        Err(Failure { may_pass, ..failed(problem.trim_end().to_owned()) })
    }
}
