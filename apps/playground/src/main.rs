//! Reads a request from standard input, and writes the answer to standard output, both as JSON. The
//! playground's page runs this program in WebAssembly for each movement of a slider.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};

fn main() -> io::Result<()> {
    let mut request = String::new();
    io::stdin().read_to_string(&mut request)?;
    io::stdout().write_all(redis_cell_playground::answer(&request).as_bytes())
}
