//! Transactions and objects with numbers that PostgreSQL keeps for itself (`access/transam.h`).

/// What an old `VACUUM` wrote in place of a transaction that all see as committed (`FrozenTransactionId`).
pub const FROZEN_XID: u32 = 2;
/// The lowest number of a transaction that a session can have (`FirstNormalTransactionId`).
pub const FIRST_NORMAL_XID: u32 = 3;
/// The lowest OID of an object that initdb did not make (`FirstNormalObjectId`); files of the catalog have lower numbers until they
/// are rewritten.
pub const FIRST_NORMAL_OID: u32 = 16_384;
