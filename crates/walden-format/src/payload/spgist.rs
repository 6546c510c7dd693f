//! Changes of SP-GiST indexes: the resource manager SPGist.
//!
//! Structures: `access/spgxlog.h`. [`super::Payload`] has no variants for these structures; replay reads them
//! with this module. Lists of line pointers and tuples follow the structures in the main data.

use super::layout::layout;
use crate::rmgr::info::RMGR_MASK;
use crate::rmgr::info::spgist::{MOVE_LEAFS, PICKSPLIT};

layout! {
    /// `spgxlogAddLeaf`: `ADD_LEAF`. The leaf tuple follows.
    XlSpgistAddLeaf[10] {
        /// Whether the page is initialized.
        0 is_new_page: bool,
        /// Whether the page belongs to the tree of nulls.
        1 stores_nulls: bool,
        /// The tuple's line pointer.
        2 leaf_offset: u16,
        /// The line pointer of the chain's head, or 0.
        4 head_offset: u16,
        /// The line pointer of the parent tuple, or 0.
        6 parent_offset: u16,
        /// The parent's node.
        8 parent_node: u16,
    }
}

layout! {
    /// `spgxlogState`: the state of the backend that wrote the record.
    XlSpgistState[8] {
        /// The transaction ID stored in redirection tuples.
        0 redirect_xid: u32,
        /// Whether the index is being built.
        4 is_build: bool,
    }
}

layout! {
    /// `spgxlogMoveLeafs`: `MOVE_LEAFS`. An [`XlSpgistState`], the removed line pointers, the new line
    /// pointers and the tuples follow.
    XlSpgistMoveLeafs[12] {
        /// The number of moved tuples.
        0 moves: u16,
        /// Whether the target page is initialized.
        2 is_new_page: bool,
        /// Whether a single dead tuple is replaced.
        3 replaces_dead: bool,
        /// Whether the pages belong to the tree of nulls.
        4 stores_nulls: bool,
        /// The line pointer of the parent tuple.
        6 parent_offset: u16,
        /// The parent's node.
        8 parent_node: u16,
    }
}

layout! {
    /// `spgxlogAddNode`: `ADD_NODE`. An [`XlSpgistState`] and the inner tuple follow.
    XlSpgistAddNode[12] {
        /// The line pointer of the old tuple.
        0 old_offset: u16,
        /// The line pointer of the new tuple.
        2 new_offset: u16,
        /// Whether the tuple's new page is initialized.
        4 is_new_page: bool,
        /// The id of the block with the parent: 0 to 2; -1 if the parent does not change.
        5 parent_block: u8,
        /// The line pointer of the parent tuple.
        6 parent_offset: u16,
        /// The parent's node.
        8 parent_node: u16,
    }
}

layout! {
    /// `spgxlogSplitTuple`: `SPLIT_TUPLE`. The prefix tuple and the postfix tuple follow.
    XlSpgistSplitTuple[6] {
        /// The prefix tuple's line pointer.
        0 prefix_offset: u16,
        /// The postfix tuple's line pointer.
        2 postfix_offset: u16,
        /// Whether the postfix tuple's page is initialized.
        4 is_new_page: bool,
        /// Whether the postfix tuple is on the prefix tuple's page.
        5 is_on_same_page: bool,
    }
}

layout! {
    /// `spgxlogPickSplit`: `PICKSPLIT`. An [`XlSpgistState`] follows, then the removed line pointers, the new
    /// line pointers, a byte per new line pointer that selects its page, the inner tuple and the leaf tuples.
    XlSpgistPickSplit[20] {
        /// Whether the page that was split is the root.
        0 is_root_split: bool,
        /// The number of tuples removed from the source page.
        2 deletes: u16,
        /// The number of added tuples.
        4 inserts: u16,
        /// Whether the source page is initialized.
        6 is_new_source: bool,
        /// Whether the target page is initialized.
        7 is_new_target: bool,
        /// The inner tuple's line pointer.
        8 inner_offset: u16,
        /// Whether the inner tuple's page is initialized.
        10 is_new_inner: bool,
        /// Whether the pages belong to the tree of nulls.
        11 stores_nulls: bool,
        /// Whether the inner tuple is on the parent's page.
        12 is_inner_on_parent_page: bool,
        /// The line pointer of the parent tuple.
        14 parent_offset: u16,
        /// The parent's node.
        16 parent_node: u16,
    }
}

