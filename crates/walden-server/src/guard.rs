//! Stops every program that was started in a temporary folder: when its guard is dropped, by the signal
//! handler ([`signals`]), or, if this process is killed, by a watchdog process.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use wait4::{ResUse, Wait4};

use crate::signals::{self, Stage, wait_for_exit_if_interrupted};

/// A temporary folder and the program running in it (initdb, then postgres).
pub struct Guard {
    dir: PathBuf,
    /// Never locked while waiting for the program, so that the signal handler can always lock it.
    child: Mutex<Option<Child>>,
    watchdog: Mutex<Watchdog>,
}

static GUARDS: Mutex<Vec<Weak<Guard>>> = Mutex::new(Vec::new());

impl Guard {
    /// Takes ownership of `dir`, which is removed when the guard is dropped, by a signal, or by the watchdog.
    ///
    /// # Errors
    /// The watchdog or the signal handler cannot be started; the folder is then removed.
    pub fn new(dir: PathBuf) -> Result<Arc<Guard>> {
        stop_on_signals()?;
        let watchdog = Watchdog::start(&dir);
        if watchdog.is_err() {
            let _ = fs::remove_dir_all(&dir);
        }
        let guard = Arc::new(Guard { dir, child: Mutex::new(None), watchdog: Mutex::new(watchdog?) });
        let mut guards = lock(&GUARDS);
        guards.retain(|other| other.strong_count() > 0);
        guards.push(Arc::downgrade(&guard));
        Ok(guard)
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a program in a separate process group, so that Ctrl-C in a terminal reaches only this process.
    ///
    /// # Errors
    /// The program cannot be started, or another program of this guard is running.
    pub fn spawn(&self, command: &mut Command) -> Result<()> {
        let mut child = lock(&self.child);
        if signals::interrupted() {
            drop(child);
            signals::wait_for_exit();
        }
        if child.is_some() {
            bail!("cannot start a program in {}: another program still runs there", self.dir.display());
        }
        lock(&self.watchdog).send("starting");
        let started = command.process_group(0).spawn();
        if started.is_err() {
            lock(&self.watchdog).send("none");
        }
        let started = started.with_context(|| format!("cannot run {command:?}"))?;
        lock(&self.watchdog).send(&format!("pid {}", started.id()));
        *child = Some(started);
        Ok(())
    }

    /// Returns the program's exit status, or `None` while it runs.
    ///
    /// # Errors
    /// No program was started.
    pub fn poll(&self) -> Result<Option<ExitStatus>> {
        let mut slot = lock(&self.child);
        let Some(child) = slot.as_mut() else {
            bail!("cannot wait for a program in {}: none runs", self.dir.display())
        };
        let status = child.try_wait()?;
        if status.is_some() {
            *slot = None;
            lock(&self.watchdog).send("none");
        }
        Ok(status)
    }

    /// Waits until the program has ended. Returns `None` after `timeout`.
    ///
    /// # Errors
    /// The errors of [`Guard::poll`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.poll()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a program until it ends.
    ///
    /// # Errors
    /// The errors of [`Guard::spawn`].
    pub fn run(&self, command: &mut Command) -> Result<ResUse> {
        self.spawn(command)?;
        let pid = lock(&self.child).as_ref().map(Pid::from_child);
        if let Some(pid) = pid {
            // NOWAIT leaves the process a zombie until it is reaped under the lock. Until then its pid cannot
            // be reused, so the signal handler never kills an unrelated process.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), ended) {}
        }
        let child = lock(&self.child).take();
        wait_for_exit_if_interrupted();
        let used = child.context("cannot wait for the program: the signal handler has stopped it")?.wait4();
        lock(&self.watchdog).send("none");
        used.context("cannot wait for the program's end")
    }

    /// Returns the process ID of the running program.
    pub fn pid(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(Child::id)
    }

    /// Sends a signal to the program, if one runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = lock(&self.child).as_ref() {
            // This fails only if the program has just ended.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Stops the program and removes the folder.
    fn stop_and_remove(&self) {
        if self.pid().is_some() {
            // SIGQUIT is PostgreSQL's immediate shutdown.
            self.signal(Signal::QUIT);
            if !matches!(self.wait(Duration::from_secs(10)), Ok(Some(_))) && self.pid().is_some() {
                self.signal(Signal::KILL);
                let _ = self.wait(Duration::from_secs(10));
            }
        }
        remove_folder(&self.dir);
        lock(&self.watchdog).dismiss();
    }
}

/// Removes a folder in which children of a killed server, or other threads, may still be creating files.
fn remove_folder(folder: &Path) {
    for _ in 0..20 {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                thread::sleep(Duration::from_millis(100))
            }
            _ => break,
        }
    }
}

