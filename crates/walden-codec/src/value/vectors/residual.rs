//! Predicts texts from the words of a vector.

use super::MAX_BYTES;
use super::vector::{ALSO, SPACE};

/// Code in a residual: the next word, unchanged.
const WORD: u8 = 1;
/// Code: the next word and a space.
const WORD_SPACE: u8 = 2;
/// Code: the next word with an upper-case first letter.
const CAPITALIZED: u8 = 3;
/// Code: the next word with an upper-case first letter, and a space.
const CAPITALIZED_SPACE: u8 = 4;
/// Code: the next word is missing from the text here.
const SKIP: u8 = 5;
/// Code: the next byte is a literal that equals one of the codes.
const ESCAPE: u8 = 6;

/// Returns the residual of a text that is predicted from words; `None` if it is not much shorter than the
/// text.
pub fn residual_of(words: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    /// Number of words compared with each position of the text.
    const LOOK_AHEAD: usize = 3;
    // Most texts match no vector: their first word differs.
    let first = text.iter().position(|byte| byte.is_ascii_alphanumeric()).unwrap_or(text.len());
    if text.len() > MAX_BYTES {
        return None;
    }
    if !sequence(words).take(LOOK_AHEAD).any(|word| match_word(&text[first..], word).is_some()) {
        return None;
    }
    let mut words = sequence(words);
    let mut ahead: [&[u8]; LOOK_AHEAD] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let mut out = Vec::with_capacity(text.len() / 4);
    let (mut at, mut predicted) = (0, 0);
    let mut is_in_word = false;
    while at < text.len() {
        if !is_in_word {
            let found = (ahead.iter().enumerate())
                .find_map(|(skip, word)| Some((skip, word.len(), match_word(&text[at..], word)?)));
            if let Some((skip, len, is_capitalized)) = found {
                out.extend(std::iter::repeat_n(SKIP, skip));
                let space = text.get(at + len) == Some(&SPACE);
                out.push(match (is_capitalized, space) {
                    (false, false) => WORD,
                    (false, true) => WORD_SPACE,
                    (true, false) => CAPITALIZED,
                    (true, true) => CAPITALIZED_SPACE,
                });
                at += len + usize::from(space);
                ahead.rotate_left(skip + 1);
                ahead[LOOK_AHEAD - skip - 1..].fill_with(|| words.next().unwrap_or_default());
                predicted += len;
                is_in_word = !space;
                continue;
            }
        }
        let byte = text[at];
        is_in_word = byte.is_ascii_alphanumeric() || byte >= 0x80;
        if (WORD..=ESCAPE).contains(&byte) {
            out.push(ESCAPE);
        }
        out.push(byte);
        at += 1;
        // Most texts that do not match the words can be recognized early.
        if at >= 96 && predicted * 8 < at || at >= 256 && predicted * 4 < at {
            return None;
        }
    }
    (predicted * 2 > text.len()).then_some(out)
}

/// Returns whether a text starts with a word, and whether with an upper-case letter for the word's
/// lower-case one.
fn match_word(text: &[u8], word: &[u8]) -> Option<bool> {
    if !text.first()?.eq_ignore_ascii_case(word.first()?) {
        return None;
    }
    let start = text.get(..word.len())?;
    let after = text.get(word.len()).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte >= 0x80);
    if after || start.get(1..) != word.get(1..) {
        return None;
    }
    match (start[0], word[0]) {
        (a, b) if a == b => Some(false),
        (a, b) if a == b.to_ascii_uppercase() => Some(true),
        _ => None,
    }
}

/// Reconstructs a text from words and its residual.
pub fn text_from_residual(words: &[u8], residual: &[u8]) -> Option<Vec<u8>> {
    let mut words = sequence(words);
    let mut out = Vec::with_capacity((residual.len() * 4).min(MAX_BYTES));
    let mut residual = residual.iter();
    while let Some(&byte) = residual.next() {
        match byte {
            WORD..=CAPITALIZED_SPACE => {
                let start = out.len();
                out.extend_from_slice(words.next()?);
                if byte >= CAPITALIZED {
                    out[start].make_ascii_uppercase();
                }
                if byte == WORD_SPACE || byte == CAPITALIZED_SPACE {
                    out.push(SPACE);
                }
            }
            SKIP => {
                words.next()?;
            }
            ESCAPE => out.push(*residual.next()?),
            _ => out.push(byte),
        }
        if out.len() > MAX_BYTES {
            return None;
        }
    }
    Some(out)
}

/// Returns the words in the order of positions. Words at one position follow each other.
fn sequence(words: &[u8]) -> impl Iterator<Item = &[u8]> {
    words.split(|&byte| byte == SPACE || byte == ALSO).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"Sand behind a strong portion; ear, ear 1753. Behind strong (sand) \x01 http://x.example/y sand.";
    const WORDS: &[u8] =
        b"sand behind  strong portion ear ear 1753 behind strong sand url\tx.example/y x.example sand";

    #[test]
    fn a_text_is_restored_from_its_residual() {
        let residual = residual_of(WORDS, TEXT).expect("most of it is predicted");
        assert!(residual.len() < TEXT.len() * 2 / 3);
        assert_eq!(text_from_residual(WORDS, &residual).as_deref(), Some(TEXT));
        assert_eq!(
            residual_of(WORDS, b"Quite another text that has none of these words in it, but for one, sand."),
            None
        );
        assert_eq!(text_from_residual(b"", &[WORD]), None);
        assert_eq!(text_from_residual(b"", &[ESCAPE]), None);
        // A text that exceeds the maximum of the encoder is not produced either.
        let words = [vec![b'w'; 2047], vec![SPACE]].concat().repeat(9000);
        assert_eq!(text_from_residual(&words, &[WORD; 8000]).map(|text| text.len()), Some(8000 * 2047));
        assert_eq!(text_from_residual(&words, &[WORD; 9000]), None);
    }
}
