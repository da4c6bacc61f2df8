//! Makes the types of `src/proto.rs`, and their description for reflection, of the files in `proto`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["envoy/service/ratelimit/v3/rls", "envoy/service/discovery/v3/ads"];
    let files = files.into_iter().chain(["ratelimit/config/ratelimit/v3/rls_conf"]);
    let described = protox::compile(files.map(|file| format!("{file}.proto")), ["proto"])?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin"), described.encode_to_vec())?;
    tonic_prost_build::configure()
        .include_file("all.rs")
        .extern_path(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry", "crate::proto::Entry")
        .compile_fds(described)?;
    Ok(())
}
