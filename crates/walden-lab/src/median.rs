//! Medians of measured values.

/// Returns the median, or the upper of the two middle values; NaN if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_count_has_the_upper_middle_as_median() {
        assert_eq!([median([3.0, 1.0, 2.0]), median([4.0, 1.0, 3.0, 2.0])], [2.0, 3.0]);
        assert!(median([]).is_nan());
    }
}
