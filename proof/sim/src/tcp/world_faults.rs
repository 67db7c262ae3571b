//! Faults of the world: cuts, pauses, restarts of servers, changed paths and clocks, and faults of the switch.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_wire::switch::Flow;

use super::cabling::Cable;
use super::fabric::Leg;
use super::loss::Loss;
use super::world::{World, WorldEvent};

const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Pauses of the switch last from 50 ms to 2 s.
const SWITCH_PAUSE_NS: (u64, u64) = (50_000_000, 2_000_000_000);
/// A restarting switch forwards nothing for up to this time.
const OUTAGE_NS_MAX: u64 = 300_000_000;

impl World {
    /// Injects a fault. Returns for how long it blocks connections.
    pub(super) fn inject_fault(&mut self) -> Duration {
        self.faults += 1;
        let hosts = self.plan.hosts as u64;
        let host = self.rng.below(hosts) as usize; // fits: index of a host
        let server = self.rng.below(self.plan.switch.servers_per_host as u64) as usize; // fits
        let cable = Cable { host, server };
        let port = self.fabric.cabling.port_of(cable);
        let duration = Duration::from_nanos(self.rng.log_uniform(100_000, self.plan.silence_ns_max));
        let kinds = if self.plan.switch.has_faults { 10 } else { 4 };
        match self.rng.below(kinds) {
            0 => self.cut_cable(port, duration),
            1 => self.pause(cable, duration.min(PAUSE_MAX)),
            2 => {
                let [up, down] = self.plan.draw_paths(&mut self.rng);
                for (leg, conditions) in [(Leg::Up(port), up), (Leg::Down(port), down)] {
                    if let Some(path) = self.fabric.path(leg) {
                        path.conditions = conditions;
                    }
                }
                Duration::ZERO
            }
            3 => {
                if self.plan.clocks_differ {
                    self.hosts[host].clock.drift(&mut self.rng, self.now);
                    self.hosts[host].armed = None;
                    self.queue_wake_up(host);
                }
                Duration::ZERO
            }
            4 => {
                let pause = Duration::from_nanos(self.rng.log_uniform(SWITCH_PAUSE_NS.0, SWITCH_PAUSE_NS.1));
                self.fabric.switch.pause(self.now + pause);
                self.agenda.add(self.now + pause, WorldEvent::SwitchContinues);
                pause
            }
            7 => {
                self.restart_server(cable);
                self.list_owners(cable);
                Duration::ZERO
            }
            8 => {
                self.list_owners(cable);
                Duration::ZERO
            }
            9 => self.hold_directly(cable),
            kind => {
                let outage = Duration::from_nanos(self.rng.log_uniform(1_000, OUTAGE_NS_MAX));
                if kind == 5 {
                    self.fabric.switch.restart_with_state(self.now, outage);
                } else {
                    self.fabric.switch.restart_empty(self.now, outage);
                }
                outage
            }
        }
    }

    /// Cuts a server from the switch, in one direction or in both, or from another server of its host.
    fn cut_cable(&mut self, port: usize, duration: Duration) -> Duration {
        match self.rng.below(4) {
            0 => self.cut(Leg::Up(port), duration),
            1 => self.cut(Leg::Down(port), duration),
            2 => {
                self.cut(Leg::Up(port), duration);
                self.cut(Leg::Down(port), duration);
            }
            _ => {
                for other in 0..self.fabric.cabling.ports() {
                    self.cut(Leg::Between(port, other), duration);
                }
            }
        }
        duration
    }

    pub(super) fn cut(&mut self, leg: Leg, duration: Duration) {
        if let Some(path) = self.fabric.path(leg)
            && !std::mem::replace(&mut path.is_cut, true)
        {
            self.agenda.add(self.now + duration, WorldEvent::PathRestored(leg));
        }
    }

    /// Stops a server, or a whole host.
    fn pause(&mut self, cable: Cable, duration: Duration) -> Duration {
        if self.plan.switch.servers_per_host == 1 || self.rng.chance(1, 3) {
            self.hosts[cable.host].paused_until = self.now + duration;
        } else {
            self.hosts[cable.host].rack.set_paused(cable.server, true);
            self.agenda.add(self.now + duration, WorldEvent::ServerContinues(cable));
        }
        duration
    }

    /// Restarts a server. Its connections are lost; they are excused at their other ends, too.
    pub(super) fn restart_server(&mut self, cable: Cable) {
        let now = self.now;
        let ends = self.open_at_others(cable);
        let host = &mut self.hosts[cable.host];
        let kept = host.rack.flows_at_others(cable.server);
        let lost = ends.into_iter().filter(|flow| !kept.contains(flow)).map(|flow| (flow, Loss::Server));
        host.rack.directory.lost.extend(lost);
        let now = host.clock.read(now);
        host.rack.restart(&mut host.program, now, cable.server);
        self.excuse_lost();
        self.server_restarts += 1;
        self.turn_after(cable.host, 0);
    }

    /// Open connections of other hosts with the services of a server that has them, or has ended them: after a restart it
    /// acknowledges the client's FIN no more. And those that the server has opened.
    fn open_at_others(&self, cable: Cable) -> Vec<Flow> {
        let services = self.fabric.cabling.services(cable.host);
        let (ip, id) = (services[0].ip(), self.fabric.cabling.server_id(cable));
        let others = self.hosts.iter().enumerate().filter(|(host, _)| *host != cable.host);
        let open = others.flat_map(|(_, host)| host.rack.open_flows());
        open.filter(|flow| match cable.server {
            // The first server opens all connections of its host, and the services are its own.
            0 => services.contains(&flow.service().into()) || SocketAddr::from(flow.client()).ip() == ip,
            _ => services.contains(&flow.service().into()) && self.witness.holder(flow) == Some(id),
        })
        .collect()
    }
}
