//! The messages of `envoy.service.ratelimit.v3`, with the fields that this service reads or writes, and their
//! description for gRPC reflection. Unknown fields are skipped, as always in protocol buffers.
//!
//! Source: `envoy/service/ratelimit/v3/rls.proto` and `envoy/extensions/common/ratelimit/v3/ratelimit.proto`
//! of Envoy's API. The API is stable: fields are added, and no field changes its number.

use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, Duration, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto, Struct,
};

/// The name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The path of its only method.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A request for a decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The domain whose rules apply.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors, which are decided together.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The hits of each descriptor without a number of its own. 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A list of entries, which selects a rule.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The entries.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that replaces the rule's limit.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The hits of this descriptor. 0 only reads the state.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back instead of taken.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value. Envoy sends values of headers, which may be any bytes: those that are not UTF-8 are
/// read as characters for private use, so that different bytes are different texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

impl prost::Message for Entry {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for (tag, text) in [(1, &self.key), (2, &self.value)] {
            if !text.is_empty() {
                encoding::string::encode(tag, text, buf);
            }
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let field = match tag {
            1 => &mut self.key,
            2 => &mut self.value,
            _ => return encoding::skip_field(wire_type, tag, buf, ctx),
        };
        let mut bytes = Vec::new();
        encoding::bytes::merge(wire_type, &mut bytes, buf, ctx)?;
        *field = text_of(&bytes);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let length = |(tag, text): (u32, &String)| match text.len() {
            0 => 0,
            _ => encoding::string::encoded_len(tag, text),
        };
        length((1, &self.key)).saturating_add(length((2, &self.value)))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The character for the byte 0 in a text that is not UTF-8.
const BYTES: u32 = 0x10_FF00;

fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(BYTES | u32::from(*byte))));
    }
    text
}

/// A limit in a request.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Hits per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// The decision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// Whether the request is admitted.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One status for each descriptor, in the order of the request.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Metadata for the other filters of Envoy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// The status of a descriptor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether this descriptor is over its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The hits that remain.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until more hits are available.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    /// Hits per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The name of the limit, which may be empty.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A header of a response.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The decision about a request or a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not set.
    Unknown = 0,
    /// Within the limit.
    Ok = 1,
    /// Over the limit.
    OverLimit = 2,
}

/// A unit of time, with its number in responses and in the overrides of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs)] // the names say everything
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    /// All known units.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

