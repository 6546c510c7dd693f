//! Stable codes and remedies of errors.

use std::borrow::Cow;
use std::error::Error;

/// What the user can do about an error.
pub type Hint = Cow<'static, str>;

/// The code and the remedy of an error.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Identifies the kind of error in all versions of Walden, such as `archive-full`; `None` if one of the
    /// error's causes decides.
    pub code: Option<&'static str>,
    /// The cause as one more general word, such as `full`, for logs and metrics.
    pub cause: Option<&'static str>,
    /// What the user can do.
    pub hint: Option<Hint>,
}

/// An error with a code and a remedy besides its message. [`diagnostics!`](crate::diagnostics) implements it.
pub trait Diagnostic: Error {
    /// Returns the code and the remedy.
    fn diagnose(&self) -> Diagnosis;
}

/// A value that a row of [`diagnostics!`](crate::diagnostics) can have as its hint.
pub trait IntoHint {
    /// Returns the hint.
    fn into_hint(self) -> Option<Hint>;
}

impl IntoHint for &'static str {
    fn into_hint(self) -> Option<Hint> {
        Some(self.into())
    }
}

impl IntoHint for String {
    fn into_hint(self) -> Option<Hint> {
        Some(self.into())
    }
}

impl IntoHint for Hint {
    fn into_hint(self) -> Option<Hint> {
        Some(self)
    }
}

impl<H: IntoHint> IntoHint for Option<H> {
    fn into_hint(self) -> Option<Hint> {
        self.and_then(IntoHint::into_hint)
    }
}

/// Implements [`Diagnostic`] for an error by a table, and the methods `code`, `cause` and `hint`, which do
/// not need the trait in scope.
///
/// A row is a pattern and a code, a cause after `as`, and a hint if there is a remedy. `of(error)` takes all
/// three from an error within this one, `code_of(error)` omits the hint, and `is(diagnosis)` takes them from
/// an expression. `none` leaves the decision to the causes, such as an error of the file system.
///
/// ```
/// #[derive(Debug)]
/// enum DiskError {
///     Full,
///     Io(std::io::Error),
/// }
/// # impl std::fmt::Display for DiskError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
/// #         f.write_str("the disk cannot be used")
/// #     }
/// # }
/// # impl std::error::Error for DiskError {}
///
/// walden_format::diagnostics! { DiskError {
///     Self::Full => "disk-full": "remove some files",
///     Self::Io(_) => none,
/// } }
///
/// assert_eq!(DiskError::Full.code(), Some("disk-full"));
/// assert_eq!(DiskError::Full.hint().as_deref(), Some("remove some files"));
/// ```
#[macro_export]
macro_rules! diagnostics {
    ($type:ty { $(
        $pattern:pat $(if $guard:expr)? =>
            $(of($inner:expr))? $(code_of($coded:expr))? $(is($other:expr))? $(none)? $($code:literal)?
            $(as $cause:literal)? $(: $hint:expr)?
    ),* $(,)? }) => {
        impl $crate::diagnostic::Diagnostic for $type {
            fn diagnose(&self) -> $crate::diagnostic::Diagnosis {
                #[allow(unused_imports)]
                use $crate::diagnostic::{Diagnosis, Diagnostic as _, IntoHint as _};
                match self {$(
                    $pattern $(if $guard)? => {
                        #[allow(unused_mut)]
                        let mut diagnosis = $crate::first_of!(
                            $($inner.diagnose(),)? $($coded.diagnose(),)? $($other,)? Diagnosis::default()
                        );
                        $(diagnosis.hint = $crate::first_of!(None, $coded);)?
                        $(diagnosis.code = Some($code);)?
                        $(diagnosis.cause = Some($cause);)?
                        $(diagnosis.hint = ($hint).into_hint();)?
                        diagnosis
                    }
                )*}
            }
        }

        impl $type {
            /// Returns the stable code; `None` if a cause decides.
            pub fn code(&self) -> Option<&'static str> {
                $crate::diagnostic::Diagnostic::diagnose(self).code
            }

            /// Returns the cause as one word, for logs and metrics.
            pub fn cause(&self) -> &'static str {
                $crate::diagnostic::Diagnostic::diagnose(self).cause.unwrap_or("other")
            }

            /// Returns what the user can do.
            pub fn hint(&self) -> Option<$crate::diagnostic::Hint> {
                $crate::diagnostic::Diagnostic::diagnose(self).hint
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! first_of {
    ($first:expr $(, $other:expr)*) => {
        $first
    };
}
