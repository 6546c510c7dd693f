//! Changes of tables and indexes: what the log tells of them, and the range where it does not.
//!
//! An index that is dropped takes its records with it, which is exact. What else such changes do depends on what the log does
//! not hold: which columns an update changed, where the keys of an index that is not there would go, how much room there will
//! be on a page. So each has a range, from what they do at best to what they do at worst.

use rustc_hash::FxHashSet;
use serde::Serialize;
use walden_format::payload::{self, Payload};
use walden_format::record::{BlockRef, Fork, Record, RelFileLocator};
use walden_format::rmgr::rmid;
use walden_redo::PAGE_BYTES;
use walden_redo::replay::Touched;

use crate::outcome::{Bucket, Buckets, Prediction};
use crate::settings::Settings;

/// A change to try.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// In words: `fillfactor of public.accounts to 80`.
    pub what: String,
    /// Which.
    pub change: Change,
    /// The table's files.
    pub table: FxHashSet<RelFileLocator>,
    /// Those of its indexes, as far as they are known; of an index that is dropped, all others.
    pub indexes: FxHashSet<RelFileLocator>,
}

/// Which change.
#[derive(Clone, Debug)]
pub enum Change {
    /// An index, by its files, is not there.
    DropIndex(FxHashSet<RelFileLocator>),
    /// One more B-tree index, with keys of so many bytes.
    AddIndex(u32),
    /// The table's pages are filled to so many percent.
    FillFactor(u8),
}

/// What a change does beyond what is predicted without it.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectEffect {
    /// The change.
    pub what: String,
    /// Bytes more, or fewer if negative, at best.
    pub best_bytes: i64,
    /// The same at worst.
    pub worst_bytes: i64,
    /// When it is the one and when the other.
    pub why: String,
}

/// What the log has of a table and its indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Rows inserted.
    pub inserts: u64,
    /// HOT updates.
    pub hot: u64,
    /// Other updates whose new row is on the same page: an indexed column was changed, or there is no other reason.
    pub stayed: u64,
    /// Other updates whose new row is on another page: mostly for want of room.
    pub moved: u64,
    /// Images of the table's pages, in bytes.
    pub table_images: u64,
    /// Of these, those of the pages that rows moved to.
    pub moved_images: u64,
    /// Records of the indexes, without and in images, in bytes.
    pub index_plain: u64,
    /// See `index_plain`.
    pub index_images: u64,
    /// One more than the highest block met.
    pub pages: u64,
    /// Pages met, each time that one is.
    pub met: u64,
    /// Line pointers on them.
    pub lines: u64,
    /// Bytes between line pointers and rows on them.
    pub free: u64,
}

/// Counts for each change.
#[derive(Debug, Default)]
pub struct Counter {
    changes: Vec<(ObjectChange, Counts)>,
}

/// `sizeof(ItemIdData)`
const LINE: f64 = 4.0;
/// Of a leaf page, what a rightmost split leaves on it, and what others come to in the long run.
const RIGHTMOST_FILL: f64 = 0.9;
const USUAL_FILL: f64 = 0.7;
/// What an update's record has more when the row moves to another page: a block reference.
const MOVE: f64 = 20.0;
/// Header, block reference and offset of an `INSERT_LEAF` record: 24 + 20 + 2 + 2 bytes.
const INSERT_LEAF: f64 = 48.0;
/// Header, two to three block references and fields of a split's record.
const SPLIT: f64 = 110.0;

impl Counter {
    /// Counts for these.
    pub fn new(changes: Vec<ObjectChange>) -> Counter {
        Counter { changes: changes.into_iter().map(|change| (change, Counts::default())).collect() }
    }

    /// Nothing to count.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Counts a record, after it was replayed.
    pub fn record(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let Some(first) = record.blocks.first() else { return };
        for (change, counts) in &mut self.changes {
            if change.table.contains(&first.relation) {
                counts.table(record, touched);
            } else if change.indexes.contains(&first.relation) {
                counts.index(record);
            }
        }
    }

    /// What came of it.
    pub fn finish(self) -> Vec<(ObjectChange, Counts)> {
        self.changes
    }
}

fn image_bytes(record: &Record<'_>) -> u64 {
    record.blocks.iter().map(block_image_bytes).sum()
}

fn block_image_bytes(block: &BlockRef) -> u64 {
    block.image.map_or(0, |image| image.record_bytes().into())
}

