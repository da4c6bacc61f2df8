//! Cleaning up after a test process that is killed: nothing unwinds then, and no destructor runs.

use std::io::Write;
use std::process::{Child, Command, Stdio};

const NOT_NEEDED: &str = "not needed";

/// A shell that runs a script if this process ends without dropping it.
pub struct Reaper(Child);

impl Reaper {
    /// `script` finds `arguments` as `$1`, `$2` and so on.
    pub fn new(script: &str, arguments: &[String]) -> Self {
        // The input ends without the last line when this process is killed. The signal that killed it may
        // have been sent to the whole process group, hence the trap.
        let script = format!(
            "trap '' HUP INT TERM
            while read -r line; do [ \"$line\" != '{NOT_NEEDED}' ] || exit; set -- \"$@\" \"$line\"; done
            {script}"
        );
        let shell = Command::new("sh")
            .args(["-c", &script, "reaper"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(shell)
    }

    /// Gives the script one more argument, of one line.
    pub fn add(&mut self, argument: &str) {
        writeln!(self.0.stdin.as_ref().unwrap(), "{argument}").unwrap();
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = writeln!(input, "{NOT_NEEDED}");
        }
        let _ = self.0.wait();
    }
}
