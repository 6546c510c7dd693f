//! Handles the signals that ask a process to end: its single handler, and the actions before the end.
//!
//! The handler is a thread that waits for these signals. In a process that ends on its own ([`stop_on`]), the
//! first signal sets a flag. Otherwise, and at the second signal, the handler ends the process: it runs the
//! actions of each [`Stage`], and exits with the status that shells report for a process ended by that
//! signal.

use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::iterator::{Handle, Signals};

use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGBUS, SIGIO, SIGPROF, SIGQUIT, SIGSYS, SIGTRAP, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
pub use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The stages in which actions run, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Restores earlier states, and stops programs that this process started.
    Programs,
    /// Removes unfinished files, which is fast and may block all creation of files.
    Files,
}

/// The handler, once it is installed, and its actions.
struct Handler {
    handle: Option<Handle>,
    stop: Option<Stop>,
    actions: Vec<(Stage, fn())>,
}

/// How a process ends on its own.
struct Stop {
    signals: Vec<c_int>,
    flag: Arc<AtomicBool>,
}

static HANDLER: Mutex<Handler> = Mutex::new(Handler { handle: None, stop: None, actions: Vec::new() });
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Registers an action that runs when a signal asks this process to end. Installs the handler with the first
/// action. An action that is registered already is not added again.
///
/// # Errors
/// Errors of the operating system, if the handler cannot be installed. No action is added in that case.
pub fn before_exit(stage: Stage, action: fn()) -> io::Result<()> {
    let mut handler = handler();
    handler.catch(&[SIGINT, SIGTERM, SIGHUP])?;
    if !handler.actions.iter().any(|&(_, known)| ptr::fn_addr_eq(known, action)) {
        handler.actions.push((stage, action));
        handler.actions.sort_by_key(|&(stage, _)| stage);
    }
    Ok(())
}

/// Returns a flag that the first of these signals sets, so that the process can end on its own. The next
/// signal ends the process in any case.
///
/// # Errors
/// Errors of the operating system, if the handler cannot be installed.
pub fn stop_on(signals: &[c_int]) -> io::Result<Arc<AtomicBool>> {
    let mut handler = handler();
    handler.catch(signals)?;
    let flag = Arc::new(AtomicBool::new(false));
    handler.stop = Some(Stop { signals: signals.to_vec(), flag: flag.clone() });
    Ok(flag)
}

/// Returns a flag that each signal of this number sets. The signal has no other effect.
///
/// # Errors
/// Errors of the operating system, if the signal cannot be caught.
pub fn flag_on(signal: c_int) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal, flag.clone())?;
    Ok(flag)
}

/// Makes each signal that can be caught end the process immediately with a status: `asked` for signals that
/// ask it to end, `failed` for signals of failures. A failed allocation and a stack overflow abort, and so
/// exit with `failed`.
///
/// A signal that cannot be caught here keeps its effect.
pub fn exit_with(asked: u8, failed: u8) {
    let always = Arc::new(AtomicBool::new(true));
    let ask = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO];
    let fail = [SIGABRT, SIGBUS, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ];
    let all = ask.map(|signal| (signal, asked)).into_iter();
    for (signal, status) in all.chain(fail.map(|signal| (signal, failed))) {
        let _ = signal_hook::flag::register_conditional_shutdown(signal, status.into(), always.clone());
    }
}

fn handler() -> MutexGuard<'static, Handler> {
    HANDLER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handler {
    /// Adds signals to the handler. Other signals keep their initial disposition; for example, nohup ignores
    /// SIGHUP.
    fn catch(&mut self, signals: &[c_int]) -> io::Result<()> {
        if let Some(handle) = &self.handle {
            return signals.iter().try_for_each(|&signal| handle.add_signal(signal));
        }
        let mut caught = Signals::new(signals)?;
        let handle = caught.handle();
        thread::Builder::new().name("signals".to_owned()).spawn(move || caught.forever().for_each(take))?;
        self.handle = Some(handle);
        Ok(())
    }
}

fn take(signal: c_int) {
    let handler = handler();
    let stop = handler.stop.as_ref().filter(|stop| stop.signals.contains(&signal));
    if stop.is_some_and(|stop| !stop.flag.swap(true, Ordering::SeqCst)) {
        return;
    }
    INTERRUPTED.store(true, Ordering::SeqCst);
    let actions = handler.actions.clone();
    // Actions may register further actions.
    drop(handler);
    actions.into_iter().for_each(|(_, action)| action());
    std::process::exit(128 + signal);
}

/// Returns whether a signal is ending this process: servers are being stopped, and the process exits soon.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// If a signal has been received, waits for its handler, which ends the process with the right exit status.
pub fn wait_for_exit_if_interrupted() {
    if interrupted() {
        wait_for_exit();
    }
}

/// Waits for the handler, which ends the process.
pub fn wait_for_exit() -> ! {
    loop {
        thread::park();
    }
}
