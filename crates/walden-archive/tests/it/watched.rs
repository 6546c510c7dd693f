//! A folder whose calls a test observes, changes or fails.

use std::ops::Range;
use std::path::Path;

use walden_archive::store::versions::Kept;
use walden_archive::store::{Cause, Created, Folder, Listed, Store, StoreError};

/// The order in which a listing visits keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Order {
    Ascending,
    Descending,
}

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decision {
    Pass,
    /// The call has no effect.
    Fail,
    /// The call has no effect, because the store is full.
    Full,
    /// The call takes effect, but its result is lost.
    FailAfter,
    /// Half of the written or read bytes are lost, without an error.
    Tear,
    /// The object stays, as if it were locked. Only for removals.
    Keep,
}

/// Gets the name of a call, and its key or prefix.
type Decide = dyn Fn(&'static str, &str) -> Decision + Send + Sync;

/// A folder that asks a function before each call.
pub struct Watched {
    folder: Folder,
    decide: Box<Decide>,
    /// Listings like those of an object store whose responses have one key each, with a call of `decide` for
    /// each response. Keys created after the last returned key are seen, earlier ones are not.
    key_by_key: Option<Order>,
    can_be_unmounted: bool,
}

impl Watched {
    pub fn new(place: &Path, before: impl Fn(&'static str) + Send + Sync + 'static) -> Watched {
        Watched::deciding(place, move |call, _| {
            before(call);
            Decision::Pass
        })
    }

    pub fn deciding(
        place: &Path,
        decide: impl Fn(&'static str, &str) -> Decision + Send + Sync + 'static,
    ) -> Watched {
        Watched {
            folder: Folder::new(place),
            decide: Box::new(decide),
            key_by_key: None,
            can_be_unmounted: false,
        }
    }

    pub fn key_by_key(self, order: Order) -> Watched {
        Watched { key_by_key: Some(order), ..self }
    }

    /// Lets the archive check that its place still has it.
    pub fn unmountable(self) -> Watched {
        Watched { can_be_unmounted: true, ..self }
    }

    /// Makes a call. The argument of `make` is whether half of the bytes are lost.
    fn call<T>(
        &self,
        call: &'static str,
        key: &str,
        make: impl FnOnce(bool) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed_by = |cause| StoreError::new("use", key, "a store that fails", cause);
        let failed = || failed_by(Cause::Unavailable);
        match (self.decide)(call, key) {
            Decision::Fail => Err(failed()),
            Decision::Full => Err(failed_by(Cause::Full)),
            Decision::FailAfter => make(false).and_then(|_| Err(failed())),
            Decision::Pass => make(false),
            Decision::Tear => make(true),
            Decision::Keep => panic!("{call} of {key}: only a removal can be refused"),
        }
    }

    fn list_key_by_key(
        &self,
        order: Order,
        prefix: &str,
        visit: &mut dyn FnMut(Listed),
    ) -> Result<(), StoreError> {
        let mut last: Option<Listed> = None;
        loop {
            let mut keys = Vec::new();
            self.call("list", prefix, |_| self.folder.list(prefix, &mut |listed| keys.push(listed)))?;
            let is_next = |key: &Listed| match (&last, order) {
                (None, _) => true,
                (Some(last), Order::Ascending) => key.key > last.key,
                (Some(last), Order::Descending) => key.key < last.key,
            };
            keys.retain(is_next);
            let next = match order {
                Order::Ascending => keys.into_iter().min(),
                Order::Descending => keys.into_iter().max(),
            };
            let Some(next) = next else { return Ok(()) };
            visit(next.clone());
            last = Some(next);
        }
    }
}

fn half(mut bytes: Vec<u8>, is_torn: bool) -> Vec<u8> {
    if is_torn {
        bytes.truncate(bytes.len() / 2);
    }
    bytes
}

impl Store for Watched {
    fn make_root(&self) -> Result<(), StoreError> {
        self.folder.make_root()
    }
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.call("create", key, |is_torn| self.folder.create(key, &half(content.to_vec(), is_torn)))
    }
    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        self.call("make_durable", key, |_| self.folder.make_durable(key))
    }
    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.call("read", key, |is_torn| Ok(half(self.folder.read(key)?, is_torn)))
    }
    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.call("read_range", key, |is_torn| Ok(half(self.folder.read_range(key, range)?, is_torn)))
    }
    fn size(&self, key: &str) -> Result<u64, StoreError> {
        self.call("size", key, |_| self.folder.size(key))
    }
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        match self.key_by_key {
            Some(order) => self.list_key_by_key(order, prefix, visit),
            None => self.call("list", prefix, |_| self.folder.list(prefix, visit)),
        }
    }
    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.call("remove", key, |_| self.folder.remove(key))
    }
    fn discard(&self, key: &str) -> Result<Option<Kept>, StoreError> {
        match (self.decide)("discard", key) {
            Decision::Keep => {
                Ok(Some(Kept { until: Some(jiff::Timestamp::MAX), problem: "locked".to_owned() }))
            }
            _ => self.remove(key).map(|()| None),
        }
    }
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        self.call("remove_leftovers", "", |_| self.folder.remove_leftovers())
    }
    fn location(&self) -> &str {
        self.folder.location()
    }
    fn can_be_unmounted(&self) -> bool {
        self.can_be_unmounted
    }
}
