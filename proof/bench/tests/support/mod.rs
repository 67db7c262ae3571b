//! What experiments in tests need.

use std::path::{Path, PathBuf};

/// The built command, or why there can be no experiment.
pub fn program(peers: &[&str]) -> Result<PathBuf, String> {
    if let Some(why) = spillway_lab::unavailable() {
        return Err(why);
    }
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let directory = test.parent().and_then(Path::parent).ok_or("this test is nowhere")?;
    for file in ["spillway", "libspillway_shim.so"] {
        if !directory.join(file).exists() {
            return Err(format!("{file} is not in {}: build the whole workspace first", directory.display()));
        }
    }
    for peer in peers {
        if !["/usr/bin", "/usr/sbin"].iter().any(|directory| Path::new(directory).join(peer).exists()) {
            return Err(format!("{peer} is not installed"));
        }
    }
    Ok(directory.join("spillway"))
}
