//! Whether changes of hint bits are logged on their own (`XLogHintBitIsNeeded`), as far as known.

/// The settings of a server that determine it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HintSettings {
    /// Whether pages are written with checksums.
    pub data_checksums: bool,
    /// `wal_log_hints`.
    pub wal_log_hints: bool,
}

/// The knowledge of these settings at a position in the WAL.
#[derive(Clone, Copy, Debug, Default)]
pub struct HintLogging {
    checksums: Option<bool>,
    setting: Option<bool>,
    /// A record shows that hints are logged, for either reason.
    is_shown: bool,
}

impl HintLogging {
    /// Returns whether hints are logged.
    pub fn is_on(self) -> bool {
        self.checksums == Some(true) || self.setting == Some(true) || self.is_shown
    }

    /// Notes the settings in a server's control file.
    pub fn note_settings(&mut self, settings: HintSettings) {
        self.checksums = Some(settings.data_checksums);
        self.setting = Some(settings.wal_log_hints);
    }

    /// Notes that a record shows that hints are logged.
    pub fn note_shown(&mut self) {
        match self.checksums {
            _ if self.is_on() => {}
            Some(false) => self.setting = Some(true),
            _ => self.is_shown = true,
        }
    }

    /// Notes the value of `wal_log_hints` in the WAL.
    pub fn note_setting(&mut self, on: bool) {
        // Checksums cause hints to be logged, too, and the WAL does not contain that setting.
        if on || self.checksums.is_some() {
            self.setting = Some(on);
            self.is_shown &= on;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_hints_come_from_checksums_or_from_the_setting() {
        // The WAL does not contain the checksum setting, so images of hints may come from checksums.
        let mut hints = HintLogging::default();
        hints.note_shown();
        hints.note_setting(false);
        assert!(hints.is_on());
        hints.note_setting(true);
        hints.note_setting(false);
        assert!(hints.is_on());

        // The control file shows that checksums are off, so the images come from `wal_log_hints`.
        let mut hints = HintLogging::default();
        hints.note_settings(HintSettings::default());
        hints.note_shown();
        assert!(hints.is_on());
        hints.note_setting(false);
        assert!(!hints.is_on());
    }
}
