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
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto, Struct,
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

/// The files with the messages and enumerations above, and with those that prost-types has as Rust types,
/// which tools need as well. A line is a file with its imports, an enumeration, a service, or a message and
/// its fields.
const FILES: &str = "
file google/protobuf/wrappers.proto google.protobuf
message UInt64Value | uint64 value 1
file google/protobuf/duration.proto google.protobuf
message Duration | int64 seconds 1 | int32 nanos 2
file google/protobuf/struct.proto google.protobuf
enum NullValue NULL_VALUE 0
message Struct | repeated .google.protobuf.Struct.FieldsEntry fields 1
entry Struct.FieldsEntry | string key 1 | .google.protobuf.Value value 2
oneof Value | enum .google.protobuf.NullValue null_value 1 | double number_value 2 | string string_value 3 | \
bool bool_value 4 | .google.protobuf.Struct struct_value 5 | .google.protobuf.ListValue list_value 6
message ListValue | repeated .google.protobuf.Value values 1
file envoy/type/v3/ratelimit_unit.proto envoy.type.v3
enum RateLimitUnit UNKNOWN 0 SECOND 1 MINUTE 2 HOUR 3 DAY 4 WEEK 7 MONTH 5 YEAR 6
file envoy/config/core/v3/base.proto envoy.config.core.v3
message HeaderValue | string key 1 | string value 2
file envoy/extensions/common/ratelimit/v3/ratelimit.proto envoy.extensions.common.ratelimit.v3 \
envoy/type/v3/ratelimit_unit.proto google/protobuf/wrappers.proto
message RateLimitDescriptor | \
repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry entries 1 | \
.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride limit 2 | \
.google.protobuf.UInt64Value hits_addend 3 | bool is_negative_hits 4
message RateLimitDescriptor.Entry | string key 1 | string value 2
message RateLimitDescriptor.RateLimitOverride | uint32 requests_per_unit 1 | \
enum .envoy.type.v3.RateLimitUnit unit 2
file envoy/service/ratelimit/v3/rls.proto envoy.service.ratelimit.v3 envoy/config/core/v3/base.proto \
envoy/extensions/common/ratelimit/v3/ratelimit.proto google/protobuf/duration.proto \
google/protobuf/struct.proto
service RateLimitService ShouldRateLimit .envoy.service.ratelimit.v3.RateLimitRequest \
.envoy.service.ratelimit.v3.RateLimitResponse
message RateLimitRequest | string domain 1 | \
repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors 2 | uint32 hits_addend 3
message RateLimitResponse | enum .envoy.service.ratelimit.v3.RateLimitResponse.Code overall_code 1 | \
repeated .envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus statuses 2 | \
repeated .envoy.config.core.v3.HeaderValue response_headers_to_add 3 | \
.google.protobuf.Struct dynamic_metadata 6 | values Code UNKNOWN 0 OK 1 OVER_LIMIT 2
message RateLimitResponse.RateLimit | uint32 requests_per_unit 1 | \
enum .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit unit 2 | string name 3 | \
values Unit UNKNOWN 0 SECOND 1 MINUTE 2 HOUR 3 DAY 4 WEEK 7 MONTH 5 YEAR 6
message RateLimitResponse.DescriptorStatus | \
enum .envoy.service.ratelimit.v3.RateLimitResponse.Code code 1 | \
.envoy.service.ratelimit.v3.RateLimitResponse.RateLimit current_limit 2 | uint32 limit_remaining 3 | \
.google.protobuf.Duration duration_until_reset 4
";

/// Returns the messages and the service for gRPC reflection, so that tools need no files of Envoy.
pub fn descriptors() -> FileDescriptorSet {
    let mut files: Vec<FileDescriptorProto> = Vec::new();
    for line in FILES.lines() {
        let mut parts = line.split(" | ").map(|part| part.split(' ').collect::<Vec<_>>());
        match (parts.next().unwrap_or_default().as_slice(), files.last_mut()) {
            (["file", name, package, imports @ ..], _) => files.push(FileDescriptorProto {
                package: owned(package),
                dependency: imports.iter().map(|&name| name.to_owned()).collect(),
                syntax: owned("proto3"),
                name: owned(name),
                ..Default::default()
            }),
            (["enum", name, values @ ..], Some(file)) => file.enum_type.push(enumeration(name, values)),
            (["service", service, name, input, output], Some(file)) => {
                let (name, input_type, output_type) = (owned(name), owned(input), owned(output));
                let method =
                    vec![MethodDescriptorProto { name, input_type, output_type, ..Default::default() }];
                file.service.push(ServiceDescriptorProto { name: owned(service), method, options: None });
            }
            ([kind @ ("message" | "entry" | "oneof"), path], Some(file)) => {
                let (outer, name) = path.split_once('.').unwrap_or(("", path));
                let mut message = DescriptorProto { name: owned(name), ..Default::default() };
                if *kind == "entry" {
                    message.options = Some(MessageOptions { map_entry: Some(true), ..Default::default() });
                }
                let oneof_index = (*kind == "oneof").then_some(0);
                message
                    .oneof_decl
                    .extend(oneof_index.map(|_| OneofDescriptorProto { name: owned("kind"), options: None }));
                for part in parts {
                    match part.as_slice() {
                        ["values", name, values @ ..] => message.enum_type.push(enumeration(name, values)),
                        [words @ .., name, number] => {
                            message
                                .field
                                .push(FieldDescriptorProto { oneof_index, ..field(words, name, number) });
                        }
                        _ => {}
                    }
                }
                match file.message_type.iter_mut().find(|message| message.name() == outer) {
                    Some(outer) => outer.nested_type.push(message),
                    None => file.message_type.push(message),
                }
            }
            _ => {}
        }
    }
    FileDescriptorSet { file: files }
}

#[allow(clippy::unnecessary_wraps)] // every field of a descriptor is optional
fn owned(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Describes a field: its words are `repeated` or nothing, `enum` or nothing, and its type.
fn field(words: &[&str], name: &str, number: &str) -> FieldDescriptorProto {
    let label = if words.contains(&"repeated") { Label::Repeated } else { Label::Optional };
    let type_name = words.last().filter(|name| name.starts_with('.'));
    let kind = match (type_name, words.last()) {
        (Some(_), _) if words.contains(&"enum") => Some(Type::Enum),
        (Some(_), _) => Some(Type::Message),
        (None, scalar) => {
            scalar.and_then(|name| Type::from_str_name(&format!("TYPE_{}", name.to_uppercase())))
        }
    };
    FieldDescriptorProto {
        name: owned(name),
        number: number.parse().ok(),
        label: Some(label.into()),
        r#type: kind.map(i32::from),
        type_name: type_name.map(|&name| name.to_owned()),
        ..Default::default()
    }
}

fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let pairs = values.chunks_exact(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
    let value = pairs.map(|(name, number)| EnumValueDescriptorProto {
        name: owned(name),
        number: number.parse().ok(),
        options: None,
    });
    EnumDescriptorProto { name: owned(name), value: value.collect(), ..Default::default() }
}
