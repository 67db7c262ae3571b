//! The switch: the loads of the last heartbeats, and the least loaded server (Capybara §3.2).

use spillway_policy::migration::PeerReport;

/// The last heartbeat of each server, by index.
#[derive(Debug)]
pub(super) struct Switch(Vec<Option<PeerReport>>);

impl Switch {
    pub fn new(servers: usize) -> Switch {
        Switch(vec![None; servers])
    }

    pub fn heartbeat(&mut self, server: usize, report: PeerReport) {
        self.0[server] = Some(report);
    }

    /// The least loaded server with free places, other than the source.
    pub fn least_loaded(&self, source: usize) -> Option<usize> {
        let known = self.0.iter().enumerate().filter(|(server, _)| *server != source);
        let with_room = known.filter_map(|(server, report)| Some((server, (*report)?)));
        with_room
            .filter(|(_, report)| report.free_places > 0)
            .min_by_key(|(_, report)| report.load)
            .map(|(server, _)| server)
    }
}
