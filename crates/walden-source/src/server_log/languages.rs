//! Translated messages (`lc_messages`), replaced by the English ones.
//!
//! The words are those of PostgreSQL's message catalogs (`src/backend/po`) of the languages whose translation
//! is maintained. Messages of `auto_explain` are not translated.

use std::sync::LazyLock;

use regex::Regex;

/// Words of a language that follow `log_line_prefix` in text format: of the statement, of other parts of an
/// entry, and of severities. English ones that a language also uses are only in [`ENGLISH`].
struct Tags {
    statement: &'static str,
    parts: &'static [&'static str],
    severities: &'static [&'static str],
}

const ENGLISH: Tags = Tags {
    statement: "STATEMENT",
    parts: &["DETAIL", "HINT", "CONTEXT", "QUERY", "LOCATION", "BACKTRACE"],
    severities: &["DEBUG", "LOG", "INFO", "NOTICE", "WARNING", "ERROR", "FATAL", "PANIC"],
};

#[rustfmt::skip]
const TAGS: [Tags; 15] = [
    ENGLISH,
    // de
    Tags {
        statement: "ANWEISUNG",
        parts: &["TIPP", "ZUSAMMENHANG", "ANFRAGE", "ORT"],
        severities: &["HINWEIS", "WARNUNG", "FEHLER", "PANIK"],
    },
    // es
    Tags {
        statement: "SENTENCIA",
        parts: &["DETALLE", "CONTEXTO", "CONSULTA", "UBICACIÓN"],
        severities: &[],
    },
    // fr
    Tags {
        statement: "INSTRUCTION",
        parts: &["DÉTAIL", "ASTUCE", "CONTEXTE", "REQUÊTE", "EMPLACEMENT", "PILE D'APPEL"],
        severities: &["ATTENTION", "ERREUR"],
    },
    // it
    Tags {
        statement: "ISTRUZIONE",
        parts: &["DETTAGLI", "SUGGERIMENTO", "CONTESTO", "POSIZIONE"],
        severities: &["NOTIFICA", "ATTENZIONE", "ERRORE", "FATALE", "PANICO"],
    },
    // ja
    Tags {
        statement: "文",
        parts: &["詳細", "ヒント", "文脈", "問い合わせ", "場所", "バックトレース"],
        severities: &[],
    },
    // ka
    Tags {
        statement: "ოპერატორი",
        parts: &["დეტალები", "მინიშნება", "კონტექსტი", "მოთხოვნა", "მდებარეობა", "სტეკი"],
        severities: &["გამართვა", "ჟურნალი", "ინფორმაცია", "გაფრთხილება", "შეცდომა", "ფატალური", "პანიკა"],
    },
    // ko
    Tags {
        statement: "명령 구문",
        parts: &["상세정보", "힌트", "내용", "쿼리", "위치", "역추적"],
        severities: &["디버그", "로그", "정보", "알림", "경고", "오류", "치명적오류", "손상"],
    },
    // pl
    Tags {
        statement: "WYRAŻENIE",
        parts: &["SZCZEGÓŁY", "PODPOWIEDŹ", "ZAPYTANIE", "KONTEKST", "POZYCJA"],
        severities: &["DZIENNIK", "INFORMACJA", "UWAGA", "OSTRZEŻENIE", "BŁĄD", "KATASTROFALNY", "PANIKA"],
    },
    // pt_BR
    Tags {
        statement: "COMANDO",
        parts: &["DETALHE", "DICA", "LOCAL"],
        severities: &["DEPURAÇÃO", "NOTA", "AVISO", "ERRO", "PÂNICO"],
    },
    // ru
    Tags {
        statement: "ОПЕРАТОР",
        parts: &["ПОДРОБНОСТИ", "ПОДСКАЗКА", "КОНТЕКСТ", "ЗАПРОС", "ПОЛОЖЕНИЕ", "СТЕК"],
        severities: &["ОТЛАДКА", "СООБЩЕНИЕ", "ИНФОРМАЦИЯ", "ЗАМЕЧАНИЕ", "ПРЕДУПРЕЖДЕНИЕ", "ОШИБКА", "ВАЖНО", "ПАНИКА"],
    },
    // sv
    Tags {
        statement: "SATS",
        parts: &["DETALJ", "TIPS", "KONTEXT", "FRÅGA", "PLATS"],
        severities: &["LOGG", "NOTIS", "VARNING", "FEL", "FATALT"],
    },
    // uk
    Tags {
        statement: "ІНСТРУКЦІЯ",
        parts: &["ВІДОМОСТІ", "УКАЗІВКА", "ЗАПИТ", "РОЗТАШУВАННЯ", "ВІДСТЕЖУВАТИ"],
        severities: &["НАЛАГОДЖЕННЯ", "ЗАПИСУВАННЯ", "ІНФОРМАЦІЯ", "ПОВІДОМЛЕННЯ", "ПОПЕРЕДЖЕННЯ", "ПОМИЛКА", "ФАТАЛЬНО", "ПАНІКА"],
    },
    // zh_CN
    Tags {
        statement: "语句",
        parts: &["详情", "提示", "上下文", "查询", "位置", "回溯"],
        severities: &["调试", "日志", "信息", "注意", "警告", "错误", "致命错误", "灾难性错误"],
    },
    // zh_TW
    Tags {
        statement: "陳述式",
        parts: &["查詢"],
        severities: &["除錯", "日誌", "資訊", "錯誤", "致命錯誤", "嚴重錯誤"],
    },
];

