//! Estimates how well a plane compresses in each of its forms.

/// Estimates the cost of planes under an order-0 coder, in sixteenths of a bit. Only encoding uses it, so
/// results may differ between machines.
pub struct Costs {
    /// Length of each plane.
    total: usize,
    /// Total cost of the bytes with one value, by their count, once computed.
    by_count: Vec<u64>,
    /// Counts of byte values. Two tables are used because the same byte often occurs twice in a row. All zero
    /// between planes.
    counts: [[u32; 256]; 2],
}

impl Default for Costs {
    fn default() -> Costs {
        Costs { total: 0, by_count: Vec::new(), counts: [[0; 256]; 2] }
    }
}

impl Costs {
    /// Costs of more frequent values are not cached, because there are few.
    const KNOWN: usize = 1024;
    const UNKNOWN: u64 = u64::MAX;
    /// Maximum length of planes for which the bytes of the plane are summed up, rather than all 256 values.
    const SHORT: usize = 192;

    /// Prepares for planes of `total` bytes.
    pub fn start(&mut self, total: usize) {
        if total != self.total {
            self.total = total;
            self.by_count.clear();
            self.by_count.resize(Costs::KNOWN.min(total + 1), Costs::UNKNOWN);
        }
    }

    /// Returns the cost of a plane.
    pub fn measure(&mut self, plane: &[u8]) -> u64 {
        let (pairs, last) = plane.as_chunks::<2>();
        for [first, second] in pairs {
            self.counts[0][usize::from(*first)] += 1;
            self.counts[1][usize::from(*second)] += 1;
        }
        for &last in last {
            self.counts[0][usize::from(last)] += 1;
        }
        let mut sum = 0;
        if plane.len() <= Costs::SHORT {
            plane.iter().for_each(|&byte| sum += self.take_byte(byte));
        } else {
            (0..=255).for_each(|byte| sum += self.take_byte(byte));
        }
        sum
    }

    /// Returns the total cost of the bytes with one value, and resets their counts.
    #[inline]
    fn take_byte(&mut self, byte: u8) -> u64 {
        let [first, second] = &mut self.counts;
        let at = usize::from(byte);
        let count = std::mem::take(&mut first[at]) + std::mem::take(&mut second[at]);
        if count == 0 {
            return 0;
        }
        let total = self.total as f32;
        let cost = || (count as f32 * (total / count as f32).log2() * 16.0) as u64;
        match self.by_count.get_mut(count as usize) {
            Some(known) if *known != Costs::UNKNOWN => *known,
            Some(unknown) => {
                *unknown = cost();
                *unknown
            }
            None => cost(),
        }
    }
}
