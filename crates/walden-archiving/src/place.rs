//! The location of the archive: from options, the environment, or `walden.toml`.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use walden_archive::Archive;
use walden_archive::copies::{Copies, Copy};
use walden_archive::encryption::{KeyOptions, is_key_service};
use walden_archive::url::{self, PlaceOptions};

use crate::configuration::{ArchiveSection, Configuration, FILE, ReceiveSection};
use crate::error::PlaceError;

type Result<T> = std::result::Result<T, PlaceError>;

/// The folder searched for [`FILE`] if the working directory has none.
const SYSTEM_FOLDER: &str = "/etc/walden";

/// Options that select an archive.
#[derive(Clone, Debug)]
pub struct Place {
    /// The archive: a folder, or a URL.
    pub repo: Option<String>,
    /// The configuration file, unless it is `walden.toml` in the working directory or in `/etc/walden`.
    pub config: Option<PathBuf>,
    /// The file with a private key for reading an encrypted archive.
    pub identity: Option<PathBuf>,
    /// The path and content of the configuration file, once searched for; the inner `None` means that no file
    /// exists.
    configuration: Option<Arc<Option<(PathBuf, Configuration)>>>,
}

impl Place {
    /// Creates the place that options name.
    pub fn new(repo: Option<String>, config: Option<PathBuf>, identity: Option<PathBuf>) -> Place {
        Place { repo, config, identity, configuration: None }
    }

    /// Creates the place of an archive with a given URL; the configuration still provides the options of its
    /// store, and its keys if the configuration names no other archive.
    pub fn from_url(repo: String) -> Place {
        let named = |variable| std::env::var_os(variable).map(PathBuf::from);
        Place {
            repo: Some(repo),
            config: named("WALDEN_CONFIG"),
            identity: named("WALDEN_IDENTITY"),
            configuration: None,
        }
    }

    /// Creates the place that a configuration file names, or the default one.
    pub fn from_configuration(config: Option<PathBuf>) -> Place {
        Place { repo: None, config, identity: None, configuration: None }
    }

    /// Returns the place of the archive `repo` with the same configuration; if `repo` is `None`, the place of
    /// the archive that the configuration names.
    pub fn with_repo(&self, repo: Option<String>) -> Place {
        Place { repo, ..self.clone() }
    }

    /// Opens the archives from which `target` can be completed: those that URLs name, or the other configured
    /// repositories that can be opened.
    ///
    /// # Errors
    /// No archive is named, or none can be opened.
    pub fn open_sources(&self, from: &[String], target: &Archive) -> Result<Vec<Archive>> {
        let places: Vec<Place> = match from {
            [] => self.with_repo(None).repositories()?,
            from => from.iter().map(|url| self.with_repo(Some(url.clone()))).collect(),
        };
        let own = self.with_repo(Some(target.store().location().to_owned())).spelling()?;
        let mut sources = Vec::new();
        for place in places {
            if place.spelling()? != own
                && let Ok((archive, _)) = place.open()
            {
                sources.push(archive);
            }
        }
        match sources.is_empty() {
            true => Err(PlaceError::NoSource),
            false => Ok(sources),
        }
    }

    /// Returns the same place with the configuration as it is now, which is not read again.
    pub fn with_configuration_read(&self) -> Result<Place> {
        Ok(Place { configuration: Some(Arc::new(self.read()?)), ..self.clone() })
    }

    /// Returns the same archive for a command that names a server's data directory. The directory's
    /// `walden.toml` is used, as for commands that the server runs with that directory as their working
    /// directory.
    pub fn for_server(&self, data: Option<&Path>) -> Place {
        let beside = data.map(|data| data.join(FILE)).filter(|path| path.exists());
        let config = match &self.config {
            None if !Path::new(FILE).exists() => beside,
            config => config.clone(),
        };
        Place { config, configuration: None, ..self.clone() }
    }

