//! Determines which access method a page belongs to from its content, because XLOG records do not contain it.

use walden_format::record::Fork;
use walden_format::rmgr::{Kind, rmid};

use crate::page::brin::{BRIN_PAGETYPE_META, BRIN_PAGETYPE_REGULAR};
use crate::page::btree::MAX_BT_CYCLE_ID;
use crate::page::gin;
use crate::page::gist::GIST_PAGE_ID;
use crate::page::hash::HASHO_PAGE_ID;
use crate::page::sequence::SEQ_MAGIC;
use crate::page::spgist::SPGIST_PAGE_ID;
use crate::page::{PAGE_BYTES, PAGE_HEADER_BYTES, Page};

/// The kind of file that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Family {
    /// A page that was never initialized.
    New,
    Heap,
    VisibilityMap,
    FreeSpaceMap,
    Btree,
    Hash,
    Gin,
    Gist,
    SpGist,
    Brin,
    Sequence,
    /// Not a page of PostgreSQL's own access methods.
    Other,
}

impl Family {
    /// Returns the family of a page by its content.
    ///
    /// Most index access methods have a page id in the last two bytes for this purpose. GIN has none: a page
    /// whose special area has GIN's size, and no other flags than GIN's at its end, counts as GIN. Pages of
    /// extensions, such as bloom (`BLOOM_PAGE_ID`), have other bits there.
    pub fn detect(page: &Page, fork: Fork) -> Family {
        match fork {
            Fork::FREE_SPACE_MAP => return Family::FreeSpaceMap,
            Fork::VISIBILITY_MAP => return Family::VisibilityMap,
            _ if page.is_new() => return Family::New,
            _ => {}
        }
        let special = page.special();
        if !(PAGE_HEADER_BYTES..=PAGE_BYTES).contains(&special) {
            return Family::Other;
        }
        let mark = page.u16_at(PAGE_BYTES - 2);
        match PAGE_BYTES - special {
            0 => Family::Heap,
            8 if page.u32_at(special) == SEQ_MAGIC => Family::Sequence,
            8 if mark == SPGIST_PAGE_ID => Family::SpGist,
            8 if (BRIN_PAGETYPE_META..=BRIN_PAGETYPE_REGULAR).contains(&mark) => Family::Brin,
            8 if mark & !gin::flags::ALL == 0 => Family::Gin,
            16 if mark == HASHO_PAGE_ID => Family::Hash,
            16 if mark == GIST_PAGE_ID => Family::Gist,
            16 if mark <= MAX_BT_CYCLE_ID => Family::Btree,
            _ => Family::Other,
        }
    }

    /// Returns the family of a page by its content and the last record that changed it. A page that an
    /// extension changes by Generic records is [`Family::Other`], regardless of its content.
    pub fn after(page: &Page, fork: Fork, last: Option<Kind>) -> Family {
        let is_generic = last.is_some_and(|kind| kind.rmid() == rmid::GENERIC);
        if is_generic { Family::Other } else { Family::detect(page, fork) }
    }

    /// Returns the resource manager whose records change pages of this family.
    pub fn manager(self) -> Option<u8> {
        Some(match self {
            Family::Heap | Family::VisibilityMap => rmid::HEAP,
            Family::Btree => rmid::BTREE,
            Family::Hash => rmid::HASH,
            Family::Gin => rmid::GIN,
            Family::Gist => rmid::GIST,
            Family::SpGist => rmid::SPGIST,
            Family::Brin => rmid::BRIN,
            Family::Sequence => rmid::SEQ,
            Family::New | Family::FreeSpaceMap | Family::Other => return None,
        })
    }

    /// Returns the name in output.
    pub fn name(self) -> &'static str {
        match self {
            Family::New => "new",
            Family::Heap => "heap",
            Family::VisibilityMap => "visibility map",
            Family::FreeSpaceMap => "free space map",
            Family::Btree => "btree",
            Family::Hash => "hash",
            Family::Gin => "gin",
            Family::Gist => "gist",
            Family::SpGist => "spgist",
            Family::Brin => "brin",
            Family::Sequence => "sequence",
            Family::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use walden_format::rmgr;
    use walden_format::version::Major;

    use super::*;

    fn page_with(special: usize, mark: u16) -> Page {
        let mut page = Page::default();
        page.init(special);
        page.put_u16(PAGE_BYTES - 2, mark);
        page
    }

    /// bloom's pages have a special area of GIN's size, and `BLOOM_PAGE_ID` at its end.
    #[test]
    fn pages_of_extensions_are_not_gin() {
        const BLOOM_PAGE_ID: u16 = 0xFF83;
        assert_eq!(Family::detect(&page_with(8, BLOOM_PAGE_ID), Fork::MAIN), Family::Other);
        assert_eq!(Family::detect(&page_with(8, 0x0100), Fork::MAIN), Family::Other);
        let gin = page_with(8, 0x0082);
        assert_eq!(Family::detect(&gin, Fork::MAIN), Family::Gin);
        let last = |rmid| Some(rmgr::kind(Major::V18, rmid, 0));
        assert_eq!(Family::after(&gin, Fork::MAIN, last(rmid::GIN)), Family::Gin);
        assert_eq!(Family::after(&gin, Fork::MAIN, last(rmid::GENERIC)), Family::Other);
        assert_eq!(Family::after(&gin, Fork::MAIN, None), Family::Gin);
    }
}
