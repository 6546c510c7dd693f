//! Values that contain values: arrays (`arrayfuncs.c`), vectors (`int2vectorout`, `oidvectorout`), ranges
//! (`rangetypes.c`), rows (`rowtypes.c`).

use std::fmt::{self, Display, Write};

use super::Value;

/// A dimension of an [`Array`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dimension {
    /// Number of elements.
    pub length: usize,
    /// Index of the first element.
    pub lower: i32,
}

/// An array of one or more dimensions; no dimensions if it is empty.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// The dimensions, the outermost first.
    pub dimensions: Vec<Dimension>,
    /// The elements in row-major order; `None` for null.
    pub elements: Vec<Option<Value>>,
    /// OID of the elements' type.
    pub element_type: u32,
}

/// A range. A bound of `None` is infinite.
#[derive(Clone, PartialEq, Debug)]
pub struct Range {
    /// Whether the range contains no value.
    pub is_empty: bool,
    /// The lower bound.
    pub lower: Option<Box<Value>>,
    /// The upper bound.
    pub upper: Option<Box<Value>>,
    /// Whether the lower bound belongs to the range.
    pub has_lower: bool,
    /// Whether the upper bound belongs to the range.
    pub has_upper: bool,
}

/// OID of `box`, whose arrays are separated by semicolons (`pg_type.typdelim`).
const BOX: u32 = 603;

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dimensions.is_empty() {
            return f.write_str("{}");
        }
        if self.dimensions.iter().any(|dimension| dimension.lower != 1) {
            for Dimension { length, lower } in &self.dimensions {
                write!(f, "[{lower}:{}]", i64::from(*lower) + *length as i64 - 1)?;
            }
            f.write_str("=")?;
        }
        self.level(0, &mut self.elements.iter(), f)
    }
}

impl Array {
    fn delimiter(&self) -> char {
        if self.element_type == BOX { ';' } else { ',' }
    }

    fn level(
        &self,
        depth: usize,
        elements: &mut std::slice::Iter<'_, Option<Value>>,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        f.write_str("{")?;
        for index in 0..self.dimensions[depth].length {
            if index > 0 {
                f.write_char(self.delimiter())?;
            }
            if depth + 1 < self.dimensions.len() {
                self.level(depth + 1, elements, f)?;
                continue;
            }
            match elements.next() {
                Some(Some(value)) => self.element(&value.to_string(), f)?,
                _ => f.write_str("NULL")?,
            }
        }
        f.write_str("}")
    }

    fn element(&self, text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs_quotes =
            |c: char| matches!(c, '"' | '\\' | '{' | '}') || c == self.delimiter() || is_space(c);
        if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.contains(needs_quotes) {
            return f.write_str(text);
        }
        f.write_str("\"")?;
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                f.write_str("\\")?;
            }
            f.write_char(c)?;
        }
        f.write_str("\"")
    }
}

/// `isspace` in the C locale, and `scanner_isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

/// Writes a bound of a range or a column of a row, quoted if necessary, with quotes and backslashes doubled.
fn quoted(text: &str, special: &[char], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !text.is_empty() && !text.contains(|c| special.contains(&c) || is_space(c)) {
        return f.write_str(text);
    }
    f.write_str("\"")?;
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            f.write_char(c)?;
        }
        f.write_char(c)?;
    }
    f.write_str("\"")
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SPECIAL: [char; 7] = ['"', '\\', '(', ')', '[', ']', ','];
        if self.is_empty {
            return f.write_str("empty");
        }
        f.write_str(if self.has_lower { "[" } else { "(" })?;
        if let Some(lower) = &self.lower {
            quoted(&lower.to_string(), &SPECIAL, f)?;
        }
        f.write_str(",")?;
        if let Some(upper) = &self.upper {
            quoted(&upper.to_string(), &SPECIAL, f)?;
        }
        f.write_str(if self.has_upper { "]" } else { ")" })
    }
}

pub(super) fn vector(numbers: &[i64], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, number) in numbers.iter().enumerate() {
        f.write_str(if index > 0 { " " } else { "" })?;
        number.fmt(f)?;
    }
    Ok(())
}

pub(super) fn multirange(ranges: &[Range], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("{")?;
    for (index, range) in ranges.iter().enumerate() {
        f.write_str(if index > 0 { "," } else { "" })?;
        range.fmt(f)?;
    }
    f.write_str("}")
}

pub(super) fn record(columns: &[Option<Value>], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("(")?;
    for (index, column) in columns.iter().enumerate() {
        f.write_str(if index > 0 { "," } else { "" })?;
        if let Some(value) = column {
            quoted(&value.to_string(), &['"', '\\', '(', ')', ','], f)?;
        }
    }
    f.write_str(")")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[Option<&str>]) -> Vec<Option<Value>> {
        texts.iter().map(|text| text.map(|text| Value::Text(text.to_owned()))).collect()
    }

    #[test]
    fn elements_are_quoted_where_they_need_it() {
        let array = |dimensions: &[(usize, i32)], elements| Array {
            dimensions: dimensions.iter().map(|&(length, lower)| Dimension { length, lower }).collect(),
            elements,
            element_type: 25,
        };
        let words = texts(&[Some("a"), None, Some("null"), Some(""), Some("b c"), Some("\"\\")]);
        assert_eq!(array(&[(6, 1)], words).to_string(), r#"{a,NULL,"null","","b c","\"\\"}"#);
        assert_eq!(array(&[], Vec::new()).to_string(), "{}");
        let four = texts(&[Some("a"), Some("b"), Some("c"), Some("d")]);
        assert_eq!(array(&[(2, 0), (2, 1)], four).to_string(), "[0:1][1:2]={{a,b},{c,d}}");
    }

    #[test]
    fn rows_and_ranges_are_quoted_in_their_own_way() {
        let row = Value::Record(texts(&[Some("a"), None, Some(""), Some("x,\"y\\")]));
        assert_eq!(row.to_string(), r#"(a,,"","x,""y\\")"#);
        let bound = |text: &str| Some(Box::new(Value::Text(text.to_owned())));
        let range =
            Range { is_empty: false, lower: bound("a b"), upper: None, has_lower: true, has_upper: false };
        assert_eq!(range.to_string(), "[\"a b\",)");
        assert_eq!(Value::Multirange(vec![range.clone(), range]).to_string(), "{[\"a b\",),[\"a b\",)}");
    }
}
