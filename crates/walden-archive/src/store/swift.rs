//! A client of OpenStack Swift, which logs in to Keystone (version 3) or to Swift itself (version 1).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, NaiveDateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use md5::{Digest as _, Md5};
use object_store::client::{HttpClient, HttpConnector as _, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ClientConfigKey, ClientOptions, CopyOptions, Error as ClientError, Extensions,
    GetOptions, GetRange, GetResult, GetResultPayload, HeaderMap, HeaderValue, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::Url;

use super::StoreError;
use super::client::PacedConnector;
use super::client_error::failure;
use super::clouds::{Clients, check_endpoint, invalid, variables};

const STORE: &str = "Swift";
/// Pause after the first attempt. It doubles with each one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of bytes of an answer to a login and of a page of a listing.
const MAX_ANSWER: usize = 64 << 20;
/// Maximum number of characters of an answer in an error.
const MAX_TEXT: usize = 200;
/// The part of the text of an error by which a missing container is recognized.
const NO_CONTAINER: &str = "ContainerNotFound";

/// The settings, which are those of OpenStack's tools: `auth_url` is `OS_AUTH_URL`.
const SETTINGS: [&str; 16] = [
    "application_credential_id",
    "application_credential_name",
    "application_credential_secret",
    "auth_url",
    "interface",
    "password",
    "project_domain_id",
    "project_domain_name",
    "project_id",
    "project_name",
    "region_name",
    "storage_url",
    "user_domain_id",
    "user_domain_name",
    "user_id",
    "username",
];

/// Creates the clients for `swift://CONTAINER/PREFIX`.
pub(super) fn clients(
    url: &str,
    options: &[(String, String)],
    timeout: Duration,
    retry_for: Duration,
    connector: &PacedConnector,
) -> Result<Clients, StoreError> {
    let mut settings = Settings::default();
    // The scheme of the URL decides whether the connection is encrypted.
    let mut client = ClientOptions::new().with_allow_http(true);
    for (name, value) in variables("OS_") {
        let name = name["OS_".len()..].to_ascii_lowercase();
        if SETTINGS.contains(&name.as_str()) {
            settings.0.push((name, value));
        }
    }
    for (name, value) in options {
        let lower = name.to_ascii_lowercase();
        let own = lower.strip_prefix("os_").unwrap_or(&lower);
        if SETTINGS.contains(&own) {
            settings.0.push((own.to_owned(), value.clone()));
        } else if let Ok(key) = lower.parse::<ClientConfigKey>() {
            client = client.with_config(key, value.clone());
        } else {
            let known = SETTINGS.join(", ");
            return Err(invalid(url, format!("expected a setting of Swift ({known}), found {name}")));
        }
    }
    for name in ["auth_url", "storage_url"] {
        if let Some(value) = settings.get(name) {
            check_endpoint(url, name, value)?;
        }
    }
    let Some(auth_url) = settings.get("auth_url").and_then(|value| value.parse().ok()) else {
        return Err(invalid(
            url,
            "expected the URL of the login in OS_AUTH_URL or auth_url, found none".to_owned(),
        ));
    };
    let place = url.split_once("://").map_or("", |(_, place)| place);
    let container = place.split('/').next().unwrap_or_default().to_owned();
    if container.is_empty() {
        return Err(invalid(url, "expected swift://CONTAINER/PREFIX, found no container".to_owned()));
    }
    let failed = |error| failure("open", "the archive", url, error);
    let has_timeout = client.get_config_value(&ClientConfigKey::Timeout).is_some();
    let limited = if has_timeout { client.clone() } else { client.clone().with_timeout(timeout) };
    let unlimited = if has_timeout { client } else { client.with_timeout_disabled() };
    let session = Arc::new(Session { auth_url, settings, current: Mutex::default() });
    let swift = |options: &ClientOptions| -> Result<Arc<Swift>, StoreError> {
        let client = connector.connect(options).map_err(failed)?;
        Ok(Arc::new(Swift { client, session: Arc::clone(&session), container: container.clone(), retry_for }))
    };
    let unlimited = swift(&unlimited)?;
    Ok(Clients {
        limited: swift(&limited)?,
        checked: Arc::clone(&unlimited) as Arc<dyn ObjectStore>,
        unlimited,
        locked: None,
        bucket: None,
    })
}

/// Settings by name, of which the last one counts.
#[derive(Default)]
struct Settings(Vec<(String, String)>);

impl Settings {
    fn get(&self, name: &str) -> Option<&str> {
        let given = self.0.iter().rev().find(|(known, _)| known == name);
        given.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn expect(&self, name: &str) -> Result<&str> {
        self.get(name).ok_or_else(|| {
            denied(format!("no credentials: expected OS_{} or {name}, found none", name.to_ascii_uppercase()))
        })
    }

    /// Returns the reference to a project, user or domain: by id, or by name within a domain.
    fn reference(&self, kind: &str) -> Option<Value> {
        if let Some(id) = self.get(&format!("{kind}_id")) {
            return Some(json!({ "id": id }));
        }
        let name = if kind == "user" { self.get("username") } else { self.get(&format!("{kind}_name")) };
        let domain = match self.get(&format!("{kind}_domain_id")) {
            Some(id) => json!({ "id": id }),
            None => json!({ "name": self.get(&format!("{kind}_domain_name")).unwrap_or("Default") }),
        };
        Some(json!({ "name": name?, "domain": domain }))
    }
}

/// The login, which all requests share.
struct Session {
    auth_url: Url,
    settings: Settings,
    current: Mutex<Option<Access>>,
}

/// The right to send requests.
#[derive(Clone)]
struct Access {
    token: HeaderValue,
    /// The URL of the account.
    url: Url,
}

/// The part of Keystone's answer that is read.
#[derive(Deserialize)]
struct Login {
    token: Token,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    catalog: Vec<Service>,
}

#[derive(Deserialize)]
struct Service {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    url: String,
}

impl Session {
    /// Whether the URL is that of a login to Swift itself.
    fn is_version_1(&self) -> bool {
        let path = self.auth_url.path().trim_end_matches('/');
        path.ends_with("/v1.0") || path.ends_with("/v1")
    }

    /// Returns the request to log in.
    fn request(&self) -> Result<(Url, HttpRequest)> {
        let mut url = self.auth_url.clone();
        if self.is_version_1() {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            for (name, setting) in [("x-auth-user", "username"), ("x-auth-key", "password")] {
                request.headers_mut().insert(name, header(self.settings.expect(setting)?)?);
            }
            return Ok((url, request));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        let version = if path.ends_with("/v3") { "" } else { "/v3" };
        url.set_path(&format!("{path}{version}/auth/tokens"));
        let settings = &self.settings;
        let secret = settings.get("application_credential_secret");
        let auth = if let Some(secret) = secret {
            let mut credential = json!({ "secret": secret });
            match settings.get("application_credential_id") {
                Some(id) => credential["id"] = id.into(),
                None => {
                    credential["name"] = settings.expect("application_credential_name")?.into();
                    credential["user"] = settings.reference("user").unwrap_or_default();
                }
            }
            json!({ "identity": { "methods": ["application_credential"], "application_credential": credential } })
        } else {
            let mut user = match settings.reference("user") {
                Some(user) => user,
                None => settings.expect("username")?.into(),
            };
            user["password"] = settings.expect("password")?.into();
            let mut auth = json!({ "identity": { "methods": ["password"], "password": { "user": user } } });
            if let Some(project) = settings.reference("project") {
                auth["scope"] = json!({ "project": project });
            }
            auth
        };
        let mut request = HttpRequest::new(json!({ "auth": auth }).to_string().into());
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        Ok((url, request))
    }

    /// Reads the answer to a login.
    fn access(&self, headers: &HeaderMap, body: &[u8]) -> Result<Access> {
        let value = |name: &str| headers.get(name).cloned();
        let (token, url) = match self.is_version_1() {
            true => {
                let url = value("x-storage-url").and_then(|url| url.to_str().ok()?.parse().ok());
                (value("x-auth-token"), url)
            }
            false => {
                let wanted = self.settings.get("interface").unwrap_or("public");
                let wanted = wanted.trim_end_matches("URL");
                let region = self.settings.get("region_name");
                let login: Login = serde_json::from_slice(body)
                    .map_err(|error| unexpected(format!("expected the answer of Keystone: {error}")))?;
                let services =
                    login.token.catalog.into_iter().filter(|service| service.kind == "object-store");
                let mut endpoints = services.flat_map(|service| service.endpoints).filter(|endpoint| {
                    endpoint.interface == wanted && (region.is_none() || endpoint.region.as_deref() == region)
                });
                (value("x-subject-token"), endpoints.next().and_then(|endpoint| endpoint.url.parse().ok()))
            }
        };
        let url = self.settings.get("storage_url").and_then(|url| url.parse().ok()).or(url);
        let url: Url = url.ok_or_else(|| {
            unexpected("expected the URL of an account in the answer to the login, found none: check OS_REGION_NAME and the project".to_owned())
        })?;
        if url.cannot_be_a_base() {
            return Err(unexpected(format!("expected a URL of http or https, found {url}")));
        }
        let mut token =
            token.ok_or_else(|| unexpected("expected a token in the answer to the login".to_owned()))?;
        token.set_sensitive(true);
        Ok(Access { token, url })
    }
}

fn header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|error| denied(format!("cannot use a setting in a header: {error}")))
}

fn denied(problem: String) -> ClientError {
    ClientError::Unauthenticated { path: "the login".to_owned(), source: problem.into() }
}

fn unexpected(problem: String) -> ClientError {
    ClientError::NotSupported { source: problem.into() }
}

fn generic(source: impl std::error::Error + Send + Sync + 'static) -> ClientError {
    ClientError::Generic { store: STORE, source: source.into() }
}

/// A request, which may be sent several times.
struct Call {
    method: http::Method,
    /// The object; without one, the container.
    path: Option<Path>,
    query: Vec<(&'static str, String)>,
    headers: HeaderMap,
    payload: Option<PutPayload>,
    extensions: Extensions,
}

impl Call {
    fn new(method: http::Method, path: Option<&Path>) -> Call {
        Call {
            method,
            path: path.cloned(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            payload: None,
            extensions: Extensions::new(),
        }
    }
}

/// A container.
#[derive(Clone)]
struct Swift {
    client: HttpClient,
    session: Arc<Session>,
    container: String,
    /// How long failures that may pass are retried.
    retry_for: Duration,
}

impl fmt::Debug for Swift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swift").field("container", &self.container).finish_non_exhaustive()
    }
}

impl fmt::Display for Swift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "swift://{}", self.container)
    }
}

