//! Whether a page's content is known, and the encoding of this state in one byte of an entry.

use super::PageStore;
use crate::page::Misfit;

/// Whether a page's content is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The page equals the server's page after the last replayed record, except for hint bits, which are not
    /// logged.
    Exact,
    /// The page's content is unknown, for this reason.
    Unknown(Unknown),
    /// A record of a resource manager that is not replayed changed the page; the next image makes it exact
    /// again.
    Untracked,
}

/// The reason why a page's content is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The WAL has had neither an image of the page nor a record that initializes it.
    NotSeen,
    /// A record did not fit the page.
    Misfit(Misfit),
    /// The page's database was copied file by file.
    DatabaseCopied,
    /// The page could not be written or read back: see [`PageStore::failure`].
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

/// A [`State`] in a byte: codes from `FIRST_MISFIT` on are indexes of [`Misfit`] texts.
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
                State::Unknown(Unknown::Misfit(Misfit(
                    what.copied().unwrap_or("for a reason that was not kept"),
                )))
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
