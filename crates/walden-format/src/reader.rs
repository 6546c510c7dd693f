//! A cursor for reading structures of variable layout.

/// A bounded cursor: it cannot read past its slice, and a reader made by [`Reader::sub`] cannot read past its
/// parent.
///
/// Numbers are little-endian: the page magic identifies WAL of big-endian servers, which is rejected.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Returns the next `length` bytes; `None`, without advancing, if fewer remain.
    #[inline]
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// Returns the next `N` bytes; `None`, without advancing, if fewer remain.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Returns a reader limited to the next `length` bytes; `None` if fewer remain.
    #[inline]
    pub fn sub(&mut self, length: usize) -> Option<Reader<'a>> {
        self.take(length).map(Reader::new)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes, signed: PostgreSQL's timestamps.
    #[inline]
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// The remaining bytes.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The number of remaining bytes.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }
}
