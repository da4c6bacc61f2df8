//! The folder with the rules.
//!
//! The folder is read every second. It is loaded if it has changed and two readings were equal, so that a
//! file that is still being written is not loaded. This costs microseconds, and works with any file system
//! and with the links that Kubernetes swaps.

use crate::config::Config;
use crate::decide::Decider;
use crate::settings::named;
use crate::yaml::Problem;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, io};

/// Reads the files of the folder that end in `.yaml` or `.yml` and do not begin with a dot. Returns the name
/// and the text of each, sorted by name.
///
/// # Errors
/// Returns an error if a file cannot be read or is not text.
pub fn read(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(named(folder.display()))? {
        let path = entry?.path();
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_yaml || is_hidden {
            continue;
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_file() => paths.push(path),
            Ok(_) => {}
            // A file that was just removed is not an error. A broken link is an error, because its rules must
            // not be lost.
            Err(_) if !path.is_symlink() && !path.exists() => {}
            Err(error) => return Err(named(path.display())(error)),
        }
    }
    paths.sort();
    let file = |path: PathBuf| {
        let name = path.display().to_string();
        let bytes = fs::read(&path).map_err(named(&name))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = valid.split(|byte| *byte == b'\n').count();
            io::Error::new(io::ErrorKind::InvalidData, format!("{name}:{line}: is not text in UTF-8"))
        })?;
        Ok((name, text))
    };
    paths.into_iter().map(file).collect()
}

/// Replaces the rules.
pub fn replace(decider: &Decider, config: Config) {
    tracing::info!(domains = config.domains(), "rules loaded");
    if config.rules().next().is_none() {
        tracing::warn!("there are no rules: all requests are admitted");
    }
    decider.replace(config);
    decider.metrics().loads.fetch_add(1, Relaxed);
}

/// Logs why the rules have not changed.
pub fn unchanged(decider: &Decider, why: impl Display) {
    let config = decider.config();
    let rules = config.rules().next().map_or("there are still no rules", |_| "the rules stay as they are");
    tracing::error!("{rules}: {why}");
}

/// Replaces the rules by these, given as names and texts, unless they have errors, which are logged.
///
/// # Errors
/// Returns all errors.
pub fn apply(decider: &Decider, files: &[(String, String)], merge: bool) -> Result<(), Vec<Problem>> {
    match Config::read(files, merge) {
        Ok(config) => {
            replace(decider, config);
            Ok(())
        }
        Err(problems) => {
            decider.metrics().load_errors.fetch_add(1, Relaxed);
            for problem in &problems {
                unchanged(decider, problem);
            }
            Err(problems)
        }
    }
}

/// Reloads the rules whenever they change. `loaded` is the content that was loaded last.
pub async fn watch(decider: Arc<Decider>, folder: PathBuf, merge: bool, mut loaded: Vec<(String, String)>) {
    let mut before = loaded.clone();
    let mut unreadable = String::new();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let files = match read(&folder) {
            Ok(files) => files,
            Err(error) => {
                // Logs each error once.
                let text = error.to_string();
                if text != unreadable {
                    unchanged(&decider, &text);
                    decider.metrics().load_errors.fetch_add(1, Relaxed);
                    unreadable = text;
                }
                continue;
            }
        };
        unreadable.clear();
        let is_stable = files == before;
        before.clone_from(&files);
        if !is_stable || files == loaded {
            continue;
        }
        // The problems are in the log.
        let _: Result<(), Vec<Problem>> = apply(&decider, &files, merge);
        loaded = files;
    }
}