impl Swift {
    /// Sends a request, again if it fails for a reason that may pass, and once with a new login if the token
    /// is not accepted. Returns a successful answer.
    async fn call(&self, call: &Call) -> Result<HttpResponse> {
        let (began, mut pause, mut has_new_token) = (Instant::now(), FIRST_PAUSE, false);
        loop {
            let error = match self.send(call).await {
                Err(ClientError::Unauthenticated { .. }) if !has_new_token => {
                    has_new_token = true;
                    continue;
                }
                Err(error @ ClientError::Generic { .. }) if began.elapsed() + pause < self.retry_for => error,
                other => return other,
            };
            drop(error);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn send(&self, call: &Call) -> Result<HttpResponse> {
        let Access { token, mut url } = self.access().await?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(&self.container);
            if let Some(path) = &call.path {
                segments.extend(path.as_ref().split('/'));
            }
        }
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let body = call.payload.clone().map_or_else(HttpRequestBody::empty, Into::into);
        let mut request = HttpRequest::new(body);
        *request.method_mut() = call.method.clone();
        *request.headers_mut() = call.headers.clone();
        *request.extensions_mut() = call.extensions.clone();
        request.headers_mut().insert("x-auth-token", token.clone());
        let response = self.execute(request, &url).await;
        if matches!(response, Err(ClientError::Unauthenticated { .. })) {
            let mut current = self.session.current.lock().await;
            if current.as_ref().is_some_and(|current| current.token == token) {
                *current = None;
            }
        }
        response
    }

    /// Returns the token, after a login if there is none.
    async fn access(&self) -> Result<Access> {
        let mut current = self.session.current.lock().await;
        if let Some(access) = &*current {
            return Ok(access.clone());
        }
        let (url, request) = self.session.request()?;
        let response = match self.execute(request, &url).await {
            // The answer to a wrong path.
            Err(ClientError::NotFound { source, .. }) => {
                return Err(unexpected(format!("the login failed: {source}")));
            }
            other => other?,
        };
        let headers = response.headers().clone();
        let access = self.session.access(&headers, &content(response).await?)?;
        Ok(current.insert(access).clone())
    }

    /// Returns a page of a listing after a name.
    async fn page(&self, prefix: &str, marker: &str) -> Result<Vec<Entry>> {
        let mut call = Call::new(http::Method::GET, None);
        let query = [("format", "json"), ("prefix", prefix), ("marker", marker)];
        let query = query.into_iter().filter(|(_, value)| !value.is_empty());
        call.query = query.map(|(name, value)| (name, value.to_owned())).collect();
        let body = content(self.call(&call).await.map_err(no_container)?).await?;
        // Swift answers with no content if the container is empty, whatever the format.
        if body.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&body).map_err(|error| unexpected(format!("expected a listing: {error}")))
    }

