//! A record's bytes from its parts: the way back from decoding.

use crate::record::{BlockRef, RECORD_HEADER, Record};

/// Puts together a record with these blocks, without images, and everything else as in `record`: header, origin, toplevel
/// transaction and main data. The checksum is the old one and thus wrong.
///
/// `XLogRecordAssemble` in `xloginsert.c` decides the form: a block of the same relation as the one before does not name
/// it again.
pub fn assemble(record: &Record<'_>, blocks: &[(BlockRef, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record.header.total_len as usize);
    bytes.extend([0; RECORD_HEADER]);
    let mut last = None;
    for (block, data) in blocks {
        let same = last == Some(block.relation);
        last = Some(block.relation);
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags =
            block.fork.0 & 0x0F | bit(!data.is_empty(), 0x20) | bit(block.will_init, 0x40) | bit(same, 0x80);
        bytes.extend([block.id, flags]);
        bytes.extend((data.len() as u16).to_le_bytes());
        if !same {
            let relation = block.relation;
            for word in [relation.tablespace, relation.database, relation.relation] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes.extend(block.block.to_le_bytes());
    }
    if let Some(origin) = record.origin {
        bytes.push(253);
        bytes.extend(origin.to_le_bytes());
    }
    if let Some(xid) = record.toplevel_xid {
        bytes.push(252);
        bytes.extend(xid.to_le_bytes());
    }
    let main = record.main_data();
    match u8::try_from(main.len()) {
        Ok(0) => {}
        Ok(len) => bytes.extend([255, len]),
        Err(_) => {
            bytes.push(254);
            bytes.extend((main.len() as u32).to_le_bytes());
        }
    }
    for (_, data) in blocks {
        bytes.extend(data);
    }
    bytes.extend(main);
    let header = record.header;
    let total_len = bytes.len() as u32;
    bytes[0..4].copy_from_slice(&total_len.to_le_bytes());
    bytes[4..8].copy_from_slice(&header.xid.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.prev.0.to_le_bytes());
    bytes[16..18].copy_from_slice(&[header.info, header.rmid]);
    bytes[20..24].copy_from_slice(&header.crc.to_le_bytes());
    bytes
}