layout! {
    /// `spgxlogVacuumLeaf`: `VACUUM_LEAF`. An [`XlSpgistState`] and six lists of line pointers follow.
    XlSpgistVacuumLeaf[8] {
        /// The number of tuples that become dead.
        0 dead: u16,
        /// The number of tuples that become placeholders.
        2 placeholders: u16,
        /// The number of tuples that move: each has two line pointers.
        4 moves: u16,
        /// The number of tuples whose next tuple in the chain changes: each has two line pointers.
        6 chains: u16,
    }
}

layout! {
    /// `spgxlogVacuumRoot`: `VACUUM_ROOT`. An [`XlSpgistState`] and the removed line pointers follow.
    XlSpgistVacuumRoot[4] {
        /// The number of removed tuples.
        0 deletes: u16,
    }
}

layout! {
    /// `spgxlogVacuumRedirect`: `VACUUM_REDIRECT`. Since 16 two more bytes follow, then the line pointers.
    XlSpgistVacuumRedirect[8] {
        /// The number of redirections that become placeholders.
        0 to_placeholder: u16,
        /// The first placeholder at the page's end that is removed, or 0.
        2 first_placeholder: u16,
        /// Standbys cancel queries that need tuples removed by this or an earlier transaction.
        4 conflict_horizon: u32,
    }
}

/// The part of `MOVE_LEAFS` and `PICKSPLIT` before their leaf tuples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedLeafs {
    /// Bytes of the structure including its [`XlSpgistState`].
    pub width: usize,
    /// The removed line pointers that follow.
    pub deletes: usize,
    /// The new line pointers that follow these; each has a leaf tuple.
    pub inserts: usize,
    /// Whether a page byte for each new line pointer and an inner tuple follow.
    pub has_inner_tuple: bool,
}

impl MovedLeafs {
    /// Bytes of an offset number.
    pub const NUMBER_BYTES: usize = 2;

    /// Returns the width of the structures for the record's info byte.
    pub fn width(info: u8) -> Option<usize> {
        match info & RMGR_MASK {
            MOVE_LEAFS => Some(XlSpgistMoveLeafs::WIDTH + XlSpgistState::WIDTH),
            PICKSPLIT => Some(XlSpgistPickSplit::WIDTH + XlSpgistState::WIDTH),
            _ => None,
        }
    }

    /// Reads the structure at the start of main data.
    pub fn read(info: u8, main: &[u8]) -> Option<MovedLeafs> {
        let width = MovedLeafs::width(info)?;
        let has_inner_tuple = info & RMGR_MASK == PICKSPLIT;
        let (deletes, inserts) = if has_inner_tuple {
            let split = XlSpgistPickSplit::read(main)?;
            (split.deletes.into(), split.inserts.into())
        } else {
            let moved = XlSpgistMoveLeafs::read(main)?;
            let count = usize::from(moved.moves);
            (count, if moved.replaces_dead { 1 } else { count + 1 })
        };
        Some(MovedLeafs { width, deletes, inserts, has_inner_tuple })
    }

    /// Splits the main data into its parts: structure, removed and new line pointers, page bytes, inner
    /// tuple, leaf tuples.
    pub fn split(self, main: &[u8]) -> Option<[&[u8]; 6]> {
        let (structure, rest) = main.split_at_checked(self.width)?;
        let (deleted, rest) = rest.split_at_checked(self.deletes * MovedLeafs::NUMBER_BYTES)?;
        let (inserted, rest) = rest.split_at_checked(self.inserts * MovedLeafs::NUMBER_BYTES)?;
        if !self.has_inner_tuple {
            return Some([structure, deleted, inserted, &[], &[], rest]);
        }
        let (pages, rest) = rest.split_at_checked(self.inserts)?;
        // The size of the inner tuple follows its first four bytes.
        let size: [u8; 2] = *rest.get(4..)?.first_chunk()?;
        let (inner, leafs) = rest.split_at_checked(u16::from_le_bytes(size).into())?;
        Some([structure, deleted, inserted, pages, inner, leafs])
    }
}
