//! From columns to few bytes: rows turned into planes, and a general compressor after that; or, at higher levels, every bit
//! predicted.
//!
//! A part, as it is stored:
//!
//! ```text
//! coder       1 byte: 0 stored as it is, 1 zstd, 2 zstd after what came before in the class, 3 words as numbers and
//!             zstd, from 4 on zstd of what the model learns as well, from 8 on modelled column by column, from 16 on modelled as a whole, from 24 on words as numbers
//!             and modelled as a whole
//! raw         LEB128: bytes after decompression
//! stored      LEB128: bytes that follow
//! checksum    4 bytes: CRC-32C of what follows
//! ...
//! ```

mod general;
mod headed;
mod layout;
mod logistic;
mod modelled;
mod nibbles;
mod prefetch;
mod range;
mod rows;
mod words;

use std::ops::RangeInclusive;

use walden_format::crc::crc32c_append;

use self::general::Effort;
use self::headed::Headed;
use self::layout::{Layout, Taken};
use self::modelled::Modelled;
use crate::columns::{CLASSES, Class, Content, Form, Wanted, get_number, put_number};
use crate::{Corrupt, corrupt};

const CODER_STORED: u8 = 0;
const CODER_ZSTD: u8 = 1;
const CODER_ZSTD_AFTER: u8 = 2;
const CODER_WORDS: u8 = 3;
const CODER_LEARNED: u8 = 4;
const CODER_MODELLED: u8 = 8;
const CODER_MODELLED_CONTENT: u8 = 16;
const CODER_MODELLED_WORDS: u8 = 24;

/// zstd's level where it is only wanted if it is better than a model; and where there is so little that it takes no time.
const SECOND_LEVEL: i32 = 5;
const SMALL_LEVEL: i32 = 9;
const SMALL: usize = 64 << 10;

/// What is not of a class, in the place of one.
const DIRECTORY: usize = CLASSES.len();
const OTHER: usize = CLASSES.len() + 1;

/// Bytes of what came before that are remembered, of a class.
const MAX_BEFORE: usize = 4 << 20;
/// Bytes of them that are referred to: zstd reads them again each time, and what is alike is near. Never many more than a
/// content has itself, which else would take most of its time for what is not its own.
const NEAR_BEFORE: RangeInclusive<usize> = 64 << 10..=1 << 20;
/// Classes that have next to nothing in common with what came before.
const LIKE_NOTHING_BEFORE: [Class; 2] = [Class::Fixed, Class::RowHeaders];

/// Classes in which there may be words, those first that are text: up to a level, words are looked for in these only.
const WITH_WORDS: [Class; 4] = [Class::Text, Class::Expanded, Class::Payload, Class::ImageBytes];
const OF_TEXT: usize = 2;
const FAST: i32 = 3;
/// The highest of zstd's levels, for text and for all else: text would take three times as long at the latter, for 2 %.
const SMALLEST: i32 = 12;
const MIN_OF_NUMBERS: i32 = 16;

/// How much is spent, by level from 1 on.
const LEVELS: [Means; 9] = [
    Means::General(1),
    Means::General(2),
    Means::General(3),
    Means::General(4),
    Means::General(5),
    Means::General(SMALLEST),
    Means::Modelled(0),
    Means::Modelled(1),
    Means::Modelled(2),
];

fn has_words(class: usize, level: i32) -> bool {
    let classes = if level <= FAST { &WITH_WORDS[..OF_TEXT] } else { &WITH_WORDS };
    is_among(class, classes)
}

fn is_among(class: usize, classes: &[Class]) -> bool {
    classes.iter().any(|&other| other as usize == class)
}

/// zstd's effort for a class at a level.
fn effort_of(class: usize, level: i32) -> Effort {
    let level = match level {
        SMALLEST if class != OTHER && !is_among(class, &WITH_WORDS[..OF_TEXT]) => MIN_OF_NUMBERS,
        _ => level,
    };
    Effort { level, is_text: class == OTHER || is_among(class, &WITH_WORDS) }
}

#[derive(Clone, Copy)]
enum Means {
    /// zstd, at a level of its own.
    General(i32),
    /// Predicted, with an effort.
    Modelled(u8),
}

/// Compresses columns; remembers, from chunk to chunk, what helps with the next.
pub struct Packer {
    means: Means,
    state: State,
    zstd: general::Compressor,
    statistics: Vec<Statistics>,
}

