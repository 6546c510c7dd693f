//! The table `blocks`.

use arrow::array::ArrayRef;
use arrow::buffer::NullBuffer;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use walden_explain::tally::{COMPRESSIONS, ImageCause};
use walden_format::record::{BlockRef, Image, Record, block_flags};
use walden_format::rmgr::{Kind, KindTable};
use walden_format::simple::{self, SimpleRecord};

use crate::columns::{Files, Kinds, Numbers, bools, labels, numbers, times};
use crate::records::nonzero;
use crate::rows::{ColumnSelection, Place, Rows, fork_column};

/// Rows of `blocks`.
pub(crate) struct BlockRows {
    len: usize,
    start: Numbers<u64>,
    time: Numbers<i64>,
    xid: Numbers<u32>,
    kind: Kinds,
    id: Numbers<u8>,
    file: Files,
    fork: Numbers<u8>,
    block: Numbers<u32>,
    bytes: Numbers<u32>,
    data: Numbers<u16>,
    image: Numbers<Option<(ImageCause, Image)>>,
    flags: Numbers<u8>,
}

const FILE_COLUMNS: [&str; 7] =
    ["relation", "relation_kind", "table_name", "database_name", "tablespace", "database", "relfilenumber"];
const IMAGE_COLUMNS: [&str; 4] = ["fpi_length", "fpi_cause", "fpi_compression", "hole_length"];

impl BlockRows {
    fn add(&mut self, block: &BlockRef, image: Option<(ImageCause, Image)>) {
        self.len += 1;
        self.id.push(block.id);
        self.file.push(block.relation);
        self.fork.push(block.fork.0);
        self.block.push(block.block);
        let of_image = block.image.map_or(0, |image| u32::from(image.header_len) + u32::from(image.len));
        self.bytes.push(u32::from(block.header_len) + u32::from(block.data_len) + of_image);
        self.data.push(block.data_len);
        self.image.push(image);
        self.flags.push(block.flags);
    }

    fn image_keys(&self, key: impl Fn(&(ImageCause, Image)) -> i32) -> Vec<i32> {
        self.images(key).map(|key| key.unwrap_or(-1)).collect()
    }

    fn images<T>(&self, value: impl Fn(&(ImageCause, Image)) -> T) -> impl Iterator<Item = Option<T>> {
        self.image.values.iter().map(move |image| image.as_ref().map(&value))
    }
}

impl Rows for BlockRows {
    fn new(wanted: &ColumnSelection, rows: usize) -> BlockRows {
        let wants = |names: &[&str]| wanted.any(names);
        BlockRows {
            len: 0,
            start: Numbers::new(wants(&["start_lsn"]), rows),
            time: Numbers::new(wants(&["time"]), rows),
            xid: Numbers::new(wants(&["xid"]), rows),
            kind: Kinds::new(wants(&["resource_manager", "record_type"]), rows),
            id: Numbers::new(wants(&["block_id"]), rows),
            file: Files::new(wants(&FILE_COLUMNS), rows),
            fork: Numbers::new(wants(&["fork"]), rows),
            block: Numbers::new(wants(&["block"]), rows),
            bytes: Numbers::new(wants(&["bytes"]), rows),
            data: Numbers::new(wants(&["data_length"]), rows),
            image: Numbers::new(wants(&IMAGE_COLUMNS), rows),
            flags: Numbers::new(wants(&["will_init"]), rows),
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn record(&mut self, record: &Record<'_>, kind: Kind, images: &KindTable, time: i64) {
        for block in record.blocks {
            self.start.push(record.lsn.0);
            self.time.push(time);
            self.xid.push(record.header.xid);
            self.kind.push(kind);
            self.add(
                block,
                block
                    .image
                    .map(|image| (ImageCause::classify(&image, images, kind.index(), block.id), image)),
            );
        }
    }

    #[inline(always)]
    fn simple(&mut self, record: &SimpleRecord<'_>, kind: Kind, time: i64) {
        if record.has_block() {
            self.len += 1;
            self.start.push(record.lsn.0);
            self.time.push(time);
            self.xid.push(record.header().xid);
            self.kind.push(kind);
            self.id.push(0);
            self.file.push(record.relation());
            self.fork.push(record.fork().0);
            self.block.push(record.block());
            self.bytes.push(simple::BLOCK_HEADER as u32 + u32::from(record.data_len()));
            self.data.push(record.data_len());
            self.image.push(None);
            if self.flags.wanted() {
                let flags = record.as_record(|record| record.blocks.first().map(|block| block.flags));
                self.flags.push(flags.unwrap_or_default());
            }
        }
    }

    fn times(&mut self) -> &mut [i64] {
        &mut self.time.values
    }

    fn column(&self, name: &str, place: &Place<'_>) -> ArrayRef {
        match name {
            "start_lsn" => self.start.map::<UInt64Type>(|lsn| lsn),
            "time" => times(self.time.values.iter().copied()),
            "xid" => nonzero(&self.xid.values),
            "block_id" => self.id.map::<UInt8Type>(|id| id),
            "fork" => fork_column(&self.fork.values, |_| true),
            "block" => self.block.map::<UInt32Type>(|block| block),
            "bytes" => self.bytes.map::<UInt32Type>(|bytes| bytes),
            "data_length" => self.data.map::<UInt16Type>(|bytes| bytes),
            "fpi_length" => {
                numbers::<UInt16Type>(self.images(|image| image.1.len).map(Option::unwrap_or_default), None)
            }
            "hole_length" => {
                let nulls = NullBuffer::from_iter(self.image.values.iter().map(Option::is_some));
                let holes = self.images(|image| image.1.hole_len).map(Option::unwrap_or_default);
                numbers::<UInt16Type>(holes, Some(nulls))
            }
            "fpi_cause" => {
                labels(&self.image_keys(|image| image.0 as i32), &ImageCause::ALL, |cause| Some(cause.name()))
            }
            "fpi_compression" => {
                labels(&self.image_keys(|image| image.1.compression as i32), &COMPRESSIONS, |row| Some(row.1))
            }
            "will_init" => bools(self.flags.values.iter().map(|flags| flags & block_flags::WILL_INIT != 0)),
            _ => place
                .column(name, self.len)
                .or_else(|| place.kind_column(name, &self.kind))
                .or_else(|| place.relation_column(name, &self.file))
                .unwrap_or_else(|| unreachable!("blocks has no column {name}")),
        }
    }
}
