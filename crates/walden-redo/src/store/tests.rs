use proptest::prelude::*;
use walden_format::rmgr;
use walden_format::version::Major;

use super::*;
use crate::page::{Misfit, PAGE_BYTES};

const RELATION: RelFileLocator = RelFileLocator { tablespace: 1663, database: 5, relation: 7 };
const OTHER: RelFileLocator = RelFileLocator { tablespace: 1663, database: 6, relation: 7 };

fn key(relation: RelFileLocator, block: u32) -> BlockKey {
    BlockKey { relation, fork: Fork::MAIN, block }
}

fn last() -> LastRecord {
    LastRecord { lsn: Lsn(40), kind: rmgr::kind(Major::V18, 10, 0) }
}

fn filled(byte: u8) -> PageBox {
    PageBox::from(&Page([byte; PAGE_BYTES]))
}

fn first_byte(store: &mut PageStore, slot: Slot) -> Option<u8> {
    let mut page = Page::default();
    store.read(slot, &mut page).then(|| {
        assert!(page.0.iter().all(|&byte| byte == page.0[0]));
        page.0[0]
    })
}

fn small() -> PageStore {
    PageStore::new(StoreOptions { memory_bytes: 0, ..StoreOptions::default() })
}

/// A base of 4 blocks in each relation, filled with the block's number plus 100; the third one cannot be
/// read.
#[derive(Debug)]
struct FourBlocks;

impl BasePages for FourBlocks {
    fn read(&mut self, key: BlockKey, page: &mut Page) -> io::Result<bool> {
        match key.block {
            2 => Err(io::ErrorKind::PermissionDenied.into()),
            block => {
                page.0.fill(block as u8 + 100);
                Ok(block < 4)
            }
        }
    }
}

fn with_base(memory_bytes: usize) -> PageStore {
    PageStore::new(StoreOptions { memory_bytes, base: Some(Box::new(FourBlocks)), ..StoreOptions::default() })
}

#[test]
fn pages_beyond_the_bound_are_read_back() {
    let mut store = small();
    for block in 0..100 {
        let slot = store.slot(key(RELATION, block));
        store.put(slot, filled(block as u8), last());
    }
    assert_eq!(store.kept(), (MIN_RESIDENT, 100 - MIN_RESIDENT));
    for block in 0..100 {
        let slot = store.find(key(RELATION, block)).unwrap();
        assert_eq!(first_byte(&mut store, slot), Some(block as u8));
        assert_eq!(store.last(slot), Some(last()));
    }
    store.truncate(RELATION, Fork::MAIN, 50);
    assert!(store.kept().1 <= 50);
    store.drop_relation(RELATION);
    assert_eq!(store.kept(), (0, 0));
    assert!(store.blocks().is_empty());
    for block in 0..100 {
        let slot = store.slot(key(OTHER, block));
        assert_eq!((store.take(slot), store.state(slot)).1, State::Unknown(Unknown::NotSeen));
        store.put(slot, filled(block as u8), last());
    }
    // The spill file reuses the places of dropped pages.
    assert_eq!(store.spill.pages(), 100 - MIN_RESIDENT);
}

#[test]
fn truncation_forgets_all_blocks_from_its_length_on() {
    let mut store = PageStore::default();
    let met = |store: &PageStore| -> Vec<u32> {
        store.blocks_of(RELATION, Fork::MAIN).into_iter().map(|(block, _)| block).collect()
    };
    for block in [0, 7, 3, u32::MAX] {
        store.slot(key(RELATION, block));
    }
    store.truncate(RELATION, Fork::MAIN, u32::MAX);
    assert_eq!(met(&store), [0, 3, 7]);
    store.truncate(RELATION, Fork::MAIN, 8);
    assert_eq!(met(&store), [0, 3, 7]);
    store.truncate(RELATION, Fork::MAIN, 3);
    assert_eq!(met(&store), [0]);
    // Blocks that are added again are truncated again.
    store.slot(key(RELATION, 5));
    store.truncate(RELATION, Fork::MAIN, 5);
    assert_eq!(met(&store), [0]);
    // A fork that replaces a dropped one starts without blocks.
    store.drop_relation(RELATION);
    store.slot(key(RELATION, 1));
    store.truncate(RELATION, Fork::MAIN, 1);
    assert!(met(&store).is_empty());
}

#[test]
fn an_unchanged_page_is_not_written_again() {
    let mut store = small();
    let slots: Vec<Slot> = (0..20).map(|block| store.slot(key(RELATION, block))).collect();
    for (number, &slot) in slots.iter().enumerate() {
        store.put(slot, filled(number as u8), last());
    }
    let slot = slots[0];
    assert!(store.entries[slot.0 as usize].page.is_none());
    let page = store.take(slot).unwrap();
    assert!(store.take(slot).is_none(), "it is out");
    store.put_back(slot, page);
    assert_eq!(store.entries[slot.0 as usize].flags & CHANGED, 0);
    store.change(key(RELATION, 0), |page| page.0.fill(77));
    for &slot in &slots[1..] {
        let page = store.take(slot).unwrap();
        store.put_back(slot, page);
    }
    assert!(store.entries[slot.0 as usize].page.is_none());
    assert_eq!(first_byte(&mut store, slot), Some(77));
}

