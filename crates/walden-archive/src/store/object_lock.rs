//! Requests to S3 for versions and Object Lock, which the client library lacks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderName;
use jiff::Timestamp;
use object_store::aws::{AmazonS3, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::path::Path;
use object_store::signer::Signer as _;
use object_store::{ClientOptions, Error as ClientError, HeaderMap, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::client::PacedConnector;
use super::pace::Turns;
use super::versions::{Lock, LockMode, LockRule, Protection, Version};

const STORE: &str = "S3";
/// Number of attempts of a request that fails for a reason that may pass.
const ATTEMPTS: u32 = 5;
/// Pause after the first attempt. It doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of characters of an error's text.
const MAX_TEXT: usize = 200;
/// How long the client library's signed URL is valid. Only its path is used.
const UNUSED_VALIDITY: Duration = Duration::from_secs(1);

/// Signs requests.
#[derive(Clone, Debug)]
pub(super) struct Signing {
    pub credentials: AwsCredentialProvider,
    pub region: String,
    /// The service of AWS: `s3`, `kms`.
    pub service: &'static str,
}

impl Signing {
    pub async fn sign(&self, request: &mut HttpRequest) -> Result<(), ClientError> {
        let credential = self.credentials.get_credential().await?;
        // A signature covers all headers, so that of an earlier one must go.
        request.headers_mut().remove("authorization");
        let content = request.headers_mut().remove("x-amz-content-sha256");
        let content = content.and_then(|value| value.to_str().map(str::to_owned).ok());
        let authorizer = AwsAuthorizer::new(&credential, self.service, &self.region);
        match content {
            Some(text) => match from_hex(&text) {
                Some(digest) => authorizer.authorize(request, Some(&digest)),
                None => authorizer.with_sign_payload(false).authorize(request, None),
            },
            None => authorizer.authorize(request, None),
        }
        Ok(())
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8));
    bytes.collect::<Option<Vec<u8>>>().filter(|bytes| bytes.len() == 32)
}

/// Creates HTTP clients that change the headers of requests that store an object.
#[derive(Debug)]
pub(super) struct AmendingConnector {
    /// Locks each object.
    pub rule: Option<LockRule>,
    /// The header that the store understands instead of `If-None-Match: *`.
    pub create_header: Option<HeaderName>,
    pub signing: Signing,
    pub connector: PacedConnector,
}

impl HttpConnector for AmendingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = self.connector.connect(options)?;
        let (create_header, signing) = (self.create_header.clone(), self.signing.clone());
        Ok(HttpClient::new(Amending { inner, rule: self.rule, create_header, signing }))
    }
}

/// Adds the lock to a request that stores an object, so that the object is locked from its first moment, and
/// exchanges the condition that it does not exist. Signs the request again.
#[derive(Debug)]
struct Amending {
    inner: HttpClient,
    rule: Option<LockRule>,
    create_header: Option<HeaderName>,
    signing: Signing,
}

#[async_trait]
impl HttpService for Amending {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.method().as_str() == "PUT" && request.uri().query().is_none() {
            let headers = request.headers_mut();
            if let Some(rule) = self.rule {
                headers.insert("x-amz-object-lock-mode", HeaderValue::from_static(rule.mode.name()));
                // A date consists of valid characters.
                if let Ok(until) = HeaderValue::from_str(&date(rule.end())) {
                    headers.insert("x-amz-object-lock-retain-until-date", until);
                }
                headers.insert("x-amz-sdk-checksum-algorithm", HeaderValue::from_static("SHA256"));
            }
            if let Some(name) = &self.create_header
                && headers.remove("if-none-match").is_some()
            {
                headers.insert(name.clone(), HeaderValue::from_static("true"));
            }
            let signed = self.signing.sign(&mut request).await;
            signed.map_err(|error| HttpError::new(object_store::client::HttpErrorKind::Unknown, error))?;
        }
        self.inner.execute(request).await
    }
}

/// Formats a time as S3 does in requests: whole seconds, as not every store accepts fractions.
fn date(time: Timestamp) -> String {
    let second = Timestamp::from_second(time.as_second()).unwrap_or(time);
    second.to_string()
}

/// A bucket's versions and locks.
#[derive(Debug)]
pub(super) struct Bucket {
    pub client: HttpClient,
    pub store: AmazonS3,
    pub signing: Signing,
    pub rule: Option<LockRule>,
    /// Headers of requests for objects that the user's own key encrypts.
    pub customer_key: HeaderMap,
}

