//! A helper's status as text, for `spillway status` and SIGUSR1.

use std::fmt;

use spillway_policy::Override;

use super::{Drained, HelperStatus, ServiceStatus};

/// One line for the helper, and one for each service.
impl fmt::Display for HelperStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.draining { "draining" } else { "running" };
        let name = if self.name.is_empty() { String::new() } else { format!("{} ", self.name) };
        write!(f, "helper {name}(pid {}) {state} for {} s", self.pid, self.uptime_ms / 1000)?;
        write!(f, ", {} clients of {}", self.clients, self.max_connections)?;
        write!(f, ", {} KiB buffered", self.buffered_bytes / 1024)?;
        if let Some(interface) = &self.engine.interface {
            write!(f, ", engine {} on {interface}", self.engine.name)?;
        }
        for problem in self.engine.problems() {
            write!(f, ", {problem}")?;
        }
        if self.threads_silent > 0 {
            write!(f, ", {} of {} threads do not answer", self.threads_silent, self.threads)?;
        }
        if self.log_lines_dropped > 0 {
            write!(f, ", {} log lines dropped", self.log_lines_dropped)?;
        }
        self.services.iter().try_for_each(|service| write!(f, "\n{service}"))
    }
}

impl fmt::Display for ServiceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepts = if self.threads_listening > 0 { "accepting clients" } else { "refusing clients" };
        write!(f, "{} at {}: {accepts}", self.name, self.server)?;
        if let Some(Drained { moved, left, failed, remaining }) = self.drained {
            let state = if self.removed { "removed" } else { "draining" };
            write!(f, " ({state}: {moved} moved, {left} left, {failed} failed, {remaining} connected)")?;
        }
        if !["", Override::Auto.name()].contains(&self.relief_override.as_str()) {
            write!(f, ", relief {}", self.relief_override)?;
            if let Some(left) = self.override_left_ms {
                write!(f, " for {} s more", left / 1000)?;
            }
        }
        let up = self.links_up();
        let encrypted = self.links.iter().filter(|link| link.state == "up" && link.encrypted).count();
        write!(f, ", {up} of {} links up", self.links.len())?;
        match encrypted {
            _ if up == 0 => {}
            0 => write!(f, " (not encrypted)")?,
            _ if encrypted == up => write!(f, " (encrypted)")?,
            _ => write!(f, " ({encrypted} encrypted)")?,
        }
        write!(f, ", {} plain and {} library clients", self.plain_clients, self.library_clients)?;
        write!(f, ", {:.1} messages a batch", self.messages_per_batch)?;
        write!(f, ", {}, {} reset", self.refused, self.reset.total + self.clients_lost_with_link)?;
        let unanswered: u64 = self.load_queries_refused.values().sum();
        if self.load_queries_answered + unanswered > 0 {
            write!(f, ", {} load queries answered, {unanswered} not", self.load_queries_answered)?;
        }
        if self.library_clients_sent_away > 0 {
            write!(f, ", {} sent to other helpers", self.library_clients_sent_away)?;
        }
        self.registration.iter().try_for_each(|registration| write!(f, ", {registration}"))
    }
}