#[test]
fn a_temporary_file_that_cannot_be_written_is_reported() {
    let nowhere = PathBuf::from("/nowhere/at/all");
    let options = StoreOptions { memory_bytes: 0, spill_dir: nowhere, ..StoreOptions::default() };
    let mut store = PageStore::new(options);
    for block in 0..20 {
        let slot = store.slot(key(RELATION, block));
        store.put(slot, filled(1), last());
    }
    let failure = store.failure().unwrap();
    assert!(
        failure.to_string().starts_with("cannot write a temporary file of pages in /nowhere"),
        "{failure}"
    );
    assert_eq!(store.kept(), (MIN_RESIDENT, 0));
    let lost = store.blocks().iter().filter(|(_, slot)| store.state(*slot) != State::Exact).count();
    assert_eq!(lost, 20 - MIN_RESIDENT);
}

#[test]
fn a_lack_of_memory_for_an_image_is_reported_and_damage_is_not() {
    let mut store = PageStore::default();
    store.note_misfit(Misfit("the image's bytes cannot be restored"));
    assert!(store.failure().is_none());
    store.note_misfit(NO_MEMORY);
    let failure = store.failure().unwrap();
    assert_eq!(failure.error.kind(), io::ErrorKind::OutOfMemory);
    assert!(failure.to_string().contains("memory is lacking"), "{failure}");
}

#[test]
fn blocks_not_met_before_come_from_the_base() {
    for memory_bytes in [0, usize::MAX] {
        let mut store = with_base(memory_bytes);
        let slot = store.slot(key(RELATION, 1));
        assert_eq!((store.state(slot), store.last(slot)), (State::Exact, None));
        // Evicted from memory, and read from the base again.
        for relation in 100..120 {
            let relation = RelFileLocator { relation, ..RELATION };
            assert!(store.find(key(relation, 0)).is_some());
        }
        assert_eq!(store.kept().1, 0);
        assert_eq!(store.take(slot).unwrap().0[0], 101);
        store.put(slot, filled(9), last());
        assert_eq!(first_byte(&mut store, slot), Some(9));
        assert_eq!(store.find(key(RELATION, 4)), None);
        assert!(store.failure().is_none());
        let unreadable = store.slot(key(RELATION, 2));
        assert_eq!(store.state(unreadable), State::Unknown(Unknown::Lost));
        assert!(store.failure().unwrap().to_string().contains("base backup"));
    }
}

#[test]
fn a_database_that_the_caller_copied_is_read_from_the_base() {
    let mut store = with_base(usize::MAX);
    let slot = store.slot(key(OTHER, 1));
    assert!(!store.is_changed(slot));
    store.put(slot, filled(9), last());
    assert!(store.is_changed(slot));
    store.drop_relation(OTHER);
    store.copy_database(OTHER.database, OTHER.tablespace);
    assert_eq!(store.find(key(OTHER, 1)), None);
    store.read_database_from_base(OTHER.database, OTHER.tablespace);
    let slot = store.find(key(OTHER, 1)).unwrap();
    assert_eq!(first_byte(&mut store, slot), Some(101));
    assert!(!store.is_changed(slot));
    // A page that is in the temporary file alone differs from the base's.
    let mut store = with_base(0);
    let slot = store.slot(key(OTHER, 1));
    store.put(slot, filled(9), last());
    for block in 10..30 {
        let other = store.slot(key(RELATION, block));
        store.put(other, filled(1), last());
    }
    assert!(store.kept().1 > 0 && store.is_changed(slot));
}

#[test]
fn what_was_cut_or_dropped_is_not_in_the_base() {
    let mut store = with_base(usize::MAX);
    let knows = |store: &mut PageStore, relation, block| {
        let slot = store.slot(key(relation, block));
        store.state(slot)
    };
    let not_seen = State::Unknown(Unknown::NotSeen);
    store.truncate(RELATION, Fork::MAIN, 1);
    store.truncate(RELATION, Fork::MAIN, 3);
    assert_eq!(knows(&mut store, RELATION, 0), State::Exact);
    assert_eq!(knows(&mut store, RELATION, 1), not_seen);
    store.drop_relation(RELATION);
    assert_eq!(knows(&mut store, RELATION, 0), not_seen);
    assert_eq!(knows(&mut store, OTHER, 0), State::Exact);
    store.copy_database(OTHER.database, OTHER.tablespace);
    assert_eq!(knows(&mut store, OTHER, 0), State::Unknown(Unknown::DatabaseCopied));
    store.drop_database(OTHER.database, Some(OTHER.tablespace));
    assert_eq!(knows(&mut store, OTHER, 0), not_seen);
    let third = RelFileLocator { database: 9, ..OTHER };
    assert_eq!(knows(&mut store, third, 0), State::Exact);
    store.drop_database(9, None);
    assert_eq!(knows(&mut store, third, 0), not_seen);
    let fourth = RelFileLocator { database: 10, ..OTHER };
    store.drop_database_in(10, [1, 2].into_iter());
    assert_eq!(knows(&mut store, fourth, 0), State::Exact);
    store.drop_database_in(10, [1, OTHER.tablespace].into_iter());
    assert_eq!(knows(&mut store, fourth, 0), not_seen);
}

