//! Columns that are filled row by row.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, PrimitiveArray, StringArray,
    TimestampMicrosecondArray,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, Int32Type};
use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;
use walden_format::rmgr::Kind;

/// Represents no time: far outside the range of PostgreSQL's timestamps.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// Numbers, one per row, if the column is wanted.
pub(crate) struct Numbers<T> {
    wanted: bool,
    pub values: Vec<T>,
}

impl<T: Copy> Numbers<T> {
    pub fn new(wanted: bool, rows: usize) -> Numbers<T> {
        Numbers { wanted, values: if wanted { Vec::with_capacity(rows) } else { Vec::new() } }
    }

    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.wanted {
            self.values.push(value);
        }
    }

    pub fn wanted(&self) -> bool {
        self.wanted
    }

    pub fn map<P: ArrowPrimitiveType>(&self, value: impl Fn(T) -> P::Native) -> ArrayRef {
        numbers::<P>(self.values.iter().map(|one| value(*one)), None)
    }
}

/// Creates an array of numbers.
pub(crate) fn numbers<P: ArrowPrimitiveType>(
    values: impl IntoIterator<Item = P::Native>,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    let values: Vec<P::Native> = values.into_iter().collect();
    Arc::new(PrimitiveArray::<P>::new(ScalarBuffer::from(values), nulls))
}

/// Creates an array of times; [`NO_TIME`] is NULL.
pub(crate) fn times(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    let values: Vec<i64> = values.into_iter().collect();
    let nulls = null_if(&values, |time| *time == NO_TIME);
    Arc::new(TimestampMicrosecondArray::new(ScalarBuffer::from(values), nulls).with_timezone("UTC"))
}

/// Returns the NULL rows, if there are any.
pub(crate) fn null_if<T>(values: &[T], is_null: impl Fn(&T) -> bool) -> Option<NullBuffer> {
    // Avoids a branch for each row.
    let has_nulls = values.iter().fold(false, |found, value| found | is_null(value));
    let valid = || BooleanBuffer::collect_bool(values.len(), |row| !is_null(&values[row]));
    has_nulls.then(|| NullBuffer::new(valid()))
}

/// Returns the value of each row's key; `none` for a negative key.
fn map_keys<T: Copy>(keys: &[i32], none: T, values: impl Iterator<Item = T>) -> Vec<T> {
    let by_next_key: Vec<T> = std::iter::once(none).chain(values).collect();
    keys.iter().map(|key| by_next_key[(key + 1).max(0) as usize]).collect()
}

/// Creates an array of booleans.
pub(crate) fn bools(values: impl IntoIterator<Item = bool>) -> ArrayRef {
    Arc::new(BooleanArray::from(values.into_iter().collect::<Vec<bool>>()))
}

/// Keys into the occurring values, in the order of their first row; a negative key is NULL.
pub(crate) struct Keys<K> {
    pub keys: Numbers<i32>,
    pub values: Vec<K>,
}

/// Creates dictionary-encoded texts: `text` returns the text of each value.
pub(crate) fn labels<K, T: AsRef<str>>(
    keys: &[i32],
    values: &[K],
    text: impl Fn(&K) -> Option<T>,
) -> ArrayRef {
    // Equal texts have one key, because readers may compare keys.
    let mut texts: Vec<T> = Vec::new();
    let mut known: FxHashMap<String, i32> = FxHashMap::default();
    let text_keys = values.iter().map(|value| {
        let Some(text) = text(value) else { return -1 };
        *known.entry(text.as_ref().to_owned()).or_insert_with(|| {
            texts.push(text);
            texts.len() as i32 - 1
        })
    });
    let mut keys = map_keys(keys, -1, text_keys);
    let nulls = null_if(&keys, |key| *key < 0);
    if nulls.is_some() {
        keys.iter_mut().for_each(|key| *key = (*key).max(0));
    }
    let texts: StringArray = match texts.is_empty() {
        // Every key must have a value, even if it is NULL.
        true => StringArray::from(vec![""]),
        false => StringArray::from_iter_values(texts.iter().map(AsRef::as_ref)),
    };
    let keys = Int32Array::new(ScalarBuffer::from(keys), nulls);
    // Keys are indexes of texts, by construction.
    Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(texts)).expect("keys are of texts"))
}

