//! Effects of changing tables and indexes, as a range from best to worst case.
//!
//! The records of a dropped index disappear, which is exact. The other effects depend on information that WAL
//! does not contain: the columns changed by an update, the positions of a new index's keys, the free space of
//! a page.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use walden_format::payload::heap::moved_from;
use walden_format::payload::{self, Payload};
use walden_format::record::{
    BlockHeader, BlockRef, Fork, RECORD_HEADER, Record, RelFileLocator, SHORT_DATA_HEADER,
};
use walden_format::rmgr::{info, rmid};
use walden_redo::PAGE_BYTES;
use walden_redo::Touched;
use walden_redo::page::LINE_POINTER_BYTES;

use crate::outcome::{Bucket, Buckets, Prediction};
use crate::settings::Settings;

/// A change to try.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// Description, such as `fillfactor of public.accounts to 80`.
    pub what: String,
    /// The change.
    pub change: Change,
    /// The table's files.
    pub table: FxHashSet<RelFileLocator>,
    /// The files of its known indexes; for a dropped index, of all other indexes.
    pub indexes: FxHashSet<RelFileLocator>,
}

/// The kinds of changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// The index with these files is dropped.
    DropIndex(FxHashSet<RelFileLocator>),
    /// A B-tree index is added; the size of a key in bytes.
    AddIndex(u32),
    /// The table's `fillfactor` is set, in percent.
    FillFactor(u8),
}

/// The effect of a change, relative to the prediction without it.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectEffect {
    /// The change.
    pub what: String,
    /// Bytes added in the best case; negative if saved.
    pub best_bytes: i64,
    /// Change of the WAL in the worst case, in bytes.
    pub worst_bytes: i64,
    /// The assumptions of both cases, as text.
    pub why: String,
}

/// Activity on a table and its indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of tuples inserted.
    pub inserts: u64,
    /// Number of HOT updates.
    pub hot_updates: u64,
    /// Number of non-HOT updates whose new tuple is on the same page: an indexed column was changed.
    pub same_page_updates: u64,
    /// Number of non-HOT updates whose new tuple is on another page, mostly for lack of free space.
    pub moved_updates: u64,
    /// Bytes of full-page images of the table.
    pub table_images: u64,
    /// Portion of `table_images` in images of pages that received a moved tuple.
    pub moved_images: u64,
    /// Bytes of the indexes' records without full-page images.
    pub index_plain: u64,
    /// Bytes of the full-page images in these.
    pub index_images: u64,
    /// Inserted rows whose entries are in the indexes' records. Rows from before an index was built have
    /// none.
    pub inserted: IndexEntries,
    /// Entries for non-HOT updates within a page.
    pub updated_on_page: IndexEntries,
    /// Entries for non-HOT updates to another page.
    pub updated_elsewhere: IndexEntries,
    /// Highest block number seen, plus one.
    pub pages: u64,
    /// Number of page observations.
    pub pages_seen: u64,
    /// Number of line pointers, summed over the page observations.
    pub line_pointers: u64,
    /// Number of free bytes, summed over the page observations.
    pub free: u64,
}

/// Rows with the index WAL that their entries caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexEntries {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the indexes' records without full-page images.
    pub plain: u64,
    /// Bytes of the full-page images in these.
    pub images: u64,
}

/// Counts the activity that each change would affect.
#[derive(Debug, Default)]
pub struct Counter {
    changes: Vec<(ObjectChange, Counts)>,
    /// For each change, the last rows of each transaction that need entries in the indexes.
    last_rows: Vec<FxHashMap<u32, LastRows>>,
}

/// The reason why a row gets entries in indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryCause {
    Insert,
    UpdateOnPage,
    UpdateElsewhere,
}

/// Rows that a transaction wrote, before their entries.
#[derive(Clone, Copy, Debug)]
struct LastRows {
    cause: EntryCause,
    /// Number of rows whose first entry has not been seen.
    rows: u64,
}

/// Maximum number of transactions whose last rows are remembered, for each change.
const MAX_LAST_ROWS: usize = 4096;
/// Maximum number of rows that COPY writes before it inserts their entries (`MAX_BUFFERED_TUPLES`).
const MAX_BUFFERED_ROWS: u64 = 1000;

