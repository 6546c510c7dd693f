#![doc = include_str!("../README.md")]
//!
//! # Architecture
//!
//! Compression passes a segment through these stages, decompression in reverse order:
//!
//! ```text
//!   segment   framing/    page headers and padding, which follow from the records
//!      |      coder/      records of a segment in order, and bytes outside of records
//!      v
//!   records   record/     headers, transaction, main data, blocks, full-page images
//!      |      move_to_front.rs, zigzag.rs, leb128.rs
//!      v
//! predictors  predict/    heap/, index/, gin/: predict block data and page items, code the residuals
//!      |      page/       pages without a base, item by item; deltas of full-page images against base pages
//!      |      value/      attributes of a known type: jsonb, tsvector, values that the server compressed
//!      |      tuple/      layouts of PostgreSQL's tuples (no coding)
//!      v
//!   columns   columns/    streams of values of one kind; column_kind.rs lists the kinds
//!      |      meter.rs    counts their bytes by class and relation
//!      v
//!   entropy   entropy/    compression of columns: zstd, or context mixing at the higher levels
//!      v
//!  container  container/  files (`.wlz`) and packs (`.wpk`): frames, checksums, index
//! ```
//!
//! All stages obey the limits of decoding (`limits.rs`).
//!
//! **Framing** (`framing/`, `coder/`). [`coder::Encoder`] reads the records of a segment. Decoding derives
//! page headers, links between records and alignment. Encoding derives them too and compares. Bytes that
//! cannot be coded as records are compressed as bytes.
//!
//! **Records** (`record/`). A record is its shape (the non-numeric parts of its headers), its transaction,
//! its main data and its blocks. Relations are coded as numbers, blocks and transactions as ranks in
//! move-to-front lists, and transactions and times in main data as deltas against earlier transactions and
//! times. Lengths and the checksum are derived. Encoding and decoding both replay each record
//! (`walden-redo`), so both know the pages before the next record.
//!
//! **Predictors** (`predict/`). Each access method implements `predict::Predictor` for the block data of its
//! records and for the items of its pages. Encoding infers schemas from tuples and codes attributes by them
//! (`tuple/schema.rs`, `predict/attributes/`). The key of an index tuple is predicted from its heap tuple
//! (`predict/index/`), a GIN entry from the pending list (`predict/gin/`). Runs of similar items are coded
//! field by field (`predict/run.rs`).
//!
//! **Full-page images** (`record/images.rs`). An image replaces the data of its block. Encoding predicts that
//! data from the page before the record and the image, so both directions replay the record without images.
//! `page/delta.rs` codes the *delta* of the image against the replayed page. If the page cannot be
//! replayed, the base is the page before the record, compared byte by byte or item by item
//! (`page/against_base.rs`). Without any base, the image's page is coded item by item (`page/mod.rs`).
//!
//! **Columns** (`columns/`). The stages above are written once for both directions, against the trait
//! `Coder`: the encoder appends a value to a column, the decoder reads the value from the same column.
//! `Option` sources (`Some` when encoding) make the direction explicit. Both directions create the same
//! columns in the same order, so files do not store the meaning of a column.
//!
//! **Entropy coding** (`entropy/`). At the end of a segment, columns of one class are compressed together.
//!
//! **Container** (`container/`). Compressed files and packs, as `docs/format.md` specifies.
//! `docs/format-model.md` specifies the columns.
#![deny(unsafe_code)]

pub mod coder;
mod column_kind;
mod columns;
pub mod container;
mod entropy;
mod framing;
mod leb128;
mod limits;
mod meter;
mod move_to_front;
mod page;
mod predict;
mod record;
mod tuple;
mod value;
mod zigzag;

pub use container::{compress, decompress};

/// The reason why compressed bytes are invalid: no encoder writes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt(pub &'static str);

impl Corrupt {
    /// Memory allocation failure. The compressed bytes may be valid, so the reader of a container reports the
    /// failure as [`container::Error::Io`].
    pub(crate) const NO_MEMORY: Corrupt = Corrupt("cannot allocate memory to decompress a part");
}

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Corrupt {}

/// Creates a [`Corrupt`]. Not inlined, so that decoding occupies less of the processor's instruction cache.
#[cold]
#[inline(never)]
fn corrupt(what: &'static str) -> Corrupt {
    Corrupt(what)
}
