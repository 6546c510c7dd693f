//! Hash indexes (`hash.h`).

use super::super::{At, Bits, Description, Fields, contents, items};
use super::{Entry, link, no_entry};
use crate::page::Page;

const FLAGS: Bits = &[
    (1 << 0, "LH_OVERFLOW_PAGE"),
    (1 << 1, "LH_BUCKET_PAGE"),
    (BITMAP, "LH_BITMAP_PAGE"),
    (META, "LH_META_PAGE"),
    (1 << 4, "LH_BUCKET_BEING_POPULATED"),
    (1 << 5, "LH_BUCKET_BEING_SPLIT"),
    (1 << 6, "LH_BUCKET_NEEDS_SPLIT_CLEANUP"),
    (1 << 7, "LH_PAGE_HAS_DEAD_TUPLES"),
];
const BITMAP: u16 = 1 << 2;
const META: u16 = 1 << 3;
/// Places of split points in the metapage (`HASH_MAX_SPLITPOINTS`).
const SPLIT_POINTS: usize = 98;
const SPARES_AT: usize = 52;
const MAPS_AT: usize = SPARES_AT + 4 * SPLIT_POINTS;

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let special = page.special_area();
    let flags = special.u16_in(12).unwrap_or(0);
    let fields = &mut description.special;
    link(fields, "hasho_prevblkno", special.u32_in(0));
    link(fields, "hasho_nextblkno", special.u32_in(4));
    match special.u32_in(8) {
        Some(u32::MAX) => fields.text("hasho_bucket", "none"),
        bucket => fields.maybe("hasho_bucket", bucket),
    }
    fields.bits("hasho_flag", flags, FLAGS);
    let used_for = match flags & 0xF {
        1 => "overflow page",
        2 => "bucket page",
        BITMAP => "bitmap page",
        META => "metapage",
        _ => "unused page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    match flags & 0xF {
        META => meta(contents(page), &mut description.content),
        BITMAP => {
            let bits = contents(page).get(..page.lower().saturating_sub(24)).unwrap_or(&[]);
            let set = |bit: usize| bits[bit / 8] >> (bit % 8) & 1 == 1;
            let used = (0..bits.len() * 8).filter(|&bit| set(bit)).count();
            description.content.number("pages_in_use", used as u64);
            description.content.bytes("bitmap", bits);
        }
        _ => {
            description.items = items(page, |_, bytes| {
                let Some(entry) = Entry::read(bytes) else { return no_entry(bytes) };
                let (mut fields, data) = entry.plain();
                fields.maybe("hash_code", data.0.u32_in(0));
                if entry.reserved_bit() {
                    fields.bool("moved_by_split", true);
                }
                (fields, data)
            });
        }
    }
}

fn meta(content: &[u8], fields: &mut Fields) {
    fields.maybe_text("magic", content.u32_in(0).map(|magic| format!("{magic:#x}")));
    fields.maybe("version", content.u32_in(4));
    fields.float("ntuples", content.u64_in(8).map(f64::from_bits));
    for (name, at) in [("ffactor", 16), ("bsize", 18), ("bmsize", 20), ("bmshift", 22)] {
        fields.maybe(name, content.u16_in(at));
    }
    let numbers = [
        ("maxbucket", 24),
        ("highmask", 28),
        ("lowmask", 32),
        ("ovflpoint", 36),
        ("firstfree", 40),
        ("nmaps", 44),
        ("procid", 48),
    ];
    for (name, at) in numbers {
        fields.maybe(name, content.u32_in(at));
    }
    let splits = content.u32_in(36).map_or(0, |last| (last as usize).min(SPLIT_POINTS - 1) + 1);
    fields.numbers("spares", (0..splits).map_while(|index| content.u32_in(SPARES_AT + 4 * index)));
    let maps = content.u32_in(44).map_or(0, |maps| maps.min(1024) as usize);
    fields.numbers("mapp", (0..maps).map_while(|index| content.u32_in(MAPS_AT + 4 * index)));
}