/// What content becomes without a model.
struct General {
    coder: u8,
    raw: usize,
    packed: Vec<u8>,
}

impl General {
    /// So small that a model would take time and gain nothing worth it.
    fn is_tiny(&self) -> bool {
        self.packed.len() * 400 < self.raw
    }

    fn put(self, state: &mut State, class: usize, content: &[u8], out: &mut Vec<u8>) {
        put_part(self.coder, self.raw, &self.packed, out);
        if self.coder != CODER_WORDS && !is_among(class, &LIKE_NOTHING_BEFORE) {
            state.remember(class, content);
        }
    }
}

/// What became of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// The class.
    pub class: Class,
    /// Its columns' bytes.
    pub bytes: u64,
    /// What they were stored in.
    pub stored: u64,
}

/// What both sides remember.
struct State {
    /// Whether there is a use in that.
    goes_on: bool,
    /// Whether parts may be modelled, which takes more memory.
    may_model: bool,
    modelled: Option<Modelled>,
    /// What came before, by class.
    before: Vec<Vec<u8>>,
}

impl State {
    fn new(goes_on: bool) -> State {
        State { goes_on, may_model: true, modelled: None, before: Vec::new() }
    }

    /// The model of an effort. It is the same for all that follows each other: none is made twice.
    fn modelled(&mut self, effort: u8) -> Result<&mut Modelled, Corrupt> {
        if !self.may_model {
            return Err(corrupt("a part is modelled, but the file's level is below 7"));
        }
        let modelled = match &mut self.modelled {
            Some(modelled) => modelled,
            none => none.insert(Modelled::new(effort).ok_or_else(|| corrupt("a part's coder is unknown"))?),
        };
        if modelled.effort() == effort {
            Ok(modelled)
        } else {
            Err(corrupt("a part's coder is another than before"))
        }
    }

    fn before(&mut self, class: usize) -> &mut Vec<u8> {
        if self.before.len() <= class {
            self.before.resize(class + 1, Vec::new());
        }
        &mut self.before[class]
    }

    fn remember(&mut self, class: usize, content: &[u8]) {
        if !self.goes_on {
            return;
        }
        let before = self.before(class);
        let content = &content[content.len().saturating_sub(MAX_BEFORE)..];
        let surplus = (before.len() + content.len()).saturating_sub(MAX_BEFORE);
        before.drain(..surplus);
        before.extend_from_slice(content);
    }
}

impl Packer {
    /// `level` is from 1 to 9; `goes_on` if another chunk may follow, or another part in a class.
    pub fn new(level: u8, goes_on: bool) -> Packer {
        Packer {
            means: LEVELS[usize::from(level.clamp(1, 9)) - 1],
            state: State::new(goes_on),
            zstd: general::Compressor::default(),
            statistics: Vec::new(),
        }
    }

    /// What became of classes so far.
    pub fn statistics(&self) -> &[Statistics] {
        &self.statistics
    }

    /// Writes a directory of columns.
    pub fn directory(&mut self, directory: &[u8], out: &mut Vec<u8>) {
        self.content(DIRECTORY, directory, out);
    }

    /// Writes the columns of a class, which are empty then.
    pub fn class(&mut self, class: Class, columns: &mut [&mut Content], out: &mut Vec<u8>) {
        let before = out.len();
        let bytes = columns.iter().map(|column| column.len() as u64).sum();
        let laid_out = self.lay_out(columns);
        let content = &*laid_out;
        match self.means {
            Means::General(_) => {
                // Compressing takes their room.
                columns.iter_mut().for_each(|column| column.clear());
                self.general(class as usize, content).put(&mut self.state, class as usize, content, out);
            }
            // As one text: what is alike in it is not of one column.
            Means::Modelled(effort) if class == Class::Text => {
                let general = self.general(class as usize, content);
                if general.is_tiny() {
                    general.put(&mut self.state, class as usize, content, out);
                } else {
                    let (coder, mut content) = match words::encode(content) {
                        Some(words) => (CODER_MODELLED_WORDS, words.to_vec()),
                        None => (CODER_MODELLED_CONTENT, content.to_vec()),
                    };
                    let raw = content.len();
                    let (packed, _) =
                        self.model(effort, class as usize, &mut [(0, Form::Bytes, &mut content)]);
                    put_part(coder + effort, raw, &packed, out);
                }
            }
            Means::Modelled(effort) => {
                let mut copies: Vec<Vec<u8>> =
                    columns.iter().map(|column| column.pieces().collect::<Vec<_>>().concat()).collect();
                let mut units: Vec<(u32, Form, &mut Vec<u8>)> = columns
                    .iter()
                    .zip(&mut copies)
                    .map(|(column, bytes)| (column.number, column.form, bytes))
                    .collect();
                self.smaller(effort, class as usize, content, &mut units, out);
            }
        }
        columns.iter_mut().for_each(|column| column.clear());
        self.count(class, bytes, (out.len() - before) as u64);
    }

