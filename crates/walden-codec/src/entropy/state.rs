//! What encoder and decoder remember from part to part since the keyframe.

use super::mixing::ContextMixer;
use crate::cases::{Case, Cases};
use crate::{Corrupt, corrupt};

/// Bytes of earlier contents of a class that are a prefix.
const MAX_PREFIX: usize = 4 << 20;

/// Statistics and prefixes.
pub struct State {
    /// Whether another part may follow in a class.
    goes_on: bool,
    /// Whether parts may be coded by context mixing, which takes more memory.
    may_mix: bool,
    cases: Cases,
    mixer: Option<ContextMixer>,
    /// Earlier contents, by class.
    before: Vec<Vec<u8>>,
}

impl State {
    /// The state of a keyframe.
    pub fn new(goes_on: bool) -> State {
        State { goes_on, may_mix: true, cases: Cases::ALL, mixer: None, before: Vec::new() }
    }

    /// Leaves out the cases that are not in the set.
    pub fn set_cases(&mut self, cases: Cases) {
        self.cases = cases;
        self.goes_on &= cases.has(Case::Prefixes);
    }

    /// Refuses context mixing, unless it is allowed.
    pub fn allow_mixing(&mut self, is_allowed: bool) {
        self.may_mix = is_allowed;
    }

    /// The context mixing of an effort, which is the same for all parts since the keyframe.
    pub fn mixer(&mut self, effort: u8) -> Result<&mut ContextMixer, Corrupt> {
        if !self.may_mix {
            return Err(corrupt("cannot decompress a part: expected no context mixing below level 7"));
        }
        let mixer = match &mut self.mixer {
            Some(mixer) => mixer,
            none => none.insert(
                ContextMixer::new(effort, self.cases)
                    .ok_or_else(|| corrupt("cannot decompress a part: expected a known coder"))?,
            ),
        };
        if mixer.effort() == effort {
            Ok(mixer)
        } else {
            Err(corrupt("cannot decompress a part: expected the effort of the parts before"))
        }
    }

    /// The earlier contents of a class.
    pub fn before(&mut self, class: usize) -> &mut Vec<u8> {
        if self.before.len() <= class {
            self.before.resize(class + 1, Vec::new());
        }
        &mut self.before[class]
    }

    /// Appends a content to those of its class.
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
