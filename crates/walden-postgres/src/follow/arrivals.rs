//! Opens new segments immediately, so that segments that are removed before the next poll can still be read.
//!
//! A thread waits for inotify events of new files. If that is not possible (other systems than Linux, some
//! network file systems, or no more watches), no segments are opened here, and [`super::FolderFollower`]
//! finds them when it lists the folder.

use std::fs::File;
use std::path::Path;

use walden_format::lsn::SegmentName;

/// Most opened segments that wait to be taken; each keeps its file's space allocated.
#[cfg(target_os = "linux")]
const MAX_WAITING: usize = 64;

/// New segments of a folder since the last call of `take`.
#[derive(Debug)]
pub(super) struct Arrivals {
    #[cfg(target_os = "linux")]
    opened: std::sync::mpsc::Receiver<(SegmentName, File)>,
    /// Dropping this end of the pipe ends the thread.
    #[cfg(target_os = "linux")]
    _stop: std::io::PipeWriter,
}

#[cfg(not(target_os = "linux"))]
impl Arrivals {
    pub(super) fn watch(_: &Path) -> Option<Arrivals> {
        None
    }

    pub(super) fn take(&self) -> impl Iterator<Item = (SegmentName, File)> {
        std::iter::empty()
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, PipeReader};
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::thread;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
    use rustix::io::Errno;

    use super::*;
    use walden_source::regular_file;

    impl Arrivals {
        /// Watches a folder from now on. Returns `None` if it cannot be watched.
        pub(in super::super) fn watch(folder: &Path) -> Option<Arrivals> {
            let (stop, stopped) = io::pipe().ok().map(|(reader, writer)| (writer, reader))?;
            let watched = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            // Segments are created under another name, then linked (before PostgreSQL 15) or renamed.
            inotify::add_watch(&watched, folder, WatchFlags::CREATE | WatchFlags::MOVED_TO).ok()?;
            let (sender, opened) = sync_channel(MAX_WAITING);
            let folder = folder.to_owned();
            let thread = thread::Builder::new().name("arrivals".into());
            thread.spawn(move || open_arrivals(&folder, &watched, &stopped, &sender)).ok()?;
            Some(Arrivals { opened, _stop: stop })
        }

        /// Returns the segments that arrived since the last call, in the order of their arrival.
        pub(in super::super) fn take(&self) -> impl Iterator<Item = (SegmentName, File)> {
            self.opened.try_iter()
        }
    }

    fn open_arrivals(
        folder: &Path,
        watched: &OwnedFd,
        stopped: &PipeReader,
        sender: &SyncSender<(SegmentName, File)>,
    ) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(watched, &mut buffer);
        loop {
            let mut ready = [PollFd::new(watched, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if !ready[1].revents().is_empty() => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(_) => return,
                };
                let name = event.file_name().and_then(|name| name.to_str().ok()).and_then(SegmentName::parse);
                // A file that is gone again or cannot be opened is skipped. The follower reports the reason
                // when it reads the folder.
                if let Some(name) = name
                    && let Ok(file) = regular_file::open(&folder.join(name.to_string()))
                {
                    // A full queue means that the follower has stopped reading.
                    let _ = sender.try_send((name, file));
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::io::Read;
        use std::time::{Duration, Instant};

        use super::*;

        #[test]
        fn a_segment_can_be_read_after_it_was_removed() {
            let folder = tempfile::tempdir().unwrap();
            let arrivals = Arrivals::watch(folder.path()).unwrap();
            let made = folder.path().join("xlogtemp.1");
            for number in 1..=3 {
                let name = format!("00000001000000000000000{number}");
                std::fs::write(&made, &name).unwrap();
                std::fs::rename(&made, folder.path().join(&name)).unwrap();
                let began = Instant::now();
                let mut taken = arrivals.take().next();
                while taken.is_none() && began.elapsed() < Duration::from_secs(60) {
                    thread::sleep(Duration::from_millis(5));
                    taken = arrivals.take().next();
                }
                std::fs::remove_file(folder.path().join(&name)).unwrap();
                let (found, mut file) = taken.unwrap();
                let mut content = String::new();
                file.read_to_string(&mut content).unwrap();
                assert_eq!((found.to_string(), content), (name.clone(), name));
            }
        }

        #[test]
        fn a_folder_that_is_not_there_is_not_watched() {
            let folder = tempfile::tempdir().unwrap();
            assert!(Arrivals::watch(&folder.path().join("pg_wal")).is_none());
        }
    }
}