    fn lay_out(&mut self, columns: &[&mut Content]) -> Headed {
        let mut layout = Layout::new(columns.iter().map(|column| (column.form, column.len())));
        columns.iter().for_each(|column| layout.push(column, &mut self.zstd));
        layout.finish()
    }

    /// Writes anything as one part.
    pub fn part(&mut self, content: &[u8], out: &mut Vec<u8>) {
        self.content(OTHER, content, out);
    }

    fn content(&mut self, class: usize, content: &[u8], out: &mut Vec<u8>) {
        match self.means {
            Means::General(_) => self.general(class, content).put(&mut self.state, class, content, out),
            Means::Modelled(effort) => {
                let mut copy = content.to_vec();
                self.smaller(effort, class, content, &mut [(0, Form::Bytes, &mut copy)], out);
            }
        }
    }

    /// Writes a class's content, or the columns of it predicted, whichever is smaller.
    fn smaller(
        &mut self,
        effort: u8,
        class: usize,
        content: &[u8],
        units: &mut [(u32, Form, &mut Vec<u8>)],
        out: &mut Vec<u8>,
    ) {
        let general = self.general(class, content);
        if general.is_tiny() {
            return general.put(&mut self.state, class, content, out);
        }
        let raw = units.iter().map(|(_, _, bytes)| bytes.len()).sum();
        let (packed, chosen) = self.model(effort, class, units);
        let level = if general.packed.len() < SMALL { SMALL_LEVEL } else { SECOND_LEVEL };
        match self.zstd.compress(content, &[], effort_of(class, level)) {
            Some(zstd) if general.packed.len() < packed.len() && zstd.len() < packed.len() => {
                let learned =
                    self.with_choices(&chosen, &zstd).filter(|learned| learned.len() < packed.len());
                match learned {
                    Some(learned) => put_part(CODER_LEARNED + effort, content.len(), &learned, out),
                    None => put_part(CODER_MODELLED + effort, raw, &packed, out),
                }
            }
            _ => put_part(CODER_MODELLED + effort, raw, &packed, out),
        }
    }

    /// What a model learns without having coded it.
    fn with_choices(&mut self, chosen: &[u8], zstd: &[u8]) -> Option<Vec<u8>> {
        let packed = match chosen {
            [] => Vec::new(),
            _ => self.zstd.compress(chosen, &[], effort_of(OTHER, SMALL_LEVEL))?,
        };
        let mut learned = Vec::new();
        put_number(&mut learned, chosen.len() as u64);
        put_number(&mut learned, packed.len() as u64);
        learned.extend(packed);
        learned.extend_from_slice(zstd);
        Some(learned)
    }

    /// Columns predicted, and the choices that were made.
    fn model(
        &mut self,
        effort: u8,
        class: usize,
        units: &mut [(u32, Form, &mut Vec<u8>)],
    ) -> (Vec<u8>, Vec<u8>) {
        let mut encoder = range::Encoder::new();
        if let Ok(modelled) = self.state.modelled(effort) {
            for (number, form, bytes) in units {
                modelled.column(&mut encoder, class, *number, *form, bytes);
            }
        }
        let chosen = std::mem::take(&mut encoder.chosen);
        (encoder.finish(), chosen)
    }

