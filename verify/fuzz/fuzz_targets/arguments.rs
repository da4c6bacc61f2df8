#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| redis_cell_fuzz::arguments(input));
