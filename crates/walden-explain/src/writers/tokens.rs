//! Splits SQL statements into tokens, by the rules of PostgreSQL's scanner (`src/backend/parser/scan.l`).
//!
//! Normalization replaces constants and keeps all other tokens, so numbers, strings and bit strings are one
//! kind.

/// A token, with its text as in the statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    /// White space or a comment.
    Space,
    /// A number, a string or a bit string.
    Constant,
    /// `$1`.
    Parameter,
    /// A keyword or an identifier without quotes.
    Word,
    /// An identifier in double quotes.
    QuotedWord,
    /// An operator of one or more characters.
    Operator,
    /// A bracket, a comma or another character.
    Other,
}

/// Characters of operators.
const OPERATOR: &[u8] = b"~!@#^&|`?+-*/%<>=";
/// An operator that ends in `+` or `-` contains one of these; otherwise the sign belongs to the following
/// token.
const BEFORE_SIGN: &[u8] = b"~!@#^&|`?%";

/// Returns the tokens of a statement. The tokens end before an unterminated string or comment.
pub(super) fn tokens(text: &str) -> Tokens<'_> {
    Tokens { rest: text }
}

/// An iterator over tokens.
pub(super) struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let (kind, bytes) = first_token(self.rest)?;
        let (text, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(Token { kind, text })
    }
}

impl Tokens<'_> {
    /// Whether all of the statement was read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The first token's kind and length in bytes; `None` at the end, and for an unterminated token.
fn first_token(text: &str) -> Option<(TokenKind, usize)> {
    let bytes = text.as_bytes();
    let (first, second) = (*bytes.first()?, bytes.get(1).copied().unwrap_or(0));
    Some(match first {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
            (TokenKind::Space, count(bytes, |byte| byte.is_ascii_whitespace() || byte == 0x0b))
        }
        b'-' if second == b'-' => (TokenKind::Space, count(bytes, |byte| byte != b'\n')),
        b'/' if second == b'*' => (TokenKind::Space, comment(bytes)?),
        b'\'' => (TokenKind::Constant, quoted(bytes, 0, false)?),
        b'"' => (TokenKind::QuotedWord, quoted(bytes, 0, false)?),
        b'e' | b'E' if second == b'\'' => (TokenKind::Constant, quoted(bytes, 1, true)?),
        b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if second == b'\'' => {
            (TokenKind::Constant, quoted(bytes, 1, false)?)
        }
        b'u' | b'U' if bytes.get(1..3) == Some(b"&'") => (TokenKind::Constant, quoted(bytes, 2, false)?),
        b'u' | b'U' if bytes.get(1..3) == Some(b"&\"") => (TokenKind::QuotedWord, quoted(bytes, 2, false)?),
        b'$' if second.is_ascii_digit() => {
            (TokenKind::Parameter, 1 + count(&bytes[1..], |byte| byte.is_ascii_digit()))
        }
        b'$' => match dollar_quoted(text) {
            Some(end) => (TokenKind::Constant, end?),
            None => (TokenKind::Other, 1),
        },
        b'0'..=b'9' => (TokenKind::Constant, number(bytes)),
        b'.' if second.is_ascii_digit() => (TokenKind::Constant, number(bytes)),
        _ if is_word_start(first) => (
            TokenKind::Word,
            count(bytes, |byte| is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'),
        ),
        _ if OPERATOR.contains(&first) => (TokenKind::Operator, operator(bytes)),
        _ => (TokenKind::Other, 1),
    })
}

/// Letters, and all bytes of characters beyond ASCII.
fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn count(bytes: &[u8], is_part: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !is_part(*byte)).unwrap_or(bytes.len())
}