    async fn execute(&self, mut request: HttpRequest, url: &Url) -> Result<HttpResponse> {
        *request.uri_mut() =
            url.as_str().parse().map_err(|error: http::uri::InvalidUri| unexpected(error.to_string()))?;
        let method = request.method().clone();
        let response = self.client.execute(request).await.map_err(generic)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = content(response).await.unwrap_or_default();
        let text: String = String::from_utf8_lossy(&body).chars().take(MAX_TEXT).collect();
        let path = url.path().to_owned();
        let source = format!("{method} {path}: Server returned non-2xx status code: {status}: {text}").into();
        Err(match status {
            StatusCode::NOT_FOUND => ClientError::NotFound { path, source },
            StatusCode::UNAUTHORIZED => ClientError::Unauthenticated { path, source },
            StatusCode::FORBIDDEN => ClientError::PermissionDenied { path, source },
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => {
                ClientError::AlreadyExists { path, source }
            }
            _ if status.is_server_error() => ClientError::Generic { store: STORE, source },
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::RANGE_NOT_SATISFIABLE => ClientError::Generic { store: STORE, source },
            _ => ClientError::NotSupported { source },
        })
    }
}

/// Returns the body of an answer, which is small.
async fn content(response: HttpResponse) -> Result<Vec<u8>> {
    let (mut pieces, mut content) = (response.into_body().bytes_stream(), Vec::new());
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(generic)?);
        if content.len() > MAX_ANSWER {
            return Err(unexpected(format!("expected at most {MAX_ANSWER} bytes, found more")));
        }
    }
    Ok(content)
}