/// A page of versions.
pub(super) struct Page {
    /// Keys in the bucket, with their versions in the order of the listing: by key, the newest first.
    pub versions: Vec<(String, Version)>,
    /// Where the next page starts: a key and a version.
    pub next: Option<(String, String)>,
}

impl Bucket {
    pub async fn protection(&self) -> Result<Protection, ClientError> {
        let versioning: Versioning = self.get_of_bucket("versioning", &[]).await?;
        let has_versions = versioning.status.as_deref() == Some("Enabled");
        let lock: LockConfiguration = match self.get_of_bucket("object-lock", &[]).await {
            // The bucket, or a store of this kind, has no Object Lock.
            Err(ClientError::NotFound { .. } | ClientError::NotSupported { .. }) => {
                return Ok(Protection { has_versions, ..Protection::default() });
            }
            other => other?,
        };
        let default = lock.rule.and_then(|rule| rule.default_retention);
        let default = default.and_then(|Retention { mode, days, years }| {
            let days = days.or(years.map(|years| years.saturating_mul(365)))?;
            Some(LockRule { mode: LockMode::parse(&mode?)?, days })
        });
        let has_object_lock = lock.enabled.as_deref() == Some("Enabled");
        Ok(Protection { has_versions, has_object_lock, default })
    }

    /// Lists versions of the keys with a prefix, which includes that of the archive.
    pub async fn page(&self, prefix: &str, after: Option<&(String, String)>) -> Result<Page, ClientError> {
        let mut query = vec![("prefix", prefix)];
        if let Some((key, version)) = after {
            query.extend([("key-marker", key.as_str()), ("version-id-marker", version.as_str())]);
        }
        query.retain(|(_, value)| !value.is_empty());
        let listed: ListedVersions = self.get_of_bucket("versions", &query).await?;
        let next = match (listed.is_truncated, listed.next_key, listed.next_version) {
            (true, Some(key), version) => Some((key, version.unwrap_or_default())),
            (true, None, _) => return Err(unexpected("a truncated list of versions without its next key")),
            (false, ..) => None,
        };
        if next.is_some() && next.as_ref() == after {
            return Err(unexpected("a list of versions that does not advance"));
        }
        Ok(Page { versions: in_order(listed.entries), next })
    }

    pub async fn read(&self, path: &Path, id: &str, turns: &Arc<Turns>) -> Result<Vec<u8>, ClientError> {
        let url = self.url_of(path, &[("versionId", Some(id))]).await?;
        Ok(self.send("GET", url, None, Some(turns)).await?.body)
    }

    pub async fn remove(&self, path: &Path, id: &str) -> Result<(), ClientError> {
        let url = self.url_of(path, &[("versionId", Some(id))]).await?;
        self.send("DELETE", url, None, None).await.map(drop)
    }

    /// Returns the lock of a version, or of the current one. S3 states it only to users who may read it.
    pub async fn lock(&self, path: &Path, id: Option<&str>) -> Result<Option<Lock>, ClientError> {
        let query = id.map(|id| ("versionId", Some(id)));
        let url = self.url_of(path, query.as_slice()).await?;
        let Answer { headers, .. } = self.send("HEAD", url, None, None).await?;
        let value = |name: &str| headers.get(name)?.to_str().ok();
        let mode = value("x-amz-object-lock-mode").and_then(LockMode::parse);
        let until = value("x-amz-object-lock-retain-until-date").and_then(|text| text.parse().ok());
        Ok(mode.zip(until).map(|(mode, until)| Lock { mode, until }))
    }

    pub async fn set_lock(&self, path: &Path, lock: Lock) -> Result<(), ClientError> {
        let url = self.url_of(path, &[("retention", None)]).await?;
        let (mode, until) = (lock.mode.name(), date(lock.until));
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        self.send("PUT", url, Some(body), None).await.map(drop)
    }

