//! The messages of Envoy's rate limit service, of the service for configurations, and of the reference's
//! configurations. `build.rs` makes their types of the files in `proto`, which have the fields that this
//! service reads or writes. Unknown fields are skipped, as always in protocol buffers.
//!
//! Source: Envoy's API, and `api/ratelimit/config/ratelimit/v3/rls_conf.proto` of envoyproxy/ratelimit. Both
//! are stable: fields are added, and no field changes its number.

use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};

// The code that prost-build and tonic-prost-build have generated.
#[allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic, clippy::restriction)]
mod made {
    include!(concat!(env!("OUT_DIR"), "/all.rs"));
}

pub use made::envoy::config::core::v3::{HeaderValue, Node};
pub use made::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use made::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
pub use made::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse, aggregated_discovery_service_client,
    aggregated_discovery_service_server,
};
pub use made::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use made::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client, rate_limit_service_server,
};
pub use made::envoy::r#type::v3::RateLimitUnit as Unit;
pub use made::google::rpc::Status as ErrorDetail;
pub use made::ratelimit::config::ratelimit::v3 as config;

/// The files, encoded, so that tools need no files of Envoy.
pub const FILES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

impl Unit {
    /// Returns the name in configurations.
    pub fn name(self) -> String {
        self.as_str_name().to_ascii_lowercase()
    }
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
