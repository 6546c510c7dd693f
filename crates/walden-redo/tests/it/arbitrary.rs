//! Converts bytes into a few records and pages, for the fuzzer and the property test.

use std::collections::BTreeMap;
use std::sync::Arc;

use walden_format::lsn::Lsn;
use walden_format::record::{Fork, RECORD_HEADER, Record, RecordHeader, RelFileLocator, decode};
use walden_format::rmgr::{self, rmid};
use walden_format::stream::NeededPart;
use walden_format::version::Major;
use walden_redo::check::Check;
use walden_redo::check::shares::ShareCheck;
use walden_redo::{BlockKey, LastRecord, Overwrites, PageShare, StoreOptions};
use walden_redo::{PAGE_BYTES, Page, PageBox, PageStore, Replay};

/// Replays the records encoded by the bytes on the encoded pages, with the check as observer.
pub fn replay(input: &[u8]) {
    let begin = |replay, _| (replay, Check::default());
    let (mut replay, _) = run(input, begin, |(replay, check): &mut (Replay, Check), record| {
        replay.apply(record, check);
    });
    look_at(&mut replay);
}

/// Replays the records once with all pages and once by shares of them, and expects the same outcomes of the
/// check. Records that do not fit their pages are excepted.
pub fn replay_shares(input: &[u8], count: u32) {
    let begin = |replay, _| (replay, Check::default());
    let (whole, mut expected) = run(input, begin, |(replay, check): &mut (Replay, Check), record| {
        replay.apply(record, check);
    });
    expected.finish();
    let divide = |mut whole: Replay, _| -> Vec<(Replay, ShareCheck)> {
        let checks = ShareCheck::create_all(count);
        let divided = checks.into_iter().map(|check| {
            let mut store = PageStore::new(StoreOptions::default().share(check.share()));
            for (key, from) in whole.store.blocks() {
                let mut page = PageBox::default();
                if let Some(last) = whole.store.last(from).filter(|_| check.share().has(key))
                    && whole.store.read(from, &mut page)
                {
                    let slot = store.slot(key);
                    store.put(slot, page, last);
                }
            }
            (Replay::new(store), check)
        });
        divided.collect()
    };
    let shares = run(input, divide, |shares, record| {
        for (replay, check) in shares {
            check.note(record);
            replay.apply(record, check);
        }
    });
    let has_misfits = shares.iter().any(|(replay, _)| replay.store.has_misfits());
    // A caller that finds misfits replays all pages at once: a share must not miss them.
    assert!(has_misfits || !whole.store.has_misfits());
    if has_misfits {
        return;
    }
    let found = ShareCheck::finish(shares.into_iter().map(|(_, check)| check));
    assert_eq!(
        (&found.counts, found.records, &found.reconstructed, &found.misfits),
        (&expected.counts, expected.records, &expected.reconstructed, &expected.misfits)
    );
    let differences = |check: &Check| format!("{:?}", check.differences);
    assert_eq!(differences(&found), differences(&expected));
}