    async fn get_of_bucket<T: DeserializeOwned>(
        &self,
        what: &str,
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        let mut url = self.url_of(&Path::from("key"), &[]).await?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop();
        }
        let query = query.iter().map(|&(name, value)| (name, Some(value)));
        set_query(&mut url, [(what, None)].into_iter().chain(query));
        parse(&self.send("GET", url, None, None).await?.body)
    }

    /// Returns an object's URL. The client library builds it from the settings.
    async fn url_of(&self, path: &Path, query: &[(&str, Option<&str>)]) -> Result<Url, ClientError> {
        let method = HttpRequest::new(HttpRequestBody::empty()).method().clone();
        let mut url = self.store.signed_url(method, path, UNUSED_VALIDITY).await?;
        set_query(&mut url, query.iter().copied());
        Ok(url)
    }

    async fn send(
        &self,
        method: &str,
        url: Url,
        body: Option<String>,
        turns: Option<&Arc<Turns>>,
    ) -> Result<Answer, ClientError> {
        let mut attempt = 1;
        loop {
            let error = match self.send_once(method, &url, body.clone(), turns).await {
                Err(error @ ClientError::Generic { .. }) if attempt < ATTEMPTS => error,
                other => return other,
            };
            drop(error);
            tokio::time::sleep(FIRST_PAUSE * (1 << attempt)).await;
            attempt += 1;
        }
    }

    async fn send_once(
        &self,
        method: &str,
        url: &Url,
        body: Option<String>,
        turns: Option<&Arc<Turns>>,
    ) -> Result<Answer, ClientError> {
        let invalid = |error: &dyn std::fmt::Display| unexpected(&format!("{method} {url}: {error}"));
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        if let Some(body) = body {
            // S3 demands a checksum of requests that change locks.
            let checksum = BASE64_STANDARD.encode(Sha256::digest(body.as_bytes()));
            *request.body_mut() = body.into();
            let checksum = HeaderValue::from_str(&checksum).map_err(|error| invalid(&error))?;
            let headers = request.headers_mut();
            headers.insert("x-amz-checksum-sha256", checksum);
            headers.insert("x-amz-sdk-checksum-algorithm", HeaderValue::from_static("SHA256"));
            headers.insert("content-type", HeaderValue::from_static("application/xml"));
        }
        if matches!(method, "GET" | "HEAD") && url.query_pairs().all(|(name, _)| name == "versionId") {
            request.headers_mut().extend(self.customer_key.clone());
        }
        if let Some(turns) = turns {
            request.extensions_mut().insert(Arc::clone(turns));
        }
        *request.method_mut() = method.parse().map_err(|error| invalid(&error))?;
        *request.uri_mut() = url.as_str().parse().map_err(|error| invalid(&error))?;
        self.signing.sign(&mut request).await?;
        let generic = |source: HttpError| ClientError::Generic { store: STORE, source: source.into() };
        let response = self.client.execute(request).await.map_err(generic)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().bytes().await.map_err(generic)?;
        if status.is_success() {
            return Ok(Answer { headers, body: body.to_vec() });
        }
        let path = url.path().to_owned();
        let answer = String::from_utf8_lossy(&body);
        let text = format!("{method} {path}: Server returned non-2xx status code: {status}: {answer}");
        let source = text.into();
        Err(match status.as_u16() {
            401 | 403 => ClientError::PermissionDenied { path, source },
            404 => ClientError::NotFound { path, source },
            // 400 is the answer to a request that needs Object Lock of a bucket without it.
            400 | 405 | 501 => ClientError::NotSupported { source },
            _ => ClientError::Generic { store: STORE, source },
        })
    }
}

/// Returns versions by key, the newest first. Some stores list all delete markers after all versions.
fn in_order(entries: Vec<Entry>) -> Vec<(String, Version)> {
    let versions = entries.into_iter().filter_map(|entry| match entry {
        Entry::Version(found) => Some((false, found)),
        Entry::DeleteMarker(found) => Some((true, found)),
        Entry::Other => None,
    });
    let mut versions: Vec<(bool, Found)> = versions.collect();
    // Stable: times have whole seconds, and the order of the listing decides within one.
    versions.sort_by(|(_, one), (_, other)| {
        let newest_first = other.is_latest.cmp(&one.is_latest).then_with(|| other.stored.cmp(&one.stored));
        one.key.cmp(&other.key).then(newest_first)
    });
    let version = |(is_marker, found): (bool, Found)| {
        let Found { key, id, bytes, tag, stored, .. } = found;
        (key, Version { id, is_marker, bytes, tag, stored })
    };
    versions.into_iter().map(version).collect()
}

/// A successful answer.
struct Answer {
    headers: HeaderMap,
    body: Vec<u8>,
}

fn set_query<'a>(url: &mut Url, query: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) {
    url.set_query(None);
    let mut pairs = url.query_pairs_mut();
    for (name, value) in query {
        // As in signatures, a name without a value has an empty one.
        pairs.append_pair(name, value.unwrap_or_default());
    }
}

