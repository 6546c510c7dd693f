//! A disk in memory that knows which bytes are durable.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use walden_receive::disk::{Disk, DiskFile};

/// How the selected call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Only this call fails.
    Error,
    /// This call and all later ones fail, because the power is off.
    Power,
}

/// A disk in memory. Clones share it.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    calls: u64,
    fails_at: Option<(u64, Failure)>,
    /// Limit for the bytes of all files, if any.
    capacity: Option<usize>,
    is_off: bool,
}

/// A file's content.
#[derive(Clone, Default)]
struct Content {
    durable: Vec<u8>,
    /// The bytes that reading returns.
    seen: Vec<u8>,
    /// Writes since the last synchronisation: offset and bytes.
    dirty: Vec<(usize, Vec<u8>)>,
}

impl Memory {
    /// Makes a call fail, counted from 1.
    pub fn fail_at(&self, call: u64, failure: Failure) {
        let mut state = self.state();
        (state.calls, state.fails_at) = (0, Some((call, failure)));
    }

    /// Limits the bytes of all files.
    pub fn set_capacity(&self, bytes: usize) {
        self.state().capacity = Some(bytes);
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Returns the disk after a power loss: with all durable bytes and, if `is_lucky`, with all but the first
    /// of the other writes of each file.
    pub fn after_power_loss(&self, is_lucky: bool) -> Memory {
        let state = self.state();
        let mut files = state.files.clone();
        for file in &mut files {
            if is_lucky {
                // The later writes without the first one: the system writes back in any order.
                for (offset, bytes) in file.dirty.iter().skip(1) {
                    file.durable[*offset..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            (file.seen, file.dirty) = (file.durable.clone(), Vec::new());
        }
        let names = if is_lucky { &state.names } else { &state.durable_names };
        let (names, durable_names) = (names.clone(), names.clone());
        Memory(Arc::new(Mutex::new(State { files, names, durable_names, ..State::default() })))
    }

    /// Returns the bytes of a file as reading returns them.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).map(|&file| state.files[file].seen.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Counts a call, and fails if it should.
    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.calls += 1;
        let is_due = |(call, failure)| state.calls == call || state.calls > call && failure == Failure::Power;
        if state.is_off || state.fails_at.is_some_and(is_due) {
            state.is_off = state.fails_at.is_some_and(|(_, failure)| failure == Failure::Power);
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(state)
    }
}

impl Disk for Memory {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.call()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.call()?;
        let others = state.names.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(_, &file)| state.files[file].seen.len()).sum();
        let room = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(used));
        let zeros = vec![0; room.min(bytes as usize)];
        let is_full = zeros.len() < bytes as usize;
        state.files.push(Content { durable: zeros.clone(), seen: zeros, dirty: Vec::new() });
        let file = state.files.len() - 1;
        state.names.insert(name.to_owned(), file);
        // The bytes that found room stay, as on any file system.
        if is_full {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(Arc::new(MemoryFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.call()?;
        let file = *state.names.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.call()?;
        let file = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call()?.names.remove(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.call()?;
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

struct MemoryFile {
    disk: Memory,
    file: usize,
}

impl DiskFile for MemoryFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.call()?;
        let content = &mut state.files[self.file];
        content.seen[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        content.dirty.push((offset as usize, bytes.to_vec()));
        Ok(())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        buffer.copy_from_slice(&self.disk.call()?.files[self.file].seen[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let result = self.disk.call().map(drop);
        let mut state = self.disk.state();
        let content = &mut state.files[self.file];
        let dirty = std::mem::take(&mut content.dirty);
        // After a failure, Linux marks unwritten pages as clean: a second attempt succeeds and writes
        // nothing.
        result?;
        for (offset, bytes) in dirty {
            content.durable[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}