    /// Without a model.
    fn general(&mut self, class: usize, content: &[u8]) -> General {
        let level = match self.means {
            Means::General(level) => level,
            Means::Modelled(_) => SECOND_LEVEL,
        };
        if has_words(class, level)
            && matches!(self.means, Means::General(_))
            && let Some(words) = words::encode(content)
            && let Some(packed) = self.zstd.compress(&words, &[], effort_of(class, level))
        {
            return General { coder: CODER_WORDS, raw: words.len(), packed };
        }
        let before = match is_among(class, &LIKE_NOTHING_BEFORE) {
            true => &[],
            false => near(self.state.before(class), content.len()),
        };
        let coder = if before.is_empty() { CODER_ZSTD } else { CODER_ZSTD_AFTER };
        let mut packed = self.zstd.compress(content, before, effort_of(class, level));
        if let Some(first) = &packed
            && matches!(self.means, Means::Modelled(_))
            && first.len() < SMALL
            && let Some(second) = self.zstd.compress(content, before, effort_of(class, SMALL_LEVEL))
            && second.len() < first.len()
        {
            packed = Some(second);
        }
        match packed {
            Some(packed) if packed.len() < content.len() => General { coder, raw: content.len(), packed },
            _ => General { coder: CODER_STORED, raw: content.len(), packed: content.to_vec() },
        }
    }

    fn count(&mut self, class: Class, bytes: u64, stored: u64) {
        match self.statistics.iter_mut().find(|of| of.class == class) {
            Some(of) => {
                of.bytes += bytes;
                of.stored += stored;
            }
            None => self.statistics.push(Statistics { class, bytes, stored }),
        }
    }
}

/// What content refers to, of what came before it in its class.
fn near(before: &[u8], content: usize) -> &[u8] {
    let near = content.clamp(*NEAR_BEFORE.start(), *NEAR_BEFORE.end());
    &before[before.len().saturating_sub(near)..]
}

fn put_part(coder: u8, raw: usize, packed: &[u8], out: &mut Vec<u8>) {
    out.push(coder);
    put_number(out, raw as u64);
    put_number(out, packed.len() as u64);
    out.extend(crc32c_append(0, packed).to_le_bytes());
    out.extend_from_slice(packed);
}

/// Decompresses what [`Packer`] wrote.
pub struct Unpacker {
    state: State,
    zstd: general::Decompressor,
}

impl Unpacker {
    /// `goes_on` as in [`Packer::new`], or if in doubt.
    pub fn new(goes_on: bool) -> Unpacker {
        Unpacker { state: State::new(goes_on), zstd: general::Decompressor::default() }
    }

    /// Refuses modelled parts, unless they are allowed.
    pub fn allow_modelled(mut self, is_allowed: bool) -> Unpacker {
        self.state.may_model = is_allowed;
        self
    }

    /// Takes a directory off; `most` is how many bytes it may have.
    pub fn directory(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        self.whole(DIRECTORY, rest, most)
    }

    /// Takes the columns of a class off, each of as many bytes as are said. They are in what is appended to `out`; `place` is
    /// told where each begins, in their order.
    pub fn class(
        &mut self,
        class: Class,
        columns: &[Wanted],
        rest: &mut &[u8],
        out: &mut Vec<u8>,
        mut place: impl FnMut(&Wanted, usize),
    ) -> Result<(), Corrupt> {
        let most = layout::most_bytes(columns.iter().map(|column| (column.form, column.bytes)));
        let part = Part::take(rest, most)?;
        let start = out.len();
        let mut one_after_another = || {
            columns.iter().fold(start, |at, column| {
                place(column, at);
                at + column.bytes
            });
        };
        if let CODER_MODELLED..CODER_MODELLED_CONTENT = part.coder {
            let effort = part.coder - CODER_MODELLED;
            let bytes = columns.iter().map(|column| column.bytes).sum::<usize>();
            if part.raw != bytes {
                return Err(corrupt("a part has another length than its columns"));
            }
            one_after_another();
            out.resize(start + bytes, 0);
            let decoder = range::Decoder::new(part.packed);
            return self.modelled(effort, class, columns, decoder, &mut out[start..]);
        }
        if let Some(effort) = part.learned() {
            one_after_another();
            let (content, chosen) = part.with_choices(&mut self.zstd)?;
            let mut laid_out = layout::Columns::new(&content)?;
            for column in columns {
                laid_out.take(column.form, column.bytes)?.put(column.bytes, out);
            }
            laid_out.finish()?;
            let nowhere = range::Nowhere { chosen: &chosen };
            return self.modelled(effort, class, columns, nowhere, &mut out[start..]);
        }
        self.content(class as usize, &part, most, out)?;
        if part.is_remembered() {
            self.state.remember(class as usize, &out[start..]);
        }
        find(start, columns, out, place)
    }

