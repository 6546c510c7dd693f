//! Decodes the headers within a record, without its frame: arbitrary lengths, also of records that are not
//! entirely in memory.

use walden_format::lsn::Lsn;
use walden_format::record::{self, RecordHeader};
use walden_format::version::Major;

/// Runs one input.
pub fn run(data: &[u8]) {
    let [version, length @ .., _, _, _] = data else { return };
    let Some((length, _)) = length.split_first_chunk::<4>() else { return };
    let versions: Vec<Major> = Major::all().collect();
    let version = versions[usize::from(*version) % versions.len()];
    let claimed = u32::from_le_bytes(*length) % record::MAX_RECORD_BYTES;
    let mut blocks = Vec::new();
    for total_len in [data.len() as u32, claimed.max(24)] {
        let header = RecordHeader { total_len, ..RecordHeader::default() };
        let decoded = record::decode(data, header, (Lsn(8), Lsn(16)), version, 8192, &mut blocks);
        let Ok(record) = decoded else { continue };
        for block in record.blocks {
            let _ = record.block_data(block);
            if let Some(image) = block.image {
                let _ = record.image_data(&image);
                assert!(u32::from(image.hole_offset) + u32::from(image.hole_len) <= 8192);
                assert!(image.uncompressed_len(8192) <= 8192);
            }
        }
        let _ = record.main_data();
    }
}