const CODES: [(&str, i32); 3] = [("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)];
const UNITS: [(&str, i32); 8] = [
    ("UNKNOWN", 0),
    ("SECOND", 1),
    ("MINUTE", 2),
    ("HOUR", 3),
    ("DAY", 4),
    ("WEEK", 7),
    ("MONTH", 5),
    ("YEAR", 6),
];

/// Returns the messages and the service for gRPC reflection, so that tools need no files of Envoy.
#[allow(clippy::too_many_lines)] // a table
pub fn descriptors() -> FileDescriptorSet {
    const COMMON: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    const SERVICES: &str = ".envoy.service.ratelimit.v3.RateLimitResponse";
    let one = |name, number, kind| field(name, number, Label::Optional, kind, "");
    let of = |name, number, kind, type_name: &str| field(name, number, Label::Optional, kind, type_name);
    let many = |name, number, type_name: &str| field(name, number, Label::Repeated, Type::Message, type_name);

    let header = message("HeaderValue", vec![one("key", 1, Type::String), one("value", 2, Type::String)]);
    let entry = message("Entry", vec![one("key", 1, Type::String), one("value", 2, Type::String)]);
    let unit = of("unit", 2, Type::Enum, ".envoy.type.v3.RateLimitUnit");
    let limit = message("RateLimitOverride", vec![one("requests_per_unit", 1, Type::Uint32), unit]);
    let descriptor = DescriptorProto {
        nested_type: vec![entry, limit],
        ..message(
            "RateLimitDescriptor",
            vec![
                many("entries", 1, &format!("{COMMON}.Entry")),
                of("limit", 2, Type::Message, &format!("{COMMON}.RateLimitOverride")),
                of("hits_addend", 3, Type::Message, ".google.protobuf.UInt64Value"),
                one("is_negative_hits", 4, Type::Bool),
            ],
        )
    };
    let request = message(
        "RateLimitRequest",
        vec![
            one("domain", 1, Type::String),
            many("descriptors", 2, COMMON),
            one("hits_addend", 3, Type::Uint32),
        ],
    );
    let rate_limit = DescriptorProto {
        enum_type: vec![enumeration("Unit", &UNITS)],
        ..message(
            "RateLimit",
            vec![
                one("requests_per_unit", 1, Type::Uint32),
                of("unit", 2, Type::Enum, &format!("{SERVICES}.RateLimit.Unit")),
                one("name", 3, Type::String),
            ],
        )
    };
    let status = message(
        "DescriptorStatus",
        vec![
            of("code", 1, Type::Enum, &format!("{SERVICES}.Code")),
            of("current_limit", 2, Type::Message, &format!("{SERVICES}.RateLimit")),
            one("limit_remaining", 3, Type::Uint32),
            of("duration_until_reset", 4, Type::Message, ".google.protobuf.Duration"),
        ],
    );
    let response = DescriptorProto {
        nested_type: vec![rate_limit, status],
        enum_type: vec![enumeration("Code", &CODES)],
        ..message(
            "RateLimitResponse",
            vec![
                of("overall_code", 1, Type::Enum, &format!("{SERVICES}.Code")),
                many("statuses", 2, &format!("{SERVICES}.DescriptorStatus")),
                many("response_headers_to_add", 3, ".envoy.config.core.v3.HeaderValue"),
                of("dynamic_metadata", 6, Type::Message, ".google.protobuf.Struct"),
            ],
        )
    };
    let method = MethodDescriptorProto {
        name: Some("ShouldRateLimit".to_owned()),
        input_type: Some(".envoy.service.ratelimit.v3.RateLimitRequest".to_owned()),
        output_type: Some(SERVICES.to_owned()),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("RateLimitService".to_owned()),
        method: vec![method],
        options: None,
    };

    // Tools need files for the messages that prost-types has as Rust types.
    let well_known = |name: &str, messages| {
        file(&format!("google/protobuf/{name}.proto"), "google.protobuf", messages, &[])
    };
    let value = message("UInt64Value", vec![one("value", 1, Type::Uint64)]);
    let duration = message("Duration", vec![one("seconds", 1, Type::Int64), one("nanos", 2, Type::Int32)]);
    let unit = FileDescriptorProto {
        enum_type: vec![enumeration("RateLimitUnit", &UNITS)],
        ..file("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", vec![], &[])
    };
    let core = file("envoy/config/core/v3/base.proto", "envoy.config.core.v3", vec![header], &[]);
    let common = file(
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy.extensions.common.ratelimit.v3",
        vec![descriptor],
        &["envoy/type/v3/ratelimit_unit.proto", "google/protobuf/wrappers.proto"],
    );
    let rls = FileDescriptorProto {
        service: vec![service],
        ..file(
            "envoy/service/ratelimit/v3/rls.proto",
            "envoy.service.ratelimit.v3",
            vec![request, response],
            &[
                "envoy/config/core/v3/base.proto",
                "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
                "google/protobuf/duration.proto",
                "google/protobuf/struct.proto",
            ],
        )
    };
    let file = vec![
        well_known("wrappers", vec![value]),
        well_known("duration", vec![duration]),
        structure(),
        unit,
        core,
        common,
        rls,
    ];
    FileDescriptorSet { file }
}

/// Describes `google/protobuf/struct.proto`.
fn structure() -> FileDescriptorProto {
    const VALUE: &str = ".google.protobuf.Value";
    let of = |name, number, kind, type_name: &str| field(name, number, Label::Optional, kind, type_name);
    let many = |name, number, type_name: &str| field(name, number, Label::Repeated, Type::Message, type_name);
    let entry = DescriptorProto {
        options: Some(prost_types::MessageOptions { map_entry: Some(true), ..Default::default() }),
        ..message("FieldsEntry", vec![of("key", 1, Type::String, ""), of("value", 2, Type::Message, VALUE)])
    };
    let fields = DescriptorProto {
        nested_type: vec![entry],
        ..message("Struct", vec![many("fields", 1, ".google.protobuf.Struct.FieldsEntry")])
    };
    let kinds = [
        ("null_value", Type::Enum, ".google.protobuf.NullValue"),
        ("number_value", Type::Double, ""),
        ("string_value", Type::String, ""),
        ("bool_value", Type::Bool, ""),
        ("struct_value", Type::Message, ".google.protobuf.Struct"),
        ("list_value", Type::Message, ".google.protobuf.ListValue"),
    ];
    let kinds = (1..).zip(kinds).map(|(number, (name, kind, type_name))| FieldDescriptorProto {
        oneof_index: Some(0),
        ..of(name, number, kind, type_name)
    });
    let value = DescriptorProto {
        oneof_decl: vec![prost_types::OneofDescriptorProto { name: Some("kind".to_owned()), options: None }],
        ..message("Value", kinds.collect())
    };
    let list = message("ListValue", vec![many("values", 1, VALUE)]);
    FileDescriptorProto {
        enum_type: vec![enumeration("NullValue", &[("NULL_VALUE", 0)])],
        ..file("google/protobuf/struct.proto", "google.protobuf", vec![fields, value, list], &[])
    }
}

fn file(
    name: &str,
    package: &str,
    messages: Vec<DescriptorProto>,
    dependencies: &[&str],
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: dependencies.iter().map(|&name| name.to_owned()).collect(),
        message_type: messages,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, field: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

fn field(name: &str, number: i32, label: Label, kind: Type, type_name: &str) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(kind.into()),
        type_name: Some(type_name.to_owned()).filter(|name| !name.is_empty()),
        ..FieldDescriptorProto::default()
    }
}

fn enumeration(name: &str, values: &[(&str, i32)]) -> EnumDescriptorProto {
    let value = |&(name, number): &(&str, i32)| EnumValueDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: values.iter().map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}