    /// Has the model of an effort see to columns, one after another.
    fn modelled(
        &mut self,
        effort: u8,
        class: Class,
        columns: &[Wanted],
        mut bits: impl range::Bits,
        bytes: &mut [u8],
    ) -> Result<(), Corrupt> {
        let modelled = self.state.modelled(effort)?;
        let mut rest = bytes;
        for column in columns {
            let (bytes, after) = std::mem::take(&mut rest).split_at_mut(column.bytes);
            modelled.column(&mut bits, class as usize, column.number, column.form, bytes);
            rest = after;
        }
        Ok(())
    }

    /// Takes a part off.
    pub fn part(&mut self, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        self.whole(OTHER, rest, most)
    }

    fn whole(&mut self, class: usize, rest: &mut &[u8], most: usize) -> Result<Vec<u8>, Corrupt> {
        let part = Part::take(rest, most)?;
        let mut content = Vec::new();
        self.content(class, &part, most, &mut content)?;
        if part.is_remembered() {
            self.state.remember(class, &content);
        }
        Ok(content)
    }

    /// Appends what a part is of to `out`.
    fn content(
        &mut self,
        class: usize,
        part: &Part<'_>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Corrupt> {
        let start = out.len();
        match part.coder {
            CODER_WORDS => {
                let mut words = Vec::new();
                self.zstd.decompress(part.packed, &[], part.raw, &mut words)?;
                return words::decode(&words, most, out);
            }
            CODER_STORED => out.extend_from_slice(part.packed),
            CODER_ZSTD => self.zstd.decompress(part.packed, &[], part.raw, out)?,
            CODER_ZSTD_AFTER => {
                self.zstd.decompress(part.packed, self.state.before(class), part.raw, out)?;
            }
            CODER_LEARNED..CODER_MODELLED => {
                let (mut content, chosen) = part.with_choices(&mut self.zstd)?;
                let modelled = self.state.modelled(part.coder - CODER_LEARNED)?;
                let mut nowhere = range::Nowhere { chosen: &chosen };
                modelled.column(&mut nowhere, class, 0, Form::Bytes, &mut content);
                out.extend_from_slice(&content);
                return Ok(());
            }
            coder => {
                let first = match coder {
                    CODER_MODELLED..CODER_MODELLED_CONTENT => CODER_MODELLED,
                    CODER_MODELLED_CONTENT..CODER_MODELLED_WORDS => CODER_MODELLED_CONTENT,
                    _ => CODER_MODELLED_WORDS,
                };
                let effort = coder.checked_sub(first).ok_or_else(|| corrupt("a part's coder is unknown"))?;
                let mut decoder = range::Decoder::new(part.packed);
                let modelled = self.state.modelled(effort)?;
                let mut content = vec![0; part.raw];
                modelled.column(&mut decoder, class, 0, Form::Bytes, &mut content);
                if first == CODER_MODELLED_WORDS {
                    return words::decode(&content, most, out);
                }
                out.extend_from_slice(&content);
            }
        }
        if out.len() - start != part.raw {
            return Err(corrupt("a part has another length than it says"));
        }
        Ok(())
    }
}

/// Finds the columns that a class's content from `start` on is of: where they are in it, or after it if they are made of
/// planes.
fn find(
    start: usize,
    columns: &[Wanted],
    out: &mut Vec<u8>,
    mut place: impl FnMut(&Wanted, usize),
) -> Result<(), Corrupt> {
    let forms = columns.iter().map(|column| (column.form, column.bytes));
    let in_planes = layout::Columns::new(&out[start..])?.bytes_in_planes(forms);
    let end = out.len();
    out.reserve(in_planes);
    out.resize(end + in_planes, 0);
    let (content, mut rows) = out[start..].split_at_mut(end - start);
    let mut laid_out = layout::Columns::new(content)?;
    let mut rows_at = end;
    for column in columns {
        let before = laid_out.bytes_left();
        match laid_out.take(column.form, column.bytes)? {
            Taken::Bytes(_) => place(column, end - before),
            Taken::Planes(planes) => {
                let (these, others) = rows.split_at_mut(column.bytes);
                planes.turn_back(these);
                place(column, rows_at);
                rows = others;
                rows_at += column.bytes;
            }
        }
    }
    laid_out.finish()
}

