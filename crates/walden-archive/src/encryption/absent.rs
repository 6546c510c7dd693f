//! Replaces encryption in a build without it: detects encrypted archives and refuses them.

use std::ops::Range;

use super::{KEYS, KeyOptions, failure};
use crate::objects::object::Finding;
use crate::store::{Cause, Created, FileHash, Store, StoreError};

/// Never exists in this build.
pub enum Engine {}

const PROBLEM: &str = "the archive is encrypted, and this program was built without encryption";

impl Engine {
    pub fn new(_: &str, _: &KeyOptions) -> Result<Engine, String> {
        Err(PROBLEM.to_owned())
    }

    pub fn stated_recipient(inner: &dyn Store) -> Result<String, StoreError> {
        Err(failure(inner, "read", KEYS, Cause::Other, PROBLEM))
    }

    pub fn oldest_recipient(&self, _: &dyn Store) -> Result<String, StoreError> {
        match *self {}
    }

    pub fn recipient(&self, _: &dyn Store) -> Result<String, StoreError> {
        match *self {}
    }

    pub fn expect_keys(&self, _: &dyn Store) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn key_faults(&self, _: &dyn Store) -> Result<Vec<Finding>, StoreError> {
        match *self {}
    }

    pub fn unlock(&self, _: &dyn Store) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn create(
        &self,
        _: &dyn Store,
        _: &str,
        _: &[u8],
        _: &[FileHash<'_>],
    ) -> Result<Created, StoreError> {
        match *self {}
    }

    pub fn stated(&self, _: &dyn Store, _: &str) -> Result<(), StoreError> {
        match *self {}
    }

    pub fn holds(&self, _: &dyn Store, _: &str, _: FileHash<'_>) -> Result<Option<bool>, StoreError> {
        match *self {}
    }

    pub fn read(&self, _: &dyn Store, _: &str) -> Result<Vec<u8>, StoreError> {
        match *self {}
    }

    pub fn read_range(&self, _: &dyn Store, _: &str, _: Range<u64>) -> Result<Vec<u8>, StoreError> {
        match *self {}
    }

    pub fn content_bytes(&self, _: &dyn Store, _: &str, _: u64) -> Result<u64, StoreError> {
        match *self {}
    }
}
