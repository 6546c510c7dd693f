//! Forms of compressed files.

/// Form of a compressed file: one member or many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FileForm {
    /// One self-contained member: `NAME.wlz`.
    Segment = 1,
    /// Members in order and an index: `*.wpk`.
    Pack = 2,
}

impl FileForm {
    /// Returns the default level. Segments favor speed, because a server waits for each to be archived.
    /// Packs favor size.
    pub const fn default_level(self) -> u8 {
        match self {
            FileForm::Segment => 3,
            FileForm::Pack => 6,
        }
    }
}
