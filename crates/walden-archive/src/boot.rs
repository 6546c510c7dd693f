//! Identity of the system's current boot: unsynchronized data is valid only until the system restarts.

use std::fs;
use std::path::Path;

/// Linux's unique ID of each boot.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the boot ID in a file; `None` if the file does not exist.
pub(crate) fn boot_id(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// Returns an identity of this process among all processes of all machines: the boot, the PID namespace, the
/// process, and its start. `None` if the system does not show it.
pub(crate) fn process() -> Option<String> {
    process_of(std::process::id())
}

/// Returns whether the process of an identity has ended. For another machine or container, this
/// is not known.
pub(crate) fn is_gone(identity: &str) -> bool {
    let parts: Vec<&str> = identity.split('/').collect();
    let [boot, namespace, process, _] = parts[..] else { return false };
    let (Some(own), Ok(process)) = (self::process(), process.parse()) else { return false };
    let is_here = own.starts_with(&format!("{boot}/{namespace}/"));
    is_here && process_of(process).is_none_or(|found| found != identity)
}

fn process_of(process: u32) -> Option<String> {
    /// Position of `starttime` in `/proc/PID/stat` after the name, which is in parentheses.
    const START: usize = 19;
    let boot = boot_id(Path::new(BOOT_ID))?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    // A killed process that its parent has not waited for.
    if after_name.split_ascii_whitespace().next() == Some("Z") {
        return None;
    }
    let start = fields.nth(START)?;
    Some(format!("{boot}/{}/{process}/{start}", namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_gone_once_it_has_ended() {
        let own = process().unwrap();
        assert!(!is_gone(&own));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = process_of(child.id()).unwrap();
        assert!(!is_gone(&other));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&other));
        // Another process of the same number, another boot, and nonsense.
        let (start, _) = own.rsplit_once('/').unwrap();
        assert!(is_gone(&format!("{start}/1")));
        for unknown in [own.replacen(|digit: char| digit.is_ascii_hexdigit(), "x", 1).as_str(), "", "a/b/c/d"]
        {
            assert!(!is_gone(unknown), "{unknown}");
        }
    }
}
