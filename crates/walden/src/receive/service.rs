//! What systemd is told of a service of `Type=notify`.

use sd_notify::NotifyState;

/// The service manager, if one has started the process and wants to know.
pub struct Service {
    is_there: bool,
}

impl Service {
    /// By the variables that the manager sets.
    pub fn of_environment() -> Service {
        Service { is_there: std::env::var_os("NOTIFY_SOCKET").is_some() }
    }

    /// Says that the process is alive, what it does, and whether it has got to its work.
    pub fn tell(&self, is_ready: bool, status: &str) {
        let ready = is_ready.then_some(NotifyState::Ready);
        let all: Vec<NotifyState<'_>> =
            ready.into_iter().chain([NotifyState::Watchdog, NotifyState::Status(status)]).collect();
        self.send(&all);
    }

    /// Says that the process ends.
    pub fn stopping(&self) {
        self.send(&[NotifyState::Stopping]);
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        if self.is_there {
            // A manager that cannot be told ends the service by its watchdog; there is nobody else to tell.
            let _ = sd_notify::notify(false, states);
        }
    }
}
