//! Statements in entries of the server's log, normalized like `pg_stat_statements`: constants become
//! parameters.

use walden_source::server_log::Entry;

use super::tokens::{Token, TokenKind, tokens};

/// Maximum length of a normalized statement, in bytes.
const MAX_TEXT: usize = 1000;
/// Maximum number of bytes read of a statement.
const MAX_READ: usize = 16 << 10;

/// Effect of a statement on transactions and data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Starts a transaction block.
    Begin,
    /// Ends a transaction block.
    End,
    /// Savepoints, settings and the like.
    Control,
    /// Reads only, unless a function writes.
    Read,
    /// May write.
    Write,
}

/// The kind of a statement, by its first words.
pub(super) fn kind(statement: &str) -> Kind {
    let mut words =
        statement.split([' ', ';', '(']).filter(|word| !word.is_empty()).map(str::to_ascii_uppercase);
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match first.as_str() {
        "BEGIN" | "START" => Kind::Begin,
        "ROLLBACK" if second == "TO" => Kind::Control,
        "COMMIT" | "END" | "ROLLBACK" | "ABORT" => Kind::End,
        "PREPARE" if second == "TRANSACTION" => Kind::End,
        "SAVEPOINT" | "RELEASE" | "SET" | "RESET" | "SHOW" | "DEALLOCATE" | "DISCARD" | "LISTEN"
        | "UNLISTEN" | "CLOSE" | "LOCK" | "PREPARE" | "" => Kind::Control,
        "SELECT" | "FETCH" | "MOVE" | "DECLARE" | "TABLE" | "VALUES" | "EXPLAIN" => Kind::Read,
        _ => Kind::Write,
    }
}

/// Extracts the statement from an entry: of `log_statement`, `log_min_duration_statement` or `auto_explain`,
/// or the statement that caused an error or another message.
pub(super) fn extract(entry: &Entry) -> Option<&str> {
    let message = entry.message.as_str();
    // "duration: 0.123 ms  statement: ...", "statement: ...", "execute NAME: ...", "duration: 0.123 ms
    // execute NAME: ..."
    let rest = match message.strip_prefix("duration: ") {
        Some(rest) => rest.split_once("  ").map_or("", |(_, rest)| rest),
        None => message,
    };
    if let Some(text) = rest.strip_prefix("statement: ") {
        return Some(text);
    }
    if let Some(named) = rest.strip_prefix("execute ") {
        return named.split_once(": ").map(|(_, text)| text);
    }
    if let Some(plan) = rest.strip_prefix("plan:") {
        // auto_explain: the text ends at the plan, whose lines start with a node's name and its cost.
        let text = plan.split_once("Query Text: ")?.1;
        return Some(text.split_once("\n").map_or(text, |_| until_plan(text)));
    }
    Some(entry.statement.as_str()).filter(|text| !text.is_empty())
}

/// Returns the query's text in an auto_explain entry: the lines before the first line with costs.
fn until_plan(text: &str) -> &str {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > 0 && (line.contains("  (cost=") || line.starts_with("Query Parameters: ")) {
            return text[..at].trim_end();
        }
        at += line.len();
    }
    text
}

/// Replaces a statement's constants with parameters, removes comments, and reduces white space to single
/// spaces.
///
/// Lists of constants in parentheses or brackets after IN or ARRAY become `$1 /*, ... */`, like
/// `pg_stat_statements` since 18. A truncated or unreadable statement is kept up to that point.
pub fn normalize(statement: &str) -> String {
    let mut end = statement.len().min(MAX_READ);
    while !statement.is_char_boundary(end) {
        end -= 1;
    }
    let text = &statement[..end];
    let mut scanner = tokens(text);
    let all: Vec<Token<'_>> = scanner.by_ref().collect();
    let is_whole = scanner.is_at_end() && end == statement.len();
    let mut writer = Writer { parameters: highest_parameter(&all), ..Writer::default() };
    for token in all {
        writer.add(token);
    }
    writer.finish(is_whole)
}

