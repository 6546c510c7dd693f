//! Memory for pages, in the system's large pages where much of it is wanted.
//!
//! A store has up to tens of thousands of buffers of 8 kB, each met for the first time with a record that needs it. In the
//! system's small pages, meeting them one by one takes a third of replay's time. So buffers come from chunks of memory, and go
//! back to a pool; memory stays with the process, for the next store. The system clears memory before it gives it away; a
//! thread of its own can wait for that, a little ahead of those who want it.
//!
//! Large pages are for those who stay. What lately was another process's small pages is at hand; a free large page a
//! virtual machine may have given back to its host, which then has to find its 2 MB again: several milliseconds. A process
//! that is done after a few megabytes would mostly wait for that, so the first chunks are small pages, ready when they come.

use std::ops::{Deref, DerefMut};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use memmap2::{MmapMut, MmapOptions};
use zerocopy::FromBytes;

use crate::page::Page;

/// Bytes asked of the system at a time. They take up memory only when they are used, a large page of 2 MB at a time.
const CHUNK: usize = 32 << 20;
/// Bytes asked of the system at a time as long as few are wanted, and how many are few.
const FEW_AT_A_TIME: usize = 256 << 10;
const FEW: usize = 64 << 20;
/// Bytes of the smallest pages that systems have.
const SMALL_PAGE: usize = 4096;
/// Bytes made ready at a time: a large page. Two of them are ready beyond what is wanted.
const SLAB: usize = 2 << 20;

/// A page of one's own in memory; back to the pool when it is dropped.
pub struct PageBox {
    /// Always there, until the box goes.
    held: Option<Held>,
}

/// A page in memory, to be given back by [`PageBox::from`] it; it would be lost otherwise.
pub(crate) type Held = &'static mut Page;

impl PageBox {
    /// A page with any content.
    pub fn any() -> PageBox {
        PageBox { held: Some(pool(Pool::take)) }
    }

    /// The page alone. A table of many takes half the room with these.
    pub(crate) fn hold(mut self) -> Held {
        self.held.take().unwrap_or_else(|| pool(Pool::take))
    }
}

impl From<Held> for PageBox {
    fn from(page: Held) -> PageBox {
        PageBox { held: Some(page) }
    }
}

impl From<&Page> for PageBox {
    fn from(page: &Page) -> PageBox {
        let mut copy = PageBox::any();
        copy.0.clone_from(&page.0);
        copy
    }
}

impl Default for PageBox {
    /// Zeros.
    fn default() -> PageBox {
        let mut page = PageBox::any();
        page.0.fill(0);
        page
    }
}

impl Clone for PageBox {
    fn clone(&self) -> PageBox {
        PageBox::from(&**self)
    }
}

impl Deref for PageBox {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        match &self.held {
            Some(page) => page,
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl DerefMut for PageBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Page {
        match &mut self.held {
            Some(page) => page,
            None => unreachable!("{TAKEN}"),
        }
    }
}

const TAKEN: &str = "a page is taken out of its box only when that goes";

impl std::fmt::Debug for PageBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl Drop for PageBox {
    #[inline]
    fn drop(&mut self) {
        if let Some(page) = self.held.take() {
            pool(|pool| pool.free.push(page));
        }
    }
}

/// Gives many pages back.
pub(crate) fn give_back(pages: impl Iterator<Item = Held>) {
    pool(|pool| pool.free.extend(pages));
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), fresh: &mut [], few: 0, ready: None });

fn pool<T>(act: impl FnOnce(&mut Pool) -> T) -> T {
    act(&mut POOL.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Pool {
    free: Vec<Held>,
    /// Never used.
    fresh: &'static mut [Page],
    /// Bytes that came a few at a time.
    few: usize,
    /// Where more of these come from, if a thread makes them ready.
    ready: Option<Receiver<&'static mut [Page]>>,
}

impl Pool {
    fn take(&mut self) -> Held {
        if let Some(page) = self.free.pop() {
            return page;
        }
        if self.fresh.is_empty() {
            let ready = self.ready.as_ref().and_then(|ready| ready.recv().ok());
            self.fresh = ready.or_else(|| self.more()).unwrap_or_default();
        }
        match std::mem::take(&mut self.fresh).split_first_mut() {
            Some((page, rest)) => {
                self.fresh = rest;
                page
            }
            // The system has no such chunk; it may have a page's memory.
            None => Box::leak(Box::default()),
        }
    }

    /// More memory, nothing ready or not.
    fn more(&mut self) -> Option<&'static mut [Page]> {
        if self.few >= FEW {
            return chunk();
        }
        self.few += FEW_AT_A_TIME;
        pages(MmapOptions::new().len(FEW_AT_A_TIME).populate().map_anon().ok()?)
    }
}

/// From now on, memory is made ready by a thread before it is wanted.
pub(crate) fn make_ready_ahead() {
    pool(|pool| {
        pool.ready.get_or_insert_with(start);
    });
}

fn start() -> Receiver<&'static mut [Page]> {
    let (to, ready) = sync_channel(1);
    // Without the thread, nothing is ever ready, and memory is cleared when it is used.
    let _ = thread::Builder::new().name("pages".into()).spawn(move || make_ready(&to));
    ready
}

/// Makes memory ready until nobody wants it or the system has no more.
fn make_ready(to: &SyncSender<&'static mut [Page]>) {
    while let Some(chunk) = chunk() {
        for slab in chunk.chunks_mut(SLAB / size_of::<Page>()) {
            // The first write to each of the system's pages is what it is cleared for.
            slab.iter_mut().flat_map(|page| page.0.iter_mut().step_by(SMALL_PAGE)).for_each(|byte| *byte = 0);
            if to.send(slab).is_err() {
                return;
            }
        }
    }
}

/// On large pages.
fn chunk() -> Option<&'static mut [Page]> {
    let map = MmapOptions::new().len(CHUNK).map_anon().ok()?;
    // Small pages serve as well, but slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    pages(map)
}

fn pages(map: MmapMut) -> Option<&'static mut [Page]> {
    let map: &'static mut MmapMut = Box::leak(Box::new(map));
    <[Page]>::mut_from_bytes(map).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_apart_and_come_back() {
        let mut pages: Vec<PageBox> = (0..5000).map(|_| PageBox::any()).collect();
        for (number, page) in pages.iter_mut().enumerate() {
            page.0.fill(number as u8);
        }
        assert!(
            pages.iter().enumerate().all(|(number, page)| page.0.iter().all(|&byte| byte == number as u8))
        );
        let copy = pages[7].clone();
        drop(pages);
        assert_eq!(copy.0[8191], 7);
        assert_eq!(PageBox::default().0, [0; 8192]);
        let held = copy.hold();
        assert_eq!(PageBox::from(held).0[0], 7);
    }
}
