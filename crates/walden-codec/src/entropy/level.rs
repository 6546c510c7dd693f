//! Parameters of each compression level.

use std::ops::RangeInclusive;

use super::FORM_BYTES;
use super::zstd_coder::Effort;
use crate::column_kind::Class;

/// A method of compression.
#[derive(Clone, Copy)]
pub enum Method {
    /// zstd at a zstd level.
    Zstd(i32),
    /// Context mixing with an effort, or zstd if that is smaller.
    Mixing(u8),
}

impl Method {
    /// Returns the method of a level, 0 to 9.
    pub fn for_level(level: u8) -> Method {
        LEVELS[usize::from(level.min(9))]
    }
}

const LEVELS: [Method; 10] = [
    // For bytes only: takes four fifths of the time of zstd's level 1, for 10 to 30 % more bytes.
    Method::Zstd(-1),
    Method::Zstd(1),
    Method::Zstd(2),
    Method::Zstd(3),
    Method::Zstd(4),
    Method::Zstd(5),
    Method::Zstd(HIGHEST),
    Method::Mixing(0),
    Method::Mixing(1),
    Method::Mixing(2),
];

/// zstd's level as an alternative to context mixing, where it is used only if it is smaller; and for contents
/// so small that time does not matter.
pub const SECOND_LEVEL: i32 = 5;
pub const SMALL_LEVEL: i32 = 9;
pub const SMALL: usize = 64 << 10;

/// The highest zstd level used for text, and the highest level used for other contents, at which text would
/// take three times as long, for a gain of 2 %.
const HIGHEST: i32 = 12;
const HIGHEST_OF_NUMBERS: i32 = 16;

/// Highest zstd level at which only text is searched for words.
const FAST: i32 = 3;
/// Classes that are searched for words; the classes of text come first.
const WITH_WORDS: [Class; 4] = [Class::Text, Class::Expanded, Class::Payload, Class::ImageBytes];
const TEXT_CLASSES: usize = 2;

/// Classes whose contents have almost nothing in common with earlier contents of the class.
const WITHOUT_PREFIX: [Class; 2] = [Class::Fixed, Class::TupleHeaders];
/// Size of the prefix for zstd, which reads it again each time. Similar bytes are usually near. The prefix is
/// hardly longer than the content, otherwise reading it would take most of the time.
const PREFIX_BYTES: RangeInclusive<usize> = 64 << 10..=1 << 20;

/// Returns whether a class is searched for words.
pub fn has_words(class: usize, level: i32) -> bool {
    let classes = if level <= FAST { &WITH_WORDS[..TEXT_CLASSES] } else { &WITH_WORDS };
    is_among(class, classes)
}

/// zstd levels at which a sample of text is also compressed at a lower level.
const WITH_ALTERNATIVE: RangeInclusive<i32> = 3..=5;
const ALTERNATIVE: i32 = 2;
/// Size of the sample, and minimum number of samples in a content. Sampling smaller contents would take too
/// much time.
const SAMPLE_BYTES: usize = 128 << 10;
const MIN_SAMPLES: usize = 8;

/// Returns a sample of a content, and a lower level that may compress the content better; `None` if only
/// `level` is used.
pub fn alternative(class: usize, level: i32, content: &[u8]) -> Option<(&[u8], i32)> {
    let may_be_better = WITH_ALTERNATIVE.contains(&level)
        && is_among(class, &WITH_WORDS)
        && content.len() >= MIN_SAMPLES * SAMPLE_BYTES;
    let start = content.len() / 2;
    may_be_better.then(|| (&content[start..start + SAMPLE_BYTES], ALTERNATIVE))
}

/// Returns whether the contents of a class are compressed with earlier contents of the class as a prefix.
pub fn has_prefix(class: usize) -> bool {
    !is_among(class, &WITHOUT_PREFIX)
}

/// Returns the part of the earlier contents that serves as a prefix.
pub fn prefix_for(content: usize, before: &[u8]) -> &[u8] {
    let len = content.clamp(*PREFIX_BYTES.start(), *PREFIX_BYTES.end());
    &before[before.len().saturating_sub(len)..]
}

/// Returns zstd's parameters for a class at a level.
pub fn effort_of(class: usize, level: i32) -> Effort {
    let is_text = class == FORM_BYTES || is_among(class, &WITH_WORDS[..TEXT_CLASSES]);
    let level = if level == HIGHEST && !is_text { HIGHEST_OF_NUMBERS } else { level };
    Effort { level, is_text: class == FORM_BYTES || is_among(class, &WITH_WORDS) }
}

fn is_among(class: usize, classes: &[Class]) -> bool {
    classes.iter().any(|&other| other as usize == class)
}
