//! Profiles in the files of the AWS tools: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use configparser::ini::{Ini, IniDefault};
use futures::channel::oneshot;
use jiff::{SignedDuration, Timestamp};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, Error as ClientError, StaticCredentialProvider};
use serde::Deserialize;

use super::sso::Sso;
use crate::program;

/// Maximum size of a file.
const MAX_BYTES: u64 = 1 << 20;
/// Time limit for `credential_process`.
const PROCESS_LIMIT: Duration = Duration::from_secs(60);
/// Credentials that expire within this time are replaced.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_mins(5);
/// Keys of profiles whose credentials come from services that Walden does not ask.
const UNSUPPORTED: [&str; 5] =
    ["role_arn", "source_profile", "credential_source", "sso_session", "sso_start_url"];

/// Start of the error of a program that prints no credentials.
pub(super) const FAILED_PROCESS: &str = "cannot use credential_process ";
/// Start of the error of a login by SSO.
pub(super) const FAILED_LOGIN: &str = "cannot use the login by SSO";

/// A profile.
#[derive(Debug)]
pub(super) struct Profile {
    /// Its region.
    pub region: Option<String>,
    /// The URL of the store.
    pub endpoint: Option<String>,
    /// Its credentials.
    pub credentials: Option<Source>,
}

/// Where a profile's credentials come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Keys in the files, the output of a program, or a role after a login by SSO.
    Provider(AwsCredentialProvider),
    /// A token in a file, with which a role is assumed.
    WebIdentity {
        /// Path of the token.
        token_file: String,
        /// The role.
        role: String,
    },
}

/// The two files, as named by the environment or in the home folder.
fn files() -> [Option<PathBuf>; 2] {
    let named = |variable: &str| env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = |name: &str| env::home_dir().map(|home| home.join(".aws").join(name));
    [
        named("AWS_SHARED_CREDENTIALS_FILE").or_else(|| home("credentials")),
        named("AWS_CONFIG_FILE").or_else(|| home("config")),
    ]
}

/// Reads a profile. Without a name, it is the profile `default`, of which only supported credentials count.
///
/// # Errors
/// Describes a file that cannot be read, a named profile that does not exist, or one whose credentials come
/// from a service that Walden does not ask.
pub(super) fn read(name: Option<&str>) -> Result<Option<Profile>, String> {
    read_from(&files(), name)
}

fn read_from(files: &[Option<PathBuf>; 2], name: Option<&str>) -> Result<Option<Profile>, String> {
    let profile = name.unwrap_or("default");
    let in_config = match profile {
        "default" => profile.to_owned(),
        _ => format!("profile {profile}"),
    };
    let [mut own, config] = [(&files[0], profile), (&files[1], &in_config)]
        .map(|(file, section)| file.as_deref().map_or(Ok(None), |file| section_of(file, section)));
    // Without a name, files that this user cannot read do not matter.
    if name.is_none() && own.is_err() {
        own = Ok(None);
    }
    let config = if name.is_none() && config.is_err() { Ok(None) } else { config };
    let (own, config) = (own?, config?);
    if own.is_none() && config.is_none() {
        let Some(name) = name else { return Ok(None) };
        let file = |file: &Option<PathBuf>| {
            file.as_ref().map_or_else(|| "no file".to_owned(), |path| path.display().to_string())
        };
        return Err(format!(
            "cannot use profile = \"{name}\": expected a section [{profile}] in {} or [{in_config}] in {}, found none; AWS_SHARED_CREDENTIALS_FILE \
             and AWS_CONFIG_FILE name other files",
            file(&files[0]),
            file(&files[1])
        ));
    }
    let (own, config) = (own.unwrap_or_default(), config.unwrap_or_default());
    let value = |key: &str| own.get(key).or_else(|| config.get(key)).cloned();
    let keys = |section: &Section| -> Option<AwsCredentialProvider> {
        let [key_id, secret_key] =
            ["aws_access_key_id", "aws_secret_access_key"].map(|key| section.get(key).cloned());
        let token = section.get("aws_session_token").cloned();
        let credential = AwsCredential { key_id: key_id?, secret_key: secret_key?, token };
        Some(Arc::new(StaticCredentialProvider::new(credential)))
    };
    let process = || -> Result<Option<AwsCredentialProvider>, String> {
        let Some(line) = value("credential_process") else { return Ok(None) };
        let words = shlex::split(&line).filter(|words| !words.is_empty()).ok_or_else(|| {
            format!(
                "cannot use credential_process of profile {profile}: expected a command, found \"{line}\""
            )
        })?;
        Ok(Some(Arc::new(Renewed::new(Origin::Process(words)))))
    };
    let web_identity = || {
        let (token_file, role) = (value("web_identity_token_file")?, value("role_arn")?);
        Some(Source::WebIdentity { token_file, role })
    };
    let provider = match keys(&own) {
        Some(keys) => Some(keys),
        None => process()?.or_else(|| keys(&config)),
    };
    let provider = provider.or_else(|| {
        let session = value("sso_session").map(|name| {
            let section = format!("sso-session {name}");
            let found = files[1].as_deref().and_then(|file| section_of(file, &section).ok().flatten());
            (name, found.unwrap_or_default())
        });
        Some(Arc::new(Renewed::new(Origin::Sso(Sso::new(value, session)?))) as AwsCredentialProvider)
    });
    let credentials = provider.map(Source::Provider).or_else(web_identity);
    if let (None, Some(name), Some(key)) =
        (&credentials, name, UNSUPPORTED.into_iter().find(|key| value(key).is_some()))
    {
        return Err(format!(
            "cannot use profile = \"{name}\": expected keys, credential_process or web_identity_token_file, found {key}; for this, set in another \
             profile credential_process = aws configure export-credentials --profile {name} --format process"
        ));
    }
    Ok(Some(Profile { region: value("region"), endpoint: value("endpoint_url"), credentials }))
}

