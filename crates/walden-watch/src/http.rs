//! Serves a page of metrics over HTTP.
//!
//! The server serves a single page to one or two scrapers, so the standard library suffices. Requests have at
//! most a few kilobytes, connections take at most a few seconds, and at most two are served at a time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use walden_source::workers::end_on_panic;

/// Number of connections served at the same time.
const THREADS: usize = 2;
/// Maximum size of a request in bytes, more than any scraper sends.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum duration of a connection.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Serves `/metrics` until the process ends.
pub fn serve(listener: &TcpListener, metrics: &(impl Fn() -> String + Sync)) {
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    match listener.accept() {
                        // Ignores errors: the scraper may disconnect at any time.
                        Ok((stream, _)) => drop(end_on_panic(|| answer(stream, metrics))),
                        // For example, file descriptors may be exhausted. The pause prevents a busy loop.
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            });
        }
    });
}

fn answer(mut stream: TcpStream, metrics: &impl Fn() -> String) -> io::Result<()> {
    let Some(request) = read_request(&mut stream)? else {
        return respond(&mut stream, "400 Bad Request", "expected a request of HTTP/1\n");
    };
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => respond(&mut stream, "200 OK", &metrics()),
        ("GET", "/") => respond(&mut stream, "200 OK", "Walden's metrics are at /metrics.\n"),
        ("GET", _) => respond(&mut stream, "404 Not Found", "expected /metrics\n"),
        _ => respond(&mut stream, "405 Method Not Allowed", "expected GET\n"),
    }
}

/// The first line of a request.
struct Request {
    method: String,
    path: String,
}

/// Reads a request up to the end of its headers. Returns `None` if it is not a valid request.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let began = Instant::now();
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        // The limit applies to the whole connection, so a slow sender cannot extend it.
        let left = MAX_TIME.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            more => request.extend(&buffer[..more]),
        }
        if request.len() > MAX_REQUEST {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    let path = target.split('?').next().unwrap_or_default();
    let is_http = version.starts_with("HTTP/1.");
    Ok(is_http.then(|| Request { method: method.to_owned(), path: path.to_owned() }))
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(MAX_TIME))?;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
