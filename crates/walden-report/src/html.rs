//! HTML documents that need nothing else: styles and pictures are in them.

/// A document that is put together from top to bottom.
pub struct Document {
    text: String,
}

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.5rem;border-bottom:1px solid #ddd}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
th,td{padding:.15rem .7rem;text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
th{border-bottom:2px solid #999;font-weight:600}tr:nth-child(even) td{background:#f6f6f6}\
tr.strong td{font-weight:700}tr.faint td{color:#a33}\
svg{max-width:100%;height:auto}";

/// How a row of a table stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// Not at all.
    Plain,
    /// Bold.
    Strong,
    /// Something is amiss.
    Faint,
}

impl Document {
    /// A document with its title as the first heading.
    pub fn new(title: &str) -> Document {
        let title = escape(title);
        let text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
        );
        Document { text }
    }

    /// A heading within the document.
    pub fn heading(&mut self, text: &str) {
        self.text += &format!("<h2>{}</h2>\n", escape(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.text += &format!("<p>{}</p>\n", escape(text));
    }

    /// A picture: an `<svg>` element of this program's own making, taken as it is.
    pub fn svg(&mut self, svg: &str) {
        self.text += &format!("<div class=\"scroll\">{svg}</div>\n");
    }

    /// A table: its head, and its rows.
    pub fn table(&mut self, head: &[&str], rows: &[(Weight, Vec<String>)]) {
        let cells = |cells: &mut dyn Iterator<Item = &str>, name: &str| {
            cells.map(|cell| format!("<{name}>{}</{name}>", escape(cell))).collect::<String>()
        };
        let head = cells(&mut head.iter().copied(), "th");
        self.text += &format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead><tbody>\n");
        for (weight, row) in rows {
            let class = match weight {
                Weight::Plain => "",
                Weight::Strong => " class=\"strong\"",
                Weight::Faint => " class=\"faint\"",
            };
            let row = cells(&mut row.iter().map(String::as_str), "td");
            self.text += &format!("<tr{class}>{row}</tr>\n");
        }
        self.text += "</tbody></table></div>\n";
    }

    /// The document's text.
    pub fn finish(self) -> String {
        self.text + "</body></html>\n"
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut document = Document::new("a <b>");
        document.table(&["<i>"], &[(Weight::Strong, vec!["\"&\"".into()])]);
        let text = document.finish();
        assert!(text.contains("<h1>a &lt;b&gt;</h1>") && !text.contains("<i>"));
        assert!(text.contains("<tr class=\"strong\"><td>&quot;&amp;&quot;</td></tr>"));
    }
}