/// What a word after `log_line_prefix` means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// A new entry, with this severity.
    Entry,
    /// The statement of the entry before.
    Statement,
    /// Another part of the entry before.
    Part,
}

impl Tag {
    /// Returns the meaning of a word that the pattern of [`pattern`] matches.
    pub(super) fn of(word: &str) -> Tag {
        if TAGS.iter().any(|tags| tags.statement == word) {
            Tag::Statement
        } else if TAGS.iter().any(|tags| tags.parts.contains(&word)) {
            Tag::Part
        } else {
            Tag::Entry
        }
    }
}

/// Returns the pattern of all words that can follow `log_line_prefix`.
pub(super) fn pattern() -> String {
    let of_language = |tags: &'static Tags| tags.parts.iter().chain([&tags.statement]).chain(tags.severities);
    let words: Vec<String> = TAGS.iter().flat_map(of_language).map(|word| regex::escape(word)).collect();
    format!("(?:{})[1-5]?", words.join("|"))
}

/// Beginnings of the messages of `log_statement`, `log_duration` and `log_min_duration_statement`.
#[rustfmt::skip]
static LOGGED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:(?:Dauer:|duración:|durée :|durata:|期間:|ხანგრძლივობა:|실행시간:|수행시간:|duração:|продолжительность:|varaktighet:?|тривалість:|耗时:|持續時間:) ",
        r"(?P<milliseconds>[0-9.]+) (?:ms|ミリ秒|მწმs?|мс|毫秒)(?:,? *))?",
        r"(?:(?P<statement>Anweisung: |sentencia: |instruction : |istruzione: |文: |ოპერატორი: |გამოსახულება: |명령 구문: |comando: |оператор: |sats: |语句: |陳述式: )",
        r"|(?P<execute>(?:Ausführen Fetch von|Ausführen|ejecutar fetch desde|ejecutar|exécute fetch à partir de|exécute|esecuzione di fetch da|esecuzione di",
        r"|取り出し実行|実行|გაშვება|자료뽑기|쿼리실행|executar busca de|executar|выборка из|выполнение|kör hämtning från|kör|виконати витягнення з|виконувати",
        r"|执行提取，来源为|执行|執行擷取，來源為|執行|execute fetch from|execute) )|$)?",
    )).ok()
});

/// Replaces the translated beginning of a message of a logged statement by the English one.
pub(super) fn in_english(message: String) -> String {
    let Some(found) = LOGGED.as_ref().and_then(|logged| logged.captures(&message)) else { return message };
    let duration = found.name("milliseconds").map(|number| format!("duration: {} ms", number.as_str()));
    let kind = match (found.name("statement"), found.name("execute")) {
        (Some(_), _) => "statement: ",
        (_, Some(_)) => "execute ",
        _ => "",
    };
    let gap = if duration.is_some() && !kind.is_empty() { "  " } else { "" };
    match found.get(0) {
        Some(start) if duration.is_some() || !kind.is_empty() => {
            format!("{}{gap}{kind}{}", duration.unwrap_or_default(), &message[start.end()..])
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_logged_statements_become_english() {
        for (message, english) in [
            ("Anweisung: INSERT INTO t", "statement: INSERT INTO t"),
            ("Dauer: 0.123 ms  Anweisung: INSERT", "duration: 0.123 ms  statement: INSERT"),
            ("Dauer: 0.123 ms  Ausführen <unnamed>: INSERT", "duration: 0.123 ms  execute <unnamed>: INSERT"),
            ("Dauer: 0.123 ms", "duration: 0.123 ms"),
            ("durée : 0.123 ms, instruction : DELETE", "duration: 0.123 ms  statement: DELETE"),
            ("durée : 0.123 ms  exécute S_1: DELETE", "duration: 0.123 ms  execute S_1: DELETE"),
            ("期間: 0.123 ミリ秒  文: UPDATE", "duration: 0.123 ms  statement: UPDATE"),
            ("期間: 0.123 ミリ秒  実行 S_1: UPDATE", "duration: 0.123 ms  execute S_1: UPDATE"),
            ("продолжительность: 0.123 мс, оператор: UPDATE", "duration: 0.123 ms  statement: UPDATE"),
            ("тривалість: 0.123 мс виконувати S: UPDATE", "duration: 0.123 ms  execute S: UPDATE"),
            ("持續時間: 0.123 毫秒  陳述式: UPDATE", "duration: 0.123 ms  statement: UPDATE"),
            ("varaktighet 0.123 ms", "duration: 0.123 ms"),
            ("execute S_1: SELECT 1", "execute S_1: SELECT 1"),
            ("statement: 文: x", "statement: 文: x"),
            ("duration: 0.1 ms  plan:\nQuery Text: x", "duration: 0.1 ms  plan:\nQuery Text: x"),
            ("connection received", "connection received"),
            ("", ""),
        ] {
            assert_eq!(in_english(message.to_owned()), english, "{message}");
        }
    }

    #[test]
    fn words_of_all_languages_have_one_meaning() {
        assert_eq!([Tag::of("DEBUG1"), Tag::of("FEHLER"), Tag::of("LOG")], [Tag::Entry; 3]);
        let all = Regex::new(&format!("^{}$", pattern())).unwrap();
        for tags in &TAGS {
            let expected =
                [(tags.parts, Tag::Part), (&[tags.statement], Tag::Statement), (tags.severities, Tag::Entry)];
            for (word, tag) in
                expected.iter().flat_map(|(words, tag)| words.iter().map(move |word| (word, tag)))
            {
                assert!(all.is_match(word), "{word}");
                assert_eq!(Tag::of(word), *tag, "{word}");
            }
        }
    }
}
