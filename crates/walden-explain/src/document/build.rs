//! Builds the document of an explanation: adds names to the explanation's sums, then groups and sorts the
//! sums.

use std::collections::HashMap;

use regex::Regex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use walden_format::lsn::Lsn;
use walden_format::rmgr::Kind;
use walden_format::version::Major;
use walden_source::scan::Tail;

use super::{
    CauseDocument, CheckpointDocument, CheckpointsDocument, Context, CycleDocument, DamageDocument, Document,
    FORMAT_VERSION, GroupDocument, LogDocument, RangeDocument, RelationDocument, RestDocument,
    StepBackDocument, TallyDocument, TimeSpan, TransactionDocument, TransactionsDocument, ViewDocument,
};
use crate::checkpoints::{Cause, Checkpoint, explain_checkpoints};
use crate::explanation::{Explanation, View, on_or_off};
use crate::findings::causes::{Activity, Cause as ByteCause, Mechanism};
use crate::findings::{bytes_text, causes_of, find};
use crate::group::{Cell, Dimension, GroupKey, Owner, ViewSpec};
use crate::labels::{Label, Labels, Part, vacuum_work};
use crate::tally::{Bucket, COMPRESSIONS, ImageCause, ImageTable, Tally};
use crate::time::{second_text, time_text};
use crate::writers::{WriterKey, WriterProperty, Writers};

/// Returns full-page images by cause, as in [`Document::images`].
pub fn images_by_cause(table: &ImageTable) -> Map<String, Value> {
    let one = |cause| {
        let sum = table.sum_by_cause(cause);
        let by: Map<String, Value> = COMPRESSIONS
            .iter()
            .map(|(compression, name)| (*name, table.get(cause, *compression)))
            .filter(|(_, tally)| tally.count > 0)
            .map(|(name, tally)| {
                let (count, bytes, plain) = (tally.count, tally.bytes, tally.uncompressed_bytes);
                (name.to_owned(), json!({"count": count, "bytes": bytes, "uncompressed_bytes": plain}))
            })
            .collect();
        json!({
            "count": sum.count,
            "bytes": sum.bytes,
            "uncompressed_bytes": sum.uncompressed_bytes,
            "saved_by_compression": sum.uncompressed_bytes.saturating_sub(sum.bytes),
            "by_compression": by,
        })
    };
    ImageCause::ALL.iter().map(|cause| (cause.name().to_owned(), one(*cause))).collect()
}

impl Document {
    /// Builds the document of an explanation.
    pub fn new(explanation: &Explanation, context: &Context<'_>) -> Document {
        Document::with_labels(explanation, context, &Labels::new(context.names, explanation))
    }

    /// Returns the causes of a part of an explanation's WAL, as in [`Document::causes`], at most `top`. The
    /// evidence of the whole WAL divides the bytes of a cell among causes.
    pub fn causes_of(
        explanation: &Explanation,
        cells: &[(Cell, Tally)],
        labels: &Labels<'_>,
        top: usize,
    ) -> Vec<CauseDocument> {
        let wal_bytes = cells.iter().map(|(_, tally)| tally.wal_bytes()).sum();
        fold_causes(cause_documents(causes_of(explanation, cells, labels), wal_bytes), top)
    }

