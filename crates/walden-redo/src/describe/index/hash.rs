//! Hash indexes (`hash.h`).

use super::super::{At, Bits, Description, Fields, items};
use super::{Entry, link, no_entry};
use crate::page::hash::{HashPageOpaqueData, INVALID_BUCKET, flags, meta};
use crate::page::{PAGE_CONTENTS, Page, SpecialArea};

const FLAGS: Bits = &[
    (flags::LH_OVERFLOW_PAGE, "LH_OVERFLOW_PAGE"),
    (flags::LH_BUCKET_PAGE, "LH_BUCKET_PAGE"),
    (flags::LH_BITMAP_PAGE, "LH_BITMAP_PAGE"),
    (flags::LH_META_PAGE, "LH_META_PAGE"),
    (flags::LH_BUCKET_BEING_POPULATED, "LH_BUCKET_BEING_POPULATED"),
    (flags::LH_BUCKET_BEING_SPLIT, "LH_BUCKET_BEING_SPLIT"),
    (flags::LH_BUCKET_NEEDS_SPLIT_CLEANUP, "LH_BUCKET_NEEDS_SPLIT_CLEANUP"),
    (flags::LH_PAGE_HAS_DEAD_TUPLES, "LH_PAGE_HAS_DEAD_TUPLES"),
];

pub(in super::super) fn describe(page: &Page, description: &mut Description) {
    let opaque = HashPageOpaqueData::read(page);
    let fields = &mut description.special;
    link(fields, "hasho_prevblkno", opaque.previous);
    link(fields, "hasho_nextblkno", opaque.next);
    match opaque.bucket {
        INVALID_BUCKET => fields.text("hasho_bucket", "none"),
        bucket => fields.number("hasho_bucket", bucket),
    }
    fields.bits("hasho_flag", opaque.flag, FLAGS);
    let used_for = match opaque.page_type() {
        flags::LH_OVERFLOW_PAGE => "overflow page",
        flags::LH_BUCKET_PAGE => "bucket page",
        flags::LH_BITMAP_PAGE => "bitmap page",
        flags::LH_META_PAGE => "metapage",
        _ => "unused page",
    };
    description.kind = format!("{} {used_for}", description.kind);
    match opaque.page_type() {
        flags::LH_META_PAGE => metapage(page.contents(), &mut description.content),
        flags::LH_BITMAP_PAGE => {
            let bits = page.contents().get(..page.lower().saturating_sub(PAGE_CONTENTS)).unwrap_or(&[]);
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
                if entry.has_reserved_bit() {
                    fields.bool("moved_by_split", true);
                }
                (fields, data)
            });
        }
    }
}

fn metapage(content: &[u8], fields: &mut Fields) {
    fields.maybe_text("magic", content.u32_in(meta::MAGIC).map(|magic| format!("{magic:#x}")));
    fields.maybe("version", content.u32_in(meta::VERSION));
    fields.float("ntuples", content.u64_in(meta::TUPLES).map(f64::from_bits));
    for (name, at) in [
        ("ffactor", meta::FILL_FACTOR),
        ("bsize", meta::PAGE_SIZE),
        ("bmsize", meta::BITMAP_BYTES),
        ("bmshift", meta::BITMAP_SHIFT),
    ] {
        fields.maybe(name, content.u16_in(at));
    }
    let numbers = [
        ("maxbucket", meta::MAX_BUCKET),
        ("highmask", meta::HIGH_MASK),
        ("lowmask", meta::LOW_MASK),
        ("ovflpoint", meta::OVERFLOW_POINT),
        ("firstfree", meta::FIRST_FREE),
        ("nmaps", meta::BITMAPS),
        ("procid", meta::PROCEDURE),
    ];
    for (name, at) in numbers {
        fields.maybe(name, content.u32_in(at));
    }
    let splits =
        content.u32_in(meta::OVERFLOW_POINT).map_or(0, |last| last.min(meta::MAX_SPLIT_POINTS - 1) + 1);
    fields
        .numbers("spares", (0..splits as usize).map_while(|index| content.u32_in(meta::SPARES + 4 * index)));
    let maps = content.u32_in(meta::BITMAPS).map_or(0, |maps| maps.min(meta::MAX_BITMAPS) as usize);
    fields.numbers("mapp", (0..maps).map_while(|index| content.u32_in(meta::BITMAP_BLOCKS + 4 * index)));
}
