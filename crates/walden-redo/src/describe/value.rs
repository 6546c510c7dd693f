//! Names and values.

use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::Bits;

/// The value of a field, typed for text and JSON output.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A Boolean.
    Bool(bool),
    /// A number.
    Number(u64),
    /// A signed number.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Bytes that are not interpreted.
    Bytes(Bytes),
}

/// Bytes; formatted as hexadecimal text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bytes(pub Vec<u8>);

/// A named value.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// PostgreSQL's name of the field.
    pub name: &'static str,
    /// The field's value.
    pub value: Value,
}

/// Fields in the order of their positions; a single object in JSON.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fields(pub Vec<Field>);

impl Fields {
    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// Returns whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, name: &'static str, value: Value) {
        self.0.push(Field { name, value });
    }

    pub(crate) fn number(&mut self, name: &'static str, value: impl Into<u64>) {
        self.push(name, Value::Number(value.into()));
    }

    /// Adds a field if it has a value.
    pub(crate) fn maybe(&mut self, name: &'static str, value: Option<impl Into<u64>>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    pub(crate) fn signed(&mut self, name: &'static str, value: Option<i64>) {
        if let Some(value) = value {
            self.push(name, Value::Signed(value));
        }
    }

    pub(crate) fn float(&mut self, name: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.push(name, Value::Float(value));
        }
    }

    pub(crate) fn bool(&mut self, name: &'static str, value: bool) {
        self.push(name, Value::Bool(value));
    }

    pub(crate) fn text(&mut self, name: &'static str, value: impl fmt::Display) {
        self.push(name, Value::Text(value.to_string()));
    }

    pub(crate) fn maybe_text(&mut self, name: &'static str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub(crate) fn bytes(&mut self, name: &'static str, value: &[u8]) {
        self.push(name, Value::Bytes(Bytes(value.to_vec())));
    }

    pub(crate) fn list(&mut self, name: &'static str, values: impl Iterator<Item = impl fmt::Display>) {
        self.push(name, Value::List(values.map(|value| Value::Text(value.to_string())).collect()));
    }

    pub(crate) fn numbers(&mut self, name: &'static str, values: impl Iterator<Item = u32>) {
        self.push(name, Value::List(values.map(|value| Value::Number(value.into())).collect()));
    }

    /// Adds the names of the bits that are set; unnamed bits are added as a number.
    pub(crate) fn bits(&mut self, name: &'static str, value: u16, names: Bits) {
        let mut left = value;
        let mut list = Vec::new();
        for &(bits, name) in names {
            if left & bits == bits {
                left &= !bits;
                list.push(Value::Text(name.into()));
            }
        }
        if left != 0 {
            list.push(Value::Text(format!("{left:#06x}")));
        }
        self.push(name, Value::List(list));
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Number(value) => value.fmt(f),
            Value::Signed(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Text(value) => f.write_str(value),
            Value::List(values) if values.is_empty() => f.write_str("-"),
            Value::List(values) => {
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        f.write_str(" ")?;
                    }
                    value.fmt(f)?;
                }
                Ok(())
            }
            Value::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for field in &self.0 {
            map.serialize_entry(field.name, &field.value)?;
        }
        map.end()
    }
}
