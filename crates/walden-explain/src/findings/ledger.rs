//! Accounts for the bytes of findings, so that no byte counts twice in a list.

use super::FindingKind;
use crate::explanation::Explanation;
use crate::tally::Tally;

/// The bytes that a finding explains: bytes of cells, and bytes that are spread over cells.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    /// Index of a cell, bytes without full-page images, bytes of images.
    cells: Vec<(usize, u64, u64)>,
    /// Bytes whose cells are unknown, such as those of transactions.
    spread: u64,
}

impl Claim {
    /// Adds a share of a cell's bytes: of those without images, and of images.
    pub fn add_share(&mut self, cell: usize, tally: &Tally, plain: f64, images: f64) {
        let image_bytes = tally.buckets.images();
        let plain_bytes = tally.bytes() - image_bytes;
        let of = |bytes: u64, share: f64| (bytes as f64 * share.clamp(0.0, 1.0)) as u64;
        self.cells.push((cell, of(plain_bytes, plain), of(image_bytes, images)));
    }

    /// Adds bytes of a cell that are no images.
    pub fn add_plain(&mut self, cell: usize, bytes: u64) {
        self.cells.push((cell, bytes, 0));
    }

    /// Adds image bytes of a cell.
    pub fn add_images(&mut self, cell: usize, bytes: u64) {
        self.cells.push((cell, 0, bytes));
    }

    /// Adds all bytes of another claim.
    pub fn merge(&mut self, other: Claim) {
        self.cells.extend(other.cells);
        self.spread += other.spread;
    }

    /// Adds bytes whose cells are unknown.
    pub fn add_spread(&mut self, bytes: u64) {
        self.spread += bytes;
    }

    /// Bytes of images in known cells.
    pub fn image_bytes(&self) -> u64 {
        self.cells.iter().map(|(.., images)| images).sum()
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.spread + self.cells.iter().map(|(_, plain, images)| plain + images).sum::<u64>()
    }
}

/// The bytes that no finding of a list has claimed.
pub(super) struct Ledger {
    cells: Vec<(u64, u64)>,
    total: u64,
}

impl Ledger {
    /// A ledger of all bytes. In the list of settings the first touch of a page and its lack of compression
    /// are two findings about the same images, so that its ledger has each image for both.
    pub fn new(explanation: &Explanation, kind: FindingKind) -> Ledger {
        let factor = if kind == FindingKind::Setting { 2 } else { 1 };
        let cells = explanation.cells.iter().map(|(_, tally)| {
            let images = tally.buckets.images();
            (tally.wal_bytes() - images, images * factor)
        });
        Ledger { cells: cells.collect(), total: explanation.wal_bytes() * factor }
    }

    /// Returns the bytes of a claim that no finding has taken yet.
    pub fn left(&self, claim: &Claim) -> u64 {
        let mut scratch: Vec<(usize, u64, u64)> = claim.cells.clone();
        scratch.sort_unstable();
        let mut left = claim.spread;
        let mut at = 0;
        while at < scratch.len() {
            let cell = scratch[at].0;
            let (mut plain, mut images) = (0, 0);
            while at < scratch.len() && scratch[at].0 == cell {
                plain += scratch[at].1;
                images += scratch[at].2;
                at += 1;
            }
            let (plain_left, images_left) = self.cells.get(cell).copied().unwrap_or_default();
            left += plain.min(plain_left) + images.min(images_left);
        }
        left.min(self.total)
    }

    /// Removes the bytes of a claim that the ledger still has.
    pub fn take(&mut self, claim: &Claim) {
        self.total -= self.left(claim);
        for (cell, plain, images) in &claim.cells {
            if let Some(left) = self.cells.get_mut(*cell) {
                left.0 = left.0.saturating_sub(*plain);
                left.1 = left.1.saturating_sub(*images);
            }
        }
    }
}
