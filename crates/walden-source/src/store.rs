//! Segments that lie elsewhere than in files: in an archive in an object store, for example.

use std::fmt;
use std::io;
use std::sync::Arc;

/// A place that hands out whole segments by number.
pub trait SegmentStore: fmt::Debug + Send + Sync {
    /// A reader for one thread, which reads segments in ascending order as far as possible.
    fn reader(&self) -> Box<dyn SegmentContents>;
}

/// Reads segments of a store, one after the other.
pub trait SegmentContents: Send {
    /// The decoded content of the segment with a number, which [`SegmentFile::member`] has.
    ///
    /// # Errors
    /// The store's, with the segment's place in its text.
    ///
    /// [`SegmentFile::member`]: crate::inventory::SegmentFile::member
    fn read(&mut self, number: u64) -> io::Result<Arc<Vec<u8>>>;
}

/// A store that segments share. Two are equal if they are the same one.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<dyn SegmentStore>);

impl SharedStore {
    /// Shares a store.
    pub fn new(store: impl SegmentStore + 'static) -> SharedStore {
        SharedStore(Arc::new(store))
    }

    pub(crate) fn reader(&self) -> Box<dyn SegmentContents> {
        self.0.reader()
    }
}

impl PartialEq for SharedStore {
    fn eq(&self, other: &SharedStore) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedStore {}
