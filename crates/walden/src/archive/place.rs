//! Where the archive is, and how it is used: options, the environment, `walden.toml`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use walden_archive::Archive;
use walden_archive::encryption::KeyOptions;
use walden_archive::url::{self, PlaceOptions};

use super::log::LogFormat;
use crate::receive::ReceiveSection;

/// The file that is looked for.
pub const FILE: &str = "walden.toml";
const SYSTEM_FOLDER: &str = "/etc/walden";

/// Which archive.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// The archive: a folder, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", env = "WALDEN_REPO")]
    pub repo: Option<String>,

    /// The configuration file [default: walden.toml in the working directory, else in /etc/walden]
    #[arg(long, value_name = "FILE", env = "WALDEN_CONFIG")]
    pub config: Option<PathBuf>,

    /// The file with a private key that may read an encrypted archive
    #[arg(long, value_name = "FILE", env = "WALDEN_IDENTITY", hide_env_values = true)]
    pub identity: Option<PathBuf>,
}

/// The content of `walden.toml`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The section `[archive]`.
    #[serde(default)]
    pub archive: ArchiveSection,
    /// The sections `[[receive]]`.
    #[serde(default)]
    pub receive: Vec<ReceiveSection>,
}

/// What can be said of an archive.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveSection {
    /// The archive's place.
    pub repo: Option<String>,
    /// The public key that the archive must have: what is pushed is encrypted to it or not archived.
    pub recipient: Option<String>,
    /// The file with a private key that may read, from the configuration's folder on.
    pub identity: Option<PathBuf>,
    /// Level of compression of pushed segments, 0 to 9.
    pub level: Option<u8>,
    /// Number of waiting files above which they are compressed at level 0.
    pub fast_queue: Option<usize>,
    /// Files that are archived ahead by one call.
    pub look_ahead: Option<usize>,
    /// Threads of a call.
    pub threads: Option<usize>,
    /// Number of waiting files above which each push prints a warning, and `status` gives 1.
    pub backlog_warning: Option<usize>,
    /// Segments that lie ready for recovery.
    pub prefetch: Option<usize>,
    /// The file that push and get append JSON lines to.
    pub log: Option<PathBuf>,
    /// The form of messages on standard error.
    pub log_format: Option<LogFormat>,
    /// The object store has no conditional requests.
    #[serde(default)]
    pub without_conditional_requests: bool,
    /// Options of object stores by name, such as endpoint and region.
    #[serde(default)]
    pub store: BTreeMap<String, String>,
}

impl Place {
    /// An archive that is named by its URL, with whatever the configuration says of its store.
    pub fn of(repo: String) -> Place {
        let named = |variable| std::env::var_os(variable).map(PathBuf::from);
        Place { repo: Some(repo), config: named("WALDEN_CONFIG"), identity: named("WALDEN_IDENTITY") }
    }

    /// The options that name the same archive from any working directory.
    pub fn absolute_arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = Vec::new();
        let (section, config) = self.configuration()?;
        if let Some(config) = config {
            arguments.extend(["--config".into(), std::path::absolute(config)?.into_os_string()]);
        }
        if let Some(identity) = &self.identity {
            arguments.extend(["--identity".into(), std::path::absolute(identity)?.into_os_string()]);
        }
        if let Some(repo) = self.repo.as_ref().or(section.repo.as_ref()) {
            let repo = match repo.contains("://") {
                true => repo.into(),
                false => std::path::absolute(repo)?.into_os_string(),
            };
            arguments.extend(["--repo".into(), repo]);
        }
        Ok(arguments)
    }

    /// The configuration of the archive, and where it was read.
    pub fn configuration(&self) -> Result<(ArchiveSection, Option<PathBuf>)> {
        let Some((path, configuration)) = self.read()? else { return Ok((ArchiveSection::default(), None)) };
        let mut section = configuration.archive;
        if let (Some(identity), Some(folder)) = (&mut section.identity, path.parent()) {
            *identity = folder.join(&*identity);
        }
        Ok((section, Some(path)))
    }

    /// The servers whose log is received.
    pub fn receive_sections(&self) -> Result<Vec<ReceiveSection>> {
        Ok(self.read()?.map(|(_, configuration)| configuration.receive).unwrap_or_default())
    }

    fn read(&self) -> Result<Option<(PathBuf, Configuration)>> {
        let path = match &self.config {
            Some(path) => Some(path.clone()),
            None => [PathBuf::from(FILE), Path::new(SYSTEM_FOLDER).join(FILE)]
                .into_iter()
                .find(|path| path.exists()),
        };
        let Some(path) = path else { return Ok(None) };
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let configuration =
            toml::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Some((path, configuration)))
    }

    /// Opens the archive; the configuration is given back.
    pub fn open(&self) -> Result<(Archive, ArchiveSection)> {
        self.open_with(None)
    }

    /// Opens the archive for a command that PostgreSQL waits for: an object store that does not answer within this time is an error.
    pub fn open_to_answer_within(&self, time: Duration) -> Result<(Archive, ArchiveSection)> {
        self.open_with(Some(time))
    }

    fn open_with(&self, answer_within: Option<Duration>) -> Result<(Archive, ArchiveSection)> {
        let (section, _) = self.configuration()?;
        let Some(repo) = self.repo.as_ref().or(section.repo.as_ref()) else {
            bail!(
                "cannot choose an archive: expected --repo URL, WALDEN_REPO, or repo in the [archive] section of {FILE} in the working directory or {SYSTEM_FOLDER}"
            );
        };
        let options = PlaceOptions {
            store: section.store.clone().into_iter().collect(),
            without_conditional_requests: section.without_conditional_requests,
            answer_within,
            keys: KeyOptions {
                recipient: section.recipient.clone(),
                identity: self.identity.clone().or_else(|| section.identity.clone()),
            },
        };
        Ok((url::open(repo, &options)?, section))
    }
}
