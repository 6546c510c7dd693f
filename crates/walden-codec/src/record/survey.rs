//! Reads ahead: passes upcoming tuples to the predictors, so that encoding has their schemas from the start.

use walden_format::record::Record;
use walden_format::rmgr::rmid;

use super::Model;
use super::block_data::{DataForm, is_gist_insert};
use super::leaf_tuples::is_leaf_insert;
use crate::page;
use crate::predict::index::leaf;
use crate::predict::{heap, index};

impl Model {
    /// Returns whether a schema was added since the last call.
    pub fn found_new_schema(&mut self) -> bool {
        self.predictors.layouts.survey.found_new_schema()
    }

    /// Surveys a record before it is encoded.
    pub fn survey(&mut self, record: &Record<'_>) {
        let (survey, store) = (&mut self.predictors.layouts.survey, &mut self.replay.store);
        let (kind, main) = ((record.header.rmid, record.header.info), record.main_data());
        if is_leaf_insert(kind)
            && let Some(block) = record.blocks.first()
        {
            leaf::survey(survey, block.relation, main);
        }
        for block in record.blocks {
            if let Some(image) = &block.image {
                if survey.wants_page(block.relation)
                    && let Ok(page) = store.restore_image(image, record.image_data(image))
                {
                    page::survey(survey, block.relation, block.fork.0, &page);
                    store.recycle(page);
                }
                continue;
            }
            let data = record.block_data(block);
            match DataForm::detect(kind, block.id, main) {
                DataForm::Tuple { .. } => {
                    if let Some((header, body)) = data.split_first_chunk() {
                        heap::survey(survey, block.relation, header, body);
                    }
                }
                DataForm::Tuples(_) => heap::survey_multi_insert(survey, block.relation, data),
                DataForm::IndexTuple => index::survey(survey, block.relation, data),
                DataForm::Bytes if kind.0 == rmid::GIST && is_gist_insert(kind.1, main) => {
                    index::survey(survey, block.relation, data);
                }
                DataForm::Bytes | DataForm::TuplePart { .. } | DataForm::GinEntry | DataForm::GinPending => {}
            }
        }
    }
}
