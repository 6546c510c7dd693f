//! Sends and receives bytes, over TCP or a Unix socket, with or without TLS.
//!
//! Sockets do not block: a client waits for the server and for its own disk at the same time
//! ([`Transport::wait`]).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::connection::Endpoint;

/// A connection as a stream of bytes.
pub(super) struct Transport {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
    /// Time limit of the current exchange, until it is reset.
    pub deadline: Option<Instant>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// TCP keepalive settings: when and how often to check an idle connection.
pub(super) struct Keepalive {
    pub idle: Duration,
    pub interval: Option<Duration>,
    pub retries: Option<u32>,
}

impl Transport {
    /// Connects to the first of a server's addresses that answers.
    pub fn connect(
        endpoint: &Endpoint,
        limit: Option<Duration>,
        keepalive: Option<&Keepalive>,
    ) -> io::Result<Transport> {
        let socket = match endpoint.is_socket() {
            true => {
                let path = Path::new(&endpoint.host).join(format!(".s.PGSQL.{}", endpoint.port));
                let socket = UnixStream::connect(path)?;
                socket.set_nonblocking(true)?;
                Socket::Unix(socket)
            }
            false => {
                let socket = connect_tcp(endpoint, limit)?;
                socket.set_nodelay(true)?;
                if let Some(keepalive) = keepalive {
                    set_keepalive(&socket, keepalive)?;
                }
                socket.set_nonblocking(true)?;
                Socket::Tcp(socket)
            }
        };
        let deadline = limit.map(|limit| Instant::now() + limit);
        Ok(Transport { socket, tls: None, deadline })
    }

    /// Starts TLS, once the server has agreed.
    pub fn start_tls(&mut self, config: ClientConfig, host: &str) -> io::Result<()> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, format!("\"{host}\" is no name for TLS")))?;
        let mut tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            let progress = tls.complete_io(&mut self.socket);
            match progress {
                Ok((0, 0)) if tls.is_handshaking() => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait_until_deadline(tls.wants_write())?;
                }
                Err(error) => return Err(error),
            }
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the hash of the server's certificate for channel binding: `tls-server-end-point` of RFC 5929.
    pub fn certificate_hash(&self) -> Option<Vec<u8>> {
        let certificate = self.tls.as_ref()?.peer_certificates()?.first()?;
        let algorithm = Certificate::from_der(certificate).ok()?.signature_algorithm.oid.to_string();
        let (_, hash) = HASHES.iter().find(|(known, _)| *known == algorithm)?;
        Some(match hash {
            Hash::Sha256 => Sha256::digest(certificate).to_vec(),
            Hash::Sha384 => Sha384::digest(certificate).to_vec(),
            Hash::Sha512 => Sha512::digest(certificate).to_vec(),
        })
    }

    /// Reads available bytes: [`ErrorKind::WouldBlock`] if there are none, 0 bytes at the end of the
    /// connection.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.socket.read(buffer) };
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                // The server has closed the connection without the close_notify alert that TLS demands.
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            // For example new keys.
            self.flush()?;
        }
    }

    /// Writes all bytes. Waits until the deadline for the server to accept them.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let result = match &mut self.tls {
                // Into a buffer, which is sent next.
                Some(tls) => tls.writer().write(bytes),
                None => self.socket.write(bytes),
            };
            match result {
                Ok(0) if self.tls.is_none() => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_until_deadline(true)?,
                Err(error) => return Err(error),
            }
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_until_deadline(true)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there are bytes to read or `wake` is readable, at most for this time.
    pub fn wait(&self, time: Duration, wake: BorrowedFd<'_>) -> io::Result<()> {
        let wait_for = |socket| PollFd::from_borrowed_fd(socket, PollFlags::IN);
        poll_for(&mut [wait_for(self.socket.as_fd()), wait_for(wake)], time).map(drop)
    }

    /// Waits until the socket is ready.
    pub fn wait_until_deadline(&self, is_for_writing: bool) -> io::Result<()> {
        let flags = if is_for_writing { PollFlags::OUT } else { PollFlags::IN };
        let time = match self.deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            // For a write in the middle of the stream.
            None => MAX_WRITE,
        };
        let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        match time.is_zero() || poll_for(&mut polled, time)? == 0 {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

/// A server that accepts no bytes for this time is considered gone.
const MAX_WRITE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// The hash for a certificate, by the algorithm of its signature; SHA-256 replaces MD5 and SHA-1. Signature
/// algorithms without a hash of their own, such as Ed25519, are not in the table.
const HASHES: [(&str, Hash); 9] = [
    ("1.2.840.113549.1.1.4", Hash::Sha256),
    ("1.2.840.113549.1.1.5", Hash::Sha256),
    ("1.2.840.113549.1.1.11", Hash::Sha256),
    ("1.2.840.113549.1.1.12", Hash::Sha384),
    ("1.2.840.113549.1.1.13", Hash::Sha512),
    ("1.2.840.10045.4.1", Hash::Sha256),
    ("1.2.840.10045.4.3.2", Hash::Sha256),
    ("1.2.840.10045.4.3.3", Hash::Sha384),
    ("1.2.840.10045.4.3.4", Hash::Sha512),
];

fn poll_for(polled: &mut [PollFd<'_>], time: Duration) -> io::Result<usize> {
    let until = Timespec::try_from(time).ok();
    match poll(polled, until.as_ref()) {
        // As after the time limit: callers check their condition again.
        Err(rustix::io::Errno::INTR) => Ok(0),
        other => Ok(other?),
    }
}

fn connect_tcp(endpoint: &Endpoint, limit: Option<Duration>) -> io::Result<TcpStream> {
    let host = endpoint.address.as_ref().unwrap_or(&endpoint.host);
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host.as_str(), endpoint.port).to_socket_addrs()? {
        let connected = match limit {
            Some(limit) => TcpStream::connect_timeout(&address, limit),
            None => TcpStream::connect(address),
        };
        match connected {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn set_keepalive(socket: &TcpStream, keepalive: &Keepalive) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, keepalive.idle)?;
    if let Some(interval) = keepalive.interval {
        sockopt::set_tcp_keepintvl(socket, interval)?;
    }
    if let Some(retries) = keepalive.retries {
        sockopt::set_tcp_keepcnt(socket, retries)?;
    }
    Ok(())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
