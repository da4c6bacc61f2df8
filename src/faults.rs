//! Seeded faults, for the test suite to prove that it would see them. Compiled with the feature `faults` only.

/// Does what the environment variable `REDIS_CELL_FAULT` of the server asks for.
#[allow(clippy::panic)] // the fault itself
pub fn strike() {
    if std::env::var_os("REDIS_CELL_FAULT").is_some_and(|fault| fault == "panic") {
        panic!("seeded fault");
    }
}
