//! Splits the WAL into consecutive slices by time, by checkpoint cycle and its tenths, or by all of these.

use walden_format::lsn::Lsn;

/// Consecutive slices of the WAL. A record belongs to the slice in which the record starts.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Start of each slice but the first, ascending.
    starts: Vec<Lsn>,
    /// The place of each slice.
    numbers: Vec<Place>,
}

/// The time span and the part of a checkpoint cycle that contain a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Index of the time span, from 0.
    pub time: u32,
    /// Index of the checkpoint cycle: 0 for the WAL before the first redo pointer.
    pub checkpoint: u32,
    /// Which tenth of the cycle, by position: 0 to 9.
    pub tenth: u32,
}

/// Parts of a checkpoint cycle.
pub const TENTHS: u32 = 10;

impl Slices {
    /// All of the WAL in one slice.
    pub const fn none() -> Slices {
        Slices { starts: Vec::new(), numbers: Vec::new() }
    }

    /// Splits the WAL at all of `times` and `checkpoints`, each ascending, and at the tenths of each cycle.
    /// `log` is the start and the end of the WAL.
    pub fn cut(times: &[Lsn], checkpoints: &[Lsn], log: (Lsn, Lsn)) -> Slices {
        let bounds: Vec<Lsn> = [log.0].iter().chain(checkpoints).chain([&log.1]).copied().collect();
        let tenth = |cycle: &[Lsn], n: u32| {
            let length = cycle[1].0.saturating_sub(cycle[0].0);
            cycle[0].plus((u128::from(length) * u128::from(n) / u128::from(TENTHS)) as u64)
        };
        let mut starts: Vec<Lsn> = times.iter().chain(checkpoints).copied().collect();
        if !checkpoints.is_empty() {
            starts.extend(bounds.windows(2).flat_map(|cycle| (1..TENTHS).map(move |n| tenth(cycle, n))));
        }
        starts.sort_unstable();
        starts.dedup();
        let number = |cuts: &[Lsn], start: Lsn| cuts.partition_point(|cut| *cut <= start) as u32;
        let of = |start: Lsn| {
            let checkpoint = number(checkpoints, start);
            let cycle = &bounds[checkpoint as usize..];
            let tenth =
                (1..TENTHS).take_while(|n| cycle.len() > 1 && tenth(cycle, *n) <= start).count() as u32;
            Place { time: number(times, start), checkpoint, tenth }
        };
        let numbers = std::iter::once(Lsn(0)).chain(starts.iter().copied()).map(of).collect();
        Slices { starts, numbers }
    }

    /// Returns the slice that contains `lsn`, and the start LSN of the next slice.
    pub(crate) fn at(&self, lsn: Lsn) -> (u32, Lsn) {
        let number = self.starts.partition_point(|start| *start <= lsn);
        (number as u32, self.starts.get(number).copied().unwrap_or(Lsn(u64::MAX)))
    }

    /// The time span and the part of a checkpoint cycle that contain a slice.
    pub(crate) fn place(&self, slice: u32) -> Place {
        self.numbers.get(slice as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_split_by_time_and_by_checkpoint() {
        let slices = Slices::cut(&[Lsn(110), Lsn(200)], &[Lsn(150), Lsn(200)], (Lsn(100), Lsn(300)));
        let at = |lsn| slices.place(slices.at(Lsn(lsn)).0);
        let place = |time, checkpoint, tenth| Place { time, checkpoint, tenth };
        assert_eq!(at(0), place(0, 0, 0));
        assert_eq!(at(109), place(0, 0, 1));
        assert_eq!(at(110), place(1, 0, 2));
        assert_eq!(at(149), place(1, 0, 9));
        assert_eq!(at(150), place(1, 1, 0));
        assert_eq!(at(199), place(1, 1, 9));
        assert_eq!(at(200), place(2, 2, 0));
        assert_eq!(at(299), place(2, 2, 9));
        // Each span ends where the next one starts.
        let mut lsn = Lsn(0);
        for slice in 0..slices.numbers.len() as u32 {
            let (at, next) = slices.at(lsn);
            assert_eq!(at, slice);
            lsn = next;
        }
        assert_eq!(lsn, Lsn(u64::MAX));
        assert_eq!(Slices::default().at(Lsn(7)), (0, Lsn(u64::MAX)));
        assert_eq!(Slices::default().place(0), Place::default());
    }
}