/// The highest parameter number in the statement.
fn highest_parameter(tokens: &[Token<'_>]) -> u64 {
    let number = |token: &Token<'_>| token.text.strip_prefix('$')?.parse().ok();
    let parameters = tokens.iter().filter(|token| token.kind == TokenKind::Parameter);
    parameters.filter_map(number).max().unwrap_or(0)
}

#[derive(Default)]
struct Writer {
    text: String,
    parameters: u64,
    needs_space: bool,
    /// Kind of the last token.
    last: Last,
    /// A minus sign that may belong to a constant.
    minus: bool,
    /// Only inside a list of constants: the end of the first constant in `text`, the number of constants, and
    /// the number of parameters before the list.
    list: Option<List>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A token after which a minus sign is a value's sign: the start, an operator, a comma, a keyword.
    #[default]
    Operator,
    /// A value, a name, a closing bracket.
    Value,
    /// IN or ARRAY.
    List,
}

struct List {
    start: usize,
    first_end: usize,
    constants: u64,
    parameters: u64,
    close: char,
}

impl Writer {
    fn add(&mut self, token: Token<'_>) {
        match token.kind {
            TokenKind::Space => self.needs_space = !self.text.is_empty(),
            TokenKind::Operator if token.text == "-" && self.last != Last::Value && !self.minus => {
                self.space();
                self.minus = true;
            }
            TokenKind::Constant => self.constant(),
            _ => self.other(token),
        }
    }

    fn space(&mut self) {
        if std::mem::take(&mut self.needs_space) {
            self.text.push(' ');
        }
    }

    fn constant(&mut self) {
        if std::mem::take(&mut self.minus) {
            self.needs_space = false;
        }
        self.space();
        self.parameters += 1;
        self.text.push_str(&format!("${}", self.parameters));
        self.last = Last::Value;
        let end = self.text.len();
        if let Some(list) = &mut self.list {
            list.constants += 1;
            if list.constants == 1 {
                list.first_end = end;
            }
        }
    }

    fn other(&mut self, token: Token<'_>) {
        if std::mem::take(&mut self.minus) {
            self.text.push('-');
        }
        self.space();
        let text = token.text;
        let opens = match text {
            "(" => Some(')'),
            "[" => Some(']'),
            _ => None,
        };
        match text {
            "," => {}
            _ if self.list.as_ref().is_some_and(|list| text.starts_with(list.close)) => self.close_list(),
            _ => self.list = None,
        }
        self.text.push_str(text);
        if let (Some(close), Last::List) = (opens, self.last) {
            let (start, parameters) = (self.text.len(), self.parameters);
            self.list = Some(List { start, first_end: start, constants: 0, parameters, close });
        }
        self.last = match token.kind {
            TokenKind::Word if is_list_word(text) => Last::List,
            TokenKind::Word if is_operator_word(text) => Last::Operator,
            TokenKind::Word | TokenKind::QuotedWord | TokenKind::Parameter => Last::Value,
            TokenKind::Other if matches!(text, ")" | "]") => Last::Value,
            _ => Last::Operator,
        };
    }

    /// Shortens a list of several constants to its first constant.
    fn close_list(&mut self) {
        if let Some(list) = self.list.take().filter(|list| list.constants > 1 && list.first_end > list.start)
        {
            self.text.truncate(list.first_end);
            self.text.push_str(" /*, ... */");
            self.parameters = list.parameters + 1;
            self.needs_space = false;
        }
    }

    fn finish(mut self, is_whole: bool) -> String {
        while self.text.ends_with([';', ' ']) {
            self.text.pop();
        }
        if self.text.len() > MAX_TEXT || !is_whole {
            let mut end = self.text.len().min(MAX_TEXT);
            while !self.text.is_char_boundary(end) {
                end -= 1;
            }
            self.text.truncate(end);
            self.text.push_str(" ...");
        }
        self.text
    }
}

fn is_list_word(word: &str) -> bool {
    word.eq_ignore_ascii_case("in") || word.eq_ignore_ascii_case("array")
}

/// Keywords after which a minus sign belongs to the following value.
fn is_operator_word(word: &str) -> bool {
    const WORDS: [&str; 16] = [
        "select",
        "where",
        "and",
        "or",
        "not",
        "set",
        "values",
        "between",
        "like",
        "then",
        "else",
        "when",
        "limit",
        "offset",
        "by",
        "returning",
    ];
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_become_parameters() {
        let cases = [
            (
                "INSERT INTO t VALUES (1, 'it''s', E'\\n', $$a;b$$, -5)",
                "INSERT INTO t VALUES ($1, $2, $3, $4, $5)",
            ),
            (
                "UPDATE  t\n SET a = a - 1 -- note\n WHERE b = $1 AND c > 1.5;",
                "UPDATE t SET a = a - $2 WHERE b = $1 AND c > $3",
            ),
            (
                "DELETE FROM t WHERE id IN (1, 2, 3) AND x = 4",
                "DELETE FROM t WHERE id IN ($1 /*, ... */) AND x = $2",
            ),
            ("SELECT ARRAY[1,2], f(1, 2) /* x /* y */ */", "SELECT ARRAY[$1 /*, ... */], f($2, $3)"),
            ("DELETE FROM \"T 1\" WHERE id IN (7)", "DELETE FROM \"T 1\" WHERE id IN ($1)"),
            ("SELECT a, -b, - 1, (-x) <-> '(0,0)'", "SELECT a, -b, $1, (-x) <-> $2"),
            ("DELETE FROM t WHERE id IN (a, 1, 2)", "DELETE FROM t WHERE id IN (a, $1, $2)"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(normalize(text), expected);
        }
    }

    #[test]
    fn what_is_cut_off_is_kept_up_to_there() {
        assert!(normalize("INSERT INTO t VALUES (1, 'cut").ends_with(" ..."));
        let long = format!("SELECT {}", "x + ".repeat(100_000));
        assert!(normalize(&long).len() <= MAX_TEXT + 4);
        let _ = normalize(&"é".repeat(MAX_READ));
        let _ = normalize(&"(".repeat(MAX_READ));
    }

    #[test]
    fn statements_are_found_in_entries() {
        let of = |message: &str| {
            let entry = Entry { message: message.to_owned(), ..Entry::default() };
            extract(&entry).map(str::to_owned)
        };
        assert_eq!(of("statement: SELECT 1").unwrap(), "SELECT 1");
        assert_eq!(of("duration: 0.1 ms  statement: SELECT 1").unwrap(), "SELECT 1");
        assert_eq!(of("duration: 0.1 ms  execute <unnamed>: DELETE FROM t: x").unwrap(), "DELETE FROM t: x");
        assert_eq!(of("execute S_1: SELECT $1").unwrap(), "SELECT $1");
        let plan = "duration: 0.1 ms  plan:\nQuery Text: UPDATE t\n SET a = 1\nUpdate on t  (cost=0.00..1.00 rows=0 width=0)\n  ->  Seq Scan";
        assert_eq!(of(plan).unwrap(), "UPDATE t\n SET a = 1");
        assert_eq!(of("duration: 0.1 ms"), None);
        assert_eq!(of("checkpoint starting: time"), None);
        assert_eq!(
            (kind("ROLLBACK TO s"), kind("rollback"), kind("WITH x AS (SELECT 1) INSERT")),
            (Kind::Control, Kind::End, Kind::Write)
        );
    }
}
