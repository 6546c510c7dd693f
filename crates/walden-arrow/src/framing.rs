//! The tables `framing` and `segments`: sums over segments.

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{UInt32Type, UInt64Type};
use std::sync::Arc;
use walden_explain::tally::Bucket;
use walden_source::inventory::{Run, SegmentFile};

use crate::columns::{label_rows, numbers, times};
use crate::segments::ReadSegment;
use crate::visitor::SegmentSums;

/// Rows that are sums over segments.
pub(crate) trait SumRows {
    /// Adds the rows of a segment.
    fn add(&mut self, run: &Run, index: usize, read: &ReadSegment<()>);
    fn len(&self) -> usize;
    fn column(&self, name: &str) -> ArrayRef;
}

/// Rows of `framing`.
#[derive(Default)]
pub(crate) struct FramingRows(Vec<(u32, String, u64, Bucket, u64)>);

impl SumRows for FramingRows {
    fn add(&mut self, run: &Run, index: usize, read: &ReadSegment<()>) {
        let segment = &run.segments[index];
        for bucket in Bucket::all().filter(|bucket| read.framing.get(*bucket) > 0) {
            let bytes = read.framing.get(bucket);
            self.0.push((segment.name.timeline, segment.name.to_string(), segment.start.0, bucket, bytes));
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn column(&self, name: &str) -> ArrayRef {
        match name {
            "timeline" => numbers::<UInt32Type>(self.0.iter().map(|row| row.0), None),
            "segment" => texts(self.0.iter().map(|row| row.1.as_str())),
            "start_lsn" => numbers::<UInt64Type>(self.0.iter().map(|row| row.2), None),
            "bucket" => label_rows(self.0.iter().map(|row| Some(row.3.name()))),
            "bytes" => numbers::<UInt64Type>(self.0.iter().map(|row| row.4), None),
            _ => unreachable!("framing has no column {name}"),
        }
    }
}

/// Rows of `segments`.
#[derive(Default)]
pub(crate) struct SegmentRows(Vec<(SegmentFile, SegmentSums, u64)>);

impl SegmentRows {
    fn sums(&self, sum: impl Fn(&SegmentSums) -> u64) -> ArrayRef {
        numbers::<UInt64Type>(self.0.iter().map(|row| sum(&row.1)), None)
    }
}

impl SumRows for SegmentRows {
    fn add(&mut self, run: &Run, index: usize, read: &ReadSegment<()>) {
        self.0.push((run.segments[index].clone(), read.sums.clone(), read.framing.total()));
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn column(&self, name: &str) -> ArrayRef {
        let rows = &self.0;
        match name {
            "timeline" => numbers::<UInt32Type>(rows.iter().map(|row| row.0.name.timeline), None),
            "segment" => texts(rows.iter().map(|row| row.0.name.to_string())),
            "path" => texts(rows.iter().map(|row| row.0.path.display().to_string())),
            "system_identifier" => numbers::<UInt64Type>(rows.iter().map(|row| row.0.system_id), None),
            "start_lsn" => numbers::<UInt64Type>(rows.iter().map(|row| row.0.start.0), None),
            "bytes" => numbers::<UInt64Type>(rows.iter().map(|row| row.1.record_bytes + row.2), None),
            "records" => self.sums(|sums| sums.records),
            "record_bytes" => self.sums(|sums| sums.record_bytes),
            "framing_bytes" => numbers::<UInt64Type>(rows.iter().map(|row| row.2), None),
            "fpi_length" => self.sums(|sums| sums.image_bytes),
            "commits" => self.sums(|sums| sums.commits),
            "aborts" => self.sums(|sums| sums.aborts),
            "first_time" => times(rows.iter().map(|row| row.1.times.0)),
            "last_time" => times(rows.iter().map(|row| row.1.times.1)),
            "stored_bytes" => numbers::<UInt64Type>(rows.iter().map(|row| row.0.size_on_disk), None),
            "compression" => label_rows(rows.iter().map(|row| Some(row.0.compression.to_string()))),
            _ => unreachable!("segments has no column {name}"),
        }
    }
}

pub(crate) fn texts<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(texts))
}
