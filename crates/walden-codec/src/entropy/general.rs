//! zstd, which may refer to what came before.

use std::io::Cursor;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, ResetDirective};

use crate::Corrupt;

/// Matches reach this far back, as a power of 2: over what came before, and a part of usual length.
const WINDOW: u32 = 24;

/// Tables of the high levels have this many entries at most, as a power of 2: larger ones take more to clear than they find
/// in what a column's class has.
const MAX_ENTRIES: u32 = 21;
/// From here on, they would have more.
const LARGE_TABLES: i32 = 10;

/// The level at which tables are smaller than it has them by itself, so that a processor's own cache holds them.
const SMALL_TABLES: i32 = 3;

/// What zstd's tables are of at that level.
struct Tables {
    /// Entries, as a power of 2: of what is long, and of what is short.
    long: u32,
    short: u32,
    /// Bytes that are short.
    least: u32,
}

/// Half of what the level has: it takes a fifth less time, for 0.7 % more bytes.
const OF_TEXT: Tables = Tables { long: 16, short: 15, least: 5 };
/// Half of that again: what numbers have in common is near, and longer than by chance. Up to half of the time, and 2 % fewer to
/// 1 % more bytes.
const OF_NUMBERS: Tables = Tables { long: 15, short: 14, least: 6 };

/// How hard it is tried.
#[derive(Clone, Copy)]
pub struct Effort {
    /// zstd's level.
    pub level: i32,
    /// Whether there is text in the content, or else numbers.
    pub is_text: bool,
}

/// Compresses, and keeps the room that it took for the next part.
#[derive(Default)]
pub struct Compressor(Option<CCtx<'static>>);

impl Compressor {
    /// Compresses after `before`; nothing if that fails.
    pub fn compress(&mut self, content: &[u8], before: &[u8], effort: Effort) -> Option<Vec<u8>> {
        let mut packed = Vec::with_capacity(zstd::zstd_safe::compress_bound(content.len()));
        if !before.is_empty() {
            // One that refers to something does not live longer than that.
            let mut context = CCtx::try_create()?;
            set_effort(&mut context, effort)?;
            context.set_parameter(CParameter::WindowLog(WINDOW)).ok()?;
            context.ref_prefix(before).ok()?;
            context.compress2(&mut packed, content).ok()?;
            return Some(packed);
        }
        let context = match &mut self.0 {
            Some(context) => context,
            none => none.insert(CCtx::try_create()?),
        };
        context.reset(ResetDirective::SessionAndParameters).ok()?;
        set_effort(context, effort)?;
        context.compress2(&mut packed, content).ok()?;
        Some(packed)
    }
}

fn set_effort(context: &mut CCtx<'_>, Effort { level, is_text }: Effort) -> Option<()> {
    let mut set = |parameter| context.set_parameter(parameter).ok();
    set(CParameter::CompressionLevel(level))?;
    let (long, short) = match level {
        SMALL_TABLES => {
            let Tables { long, short, least } = if is_text { OF_TEXT } else { OF_NUMBERS };
            set(CParameter::MinMatch(least))?;
            (long, short)
        }
        LARGE_TABLES.. => (MAX_ENTRIES, MAX_ENTRIES),
        _ => return Some(()),
    };
    set(CParameter::HashLog(long))?;
    set(CParameter::ChainLog(short))?;
    Some(())
}

/// Decompresses, and keeps the room that it took for the next part.
#[derive(Default)]
pub struct Decompressor(Option<DCtx<'static>>);

impl Decompressor {
    /// Decompresses what has `raw` bytes, or fewer, after `before`; it is appended to `out`.
    pub fn decompress(
        &mut self,
        packed: &[u8],
        before: &[u8],
        raw: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let wrong = Corrupt("a part can't be decompressed");
        out.reserve(raw);
        let mut end = Cursor::new(&mut *out);
        end.set_position(end.get_ref().len() as u64);
        if !before.is_empty() {
            // One that refers to something does not live longer than that.
            let mut context = new_context().ok_or(wrong)?;
            context.ref_prefix(before).map_err(|_| wrong)?;
            context.decompress(&mut end, packed).map_err(|_| wrong)?;
            return Ok(());
        }
        let context = match &mut self.0 {
            Some(context) => context,
            none => none.insert(new_context().ok_or(wrong)?),
        };
        context.decompress(&mut end, packed).map_err(|_| wrong)?;
        Ok(())
    }
}

fn new_context<'a>() -> Option<DCtx<'a>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::WindowLogMax(27)).ok()?;
    Some(context)
}
