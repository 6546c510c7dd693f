#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! A segment goes through these stages, and back in the reverse order:
//!
//! ```text
//!   segment   framing/    page headers and padding, which follow from the records
//!      |      coder/      a segment's records in their order, and bytes that are no records
//!      v
//!   records   record/     headers, transaction, main data, blocks, full-page images
//!      |      move_to_front.rs, zigzag.rs, leb128.rs
//!      v
//! predictors  predict/    heap/, index/, gin/: predict block data and page items, code the residuals
//!      |      page/       pages without a base, item by item; the delta of an image against its base page
//!      |      value/      attributes of a known type: jsonb, tsvector, values that the server compressed
//!      |      tuple/      the layout of PostgreSQL's tuples (without coder)
//!      v
//!   columns   columns/    streams of values of one kind, which column_kind.rs lists
//!      |      meter.rs    counts their bytes by class and relation
//!      v
//!   entropy   entropy/    compression of columns: zstd, or context mixing at the higher levels
//!      v
//!  container  container/  files (`.wlz`) and packs (`.wpk`): frames, checksums, index
//! ```
//!
//! All of them obey the limits of decoding (`limits.rs`). Each special case in them (`cases.rs`) can be left out, to measure what it gains
//! (`measure/`).
//!
//! **Framing** (`framing/`, `coder/`). [`coder::Encoder`] reads a segment's records. Page headers, links between records and
//! alignment are derived when decoding: encoding derives them too and compares. What cannot be coded as records is
//! compressed as bytes.
//!
//! **Records** (`record/`). A record is its shape (the parts of its headers that are no numbers), its transaction, its main data
//! and its blocks. Relations are numbers, blocks and transactions ranks in move-to-front lists; transactions and times in main data
//! are deltas against earlier ones. Lengths and the checksum are derived. Both directions replay each record
//! (`walden-redo`), so the pages before the next one are known to both.
//!
//! **Predictors** (`predict/`). For each access method, `predict::Predictor` is implemented for the block
//! data of its records and for the items of its pages. Attributes of tuples are found by schemas that encoding infers from the tuples
//! (`tuple/schema.rs`, `predict/attributes/`); an index tuple's key is predicted from its heap tuple (`predict/index/`), a
//! GIN entry from the pending list (`predict/gin/`). Runs of similar items are coded field by field at once (`predict/run.rs`).
//!
//! **Full-page images** (`record/images.rs`). An image displaces the data of its block, so encoding predicts that data from
//! the page before and the image, and both directions replay the record without images. The *delta* of the image against the
//! replayed page is coded in `page/delta.rs`. Where there is no such page, the base of the delta is the page before the record, or what
//! became of its items (`page/against_base.rs`); and if that is not known either, the image's page coded item by item (`page/mod.rs`).
//!
//! **Columns** (`columns/`). All of these are written once for both directions, against the trait `Coder`: the encoder
//! appends a value to a column, the decoder reads it from there. `Option` sources (`Some` when encoding) make the direction
//! explicit. Both directions create the same columns in the same order, so that files do not say what a column holds.
//!
//! **Entropy coding** (`entropy/`). At the end of a segment, columns of one class are compressed together.
//!
//! **Container** (`container/`). Compressed files and packs of them, as `docs/format.md` specifies; `docs/format-model.md`
//! specifies the columns.
#![deny(unsafe_code)]

mod cases;
pub mod coder;
mod column_kind;
mod columns;
pub mod container;
mod entropy;
mod framing;
mod leb128;
mod limits;
pub mod measure;
mod meter;
mod move_to_front;
mod page;
mod predict;
mod record;
mod tuple;
mod value;
mod zigzag;

pub use container::{compress, decompress};

/// What is wrong with a compressed form that no encoder writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt(pub &'static str);

impl Corrupt {
    /// The compressed form may be right: memory for decompressing it could not be allocated. The reader of a container reports this as
    /// [`container::Error::Io`].
    pub(crate) const NO_MEMORY: Corrupt = Corrupt("cannot allocate memory to decompress a part");
}

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Corrupt {}

/// Creates the error. A function that is not inlined, so that decoding takes less of the processor's instruction cache.
#[cold]
#[inline(never)]
fn corrupt(what: &'static str) -> Corrupt {
    Corrupt(what)
}