fn unexpected(problem: &str) -> ClientError {
    ClientError::NotSupported { source: format!("the store's answer cannot be used: {problem}").into() }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    // The error's text can contain the entire answer.
    quick_xml::de::from_str(&String::from_utf8_lossy(body)).map_err(|error| {
        let text: String = error.to_string().chars().take(MAX_TEXT).collect();
        unexpected(&text)
    })
}

#[derive(Deserialize)]
struct Versioning {
    #[serde(rename = "Status")]
    status: Option<String>,
}

#[derive(Deserialize)]
struct LockConfiguration {
    #[serde(rename = "ObjectLockEnabled")]
    enabled: Option<String>,
    #[serde(rename = "Rule")]
    rule: Option<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    #[serde(rename = "DefaultRetention")]
    default_retention: Option<Retention>,
}

#[derive(Deserialize)]
struct Retention {
    #[serde(rename = "Mode")]
    mode: Option<String>,
    #[serde(rename = "Days")]
    days: Option<u32>,
    #[serde(rename = "Years")]
    years: Option<u32>,
}

#[derive(Deserialize)]
struct ListedVersions {
    #[serde(rename = "IsTruncated", default)]
    is_truncated: bool,
    #[serde(rename = "NextKeyMarker")]
    next_key: Option<String>,
    #[serde(rename = "NextVersionIdMarker")]
    next_version: Option<String>,
    #[serde(rename = "$value", default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
enum Entry {
    Version(Found),
    DeleteMarker(Found),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Found {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "VersionId")]
    id: String,
    #[serde(rename = "IsLatest", default)]
    is_latest: bool,
    #[serde(rename = "Size", default)]
    bytes: u64,
    #[serde(rename = "ETag", default)]
    tag: String,
    #[serde(rename = "LastModified", default)]
    stored: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_markers_keep_the_order_of_the_listing() {
        let xml = "<?xml version=\"1.0\"?>\n<ListVersionsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>main/</Prefix>\
                   <KeyMarker/><MaxKeys>2</MaxKeys><IsTruncated>true</IsTruncated><NextKeyMarker>main/b</NextKeyMarker>\
                   <NextVersionIdMarker>v1</NextVersionIdMarker>\
                   <DeleteMarker><Key>main/a&amp;b</Key><VersionId>m</VersionId><IsLatest>true</IsLatest></DeleteMarker>\
                   <Version><Key>main/a&amp;b</Key><VersionId>v2</VersionId><ETag>\"e\"</ETag><Size>7</Size></Version>\
                   <Version><Key>main/b</Key><VersionId>v1</VersionId><IsLatest>true</IsLatest><Size>1</Size></Version>\
                   <DeleteMarker><Key>main/b</Key><VersionId>n</VersionId></DeleteMarker></ListVersionsResult>";
        let listed: ListedVersions = parse(xml.as_bytes()).unwrap();
        assert!(listed.is_truncated);
        assert_eq!(listed.next_version.as_deref(), Some("v1"));
        let mut entries = listed.entries;
        let order = |entries: Vec<Entry>| -> Vec<(String, bool, String, u64)> {
            let line = |(key, it): (String, Version)| (key, it.is_marker, it.id, it.bytes);
            in_order(entries).into_iter().map(line).collect()
        };
        let line = |key: &str, is_marker, id: &str, bytes| (key.to_owned(), is_marker, id.to_owned(), bytes);
        let expected = [
            line("main/a&b", true, "m", 0),
            line("main/a&b", false, "v2", 7),
            line("main/b", false, "v1", 1),
            line("main/b", true, "n", 0),
        ];
        // All markers at the end.
        let again: ListedVersions = parse(xml.as_bytes()).unwrap();
        let (markers, mut last): (Vec<Entry>, Vec<Entry>) =
            again.entries.into_iter().partition(|entry| matches!(entry, Entry::DeleteMarker(_)));
        last.extend(markers);
        assert_eq!(order(last), expected);
        assert_eq!(order(std::mem::take(&mut entries)), expected);
        parse::<ListedVersions>(b"<ListVersionsResult><IsTruncated>false</IsTruncated></ListVersionsResult>")
            .unwrap();
        for damaged in ["", "<", "no XML", "<ListVersionsResult><Version></Version></ListVersionsResult>"] {
            assert!(parse::<ListedVersions>(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    #[test]
    fn only_a_digest_is_signed_again() {
        assert_eq!(from_hex(&"0f".repeat(32)), Some(vec![15; 32]));
        for other in ["", "UNSIGNED-PAYLOAD", "0", &"g".repeat(64), &"00".repeat(33)] {
            assert_eq!(from_hex(other), None);
        }
    }
}
