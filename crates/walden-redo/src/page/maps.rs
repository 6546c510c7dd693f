//! Pages of the visibility map (`visibilitymap.c`) and of the free space map (`fsm_internals.h`): a header,
//! and bits or bytes for the blocks of the relation.

use super::{PAGE_BYTES, PAGE_CONTENTS};

/// Bit of a block: all its tuples are visible to everyone (`VISIBILITYMAP_ALL_VISIBLE`).
pub const VISIBILITYMAP_ALL_VISIBLE: u8 = 0x01;
/// Bit of a block: all its tuples are frozen (`VISIBILITYMAP_ALL_FROZEN`).
pub const VISIBILITYMAP_ALL_FROZEN: u8 = 0x02;
/// Both bits (`VISIBILITYMAP_VALID_BITS`).
pub const VISIBILITYMAP_VALID_BITS: u8 = VISIBILITYMAP_ALL_VISIBLE | VISIBILITYMAP_ALL_FROZEN;
/// Bits of a block in the visibility map (`BITS_PER_HEAPBLOCK`).
pub const BITS_PER_HEAP_BLOCK: u32 = 2;
/// Number of table blocks per byte of the visibility map (`HEAPBLOCKS_PER_BYTE`).
pub const HEAP_BLOCKS_PER_BYTE: u32 = 8 / BITS_PER_HEAP_BLOCK;
/// Number of table blocks per page of the visibility map (`HEAPBLOCKS_PER_PAGE`).
pub const HEAP_BLOCKS_PER_PAGE: u32 = (PAGE_BYTES - PAGE_CONTENTS) as u32 * HEAP_BLOCKS_PER_BYTE;

/// Bytes of `fp_next_slot`, before the nodes of a free space map's page.
pub const FSM_NEXT_SLOT_BYTES: usize = 4;
/// Inner nodes of a free space map's page (`NonLeafNodesPerPage`).
pub const FSM_INNER_NODES: usize = PAGE_BYTES / 2 - 1;
/// Leaf nodes of a free space map's page (`LeafNodesPerPage`), each for a block of the relation, or a page of
/// the level below.
pub const FSM_LEAF_NODES: u32 = (PAGE_BYTES - PAGE_CONTENTS - FSM_NEXT_SLOT_BYTES - FSM_INNER_NODES) as u32;
