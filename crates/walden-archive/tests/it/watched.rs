//! A store that runs a function before each call.

use std::ops::Range;
use std::path::Path;

use walden_archive::store::{Created, Folder, Listed, Store, StoreError};

/// The order in which a listing visits keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Order {
    Ascending,
    Descending,
}

/// A folder that runs a function before each call.
pub struct Watched {
    folder: Folder,
    /// Gets the name of the call.
    before: Box<dyn Fn(&'static str) + Send + Sync>,
    /// Listings like those of an object store whose responses have one key each, with a call of `before` for
    /// each response. Keys created after the last returned key are seen, earlier ones are not.
    key_by_key: Option<Order>,
}

impl Watched {
    pub fn new(place: &Path, before: impl Fn(&'static str) + Send + Sync + 'static) -> Watched {
        Watched { folder: Folder::new(place), before: Box::new(before), key_by_key: None }
    }

    pub fn key_by_key(self, order: Order) -> Watched {
        Watched { key_by_key: Some(order), ..self }
    }

    fn folder(&self, call: &'static str) -> &Folder {
        (self.before)(call);
        &self.folder
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
            self.folder("list").list(prefix, &mut |listed| keys.push(listed))?;
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

impl Store for Watched {
    fn create(&self, key: &str, content: &[u8]) -> Result<Created, StoreError> {
        self.folder("create").create(key, content)
    }
    fn make_durable(&self, key: &str) -> Result<(), StoreError> {
        self.folder("make_durable").make_durable(key)
    }
    fn read(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.folder("read").read(key)
    }
    fn read_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        self.folder("read_range").read_range(key, range)
    }
    fn size(&self, key: &str) -> Result<u64, StoreError> {
        self.folder("size").size(key)
    }
    fn list(&self, prefix: &str, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        match self.key_by_key {
            Some(order) => self.list_key_by_key(order, prefix, visit),
            None => self.folder("list").list(prefix, visit),
        }
    }
    fn remove(&self, key: &str) -> Result<(), StoreError> {
        self.folder("remove").remove(key)
    }
    fn remove_leftovers(&self) -> Result<(), StoreError> {
        self.folder("remove_leftovers").remove_leftovers()
    }
    fn location(&self) -> &str {
        self.folder.location()
    }
}