/// Creates dictionary-encoded texts of one row each.
pub(crate) fn label_rows<T: AsRef<str>>(texts: impl IntoIterator<Item = Option<T>>) -> ArrayRef {
    let texts: Vec<Option<T>> = texts.into_iter().collect();
    let keys: Vec<i32> = (0..texts.len() as i32).collect();
    labels(&keys, &texts, |text| text.as_ref().map(|text| text.as_ref().to_owned()))
}

/// Creates a column with the same label in each row.
pub(crate) fn constant_label(text: &str, rows: usize) -> ArrayRef {
    labels(&vec![0; rows], &[text], |text| Some(*text))
}

/// Kinds of record, one per row.
pub(crate) struct Kinds {
    pub column: Keys<Kind>,
    /// Key of each kind, or -1.
    key_of: Box<[i32; Kind::COUNT]>,
}

impl Kinds {
    pub fn new(wanted: bool, rows: usize) -> Kinds {
        let column = Keys { keys: Numbers::new(wanted, rows), values: Vec::new() };
        Kinds { column, key_of: Box::new([-1; Kind::COUNT]) }
    }

    #[inline(always)]
    pub fn push(&mut self, kind: Kind) {
        if self.column.keys.wanted() {
            let mut key = self.key_of[kind.index()];
            if key < 0 {
                key = self.add(kind);
            }
            self.column.keys.push(key);
        }
    }

    #[inline(never)]
    fn add(&mut self, kind: Kind) -> i32 {
        let key = self.column.values.len() as i32;
        self.column.values.push(kind);
        self.key_of[kind.index()] = key;
        key
    }
}

/// Size of the table of recent relations: a power of two.
const RECENT: usize = 256;

/// The files of relations, one per row.
pub(crate) struct Files {
    pub column: Keys<RelFileLocator>,
    key_of: FxHashMap<RelFileLocator, i32>,
    recent: Box<[(RelFileLocator, i32); RECENT]>,
}

impl Files {
    pub fn new(wanted: bool, rows: usize) -> Files {
        let nothing = RelFileLocator { tablespace: u32::MAX, database: u32::MAX, relation: u32::MAX };
        Files {
            column: Keys { keys: Numbers::new(wanted, rows), values: Vec::new() },
            key_of: FxHashMap::default(),
            recent: Box::new([(nothing, -1); RECENT]),
        }
    }

    #[inline(always)]
    pub fn push(&mut self, file: RelFileLocator) {
        if self.column.keys.wanted() {
            let place = file.relation as usize % RECENT;
            let (recent, mut key) = self.recent[place];
            if recent != file || key < 0 {
                key = self.look_up(file, place);
            }
            self.column.keys.push(key);
        }
    }

    #[inline(always)]
    pub fn push_none(&mut self) {
        self.column.keys.push(-1);
    }

    #[inline(never)]
    fn look_up(&mut self, file: RelFileLocator, place: usize) -> i32 {
        let values = &mut self.column.values;
        let key = *self.key_of.entry(file).or_insert_with(|| {
            values.push(file);
            values.len() as i32 - 1
        });
        self.recent[place] = (file, key);
        key
    }

    /// Creates an array of a number of each row's file.
    pub fn numbers<P: ArrowPrimitiveType>(&self, number: impl Fn(&RelFileLocator) -> P::Native) -> ArrayRef
    where
        P::Native: Default,
    {
        let Keys { keys, values } = &self.column;
        numbers::<P>(map_keys(&keys.values, P::Native::default(), values.iter().map(number)), self.nulls())
    }

    /// Returns the rows without a file, if there are any.
    pub fn nulls(&self) -> Option<NullBuffer> {
        null_if(&self.column.keys.values, |key| *key < 0)
    }
}