    /// Returns options that name the same archive from any working directory.
    pub fn absolute_arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = Vec::new();
        let (section, config) = self.configuration()?;
        if let Some(config) = config {
            arguments.extend(["--config".into(), absolute(&config)?.into_os_string()]);
        }
        if let Some(identity) = &self.identity {
            let identity = if is_key_service(identity) { identity.clone() } else { absolute(identity)? };
            arguments.extend(["--identity".into(), identity.into_os_string()]);
        }
        if let Some(repo) = self.repo.as_deref().or(section.first_repo()) {
            let repo = match repo.contains("://") {
                true => repo.into(),
                false => absolute(Path::new(repo))?.into_os_string(),
            };
            arguments.extend(["--repo".into(), repo]);
        }
        Ok(arguments)
    }

    /// Returns a place for each configured repository, or only this place if an option or the environment
    /// names the repository.
    pub fn repositories(&self) -> Result<Vec<Place>> {
        let (section, _) = self.configuration()?;
        if self.repo.is_some() || section.repo.0.is_empty() {
            return Ok(vec![self.clone()]);
        }
        Ok(section.repo.0.into_iter().map(|repository| self.with_repo(Some(repository.url))).collect())
    }

    /// Returns a text that is equal for all spellings of the archive's location.
    pub fn spelling(&self) -> Result<String> {
        let (section, _) = self.configuration()?;
        let repo = self.repo.as_deref().or(section.first_repo()).unwrap_or_default();
        let options: Vec<(String, String)> = section.store.clone().into_iter().collect();
        Ok(url::spelling(repo, &options))
    }

    /// Opens all repositories for a command that PostgreSQL waits for. If an object store does not respond
    /// within `time`, that is an error. `level` is the compression level for all repositories, if an option
    /// sets it.
    pub fn open_copies(&self, time: Duration, level: Option<u8>) -> Result<(Copies, ArchiveSection)> {
        let (section, _) = self.configuration()?;
        let mut copies = Vec::new();
        let places = self.repositories()?;
        expect_different(&places)?;
        for place in places {
            let (archive, own) = place.open_to_answer_within(time)?;
            copies.push(Copy::new(archive).level(level.or(own.level)));
        }
        let count = copies.len();
        let copies = Copies::new(copies, section.acknowledge.unwrap_or(count));
        // `repositories` returns at least one place.
        Ok((copies.ok_or(PlaceError::NoArchive)?, section))
    }

    /// Returns the configuration of the archive, and the path from which it was read.
    pub fn configuration(&self) -> Result<(ArchiveSection, Option<PathBuf>)> {
        let Some((path, configuration)) = self.read()? else { return Ok((ArchiveSection::default(), None)) };
        let mut section = configuration.archive;
        if let Some(url) = self.repo.clone().or_else(|| section.first_repo().map(str::to_owned)) {
            section = match section.configured_url(&url) {
                Some(configured) => section.for_repository(&configured),
                None => section.for_other_archive(),
            };
        }
        if let (Some(identity), Some(folder)) = (&mut section.identity, path.parent())
            && !is_key_service(identity)
        {
            *identity = folder.join(&*identity);
        }
        Ok((section, Some(path)))
    }

    /// Returns a key of the configuration that is a secret, and the file's mode, if other users may read the
    /// file.
    pub fn readable_secret(&self) -> Option<(String, u32)> {
        let (path, configuration) = self.read().ok()??;
        let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
        configuration.secret().filter(|_| mode & 0o044 != 0).map(|name| (name, mode))
    }

    /// Returns the servers whose WAL is received.
    pub fn receive_sections(&self) -> Result<Vec<ReceiveSection>> {
        Ok(self.read()?.map(|(_, configuration)| configuration.receive).unwrap_or_default())
    }

    fn read(&self) -> Result<Option<(PathBuf, Configuration)>> {
        if let Some(known) = &self.configuration {
            return Ok((**known).clone());
        }
        let path = match &self.config {
            Some(path) => Some(path.clone()),
            None => [PathBuf::from(FILE), Path::new(SYSTEM_FOLDER).join(FILE)]
                .into_iter()
                .find(|path| path.exists()),
        };
        let Some(path) = path else { return Ok(None) };
        if !path.exists() {
            return Err(PlaceError::NoConfiguration { path });
        }
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(PlaceError::Read { path, source }),
        };
        let configuration: Configuration = match toml::from_str(&text) {
            Ok(configuration) => configuration,
            Err(error) => return Err(PlaceError::Parse { path, source: Box::new(error) }),
        };
        if let Err(problem) = configuration.archive.check() {
            return Err(PlaceError::Value { path, problem });
        }
        Ok(Some((path, configuration)))
    }

    /// Opens the archive, and returns it with its configuration.
    pub fn open(&self) -> Result<(Archive, ArchiveSection)> {
        self.open_with(None)
    }

    /// Opens the archive for an interactive command, which reports within half a minute if an object store
    /// does not respond.
    pub fn open_for_user(&self) -> Result<(Archive, ArchiveSection)> {
        self.open_with(Some(Duration::from_secs(20)))
    }

    /// Opens the archive for a command that PostgreSQL waits for. If an object store does not respond within
    /// `time`, that is an error.
    pub fn open_to_answer_within(&self, time: Duration) -> Result<(Archive, ArchiveSection)> {
        self.open_with(Some(time))
    }

    fn open_with(&self, answer_within: Option<Duration>) -> Result<(Archive, ArchiveSection)> {
        let (section, _) = self.configuration()?;
        let Some(repo) = self.repo.as_deref().or(section.first_repo()) else {
            return Err(PlaceError::NoArchive);
        };
        let options = PlaceOptions::default()
            .store(section.store.clone().into_iter().collect())
            .without_conditional_requests(section.without_conditional_requests)
            .answer_within(answer_within)
            .lock(section.lock())
            .storage_class(section.storage_class.clone())
            .tags(section.tags.clone())
            .bandwidth(section.bandwidth.map(|bandwidth| bandwidth.0))
            .keys(
                KeyOptions::default()
                    .recipient(section.recipient.clone())
                    .identity(self.identity.clone().or_else(|| section.identity.clone())),
            );
        Ok((url::open(repo, &options)?, section))
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(PlaceError::WorkingDirectory)
}