    /// Builds the document with these labels.
    pub(crate) fn with_labels(
        explanation: &Explanation,
        context: &Context<'_>,
        labels: &Labels<'_>,
    ) -> Document {
        let checkpoints = explain_checkpoints(
            &explanation.checkpoints,
            explanation.segment_size,
            context.checkpoint_settings,
        );
        let top = context.top.unwrap_or(usize::MAX);
        let (causes, findings) = find(explanation, labels, &checkpoints, &context.names.settings);
        let writer = Writer { explanation, labels, top, pattern: context.pattern, writers: context.writers };
        Document {
            format: "walden explain",
            format_version: FORMAT_VERSION,
            postgresql: explanation.version.to_string(),
            system_identifier: explanation.system_id.to_string(),
            segment_bytes: explanation.segment_size.bytes(),
            file_bytes: explanation.file_bytes,
            wal_bytes: explanation.wal_bytes(),
            records: explanation.records,
            buckets: Bucket::all()
                .map(|bucket| (bucket.name().to_owned(), explanation.buckets.get(bucket).into()))
                .collect(),
            images: images_by_cause(&explanation.images),
            ranges: writer.ranges(),
            time: explanation.time_span.map(|(first, last)| TimeSpan {
                first: time_text(first),
                last: time_text(last),
                seconds: (last - first) as f64 / 1e6,
            }),
            step_back: explanation.step_back.map(|step| StepBackDocument {
                lsn: step.lsn.to_string(),
                from: second_text(step.from.div_euclid(1_000_000)),
                to: second_text(step.to.div_euclid(1_000_000)),
            }),
            settings: writer.settings(),
            setting_changes: explanation.logged_settings.changes.clone(),
            relations: writer.relations(),
            record_kinds: writer.record_kinds(),
            transactions: writer.transactions(),
            checkpoints: writer.checkpoints(&checkpoints, context.checkpoint_settings.is_some()),
            views: explanation.views.iter().map(|view| writer.view(view)).collect(),
            log: writer.log(),
            cycles: writer.cycles(&checkpoints),
            causes: fold_causes(cause_documents(causes, explanation.wal_bytes()), top),
            statement_causes: writer.statement_causes(),
            findings,
            damage: explanation.damage.as_ref().map(|damage| DamageDocument {
                file: damage.path.display().to_string(),
                segment: damage.segment.to_string(),
                offset: damage.offset,
                lsn: damage.lsn.to_string(),
                message: damage.to_string(),
                code: damage.code().unwrap_or_default(),
                hint: damage.hint().unwrap_or_default(),
            }),
        }
    }
}

/// Maximum number of listed causes.
const MAX_CAUSES: usize = 1000;

/// Maximum number of statements whose causes are listed; the others are one statement.
const MAX_STATEMENTS: usize = 50;

/// Returns causes with their shares of the WAL.
fn cause_documents(causes: Vec<ByteCause>, wal_bytes: u64) -> Vec<CauseDocument> {
    let document = |cause: ByteCause| CauseDocument {
        statement: None,
        activity: cause.activity,
        relation: cause.relation,
        mechanism: cause.mechanism,
        bytes: cause.bytes,
        share: cause.bytes as f64 / wal_bytes.max(1) as f64,
        records: cause.records,
        images: cause.images,
        folded: None,
    };
    causes.into_iter().map(document).collect()
}

/// Keeps the largest causes. The last element sums up all other causes.
fn fold_causes(mut causes: Vec<CauseDocument>, top: usize) -> Vec<CauseDocument> {
    let rest = causes.split_off(top.min(MAX_CAUSES).min(causes.len()));
    if !rest.is_empty() {
        let total = |number: fn(&CauseDocument) -> u64| rest.iter().map(number).sum();
        causes.push(CauseDocument {
            statement: None,
            activity: Activity::Other,
            relation: None,
            mechanism: Mechanism::Other,
            bytes: total(|cause| cause.bytes),
            share: rest.iter().map(|cause| cause.share).sum(),
            records: total(|cause| cause.records),
            images: total(|cause| cause.images),
            folded: Some(rest.len() as u64),
        });
    }
    causes
}

/// Describes where the WAL of a range ends, for messages.
fn end_of_wal(tail: &Tail) -> String {
    let Some(fault) = tail.fault else {
        return "the last record continues in a segment that is not in the input".to_owned();
    };
    if tail.torn > 0 {
        return format!("the WAL ends in a partly written record: {fault}");
    }
    let unused = bytes_text(tail.zero + tail.recycled);
    format!("the WAL ends at {}; {unused} of its last segment are unused", fault.lsn)
}

struct Writer<'a> {
    explanation: &'a Explanation,
    labels: &'a Labels<'a>,
    top: usize,
    pattern: Option<&'a Regex>,
    writers: Option<&'a Writers>,
}

