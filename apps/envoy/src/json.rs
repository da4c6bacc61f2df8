//! Requests and responses in JSON, as protocol buffers are written in it.

use crate::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, Unit,
};
use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};

/// Reads a request.
///
/// # Errors
/// Returns a description of the error.
pub fn request(text: &[u8]) -> Result<RateLimitRequest, String> {
    let value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut fields = Fields::of(value, "the request")?;
    let request = RateLimitRequest {
        domain: fields.text("domain")?,
        descriptors: fields.list("descriptors", descriptor)?,
        hits_addend: fields.number("hits_addend")?.unwrap_or_default(),
    };
    fields.end(request)
}

fn descriptor(value: Value) -> Result<RateLimitDescriptor, String> {
    let mut fields = Fields::of(value, "a descriptor")?;
    let descriptor = RateLimitDescriptor {
        entries: fields.list("entries", |value| {
            let mut fields = Fields::of(value, "an entry")?;
            let entry = Entry { key: fields.text("key")?, value: fields.text("value")? };
            fields.end(entry)
        })?,
        limit: match fields.take("limit") {
            Value::Null => None,
            value => {
                let mut fields = Fields::of(value, "limit")?;
                let requests_per_unit = fields.number("requests_per_unit")?.unwrap_or_default();
                let unit = fields.take("unit");
                let unit = match &unit {
                    Value::String(name) => {
                        let known =
                            Unit::ALL.into_iter().find(|known| known.name().to_ascii_uppercase() == *name);
                        known.map(i32::from).ok_or_else(|| format!("unit: there is no {name}"))?
                    }
                    Value::Null => 0,
                    number => number
                        .as_i64()
                        .and_then(|number| i32::try_from(number).ok())
                        .ok_or("unit: no unit")?,
                };
                Some(fields.end(RateLimitOverride { requests_per_unit, unit })?)
            }
        },
        hits_addend: fields.number("hits_addend")?,
        is_negative_hits: match fields.take("is_negative_hits") {
            Value::Null => false,
            value => value.as_bool().ok_or("is_negative_hits: must be true or false")?,
        },
    };
    fields.end(descriptor)
}

/// The fields of a message that have not been read yet. Those that are null count as missing.
struct Fields(Map<String, Value>);

impl Fields {
    fn of(value: Value, name: &str) -> Result<Self, String> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(format!("{name} must be an object")),
        }
    }

    /// Takes a field, whose name may be written with `_` or with capitals.
    fn take(&mut self, name: &str) -> Value {
        let mut words = name.split('_');
        let mut capitals = words.next().unwrap_or_default().to_owned();
        for word in words {
            let (first, rest) = word.split_at_checked(1).unwrap_or_default();
            capitals.push_str(&first.to_ascii_uppercase());
            capitals.push_str(rest);
        }
        self.0.remove(name).or_else(|| self.0.remove(&capitals)).unwrap_or(Value::Null)
    }

    fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name) {
            Value::Null => Ok(String::new()),
            Value::String(text) => Ok(text),
            _ => Err(format!("{name}: must be a text")),
        }
    }

    /// Takes a number, which may be written as a text.
    fn number<N: TryFrom<u64>>(&mut self, name: &str) -> Result<Option<N>, String> {
        let number = match self.take(name) {
            Value::Null => return Ok(None),
            Value::String(text) => text.parse().ok(),
            value => value.as_u64(),
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.map(Some).ok_or_else(|| format!("{name}: must be a whole number, and not too large"))
    }

    fn list<T>(&mut self, name: &str, read: impl Fn(Value) -> Result<T, String>) -> Result<Vec<T>, String> {
        match self.take(name) {
            Value::Null => Ok(Vec::new()),
            Value::Array(values) => values.into_iter().map(read).collect(),
            _ => Err(format!("{name}: must be a list")),
        }
    }

    /// Returns the message, if all its fields are known.
    fn end<T>(self, message: T) -> Result<T, String> {
        match self.0.keys().next() {
            Some(name) => Err(format!("{name}: unknown")),
            None => Ok(message),
        }
    }
}

/// Writes a response. Fields with the value 0 and empty ones are left out.
pub fn response(response: &RateLimitResponse) -> Value {
    let code = |code| match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    };
    let statuses = response.statuses.iter().map(|status| {
        let limit = status.current_limit.as_ref().map(|limit| {
            let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).name().to_ascii_uppercase();
            message(json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit, "name": limit.name }))
        });
        message(json!({
            "code": code(status.code),
            "currentLimit": limit,
            "limitRemaining": status.limit_remaining,
            "durationUntilReset": status.duration_until_reset.map(|wait| format!("{}s", wait.seconds)),
        }))
    });
    let header = |header: &crate::proto::HeaderValue| json!({ "key": header.key, "value": header.value });
    message(json!({
        "overallCode": code(response.overall_code),
        "statuses": statuses.collect::<Value>(),
        "responseHeadersToAdd": response.response_headers_to_add.iter().map(header).collect::<Value>(),
        "dynamicMetadata": response.dynamic_metadata.as_ref().map(structure),
    }))
}

fn message(value: Value) -> Value {
    let Value::Object(mut fields) = value else { return value };
    fields.retain(|_, value| {
        !(value.is_null() || *value == json!(0) || *value == json!("") || *value == json!([]))
    });
    Value::Object(fields)
}

/// Writes a structure.
pub fn structure(structure: &Struct) -> Value {
    structure.fields.iter().map(|(name, value)| (name.clone(), any(value))).collect()
}

fn any(value: &prost_types::Value) -> Value {
    match &value.kind {
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::NumberValue(value)) => json!(value),
        Some(Kind::StringValue(value)) => json!(value),
        Some(Kind::StructValue(value)) => structure(value),
        Some(Kind::ListValue(list)) => list.values.iter().map(any).collect(),
        Some(Kind::NullValue(_)) | None => Value::Null,
    }
}
