//! HTTP clients for content, which object stores receive and return in turns.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use object_store::{ClientConfigKey as Key, ClientOptions, Error as ClientError};
use reqwest::{Certificate, Client, NoProxy, Proxy, Request};
use tokio::time::Sleep;

use super::pace::{Pace, Turns};

/// Creates clients whose transfers share the limit of the store's bandwidth. Requests state their [`Turns`]
/// as an extension.
#[derive(Clone, Default, Debug)]
pub(super) struct PacedConnector(pub Arc<Pace>);

impl HttpConnector for PacedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        match self.0.is_limited() {
            true => Ok(HttpClient::new(Paced(connect(options)?))),
            // The client library's own client cannot delay parts of a request.
            false => ReqwestConnector::default().connect(options),
        }
    }
}

/// Builds a client with these options, as the client library does.
fn connect(options: &ClientOptions) -> object_store::Result<Client> {
    let failed =
        |error: Box<dyn Error + Send + Sync>| ClientError::Generic { store: "HTTP client", source: error };
    let text = |key| options.get_config_value(&key);
    let is_set = |key| text(key).as_deref() == Some("true");
    let time = |key| text(key).and_then(|text| humantime::parse_duration(&text).ok());
    let mut builder = Client::builder().https_only(!is_set(Key::AllowHttp));
    if let Some(proxy) = text(Key::ProxyUrl) {
        let mut proxy = Proxy::all(proxy).map_err(|error| failed(error.into()))?;
        if let Some(certificate) = text(Key::ProxyCaCertificate) {
            let certificate = Certificate::from_pem(certificate.as_bytes());
            builder = builder.add_root_certificate(certificate.map_err(|error| failed(error.into()))?);
        }
        if let Some(excluded) = text(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&excluded));
        }
        builder = builder.proxy(proxy);
    }
    let agent =
        text(Key::UserAgent).unwrap_or_else(|| concat!("walden/", env!("CARGO_PKG_VERSION")).to_owned());
    builder = builder.user_agent(agent);
    if let Some(time) = time(Key::Timeout) {
        builder = builder.timeout(time);
    }
    if let Some(time) = time(Key::ConnectTimeout) {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = time(Key::PoolIdleTimeout) {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(count) = text(Key::PoolMaxIdlePerHost).and_then(|text| text.parse().ok()) {
        builder = builder.pool_max_idle_per_host(count);
    }
    if let Some(time) = time(Key::Http2KeepAliveInterval) {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = time(Key::Http2KeepAliveTimeout) {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if is_set(Key::Http2KeepAliveWhileIdle) {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if let Some(size) = text(Key::Http2MaxFrameSize).and_then(|text| text.parse::<u32>().ok()) {
        builder = builder.http2_max_frame_size(size);
    }
    if is_set(Key::Http1Only) {
        builder = builder.http1_only();
    }
    if is_set(Key::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    if is_set(Key::AllowInvalidCertificates) {
        builder = builder.danger_accept_invalid_certs(true);
    }
    builder.build().map_err(|error| failed(error.into()))
}

/// Sends and receives bodies in turns.
#[derive(Debug)]
struct Paced(Client);

#[async_trait]
impl HttpService for Paced {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let turns = parts.extensions.get::<Arc<Turns>>().cloned();
        let url = parts.uri.to_string().parse();
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = match (&turns, body.as_bytes()) {
            (Some(turns), None) => Some(reqwest::Body::wrap(InTurns::new(body, turns))),
            (None, None) => Some(reqwest::Body::wrap(body)),
            // Requests without content are small.
            (_, Some(bytes)) => Some(bytes.clone().into()),
        };
        let response = self.0.execute(request).await.map_err(http_error)?;
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let body = body.map_err(http_error);
        let body = match &turns {
            Some(turns) => HttpResponseBody::new(InTurns::new(body, turns)),
            None => HttpResponseBody::new(body),
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Classifies an error, so that the client library tries again what may succeed.
fn http_error(error: reqwest::Error) -> HttpError {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    let mut io = sources.filter_map(|error| error.downcast_ref::<io::Error>());
    let kind = if error.is_timeout() || io.any(|error| error.kind() == io::ErrorKind::TimedOut) {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_builder() {
        HttpErrorKind::Unknown
    } else {
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, error)
}

/// A body whose pieces wait for their turns.
struct InTurns<B> {
    body: B,
    turns: Arc<Turns>,
    /// Received from `body`, and not passed on.
    rest: Bytes,
    /// Ends when the first piece of the rest may be passed on.
    turn: Option<Pin<Box<Sleep>>>,
}

impl<B> InTurns<B> {
    fn new(body: B, turns: &Arc<Turns>) -> InTurns<B> {
        InTurns { body, turns: Arc::clone(turns), rest: Bytes::new(), turn: None }
    }
}

impl<B: Body<Data = Bytes, Error = HttpError> + Unpin> Body for InTurns<B> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let count = self.rest.len().min(self.turns.piece());
        if self.turn.is_none() {
            let start = self.turns.reserve(count);
            self.turn = start.map(|start| Box::pin(tokio::time::sleep_until(start.into())));
        }
        if let Some(turn) = &mut self.turn {
            ready!(turn.as_mut().poll(context));
        }
        self.turn = None;
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(count)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;
    use std::time::{Duration, Instant};

    use futures::StreamExt as _;
    use object_store::PutPayload;

    use super::super::pace::tests::Meter;
    use super::*;

    const BYTES: usize = 1 << 20;

    /// Answers one request with the bytes that it received. Measures when they arrive.
    fn echo(listener: &TcpListener, meter: &Meter) -> Result<(), io::Error> {
        let (mut connection, _) = listener.accept()?;
        let mut reader = BufReader::new(connection.try_clone()?);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        let (mut content, mut buffer) = (Vec::new(), vec![0; BYTES]);
        while content.len() < BYTES {
            let count = reader.read(&mut buffer)?;
            meter.pass(count)?;
            content.extend_from_slice(&buffer[..count]);
        }
        write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n")?;
        connection.write_all(&content)
    }

    #[test]
    fn no_moment_of_a_transfer_exceeds_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/object", listener.local_addr().unwrap());
        let (sent, received) = (Meter::default(), Meter::default());
        let meter = sent.clone();
        let server = thread::spawn(move || echo(&listener, &meter));
        let pace = Pace::new(Some(1 << 19));
        let client = PacedConnector(Arc::clone(&pace)).connect(&ClientOptions::new().with_allow_http(true));
        let content: Vec<u8> = (0..BYTES).map(|number| (number % 251) as u8).collect();
        let mut request = HttpRequest::new(PutPayload::from(content.clone()).into());
        *request.method_mut() = "PUT".parse().unwrap();
        *request.uri_mut() = url.parse().unwrap();
        request.headers_mut().insert("content-length", BYTES.into());
        request.extensions_mut().insert(Turns::new(&pace));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let began = Instant::now();
        let found = runtime.block_on(async {
            let response = client.unwrap().execute(request).await.unwrap();
            let mut pieces = response.into_body().bytes_stream();
            let mut found = Vec::new();
            while let Some(piece) = pieces.next().await {
                let piece = piece.unwrap();
                received.pass(piece.len()).unwrap();
                found.extend_from_slice(&piece);
            }
            found
        });
        server.join().unwrap().unwrap();
        assert!(found == content);
        let took = began.elapsed();
        assert!((Duration::from_millis(3500)..Duration::from_secs(60)).contains(&took), "{took:?}");
        for meter in [sent, received] {
            assert!(meter.most() < 500_000, "{} bytes in half a second", meter.most());
        }
    }
}
