//! Codes line pointers. Most refer to an item that is directly before the previous line pointer's item on the
//! page, where `PageAddItemExtended` and `compactify_tuples` in `bufpage.c` place it.

use walden_redo::page::{ItemState, LINE_POINTER_BYTES, LinePointer, PAGE_BYTES, Page};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::tuple::items::{normal, right_before};
use crate::{Corrupt, corrupt};

/// Form in which a line pointer is coded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PointerForm {
    /// All its bytes.
    Any = 0,
    /// An unused line pointer without an item.
    Unused = 1,
    /// A dead line pointer without an item.
    Dead = 2,
    /// A redirect to another line pointer.
    Redirect = 3,
    /// An item directly before the previous line pointer's item, towards the start of the page.
    Next = 4,
    /// An item elsewhere.
    Elsewhere = 5,
}

impl PointerForm {
    /// Returns the form of a line pointer. `has_item` is whether its item can be coded, `last` the offset of
    /// the last item.
    pub fn from_pointer(pointer: LinePointer, has_item: bool, last: usize) -> PointerForm {
        match pointer.state() {
            ItemState::Unused if pointer == LinePointer::UNUSED => PointerForm::Unused,
            ItemState::Dead if pointer == LinePointer::dead() => PointerForm::Dead,
            ItemState::Redirect if pointer.is_empty() => PointerForm::Redirect,
            _ => PointerForm::from_item_pointer(pointer, has_item, last),
        }
    }

    /// As [`Self::from_pointer`], but only line pointers with items have their own forms.
    pub fn from_item_pointer(pointer: LinePointer, has_item: bool, last: usize) -> PointerForm {
        if pointer.state() != ItemState::Normal || !has_item {
            return PointerForm::Any;
        }
        match right_before(last, pointer.len().into()) == Some(pointer.offset().into()) {
            true => PointerForm::Next,
            false => PointerForm::Elsewhere,
        }
    }

    fn from_code(code: u64) -> Result<PointerForm, Corrupt> {
        const FORMS: [PointerForm; 6] = [
            PointerForm::Any,
            PointerForm::Unused,
            PointerForm::Dead,
            PointerForm::Redirect,
            PointerForm::Next,
            PointerForm::Elsewhere,
        ];
        let form = usize::try_from(code).ok().and_then(|code| FORMS.get(code));
        form.copied().ok_or_else(|| corrupt("cannot decode a line pointer: expected a form from 0 to 5"))
    }
}

/// Columns of line pointers, by relation and fork.
#[derive(Clone, Copy)]
pub struct LinePointerColumns {
    /// Forms.
    pointers: Column,
    offsets: Column,
    /// Line pointers of [`PointerForm::Any`].
    any_pointers: Column,
}

impl LinePointerColumns {
    /// Creates the columns for pages without a base.
    pub fn for_new_page<S: Coder>(
        coder: &mut TupleCoder<'_, S>,
        address: BlockAddress,
    ) -> Result<Self, Corrupt> {
        LinePointerColumns::new(coder, address, [Topic::Pointers, Topic::Offsets, Topic::AnyPointers])
    }

    /// Creates the columns for pages with a known older version.
    pub fn for_known_page<S: Coder>(
        coder: &mut TupleCoder<'_, S>,
        address: BlockAddress,
    ) -> Result<Self, Corrupt> {
        let topics = [Topic::ChangedPointers, Topic::ChangedOffsets, Topic::AnyChangedPointers];
        LinePointerColumns::new(coder, address, topics)
    }

    fn new<S: Coder>(
        coder: &mut TupleCoder<'_, S>,
        address: BlockAddress,
        [pointers, offsets, any_pointers]: [Topic; 3],
    ) -> Result<Self, Corrupt> {
        let key = [address.relation.number, address.fork.into(), 0];
        let mut column = |topic: Topic, kind: Kind| coder.keyed_columns.column(coder.coder, topic, key, kind);
        Ok(LinePointerColumns {
            pointers: column(pointers, Kind::Symbols(Class::PageHeaders))?,
            offsets: column(offsets, Kind::Symbols(Class::PageHeaders))?,
            any_pointers: column(any_pointers, Kind::Rows(Class::PageHeaders, LINE_POINTER_BYTES as u16))?,
        })
    }

    /// Returns the column of line pointer forms, and the symbol for an item that ends where the previously
    /// coded item starts.
    pub fn next(self) -> (Column, u8) {
        (self.pointers, PointerForm::Next as u8)
    }

    pub fn form<S: Coder>(self, coder: &mut S, form: PointerForm) -> Result<PointerForm, Corrupt> {
        PointerForm::from_code(coder.symbol(self.pointers, form as u64)?)
    }

    /// Codes a line pointer of a form without an item.
    pub fn pointer<S: Coder>(
        self,
        coder: &mut S,
        form: PointerForm,
        pointer: LinePointer,
    ) -> Result<LinePointer, Corrupt> {
        match form {
            PointerForm::Unused => Ok(LinePointer::UNUSED),
            PointerForm::Dead => Ok(LinePointer::dead()),
            PointerForm::Redirect => {
                let to = coder.symbol(self.offsets, pointer.offset().into())?;
                let to = u16::try_from(to).ok().filter(|&to| LinePointer::redirect(to).offset() == to);
                Ok(LinePointer::redirect(to.ok_or_else(|| {
                    corrupt("cannot decode a redirect: expected an offset number of 15 bits")
                })?))
            }
            PointerForm::Any | PointerForm::Next | PointerForm::Elsewhere => {
                Ok(LinePointer(u32::from_le_bytes(coder.array(self.any_pointers, &pointer.0.to_le_bytes())?)))
            }
        }
    }

    /// Codes the offset of an item, unless it is directly before the `last` one. Writes the item to the page
    /// and returns its line pointer.
    pub fn put_item<S: Coder>(
        self,
        coder: &mut S,
        (form, pointer): (PointerForm, LinePointer),
        bytes: &[u8],
        last: &mut usize,
        target: &mut Page,
    ) -> Result<LinePointer, Corrupt> {
        let len = bytes.len();
        let offset = if form == PointerForm::Next {
            right_before(*last, len)
                .ok_or_else(|| corrupt("cannot decode an item: expected one that fits before the last"))?
        } else {
            usize::try_from(coder.symbol(self.offsets, pointer.offset().into())?).unwrap_or(usize::MAX)
        };
        let end = offset.checked_add(len).filter(|&end| end <= PAGE_BYTES);
        let end = end.ok_or_else(|| corrupt("cannot decode an item: expected one that ends on the page"))?;
        target.0[offset..end].copy_from_slice(bytes);
        *last = offset;
        normal(offset, len)
    }
}
