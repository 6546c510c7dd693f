//! For measurements and tests of the codec, not for programs that compress: nothing here is stable.
//!
//! An encoder or decoder without some of its special cases says what these gain ([`Cases`], for
//! [`Encoder::with_cases`](crate::coder::Encoder::with_cases) and [`Decoder::with_cases`](crate::coder::Decoder::with_cases)).
//! [`Statistics`] are the sizes of what an encoder compressed. [`ColumnDecoder`] stops at the columns, so that an independent decoder can be
//! compared with it.

mod column_decoder;

pub use self::column_decoder::{ColumnContent, ColumnDecoder};
pub use crate::cases::{Case, Cases};
pub use crate::entropy::Statistics;
