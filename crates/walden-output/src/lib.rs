#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod inputs;
mod output;
pub mod pending;
pub mod stdout;
pub mod turns;

pub use inputs::{Inputs, find_protected, is_data_directory, resolve};
pub use output::{
    Output, OutputError, Wanted, Written, can_write, expect_no_input, expect_no_link_below, expect_removable,
    expect_writable, find_named_twice, is_temporary, lock_folder, meta_of, refuse_existing,
    refuse_other_size, replace, sync_folder, write,
};
