//! Whether changes of hint bits alone are logged (`XLogHintBitIsNeeded`), as far as it is known.

/// The settings of a server that decide it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HintSettings {
    /// Whether pages are written with checksums.
    pub data_checksums: bool,
    /// `wal_log_hints`.
    pub wal_log_hints: bool,
}

/// What is known of it at a position of the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct HintLogging {
    checksums: Option<bool>,
    setting: Option<bool>,
    /// A record shows that hints are logged, for whichever of both reasons.
    is_shown: bool,
}

impl HintLogging {
    /// Whether hints are logged.
    pub fn is_on(self) -> bool {
        self.checksums == Some(true) || self.setting == Some(true) || self.is_shown
    }

    /// Notes what a server's control file says.
    pub fn note_settings(&mut self, settings: HintSettings) {
        self.checksums = Some(settings.data_checksums);
        self.setting = Some(settings.wal_log_hints);
    }

    /// Notes that a record shows it.
    pub fn note_shown(&mut self) {
        match self.checksums {
            _ if self.is_on() => {}
            Some(false) => self.setting = Some(true),
            _ => self.is_shown = true,
        }
    }

    /// Notes `wal_log_hints` as the log says it.
    pub fn note_setting(&mut self, on: bool) {
        // Checksums log hints as well, and the log does not record them.
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
        // The log does not record checksums, so images of hints may come from them.
        let mut hints = HintLogging::default();
        hints.note_shown();
        hints.note_setting(false);
        assert!(hints.is_on());
        hints.note_setting(true);
        hints.note_setting(false);
        assert!(hints.is_on());

        // The control file records that checksums are off, so the images come from the setting.
        let mut hints = HintLogging::default();
        hints.note_settings(HintSettings::default());
        hints.note_shown();
        assert!(hints.is_on());
        hints.note_setting(false);
        assert!(!hints.is_on());
    }
}
