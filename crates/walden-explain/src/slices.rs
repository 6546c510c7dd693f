//! The log cut into consecutive spans: of time, of checkpoint cycles, or of both at once.

use walden_format::lsn::Lsn;

/// Consecutive spans of the log. A record belongs to the span that it starts in.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Where each span but the first starts, ascending.
    starts: Vec<Lsn>,
    /// Per span: number of its span of time and of its checkpoint cycle.
    numbers: Vec<(u32, u32)>,
}

impl Slices {
    /// The spans that come of cutting at all of `times` and `checkpoints`, each ascending.
    pub fn cut(times: &[Lsn], checkpoints: &[Lsn]) -> Slices {
        let mut starts: Vec<Lsn> = times.iter().chain(checkpoints).copied().collect();
        starts.sort_unstable();
        starts.dedup();
        let number = |cuts: &[Lsn], start: Lsn| cuts.partition_point(|cut| *cut <= start) as u32;
        let of = |start: Lsn| (number(times, start), number(checkpoints, start));
        let numbers = std::iter::once(Lsn(0)).chain(starts.iter().copied()).map(of).collect();
        Slices { starts, numbers }
    }

    /// The span that `lsn` lies in, and where the next one starts.
    pub(crate) fn at(&self, lsn: Lsn) -> (u32, Lsn) {
        let number = self.starts.partition_point(|start| *start <= lsn);
        (number as u32, self.starts.get(number).copied().unwrap_or(Lsn(u64::MAX)))
    }

    /// The span of time and the checkpoint cycle that a span lies in.
    pub(crate) fn numbers(&self, slice: u32) -> (u32, u32) {
        self.numbers.get(slice as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_both_kinds_are_cut_together() {
        let slices = Slices::cut(&[Lsn(10), Lsn(20)], &[Lsn(15), Lsn(20)]);
        let at = |lsn| {
            let (slice, next) = slices.at(Lsn(lsn));
            (slices.numbers(slice), next)
        };
        assert_eq!(at(0), ((0, 0), Lsn(10)));
        assert_eq!(at(10), ((1, 0), Lsn(15)));
        assert_eq!(at(19), ((1, 1), Lsn(20)));
        assert_eq!(at(20), ((2, 2), Lsn(u64::MAX)));
        assert_eq!(Slices::default().at(Lsn(7)), (0, Lsn(u64::MAX)));
        assert_eq!(Slices::default().numbers(0), (0, 0));
    }
}