/// The length of a comment; comments may contain comments.
fn comment(bytes: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        match bytes.get(at..at + 2)? {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The length of a string whose opening quote is at `start`; a doubled quote is part of the string.
fn quoted(bytes: &[u8], start: usize, has_escapes: bool) -> Option<usize> {
    let quote = *bytes.get(start)?;
    let mut at = start + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' if has_escapes => at += 2,
            byte if byte == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The length of a dollar-quoted string, `Some(None)` if it is unterminated; `None` if the text does not
/// start with one.
fn dollar_quoted(text: &str) -> Option<Option<usize>> {
    let tag = 1 + count(&text.as_bytes()[1..], |byte| is_word_start(byte) || byte.is_ascii_digit());
    let delimiter = text.get(..=tag).filter(|delimiter| delimiter.ends_with('$'))?;
    let content = &text[delimiter.len()..];
    Some(content.find(delimiter).map(|end| end + 2 * delimiter.len()))
}

/// The length of a number: digits with underscores, a base (`0x`), a fraction, an exponent.
fn number(bytes: &[u8]) -> usize {
    let is_based = bytes[0] == b'0' && matches!(bytes.get(1), Some(b'x' | b'X' | b'o' | b'O' | b'b' | b'B'));
    if is_based && bytes.get(2).is_some_and(|byte| byte.is_ascii_hexdigit() || *byte == b'_') {
        return 2 + count(&bytes[2..], |byte| byte.is_ascii_hexdigit() || byte == b'_');
    }
    let digits = |at: usize| count(&bytes[at..], |byte| byte.is_ascii_digit() || byte == b'_');
    let mut end = digits(0);
    // `1..10` are two numbers.
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1) != Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end += 1 + sign + digits(end + 1 + sign);
        }
    }
    end
}

/// The length of an operator, which ends before a comment.
fn operator(bytes: &[u8]) -> usize {
    let mut end = count(bytes, |byte| OPERATOR.contains(&byte));
    let starts_comment = |pair: &[u8]| pair == b"--" || pair == b"/*";
    if let Some(comment) = bytes[..end].windows(2).position(starts_comment) {
        end = comment;
    }
    while end > 1
        && matches!(bytes[end - 1], b'+' | b'-')
        && !bytes[..end - 1].iter().any(|byte| BEFORE_SIGN.contains(byte))
    {
        end -= 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(TokenKind, &str)> {
        tokens(text).filter(|token| token.kind != TokenKind::Space).map(|one| (one.kind, one.text)).collect()
    }

    #[test]
    fn tokens_are_those_of_postgresql() {
        use TokenKind::{Constant, Operator, Other, Parameter, QuotedWord, Word};
        for (text, expected) in [
            (r"E'a\'b''c' x", vec![(Constant, r"E'a\'b''c'"), (Word, "x")]),
            ("U&'d\\0061' u&\"x\"", vec![(Constant, "U&'d\\0061'"), (QuotedWord, "u&\"x\"")]),
            ("$a$ $b$ '$a$ $1", vec![(Constant, "$a$ $b$ '$a$"), (Parameter, "$1")]),
            ("$$x$$y", vec![(Constant, "$$x$$"), (Word, "y")]),
            ("a$b /* x /* y */ */ -- z\n1e5", vec![(Word, "a$b"), (Constant, "1e5")]),
            (
                "0x1F_00 1.5e-3 .5 1e",
                vec![
                    (Constant, "0x1F_00"),
                    (Constant, "1.5e-3"),
                    (Constant, ".5"),
                    (Constant, "1"),
                    (Word, "e"),
                ],
            ),
            ("1..10", vec![(Constant, "1"), (Other, "."), (Constant, ".10")]),
            ("a<-1", vec![(Word, "a"), (Operator, "<"), (Operator, "-"), (Constant, "1")]),
            (
                "a@-1 b->>'x'",
                vec![
                    (Word, "a"),
                    (Operator, "@-"),
                    (Constant, "1"),
                    (Word, "b"),
                    (Operator, "->>"),
                    (Constant, "'x'"),
                ],
            ),
            ("*/* c */ --", vec![(Operator, "*")]),
            ("größe=b'01'", vec![(Word, "größe"), (Operator, "="), (Constant, "b'01'")]),
        ] {
            assert_eq!(kinds(text), expected, "{text}");
        }
    }

    #[test]
    fn tokens_end_before_one_without_end() {
        for (text, read) in
            [("a 'b", "a "), ("a /* b", "a "), ("a $x$ b", "a "), ("E'\\", ""), ("\"a\"\"", "")]
        {
            let mut all = tokens(text);
            let joined: String = all.by_ref().map(|token| token.text).collect();
            assert_eq!((joined.as_str(), all.is_at_end()), (read, false), "{text}");
        }
        // Every prefix of a statement is read without a panic, and its tokens add up to it.
        let statement = "SELECT 'é' || E'\\n' || $q$é$q$, 0x, 1.e, $, \"ü\" /* ß */ <- -1";
        for end in (0..statement.len()).filter(|end| statement.is_char_boundary(*end)) {
            let prefix = &statement[..end];
            let joined: String = tokens(prefix).map(|token| token.text).collect();
            assert!(prefix.starts_with(&joined));
        }
    }
}
