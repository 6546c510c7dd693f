//! Functions for positions in the log.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, UInt64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use walden_format::lsn::Lsn;

/// Every function: `lsn('16/B374D848')` and `lsn_text(number)`.
pub(crate) fn all() -> [ScalarUDF; 2] {
    let make = |work: fn(&ArrayRef) -> Result<ArrayRef>| {
        Arc::new(move |arguments: &[ColumnarValue]| {
            let arrays = ColumnarValue::values_to_arrays(arguments)?;
            let result = work(&arrays[0])?;
            // A constant stays one, so that conditions on positions skip segments.
            match arguments[0] {
                ColumnarValue::Scalar(_) => {
                    Ok(ColumnarValue::Scalar(datafusion::scalar::ScalarValue::try_from_array(&result, 0)?))
                }
                ColumnarValue::Array(_) => Ok(ColumnarValue::Array(result)),
            }
        })
    };
    [
        create_udf("lsn", vec![DataType::Utf8], DataType::UInt64, Volatility::Immutable, make(parse)),
        create_udf("lsn_text", vec![DataType::UInt64], DataType::Utf8, Volatility::Immutable, make(text)),
    ]
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

fn text(array: &ArrayRef) -> Result<ArrayRef> {
    let texts = walden_arrow::lsn_text(array);
    debug_assert_eq!(texts.len(), array.len());
    Ok(texts)
}