/// Returns an error for an answer that says only that something does not exist.
fn no_container(error: ClientError) -> ClientError {
    match error {
        ClientError::NotFound { path, source } => {
            ClientError::NotFound { path, source: format!("{NO_CONTAINER}: {source}").into() }
        }
        other => other,
    }
}

/// An entry of a listing.
#[derive(Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    hash: String,
    last_modified: String,
}

impl Entry {
    fn into_meta(self) -> Result<ObjectMeta> {
        let time = NaiveDateTime::parse_from_str(&self.last_modified, "%Y-%m-%dT%H:%M:%S%.f");
        let time = time.map_err(|error| unexpected(format!("{}: {error}", self.last_modified)))?;
        Ok(ObjectMeta {
            location: Path::parse(&self.name).map_err(|error| unexpected(error.to_string()))?,
            last_modified: time.and_utc(),
            size: self.bytes,
            e_tag: Some(self.hash),
            version: None,
        })
    }
}

/// Returns what the headers of an answer say about an object, and the range of its content.
fn meta_of(path: &Path, headers: &HeaderMap) -> Result<(ObjectMeta, std::ops::Range<u64>)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let missing = |name: &str| unexpected(format!("expected {name} in the answer, found none"));
    let length = text("content-length").and_then(number).ok_or_else(|| missing("Content-Length"))?;
    // bytes 0-9/100
    let (range, size) = match text("content-range") {
        None => (0..length, length),
        Some(found) => {
            let parsed = found.strip_prefix("bytes ").and_then(|rest| {
                let (range, size) = rest.split_once('/')?;
                let (first, last) = range.split_once('-')?;
                Some((number(first)?..number(last)?.checked_add(1)?, number(size)?))
            });
            parsed.ok_or_else(|| missing("Content-Range"))?
        }
    };
    let time = text("last-modified").and_then(|text| DateTime::parse_from_rfc2822(text).ok());
    let meta = ObjectMeta {
        location: path.clone(),
        last_modified: time.ok_or_else(|| missing("Last-Modified"))?.with_timezone(&Utc),
        size,
        e_tag: text("etag").map(str::to_owned),
        version: None,
    };
    Ok((meta, range))
}

