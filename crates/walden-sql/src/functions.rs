//! Functions for WAL positions.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, StringArray, UInt64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, UInt64Type};
use datafusion::common::{ScalarValue, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use walden_format::lsn::Lsn;

/// Returns all functions: `lsn('16/B374D848')`, `lsn_text(number)` and `pg_lsn_text(number)`.
pub(crate) fn all() -> [ScalarUDF; 3] {
    let lsn = Arc::new(|arguments: &[ColumnarValue]| apply(arguments, parse));
    [
        create_udf("lsn", vec![DataType::Utf8], DataType::UInt64, Volatility::Immutable, lsn),
        ScalarUDF::new_from_impl(LsnText::new("lsn_text", false)),
        ScalarUDF::new_from_impl(LsnText::new("pg_lsn_text", true)),
    ]
}

fn apply(arguments: &[ColumnarValue], work: fn(&ArrayRef) -> Result<ArrayRef>) -> Result<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let result = work(&arrays[0]);
    // A constant stays one, so that conditions on positions skip segments. An invalid one is an error in the
    // query.
    match arguments[0] {
        ColumnarValue::Scalar(_) => {
            let result = result.map_err(|error| DataFusionError::Plan(error.message().into_owned()))?;
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?))
        }
        ColumnarValue::Array(_) => Ok(ColumnarValue::Array(result?)),
    }
}

fn parse(array: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(array, &DataType::Utf8)?;
    let parse_one = |text: &str| {
        text.parse::<Lsn>().map(|lsn| lsn.0).map_err(|_| {
            DataFusionError::Execution(format!("lsn('{text}'): expected a position such as 16/B374D848"))
        })
    };
    let numbers: UInt64Array =
        texts.as_string::<i32>().iter().map(|text| text.map(parse_one).transpose()).collect::<Result<_>>()?;
    Ok(Arc::new(numbers))
}

/// A type for every whole number that an argument may be. The sum of a position and a literal is such a
/// decimal, because no integer type of SQL includes the values of both.
const WHOLE_NUMBER: DataType = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);

/// `lsn_text(number)`, for any type of whole numbers, and `pg_lsn_text(number)`, the same without the zero
/// padding that PostgreSQL prints only since 19 (`pg_lsn_out`).
#[derive(PartialEq, Eq, Hash, Debug)]
struct LsnText {
    name: &'static str,
    is_unpadded: bool,
    signature: Signature,
}

impl LsnText {
    fn new(name: &'static str, is_unpadded: bool) -> LsnText {
        LsnText { name, is_unpadded, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for LsnText {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::UInt64 | DataType::UInt32 | DataType::UInt16 | DataType::UInt8 | DataType::Null] => {
                Ok(vec![DataType::UInt64])
            }
            [DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8] => Ok(vec![WHOLE_NUMBER]),
            [DataType::Decimal128(_, 0)] => Ok(vec![WHOLE_NUMBER]),
            [other] => plan_err!("expected a whole number, found {other}"),
            others => plan_err!("expected one number, found {} arguments", others.len()),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        apply(&arguments.args, if self.is_unpadded { unpadded_text } else { text })
    }
}

fn text(array: &ArrayRef) -> Result<ArrayRef> {
    let texts = walden_arrow::lsn_text(&positions(array)?);
    debug_assert_eq!(texts.len(), array.len());
    Ok(texts)
}

fn unpadded_text(array: &ArrayRef) -> Result<ArrayRef> {
    let positions = positions(array)?;
    let half = |lsn: u64| format!("{:X}/{:X}", lsn >> 32, lsn & u64::from(u32::MAX));
    let numbers = positions.as_primitive_opt::<UInt64Type>().into_iter().flatten();
    Ok(Arc::new(StringArray::from_iter(numbers.map(|lsn| lsn.map(half)))))
}

/// Converts whole numbers to 64-bit numbers; other arrays are returned unchanged.
fn positions(array: &ArrayRef) -> Result<ArrayRef> {
    let Some(numbers) = array.as_primitive_opt::<Decimal128Type>() else { return Ok(Arc::clone(array)) };
    let position = |number: i128| {
        u64::try_from(number).map_err(|_| {
            DataFusionError::Execution(format!(
                "lsn_text({number}): expected a position, from 0 to {}",
                u64::MAX
            ))
        })
    };
    let positions: UInt64Array =
        numbers.iter().map(|number| number.map(position).transpose()).collect::<Result<_>>()?;
    Ok(Arc::new(positions))
}
