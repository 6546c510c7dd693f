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
        // Where nothing is known of checksums, as in any log until 18, hints may be logged for these.
        if on || self.checksums.is_some() {
            self.setting = Some(on);
            self.is_shown &= on;
        }
    }

    /// Notes whether pages are written with checksums, as the log says it at a redo pointer; since 19.
    pub fn note_checksums(&mut self, are_written: bool) {
        if !are_written && std::mem::take(&mut self.is_shown) && self.checksums.is_none() {
            self.setting = Some(true);
        }
        self.checksums = Some(are_written);
    }

    /// The same from the record of a checkpoint, which has the state as of its redo pointer: it may have been switched since.
    pub fn note_checksums_before(&mut self, are_written: bool) {
        if self.checksums.is_none() {
            self.note_checksums(are_written);
        }
    }

    /// Notes that checksums were switched; since 19.
    pub fn switch_checksums(&mut self, are_written: bool) {
        // They were written up to here, which explains what was shown.
        self.is_shown &= are_written;
        self.checksums = Some(are_written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_is_explained_by_checksums_or_by_the_setting() {
        let mut hints = HintLogging::default();
        hints.note_shown();
        hints.switch_checksums(false);
        assert!(!hints.is_on());
        // There are no checksums, so that it is the setting.
        hints.note_shown();
        hints.switch_checksums(true);
        hints.switch_checksums(false);
        assert!(hints.is_on());
        hints.note_setting(false);
        assert!(!hints.is_on());

        let mut hints = HintLogging::default();
        hints.note_shown();
        hints.note_checksums(false);
        assert!(hints.is_on(), "shown before anything was known of checksums, which are off");
        // Until 18, the log says nothing of checksums.
        let mut hints = HintLogging::default();
        hints.note_shown();
        hints.note_setting(false);
        assert!(hints.is_on());
        hints.note_setting(true);
        hints.note_setting(false);
        assert!(hints.is_on());
    }

    #[test]
    fn a_checkpoint_does_not_undo_a_switch_behind_its_redo_pointer() {
        let mut hints = HintLogging::default();
        hints.note_settings(HintSettings { data_checksums: true, wal_log_hints: false });
        hints.switch_checksums(false);
        hints.note_checksums_before(true);
        assert!(!hints.is_on());
        let mut hints = HintLogging::default();
        hints.note_checksums_before(true);
        assert!(hints.is_on());
    }
}
