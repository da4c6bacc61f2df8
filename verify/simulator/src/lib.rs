//! The module in a simulated server.
//!
//! The file that ships is loaded as a server loads it, and is handed the functions of a world that is
//! single-threaded, deterministic and virtual in time. A seed decides a history: what clients call, who
//! leaves, which clock is set, what another module does. After every step the oracles look. A history that
//! fails is shrunk, and printed as lines that can be kept and replayed.
//!
//! - `keyspace`, `slab`, `clock`: keys, things that the module refers to by pointer, time
//! - `world`: the server at an instant; `boundary`: its functions for the module, the only file with `unsafe`
//! - `commands`, `server`: the server's own commands, its events and its loop
//! - `history`, `writer`: what happens, as lines; from a seed to a history
//! - `contract`, `accounts`, `oracles`: what must hold
//! - `run`: histories in children of the process, and how they are shrunk

pub mod accounts;
pub mod boundary;
pub mod clock;
pub mod commands;
pub mod contract;
pub mod history;
pub mod keyspace;
#[allow(missing_docs)]
#[path = "../../../tests/common/model.rs"]
pub mod model;
pub mod oracles;
pub mod run;
pub mod server;
pub mod slab;
pub mod trace;
pub mod world;
pub mod writer;