impl Writer<'_> {
    fn share(&self, bytes: u64) -> f64 {
        self.explanation.share(bytes)
    }

    fn tally(&self, tally: &Tally) -> TallyDocument {
        let filled = Bucket::all().filter(|bucket| tally.buckets.get(*bucket) > 0);
        TallyDocument {
            bytes: tally.bytes(),
            share: self.share(tally.wal_bytes()),
            records: tally.records,
            images: tally.images,
            image_bytes: tally.buckets.images(),
            buckets: filled
                .map(|bucket| (bucket.name().to_owned(), tally.buckets.get(bucket).into()))
                .collect(),
        }
    }

    fn ranges(&self) -> Vec<RangeDocument> {
        self.explanation
            .ranges
            .iter()
            .map(|range| RangeDocument {
                timeline: range.timeline,
                start: range.start.to_string(),
                end: range.end.to_string(),
                first_segment: range.first_segment.to_string(),
                last_segment: range.last_segment.to_string(),
                bytes: range.bytes,
                end_of_log: range.tail.as_ref().map(end_of_wal),
            })
            .collect()
    }

    fn settings(&self) -> Map<String, Value> {
        let logged = &self.explanation.logged_settings;
        let mut settings = Map::new();
        let mut set = |name: &str, value: Value| settings.insert(name.to_owned(), value);
        if let Some(on) = logged.full_page_writes {
            set("full_page_writes", on_or_off(on).into());
        }
        if let Some(level) = logged.wal_level {
            set("wal_level", level.to_string().into());
        }
        if let Some(level) = logged.effective_wal_level() {
            set("effective_wal_level", level.to_string().into());
        }
        if let Some(on) = logged.wal_log_hints {
            set("wal_log_hints", on_or_off(on).into());
        }
        settings
    }

    fn relations(&self) -> Vec<RelationDocument> {
        let view = self.explanation.view_by(&[Dimension::Relation]);
        let mut tables: Vec<(Label, Tally, Vec<GroupDocument>)> = Vec::new();
        let mut index = HashMap::new();
        for (key, tally) in &view.rows {
            let owner = key.owner.unwrap_or(Owner::None);
            let table = self.labels.table_of(owner);
            let at = *index.entry(table.text.clone()).or_insert_with(|| {
                tables.push((table, Tally::default(), Vec::new()));
                tables.len() - 1
            });
            tables[at].1.merge(tally);
            let label = self.labels.owner(owner).marked();
            tables[at].2.push(GroupDocument { keys: vec![label], sum: self.tally(tally) });
        }
        tables.sort_by(|one, other| {
            other.1.wal_bytes().cmp(&one.1.wal_bytes()).then_with(|| one.0.text.cmp(&other.0.text))
        });
        let mut listed: Vec<RelationDocument> = Vec::new();
        let rest = tables.split_off(self.top.min(tables.len()));
        for (label, tally, parts) in tables {
            listed.push(RelationDocument { label, sum: self.tally(&tally), parts });
        }
        if !rest.is_empty() {
            let mut sum = Tally::default();
            rest.iter().for_each(|(_, tally, _)| sum.merge(tally));
            let label = Label::rest(rest.len() as u64, "table");
            listed.push(RelationDocument { label, sum: self.tally(&sum), parts: Vec::new() });
        }
        listed
    }

    /// The causes of the records of each statement in the server's log.
    fn statement_causes(&self) -> Vec<CauseDocument> {
        let by_cell = ViewSpec::by_statement_and_cell();
        let view = self.explanation.views.iter().rfind(|view| view.spec == by_cell);
        let (Some(view), Some(writers)) = (view, self.writers) else { return Vec::new() };
        let mut statements: HashMap<&str, HashMap<Cell, Tally>> = HashMap::new();
        for (key, tally) in &view.rows {
            let text = writers.text(key.writer.unwrap_or(WriterKey::Unknown), WriterProperty::Statement);
            let cell = Cell { owner: key.owner.unwrap_or(Owner::None), kind: key.kind.flatten() };
            statements.entry(text).or_default().entry(cell).or_default().merge(tally);
        }
        let mut statements: Vec<(&str, Vec<(Cell, Tally)>)> =
            statements.into_iter().map(|(text, cells)| (text, cells.into_iter().collect())).collect();
        let bytes = |cells: &[(Cell, Tally)]| cells.iter().map(|(_, tally)| tally.wal_bytes()).sum::<u64>();
        statements.sort_by_key(|(text, cells)| (std::cmp::Reverse(bytes(cells)), *text));
        let mut others: HashMap<Cell, Tally> = HashMap::new();
        for (cell, tally) in statements.drain(MAX_STATEMENTS.min(statements.len())..).flat_map(|one| one.1) {
            others.entry(cell).or_default().merge(&tally);
        }
        others.entry(Cell { owner: Owner::None, kind: None }).or_default().merge(&view.rest.1);
        statements.push(("(other statements)", others.into_iter().collect()));
        let wal_bytes = self.explanation.wal_bytes();
        let mut causes: Vec<CauseDocument> = Vec::new();
        for (text, mut cells) in statements {
            cells.sort_unstable_by_key(|(cell, _)| *cell);
            let of_statement = cause_documents(causes_of(self.explanation, &cells, self.labels), wal_bytes);
            let with_text = |cause| CauseDocument { statement: Some(text.to_owned()), ..cause };
            causes.extend(of_statement.into_iter().map(with_text));
        }
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.bytes));
        fold_causes(causes, self.top)
    }

    fn record_kinds(&self) -> Vec<GroupDocument> {
        let ViewDocument { mut groups, rest, .. } =
            self.view(&self.explanation.view_by(&[Dimension::Record]));
        if let Some(rest) = rest {
            groups.push(GroupDocument { keys: vec![Label::rest(rest.groups, "kind")], sum: rest.sum });
        }
        groups
    }

    fn view(&self, view: &View) -> ViewDocument {
        let merges = |dimension: &Dimension| dimension.is_of_relations() || dimension.is_of_writers();
        if view.spec.dimensions.iter().any(merges) {
            return self.merged_view(view);
        }
        let mut rows: Vec<&(GroupKey, Tally)> = view.rows.iter().collect();
        let (mut groups, mut sum) = view.rest;
        let in_order =
            view.spec.dimensions.iter().all(|d| matches!(d, Dimension::Time | Dimension::Checkpoint));
        if in_order {
            rows.sort_by_key(|(key, _)| *key);
        } else {
            for (_, tally) in rows.split_off(self.top.min(rows.len())) {
                groups += 1;
                sum.merge(tally);
            }
        }
        let by_time = view.spec.dimensions.contains(&Dimension::Time);
        ViewDocument {
            by: view.spec.dimensions.iter().map(|dimension| dimension.name()).collect(),
            span_seconds: self.explanation.spans.map(|(_, width)| width).filter(|_| by_time),
            groups: rows.iter().map(|(key, tally)| self.group(&view.spec, key, tally)).collect(),
            rest: (groups > 0).then(|| RestDocument { groups, sum: self.tally(&sum) }),
        }
    }

    /// Builds a view in which several relations or writers may share a label.
    fn merged_view(&self, view: &View) -> ViewDocument {
        let mut groups: Vec<(Vec<Label>, Tally)> = Vec::new();
        let mut index: FxHashMap<Vec<String>, usize> = FxHashMap::default();
        for (key, tally) in &view.rows {
            let labels: Vec<Label> =
                view.spec.dimensions.iter().map(|dimension| self.key(*dimension, key)).collect();
            let texts = labels.iter().map(|label| label.text.clone()).collect();
            let at = *index.entry(texts).or_insert(groups.len());
            match groups.get_mut(at) {
                Some((_, sum)) => sum.merge(tally),
                None => groups.push((labels, *tally)),
            }
        }
        // The rows are in a fixed order, which the stable sort keeps among equals.
        groups.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.wal_bytes()));
        let (mut more, mut rest) = view.rest;
        for (_, sum) in groups.split_off(self.top.min(groups.len())) {
            more += 1;
            rest.merge(&sum);
        }
        let by_time = view.spec.has(Dimension::Time);
        ViewDocument {
            by: view.spec.dimensions.iter().map(|dimension| dimension.name()).collect(),
            span_seconds: self.explanation.spans.map(|(_, width)| width).filter(|_| by_time),
            groups: groups
                .into_iter()
                .map(|(keys, sum)| GroupDocument { keys, sum: self.tally(&sum) })
                .collect(),
            rest: (more > 0).then(|| RestDocument { groups: more, sum: self.tally(&rest) }),
        }
    }

    fn group(&self, spec: &ViewSpec, key: &GroupKey, tally: &Tally) -> GroupDocument {
        let keys = spec.dimensions.iter().map(|dimension| self.key(*dimension, key)).collect();
        GroupDocument { keys, sum: self.tally(tally) }
    }

    fn key(&self, dimension: Dimension, key: &GroupKey) -> Label {
        match dimension {
            Dimension::Relation => self.labels.owner(key.owner.unwrap_or(Owner::None)).marked(),
            Dimension::Record => record_label(self.explanation.version, key.kind.flatten()),
            Dimension::Database => self.labels.database(key.database.flatten()),
            Dimension::Xid => match key.xid {
                None | Some(0) => Label::plain(Part::Xid, "no transaction"),
                Some(xid) => Label::plain(Part::Xid, &xid.to_string()),
            },
            Dimension::Time => {
                let text = self.explanation.spans.map(|(start, width)| {
                    second_text(start.saturating_add(width.saturating_mul(key.time.unwrap_or(0).into())))
                });
                Label::plain(Part::Time, &text.unwrap_or_else(|| "unknown time".into()))
            }
            Dimension::Checkpoint => {
                let number = key.checkpoint.unwrap_or(0) as usize;
                let start = self.explanation.cycles.get(number).and_then(|cycle| cycle.start);
                Label::plain(Part::Checkpoint, &cycle_text(start))
            }
            Dimension::Schema => self.labels.schema(key.owner.unwrap_or(Owner::None)),
            Dimension::Partition => self.labels.partition_root(key.owner.unwrap_or(Owner::None)),
            Dimension::Tablespace => self.labels.tablespace(key.owner.unwrap_or(Owner::None)),
            Dimension::Pattern => self.labels.pattern(key.owner.unwrap_or(Owner::None), self.pattern),
            Dimension::User => self.writer(Part::User, key, WriterProperty::User),
            Dimension::Application => self.writer(Part::Application, key, WriterProperty::Application),
            Dimension::Client => self.writer(Part::Client, key, WriterProperty::Client),
            Dimension::Statement => self.writer(Part::Statement, key, WriterProperty::Statement),
            Dimension::Vacuum => {
                let owner = key.owner.unwrap_or(Owner::None);
                let kind = key.kind.flatten().and_then(|index| Kind::from_index(index.into()));
                let work = vacuum_work(self.explanation.version, kind, key.in_transaction == Some(true));
                self.labels.vacuum(owner, work, self.writers)
            }
        }
    }

    /// The label of a writer's property.
    fn writer(&self, part: Part, key: &GroupKey, property: WriterProperty) -> Label {
        let key = key.writer.unwrap_or(WriterKey::Unknown);
        Label::plain(part, self.writers.map_or("", |writers| writers.text(key, property)))
    }

    fn log(&self) -> Option<LogDocument> {
        let writers = self.writers?;
        let view = self.explanation.views.iter().find(|view| view.spec.is_by_writer())?;
        let (mut transactions, mut joined, mut statements) = (0, 0, 0);
        for (key, tally) in &view.rows {
            match key.writer {
                Some(WriterKey::Unknown) => transactions += tally.bytes(),
                Some(known @ WriterKey::Known(_)) => {
                    transactions += tally.bytes();
                    joined += tally.bytes();
                    statements += if writers.has_statement(known) { tally.bytes() } else { 0 };
                }
                Some(WriterKey::NoTransaction) | None => {}
            }
        }
        let share = |part: u64| part as f64 / u64::max(transactions, 1) as f64;
        Some(LogDocument {
            counts: writers.counts,
            transaction_bytes: transactions,
            joined_bytes: joined,
            statement_bytes: statements,
            joined_share: share(joined),
            hints: log_hints(writers, share(joined), share(statements)),
        })
    }

    fn transactions(&self) -> TransactionsDocument {
        let sums = self.explanation.transaction_sums;
        TransactionsDocument {
            committed: sums.committed,
            aborted: sums.aborted,
            open: sums.open,
            bytes: sums.bytes,
            aborted_bytes: sums.aborted_bytes,
            system_records: sums.system_records,
            system_bytes: sums.system_bytes,
            largest: self
                .explanation
                .transactions
                .iter()
                .take(self.top)
                .map(|one| TransactionDocument {
                    xid: one.xid,
                    outcome: one.outcome.name(),
                    time: one.time.map(time_text),
                    records: one.records,
                    bytes: one.bytes,
                    share: self.share(one.bytes),
                    image_bytes: one.image_bytes,
                    subtransactions: one.subtransactions,
                })
                .collect(),
        }
    }

    fn cycles(&self, checkpoints: &[Checkpoint]) -> Vec<CycleDocument> {
        let cause = |redo: Lsn| {
            checkpoints.iter().find(|checkpoint| checkpoint.record.redo == redo).map(|c| c.cause.name())
        };
        let cycles = self.explanation.cycles.iter().map(|cycle| CycleDocument {
            label: cycle_text(cycle.start),
            cause: cycle.start.and_then(|(redo, _)| cause(redo)),
            bytes: cycle.along.iter().map(|tenth| tenth.0).sum(),
            image_bytes: cycle.along.iter().map(|tenth| tenth.1).sum(),
            image_share_along: cycle
                .along
                .iter()
                .map(|(bytes, images)| (*bytes > 0).then(|| *images as f64 / *bytes as f64))
                .collect(),
        });
        cycles.filter(|cycle| cycle.bytes > 0).collect()
    }

    fn checkpoints(&self, checkpoints: &[Checkpoint], from_settings: bool) -> CheckpointsDocument {
        let count = |cause| checkpoints.iter().filter(|checkpoint| checkpoint.cause == cause).count();
        let mean = |values: Vec<u64>| {
            (!values.is_empty()).then(|| values.iter().sum::<u64>() as f64 / values.len() as f64)
        };
        let distances = checkpoints.iter().filter_map(|checkpoint| checkpoint.distance).collect();
        let intervals =
            checkpoints.iter().filter_map(|checkpoint| checkpoint.interval?.try_into().ok()).collect();
        CheckpointsDocument {
            count: checkpoints.len() as u64,
            by_cause: Cause::ALL
                .iter()
                .filter(|cause| count(**cause) > 0)
                .map(|cause| (cause.name().to_owned(), count(*cause).into()))
                .collect(),
            unfinished: checkpoints.iter().filter(|one| !one.record.is_finished).count() as u64,
            causes_from_settings: from_settings,
            mean_distance: mean(distances).map(|distance| distance as u64),
            mean_interval_seconds: mean(intervals),
            list: checkpoints
                .iter()
                .map(|checkpoint| CheckpointDocument {
                    lsn: checkpoint.record.lsn.to_string(),
                    redo: checkpoint.record.redo.to_string(),
                    time: second_text(checkpoint.record.time),
                    cause: checkpoint.cause.name(),
                    finished: checkpoint.record.is_finished,
                    distance: checkpoint.distance,
                    interval_seconds: checkpoint.interval,
                })
                .collect(),
        }
    }
}