/// `sizeof(ItemIdData)`
const LINE_POINTER: f64 = LINE_POINTER_BYTES as f64;
/// Fill of a leaf page after rightmost splits (`BTREE_DEFAULT_FILLFACTOR`), and the long-run mean for random
/// keys.
const RIGHTMOST_FILL: f64 = 0.9;
const USUAL_FILL: f64 = 0.7;
/// Additional bytes of an update record if the tuple moves to another page: a block reference.
const MOVED_UPDATE: f64 = 20.0;
/// Bytes of an offset number (`OffsetNumber`), the main data of an `INSERT_LEAF` record.
const OFFSET_NUMBER: usize = 2;
/// Header, block reference and offset of an `INSERT_LEAF` record.
const INSERT_LEAF: f64 = (RECORD_HEADER + BlockHeader::WIDTH + SHORT_DATA_HEADER + OFFSET_NUMBER) as f64;
/// Header, two to three block references and fields of a split record.
const SPLIT: f64 = 110.0;

impl Counter {
    /// Creates a counter for these changes.
    pub fn new(changes: Vec<ObjectChange>) -> Counter {
        let last_rows = vec![FxHashMap::default(); changes.len()];
        Counter {
            changes: changes.into_iter().map(|change| (change, Counts::default())).collect(),
            last_rows,
        }
    }

    /// Whether there is no change to count for.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Counts a record after it was replayed.
    pub fn count_record(&mut self, record: &Record<'_>, touched: &[Touched]) {
        let Some(first) = record.blocks.first() else { return };
        for ((change, counts), last_rows) in self.changes.iter_mut().zip(&mut self.last_rows) {
            if change.table.contains(&first.relation) {
                if let Some((cause, rows)) = counts.count_table_record(record, touched) {
                    remember_rows(last_rows, record.header.xid, cause, rows);
                }
            } else if change.indexes.contains(&first.relation) {
                counts.count_index_record(record, last_rows.get_mut(&record.header.xid));
            }
        }
    }

    /// Returns the changes with their counts.
    pub fn finish(self) -> Vec<(ObjectChange, Counts)> {
        self.changes
    }
}

fn remember_rows(last_rows: &mut FxHashMap<u32, LastRows>, xid: u32, cause: EntryCause, rows: u64) {
    let before = last_rows.get(&xid).filter(|last| last.cause == cause && cause == EntryCause::Insert);
    let rows = (rows + before.map_or(0, |last| last.rows)).min(MAX_BUFFERED_ROWS);
    if last_rows.len() >= MAX_LAST_ROWS {
        last_rows.clear();
    }
    last_rows.insert(xid, LastRows { cause, rows });
}

fn image_bytes(record: &Record<'_>) -> u64 {
    record.blocks.iter().map(block_image_bytes).sum()
}

fn block_image_bytes(block: &BlockRef) -> u64 {
    block.image.map_or(0, |image| image.record_bytes().into())
}

impl Counts {
    /// Returns the rows of the record that need entries in the indexes.
    fn count_table_record(&mut self, record: &Record<'_>, touched: &[Touched]) -> Option<(EntryCause, u64)> {
        for (block, touched) in record.blocks.iter().zip(touched) {
            if block.fork != Fork::MAIN {
                continue;
            }
            self.pages = self.pages.max(u64::from(block.block) + 1);
            if let Some(page) = touched.page.as_deref() {
                self.pages_seen += 1;
                self.line_pointers += u64::from(page.items());
                self.free += page.upper().saturating_sub(page.lower()) as u64;
            }
        }
        self.table_images += image_bytes(record);
        if !matches!(record.header.rmid, rmid::HEAP | rmid::HEAP2) {
            return None;
        }
        match payload::parse(record) {
            Ok(Payload::Insert(_)) => {
                self.inserts += 1;
                Some((EntryCause::Insert, 1))
            }
            Ok(Payload::MultiInsert(insert)) => {
                self.inserts += u64::from(insert.count);
                Some((EntryCause::Insert, u64::from(insert.count)))
            }
            Ok(Payload::Update(update)) if update.hot => {
                self.hot_updates += 1;
                None
            }
            Ok(Payload::Update(_)) if moved_from(record).is_some() => {
                self.moved_updates += 1;
                self.moved_images += block_image_bytes(&record.blocks[0]);
                Some((EntryCause::UpdateElsewhere, 1))
            }
            Ok(Payload::Update(_)) => {
                self.same_page_updates += 1;
                Some((EntryCause::UpdateOnPage, 1))
            }
            _ => None,
        }
    }

