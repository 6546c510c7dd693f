use proptest::prelude::*;

use super::*;

/// Builds a page whose items have another order than their line pointers: each is inserted before an existing
/// one.
fn page_of(items: &[(usize, u16)]) -> Page {
    let mut page = Page::default();
    page.init(16);
    for (number, &(len, place)) in (1_u8..).zip(items) {
        let place = place % (page.items() + 1) + 1;
        let _ = page.insert_item(&vec![number; len], place);
    }
    page
}

fn contents(page: &Page) -> Vec<Vec<u8>> {
    (1..=page.items()).map(|number| page.item(number).unwrap().to_vec()).collect()
}

/// Asserts that items follow each other from the page's end, in the order of their line pointers.
fn assert_laid_out(page: &Page) {
    let mut end = page.special();
    for number in 1..=page.items() {
        let pointer = page.line_pointer(number).unwrap();
        if !pointer.is_empty() {
            assert_eq!(usize::from(pointer.offset()), end - max_align(pointer.len().into()), "item {number}");
            end = pointer.offset().into();
        }
    }
    assert_eq!(page.upper(), end);
}

proptest! {
    #[test]
    fn items_keep_their_bytes_when_others_are_deleted(
        items in proptest::collection::vec((1_usize..200, any::<u16>()), 4..120),
        gone in proptest::collection::vec(any::<bool>(), 120),
    ) {
        let mut page = page_of(&items);
        let is_gone = |number: u16| gone[usize::from(number) - 1];
        let numbers: Vec<u16> = (1..=page.items()).filter(|&number| is_gone(number)).collect();
        let kept: Vec<Vec<u8>> =
            contents(&page).into_iter().zip((1..).map(is_gone)).filter(|(_, gone)| !gone).map(|(item, _)| item).collect();
        page.delete_items(&numbers).unwrap();
        prop_assert_eq!(contents(&page), kept);
        if numbers.len() > 2 {
            assert_laid_out(&page);
        }
    }

    #[test]
    fn items_keep_their_bytes_when_fragments_are_joined(
        items in proptest::collection::vec((1_usize..200, any::<u16>()), 1..120),
        states in proptest::collection::vec(0_u8..6, 120),
        truncate: bool,
    ) {
        let mut page = page_of(&items);
        for number in 1..=page.items() {
            match states[usize::from(number)- 1] {
                0 => page.set_line_pointer(number, LinePointer::UNUSED).unwrap(),
                1 => page.set_line_pointer(number, LinePointer::dead()).unwrap(),
                2 => page.set_line_pointer(number, LinePointer::redirect(1)).unwrap(),
                _ => {}
            }
        }
        let before = page.clone();
        page.repair_fragmentation(truncate).unwrap();
        assert_laid_out(&page);
        prop_assert!(page.items() <= before.items());
        for number in 1..=before.items() {
            let pointer = before.line_pointer(number).unwrap();
            match page.line_pointer(number) {
                Some(now) if pointer.is_empty() => prop_assert_eq!(now, pointer),
                Some(_) => prop_assert_eq!(page.item(number), before.item(number)),
                None => prop_assert!(truncate && pointer.state() == ItemState::Unused),
            }
        }
    }

    /// The life of a table's page: a heap tuple is removed, the others are compacted, and a new one reuses
    /// its line pointer.
    #[test]
    fn items_keep_their_bytes_as_others_come_and_go(
        sizes in proptest::collection::vec(1_usize..100, 2..60),
        rounds in proptest::collection::vec(
            (proptest::collection::vec(any::<u16>(), 1..4), 1_usize..100), 1..30
        ),
    ) {
        let mut page = Page::default();
        page.init(0);
        for (byte, &len) in (0_u8..).zip(&sizes) {
            page.insert_item(&vec![byte; len], page.items() + 1).unwrap();
        }
        let mut model: Vec<Vec<u8>> = contents(&page);
        for (byte, (gone, len)) in (100_u8..).zip(rounds) {
            let gone = gone.iter().map(|number| number % sizes.len() as u16 + 1);
            for number in gone.clone() {
                page.set_line_pointer(number, LinePointer::UNUSED).unwrap();
                model[usize::from(number) - 1].clear();
            }
            page.repair_fragmentation(false).unwrap();
            assert_laid_out(&page);
            for number in gone {
                if page.put_item(&vec![byte; len], number).is_ok() {
                    model[usize::from(number) - 1] = vec![byte; len];
                }
            }
            for (number, item) in (1..).zip(&model) {
                prop_assert_eq!(page.item(number).unwrap_or(&[]), item.as_slice());
            }
        }
    }
}
