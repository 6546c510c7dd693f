//! What no prediction may do, whatever it is given.

mod hostile;
mod predicted;
