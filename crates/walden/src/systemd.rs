//! What a service tells systemd (`sd_notify(3)`), if it is one.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Says something such as `READY=1` to the service manager. Without one, and where it does not listen, nothing happens.
pub fn notify(state: &str) {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    };
    // The manager notices by itself that a service says nothing.
    let _ = send();
}

/// How often the service manager wants to hear `WATCHDOG=1`: twice in the time after which it takes the service for hung.
pub fn watchdog_interval() -> Option<Duration> {
    let microseconds: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(microseconds / 2)).filter(|interval| !interval.is_zero())
}
