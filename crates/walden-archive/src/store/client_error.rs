//! Errors of the client library of object stores, by their cause.

use object_store::Error as ClientError;

use super::profile::{FAILED_LOGIN, FAILED_PROCESS};
use super::{Cause, StoreError};

/// Returns the texts of an error and its sources, including the server's answer.
fn error_text(error: &ClientError) -> String {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |cause| cause.source()).map(ToString::to_string).collect()
}

/// Addresses of the clouds' metadata services, which the client asks for credentials if no others are
/// configured.
const METADATA_SERVICES: [&str; 2] = ["//169.254.169.254/", "//metadata.google.internal/"];
/// Codes in the answer of a store that lacks the bucket or container.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// Codes in the answer to a removal among several, whose status is that of success.
const DENIED: [&str; 2] = ["(code: AccessDenied)", "(code: AllAccessDisabled)"];
/// Parts of the answer of a bucket without Object Lock to a lock, by implementation.
const NO_OBJECT_LOCK: [&str; 2] = ["missing Object Lock Configuration", "missing ObjectLockConfiguration"];

/// Parts of the answer to expired credentials: codes of S3, and the text of Azure.
const EXPIRED: [&str; 3] =
    ["ExpiredToken", "TokenRefreshRequired", "Signature not valid in the specified time frame"];
/// Parts of the answer if this machine's clock differs from the store's: a code of S3 and Google, and the
/// text of Azure.
const CLOCK_SKEW: [&str; 2] = ["RequestTimeTooSkewed", "Request date header too old"];

/// Status if the object ends before the requested range, and the client library's text if the store answers
/// with the object's length.
const OUT_OF_RANGE: [&str; 2] = ["416 Range Not Satisfiable", "Wanted range starting at"];

/// Converts an error of the client library.
pub(super) fn failure(operation: &'static str, key: &str, location: &str, error: ClientError) -> StoreError {
    let text = error_text(&error);
    let has_one_of = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let cause = match &error {
        // The object itself may exist.
        _ if has_one_of(&NO_BUCKET) => Cause::NoBucket,
        _ if has_one_of(&NO_OBJECT_LOCK) => Cause::NoObjectLock,
        _ if has_one_of(&DENIED) => Cause::Denied,
        _ if has_one_of(&EXPIRED) => Cause::Expired,
        _ if has_one_of(&CLOCK_SKEW) => Cause::ClockSkew,
        // The object is empty or ends before the requested range. A retry does not help.
        _ if has_one_of(&OUT_OF_RANGE) => Cause::Damaged,
        _ if has_one_of(&METADATA_SERVICES) || has_one_of(&[FAILED_PROCESS, FAILED_LOGIN]) => {
            Cause::NoCredentials
        }
        ClientError::NotFound { .. } => Cause::NotFound,
        ClientError::PermissionDenied { .. } | ClientError::Unauthenticated { .. } => Cause::Denied,
        ClientError::Generic { .. } => Cause::Unavailable,
        _ => Cause::Other,
    };
    let (key, location) = (key.to_owned(), location.to_owned());
    // The error already names the missing object or bucket, and the source would only add an XML document.
    let has_more_to_say = !matches!(cause, Cause::NotFound | Cause::NoBucket);
    let source = has_more_to_say.then(|| match without_settings(&walden_source::error_text(&error)) {
        Some(text) => text.into(),
        None => error.into(),
    });
    StoreError { operation, key, location, cause, source }
}

/// Removes the retry settings from a client error, or returns `None` if it has none. The time limits the
/// retries, so the configured maximum is meaningless.
pub(super) fn without_settings(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(", max_retries: ")?;
    let (_, after) = rest.split_once(" - ")?;
    Some(format!("{before}: {after}"))
}
