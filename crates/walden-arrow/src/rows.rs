//! The common part of the tables of records and of blocks: columns filled by a visitor, and the batches made
//! of these columns.

use arrow::array::ArrayRef;
use walden_explain::group::Owner;
use walden_explain::{Labels, Part};
use walden_format::lsn::{SegmentName, Timeline};
use walden_format::record::{Fork, Record, RelFileLocator};
use walden_format::rmgr::{Kind, KindTable};
use walden_format::simple::SimpleRecord;
use walden_format::version::Major;
use walden_source::names::Names;

use crate::columns::{Files, Kinds, constant_label, labels, numbers};
use crate::schema::Table;

/// The wanted columns of a table.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSelection {
    pub table: Table,
    /// Indexes of columns in the order of the batch.
    pub columns: Vec<usize>,
}

impl ColumnSelection {
    pub fn any(&self, names: &[&str]) -> bool {
        self.columns.iter().any(|index| names.contains(&self.table.columns()[*index].name))
    }
}

/// Rows of a table that are derived from records.
pub(crate) trait Rows: Send + Sized {
    /// Creates an empty set of rows with capacity for `rows`.
    fn new(wanted: &ColumnSelection, rows: usize) -> Self;

    /// Number of rows.
    fn len(&self) -> usize;

    /// Adds the rows of a record. `time` is the time of the last transaction end.
    fn record(&mut self, record: &Record<'_>, kind: Kind, images: &KindTable, time: i64);

    /// Same as [`Rows::record`].
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64);

    /// The times, which are [`crate::columns::NO_TIME`] before the segment's first transaction end.
    fn times(&mut self) -> &mut [i64];

    /// Creates an array of a column.
    fn column(&self, name: &str, place: &Place<'_>) -> ArrayRef;
}

/// The common properties of a segment's rows.
pub(crate) struct Place<'a> {
    pub timeline: Timeline,
    pub segment: SegmentName,
    pub version: Major,
    pub names: &'a Names,
}

impl Place<'_> {
    /// Creates an array of a column that has the same value in each row.
    pub fn column(&self, name: &str, rows: usize) -> Option<ArrayRef> {
        match name {
            "timeline" => Some(numbers::<arrow::datatypes::UInt32Type>(vec![self.timeline; rows], None)),
            "segment" => Some(constant_label(&self.segment.to_string(), rows)),
            _ => None,
        }
    }

    /// Creates an array of a column about kinds of record.
    pub fn kind_column(&self, name: &str, kinds: &Kinds) -> Option<ArrayRef> {
        let (keys, values) = (&kinds.column.keys.values, &kinds.column.values);
        match name {
            "resource_manager" => {
                Some(labels(keys, values, |kind| Some(kind.resource_manager(self.version))))
            }
            "record_type" => Some(labels(keys, values, |kind| Some(kind.name(self.version)))),
            _ => None,
        }
    }

    /// Creates an array of a column about relations.
    pub fn relation_column(&self, name: &str, files: &Files) -> Option<ArrayRef> {
        use arrow::datatypes::UInt32Type;
        let (keys, values) = (&files.column.keys.values, &files.column.values);
        match name {
            "tablespace" => Some(files.numbers::<UInt32Type>(|file| file.tablespace)),
            "database" => Some(files.numbers::<UInt32Type>(|file| file.database)),
            "relfilenumber" => Some(files.numbers::<UInt32Type>(|file| file.relation)),
            "relation" | "relation_kind" | "table_name" | "database_name" => {
                let named = Named::new(self.names);
                Some(labels(keys, values, |file| named.text(name, *file)))
            }
            _ => None,
        }
    }
}

/// Creates an array of forks.
pub(crate) fn fork_column(forks: &[u8], has_block: impl Fn(usize) -> bool) -> ArrayRef {
    let values: Vec<Fork> = (0..=u8::MAX >> 4).map(Fork).collect();
    let key = |(row, fork): (usize, &u8)| if has_block(row) { i32::from(*fork) } else { -1 };
    let keys: Vec<i32> = forks.iter().enumerate().map(key).collect();
    labels(&keys, &values, |fork| Some(fork.to_string()))
}

/// Names of files' relations.
pub(crate) struct Named<'a> {
    labels: Labels<'a>,
}

impl Named<'_> {
    pub fn new(names: &Names) -> Named<'_> {
        Named { labels: Labels::from_names(names, false) }
    }

    /// Returns the text of the column `name` for a file.
    pub fn text(&self, name: &str, file: RelFileLocator) -> Option<String> {
        let owner = Owner::Relation(file, Fork::MAIN);
        match name {
            "relation" => Some(self.labels.owner(owner).text),
            "table_name" => Some(self.labels.table_of(owner).text),
            "database_name" => self.labels.owner(owner).database,
            _ => kind_text(self.labels.owner(owner).part).map(str::to_owned),
        }
    }
}

fn kind_text(part: Part) -> Option<&'static str> {
    match part {
        Part::Table => Some("table"),
        Part::Index => Some("index"),
        Part::Toast => Some("toast"),
        Part::ToastIndex => Some("toast_index"),
        Part::Sequence => Some("sequence"),
        Part::MaterializedView => Some("materialized_view"),
        _ => None,
    }
}
