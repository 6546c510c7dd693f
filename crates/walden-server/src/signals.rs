//! SIGINT, SIGTERM and SIGHUP: the process's one handler, and what is done before these end the process.
//!
//! The handler is a thread that waits for the first of these signals, runs the actions of each [`Stage`], and exits with the
//! status that shells give a process ended by that signal.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// When an action runs, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Former states are restored, and programs that this process started are stopped.
    Programs,
    /// Unfinished files are removed, which is fast and may block all that creates files.
    Files,
}

/// What is done, and whether the handler is there.
struct Actions {
    is_installed: bool,
    all: Vec<(Stage, fn())>,
}

static ACTIONS: Mutex<Actions> = Mutex::new(Actions { is_installed: false, all: Vec::new() });
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Has an action run when a signal asks this process to end. Installs the handler with the first action; an action that is there
/// already is not added.
///
/// # Errors
/// The system's, if the handler cannot be installed. Nothing is added then.
pub fn before_exit(stage: Stage, action: fn()) -> io::Result<()> {
    let mut actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if !actions.is_installed {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if let Some(signal) = signals.forever().next() {
                INTERRUPTED.store(true, Ordering::SeqCst);
                run_actions();
                std::process::exit(128 + signal);
            }
        })?;
        actions.is_installed = true;
    }
    if !actions.all.iter().any(|&(_, known)| ptr::fn_addr_eq(known, action)) {
        actions.all.push((stage, action));
        actions.all.sort_by_key(|&(stage, _)| stage);
    }
    Ok(())
}

/// Actions may add others, so the list is not locked while they run.
fn run_actions() {
    let actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
    actions.into_iter().for_each(|(_, action)| action());
}

/// True once a signal has asked this process to end: servers are being stopped and the process exits soon.
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
