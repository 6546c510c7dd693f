//! Signals that ask a process to end: its one handler, and what is done before they end it.
//!
//! The handler is a thread that waits for these signals. A process that ends by itself ([`stop_on`]) has a flag set by the first one.
//! Any other, and that process at the second one, is ended by the handler: it runs the actions of each [`Stage`], and exits with the
//! status that shells give a process ended by that signal.

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

/// When an action runs, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Former states are restored, and programs that this process started are stopped.
    Programs,
    /// Unfinished files are removed, which is fast and may block all that creates files.
    Files,
}

/// The handler, once there is one, and what it does.
struct Handler {
    handle: Option<Handle>,
    stop: Option<Stop>,
    actions: Vec<(Stage, fn())>,
}

/// How the process ends by itself.
struct Stop {
    signals: Vec<c_int>,
    flag: Arc<AtomicBool>,
}

static HANDLER: Mutex<Handler> = Mutex::new(Handler { handle: None, stop: None, actions: Vec::new() });
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Has an action run when a signal asks this process to end. Installs the handler with the first action; an action that is there
/// already is not added.
///
/// # Errors
/// The system's, if the handler cannot be installed. Nothing is added then.
pub fn before_exit(stage: Stage, action: fn()) -> io::Result<()> {
    let mut handler = handler();
    handler.catch(&[SIGINT, SIGTERM, SIGHUP])?;
    if !handler.actions.iter().any(|&(_, known)| ptr::fn_addr_eq(known, action)) {
        handler.actions.push((stage, action));
        handler.actions.sort_by_key(|&(stage, _)| stage);
    }
    Ok(())
}

/// The flag by which a process ends by itself: the first of these signals sets it. The next one ends the process as any signal does,
/// for a process that does not get to its end.
///
/// # Errors
/// The system's, if the handler cannot be installed.
pub fn stop_on(signals: &[c_int]) -> io::Result<Arc<AtomicBool>> {
    let mut handler = handler();
    handler.catch(signals)?;
    let flag = Arc::new(AtomicBool::new(false));
    handler.stop = Some(Stop { signals: signals.to_vec(), flag: flag.clone() });
    Ok(flag)
}

/// A flag that each such signal sets, and that nothing else follows from.
///
/// # Errors
/// The system's, if the signal cannot be caught.
pub fn flag_on(signal: c_int) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal, flag.clone())?;
    Ok(flag)
}

/// Has each signal that can be caught end the process at once with a status: signals that ask it to end with the one, those that failures
/// send with the other. An abort is also how an allocation ends that fails, and a stack that overflows.
///
/// A signal that cannot be caught here does what it did.
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
    /// Has the handler take these signals too. Others keep what the process was started with, such as that nohup ignores SIGHUP.
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
    // Actions may add others.
    drop(handler);
    actions.into_iter().for_each(|(_, action)| action());
    std::process::exit(128 + signal);
}

/// True once a signal ends this process: servers are being stopped and the process exits soon.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// If a signal has been received, lets its handler finish and end the process with the right exit status.
pub fn wait_for_exit_if_interrupted() {
    if interrupted() {
        wait_for_exit();
    }
}

/// Lets the handler end the process.
pub fn wait_for_exit() -> ! {
    loop {
        thread::park();
    }
}
