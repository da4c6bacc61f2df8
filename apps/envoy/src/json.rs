//! Messages in JSON, as protocol buffers are written in it.

use crate::proto::{FILES, RateLimitRequest};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use std::sync::LazyLock;

static KNOWN: LazyLock<DescriptorPool> = LazyLock::new(|| DescriptorPool::decode(FILES).unwrap_or_default());

fn described(name: &str) -> Result<MessageDescriptor, String> {
    KNOWN.get_message_by_name(name).ok_or_else(|| format!("there is no message {name}"))
}

/// Reads a request.
///
/// # Errors
/// Returns a description of the error.
pub fn request(text: &[u8]) -> Result<RateLimitRequest, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let message =
        DynamicMessage::deserialize(described("envoy.service.ratelimit.v3.RateLimitRequest")?, &mut json);
    let message = message.and_then(|message| json.end().map(|()| message));
    message.map_err(|error| error.to_string())?.transcode_to().map_err(|error| error.to_string())
}

/// Writes a message with this name.
///
/// # Errors
/// Returns a description of the error.
pub fn written(name: &str, message: &impl Message, options: &SerializeOptions) -> Result<Value, String> {
    let mut described = DynamicMessage::new(described(name)?);
    described.transcode_from(message).map_err(|error| error.to_string())?;
    let json = described.serialize_with_options(serde_json::value::Serializer, options);
    json.map_err(|error| error.to_string())
}