    /// Counts an index's record, which belongs to the last rows of its transaction. `walden-explain` counts
    /// the entries of updates by the same rule (`collect/evidence.rs`), for all tables and B-tree indexes.
    /// Vacuum has no transaction, and the images of an index build belong to no single row.
    fn count_index_record(&mut self, record: &Record<'_>, last_rows: Option<&mut LastRows>) {
        let images = image_bytes(record);
        let plain = u64::from(record.header.total_len).saturating_sub(images);
        if record.header.rmid == rmid::XLOG && record.rmgr_info() == info::xlog::FPI {
            return;
        }
        self.index_images += images;
        self.index_plain += plain;
        let Some(last) = last_rows.filter(|_| record.header.xid != 0 && record.header.rmid != rmid::XLOG)
        else {
            return;
        };
        let entries = match last.cause {
            EntryCause::Insert => &mut self.inserted,
            EntryCause::UpdateOnPage => &mut self.updated_on_page,
            EntryCause::UpdateElsewhere => &mut self.updated_elsewhere,
        };
        entries.rows += std::mem::take(&mut last.rows);
        entries.plain += plain;
        entries.images += images;
    }

    /// Returns the index bytes for each row that gets entries, and for all non-HOT updates within a page and
    /// to another page. `scale` is the factor of images. Bytes that belong to no row, such as vacuum's, are
    /// distributed in proportion.
    fn index_bytes(&self, scale: f64) -> IndexBytes {
        let all = self.index_plain as f64 + scale * self.index_images as f64;
        let known = [self.inserted, self.updated_on_page, self.updated_elsewhere];
        let of = |entries: IndexEntries| entries.plain as f64 + scale * entries.images as f64;
        let (rows, known_bytes): (u64, f64) =
            (known.iter().map(|one| one.rows).sum(), known.into_iter().map(of).sum());
        if rows == 0 || known_bytes <= 0.0 {
            let row = all / self.index_entries().max(1.0);
            let (on_page, elsewhere) = (self.same_page_updates as f64, self.moved_updates as f64);
            return IndexBytes { row, on_page: on_page * row, elsewhere: elsewhere * row };
        }
        let factor = all / known_bytes;
        IndexBytes {
            row: all / rows as f64,
            on_page: of(self.updated_on_page) * factor,
            elsewhere: of(self.updated_elsewhere) * factor,
        }
    }

    /// Returns the number of index tuples that the table's changes insert into an index that exists all the
    /// time.
    fn index_entries(&self) -> f64 {
        (self.inserts + self.same_page_updates + self.moved_updates) as f64
    }

    /// Returns the share of updates that can be HOT: among the updates whose page had space, that of HOT
    /// ones. The others changed an indexed column.
    fn hot_share(&self) -> f64 {
        /// With fewer, all are assumed to be HOT.
        const MIN_UPDATES: u64 = 20;
        let with_space = self.hot_updates + self.same_page_updates;
        if with_space < MIN_UPDATES { 1.0 } else { self.hot_updates as f64 / with_space as f64 }
    }

    fn not_hot_text(&self) -> String {
        match self.hot_share() {
            share if share >= 1.0 => String::new(),
            share => format!(
                "; of the updates whose page had space, {:.0} % are not HOT, because they changed an indexed column",
                100.0 * (1.0 - share)
            ),
        }
    }

    /// Returns the mean fill of the observed pages, in percent.
    fn fill_percent(&self) -> f64 {
        100.0 * (1.0 - self.free as f64 / (self.pages_seen.max(1) as f64 * PAGE_BYTES as f64))
    }
}

/// Index bytes: per row, and for non-HOT updates within a page and to another page.
struct IndexBytes {
    row: f64,
    on_page: f64,
    elsewhere: f64,
}