#[test]
fn states_survive_their_short_form() {
    let mut store = PageStore::default();
    let names: Vec<&'static str> = (0..300).map(|n| &*format!("misfit {n}").leak()).collect();
    let misfits = names.iter().map(|&name| State::Unknown(Unknown::Misfit(Misfit(name))));
    let others =
        [State::Untracked, State::Unknown(Unknown::NotSeen), State::Unknown(Unknown::DatabaseCopied)];
    let states: Vec<State> = others.into_iter().chain(misfits).collect();
    for (block, &state) in states.iter().enumerate() {
        let slot = store.slot(key(RELATION, block as u32));
        store.give_up(slot, state, last());
    }
    for (block, &state) in states.iter().enumerate() {
        let slot = store.slot(key(RELATION, block as u32));
        if block < 250 {
            assert_eq!(store.state(slot), state);
        } else {
            assert!(matches!(store.state(slot), State::Unknown(Unknown::Misfit(_))));
        }
    }
}

/// An operation on a store.
#[derive(Clone, Debug)]
enum Act {
    Put(u8, u8),
    Change(u8, u8),
    Keep(u8),
    GiveUp(u8),
    Truncate(u8),
    Drop,
    DropDatabase,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => any::<(u8, u8)>().prop_map(|(block, byte)| Act::Put(block, byte)),
        4 => any::<(u8, u8)>().prop_map(|(block, byte)| Act::Change(block, byte)),
        4 => any::<u8>().prop_map(Act::Keep),
        2 => any::<u8>().prop_map(Act::GiveUp),
        1 => any::<u8>().prop_map(Act::Truncate),
        1 => Just(Act::Drop),
        1 => Just(Act::DropDatabase),
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    /// Compares a store of two relations with up to 32 blocks, where memory holds 8 pages, with a map.
    #[test]
    fn a_bounded_store_is_a_map(acts in acts()) {
        let mut store = small();
        let mut map = std::collections::BTreeMap::new();
        let place = |number: u8| key(if number & 32 == 0 { RELATION } else { OTHER }, (number & 31).into());
        for act in acts {
            match act {
                Act::Put(block, byte) => {
                    let slot = store.slot(place(block));
                    store.put(slot, filled(byte), last());
                    map.insert(place(block), byte);
                }
                Act::Change(block, byte) => {
                    let slot = store.slot(place(block));
                    let page = store.take(slot);
                    prop_assert_eq!(page.as_ref().map(|page| page.0[0]), map.get(&place(block)).copied());
                    if let Some(mut page) = page {
                        page.0.fill(byte);
                        store.put(slot, page, last());
                        map.insert(place(block), byte);
                    }
                }
                Act::Keep(block) => {
                    let slot = store.slot(place(block));
                    if let Some(page) = store.take(slot) {
                        store.put_back(slot, page);
                    }
                }
                Act::GiveUp(block) => {
                    let slot = store.slot(place(block));
                    let _ = store.take(slot);
                    store.give_up(slot, State::Untracked, last());
                    map.remove(&place(block));
                }
                Act::Truncate(blocks) => {
                    store.truncate(RELATION, Fork::MAIN, blocks.into());
                    map.retain(|key, _| key.relation != RELATION || key.block < blocks.into());
                }
                Act::Drop => {
                    store.drop_relation(OTHER);
                    map.retain(|key, _| key.relation != OTHER);
                }
                Act::DropDatabase => {
                    store.drop_database(RELATION.database, None);
                    map.retain(|key, _| key.relation != RELATION);
                }
            }
            prop_assert!(store.kept().0 <= MIN_RESIDENT);
        }
        let exact: Vec<(BlockKey, Slot)> =
            store.blocks().into_iter().filter(|(_, slot)| store.state(*slot) == State::Exact).collect();
        let held: Vec<(BlockKey, u8)> =
            exact.into_iter().map(|(key, slot)| (key, first_byte(&mut store, slot).unwrap())).collect();
        prop_assert_eq!(held, map.into_iter().collect::<Vec<_>>());
        prop_assert!(store.failure().is_none());
    }
}