/// Checks that each repository is named once: the same one under two spellings would count as two copies.
///
/// # Errors
/// Names both spellings.
pub fn expect_different(places: &[Place]) -> Result<()> {
    let mut known: Vec<(String, &str)> = Vec::new();
    for place in places {
        let (spelling, own) = (place.spelling()?, place.repo.as_deref().unwrap_or_default());
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == spelling) {
            return Err(PlaceError::SamePlace { one: (*other).to_owned(), other: own.to_owned() });
        }
        known.push((spelling, own));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_not_there_was_not_removed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::from_configuration(Some(folder.path().join("mistyped.toml")));
        let error = place.configuration().err().unwrap();
        assert!(error.to_string().contains("expected a configuration file, found none"), "{error}");
        assert_eq!(error.hint(), None);
    }

    #[test]
    fn a_value_that_its_key_cannot_have_is_refused_with_both() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join(FILE);
        let place = Place::from_configuration(Some(config.clone()));
        for (line, expected) in [
            ("level = 10", "level in [archive]: expected 0 to 9, found 10"),
            ("threads = 0", "threads in [archive]: expected at least 1, found 0"),
            (
                "recipient = \"\"",
                "recipient in [archive]: expected a public key of age (age1...), found \"\"",
            ),
        ] {
            std::fs::write(&config, format!("[archive]\n{line}\n")).unwrap();
            let error = place.configuration().err().unwrap().to_string();
            assert!(error.contains(expected) && error.contains(FILE), "{line}: {error}");
        }
        std::fs::write(&config, "[archive]\nlevel = 9\nthreads = 1\n").unwrap();
        assert_eq!(place.configuration().unwrap().0.level, Some(9));
        // One call of get reads it once.
        let once = place.with_configuration_read().unwrap();
        std::fs::remove_file(&config).unwrap();
        assert_eq!(once.clone().configuration().unwrap().0.level, Some(9));
        assert!(place.configuration().is_err());
    }

    #[test]
    fn the_keys_of_configured_archives_are_not_expected_of_others() {
        const ALL: &str = "age10ull0uhx9wum6yqzyl4gskjw4spzxhfwpk7slq92vzm5etwewaqscx8rkk";
        const OWN: &str = "age16gtes24u0km8cch7xx7tjkuv9llecf5ddlwqurcjsnv3dtcv65tszmtwrw";
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join(FILE);
        let recipient = |repos: &str, given: &str| {
            std::fs::write(&config, format!("[archive]\n{repos}\nrecipient = \"{ALL}\"\n")).unwrap();
            let place = Place::new(Some(given.to_owned()), Some(config.clone()), None);
            place.configuration().unwrap().0.recipient
        };
        let one = "repo = \"/backup/main\"";
        assert_eq!(recipient(one, "/backup/main").as_deref(), Some(ALL));
        assert_eq!(recipient(one, "file:///backup//main/").as_deref(), Some(ALL));
        assert_eq!(recipient(one, "/backup/other"), None);
        assert_eq!(recipient("", "/backup/other").as_deref(), Some(ALL));
        let two = format!("repo = [\"/backup/main\", {{ url = \"s3://a/b\", recipient = \"{OWN}\" }}]");
        assert_eq!(recipient(&two, "s3://a/b/").as_deref(), Some(OWN));
        assert_eq!(recipient(&two, "s3://a/c"), None);
    }

    #[test]
    fn the_configuration_in_a_named_data_directory_is_used_unless_another_is_named() {
        let data = tempfile::tempdir().unwrap();
        let place = Place::from_configuration(None);
        assert_eq!(place.for_server(Some(data.path())).config, None);
        let (own, other) = (data.path().join(FILE), data.path().join("other.toml"));
        std::fs::write(&own, "[archive]\nrepo = \"/own\"\n").unwrap();
        std::fs::write(&other, "[archive]\nrepo = \"/other\"\n").unwrap();
        let repo = |place: &Place| {
            let (section, _) = place.for_server(Some(data.path())).configuration().unwrap();
            section.first_repo().map(str::to_owned)
        };
        assert_eq!(repo(&place).as_deref(), Some("/own"));
        let named = Place { config: Some(other), ..place.clone() };
        assert_eq!(repo(&named).as_deref(), Some("/other"));
        assert_eq!(place.for_server(None).config, None);
    }
}
