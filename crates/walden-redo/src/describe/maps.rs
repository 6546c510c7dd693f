//! Describes the visibility map and the free space map, by block of the table.

use super::Description;
use crate::page::maps::{
    FSM_INNER_NODES, FSM_LEAF_NODES, FSM_NEXT_SLOT_BYTES, HEAP_BLOCKS_PER_PAGE, VISIBILITYMAP_ALL_FROZEN,
    VISIBILITYMAP_ALL_VISIBLE,
};
use crate::page::{PAGE_CONTENTS, Page};

/// Formats runs of consecutive numbers as `3-7` or `3`.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    runs.into_iter().map(text).collect()
}

pub(super) fn visibility(page: &Page, block: u32, description: &mut Description) {
    let first = u64::from(block) * u64::from(HEAP_BLOCKS_PER_PAGE);
    let map = &page.0[PAGE_CONTENTS..];
    let with = |bit: u8| {
        let set = move |index: u64| map[(index / 4) as usize] >> (index % 4 * 2) & bit != 0;
        ranges(
            (0..u64::from(HEAP_BLOCKS_PER_PAGE))
                .filter(move |&index| set(index))
                .map(move |index| first + index),
        )
    };
    description
        .content
        .text("table_blocks", format_args!("{first}-{}", first + u64::from(HEAP_BLOCKS_PER_PAGE) - 1));
    description.content.list("all_visible", with(VISIBILITYMAP_ALL_VISIBLE).iter());
    description.content.list("all_frozen", with(VISIBILITYMAP_ALL_FROZEN).iter());
}

/// Describes a page of the free space map. The map is a tree of pages, each a tree of nodes; a leaf's byte is
/// a block's free space in 32nds of a kilobyte.
pub(super) fn free_space(page: &Page, block: u32, description: &mut Description) {
    let content = page.contents();
    let slots = u64::from(FSM_LEAF_NODES);
    // The file has the root first, then each page of the middle level followed by its leaves.
    let (level, first) = match u64::from(block) {
        0 => (2, 0),
        block => {
            let (group, place) = ((block - 1) / (slots + 1), (block - 1) % (slots + 1));
            if place == 0 { (1, group * slots) } else { (0, (group * slots + place - 1) * slots) }
        }
    };
    description.kind = format!("{} level {level}", description.kind);
    let mut next_slot = [0; FSM_NEXT_SLOT_BYTES];
    next_slot.copy_from_slice(content.get(..FSM_NEXT_SLOT_BYTES).unwrap_or(&[0; FSM_NEXT_SLOT_BYTES]));
    description.content.signed("fp_next_slot", Some(i32::from_le_bytes(next_slot).into()));
    let nodes = content.get(FSM_NEXT_SLOT_BYTES..).unwrap_or(&[]);
    let leaves = nodes.get(FSM_INNER_NODES..).unwrap_or(&[]);
    let most = nodes.first().copied().unwrap_or(0);
    description.content.number("most_free_bytes", free_bytes(most));
    let mut classes: Vec<String> = Vec::new();
    for class in (1..=u8::MAX).rev() {
        let here = leaves.iter().enumerate().filter(|(_, leaf)| **leaf == class);
        let numbers = ranges(here.map(|(index, _)| first + index as u64));
        if !numbers.is_empty() {
            classes.push(format!("{}:{}", free_bytes(class), numbers.join(",")));
        }
    }
    let name = if level == 0 { "free_bytes_of_blocks" } else { "free_bytes_below" };
    description.content.list(name, classes.iter());
}

/// Returns the minimum number of free bytes of a free space category (`fsm_space_cat_to_avail`).
fn free_bytes(class: u8) -> u32 {
    const MAX_FREE_BYTES: u32 = 8160;
    if class == u8::MAX { MAX_FREE_BYTES } else { u32::from(class) * 32 }
}

#[cfg(test)]
mod tests {
    use walden_format::record::Fork;

    use super::super::{Value, describe};
    use super::*;
    use crate::page::PAGE_BYTES;

    #[test]
    fn bits_are_the_tables_blocks() {
        let mut page = Page::default();
        page.init(0);
        page.0[PAGE_CONTENTS] = 0b0011_0101;
        page.0[PAGE_BYTES - 1] = 0b0100_0000;
        let description = describe(&page, Fork::VISIBILITY_MAP, 1, None);
        let text = |name| description.content.get(name).map(Value::to_string).unwrap();
        assert_eq!(text("table_blocks"), "32672-65343");
        assert_eq!(text("all_visible"), "32672-32674 65343");
        assert_eq!(text("all_frozen"), "32674");
    }

    #[test]
    fn free_space_is_described_by_block() {
        let mut page = Page::default();
        page.init(0);
        page.0[PAGE_CONTENTS + 4] = 200;
        for (slot, class) in [(0, 200), (1, 3), (2, 3)] {
            page.0[PAGE_CONTENTS + 4 + FSM_INNER_NODES + slot] = class;
        }
        let text = |block| {
            let description = describe(&page, Fork::FREE_SPACE_MAP, block, None);
            (description.kind.clone(), description.content.0.last().unwrap().value.to_string())
        };
        assert_eq!(text(2), ("free space map level 0".into(), "6400:0 96:1-2".into()));
        assert_eq!(text(3).1, "6400:4069 96:4070-4071");
        assert_eq!(text(1).0, "free space map level 1");
        assert_eq!(text(0).0, "free space map level 2");
        assert_eq!(text(1 + 4070).0, "free space map level 1");
    }
}
