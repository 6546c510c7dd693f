//! State that encoder and decoder keep between parts since the keyframe.

use super::mixing::ContextMixer;
use crate::{Corrupt, corrupt};

/// Maximum number of bytes of earlier contents of a class to keep as a prefix.
const MAX_PREFIX: usize = 4 << 20;

/// Statistics and prefixes.
pub struct State {
    /// Whether another part of a class may follow.
    goes_on: bool,
    /// Whether parts may use context mixing, which takes more memory.
    may_mix: bool,
    mixer: Option<ContextMixer>,
    /// Earlier contents by class.
    before: Vec<Vec<u8>>,
}

impl State {
    /// Creates the state of a keyframe.
    pub fn new(goes_on: bool) -> State {
        State { goes_on, may_mix: true, mixer: None, before: Vec::new() }
    }

    /// Sets whether context mixing is accepted.
    pub fn allow_mixing(&mut self, is_allowed: bool) {
        self.may_mix = is_allowed;
    }

    /// Returns the context mixer of an effort. All parts since the keyframe must have the same effort.
    pub fn mixer(&mut self, effort: u8) -> Result<&mut ContextMixer, Corrupt> {
        if !self.may_mix {
            return Err(corrupt("cannot decompress a part: expected no context mixing below level 7"));
        }
        let mixer = match &mut self.mixer {
            Some(mixer) => mixer,
            none => none.insert(
                ContextMixer::new(effort)
                    .ok_or_else(|| corrupt("cannot decompress a part: expected a known coder"))?,
            ),
        };
        if mixer.effort() == effort {
            Ok(mixer)
        } else {
            Err(corrupt("cannot decompress a part: expected the effort of the parts before"))
        }
    }

    /// Returns the earlier contents of a class.
    pub fn before(&mut self, class: usize) -> &mut Vec<u8> {
        if self.before.len() <= class {
            self.before.resize(class + 1, Vec::new());
        }
        &mut self.before[class]
    }

    /// Appends a content to the earlier contents of its class.
    pub fn remember(&mut self, class: usize, content: &[u8]) {
        if !self.goes_on {
            return;
        }
        let before = self.before(class);
        let content = &content[content.len().saturating_sub(MAX_PREFIX)..];
        let surplus = (before.len() + content.len()).saturating_sub(MAX_PREFIX);
        before.drain(..surplus);
        before.extend_from_slice(content);
    }
}
