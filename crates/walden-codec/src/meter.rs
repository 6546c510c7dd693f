//! Counts bytes of columns by class and relation while they are decoded.
//!
//! A column that is created while the values of a relation's block are decoded belongs to that relation.
//! Columns that all relations share (for images and record shapes) are metered: whenever the relation
//! changes, the bytes read from these columns since the last change count for the previous relation.

use rustc_hash::FxHashMap;
use walden_format::record::RelFileLocator;

use crate::column_kind::{CLASSES, Class};

const CLASS_COUNT: usize = CLASSES.len();

/// A relation, or none.
pub type Owner = Option<RelFileLocator>;

/// Bytes by class.
pub type ByClass = [u64; CLASS_COUNT];

/// Bytes of the columns of one segment.
#[derive(Clone, Default, Debug)]
pub struct Metered {
    /// Bytes before entropy coding, by relation and class.
    pub raw: FxHashMap<Owner, ByClass>,
    /// Bytes of the compressed form, by class.
    pub stored: ByClass,
    /// Bytes of the directory of columns before compression, and in the compressed form.
    pub directory: (u64, u64),
}

/// Meters columns, as the module documentation describes.
#[derive(Default)]
pub struct Meter {
    relation: Owner,
    /// The owner of each column created so far.
    owners: Vec<Owner>,
    /// Columns without an owner, and the position of each at the last change.
    shared: Vec<(usize, usize)>,
    segment: Metered,
}

impl Meter {
    /// Starts a segment. `positions` are the positions in its columns, `stored` and `directory` the
    /// compressed sizes of its classes and directory, in bytes.
    pub fn start(&mut self, positions: &[(usize, usize)], stored: ByClass, directory: (u64, u64)) {
        self.relation = None;
        self.segment = Metered { raw: FxHashMap::default(), stored, directory };
        for (column, at) in &mut self.shared {
            *at = positions[*column].0;
        }
    }

    /// Notes that the next column was created. `at` is the offset of its bytes.
    pub fn add_column(&mut self, class: Class, is_shared: bool, at: usize) {
        // The fields before a record's blocks belong to no relation.
        let is_of_record =
            matches!(class, Class::Framing | Class::Shapes | Class::Transactions | Class::MainData);
        let owner = self.relation.filter(|_| !is_shared && !is_of_record);
        if owner.is_none() {
            self.shared.push((self.owners.len(), at));
        }
        self.owners.push(owner);
    }

    /// Sets the relation of the values decoded from here on.
    pub fn set_relation(
        &mut self,
        relation: Owner,
        positions: &[(usize, usize)],
        class: impl Fn(usize) -> Class,
    ) {
        if relation == self.relation {
            return;
        }
        for (column, at) in &mut self.shared {
            let (now, _) = positions[*column];
            if now > *at {
                let by_class = self.segment.raw.entry(self.relation).or_default();
                by_class[class(*column) as usize] += (now - *at) as u64;
                *at = now;
            }
        }
        self.relation = relation;
    }

    /// Ends a segment. `sizes` are the bytes of all its columns, which were all read to their end.
    pub fn finish(
        &mut self,
        sizes: &[usize],
        positions: &[(usize, usize)],
        class: impl Fn(usize) -> Class,
    ) -> Metered {
        // Any change of the relation counts the bytes read for the present one.
        let present = self.relation;
        self.set_relation(
            if present.is_some() { None } else { Some(RelFileLocator::default()) },
            positions,
            &class,
        );
        self.relation = None;
        for (column, owner) in self.owners.iter().enumerate() {
            if let (Some(_), Some(&bytes)) = (owner, sizes.get(column).filter(|&&bytes| bytes > 0)) {
                self.segment.raw.entry(*owner).or_default()[class(column) as usize] += bytes as u64;
            }
        }
        std::mem::take(&mut self.segment)
    }
}
