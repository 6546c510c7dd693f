//! Looking ahead: shows predictors the tuples that encoding will meet.

use walden_format::record::Record;

use super::Model;
use super::block_data::DataForm;
use super::images::restored;
use crate::page;
use crate::predict::{heap, index};

impl Model {
    /// Whether what was looked at since this was asked last told something.
    pub fn has_news(&mut self) -> bool {
        self.predictors.rows.plan.has_news()
    }

    /// Looks at a record that encoding will meet.
    pub fn plan(&mut self, record: &Record<'_>) {
        let plan = &mut self.predictors.rows.plan;
        for block in record.blocks {
            if let Some(image) = &block.image {
                if plan.wants_page(block.relation)
                    && let Some(page) = restored(image, record)
                {
                    page::plan(plan, block.relation, block.fork.0, &page);
                }
                continue;
            }
            let data = record.block_data(block);
            match DataForm::of(record.header.rmid, record.header.info, block.id, record.main_data()) {
                DataForm::Row { .. } => {
                    if let Some((head, body)) = data.split_first_chunk() {
                        heap::plan(plan, block.relation, head, body);
                    }
                }
                DataForm::Rows(_) => heap::plan_multi_insert(plan, block.relation, data),
                DataForm::IndexTuple => index::plan(plan, block.relation, data),
                DataForm::Bytes | DataForm::RowPart { .. } | DataForm::GinEntry | DataForm::GinPending => {}
            }
        }
    }
}