/// An action that restores an earlier state. The action runs once: when this value is dropped, or when a
/// signal ends this process.
pub struct Undo(Arc<UndoOnce>);

type UndoOnce = Mutex<Option<Box<dyn FnOnce() + Send>>>;

static UNDOS: Mutex<Vec<Weak<UndoOnce>>> = Mutex::new(Vec::new());

impl Undo {
    /// Creates an undo that runs `what`.
    pub fn new(what: impl FnOnce() + Send + 'static) -> Undo {
        let undo: Arc<UndoOnce> = Arc::new(Mutex::new(Some(Box::new(what))));
        let mut undos = lock(&UNDOS);
        undos.retain(|other| other.strong_count() > 0);
        undos.push(Arc::downgrade(&undo));
        // If the handler cannot be installed, dropping still runs the action.
        let _ = stop_on_signals();
        Undo(undo)
    }

    /// Creates an undo that removes a folder with its content.
    pub fn by_removing(folder: PathBuf) -> Undo {
        Undo::new(move || remove_folder(&folder))
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        run_undo(&self.0);
    }
}

fn run_undo(undo: &UndoOnce) {
    // Locked while the action runs, so that a second caller returns only when it is done.
    let mut slot = lock(undo);
    if let Some(what) = slot.take() {
        what();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop_and_remove();
    }
}

fn stop_on_signals() -> Result<()> {
    signals::before_exit(Stage::Programs, stop_everything).context("cannot install the signal handler")
}

fn stop_everything() {
    // In reverse order, as when dropped, and before the servers are stopped: an action may need its server.
    let undos: Vec<_> = lock(&UNDOS).iter().rev().filter_map(Weak::upgrade).collect();
    undos.iter().for_each(|undo| run_undo(undo));
    let guards: Vec<Arc<Guard>> = lock(&GUARDS).iter().filter_map(Weak::upgrade).collect();
    for guard in &guards {
        guard.signal(Signal::QUIT);
    }
    for guard in &guards {
        guard.stop_and_remove();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shell that reads from a pipe. If this process ends without dismissing it (for example by SIGKILL), the
/// shell reads the end of the pipe, stops the server and removes the folder.
struct Watchdog {
    shell: Child,
    /// Closed by the kernel when this process ends; std opens it close-on-exec, so no child keeps it open.
    pipe: Option<ChildStdin>,
}

/// The script of the watchdog. `$1` is the folder. It reads the lines `starting`, `pid N`, `none` and `done`.
///
/// If this process dies between `starting` and `pid N`, the pid is in postmaster.pid. A process that has
/// ended but is not reaped (state Z) counts as gone.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP QUIT
pid= starting=
while read -r word value; do
    case $word in
        starting) starting=1 ;;
        pid) pid=$value starting= ;;
        none) pid= starting= ;;
        done) exit 0 ;;
    esac
done
if [ -n "$starting" ]; then
    sleep 2
    pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
fi
running() {
    kill -0 "$pid" 2>/dev/null || return 1
    case $(cat "/proc/$pid/stat" 2>/dev/null) in *") Z "*) return 1 ;; esac
}
if [ -n "$pid" ]; then
    kill -QUIT "$pid"
    tries=0
    while running && [ $tries -lt 100 ]; do
        sleep 0.1 || sleep 1
        tries=$((tries + 1))
    done
    if running; then kill -KILL "$pid"; sleep 1; fi
fi
tries=0
while ! rm -rf -- "$1" && [ $tries -lt 20 ]; do
    sleep 0.1 || sleep 1
    tries=$((tries + 1))
done
"#;

impl Watchdog {
    fn start(dir: &Path) -> Result<Watchdog> {
        let mut shell = Command::new("sh")
            .args(["-c", WATCHDOG, "walden-watchdog"])
            .arg(dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start sh as a watchdog")?;
        let pipe = shell.stdin.take();
        Ok(Watchdog { shell, pipe })
    }

    fn send(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // If the watchdog was killed, the guard still works without it.
            let _ = writeln!(pipe, "{line}");
        }
    }

    fn dismiss(&mut self) {
        self.send("done");
        self.pipe = None;
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_guard_stops_its_program_and_removes_its_folder() {
        let dir = tempfile::tempdir().unwrap().keep();
        let guard = Guard::new(dir.clone()).unwrap();
        guard.spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = guard.pid().unwrap();
        assert!(guard.poll().unwrap().is_none());
        drop(guard);
        assert!(!dir.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
