//! Columns with few distinct values: Parquet's `RLE_DICTIONARY`.
//!
//! Arrow's dictionaries have the keys that Parquet's dictionary encoding needs: each text of a batch is
//! searched for once, and rows are numbers. Columns of few distinct numbers are encoded the same way.

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Int32Type};
use parquet::basic::Encoding;
use rustc_hash::{FxHashMap, FxHashSet};

use super::encoder::{Encoder, PAGE, Range, Values};
use super::numbers::{self, Number as _, NumberType, each_type};
use super::packing::{bit_width, definition_levels, hybrid, run_length};

/// The key of a row that is NULL.
const NULL: u32 = u32::MAX;
/// The number of rows at the start of a chunk of numbers that determine its encoding.
const SAMPLE: usize = 4096;
/// The minimum average number of these rows per distinct value for a dictionary.
const REPEATED: usize = 64;

/// Encodes each row as the key of its value.
pub(super) struct Dictionary {
    entries: Entries,
    /// Keys of the rows in the current page.
    keys: Vec<u32>,
    /// Number of the current page, starting at 1.
    page: usize,
    /// The last page that contained each key.
    last_page: Vec<usize>,
}

/// The distinct values of a chunk, in the order of their first row.
enum Entries {
    Texts(Texts),
    Numbers(Box<Numbers>),
}

impl Dictionary {
    /// Creates a dictionary for a column that starts with these rows; `None` if it has too many distinct
    /// values.
    pub fn from_column(column: &ArrayRef) -> Option<Dictionary> {
        let entries = match column.data_type() {
            DataType::Dictionary(key, value) => {
                let is_label = **key == DataType::Int32 && **value == DataType::Utf8;
                is_label.then(|| Entries::Texts(Texts::default()))?
            }
            other => {
                let number_type = NumberType::from_data_type(other)?;
                has_few_numbers(column).then(|| Entries::Numbers(Box::new(Numbers::new(number_type))))?
            }
        };
        Some(Dictionary { entries, keys: Vec::with_capacity(PAGE), page: 1, last_page: Vec::new() })
    }

    /// Returns the range of values in the current page.
    fn range(&mut self) -> Range {
        self.last_page.resize(self.entries.len(), 0);
        let (mut range, values) = (Range::default(), self.entries.values());
        let mut previous = None;
        for key in self.keys.iter().copied() {
            // Only the first key of a run of equal keys matters.
            let is_repeated = previous == Some(key);
            previous = Some(key);
            if key == NULL {
                range.nulls += 1;
            } else if !is_repeated && self.last_page[key as usize] != self.page {
                self.last_page[key as usize] = self.page;
                let value = self.entries.value(key);
                range.add(&Range { bounds: Some((value, value)), nulls: 0 }, &values);
            }
        }
        range
    }
}

/// Whether a column that starts with these rows has few distinct numbers.
fn has_few_numbers(column: &ArrayRef) -> bool {
    if column.len() < SAMPLE {
        return false;
    }
    let mut sample = Vec::with_capacity(SAMPLE);
    numbers::append(&column.slice(0, SAMPLE), &mut sample);
    sample.into_iter().collect::<FxHashSet<u64>>().len() <= SAMPLE / REPEATED
}

impl Encoder for Dictionary {
    fn rows(&self) -> usize {
        self.keys.len()
    }

    fn add(&mut self, rows: &ArrayRef) {
        match &mut self.entries {
            Entries::Texts(texts) => texts.keys(rows.as_dictionary::<Int32Type>(), &mut self.keys),
            Entries::Numbers(numbers) => numbers.keys(rows, &mut self.keys),
        }
    }

    fn end_page(&mut self, nullable: bool, out: &mut Vec<u8>) -> Range {
        let range = self.range();
        let is_present: Vec<u32> = match range.nulls {
            0 => Vec::new(),
            _ => self.keys.iter().map(|key| u32::from(*key != NULL)).collect(),
        };
        definition_levels(nullable, self.keys.len(), &is_present, out);
        if range.nulls > 0 {
            self.keys.retain(|key| *key != NULL);
        }
        // Each page may have another key width, which depends on the current number of values.
        let width = bit_width(self.entries.len());
        out.push(width as u8);
        hybrid(&self.keys, width, out);
        self.keys.clear();
        self.page += 1;
        range
    }

    fn dictionary(&self) -> Option<(Vec<u8>, usize)> {
        Some((self.entries.plain(), self.entries.len()))
    }

