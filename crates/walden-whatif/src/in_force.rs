//! Selects the value of a setting for a WAL range in which it changes.

use walden_format::lsn::Lsn;

/// Returns the value that is in force for most bytes of the range, and the share of these bytes. `values` are
/// the setting's values, each with the LSN from which the value is in force; the first value also counts for
/// earlier WAL.
pub(crate) fn most_in_force<T: Copy + PartialEq>(
    values: &[(Lsn, T)],
    (from, to): (Lsn, Lsn),
) -> Option<(T, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by_key(|(lsn, _)| *lsn);
    let before = sorted.iter().rposition(|(lsn, _)| *lsn <= from).unwrap_or(0);
    let mut bytes: Vec<(T, u64)> = Vec::new();
    let relevant = sorted.get(before..)?;
    for (at, &(lsn, value)) in relevant.iter().enumerate() {
        let begin = if at == 0 { from } else { lsn };
        let end = relevant.get(at + 1).map_or(to, |(next, _)| (*next).min(to));
        let more = end.0.saturating_sub(begin.0);
        match bytes.iter_mut().find(|(known, _)| *known == value) {
            Some((_, sum)) => *sum += more,
            None => bytes.push((value, more)),
        }
    }
    let all: u64 = bytes.iter().map(|(_, bytes)| bytes).sum();
    // Of several values with as many bytes, the first.
    let (value, most) = bytes.into_iter().rev().max_by_key(|(_, bytes)| *bytes)?;
    Some((value, if all == 0 { 1.0 } else { most as f64 / all as f64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_with_most_bytes_counts() {
        let values = [(Lsn(10), 'a'), (Lsn(40), 'b'), (Lsn(50), 'a'), (Lsn(60), 'c')];
        let most = |from, to| most_in_force(&values, (Lsn(from), Lsn(to)));
        assert_eq!(most(10, 80), Some(('a', 40.0 / 70.0)));
        assert_eq!(most(10, 200), Some(('c', 140.0 / 190.0)));
        assert_eq!(most(42, 52), Some(('b', 0.8)));
        assert_eq!(most(0, 5), Some(('a', 1.0)), "the first one counts for the WAL before it");
        assert_eq!(most(70, 70), Some(('c', 1.0)));
        assert_eq!(most_in_force::<char>(&[], (Lsn(0), Lsn(9))), None);
        // In the order of the records that log them.
        assert_eq!(most_in_force(&[(Lsn(5), 2), (Lsn(0), 1)], (Lsn(0), Lsn(20))), Some((2, 0.75)));
    }
}
