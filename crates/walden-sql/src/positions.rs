//! Positions and times that a query compares with text.
//!
//! A position is a 64-bit number, so that `DataFusion` would parse a text that is compared with it as decimal
//! digits. This module replaces the text in a condition such as `start_lsn > '0/3000000'` by the position's
//! number, so that the condition skips segments.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DFSchema, ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable as _, LogicalPlan, Operator};
use walden_format::lsn::Lsn;

/// Replaces texts that are compared with positions.
///
/// # Errors
/// A text that is not a position, or not a time if it is compared with one.
pub(crate) fn replace_texts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let replaced = plan.transform_up_with_subqueries(|plan| {
        // An expression may name the columns of the inputs; in a join, of both.
        let mut schema = DFSchema::empty();
        for input in plan.inputs() {
            schema.merge(input.schema());
        }
        if let LogicalPlan::TableScan(scan) = &plan {
            schema.merge(&scan.projected_schema);
        }
        plan.map_expressions(|expression| {
            expression.transform_up(|expression| replace_in(expression, &schema))
        })
    })?;
    Ok(replaced.data)
}

fn replace_in(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let compare = |one: &mut Expr, other: &mut Expr| -> Result<bool> {
        Ok(replace_text(one, other, schema)? || replace_text(other, one, schema)?)
    };
    let mut expression = expression;
    let is_changed = match &mut expression {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => compare(left, right)?,
        Expr::Between(Between { expr, low, high, .. }) => compare(expr, low)? | compare(expr, high)?,
        Expr::InList(InList { expr, list, .. }) => {
            let mut is_changed = false;
            for one in list {
                is_changed |= compare(expr, one)?;
            }
            is_changed
        }
        _ => false,
    };
    Ok(if is_changed { Transformed::yes(expression) } else { Transformed::no(expression) })
}

fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Replaces `text` by a number if it is a text that is compared with a position; returns whether it was
/// replaced.
fn replace_text(compared: &Expr, text: &mut Expr, schema: &DFSchema) -> Result<bool> {
    let Expr::Literal(ScalarValue::Utf8(Some(given)), _) = &*text else { return Ok(false) };
    match compared.get_type(schema) {
        Ok(DataType::UInt64) if given.trim().parse::<u64>().is_err() => {
            let Ok(lsn) = given.trim().parse::<Lsn>() else {
                return plan_err!(
                    "expected a position such as '16/B374D848' or a whole number beside {compared}, found '{given}'"
                );
            };
            *text = Expr::Literal(ScalarValue::UInt64(Some(lsn.0)), None);
            Ok(true)
        }
        Ok(time @ DataType::Timestamp(..)) => {
            if ScalarValue::Utf8(Some(given.clone())).cast_to(&time).is_err() {
                return plan_err!(
                    "expected a time such as '2026-11-20 22:00:00+01' (UTC without a zone) or an expression such as now() - \
                     interval '1 day' beside {compared}, found '{given}'"
                );
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}
