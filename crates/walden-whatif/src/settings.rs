//! The settings that determine how much WAL a workload writes, by the names and units of `postgresql.conf`.

use std::fmt;

use rustc_hash::FxHashSet;
use thiserror::Error;
use walden_explain::checkpoints::CheckpointSettings;
use walden_format::lsn::SegmentSize;
use walden_format::payload::xlog::WalLevel;
use walden_format::record::RelFileLocator;
use walden_format::version::Major;
use walden_recompress::Method;

/// The settings of a server that determine how much WAL it writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The server's version; not a setting, but rules depend on it.
    pub version: Major,
    /// `wal_level`
    pub wal_level: WalLevel,
    /// `full_page_writes`
    pub full_page_writes: bool,
    /// `wal_compression`
    pub wal_compression: Option<Method>,
    /// `wal_log_hints`
    pub wal_log_hints: bool,
    /// Data checksums, which also cause hint bits to be logged; see [`Settings::log_hints`].
    pub data_checksums: bool,
    /// `max_wal_size`, in bytes.
    pub max_wal_size: u64,
    /// `min_wal_size`, in bytes: the number of recycled old segments; `None` for initdb's, see
    /// [`Settings::min_wal_size`].
    pub min_wal_size: Option<u64>,
    /// `checkpoint_timeout`, in seconds.
    pub checkpoint_timeout: i64,
    /// `checkpoint_completion_target`, in thousandths.
    pub completion_target_milli: u64,
    /// `wal_segment_size`
    pub segment_size: SegmentSize,
    /// `archive_timeout`, in seconds; 0 for off.
    pub archive_timeout: i64,
    /// `wal_skip_threshold`, in bytes; only matters with `wal_level=minimal`.
    pub skip_threshold: u64,
    /// Whether `archive_mode` is not `off`; `None` if unknown. The setting does not affect the WAL, but
    /// determines whether a server starts with `wal_level=minimal`.
    pub is_archiving: Option<bool>,
    /// `max_wal_senders`; `None` if unknown. The setting matters for the same reason as
    /// [`Settings::is_archiving`].
    pub max_wal_senders: Option<u32>,
    /// Indexes that are assumed not to exist.
    pub dropped: FxHashSet<RelFileLocator>,
    /// Whether checkpoints of the trace that volume or a request may have triggered count as requested.
    pub has_undecided_requests: bool,
}

impl Settings {
    /// Returns the defaults of a PostgreSQL major version.
    pub fn default_of(version: Major) -> Settings {
        let checkpoints = CheckpointSettings::default_of(version);
        Settings {
            version,
            wal_level: if version >= Major::V10 { WalLevel::Replica } else { WalLevel::Minimal },
            full_page_writes: true,
            wal_compression: None,
            wal_log_hints: false,
            // The default of initdb.
            data_checksums: version >= Major::V18,
            max_wal_size: checkpoints.max_wal_size,
            min_wal_size: None,
            checkpoint_timeout: checkpoints.timeout,
            completion_target_milli: checkpoints.completion_target_milli,
            segment_size: SegmentSize::DEFAULT,
            archive_timeout: 0,
            skip_threshold: 2 << 20,
            is_archiving: None,
            max_wal_senders: None,
            dropped: FxHashSet::default(),
            has_undecided_requests: true,
        }
    }

    /// Whether hint bits are logged (`XLogHintBitIsNeeded`).
    pub fn log_hints(&self) -> bool {
        self.wal_log_hints || self.data_checksums
    }

    /// Returns `min_wal_size` in bytes, or initdb's value: a number of segments of the chosen size
    /// (`DEFAULT_MIN_WAL_SEGS`).
    pub fn min_wal_size(&self) -> u64 {
        const DEFAULT_MIN_WAL_SEGMENTS: u64 = 5;
        self.min_wal_size.unwrap_or(DEFAULT_MIN_WAL_SEGMENTS * self.segment_size.bytes())
    }

