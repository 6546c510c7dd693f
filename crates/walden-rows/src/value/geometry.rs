//! Geometric types (`geo_ops.c`).

use std::fmt;

use super::{Float, Value};

pub(super) fn shape(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value {
        Value::Point([x, y]) => point(*x, *y, f),
        Value::Line([a, b, c]) => write!(f, "{{{a},{b},{c}}}"),
        Value::Lseg([x1, y1, x2, y2]) => {
            f.write_str("[")?;
            points(&[[*x1, *y1], [*x2, *y2]], f)?;
            f.write_str("]")
        }
        Value::Box([x1, y1, x2, y2]) => points(&[[*x1, *y1], [*x2, *y2]], f),
        Value::Path { closed: false, points: all } => {
            f.write_str("[")?;
            points(all, f)?;
            f.write_str("]")
        }
        Value::Path { points: all, .. } | Value::Polygon(all) => {
            f.write_str("(")?;
            points(all, f)?;
            f.write_str(")")
        }
        Value::Circle([x, y, radius]) => {
            f.write_str("<")?;
            point(*x, *y, f)?;
            write!(f, ",{radius}>")
        }
        _ => Ok(()),
    }
}

fn point(x: Float<f64>, y: Float<f64>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "({x},{y})")
}

fn points(points: &[[Float<f64>; 2]], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, [x, y]) in points.iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        point(*x, *y, f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_their_brackets() {
        let cases = [
            (Value::Point([1.0, -2.5].map(Float)), "(1,-2.5)"),
            (Value::Line([1.0, 2.0, 3.0].map(Float)), "{1,2,3}"),
            (Value::Lseg([1.0, 2.0, 3.0, 4.0].map(Float)), "[(1,2),(3,4)]"),
            (Value::Box([3.0, 4.0, 1.0, 2.0].map(Float)), "(3,4),(1,2)"),
            (
                Value::Path { closed: true, points: vec![[0.0, 0.0].map(Float), [1.0, 1.0].map(Float)] },
                "((0,0),(1,1))",
            ),
            (Value::Path { closed: false, points: vec![[0.0, 0.0].map(Float)] }, "[(0,0)]"),
            (Value::Polygon(vec![[0.0, 0.0].map(Float)]), "((0,0))"),
            (Value::Circle([1.0, 2.0, 3.0].map(Float)), "<(1,2),3>"),
        ];
        for (value, text) in cases {
            assert_eq!(value.to_string(), text);
        }
    }
}
