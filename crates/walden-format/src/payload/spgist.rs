//! Changes of SP-GiST indexes: the resource manager SPGist.
//!
//! Structures: `access/spgxlog.h`. They are not payloads of their own yet; replay reads them here. Lists of line pointers and
//! tuples follow the structures; all of them are main data.

use super::layout::layout;
use crate::rmgr::info::RMGR_MASK;
use crate::rmgr::info::spgist::{MOVE_LEAFS, PICKSPLIT};

layout! {
    /// `spgxlogAddLeaf`: `ADD_LEAF`. The leaf tuple follows.
    XlSpgistAddLeaf[10] {
        /// Whether the page is initialized.
        0 is_new_page: bool,
        /// Whether the page is of the tree of nulls.
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
    /// `spgxlogState`: what a record says of the backend that wrote it.
    XlSpgistState[8] {
        /// The transaction that redirections name.
        0 redirect_xid: u32,
        /// Whether the index is being built.
        4 is_build: bool,
    }
}

layout! {
    /// `spgxlogMoveLeafs`: `MOVE_LEAFS`. An [`XlSpgistState`], the removed line pointers, the new ones and the tuples follow.
    XlSpgistMoveLeafs[12] {
        /// How many tuples are moved.
        0 moves: u16,
        /// Whether the target page is initialized.
        2 is_new_page: bool,
        /// Whether a single dead tuple is replaced.
        3 replaces_dead: bool,
        /// Whether the pages are of the tree of nulls.
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
        /// The line pointer of the tuple before.
        0 old_offset: u16,
        /// The line pointer of the tuple now.
        2 new_offset: u16,
        /// Whether the tuple's new page is initialized.
        4 is_new_page: bool,
        /// The id of the block that has the parent: 0 to 2; -1 if the parent does not change.
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
    /// `spgxlogPickSplit`: `PICKSPLIT`. An [`XlSpgistState`] follows, the removed line pointers, the new ones, for each of those a
    /// byte that says which page it is of, the inner tuple and the leaf tuples.
    XlSpgistPickSplit[20] {
        /// Whether the page that was split is the root.
        0 is_root_split: bool,
        /// How many tuples are removed from the source page.
        2 deletes: u16,
        /// How many tuples are added.
        4 inserts: u16,
        /// Whether the source page is initialized.
        6 is_new_source: bool,
        /// Whether the target page is initialized.
        7 is_new_target: bool,
        /// The inner tuple's line pointer.
        8 inner_offset: u16,
        /// Whether the inner tuple's page is initialized.
        10 is_new_inner: bool,
        /// Whether the pages are of the tree of nulls.
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
        /// How many tuples become dead.
        0 dead: u16,
        /// How many tuples become placeholders.
        2 placeholders: u16,
        /// How many tuples change places: each has two line pointers.
        4 moves: u16,
        /// How many tuples get another next one in their chain: each has two line pointers.
        6 chains: u16,
    }
}

layout! {
    /// `spgxlogVacuumRoot`: `VACUUM_ROOT`. An [`XlSpgistState`] and the removed line pointers follow.
    XlSpgistVacuumRoot[4] {
        /// How many tuples are removed.
        0 deletes: u16,
    }
}

layout! {
    /// `spgxlogVacuumRedirect`: `VACUUM_REDIRECT`. Since 16 two more bytes follow, then the line pointers.
    XlSpgistVacuumRedirect[8] {
        /// How many redirections become placeholders.
        0 to_placeholder: u16,
        /// The first placeholder at the page's end that is removed, or 0.
        2 first_placeholder: u16,
        /// Standbys cancel queries that need what this or an earlier transaction removed.
        4 conflict_horizon: u32,
    }
}

/// What `MOVE_LEAFS` and `PICKSPLIT` have before their leaf tuples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedLeafs {
    /// Bytes of the structure with its [`XlSpgistState`].
    pub width: usize,
    /// The removed line pointers that follow.
    pub deletes: usize,
    /// The new line pointers that follow these. Each has a leaf tuple.
    pub inserts: usize,
    /// Whether a byte for each of these and an inner tuple follow.
    pub has_inner_tuple: bool,
}

impl MovedLeafs {
    /// Bytes of a line pointer's number.
    pub const NUMBER_BYTES: usize = 2;

    /// The width of the structures, by the record's info.
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

    /// The bytes of the parts: structure, removed and new line pointers, bytes for these, inner tuple, leaf tuples.
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