impl Counts {
    fn table(&mut self, record: &Record<'_>, touched: &[Touched]) {
        for (block, touched) in record.blocks.iter().zip(touched) {
            if block.fork != Fork::MAIN {
                continue;
            }
            self.pages = self.pages.max(u64::from(block.block) + 1);
            if let Some(page) = touched.page.as_deref() {
                self.met += 1;
                self.lines += u64::from(page.items());
                self.free += page.upper().saturating_sub(page.lower()) as u64;
            }
        }
        self.table_images += image_bytes(record);
        if !matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2) {
            return;
        }
        match payload::parse(record) {
            Ok(Payload::Insert(_)) => self.inserts += 1,
            Ok(Payload::MultiInsert(insert)) => self.inserts += u64::from(insert.count),
            Ok(Payload::Update(update)) if update.hot => self.hot += 1,
            Ok(Payload::Update(_)) if record.blocks.len() > 1 => {
                self.moved += 1;
                self.moved_images += block_image_bytes(&record.blocks[0]);
            }
            Ok(Payload::Update(_)) => self.stayed += 1,
            _ => {}
        }
    }

    fn index(&mut self, record: &Record<'_>) {
        let images = image_bytes(record);
        self.index_images += images;
        self.index_plain += u64::from(record.header.total_len).saturating_sub(images);
    }

    /// Entries that the table's rows make in each index.
    fn entries(&self) -> f64 {
        (self.inserts + self.stayed + self.moved) as f64
    }

    /// How full pages are, in percent.
    fn fill(&self) -> f64 {
        100.0 * (1.0 - self.free as f64 / (self.met.max(1) as f64 * PAGE_BYTES as f64))
    }
}

/// What a change does to a prediction. `actual` is the trace, whose images the counts are of.
pub fn effect(
    (change, counts): &(ObjectChange, Counts),
    settings: &Settings,
    prediction: &Prediction,
    actual: &Buckets,
) -> ObjectEffect {
    let images = |buckets: &Buckets| buckets.get(Bucket::CheckpointImages) as f64;
    let scale = if images(actual) > 0.0 { images(&prediction.buckets) / images(actual) } else { 0.0 };
    let index_bytes = counts.index_plain as f64 + scale * counts.index_images as f64;
    let entries = counts.entries().max(1.0);
    let (best, worst, why) = match &change.change {
        Change::DropIndex(_) => (
            -(counts.stayed as f64 / entries * index_bytes),
            0.0,
            format!(
                "its own records are gone from the prediction; at best the {} updates that changed a key and stayed on their \
                 page become HOT and leave the other indexes alone",
                counts.stayed
            ),
        ),
        Change::FillFactor(percent) => {
            let (moved, hot) = (counts.moved as f64, counts.hot as f64);
            let table_images = scale * counts.table_images as f64;
            let (fill, wanted) = (counts.fill().max(1.0), f64::from((*percent).max(1)));
            let fewer_rows = wanted.min(fill) / wanted.max(fill);
            let (less, more) = ((1.0 - fewer_rows) * table_images, (1.0 / fewer_rows - 1.0) * table_images);
            if wanted < fill {
                let saved = moved / entries * index_bytes + MOVE * moved + scale * counts.moved_images as f64;
                let why = format!(
                    "pages are {fill:.0} % full; at best the {} updates that moved their row to another page find room on its \
                     own and become HOT ({} are), and images have more unused space to leave out; at worst none does, and \
                     the rows are on more pages, each with its image",
                    counts.moved, counts.hot
                );
                (-saved - less, more, why)
            } else {
                let moves =
                    hot / entries * index_bytes + MOVE * hot + table_images.min(hot * PAGE_BYTES as f64);
                let why = format!(
                    "pages are {fill:.0} % full; at best the rows are on fewer pages, with fewer images; at worst images have \
                     less unused space to leave out, and the {} HOT updates find no room and move their row to another page",
                    counts.hot
                );
                (-less, more + moves, why)
            }
        }
        Change::AddIndex(key) => {
            let (best, worst) = index_added(*key, counts, settings, prediction, index_bytes / entries);
            let why = format!(
                "{} entries; at best its keys only ever grow, at worst they are random and each HOT update ({}) changes one",
                entries as u64, counts.hot
            );
            (best, worst, why)
        }
    };
    ObjectEffect { what: change.what.clone(), best_bytes: best as i64, worst_bytes: worst as i64, why }
}

