//! The two forms of files.

/// One file of one member, or many members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FileForm {
    /// One member that needs nothing else: `NAME.wlz`.
    Segment = 1,
    /// Members in order, and an index: `*.wpk`.
    Pack = 2,
}

impl FileForm {
    /// The level between fast and small. Someone waits for a segment, who has it archived; a pack is there to be small.
    pub const fn default_level(self) -> u8 {
        match self {
            FileForm::Segment => 3,
            FileForm::Pack => 6,
        }
    }
}
