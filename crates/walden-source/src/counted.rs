//! Formats numbers of things.

/// Formats a number and the counted noun, in the plural unless the number is one: `2 pages`.
pub fn counted(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "page")), ["0 pages", "1 page", "2 pages"]);
    }
}
