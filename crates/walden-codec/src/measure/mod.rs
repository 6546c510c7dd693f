//! Measurements and tests of the codec. Programs that only compress do not need this module, and its
//! interface is not stable.
//!
//! Disabling special cases of an encoder and decoder measures their gain ([`Cases`], for
//! [`Encoder::with_cases`](crate::coder::Encoder::with_cases) and
//! [`Decoder::with_cases`](crate::coder::Decoder::with_cases)). [`Statistics`] are the sizes of an encoder's
//! columns. [`ColumnDecoder`] stops at the columns, so that an independent decoder can be compared with it.

mod column_decoder;

pub use self::column_decoder::{ColumnContent, ColumnDecoder};
pub use crate::cases::{Case, Cases};
pub use crate::entropy::Statistics;