/// Replays the records once, and once without changes of pages that later records overwrite. Expects the same
/// pages. Records that do not fit their pages are excepted, and copies of databases, which read pages in
/// between.
pub fn replay_overwrites(input: &[u8], count: u32) {
    let begin = |replay, _| (replay, Overwrites::default(), false);
    let (mut whole, overwrites, copies) = run(input, begin, |(replay, overwrites, copies), record| {
        overwrites.note(record);
        *copies |= record.header.rmid == rmid::DBASE;
        replay.apply(record, &mut ());
    });
    let overwrites = Arc::new(overwrites);
    let divide = |mut first: Replay, _| -> Vec<Replay> {
        let divided = (0..count).map(|index| {
            let share = PageShare::new(index, count);
            let options = StoreOptions::default().share(share).overwrites(Arc::clone(&overwrites));
            let mut store = PageStore::new(options);
            for (key, from) in first.store.blocks() {
                let mut page = PageBox::default();
                if let Some(last) = first.store.last(from).filter(|_| share.has(key))
                    && first.store.read(from, &mut page)
                {
                    let slot = store.slot(key);
                    store.put(slot, page, last);
                }
            }
            Replay::new(store)
        });
        divided.collect()
    };
    let mut shares = run(input, divide, |shares, record| {
        for replay in shares {
            match replay.needed_part(record) {
                NeededPart::All => replay.apply(record, &mut ()),
                NeededPart::MainData => with_main_data(record, |record| replay.apply(record, &mut ())),
                NeededPart::Headers => with_headers(record, |record| replay.apply(record, &mut ())),
            }
        }
    });
    if copies || whole.store.has_misfits() || shares.iter().any(|replay| replay.store.has_misfits()) {
        return;
    }
    let pages = |replay: &mut Replay| -> BTreeMap<BlockKey, Vec<u8>> {
        let mut pages = BTreeMap::new();
        for (key, slot) in replay.store.blocks() {
            let mut page = PageBox::default();
            if replay.store.read(slot, &mut page) {
                pages.insert(key, page.0.to_vec());
            }
        }
        pages
    };
    let found: BTreeMap<BlockKey, Vec<u8>> = shares.iter_mut().flat_map(pages).collect();
    assert!(found == pages(&mut whole));
}

/// Passes on a record without the bytes after its headers.
fn with_headers(record: &Record<'_>, then: impl FnOnce(&Record<'_>)) {
    again(record, &record.bytes()[..headers_of(record)], then);
}

/// Passes on a record with zeros between its headers and its main data.
fn with_main_data(record: &Record<'_>, then: impl FnOnce(&Record<'_>)) {
    let mut bytes = record.bytes().to_vec();
    let main = bytes.len() - record.main_len as usize;
    bytes[headers_of(record)..main].fill(0);
    again(record, &bytes, then);
}

fn headers_of(record: &Record<'_>) -> usize {
    let data: u32 = record.blocks.iter().map(|block| u32::from(block.data_len)).sum();
    (record.header.total_len - record.image_bytes() - data - record.main_len) as usize
}

fn again(record: &Record<'_>, bytes: &[u8], then: impl FnOnce(&Record<'_>)) {
    let (range, page_bytes) = ((record.lsn, record.end), PAGE_BYTES as u32);
    let mut blocks = Vec::new();
    let short = decode(bytes, record.header, range, record.version, page_bytes, &mut blocks);
    then(&short.expect("the same headers"));
}

/// Reads every page.
pub fn look_at(replay: &mut Replay) {
    for (_, slot) in replay.store.blocks() {
        let mut page = Page::default();
        let _ = (replay.store.state(slot), replay.store.last(slot), replay.store.read(slot, &mut page));
    }
    assert!(replay.store.failure().is_none());
}

/// Passes the encoded records to a replayer, which starts with the encoded pages.
pub fn run<T>(
    input: &[u8],
    begin: impl FnOnce(Replay, Major) -> T,
    mut step: impl FnMut(&mut T, &Record<'_>),
) -> T {
    let mut bytes = Bytes::new(input);
    let versions: Vec<Major> = Major::all().collect();
    // Mostly versions that are replayed.
    let version = match bytes.u8() {
        choice @ 0..240 => versions[versions.len() - 1 - usize::from(choice) % 6.min(versions.len())],
        choice => versions[usize::from(choice) % versions.len()],
    };
    let memory_bytes = if bytes.one_in(4) { 0 } else { usize::MAX };
    let mut replay = Replay::new(PageStore::new(StoreOptions::default().memory_bytes(memory_bytes)));
    let manager = bytes.u8() % 26;
    for _ in 0..bytes.u8() % 6 {
        let (key, page) = (key(&mut bytes), page(&mut bytes));
        let last = LastRecord { lsn: Lsn(8), kind: rmgr::kind(version, rmid::XLOG, 0xB0) };
        let slot = replay.store.slot(key);
        replay.store.put(slot, page, last);
    }
    let mut state = begin(replay, version);
    let mut lsn = 1 << 20;
    for _ in 0..8 {
        if bytes.is_empty() {
            break;
        }
        let record = record(&mut bytes, version, manager);
        let Some(header) = RecordHeader::parse(&record) else { break };
        let mut blocks = Vec::new();
        let end = lsn + ((record.len() as u64 + 7) & !7);
        if let Ok(record) =
            decode(&record, header, (Lsn(lsn), Lsn(end)), version, PAGE_BYTES as u32, &mut blocks)
        {
            step(&mut state, &record);
        }
        lsn = end;
    }
    state
}

/// The input, followed by generated bytes, so that a few input bytes produce whole pages.
struct Bytes<'a> {
    input: &'a [u8],
    state: u64,
}