/// Returns the effect of a change on a prediction. `actual` contains the bytes of the trace, to which the
/// counts refer.
pub fn effect(
    (change, counts): &(ObjectChange, Counts),
    settings: &Settings,
    prediction: &Prediction,
    actual: &Buckets,
) -> ObjectEffect {
    let images = |buckets: &Buckets| buckets.get(Bucket::CheckpointImages) as f64;
    let scale = if images(actual) > 0.0 { images(&prediction.buckets) / images(actual) } else { 0.0 };
    let index_bytes = counts.index_bytes(scale);
    let entries = counts.index_entries().max(1.0);
    let (best, worst, why) = match &change.change {
        Change::DropIndex(_) => (
            -index_bytes.on_page,
            0.0,
            format!(
                "its own records are removed from the prediction; at best the {} non-HOT updates within a page become HOT and \
                 insert nothing into the other indexes",
                counts.same_page_updates
            ),
        ),
        Change::FillFactor(percent) => {
            let (moved, hot) = (counts.moved_updates as f64, counts.hot_updates as f64);
            let table_images = scale * counts.table_images as f64;
            let (fill, wanted) = (counts.fill_percent().max(1.0), f64::from((*percent).max(1)));
            let fewer_rows = wanted.min(fill) / wanted.max(fill);
            let (less, more) = ((1.0 - fewer_rows) * table_images, (1.0 / fewer_rows - 1.0) * table_images);
            // Updates that change an indexed column stay within their page at best, and insert into the
            // indexes all the same.
            let hot_share = counts.hot_share();
            let hot_at_best = (moved * hot_share).round() as u64;
            let saved = (index_bytes.elsewhere + scale * counts.moved_images as f64) * hot_share
                + MOVED_UPDATE * moved;
            if wanted < fill {
                let why = format!(
                    "pages are {fill:.0} % full; at best the {} updates that moved their tuple to another page find free space on \
                     its own page, {hot_at_best} of them become HOT ({} are), and images have a larger hole; at worst none does, and the tuples \
                     are spread over more pages, each with its image{}",
                    counts.moved_updates,
                    counts.hot_updates,
                    counts.not_hot_text()
                );
                (-saved - less, more, why)
            } else {
                let moves =
                    hot * index_bytes.row + MOVED_UPDATE * hot + table_images.min(hot * PAGE_BYTES as f64);
                let why = format!(
                    "pages are {fill:.0} % full, which may be less than the table's fillfactor: at best the tuples are on fewer pages, \
                     with fewer images, or, if its fillfactor is higher, {hot_at_best} of the {} updates that moved their tuple become \
                     HOT; at worst images have a smaller hole, and the {} HOT updates find no free space and move their tuple to \
                     another page{}",
                    counts.moved_updates,
                    counts.hot_updates,
                    counts.not_hot_text()
                );
                // A page that was filled to 100 % has free space once its dead tuples are pruned.
                let from_full =
                    if wanted < 100.0 { saved + (1.0 - wanted / 100.0) * table_images } else { 0.0 };
                (-less.max(from_full), more + moves, why)
            }
        }
        Change::AddIndex(key) => {
            let (best, worst) = index_added(*key, counts, settings, prediction, index_bytes.row);
            let why = format!(
                "{} index tuples; at best its keys are ascending, at worst they are random and each HOT update ({}) changes one",
                entries as u64, counts.hot_updates
            );
            (best, worst, why)
        }
    };
    let best = best - if best < 0.0 { other_checkpoints(-best, settings, prediction) } else { 0.0 };
    let worst = worst + if worst > 0.0 { other_checkpoints(worst, settings, prediction) } else { 0.0 };
    ObjectEffect { what: change.what.clone(), best_bytes: best as i64, worst_bytes: worst as i64, why }
}

