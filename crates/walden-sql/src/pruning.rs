//! Derives bounds of positions and times from conditions, so that segments are skipped.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use walden_format::lsn::Lsn;

/// Inclusive bounds on a column; the range may be larger than a condition requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Range {
    pub from: Option<i128>,
    pub to: Option<i128>,
}

impl Range {
    /// Returns the bounds of a column under conditions that all hold. Times are in microseconds.
    pub fn from_conditions(column: &str, conditions: &[Expr]) -> Range {
        let mut range = Range::default();
        for condition in conditions {
            range.narrow(column, condition);
        }
        range
    }

    /// Returns the bounds as positions, the second one exclusive.
    pub fn positions(self) -> (Option<Lsn>, Option<Lsn>) {
        let lsn = |value: i128| Lsn(value.clamp(0, u64::MAX.into()) as u64);
        (self.from.map(lsn), self.to.map(|to| lsn(to.saturating_add(1))))
    }

    fn narrow(&mut self, column: &str, condition: &Expr) {
        match condition {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                self.narrow(column, left);
                self.narrow(column, right);
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (&**left, &**right) {
                (Expr::Column(name), Expr::Literal(value, _)) if name.name == column => {
                    self.compare(*op, number(value));
                }
                (Expr::Literal(value, _), Expr::Column(name)) if name.name == column => {
                    self.compare(op.swap().unwrap_or(*op), number(value));
                }
                _ => {}
            },
            Expr::Between(between) if !between.negated => {
                if let (Expr::Column(name), Expr::Literal(low, _), Expr::Literal(high, _)) =
                    (&*between.expr, &*between.low, &*between.high)
                    && name.name == column
                {
                    self.compare(Operator::GtEq, number(low));
                    self.compare(Operator::LtEq, number(high));
                }
            }
            _ => {}
        }
    }

    fn compare(&mut self, operator: Operator, value: Option<i128>) {
        let Some(value) = value else { return };
        if matches!(operator, Operator::Gt | Operator::GtEq | Operator::Eq) {
            self.from = Some(self.from.map_or(value, |from| from.max(value)));
        }
        if matches!(operator, Operator::Lt | Operator::LtEq | Operator::Eq) {
            self.to = Some(self.to.map_or(value, |to| to.min(value)));
        }
    }
}

/// Converts a position or transaction to a number, or a time to microseconds.
fn number(value: &ScalarValue) -> Option<i128> {
    match value {
        ScalarValue::UInt64(value) => value.map(i128::from),
        ScalarValue::UInt32(value) => value.map(i128::from),
        ScalarValue::Int64(value) => value.map(i128::from),
        ScalarValue::TimestampSecond(value, _) => value.map(|value| i128::from(value) * 1_000_000),
        ScalarValue::TimestampMillisecond(value, _) => value.map(|value| i128::from(value) * 1000),
        ScalarValue::TimestampMicrosecond(value, _) => value.map(i128::from),
        // Off by less than a microsecond; bounds by time have a margin of minutes.
        ScalarValue::TimestampNanosecond(value, _) => value.map(|value| i128::from(value / 1000)),
        _ => None,
    }
}

/// Whether a condition may narrow a column.
pub(crate) fn speaks_of(column: &str, condition: &Expr) -> bool {
    Range::from_conditions(column, std::slice::from_ref(condition)) != Range::default()
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    #[test]
    fn conditions_narrow() {
        let both = col("start_lsn").gt_eq(lit(10_u64)).and(lit(20_u64).gt(col("start_lsn")));
        assert_eq!(Range::from_conditions("start_lsn", &[both]), Range { from: Some(10), to: Some(20) });
        let narrower = [col("start_lsn").gt(lit(5_u64)), col("start_lsn").eq(lit(7_u64))];
        assert_eq!(Range::from_conditions("start_lsn", &narrower), Range { from: Some(7), to: Some(7) });
        let between = col("start_lsn").between(lit(1_u64), lit(2_u64));
        assert_eq!(Range::from_conditions("start_lsn", &[between]), Range { from: Some(1), to: Some(2) });
    }

    #[test]
    fn other_conditions_do_not() {
        let either = col("start_lsn").gt(lit(5_u64)).or(col("xid").eq(lit(1_u32)));
        let other = col("end_lsn").gt(lit(5_u64));
        let unequal = col("start_lsn").not_eq(lit(5_u64));
        let outside = col("start_lsn").not_between(lit(1_u64), lit(2_u64));
        for condition in [either, other, unequal, outside] {
            assert!(!speaks_of("start_lsn", &condition), "{condition}");
        }
    }

    #[test]
    fn times_are_in_microseconds() {
        let second = Expr::Literal(ScalarValue::TimestampSecond(Some(2), None), None);
        let range = Range::from_conditions("time", &[col("time").lt(second)]);
        assert_eq!(range, Range { from: None, to: Some(2_000_000) });
    }
}