#[async_trait]
impl ObjectStore for Swift {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let mut call = Call::new(http::Method::PUT, Some(path));
        let mut digest = Md5::new();
        payload.iter().for_each(|piece| digest.update(piece));
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        // Swift compares it with the content.
        call.headers.insert("etag", header(&digest)?);
        call.headers.insert("content-length", payload.content_length().into());
        call.headers.insert("content-type", HeaderValue::from_static("application/octet-stream"));
        if options.mode == PutMode::Create {
            call.headers.insert("if-none-match", HeaderValue::from_static("*"));
        }
        for (attribute, value) in &options.attributes {
            if let Attribute::Metadata(name) = attribute {
                let name = format!("x-object-meta-{}", name.to_ascii_lowercase()).parse::<http::HeaderName>();
                call.headers.insert(name.map_err(|error| unexpected(error.to_string()))?, header(value)?);
            }
        }
        (call.payload, call.extensions) = (Some(payload), options.extensions);
        self.call(&call).await.map_err(no_container)?;
        Ok(PutResult { e_tag: Some(digest), version: None })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let method = if options.head { http::Method::HEAD } else { http::Method::GET };
        let mut call = Call::new(method, Some(path));
        if let Some(range) = options.range {
            let range = match range {
                GetRange::Bounded(range) => format!("bytes={}-{}", range.start, range.end.saturating_sub(1)),
                GetRange::Offset(start) => format!("bytes={start}-"),
                GetRange::Suffix(count) => format!("bytes=-{count}"),
            };
            call.headers.insert("range", header(&range)?);
        }
        call.extensions = options.extensions;
        let response = self.call(&call).await?;
        let (meta, range) = meta_of(path, response.headers())?;
        let content = response.into_body().bytes_stream().map_err(generic).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(content),
            meta,
            range,
            attributes: Attributes::new(),
        })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let swift = self.clone();
        let delete = move |path: Result<Path>| {
            let swift = swift.clone();
            async move {
                let path = path?;
                swift.call(&Call::new(http::Method::DELETE, Some(&path))).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // The keys of a folder, and not those of others whose names start alike.
        let prefix = prefix.map(Path::as_ref).filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map_or_else(String::new, |prefix| format!("{prefix}/"));
        let pages = stream::try_unfold((self.clone(), Some(String::new())), move |(swift, marker)| {
            let prefix = prefix.clone();
            async move {
                let Some(marker) = marker else { return Ok(None) };
                let page = swift.page(&prefix, &marker).await?;
                // An empty page ends the listing; a page may have fewer entries than the limit.
                let next = page.last().map(|entry| entry.name.clone());
                if next.as_ref().is_some_and(|next| *next <= marker) {
                    return Err(unexpected("expected a listing in the order of names".to_owned()));
                }
                Ok(Some((page, (swift, next))))
            }
        });
        let entries = pages.map_ok(|page| stream::iter(page.into_iter().map(Entry::into_meta)));
        entries.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_implemented("listing of folders"))
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(not_implemented("uploads in parts"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_implemented("copies"))
    }
}

/// Returns the error of an operation that archives do not use.
fn not_implemented(operation: &str) -> ClientError {
    ClientError::NotImplemented { operation: operation.to_owned(), implementer: STORE.to_owned() }
}