    fn encoding(&self) -> Encoding {
        Encoding::RLE_DICTIONARY
    }

    fn values(&self) -> Values<'_> {
        self.entries.values()
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::Texts(texts) => texts.texts.len(),
            Entries::Numbers(numbers) => numbers.numbers.len(),
        }
    }

    fn values(&self) -> Values<'_> {
        match self {
            Entries::Texts(texts) => Values::Texts(&texts.texts),
            Entries::Numbers(numbers) => Values::Numbers(numbers.number_type),
        }
    }

    /// Returns the number that represents a key's value in ranges.
    fn value(&self, key: u32) -> u64 {
        match self {
            Entries::Texts(_) => key.into(),
            Entries::Numbers(numbers) => numbers.numbers[key as usize],
        }
    }

    /// Returns the dictionary page's bytes.
    fn plain(&self) -> Vec<u8> {
        match self {
            Entries::Texts(texts) => {
                let mut plain = Vec::new();
                for text in &texts.texts {
                    plain.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    plain.extend_from_slice(text.as_bytes());
                }
                plain
            }
            Entries::Numbers(numbers) => numbers
                .numbers
                .iter()
                .flat_map(|number| number.to_le_bytes().into_iter().take(numbers.number_type.width))
                .collect(),
        }
    }
}

/// Appends the key of each row; `key_of` returns the key of a value.
fn append_keys<T: Copy + PartialEq>(
    rows: &[T],
    nulls: Option<&NullBuffer>,
    keys: &mut Vec<u32>,
    mut key_of: impl FnMut(T) -> u32,
) {
    match nulls {
        // Many columns have the same value in all rows of a batch.
        None if run_length(rows) == rows.len() => {
            let key = rows.first().map_or(NULL, |value| key_of(*value));
            keys.resize(keys.len() + rows.len(), key);
        }
        None => keys.extend(rows.iter().map(|value| key_of(*value))),
        Some(nulls) if nulls.null_count() == rows.len() => keys.resize(keys.len() + rows.len(), NULL),
        Some(nulls) => keys.extend(rows.iter().zip(nulls).map(|(value, is_present)| match is_present {
            true => key_of(*value),
            false => NULL,
        })),
    }
}

#[derive(Default)]
struct Texts {
    texts: Vec<Box<str>>,
    key_of: FxHashMap<Box<str>, u32>,
}

impl Texts {
    fn keys(&mut self, column: &DictionaryArray<Int32Type>, keys: &mut Vec<u32>) {
        let texts = column.values().as_string::<i32>();
        // A text is added with its first row: statistics must not include texts without rows.
        let mut known = vec![NULL; texts.len()];
        let look_up = |key: i32| {
            let key = key as usize;
            if known[key] == NULL && texts.is_valid(key) {
                known[key] = self.key(texts.value(key));
            }
            known[key]
        };
        append_keys(column.keys().values(), column.keys().nulls(), keys, look_up);
    }

    fn key(&mut self, text: &str) -> u32 {
        if let Some(key) = self.key_of.get(text) {
            return *key;
        }
        let key = self.texts.len() as u32;
        self.texts.push(text.into());
        self.key_of.insert(text.into(), key);
        key
    }
}

/// Size of the table of recent numbers: a power of two.
const RECENT: usize = 256;

struct Numbers {
    number_type: NumberType,
    numbers: Vec<u64>,
    key_of: FxHashMap<u64, u32>,
    /// Numbers with their keys, each at the index of its lowest bits.
    recent: Box<[(u64, u32); RECENT]>,
}

impl Numbers {
    fn new(number_type: NumberType) -> Numbers {
        let recent = Box::new([(0, NULL); RECENT]);
        Numbers { number_type, numbers: Vec::new(), key_of: FxHashMap::default(), recent }
    }

    fn keys(&mut self, column: &ArrayRef, keys: &mut Vec<u32>) {
        each_type!(column, rows => {
            append_keys(rows, column.nulls(), keys, |number| self.key(number.extended()));
        });
    }

    #[inline(always)]
    fn key(&mut self, number: u64) -> u32 {
        match self.recent[number as usize % RECENT] {
            (recent, key) if recent == number && key != NULL => key,
            _ => self.look_up(number),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, number: u64) -> u32 {
        let numbers = &mut self.numbers;
        let key = *self.key_of.entry(number).or_insert_with(|| {
            numbers.push(number);
            numbers.len() as u32 - 1
        });
        self.recent[number as usize % RECENT] = (number, key);
        key
    }
}