/// Returns the bytes of images of the checkpoints that are added or avoided if the WAL grows or shrinks by
/// `bytes`.
fn other_checkpoints(bytes: f64, settings: &Settings, prediction: &Prediction) -> f64 {
    let distance = settings.checkpoint_segments() as f64 * settings.segment_size.bytes() as f64;
    if prediction.bytes as f64 + bytes < distance {
        return 0.0;
    }
    let cycles = prediction.checkpoints.len() as f64 + 1.0;
    (bytes / distance).ceil() * prediction.buckets.get(Bucket::CheckpointImages) as f64 / cycles
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
    let entries = counts.index_entries();
    let splits = |entries: f64, fill: f64, moved: f64| {
        entries * (tuple + LINE_POINTER) / (page * fill) * (SPLIT + moved)
    };
    let best = entries * record + splits(entries, RIGHTMOST_FILL, page * (1.0 - RIGHTMOST_FILL));

    let hot = counts.hot_updates as f64;
    let worst_entries = entries + hot;
    let mean_line_pointers = counts.line_pointers as f64 / counts.pages_seen.max(1) as f64;
    let rows = (counts.pages as f64 * mean_line_pointers).max(worst_entries);
    let leaves = (rows * (tuple + LINE_POINTER) / (page * USUAL_FILL)).max(1.0);
    let cycles = prediction.checkpoints.len() as f64 + 1.0;
    // Expected number of leaves that random keys touch at least once per checkpoint cycle.
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

    /// COPY before the index was built adds no entries: all of the index's records belong to updates.
    #[test]
    fn rows_from_before_an_index_take_none_of_its_bytes() {
        let counts = Counts {
            inserts: 100_000,
            same_page_updates: 500,
            moved_updates: 1500,
            index_plain: 120_000,
            index_images: 2_000_000,
            updated_on_page: IndexEntries { rows: 500, plain: 25_000, images: 500_000 },
            updated_elsewhere: IndexEntries { rows: 1500, plain: 75_000, images: 1_500_000 },
            ..Counts::default()
        };
        let bytes = counts.index_bytes(1.0);
        assert_eq!(bytes.row as u64, 2_120_000 / 2000);
        // Vacuum's 20,000 are distributed.
        assert_eq!((bytes.on_page.round() as u64, bytes.elsewhere.round() as u64), (530_000, 1_590_000));
        let unknown = Counts {
            inserts: 2000,
            updated_on_page: IndexEntries::default(),
            updated_elsewhere: IndexEntries::default(),
            ..counts
        };
        assert_eq!(unknown.index_bytes(1.0).elsewhere as u64, 2_120_000 * 1500 / 4000);
    }

    #[test]
    fn rows_of_a_copy_are_remembered_until_their_entries_come() {
        let mut last_rows = FxHashMap::default();
        for _ in 0..20 {
            remember_rows(&mut last_rows, 7, EntryCause::Insert, 75);
        }
        assert_eq!(last_rows[&7].rows, MAX_BUFFERED_ROWS);
        remember_rows(&mut last_rows, 7, EntryCause::UpdateElsewhere, 1);
        remember_rows(&mut last_rows, 7, EntryCause::UpdateElsewhere, 1);
        assert_eq!(last_rows[&7].rows, 1);
    }

    #[test]
    fn effects_are_ranges_from_best_to_worst() {
        let settings = Settings::default_of(Major::V15);
        let counts = Counts {
            inserts: 1000,
            hot_updates: 500,
            same_page_updates: 100,
            moved_updates: 400,
            table_images: 1_000_000,
            moved_images: 100_000,
            index_plain: 96_000,
            index_images: 404_000,
            pages: 100,
            pages_seen: 100,
            line_pointers: 6000,
            free: 100 * 8192 / 20,
            ..Counts::default()
        };
        let same = prediction(200, 1_600_000);
        let of = |kind| effect(&(change(kind), counts), &settings, &same, &same.buckets);
        let fill = of(Change::FillFactor(80));
        // Of 400 of 1500 entries' share of the indexes, and of the target pages of moves, five sixths; and 15
        // of 95 parts of images.
        assert!(
            fill.best_bytes < -(500_000 * 4 / 15 * 5 / 6) - 157_000 && fill.best_bytes > -400_000,
            "{fill:?}"
        );
        // Updates that change an indexed column cannot be HOT.
        let never_hot = Counts { hot_updates: 0, same_page_updates: 600, ..counts };
        let fill = effect(&(change(Change::FillFactor(80)), never_hot), &settings, &same, &same.buckets);
        assert!(fill.best_bytes > -200_000 && fill.why.contains("0 of them become HOT"), "{fill:?}");
        let fill = of(Change::FillFactor(80));
        assert!((187_000..188_000).contains(&fill.worst_bytes), "15 of 80 parts more pages: {fill:?}");
        let fuller = of(Change::FillFactor(100));
        assert!((-51_000..-49_000).contains(&fuller.best_bytes), "5 of 100 parts fewer images: {fuller:?}");
        // Entries of 500 more updates, and an image for each page that they move to.
        assert!(fuller.worst_bytes > 500_000 / 3 + 1_000_000, "{fuller:?}");
        // This WAL is long enough for checkpoints by volume: the error includes one checkpoint more or fewer.
        let long = Prediction { bytes: 600 << 20, ..same.clone() };
        let with_checkpoint = effect(&(change(Change::AddIndex(8)), counts), &settings, &long, &same.buckets);
        let without = of(Change::AddIndex(8));
        assert_eq!(with_checkpoint.worst_bytes - without.worst_bytes, 1_600_000);
        assert_eq!(with_checkpoint.best_bytes, without.best_bytes);
        // Pages that are 95 % full may belong to a table with fillfactor 100: then fewer updates are HOT.
        let between = of(Change::FillFactor(97));
        assert!(between.best_bytes < -(500_000 * 4 / 15 * 5 / 6), "{between:?}");
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