    /// Returns the other settings that a server needs to start with `wal_level=minimal` (`PostmasterMain`),
    /// unless they are known to be set: archiving and connections of standbys are on or have a default.
    pub fn needed_for_minimal(&self) -> Vec<&'static str> {
        if self.wal_level != WalLevel::Minimal {
            return Vec::new();
        }
        let archiving = (self.is_archiving != Some(false)).then_some("archive_mode=off");
        let senders = (self.max_wal_senders != Some(0)).then_some("max_wal_senders=0");
        archiving.into_iter().chain(senders).collect()
    }

    /// Returns the settings that trigger checkpoints.
    pub fn checkpoint_settings(&self) -> CheckpointSettings {
        CheckpointSettings {
            timeout: self.checkpoint_timeout,
            max_wal_size: self.max_wal_size,
            completion_target_milli: self.completion_target_milli,
            keeps_one: self.version >= Major::V11,
        }
    }

    /// Segments from one redo pointer to the next volume-triggered checkpoint request
    /// (`CalculateCheckpointSegments`).
    pub fn checkpoint_segments(&self) -> u64 {
        self.checkpoint_settings().segments(self.segment_size)
    }

    /// Sets one setting from the text that `postgresql.conf` or `ALTER SYSTEM` would contain. Names and
    /// values are not case sensitive.
    ///
    /// # Errors
    /// An unknown setting, or a value that the setting does not accept.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Effect, SettingError> {
        let wanted = name.trim().to_ascii_lowercase();
        let value = value.trim().trim_matches('\'').trim();
        let row = ROWS.iter().find(|row| row.name == wanted);
        let row = row.ok_or_else(|| SettingError::Name { name: name.into() })?;
        match &row.set {
            Set::Volume(set) => set(self, value).map(|()| Effect::Changed),
            Set::Start(set, why) => set(self, value).map(|()| Effect::Nothing(why)),
            Set::Nothing(why) => Some(Effect::Nothing(why)),
        }
        .ok_or_else(|| SettingError::Value {
            name: row.name,
            value: value.into(),
            expected: row.expected,
        })
    }

    /// Checks combinations of settings that affect the WAL and with which no server of this version would
    /// start.
    ///
    /// # Errors
    /// The first setting that a server with these settings rejects.
    pub fn validate(&self) -> Result<(), SettingError> {
        let refuse = |name, value: String, expected| Err(SettingError::Value { name, value, expected });
        if self.version < Major::V15 && matches!(self.wal_compression, Some(Method::Lz4 | Method::Zstd)) {
            let value = compression_name(self.wal_compression).into();
            return refuse(
                "wal_compression",
                value,
                "off or pglz before PostgreSQL 15, which added lz4 and zstd",
            );
        }
        if self.max_wal_size < 2 * self.segment_size.bytes() {
            return refuse("max_wal_size", show_size(self.max_wal_size), "at least twice wal_segment_size");
        }
        if self.min_wal_size() < 2 * self.segment_size.bytes() {
            return refuse("min_wal_size", show_size(self.min_wal_size()), "at least twice wal_segment_size");
        }
        // Settings that are unknown do not change the prediction: a note lists their required values.
        if self.wal_level == WalLevel::Minimal {
            let value = || self.wal_level.to_string();
            if self.is_archiving == Some(true) {
                let expected = "replica or logical with archive_mode=on (to predict minimal, set archive_mode=off as well)";
                return refuse("wal_level", value(), expected);
            }
            if self.max_wal_senders.is_some_and(|senders| senders > 0) {
                let expected = "replica or logical with max_wal_senders above 0 (to predict minimal, set max_wal_senders=0 as well)";
                return refuse("wal_level", value(), expected);
            }
        }
        Ok(())
    }

    /// The value of a setting as `SHOW` prints it; `None` for one that is unknown or does not affect the WAL.
    pub fn show(&self, name: &str) -> Option<String> {
        ROWS.iter().find(|row| row.name == name).and_then(|row| row.show).map(|show| show(self))
    }
}

/// Whether a setting affects the amount of WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The setting may affect the WAL.
    Changed,
    /// The setting never affects the WAL; the reason.
    Nothing(&'static str),
}

/// A setting or value that a prediction cannot use.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The setting does not exist, or predictions do not support it.
    #[error("cannot predict the effect of {name}: expected one of {}", names())]
    Name {
        /// As given.
        name: String,
    },
    /// The setting does not accept this value.
    #[error("cannot set {name}: expected {expected}, found {value:?}")]
    Value {
        /// The setting.
        name: &'static str,
        /// As given.
        value: String,
        /// The values that the setting accepts, as text.
        expected: &'static str,
    },
}

fn names() -> String {
    ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}

/// A setting that predictions support.
pub struct Row {
    /// Name of the setting in `postgresql.conf`.
    pub name: &'static str,
    /// The values that the setting accepts, as text.
    pub expected: &'static str,
    set: Set,
    /// Formats its value; `None` for settings that do not affect the WAL.
    pub show: Option<fn(&Settings) -> String>,
}

