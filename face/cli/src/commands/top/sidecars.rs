//! Samples of this host's sidecars.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use spillway_sidecar::SidecarStatus;

pub(crate) struct SidecarSample {
    socket: PathBuf,
    status: SidecarStatus,
    /// Rate since the previous snapshot.
    replies_per_s: Option<f64>,
}

/// A sample of the sidecar at this socket.
pub(super) fn sample(socket: &Path, status: SidecarStatus, before: &[SidecarSample]) -> SidecarSample {
    let earlier = before.iter().find(|sample| sample.socket == socket && sample.status.pid == status.pid);
    let replies_per_s = earlier.and_then(|earlier| rate(&earlier.status, &status));
    SidecarSample { socket: socket.to_owned(), status, replies_per_s }
}

fn rate(before: &SidecarStatus, after: &SidecarStatus) -> Option<f64> {
    let ms = after.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0)?;
    Some(after.replies.saturating_sub(before.replies) as f64 * 1000.0 / ms as f64)
}

impl SidecarSample {
    pub(super) fn lines(&self) -> Vec<String> {
        let rate = self.replies_per_s.map_or_else(String::new, |rate| format!("{rate:.0} replies/s"));
        self.status
            .to_string()
            .lines()
            .map(str::to_owned)
            .chain([rate])
            .filter(|line| !line.is_empty())
            .collect()
    }

    pub(super) fn as_json(&self) -> Value {
        json!({ "socket": self.socket, "status": self.status, "replies_per_s": self.replies_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_time_between_two_samples() {
        let status = |uptime_ms, replies| SidecarStatus { uptime_ms, replies, ..SidecarStatus::default() };
        assert_eq!(rate(&status(1000, 100), &status(3000, 500)), Some(200.0));
        assert_eq!(rate(&status(1000, 100), &status(1000, 500)), None);
        assert_eq!(rate(&status(9000, 100), &status(1000, 0)), None, "the sidecar was restarted");
    }
}