/// Lists the settings that would join more transactions.
fn log_hints(writers: &Writers, joined: f64, statements: f64) -> Vec<String> {
    let mut hints = Vec::new();
    let enough = 0.99;
    let fields = writers.fields();
    let mut missing = Vec::new();
    if let Some(fields) = fields {
        let wanted = [
            (fields.virtual_xid, "%v"),
            (fields.session, "%c"),
            (fields.user, "%u"),
            (fields.application, "%a"),
            (fields.client, "%h"),
        ];
        missing.extend(wanted.iter().filter(|(has, _)| !has).map(|(_, escape)| *escape));
    }
    if !missing.is_empty() {
        hints.push(format!(
            "log_line_prefix lacks {}: '%m [%p] %q%u@%d %a %h %v %x ' has all that is used; so have csvlog and jsonlog",
            missing.join(", ")
        ));
    }
    if joined >= enough && statements >= enough {
        return hints;
    }
    if writers.counts.statements == 0 {
        hints.push(
            "the log has no statements: log_statement = mod logs those that write, before they run; \
             log_min_duration_statement = 0 logs all, after they ran"
                .to_owned(),
        );
    }
    if writers.counts.statements_without_xid > 0 {
        hints.push(format!(
            "statements that may write ({}) are alone in their transaction, which has no ID yet when log_statement logs them, and \
             none any more when log_min_duration_statement does (in the simple query protocol): auto_explain.log_min_duration = 0 \
             or log_executor_stats = on log them while it has; so does a transaction block, by its COMMIT",
            writers.counts.statements_without_xid
        ));
    } else if joined < enough {
        hints.push(
            "transactions whose ID no log entry contains are missing: log_statement = mod logs more of them, where a \
             transaction has several statements, and auto_explain.log_min_duration = 0 or log_executor_stats = on those of one; or the \
             log does not cover the time of the WAL"
                .to_owned(),
        );
    }
    hints
}

fn record_label(version: Major, kind: Option<u16>) -> Label {
    match kind.and_then(|index| Kind::from_index(index.into())) {
        Some(kind) => {
            let text = format!("{} {}", kind.resource_manager(version), kind.name(version));
            Label::plain(Part::Record, &text)
        }
        None => Label::plain(Part::Framing, "page headers, padding, tail"),
    }
}

fn cycle_text(start: Option<(Lsn, i64)>) -> String {
    match start {
        Some((redo, time)) => format!("{} redo {redo}", second_text(time)),
        None => "before the first redo pointer".into(),
    }
}
