//! The native half of the Python package `walden`: a thin layer over `walden-arrow`, `walden-explain` and
//! `walden-whatif`.
//!
//! The public functions and their documentation are in `python/walden/__init__.py`.
#![forbid(unsafe_code)]

mod documents;
mod errors;
mod interrupt;
mod log;
mod parts;
mod stream;
mod table;

use pyo3::prelude::*;

/// The functions and types of `walden._walden`.
#[pymodule]
mod _walden {
    #[pymodule_export]
    use super::documents::{explain, whatif};
    #[pymodule_export]
    use super::errors::{DamagedError, WaldenError, WaldenWarning};
    #[pymodule_export]
    use super::log::Log;
    #[pymodule_export]
    use super::parts::parts;
    #[pymodule_export]
    use super::table::{
        Batch, BatchIterator, Schema, Table, can_be_divided, row_changes, schema, table, table_names,
    };
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // The defaults of errors without a code or a hint.
        let error = module.py().get_type::<WaldenError>();
        ["code", "hint"].into_iter().try_for_each(|name| error.setattr(name, module.py().None()))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
