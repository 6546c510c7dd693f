//! Formats fields as `name: value, name: value`.

use std::fmt::{self, Display, Formatter};

/// A list of named values that is being written to a formatter.
pub(crate) struct Listing<'f, 'g> {
    f: &'f mut Formatter<'g>,
    empty: bool,
    result: fmt::Result,
}

impl<'f, 'g> Listing<'f, 'g> {
    pub fn new(f: &'f mut Formatter<'g>) -> Self {
        Listing { f, empty: true, result: Ok(()) }
    }

    pub fn field(mut self, name: &str, value: impl Display) -> Self {
        if self.result.is_ok() {
            let comma = if self.empty { "" } else { ", " };
            self.result = write!(self.f, "{comma}{name}: {value}");
            self.empty = false;
        }
        self
    }

    pub fn some(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Adds a list, unless it is empty.
    pub fn items<T: super::Item + Display>(self, name: &str, items: super::Items<'_, T>) -> Self {
        if items.is_empty() { self } else { self.field(name, items) }
    }

    /// Adds the length of a list, unless it is empty.
    pub fn count(self, name: &str, count: usize) -> Self {
        if count == 0 { self } else { self.field(name, count) }
    }

    pub fn end(self) -> fmt::Result {
        self.result
    }
}

/// Implements `Display` with a [`Listing`]: `listing! { Type<'_>: |self_, list| list.field(...) }`.
macro_rules! listing {
    ($type:ty: |$value:ident, $list:ident| $fields:expr) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let ($value, $list) = (self, $crate::payload::listing::Listing::new(f));
                $fields.end()
            }
        }
    };
}

/// Declares a set of flags, with a constant and a query method for each bit; printed as `0x0C`: `flags! {
/// Type(u8) { is_set IS_SET = 1 << 0; } }`.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident($bits:ty) { $($(#[$flag_doc:meta])* $flag:ident $constant:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name(pub $bits);

        impl $name {
            $(
                $(#[$flag_doc])*
                pub const $constant: $bits = $bit;

                $(#[$flag_doc])*
                #[inline]
                pub fn $flag(self) -> bool {
                    self.0 & $bit != 0
                }
            )*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "0x{:02X}", self.0)
            }
        }

        impl $crate::payload::layout::Field for $name {
            const WIDTH: usize = size_of::<$bits>();

            #[inline(always)]
            fn at<const N: usize>(structure: &[u8; N], offset: usize) -> Self {
                $name(<$bits>::at(structure, offset))
            }

            #[inline(always)]
            fn put<const N: usize>(self, structure: &mut [u8; N], offset: usize) {
                self.0.put(structure, offset);
            }
        }
    };
}

pub(crate) use {flags, listing};