enum Set {
    /// The setting affects the WAL.
    Volume(fn(&mut Settings, &str) -> Option<()>),
    /// The setting does not affect the WAL, but determines which other settings a server starts with; the
    /// reason why it has no effect.
    Start(fn(&mut Settings, &str) -> Option<()>, &'static str),
    /// The setting does not affect the WAL; the reason.
    Nothing(&'static str),
}

const ON_OFF: &str = "on or off";
const SIZE: &str = "a size with its unit, such as 64MB or 4GB";
const TIME: &str = "a time with its unit, such as 30s, 5min or 1h";

macro_rules! changes {
    ($name:literal, $expected:expr, |$s:ident, $v:ident| $set:expr, $show:expr) => {
        Row { name: $name, expected: $expected, set: Set::Volume(|$s, $v| $set), show: Some($show) }
    };
}

const fn nothing(name: &'static str, why: &'static str) -> Row {
    Row { name, expected: "any value", set: Set::Nothing(why), show: None }
}

const PREALLOCATION: &str = "it decides how segment files are created and kept, not their content";
const FLUSHING: &str = "it decides when WAL is flushed, not its content";

/// All settings that predictions support.
pub static ROWS: &[Row] = &[
    changes!("max_wal_size", SIZE, |s, v| size(v).map(|n| s.max_wal_size = n), |s| show_size(s.max_wal_size)),
    changes!("min_wal_size", SIZE, |s, v| size(v).map(|n| s.min_wal_size = Some(n)), |s| show_size(
        s.min_wal_size()
    )),
    changes!(
        "checkpoint_timeout",
        "a time from 30s to 1d",
        |s, v| seconds(v).filter(|n| (30..=86_400).contains(n)).map(|n| s.checkpoint_timeout = n),
        |s| show_seconds(s.checkpoint_timeout)
    ),
    changes!(
        "checkpoint_completion_target",
        "a number from 0 to 1",
        |s, v| {
            let target: f64 = v.parse().ok().filter(|target| (0.0..=1.0).contains(target))?;
            s.completion_target_milli = (target * 1000.0).round() as u64;
            Some(())
        },
        |s| format!("{}", s.completion_target_milli as f64 / 1000.0)
    ),
    changes!("full_page_writes", ON_OFF, |s, v| on_off(v).map(|on| s.full_page_writes = on), |s| show_bool(
        s.full_page_writes
    )),
    changes!(
        "wal_compression",
        "off, pglz, lz4, zstd or on",
        |s, v| {
            s.wal_compression = match v.to_ascii_lowercase().as_str() {
                "pglz" => Some(Method::Pglz),
                "lz4" => Some(Method::Lz4),
                "zstd" => Some(Method::Zstd),
                // 19 uses the best method that it was built with (`WAL_COMPRESSION_ON` in `access/xlog.h`):
                // zstd in most packages.
                other if on_off(other)? && s.version >= Major::V19 => Some(Method::Zstd),
                other => on_off(other)?.then_some(Method::Pglz),
            };
            Some(())
        },
        |s| compression_name(s.wal_compression).into()
    ),
    changes!(
        "wal_level",
        "minimal, replica or logical",
        |s, v| {
            s.wal_level = match v.to_ascii_lowercase().as_str() {
                "minimal" => WalLevel::Minimal,
                "replica" | "archive" | "hot_standby" => WalLevel::Replica,
                "logical" => WalLevel::Logical,
                _ => return None,
            };
            Some(())
        },
        |s| s.wal_level.to_string()
    ),
    changes!("wal_log_hints", ON_OFF, |s, v| on_off(v).map(|on| s.wal_log_hints = on), |s| show_bool(
        s.wal_log_hints
    )),
    changes!("data_checksums", ON_OFF, |s, v| on_off(v).map(|on| s.data_checksums = on), |s| show_bool(
        s.data_checksums
    )),
    changes!(
        "wal_segment_size",
        "a power of two from 1MB to 1GB",
        |s, v| SegmentSize::new(size(v)?).map(|n| s.segment_size = n),
        |s| show_size(s.segment_size.bytes())
    ),
    changes!(
        "archive_timeout",
        TIME,
        |s, v| seconds(v).filter(|n| *n >= 0).map(|n| s.archive_timeout = n),
        |s| show_seconds(s.archive_timeout)
    ),
    changes!("wal_skip_threshold", SIZE, |s, v| size_in("kB", v).map(|n| s.skip_threshold = n), |s| {
        show_size(s.skip_threshold)
    }),
    nothing("wal_init_zero", PREALLOCATION),
    nothing("wal_recycle", PREALLOCATION),
    nothing("wal_keep_size", PREALLOCATION),
    nothing("wal_buffers", FLUSHING),
    nothing("wal_writer_delay", FLUSHING),
    nothing("wal_writer_flush_after", FLUSHING),
    nothing("commit_delay", FLUSHING),
    nothing("commit_siblings", FLUSHING),
    nothing("synchronous_commit", FLUSHING),
    nothing("fsync", FLUSHING),
    nothing("wal_sync_method", FLUSHING),
    nothing("checkpoint_flush_after", "it decides when the operating system writes pages out, not the WAL"),
    nothing(
        "shared_buffers",
        "a full-page image is written at a page's first change after a checkpoint, whether or not it is cached",
    ),
    Row {
        name: "max_wal_senders",
        expected: "a number from 0 to 262143",
        set: Set::Start(
            |s, v| {
                let senders = v.parse::<u32>().ok().filter(|senders| *senders <= MAX_BACKENDS)?;
                s.max_wal_senders = Some(senders);
                Some(())
            },
            "it limits connections that read WAL, not the WAL",
        ),
        show: None,
    },
    Row {
        name: "archive_mode",
        expected: "on, off or always",
        set: Set::Start(
            |s, v| {
                s.is_archiving = Some(v.eq_ignore_ascii_case("always") || on_off(v)?);
                Some(())
            },
            "it decides whether segments are archived, not their content",
        ),
        show: None,
    },
];

/// The maximum of `max_wal_senders` (`MAX_BACKENDS`).
const MAX_BACKENDS: u32 = 0x3FFFF;

/// Returns the value of `wal_compression`.
pub fn compression_name(method: Option<Method>) -> &'static str {
    match method {
        None => "off",
        Some(Method::Pglz) => "pglz",
        Some(Method::Lz4) => "lz4",
        Some(Method::Zstd) => "zstd",
    }
}

fn on_off(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Parses a size with PostgreSQL's units into bytes. A number without a unit is in megabytes, the base unit
/// of most settings (and of initdb's `--wal-segsize`).
pub fn size(text: &str) -> Option<u64> {
    size_in("MB", text)
}

/// Parses a size; `base_unit` is the unit of a number without one.
fn size_in(base_unit: &str, text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 5] = [("TB", 40), ("GB", 30), ("MB", 20), ("kB", 10), ("B", 0)];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = if unit.trim().is_empty() { base_unit } else { unit.trim() };
    let shift = UNITS.iter().find(|row| row.0.eq_ignore_ascii_case(unit))?.1;
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (bytes.is_finite() && (0.0..=(1_u64 << 53) as f64).contains(&bytes)).then_some(bytes as u64)
}

/// Parses a time with PostgreSQL's units into seconds; a number without a unit is in seconds.
pub fn seconds(text: &str) -> Option<i64> {
    const UNITS: [(&str, f64); 6] =
        [("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("ms", 0.001), ("s", 1.0), ("", 1.0)];
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|row| row.0.eq_ignore_ascii_case(unit.trim()))?.1;
    let seconds = number.parse::<f64>().ok()? * factor;
    (seconds.is_finite() && (0.0..=1e9).contains(&seconds)).then_some(seconds.round() as i64)
}

fn show_bool(on: bool) -> String {
    if on { "on" } else { "off" }.into()
}

/// Formats a size in the largest unit that divides it.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TB"), (30, "GB"), (20, "MB"), (10, "kB")];
    let whole = UNITS.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| format!("{bytes}B"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Formats a time in the largest unit that divides it.
pub fn show_seconds(seconds: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(86_400, "d"), (3600, "h"), (60, "min")];
    let whole = UNITS.iter().find(|(unit, _)| seconds > 0 && seconds % unit == 0);
    whole.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Changed => f.write_str("may change the amount of WAL"),
            Effect::Nothing(why) => write!(f, "does not change the amount of WAL: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_the_server_reads_them() {
        let mut settings = Settings::default_of(Major::V15);
        for (name, value, shown) in [
            ("max_wal_size", "4GB", "4GB"),
            ("MAX_WAL_SIZE", "48", "48MB"),
            ("checkpoint_timeout", "'15min'", "15min"),
            ("checkpoint_timeout", "90", "90s"),
            ("checkpoint_completion_target", "0.5", "0.5"),
            ("full_page_writes", "off", "off"),
            ("wal_compression", "on", "pglz"),
            ("wal_compression", "zstd", "zstd"),
            ("wal_level", "logical", "logical"),
            ("wal_segment_size", "64MB", "64MB"),
            ("archive_timeout", "1min", "1min"),
            ("wal_skip_threshold", "2048", "2MB"),
            ("wal_skip_threshold", "1GB", "1GB"),
        ] {
            assert_eq!(settings.set(name, value), Ok(Effect::Changed), "{name}={value}");
            assert_eq!(settings.show(&name.to_lowercase()).as_deref(), Some(shown));
        }
        assert!(matches!(settings.set("wal_init_zero", "off"), Ok(Effect::Nothing(_))));
        let mut newest = Settings::default_of(Major::V19);
        assert_eq!(newest.set("wal_compression", "on"), Ok(Effect::Changed));
        assert_eq!(newest.show("wal_compression").as_deref(), Some("zstd"));
        assert!(matches!(settings.set("work_mem", "1GB"), Err(SettingError::Name { .. })));
        for (name, wrong) in [
            ("max_wal_size", "much"),
            ("checkpoint_timeout", "5"),
            ("wal_segment_size", "3MB"),
            ("wal_compression", "gzip"),
            ("checkpoint_completion_target", "2"),
        ] {
            assert!(matches!(settings.set(name, wrong), Err(SettingError::Value { .. })), "{name}={wrong}");
        }
        for (name, refused) in
            [("wal_compression", "lz4"), ("max_wal_size", "16MB"), ("min_wal_size", "31MB")]
        {
            let mut old = Settings::default_of(Major::V14);
            assert_eq!(old.set(name, refused), Ok(Effect::Changed));
            assert!(old.validate().is_err(), "{name}={refused}");
        }
        for wrong in [("archive_mode", "maybe"), ("max_wal_senders", "-1"), ("max_wal_senders", "262144")] {
            assert!(matches!(settings.set(wrong.0, wrong.1), Err(SettingError::Value { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn initdb_chooses_min_wal_size_by_the_segments() {
        let mut settings = Settings::default_of(Major::V15);
        assert_eq!(settings.show("min_wal_size").as_deref(), Some("80MB"));
        settings.set("wal_segment_size", "64MB").unwrap();
        assert_eq!(settings.show("min_wal_size").as_deref(), Some("320MB"));
        assert_eq!(settings.validate(), Ok(()));
        settings.set("min_wal_size", "80MB").unwrap();
        assert!(settings.validate().is_err());
    }

    /// A server reports "WAL archival cannot be enabled when wal_level is minimal", and a similar error for
    /// streaming.
    #[test]
    fn minimal_is_without_archiving_and_standbys() {
        let with = |all: &[(&str, &str)]| {
            let mut settings = Settings::default_of(Major::V15);
            for (name, value) in all {
                settings.set(name, value).unwrap();
            }
            (settings.validate().is_ok(), settings.needed_for_minimal())
        };
        let minimal = ("wal_level", "minimal");
        let (archiving, senders) = ("archive_mode=off", "max_wal_senders=0");
        assert_eq!(with(&[("archive_mode", "on"), ("max_wal_senders", "10")]), (true, vec![]));
        assert_eq!(with(&[minimal]), (true, vec![archiving, senders]));
        assert_eq!(with(&[minimal, ("archive_mode", "off")]), (true, vec![senders]));
        assert_eq!(with(&[("archive_mode", "off"), ("max_wal_senders", "0"), minimal]), (true, vec![]));
        assert!(!with(&[minimal, ("archive_mode", "on")]).0);
        assert!(!with(&[minimal, ("archive_mode", "always")]).0);
        assert!(!with(&[minimal, ("archive_mode", "off"), ("max_wal_senders", "3")]).0);
        // The trace has the first value, the prediction the second.
        assert!(with(&[("archive_mode", "on"), minimal, ("archive_mode", "off")]).0);
    }

    #[test]
    fn checksums_log_hints_without_wal_log_hints() {
        let mut settings = Settings::default_of(Major::V15);
        assert!(!settings.log_hints());
        for (name, value, logs) in [
            ("data_checksums", "on", true),
            ("wal_log_hints", "off", true),
            ("wal_log_hints", "on", true),
            ("data_checksums", "off", true),
            ("wal_log_hints", "off", false),
        ] {
            assert_eq!(settings.set(name, value), Ok(Effect::Changed));
            assert_eq!((settings.show(name).as_deref(), settings.log_hints()), (Some(value), logs), "{name}");
        }
    }

    #[test]
    fn checkpoint_distance_equals_the_servers() {
        let mut settings = Settings::default_of(Major::V15);
        assert_eq!(settings.checkpoint_segments(), 33);
        settings.max_wal_size = 48 << 20;
        assert_eq!(settings.checkpoint_segments(), 1);
    }
}
