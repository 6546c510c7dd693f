//! Cuts the tar archive of a server into pieces, and reads lists of pieces of an archive.

use walden_archive::base_backups::{PieceList, cut_for_fuzzing};

/// The name of the backup whose list is read.
pub const NAME: &str = "20261124T030000Z_2-3A000028";

/// Runs one input.
pub fn run(data: &[u8]) {
    // It checks that the pieces are the archive.
    let _ = cut_for_fuzzing(data);
    let Ok(list) = PieceList::parse(NAME, data) else { return };
    let written = serde_json::to_vec(&list).expect("a list is written");
    assert_eq!(PieceList::parse(NAME, &written).as_ref(), Ok(&list));
}
