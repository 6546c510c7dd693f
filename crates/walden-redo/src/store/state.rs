//! What is known of a page, and how an entry keeps that in a byte.

use super::PageStore;
use crate::page::Misfit;

/// What is known of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The page is what PostgreSQL had after the last record, but for what is never logged.
    Exact,
    /// It is not known.
    Unknown(Unknown),
    /// A record that nobody here can replay changed it; the next image makes it exact again.
    Untracked,
}

/// Why a page's state is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// Neither an image nor a record that makes the page anew since the log's start.
    NotSeen,
    /// A record did not fit the page.
    Misfit(Misfit),
    /// Its database was copied file by file.
    DatabaseCopied,
    /// It was known and could not be kept: see [`PageStore::failure`].
    Lost,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unknown::NotSeen => f.write_str("no image of it since the log's start"),
            Unknown::Misfit(misfit) => write!(f, "a record did not fit it: {misfit}"),
            Unknown::DatabaseCopied => f.write_str("its database was copied file by file"),
            Unknown::Lost => f.write_str("it could not be kept or read back"),
        }
    }
}

/// A [`State`] in a byte: what a misfit was is a number from `FIRST_MISFIT` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StateCode(u8);

impl StateCode {
    pub(super) const EXACT: StateCode = StateCode(0);
    pub(super) const UNTRACKED: StateCode = StateCode(1);
    pub(super) const NOT_SEEN: StateCode = StateCode(2);
    pub(super) const COPIED: StateCode = StateCode(3);
    pub(super) const LOST: StateCode = StateCode(4);
    pub(super) const FIRST_MISFIT: u8 = 5;
    pub(super) const MAX_MISFITS: usize = (u8::MAX - StateCode::FIRST_MISFIT) as usize;
}

impl PageStore {
    pub(super) fn state_of(&self, code: StateCode) -> State {
        match code {
            StateCode::EXACT => State::Exact,
            StateCode::UNTRACKED => State::Untracked,
            StateCode::NOT_SEEN => State::Unknown(Unknown::NotSeen),
            StateCode::COPIED => State::Unknown(Unknown::DatabaseCopied),
            StateCode::LOST => State::Unknown(Unknown::Lost),
            StateCode(code) => {
                let what = self.misfits.get(usize::from(code - StateCode::FIRST_MISFIT));
                State::Unknown(Unknown::Misfit(Misfit(what.copied().unwrap_or("of a kind not noted"))))
            }
        }
    }

    pub(super) fn code_of(&mut self, state: State) -> StateCode {
        match state {
            State::Exact => StateCode::EXACT,
            State::Untracked => StateCode::UNTRACKED,
            State::Unknown(Unknown::NotSeen) => StateCode::NOT_SEEN,
            State::Unknown(Unknown::DatabaseCopied) => StateCode::COPIED,
            State::Unknown(Unknown::Lost) => StateCode::LOST,
            State::Unknown(Unknown::Misfit(misfit)) => {
                let known = self.misfits.iter().position(|&known| known == misfit.0);
                let number = known.unwrap_or_else(|| {
                    if self.misfits.len() < StateCode::MAX_MISFITS {
                        self.misfits.push(misfit.0);
                        self.misfits.len() - 1
                    } else {
                        StateCode::MAX_MISFITS
                    }
                });
                StateCode(StateCode::FIRST_MISFIT + number as u8)
            }
        }
    }
}