impl<'a> Bytes<'a> {
    fn new(input: &'a [u8]) -> Bytes<'a> {
        let seed =
            input.iter().take(32).fold(1, |seed: u64, &byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        Bytes { input, state: seed }
    }

    fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    fn u8(&mut self) -> u8 {
        match self.input.split_first() {
            Some((&byte, rest)) => {
                self.input = rest;
                byte
            }
            None => self.made(),
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// Returns a number as in records and pages: mostly small.
    fn number(&mut self) -> u16 {
        match self.u8() {
            wide @ 0..64 => u16::from(wide) << 8 | u16::from(self.made()),
            small => (u16::from(small) - 64) % 24,
        }
    }

    fn one_in(&mut self, times: u8) -> bool {
        self.u8().is_multiple_of(times)
    }

    /// Returns a generated byte, without consuming input.
    fn made(&mut self) -> u8 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 56) as u8
    }

    /// Fills a buffer with typical content, in words of 2 bytes.
    fn fill(&mut self, into: &mut [u8]) {
        let style = self.u8();
        for pair in into.chunks_mut(2) {
            let word = match style % 4 {
                0 => [self.made() % 8, 0],
                1 => [self.made(), self.made()],
                2 => [self.made() % 32, self.made() % 2],
                _ => [self.u8(), self.made() % 3],
            };
            pair.copy_from_slice(&word[..pair.len()]);
        }
    }
}

fn key(bytes: &mut Bytes<'_>) -> BlockKey {
    let choice = bytes.u8();
    let relation = RelFileLocator { tablespace: 1663, database: 5, relation: u32::from(choice & 1) };
    let fork = match choice >> 1 & 7 {
        0 => Fork::VISIBILITY_MAP,
        1 => Fork(choice >> 4),
        _ => Fork::MAIN,
    };
    BlockKey { relation, fork, block: u32::from(choice >> 5) % 5 }
}

/// Builds a page with a valid header, items and a special area of some access method, often with errors.
fn page(bytes: &mut Bytes<'_>) -> PageBox {
    // Page ids of the access methods in the last two bytes of the special area.
    const MARKS: [u16; 9] = [0, 1, 0xFF80, 0xFF81, 0xFF82, 0xF091, 0xF092, 0xF093, 0x0017];
    let mut page = PageBox::default();
    if bytes.one_in(16) {
        bytes.fill(&mut page.0);
        return page;
    }
    let special = [0, 8, 16, 16, 8, 24][usize::from(bytes.u8() % 6)];
    page.init(special);
    if special > 0 {
        let start = PAGE_BYTES - special;
        bytes.fill(&mut page.0[start..]);
        let mark = MARKS[usize::from(bytes.u8()) % MARKS.len()];
        page.put_u16(PAGE_BYTES - 2, mark);
    }
    let mut content = [0; 256];
    for number in 1..=u16::from(bytes.u8() % 40) {
        let len = usize::from(bytes.u8()).min(content.len());
        bytes.fill(&mut content[..len]);
        if page.insert_item(&content[..len], number).is_err() {
            break;
        }
    }
    if bytes.one_in(8) {
        let (lower, upper) = (page.lower(), page.upper());
        bytes.fill(&mut page.0[lower..upper]);
    }
    for _ in 0..bytes.u8() % 4 {
        let at =
            if bytes.one_in(2) { usize::from(bytes.u8()) } else { usize::from(bytes.u16()) % PAGE_BYTES };
        page.0[at] = bytes.u8();
    }
    page
}

/// Builds a record with correct lengths, mostly of one resource manager.
fn record(bytes: &mut Bytes<'_>, version: Major, manager: u8) -> Vec<u8> {
    let (mut headers, mut contents) = (Vec::new(), Vec::new());
    for id in 0..bytes.u8() % 5 {
        block(bytes, version, id, &mut headers, &mut contents);
    }
    let mut main = vec![0; if bytes.one_in(16) { bytes.u16().into() } else { (bytes.u8() % 128).into() }];
    bytes.fill(&mut main);
    // The fields are at the start of the main data.
    let fields = main.len().min(usize::from(bytes.u8() % 24));
    for field in main[..fields].chunks_mut(2) {
        let number = bytes.number().to_le_bytes();
        field.copy_from_slice(&number[..field.len()]);
    }
    match u8::try_from(main.len()) {
        Ok(0) => {}
        Ok(len) => headers.extend([0xFF, len]),
        Err(_) => {
            headers.push(0xFE);
            headers.extend((main.len() as u32).to_le_bytes());
        }
    }
    let rmid = if bytes.one_in(8) { bytes.u8() } else { manager };
    let info = bytes.u8() & 0xF0;
    let total = (RECORD_HEADER + headers.len() + contents.len() + main.len()) as u32;
    let mut record = Vec::with_capacity(total as usize);
    record.extend(total.to_le_bytes());
    record.extend(u32::from(bytes.u8()).to_le_bytes());
    record.extend([0; 8]);
    record.extend([info, rmid, 0, 0]);
    record.extend([0; 4]);
    record.extend(headers);
    record.extend(contents);
    record.extend(main);
    record
}

/// Appends a block's header and its contents.
fn block(bytes: &mut Bytes<'_>, version: Major, id: u8, headers: &mut Vec<u8>, contents: &mut Vec<u8>) {
    let key = key(bytes);
    let choice = bytes.u8();
    let (has_image, will_init) = (choice & 3 == 0, choice & 12 == 0);
    let mut data = vec![0; if choice & 16 == 0 { (bytes.u8() % 96).into() } else { 0 }];
    bytes.fill(&mut data);
    if bytes.one_in(2) {
        for field in data.chunks_mut(2).take(6) {
            let number = bytes.number().to_le_bytes();
            field.copy_from_slice(&number[..field.len()]);
        }
    }
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    headers.push(id);
    headers
        .push(key.fork.0 & 0x0F | bit(has_image, 0x10) | bit(!data.is_empty(), 0x20) | bit(will_init, 0x40));
    headers.extend((data.len() as u16).to_le_bytes());
    if has_image {
        let page = page(bytes);
        let (lower, upper) = (page.lower(), page.upper());
        let hole = if lower < upper && upper <= PAGE_BYTES { lower..upper } else { 0..0 };
        let apply = if version >= Major::V15 { 0x02 } else { 0x04 };
        let info = u8::from(!hole.is_empty()) | bit(choice & 32 == 0, apply);
        headers.extend(((PAGE_BYTES - hole.len()) as u16).to_le_bytes());
        headers.extend((hole.start as u16).to_le_bytes());
        headers.push(info);
        contents.extend(&page.0[..hole.start]);
        contents.extend(&page.0[hole.end..]);
    }
    for word in [key.relation.tablespace, key.relation.database, key.relation.relation, key.block] {
        headers.extend(word.to_le_bytes());
    }
    contents.extend(data);
}
