//! Line pointers, by what has to be coded of them: mostly that an item is right before the last one, where `PageAddItemExtended` and
//! `compactify_tuples` in `bufpage.c` put it.

use walden_redo::page::{ItemState, LINE_POINTER_BYTES, LinePointer, PAGE_BYTES, Page};

use crate::column_kind::{Class, Kind};
use crate::columns::{Coder, Column};
use crate::predict::TupleCoder;
use crate::predict::keyed_columns::Topic;
use crate::predict::relation::BlockAddress;
use crate::tuple::items::{normal, right_before};
use crate::{Corrupt, corrupt};

/// What has to be coded of a line pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PointerForm {
    /// All of it.
    Any = 0,
    /// It is unused and empty.
    Unused = 1,
    /// It is dead and empty.
    Dead = 2,
    /// It leads to another one.
    Redirect = 3,
    /// An item right before the last one, towards the page's start.
    Next = 4,
    /// An item elsewhere.
    Elsewhere = 5,
}

impl PointerForm {
    /// Of a line pointer, the item of which can be coded as one or not; `last` is where the last item begins.
    pub fn of(pointer: LinePointer, has_item: bool, last: usize) -> PointerForm {
        match pointer.state() {
            ItemState::Unused if pointer == LinePointer::UNUSED => PointerForm::Unused,
            ItemState::Dead if pointer == LinePointer::dead() => PointerForm::Dead,
            ItemState::Redirect if pointer.is_empty() => PointerForm::Redirect,
            _ => PointerForm::of_item(pointer, has_item, last),
        }
    }

    /// The same where only items have forms of their own.
    pub fn of_item(pointer: LinePointer, has_item: bool, last: usize) -> PointerForm {
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
        form.copied().ok_or_else(|| corrupt("cannot decode a line pointer: expected form 0 to 5"))
    }
}

/// Where line pointers of a relation's fork are coded.
#[derive(Clone, Copy)]
pub struct LinePointerColumns {
    /// Their forms.
    pointers: Column,
    offsets: Column,
    /// Those of [`PointerForm::Any`].
    any_pointers: Column,
}

impl LinePointerColumns {
    /// Of pages that are seen first.
    pub fn of_new_page<S: Coder>(
        coder: &mut TupleCoder<'_, S>,
        address: BlockAddress,
    ) -> Result<Self, Corrupt> {
        LinePointerColumns::new(coder, address, [Topic::Pointers, Topic::Offsets, Topic::AnyPointers])
    }

    /// Of pages of which an older one is known.
    pub fn of_known_page<S: Coder>(
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

    /// The column of forms, and the symbol of an item right before the last one.
    pub fn next(self) -> (Column, u8) {
        (self.pointers, PointerForm::Next as u8)
    }

    /// Codes a form.
    pub fn form<S: Coder>(self, coder: &mut S, form: PointerForm) -> Result<PointerForm, Corrupt> {
        PointerForm::from_code(coder.symbol(self.pointers, form as u64)?)
    }

    /// Codes a line pointer of a form that has no item.
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

    /// Codes where an item is, right before the `last` one or elsewhere, writes it to the page, and gives its line pointer.
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
