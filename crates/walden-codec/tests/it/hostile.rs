//! Small files that state large contents are rejected before any time is spent on them.

use std::io::Cursor;
use std::time::{Duration, Instant};

use walden_codec::container::{FileForm, Reader};
use walden_format::crc::crc32c_append;

use crate::frames::{Frames, HEAD, PIECE, frames, mended};
use crate::material::{limits, options, write};

/// Returns a piece of form bytes: the length of its original, and one part.
fn piece(original: u64, coder: u8, raw: u64, stored: &[u8]) -> Vec<u8> {
    let mut piece = original.to_le_bytes().to_vec();
    piece.push(coder);
    for number in [raw, stored.len() as u64] {
        let mut left = number;
        while left >= 0x80 {
            piece.push(left as u8 | 0x80);
            left >>= 7;
        }
        piece.push(left as u8);
    }
    piece.extend(crc32c_append(0, stored).to_le_bytes());
    piece.extend_from_slice(stored);
    piece
}

/// Decodes a file of one member with these pieces. Returns the error and its cause.
fn decode(pieces: &[Vec<u8>]) -> Result<(), String> {
    let (file, _) = write(options(FileForm::Segment, 9), &[("a", b"a")]);
    let mut all: Frames = frames(&file);
    assert_eq!((all[0].0, all[1].0), (HEAD, PIECE));
    all.splice(1..2, pieces.iter().map(|piece| (PIECE, piece.clone())));
    let mut reader = Reader::open(Cursor::new(mended(&file, &all)), limits()).unwrap();
    let head = reader.next().unwrap().unwrap();
    reader.decode(&head, &mut Vec::new()).map(drop).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        format!("{error}: {cause}")
    })
}

/// Size of the largest pieces that [`limits`] and the header of a small file allow.
const LARGE: u64 = 64 << 10;

#[test]
fn contents_out_of_proportion_to_their_stored_bytes_are_refused() {
    let start = Instant::now();
    for coder in [4, 5, 6, 16, 17, 18, 24, 25, 26] {
        let error = decode(&[piece(LARGE, coder, LARGE, &[0x7F; 63])]).unwrap_err();
        assert!(error.contains("expected more stored bytes for the length"), "coder {coder}: {error}");
    }
    for coder in [1, 2, 3] {
        let error = decode(&[piece(LARGE, coder, LARGE, &[0x7F])]).unwrap_err();
        assert!(error.contains("expected more stored bytes for the length"), "coder {coder}: {error}");
    }
    // There are enough stored bytes, but the content continues past them.
    let error = decode(&[piece(LARGE, 18, LARGE, &[0x7F; 64])]).unwrap_err();
    assert!(error.contains("expected more stored bytes"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Each piece starts with a new state, so even an empty one takes time.
#[test]
fn pieces_without_content_are_refused() {
    let error = decode(&[piece(0, 18, 0, &[])]).unwrap_err();
    assert!(error.contains("expected an original of 1 to"), "{error}");
    let small = piece(LARGE - 1, 0, LARGE - 1, &vec![5; LARGE as usize - 1]);
    let error = decode(&[small.clone(), small.clone()]).unwrap_err();
    assert!(error.contains("after a piece of fewer than 65536 bytes, found another piece"), "{error}");
    // Pieces of that size may follow each other: only the member's length is wrong.
    let large = piece(LARGE, 0, LARGE, &vec![5; LARGE as usize]);
    let error = decode(&[large, small]).unwrap_err();
    assert!(error.contains("the pieces"), "{error}");
}
