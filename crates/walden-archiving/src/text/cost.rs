//! The cost of an archive, and the cost of early removals, as text.

use std::fmt::Write;

use walden_archive::cost::{BaseBackupCost, Cost, Early, GB, Rate, Restore};
use walden_report::units;
use walden_source::counted;

/// Formats an amount of money.
pub fn money(sum: f64) -> String {
    match sum {
        0.0 => "0".to_owned(),
        sum if sum < 0.01 => "under 0.01".to_owned(),
        sum => format!("{sum:.2}"),
    }
}

fn and_price(sum: Option<f64>) -> String {
    sum.map_or(String::new(), |sum| format!(": {}", money(sum)))
}

/// Describes the cost of an archive.
pub fn text(cost: &Cost) -> String {
    let mut text = String::from("Cost\n");
    let class = cost.storage_class.as_ref().map_or(String::new(), |class| format!(" in class {class}"));
    let billed = match cost.billed_bytes > cost.stored_bytes {
        true => format!(", billed as {}", units::bytes(cost.billed_bytes)),
        false => String::new(),
    };
    let month = cost.storage_month.map_or(String::new(), |sum| format!(": {} a month", money(sum)));
    let objects = counted(cost.objects, "object");
    let _ =
        writeln!(text, "  stored: {} in {objects}{class}{billed}{month}", units::bytes(cost.stored_bytes));
    match &cost.rate {
        Some(Rate { segments, stored_bytes, put_requests, get_requests, price }) => {
            let _ = writeln!(
                text,
                "  archiving, a month at the observed rate: {segments:.0} segments in {}, {put_requests:.0} write and list requests, \
                 {get_requests:.0} reads{}",
                units::bytes(*stored_bytes as u64),
                and_price(*price)
            );
        }
        None => {
            text.push_str("  archiving: the rate is unknown, without commit times over a minute or more\n")
        }
    }
    let restore = &cost.restore;
    let _ = writeln!(
        text,
        "  restoring all WAL: {}, {}, {}{}",
        counted(restore.list_requests, "list request"),
        counted(restore.get_requests, "read"),
        units::bytes(restore.bytes),
        and_price(restore.price)
    );
    if let Some(early) = &cost.early {
        let _ = writeln!(
            text,
            "  {}{}",
            describe_early(early, "to remove them now costs"),
            and_price(cost.early_price)
        );
    }
    if let Some(backups) = &cost.base_backups {
        text.push_str(&base_backups(backups));
    }
    match &cost.prices_from {
        Some(from) => {
            let _ = writeln!(text, "  {from}");
        }
        None => text.push_str("  no list prices of this store are known: see --price\n"),
    }
    text
}

/// Describes the cost of the base backups in the archive.
fn base_backups(cost: &BaseBackupCost) -> String {
    let class = cost.storage_class.as_ref().map_or(String::new(), |class| format!(" in class {class}"));
    let month = cost.storage_month.map_or(String::new(), |sum| format!(": {} a month", money(sum)));
    let (bytes, objects) = (units::bytes(cost.stored_bytes), counted(cost.objects, "object"));
    let mut text = format!("  base backups: {bytes} in {objects}{class}{month}\n");
    if let Some(Restore { list_requests, get_requests, bytes, price }) = cost.restore {
        let (lists, reads) = (counted(list_requests, "list request"), counted(get_requests, "read"));
        let (bytes, price) = (units::bytes(bytes), and_price(price));
        let _ = writeln!(text, "  restoring the newest base backup: {lists}, {reads}, {bytes}{price}");
    }
    text
}

/// Describes objects that are younger than their class's minimum storage duration.
pub fn describe_early(early: &Early, costs: &str) -> String {
    let Early { storage_class, min_days, objects, bytes, byte_days, .. } = early;
    format!(
        "{} of {} younger than the {min_days} days for which {storage_class} bills at least: {costs} {:.1} GB-days",
        counted(*objects, "object"),
        units::bytes(*bytes),
        byte_days / GB
    )
}