fn index_added(
    key: u32,
    counts: &Counts,
    settings: &Settings,
    prediction: &Prediction,
    others: f64,
) -> (f64, f64) {
    let tuple = f64::from((8 + key).next_multiple_of(8));
    let page = PAGE_BYTES as f64;
    let record = INSERT_LEAF + tuple;
    let entries = counts.entries();
    let splits =
        |entries: f64, fill: f64, moved: f64| entries * (tuple + LINE) / (page * fill) * (SPLIT + moved);
    let best = entries * record + splits(entries, RIGHTMOST_FILL, page * (1.0 - RIGHTMOST_FILL));

    let hot = counts.hot as f64;
    let worst_entries = entries + hot;
    let mean_lines = counts.lines as f64 / counts.met.max(1) as f64;
    let rows = (counts.pages as f64 * mean_lines).max(worst_entries);
    let leaves = (rows * (tuple + LINE) / (page * USUAL_FILL)).max(1.0);
    let cycles = prediction.checkpoints.len() as f64 + 1.0;
    // Of so many leaves, those that random keys touch at least once in a cycle.
    let touched = leaves * (1.0 - (1.0 - 1.0 / leaves).powf(worst_entries / cycles));
    let image = match prediction.images {
        0 => page * USUAL_FILL,
        images => prediction.buckets.get(Bucket::CheckpointImages) as f64 / images as f64,
    };
    let images = if settings.full_page_writes { cycles * touched * image } else { 0.0 };
    let worst =
        worst_entries * record + splits(worst_entries, USUAL_FILL, page / 2.0) + images + hot * others;
    (best, worst)
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;

    fn prediction(images: u64, bytes: u64) -> Prediction {
        let mut buckets = Buckets::default();
        buckets.add(Bucket::CheckpointImages, bytes);
        Prediction { buckets, images, ..Prediction::default() }
    }

    fn change(change: Change) -> ObjectChange {
        ObjectChange { what: "it".into(), change, table: FxHashSet::default(), indexes: FxHashSet::default() }
    }

    #[test]
    fn ranges_enclose_what_happens() {
        let settings = Settings::default_of(Major::V15);
        let counts = Counts {
            inserts: 1000,
            hot: 500,
            stayed: 100,
            moved: 400,
            table_images: 1_000_000,
            moved_images: 100_000,
            index_plain: 96_000,
            index_images: 404_000,
            pages: 100,
            met: 100,
            lines: 6000,
            free: 100 * 8192 / 20,
        };
        let same = prediction(200, 1_600_000);
        let of = |kind| effect(&(change(kind), counts), &settings, &same, &same.buckets);
        let fill = of(Change::FillFactor(80));
        // 400 of 1500 entries' share of the indexes, the pages moved to, and 15 of 95 parts of images.
        assert!(fill.best_bytes < -(500_000 * 4 / 15) - 157_000 && fill.best_bytes > -500_000, "{fill:?}");
        assert!((187_000..188_000).contains(&fill.worst_bytes), "15 of 80 parts more pages: {fill:?}");
        let fuller = of(Change::FillFactor(100));
        assert!((-51_000..-49_000).contains(&fuller.best_bytes), "5 of 100 parts fewer images: {fuller:?}");
        // Entries of 500 more updates, and an image for each page that they move to.
        assert!(fuller.worst_bytes > 500_000 / 3 + 1_000_000, "{fuller:?}");
        let drop = of(Change::DropIndex(FxHashSet::default()));
        assert_eq!((drop.best_bytes, drop.worst_bytes), (-500_000 / 15, 0));
        let small = of(Change::AddIndex(8));
        let large = of(Change::AddIndex(200));
        assert!(small.best_bytes >= 1500 * 64 && small.worst_bytes > 2 * small.best_bytes, "{small:?}");
        assert!(large.best_bytes > small.best_bytes && large.worst_bytes > small.worst_bytes);
        let off = Settings { full_page_writes: false, ..settings.clone() };
        let bare = effect(&(change(Change::AddIndex(8)), counts), &off, &same, &same.buckets);
        assert!(bare.worst_bytes < small.worst_bytes && bare.best_bytes == small.best_bytes);
    }
}