/// The settings of a profile in one file.
type Section = BTreeMap<String, String>;

/// Returns a section of a file; `None` if either does not exist.
fn section_of(path: &Path, section: &str) -> Result<Option<Section>, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut text = String::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => {
            let file = file.map_err(cannot)?;
            file.take(MAX_BYTES).read_to_string(&mut text).map_err(cannot)?;
        }
    }
    let mut form = IniDefault::default();
    form.delimiters = vec!['='];
    form.case_sensitive = true;
    // A key may contain the symbols of comments. Indented lines belong to the setting before them.
    form.enable_inline_comments = false;
    form.multiline = true;
    let mut sections =
        Ini::new_from_defaults(form).read(text).map_err(|error| cannot(io::Error::other(error)))?;
    let settings = sections.remove(section);
    let present =
        |(key, value): (String, Option<String>)| Some((key, value.filter(|value| !value.is_empty())?));
    Ok(settings.map(|settings| settings.into_iter().filter_map(present).collect()))
}

/// Credentials that are requested again before they expire.
struct Renewed {
    origin: Origin,
    last: Mutex<Option<Printed>>,
}

/// Where these credentials come from.
#[derive(Debug)]
enum Origin {
    /// A program that prints them (`credential_process`).
    Process(Vec<String>),
    /// A role, after a login by `aws sso login`.
    Sso(Sso),
}

impl Renewed {
    fn new(origin: Origin) -> Renewed {
        Renewed { origin, last: Mutex::default() }
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewed").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Origin {
    async fn request(&self) -> Result<Printed, String> {
        match self {
            Origin::Process(words) => {
                let (sender, receiver) = oneshot::channel();
                let own = words.clone();
                // The thread ends within the time limit of the program. Its result is dropped if the request
                // is over.
                thread::spawn(move || sender.send(run(&own)));
                let result = receiver.await.unwrap_or_else(|_| Err("no result".to_owned()));
                result.map_err(|problem| format!("{FAILED_PROCESS}{}: {problem}", words[0]))
            }
            Origin::Sso(sso) => {
                let (credential, expires) =
                    sso.request().await.map_err(|problem| format!("{FAILED_LOGIN}: {problem}"))?;
                Ok(Printed { credential: Arc::new(credential), expires: Some(expires) })
            }
        }
    }
}

#[derive(Clone)]
struct Printed {
    credential: Arc<AwsCredential>,
    expires: Option<Timestamp>,
}

impl Printed {
    fn is_valid_for(&self, time: SignedDuration) -> bool {
        self.expires.is_none_or(|expires| expires.duration_since(Timestamp::now()) > time)
    }
}

/// The output of the program.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Output {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

#[async_trait]
impl CredentialProvider for Renewed {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(last) = last.as_ref().filter(|last| last.is_valid_for(RENEW_BEFORE)) {
            return Ok(Arc::clone(&last.credential));
        }
        let result = self.origin.request().await;
        match (result, last) {
            (Ok(printed), _) => {
                let credential = Arc::clone(&printed.credential);
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(printed);
                Ok(credential)
            }
            (Err(_), Some(last)) if last.is_valid_for(SignedDuration::ZERO) => Ok(last.credential),
            (Err(problem), _) => {
                Err(ClientError::Unauthenticated { path: "credentials".to_owned(), source: problem.into() })
            }
        }
    }
}