/// A part, taken off but not decompressed.
struct Part<'a> {
    coder: u8,
    raw: usize,
    packed: &'a [u8],
}

impl<'a> Part<'a> {
    /// Whether what comes after it in its class may refer to it.
    fn is_remembered(&self) -> bool {
        matches!(self.coder, CODER_STORED | CODER_ZSTD | CODER_ZSTD_AFTER)
    }

    /// The effort of the model that learns the part, which it has not coded.
    fn learned(&self) -> Option<u8> {
        (CODER_LEARNED..CODER_MODELLED).contains(&self.coder).then(|| self.coder - CODER_LEARNED)
    }

    /// The content, and the choices that were made when the model of the encoder learned it.
    fn with_choices(&self, zstd: &mut general::Decompressor) -> Result<(Vec<u8>, Vec<u8>), Corrupt> {
        let mut rest = self.packed;
        let count = usize::try_from(get_number(&mut rest)?).unwrap_or(usize::MAX);
        let packed = usize::try_from(get_number(&mut rest)?).unwrap_or(usize::MAX);
        // Each is made for some bytes.
        let (packed, rest) = rest.split_at_checked(packed).ok_or_else(|| corrupt("a part is cut short"))?;
        if count > self.raw {
            return Err(corrupt("a part has more choices than bytes"));
        }
        let chosen = match count {
            0 => Vec::new(),
            _ => {
                let mut chosen = Vec::new();
                zstd.decompress(packed, &[], count, &mut chosen)?;
                chosen
            }
        };
        let mut content = Vec::new();
        zstd.decompress(rest, &[], self.raw, &mut content)?;
        if content.len() == self.raw && chosen.len() == count {
            Ok((content, chosen))
        } else {
            Err(corrupt("a part has another length than it says"))
        }
    }

