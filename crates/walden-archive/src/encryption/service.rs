//! Key services, which keep a key that wraps the private keys of users: KMS of AWS, or a command for any
//! other service.
//!
//! A user of a key service has a key pair like any other user. Its private key is stored in the archive's
//! generations of keys, encrypted by the service, so that who may use the service's key can read.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::{ARN, COMMAND, KeyOptions};
use crate::program;
use crate::store::{Cause, StoreError};

/// Time limit of a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a wrapped key.
const MAX_WRAPPED: usize = 16 << 10;

/// A private key that a key service encrypts: the line `AGE-SECRET-KEY-1...` of an identity file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wrapped {
    /// The service: the ARN of a key of KMS, or `command`.
    pub service: String,
    /// The encrypted private key, in base64.
    pub key: String,
}

/// A key service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyService {
    /// The service as it is stored with a wrapped key: the ARN of the key of KMS, or `command`. Commands are
    /// those of the configuration, never of the archive.
    pub name: String,
    /// The words of the command.
    command: Option<Vec<String>>,
}

impl KeyService {
    /// Parses `arn:aws:kms:REGION:ACCOUNT:key/ID` or `command:PROGRAM ARGUMENTS`. `None` if the text names no
    /// key service.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(text: &str) -> Option<Result<KeyService, String>> {
        if let Some(line) = text.strip_prefix(COMMAND) {
            let words = shlex::split(line).filter(|words| !words.is_empty());
            let problem = || format!("expected a command after {COMMAND}, found \"{line}\"");
            let service = |words| KeyService { name: "command".to_owned(), command: Some(words) };
            return Some(words.map(service).ok_or_else(problem));
        }
        if !text.starts_with(ARN) {
            return None;
        }
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        Some(match parts[..] {
            [_, _, "kms", region, _, key] if !region.is_empty() && !key.is_empty() => {
                Ok(KeyService { name: text.to_owned(), command: None })
            }
            _ => Err(format!("expected arn:aws:kms:REGION:ACCOUNT:key/ID, found \"{text}\"")),
        })
    }

    /// Encrypts a private key.
    pub(super) fn wrap(&self, key: &[u8], options: &KeyOptions) -> Result<Wrapped, StoreError> {
        let wrapped = self.call("encrypt", key, options)?;
        if wrapped.is_empty() || wrapped.len() > MAX_WRAPPED {
            let problem = format!("expected 1 to {MAX_WRAPPED} bytes, found {}", wrapped.len());
            return Err(self.failure("encrypt", problem));
        }
        Ok(Wrapped { service: self.name.clone(), key: BASE64_STANDARD.encode(wrapped) })
    }

    /// Decrypts a private key.
    pub(super) fn unwrap(&self, wrapped: &Wrapped, options: &KeyOptions) -> Result<Vec<u8>, StoreError> {
        let key = BASE64_STANDARD.decode(&wrapped.key).ok().filter(|key| key.len() <= MAX_WRAPPED);
        let key =
            key.ok_or_else(|| self.failure("decrypt", "expected base64, found something else".to_owned()))?;
        self.call("decrypt", &key, options)
    }

    fn call(
        &self,
        operation: &'static str,
        bytes: &[u8],
        options: &KeyOptions,
    ) -> Result<Vec<u8>, StoreError> {
        let result = match &self.command {
            Some(words) => {
                let result = program::run(words, bytes, COMMAND_LIMIT);
                result.map_err(|problem| format!("the command {}: {problem}", words[0]))
            }
            #[cfg(feature = "s3")]
            None => crate::store::kms::call(operation, &self.name, bytes, &options.store),
            #[cfg(not(feature = "s3"))]
            None => {
                let _ = options;
                Err("this program was built without object stores, and cannot use KMS".to_owned())
            }
        };
        result.map_err(|problem| self.failure(operation, problem))
    }

    /// Returns the error of an operation.
    pub(super) fn failure(&self, operation: &'static str, problem: String) -> StoreError {
        StoreError {
            source: Some(problem.into()),
            ..StoreError::new(operation, "the private key", &self.name, Cause::KeyService)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::is_key_service;
    use super::*;

    #[test]
    fn key_services_are_named_by_arn_or_command() {
        let parse =
            |text: &str| KeyService::parse(text).map(|service| service.map(|it| (it.name, it.command)));
        for text in ["restore.key", "/etc/arn:", "age1abc", ""] {
            assert!(parse(text).is_none() && !is_key_service(Path::new(text)), "{text}");
        }
        let arn = "arn:aws-cn:kms:cn-north-1:123456789012:key/1:2";
        assert_eq!(parse(arn).unwrap().unwrap(), (arn.to_owned(), None));
        let words = ["sh", "-c", "a | b"].map(str::to_owned).to_vec();
        let expected = ("command".to_owned(), Some(words));
        assert_eq!(parse("command:sh -c 'a | b'").unwrap().unwrap(), expected);
        for text in [
            "arn:",
            "arn:aws:s3:::bucket",
            "arn:aws:kms::1:key/x",
            "arn:aws:kms:r:1:",
            "command:",
            "command:'",
        ] {
            assert!(is_key_service(Path::new(text)));
            assert!(parse(text).unwrap().unwrap_err().contains("found"), "{text}");
        }
    }
}
