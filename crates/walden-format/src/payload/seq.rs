//! Sequences: the resource manager Sequence.
//!
//! Structure: `xl_seq_rec` in `commands/sequence.h`, since 19 in `commands/sequence_xlog.h`.

use super::layout::layout;
use super::listing::listing;
use super::{Fields, Payload, PayloadError};
use crate::record::{Record, RelFileLocator};

layout! {
    /// `xl_seq_rec`: the start of the main data of `LOG`. The sequence's only tuple follows, with its whole
    /// tuple header.
    XlSeqRec[12] {
        /// The sequence.
        0 relation: RelFileLocator,
    }
}

/// `LOG`: the new state of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceLog<'a> {
    /// The sequence.
    pub relation: RelFileLocator,
    /// The sequence's only tuple, with its whole tuple header.
    pub tuple: &'a [u8],
}

pub(crate) fn log<'a>(_: &Record<'a>, fields: &mut Fields<'a>) -> Result<Payload<'a>, PayloadError> {
    let relation = fields.relation("locator")?;
    Ok(Payload::SequenceLog(SequenceLog { relation, tuple: fields.rest() }))
}

listing!(SequenceLog<'_>: |it, list| list
    .field("rel", it.relation)
    .field("tuple", format_args!("{} bytes", it.tuple.len())));