    /// `most` is how many bytes it may have after decompression.
    fn take(rest: &mut &'a [u8], most: usize) -> Result<Part<'a>, Corrupt> {
        let (&coder, after) = rest.split_first().ok_or_else(|| corrupt("a part is cut short"))?;
        *rest = after;
        let raw = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        let stored = usize::try_from(get_number(rest)?).unwrap_or(usize::MAX);
        if raw > most {
            return Err(corrupt("a part is larger than it may be"));
        }
        let (checksum, after) =
            rest.split_first_chunk::<4>().ok_or_else(|| corrupt("a part is cut short"))?;
        let (packed, after) = after.split_at_checked(stored).ok_or_else(|| corrupt("a part is cut short"))?;
        *rest = after;
        if crc32c_append(0, packed) != u32::from_le_bytes(*checksum) {
            return Err(corrupt("a part's checksum is wrong"));
        }
        Ok(Part { coder, raw, packed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{self, Coder, Column, Decoder, Encoder, Kind};

    /// Numbers that follow from a seed.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (self.0 >> 33) % bound
        }
    }

    const KINDS: [Kind; 8] = [
        Kind::Symbols(Class::Shapes),
        Kind::Rows(Class::Blocks, 4),
        Kind::Rows(Class::Fixed, 1),
        Kind::Rows(Class::Fixed, 24),
        Kind::Rows(Class::Fixed, 900),
        Kind::Bytes(Class::Text),
        Kind::Symbols(Class::Blocks),
        Kind::Bytes(Class::Raw),
    ];

    /// Bytes for a column: of any length, among them none, and more or less like real ones.
    fn content(kind: Kind, numbers: &mut Numbers) -> Vec<u8> {
        let rows = [0, 1, 3, 40, 700][numbers.below(5) as usize];
        let mut bytes = Vec::new();
        for row in 0..rows {
            match kind {
                Kind::Symbols(_) => {
                    let bits = numbers.below(20);
                    put_number(&mut bytes, numbers.below(1 << bits));
                }
                Kind::Rows(_, width) => {
                    let row: Vec<u8> = (0..width)
                        .map(|at| match at % 4 {
                            0 => (row + u64::from(at)) as u8,
                            1 => at as u8,
                            2 => numbers.below(3) as u8,
                            _ => numbers.below(256) as u8,
                        })
                        .collect();
                    bytes.extend(row);
                }
                Kind::Bytes(_) => {
                    bytes.extend(
                        [&b"select "[..], b"\0\0\x10", b"name", &[row as u8]][numbers.below(4) as usize],
                    );
                }
            }
        }
        bytes
    }

    /// Chunks at a level, and what their columns had.
    fn chunks(level: u8, seed: u64, count: usize) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
        let mut numbers = Numbers(seed);
        let (mut encoder, mut packer) = (Encoder::default(), Packer::new(level, true));
        let columns: Vec<Column> = KINDS.iter().map(|&kind| encoder.column(kind).unwrap()).collect();
        let chunk = |_| {
            let contents: Vec<Vec<u8>> = KINDS.iter().map(|&kind| content(kind, &mut numbers)).collect();
            for (&column, bytes) in columns.iter().zip(&contents) {
                encoder.bytes(column, bytes, bytes.len(), &mut Vec::new()).unwrap();
            }
            (encoder.chunk(&mut packer), contents)
        };
        (0..count).map(chunk).collect()
    }

    #[test]
    fn columns_come_back_at_every_level_chunk_after_chunk() {
        for level in 1..=9 {
            for seed in 0..3 {
                let (mut decoder, mut unpacker) = (Decoder::default(), Unpacker::new(true));
                let mut columns = Vec::new();
                for (chunk, contents) in chunks(level, seed, 4) {
                    decoder.chunk(&mut unpacker, &chunk, 1 << 24).unwrap();
                    if columns.is_empty() {
                        columns.extend(KINDS.iter().map(|&kind| decoder.column(kind).unwrap()));
                    }
                    for (&column, bytes) in columns.iter().zip(&contents) {
                        let mut back = Vec::new();
                        decoder.bytes(column, &[], bytes.len(), &mut back).unwrap();
                        assert_eq!(back, *bytes, "level {level}, seed {seed}");
                    }
                    decoder.finish().unwrap();
                }
            }
        }
    }

    #[test]
    fn columns_of_rows_that_are_cut_off_come_back() {
        let bytes: Vec<u8> = (0..1003).map(|at| (at / 3) as u8).collect();
        for level in [1, 5, 7, 8] {
            let mut content = columns::Content::of(Class::Fixed, Form::Rows(4), &bytes);
            let mut out = Vec::new();
            Packer::new(level, true).class(Class::Fixed, &mut [&mut content], &mut out);
            let (mut rest, mut back) = (&out[..], Vec::new());
            let wanted = Wanted { number: 0, form: Form::Rows(4), bytes: bytes.len() };
            let mut at = 0;
            let place = |_: &Wanted, start| at = start;
            Unpacker::new(true).class(Class::Fixed, &[wanted], &mut rest, &mut back, place).unwrap();
            assert_eq!((&back[at..at + bytes.len()], rest), (&bytes[..], &[][..]));
        }
    }

    /// What the model has not coded, it has learned, on both sides.
    #[test]
    fn what_is_better_without_a_model_is_coded_so() {
        let noise: Vec<u8> = (0..3000_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 11) as u8).collect();
        // Over and over from far back, which the fast model has forgotten.
        let bytes = [noise.clone(), vec![0; 40], noise].concat();
        for level in [7, 8, 9] {
            let (mut packer, mut unpacker, mut out) =
                (Packer::new(level, true), Unpacker::new(true), Vec::new());
            for part in [&bytes[..], &bytes[..3], &bytes[..2000], &[7; 100_000]] {
                out.clear();
                packer.part(part, &mut out);
                let mut smallest = Vec::new();
                Packer::new(5, true).part(part, &mut smallest);
                assert!(out.len() <= smallest.len() + 4, "level {level}: {} {}", out.len(), smallest.len());
                assert!(unpacker.part(&mut &out[..], part.len()).unwrap() == part);
            }
        }
        let (mut packer, mut unpacker) = (Packer::new(7, true), Unpacker::new(true));
        let (mut learned, mut after) = (Vec::new(), Vec::new());
        let zstd =
            general::Compressor::default().compress(&bytes, &[], effort_of(OTHER, SECOND_LEVEL)).unwrap();
        let zstd = packer.with_choices(&[], &zstd).unwrap();
        put_part(CODER_LEARNED, bytes.len(), &zstd, &mut learned);
        packer.model(0, OTHER, &mut [(0, Form::Bytes, &mut bytes.clone())]);
        packer.part(&bytes, &mut after);
        assert!(unpacker.part(&mut &learned[..], bytes.len()).unwrap() == bytes);
        assert!(unpacker.part(&mut &after[..], bytes.len()).unwrap() == bytes);
    }

