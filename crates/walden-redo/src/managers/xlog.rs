//! The resource manager XLOG.

use walden_format::rmgr::info;

use crate::manager::Manager;
use crate::page::Misfit;
use crate::step::Step;

/// XLOG records change pages only by images.
pub(crate) static XLOG: Manager = Manager { redo, mask: |_, _, _| (), block_data: |_, _| Some(Vec::new()) };

fn redo(step: &mut Step<'_, '_>) -> Result<(), Misfit> {
    if step.kind() == info::xlog::FPI_FOR_HINT
        && let Some(store) = step.store()
    {
        store.hint_logging().note_shown();
    }
    Ok(())
}
