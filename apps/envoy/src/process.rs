//! The numbers of Linux for this process, under the usual names of Prometheus' client libraries.

use std::fs;

/// The ticks of a second in which Linux tells times to processes, on each of its platforms.
const TICKS: f64 = 100.0;

/// Returns names without `process_`, kinds and values of the metrics. Those that the system does not tell are
/// missing.
pub fn metrics() -> Vec<(&'static str, &'static str, f64)> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    let number = |text: &str| text.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    let after = |text: &str, name: &str| text.lines().find_map(|line| number(line.strip_prefix(name)?));
    let (stat, status) = (read("self/stat"), read("self/status"));
    // The name of the program, which may have spaces, ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| number(text)).map(|ticks| ticks / TICKS);
    let bytes = |name| after(&status, name).map(|kilobytes| kilobytes * 1_024.0);
    let files = fs::read_dir("/proc/self/fd").ok().and_then(|files| u32::try_from(files.count()).ok());
    let found = [
        ("cpu_seconds_total", "counter", ticks(11).zip(ticks(12)).map(|(user, system)| user + system)),
        ("start_time_seconds", "gauge", after(&read("stat"), "btime ").zip(ticks(19)).map(|(a, b)| a + b)),
        ("resident_memory_bytes", "gauge", bytes("VmRSS:")),
        ("virtual_memory_bytes", "gauge", bytes("VmSize:")),
        ("threads", "gauge", after(&status, "Threads:")),
        ("open_fds", "gauge", files.map(f64::from)),
        ("max_fds", "gauge", after(&read("self/limits"), "Max open files")),
    ];
    found.into_iter().filter_map(|(name, kind, value)| Some((name, kind, value?))).collect()
}