    #[test]
    fn a_second_chunk_gains_from_the_first() {
        let text: Vec<u8> =
            (0..20_000_u32).flat_map(|at| (at.wrapping_mul(0x9E37_79B9) >> 7).to_le_bytes()).collect();
        for level in [1, 5, 7, 9] {
            let mut packer = Packer::new(level, true);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            packer.part(&text, &mut first);
            packer.part(&text, &mut second);
            assert!(second.len() * 10 < first.len(), "level {level}: {} then {}", first.len(), second.len());
            let mut unpacker = Unpacker::new(true);
            assert!(unpacker.part(&mut &first[..], text.len()).unwrap() == text);
            assert!(unpacker.part(&mut &second[..], text.len()).unwrap() == text);
        }
    }

    #[test]
    fn a_chunk_that_is_cut_short_is_refused() {
        for level in [1, 5, 7] {
            let (chunk, _) = chunks(level, 1, 1).remove(0);
            for len in (0..chunk.len()).step_by(chunk.len() / 50 + 1) {
                let decoded = Decoder::default().chunk(&mut Unpacker::new(true), &chunk[..len], 1 << 24);
                assert!(decoded.is_err(), "level {level}, {len} of {}", chunk.len());
            }
        }
    }

    #[test]
    fn a_changed_byte_is_refused() {
        for level in [1, 5, 7] {
            let (mut chunk, _) = chunks(level, 1, 1).remove(0);
            for at in (0..chunk.len()).step_by(chunk.len() / 50 + 1) {
                chunk[at] ^= 0x11;
                let decoded = Decoder::default().chunk(&mut Unpacker::new(true), &chunk, 1 << 24);
                assert!(decoded.is_err(), "level {level}, byte {at} of {}", chunk.len());
                chunk[at] ^= 0x11;
            }
        }
    }

    /// With the right checksum, the compressed bytes themselves may be anything.
    #[test]
    fn no_compressed_bytes_make_decoding_fail_badly() {
        let mut numbers = Numbers(5);
        let bytes = content(Kind::Rows(Class::Fixed, 24), &mut Numbers(1)).repeat(3);
        for (coder, tries) in [(0, 20), (1, 200), (2, 200), (3, 20), (4, 5), (5, 3), (6, 1), (255, 1)] {
            let level = if coder < CODER_MODELLED { 5 } else { (coder - CODER_MODELLED).min(2) + 7 };
            let mut column = columns::Content::of(Class::Fixed, Form::Rows(24), &bytes);
            let mut whole = Vec::new();
            Packer::new(level, true).class(Class::Fixed, &mut [&mut column], &mut whole);
            let part = Part::take(&mut &whole[..], usize::MAX).unwrap();
            for _ in 0..tries {
                let mut packed = part.packed.to_vec();
                for _ in 0..3 {
                    let at = numbers.below(packed.len() as u64) as usize;
                    packed[at] = numbers.below(256) as u8;
                }
                packed.truncate(numbers.below(packed.len() as u64 + 1) as usize);
                let mut out = Vec::new();
                put_part(coder, part.raw, &packed, &mut out);
                // An error, or other bytes.
                let wanted = Wanted { number: 0, form: Form::Rows(24), bytes: bytes.len() };
                let _ = Unpacker::new(true).class(
                    Class::Fixed,
                    &[wanted],
                    &mut &out[..],
                    &mut Vec::new(),
                    |_, _| (),
                );
            }
        }
    }

    #[test]
    fn statistics_say_what_became_of_classes() {
        let bytes = vec![7; 1000];
        let mut column = columns::Content::of(Class::Text, Form::Bytes, &bytes);
        let (mut packer, mut out) = (Packer::new(5, true), Vec::new());
        packer.class(Class::Text, &mut [&mut column], &mut out);
        let expected = Statistics { class: Class::Text, bytes: 1000, stored: out.len() as u64 };
        assert_eq!(packer.statistics(), [expected]);
    }
}
