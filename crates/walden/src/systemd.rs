//! Notifications of a service to systemd (`sd_notify(3)`).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends a state such as `READY=1` to the service manager. Does nothing without a service manager, or if it
/// does not listen.
pub fn notify(state: &str) {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    };
    // Ignored: the service manager detects a silent service itself.
    let _ = send();
}

/// Returns the interval for sending `WATCHDOG=1`: half of the time after which the service manager considers
/// the service hung.
pub fn watchdog_interval() -> Option<Duration> {
    let microseconds: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(microseconds / 2)).filter(|interval| !interval.is_zero())
}