fn run(words: &[String]) -> Result<Printed, String> {
    let text = program::run(words, b"", PROCESS_LIMIT)?;
    // The text may contain a secret.
    let output: Output = serde_json::from_slice(&text).map_err(|error| {
        format!(
            "expected JSON with Version, AccessKeyId and SecretAccessKey, found an error at column {}",
            error.column()
        )
    })?;
    if output.version != 1 {
        return Err(format!("expected Version 1, found {}", output.version));
    }
    let Output { access_key_id, secret_access_key, session_token, expiration, .. } = output;
    let expires = expiration.map(|time| time.parse::<Timestamp>()).transpose();
    let expires = expires.map_err(|error| format!("expected a time in Expiration: {error}"))?;
    let credential =
        AwsCredential { key_id: access_key_id, secret_key: secret_access_key, token: session_token };
    Ok(Printed { credential: Arc::new(credential), expires })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn files_with(folder: &Path, credentials: &str, config: &str) -> [Option<PathBuf>; 2] {
        [("credentials", credentials), ("config", config)].map(|(name, text)| {
            fs::write(folder.join(name), text).unwrap();
            Some(folder.join(name))
        })
    }

    fn keys_of(profile: &Profile) -> Result<Arc<AwsCredential>, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        match profile.credentials.as_ref().unwrap() {
            Source::Provider(provider) => runtime.block_on(provider.get_credential()),
            Source::WebIdentity { .. } => panic!("{profile:?}"),
        }
    }

    #[test]
    fn credentials_and_settings_of_a_profile_come_from_both_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_with(
            folder.path(),
            "# keys\n[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = a/b+c=#;\n\n[wal]\naws_access_key_id=WAL\n\
             aws_secret_access_key = secret\naws_session_token = token\n",
            "[default]\nregion = eu-north-1\ns3 =\n  aws_access_key_id = nested\n  max_concurrent_requests = 20\n[profile wal]\n\
             region = eu-central-1 \nendpoint_url = https://s3.example.net\naws_access_key_id = OTHER\naws_secret_access_key = other\n\
             [profile config]\naws_access_key_id = CONFIG\naws_secret_access_key = config\n",
        );
        let profile = read_from(&files, None).unwrap().unwrap();
        let keys = keys_of(&profile).unwrap();
        assert_eq!((keys.key_id.as_str(), keys.secret_key.as_str()), ("DEFAULT", "a/b+c=#;"));
        assert_eq!(profile.region.as_deref(), Some("eu-north-1"));
        let profile = read_from(&files, Some("wal")).unwrap().unwrap();
        let keys = keys_of(&profile).unwrap();
        assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), ("WAL", Some("token")));
        assert_eq!(profile.region.as_deref(), Some("eu-central-1"));
        assert_eq!(profile.endpoint.as_deref(), Some("https://s3.example.net"));
        let profile = read_from(&files, Some("config")).unwrap().unwrap();
        assert_eq!(keys_of(&profile).unwrap().key_id, "CONFIG");
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_refused_only_if_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_with(folder.path(), "", "[default]\nsso_session = x\n[profile b]\nrole_arn = r\n");
        assert!(read_from(&files, None).unwrap().unwrap().credentials.is_none());
        for (name, expected) in [("default", "sso_session"), ("b", "role_arn"), ("c", "found none")] {
            let error = read_from(&files, Some(name)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let none = [None, Some(folder.path().join("no such file"))];
        assert!(read_from(&none, None).unwrap().is_none());
        assert!(read_from(&none, Some("wal")).unwrap_err().contains("[profile wal]"));
        for text in ["[", "[default", "=\n=", "\u{0}\n[default]\n \u{feff}= \n\t x", "[a]\n[a]\nk\nk=1"] {
            let files = files_with(folder.path(), text, text);
            let _ = read_from(&files, None);
            let _ = read_from(&files, Some("a"));
        }
    }

    #[test]
    fn a_program_prints_credentials_until_they_expire() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let print = |expires: &str| {
            let line = format!(
                "{{\"Version\":1,\"AccessKeyId\":\"P\",\"SecretAccessKey\":\"s\",\"SessionToken\":\"t\",\"Expiration\":\"{expires}\"}}"
            );
            let script = folder.path().join("print.sh");
            fs::write(&script, format!("echo run >> {}\necho '{line}'\n", count.display())).unwrap();
            let text = format!("[default]\ncredential_process = sh \"{}\"\n", script.display());
            read_from(&files_with(folder.path(), "", &text), None).unwrap().unwrap()
        };
        let runs = || fs::read_to_string(&count).unwrap_or_default().lines().count();
        let profile = print("2999-01-01T00:00:00+00:00");
        for _ in 0..3 {
            let keys = keys_of(&profile).unwrap();
            assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), ("P", Some("t")));
        }
        assert_eq!(runs(), 1);
        let profile = print("2020-01-01T00:00:00Z");
        for _ in 0..2 {
            keys_of(&profile).unwrap();
        }
        assert_eq!(runs(), 3);
        for (command, expected) in [
            ("false", "expected status 0"),
            ("echo secret", "expected JSON"),
            ("/no/such/program", "No such file"),
            ("echo '{\"Version\":2,\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\"}'", "expected Version 1"),
        ] {
            let text = format!("[default]\ncredential_process = {command}\n");
            let profile = read_from(&files_with(folder.path(), "", &text), None).unwrap().unwrap();
            let text = walden_source::error_text(&keys_of(&profile).unwrap_err());
            assert!(text.contains(expected) && !text.contains("secret"), "{text}");
        }
    }
}
