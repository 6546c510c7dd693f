//! The servers from which WAL is received, and their settings: from options, or from sections of
//! `walden.toml`.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use walden_archive::copies::Copies;
use walden_archive::pending;
use walden_archiving::configuration::{FILE, ReceiveSection};
use walden_archiving::log::Log;
use walden_postgres::connection::Parameters;
use walden_receive::Options;
use walden_receive::disk::Folder;
use walden_receive::status::{self, Status};

use super::ReceiveArgs;
use crate::archive::ANSWER_WITHIN;

/// A server from which WAL is received.
pub struct Server {
    /// The server's name in messages, if there are several servers.
    name: Option<String>,
    pub copies: Copies,
    pub disk: Folder,
    spool: PathBuf,
    pub parameters: Parameters,
    pub options: Options,
    pub log: Log,
}

/// Returns the server that the options name, or all servers of the configuration.
pub fn servers(args: &ReceiveArgs) -> Result<Vec<Server>> {
    let sections = match &args.dsn {
        Some(dsn) => vec![ReceiveSection {
            name: None,
            dsn: dsn.clone(),
            repo: None,
            spool: args.spool.clone(),
            slot: args.slot.clone(),
            create_slot: args.create_slot,
            synchronous: args.synchronous,
            ack_after: args.ack_after.into(),
        }],
        None => args.place.receive_sections()?,
    };
    if sections.is_empty() {
        bail!("cannot choose a server: expected --dsn, WALDEN_DSN, or [[receive]] sections in {FILE}");
    }
    // Checked here: the server's error for an invalid name depends on the request, and the receiver would
    // retry forever.
    let mut slots = sections.iter().filter_map(|section| section.slot.as_deref());
    if let Some(slot) = slots.find(|slot| !is_slot_name(slot)) {
        let text = format!(
            "a slot cannot be named \"{slot}\": expected 1 to 63 lower-case letters, digits and underscores"
        );
        if args.slot.is_some() {
            crate::wrong_usage(&text);
        }
        bail!("{text}");
    }
    let is_one = sections.len() == 1;
    sections.into_iter().map(|section| Server::open(args, section, is_one)).collect()
}

impl Server {
    fn open(args: &ReceiveArgs, section: ReceiveSection, is_alone: bool) -> Result<Server> {
        let place = match &section.repo {
            Some(repo) => args.place.with_repo(Some(repo.clone())),
            None => args.place.0.clone(),
        };
        let (copies, archive_section) = place.open_copies(ANSWER_WITHIN, args.effort.level())?;
        let spool = match &section.spool {
            Some(spool) => spool.clone(),
            None => default_spool(section.slot.as_deref())?,
        };
        let disk = Folder::open(&spool).map_err(|error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => anyhow::anyhow!(
                "cannot use the spool {}: another process receives into it (--spool chooses another folder)",
                spool.display()
            ),
            _ => anyhow::Error::new(error).context(format!("cannot use the spool {}", spool.display())),
        })?;
        let options = Options::default()
            .slot(section.slot)
            .create_slot(section.create_slot)
            .synchronous(section.synchronous)
            .ack_after(section.ack_after)
            .status_interval(Duration::from_secs(args.status_interval))
            .server_timeout(Duration::from_secs(args.timeout))
            .accept_gap(args.accept_gap)
            .ignore_unreachable(args.ignore_unreachable)
            .push(args.effort.options(&archive_section));
        let parameters = Parameters::parse(&section.dsn)?;
        let log = args.log.open(&archive_section);
        let name = section.name.or_else(|| (!is_alone).then(|| spool.display().to_string()));
        Ok(Server { name, copies, disk, spool, parameters, options, log })
    }

    /// Returns the prefix of messages.
    pub fn prefix(&self) -> String {
        self.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default()
    }

    /// Writes the status to the spool.
    pub fn write_status(&self, status: &Status) {
        let json = serde_json::to_vec_pretty(status).unwrap_or_default();
        let path = self.spool.join(status::FILE);
        // If both fail, only a status update is lost: the next one replaces it.
        let _ = pending::replace_state(&path, 0o644, &json).or_else(|_| overwrite(&path, json));
    }
}

/// Overwrites a status in place, which works on a full disk, as the blocks are already allocated. Pads with
/// spaces up to the length of the old status, so that concurrent readers always find JSON.
fn overwrite(path: &Path, mut json: Vec<u8>) -> std::io::Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = File::options().write(true).custom_flags(flags).open(path)?;
    let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    json.resize(json.len().max(bytes), b' ');
    file.write_all_at(&json, 0)
}

/// Returns whether a server accepts this name for a slot (`ReplicationSlotValidateName`).
fn is_slot_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    (1..64).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Returns the default spool: in the service's state folder, otherwise in the user's.
fn default_spool(slot: Option<&str>) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || variable("XDG_STATE_HOME").map(|state| state.join("walden"));
    let home = || variable("HOME").map(|home| home.join(".local/state/walden"));
    // systemd may set several folders; the first one is used.
    let service = variable("STATE_DIRECTORY")
        .and_then(|folders| folders.to_str().and_then(|all| all.split(':').next()).map(PathBuf::from));
    let folder = service.or_else(state).or_else(home);
    let folder = folder.context("cannot choose a folder for the spool: expected --spool DIR, or HOME")?;
    let name = slot.unwrap_or("default");
    let is_name = !name.is_empty() && Path::new(name).components().count() == 1 && !name.starts_with('.');
    if !is_name {
        bail!("cannot name a folder after the slot \"{name}\": expected --spool DIR");
    }
    Ok(folder.join("receive").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_names_that_servers_take() {
        assert!(is_slot_name("walden_1") && is_slot_name(&"a".repeat(63)));
        for name in ["", "Bad", "bad-name", "b d", "\u{e4}", &"a".repeat(64)] {
            assert!(!is_slot_name(name), "{name}");
        }
    }

    #[test]
    fn a_status_written_over_another_one_is_read_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(status::FILE);
        assert!(overwrite(&path, Vec::new()).is_err());
        std::fs::write(&path, b"").unwrap();
        for problem in ["no space left", "a longer text than the one before", "short"] {
            let status = Status { problem: Some(problem.to_owned()), ..Status::default() };
            overwrite(&path, serde_json::to_vec_pretty(&status).unwrap()).unwrap();
            let read: Status = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(read, status);
        }
    }
}
