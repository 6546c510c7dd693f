//! Renders a view as CSV: one line per group, with its dimensions, then its sums by bucket.

use walden_explain::document::{Document, GroupDocument, TallyDocument};
use walden_explain::tally::Bucket;

/// Renders the first view of the document, or else the relations. The lines add up to the explained bytes.
///
/// # Errors
/// Writing to memory fails, which does not happen in practice.
pub fn explain(document: &Document) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let by = document.views.first().map_or(vec!["relation"], |view| view.by.clone());
    let sums = ["bytes", "share", "records", "images", "image_bytes"];
    let buckets = Bucket::all().map(|bucket| bucket.name());
    writer.write_record(by.iter().copied().chain(sums).chain(buckets))?;
    match document.views.first() {
        Some(view) => {
            for group in &view.groups {
                writer.write_record(group_line(group))?;
            }
            if let Some(rest) = &view.rest {
                let label = format!("{} more", rest.groups);
                let keys = by
                    .iter()
                    .enumerate()
                    .map(|(index, _)| if index == 0 { label.clone() } else { String::new() });
                writer.write_record(keys.chain(tally_line(&rest.sum)))?;
            }
        }
        None => {
            for table in &document.relations {
                if table.parts.is_empty() {
                    writer
                        .write_record([table.label.text.clone()].into_iter().chain(tally_line(&table.sum)))?;
                }
                for part in &table.parts {
                    writer.write_record(group_line(part))?;
                }
            }
        }
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn group_line(group: &GroupDocument) -> impl Iterator<Item = String> + '_ {
    group.keys.iter().map(|key| key.text.clone()).chain(tally_line(&group.sum))
}

fn tally_line(sum: &TallyDocument) -> impl Iterator<Item = String> + '_ {
    let sums = [
        sum.bytes.to_string(),
        format!("{:.6}", sum.share),
        sum.records.to_string(),
        sum.images.to_string(),
        sum.image_bytes.to_string(),
    ];
    let bucket = |bucket: Bucket| sum.buckets.get(bucket.name()).map_or("0".to_owned(), ToString::to_string);
    sums.into_iter().chain(Bucket::all().map(bucket))
}
