//! Frames on their way between servers and the switch, and the checks of each.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_rules::Verdict;
use spillway_wire::packet::tcp::Flags;
use spillway_wire::switch::ServerId;

use super::cabling::Cable;
use super::fabric::Leg;
use super::frames::{datagram, ends_of, with_source};
use super::path::Arrival;
use super::sniffer::sniff;
use super::switch::Departure;
use super::trace::line;
use super::world::{World, WorldEvent};
use crate::rng::mix;

impl World {
    /// Sends a control message to the switch.
    pub(super) fn send_to_switch(&mut self, from: Cable, payload: &[u8]) {
        self.control_messages += 1;
        let frame = datagram(self.fabric.cabling.control_ends(from), payload);
        for delay in self.stage_request(from, payload) {
            self.send_up_after(delay, self.fabric.cabling.port_of(from), &frame);
        }
    }

    /// Sends a datagram from one server to another one of its host: through the switch, behind the frames that the server
    /// has sent before, or on a path of its own, where the datagram may overtake them.
    pub(super) fn send_to_server(&mut self, from: Cable, to: ServerId, payload: &[u8]) {
        let cabling = &self.fabric.cabling;
        let Some(target) = cabling.cable_of(to) else { return };
        if !self.plan.switch.has_transfer_paths {
            let frame = datagram(cabling.transfer_ends(from, target), payload);
            let (port, is_cut) = (cabling.port_of(from), self.fabric.is_cut_between(from, target));
            for delay in self.stage_transfer(from, target, payload) {
                if !is_cut {
                    self.send_up_after(delay, port, &frame);
                }
            }
            return;
        }
        let leg = Leg::Between(cabling.port_of(from), cabling.port_of(target));
        for delay in self.stage_transfer(from, target, payload) {
            let arrivals = self.fabric.send(self.now, leg, payload);
            if let Some(trace) = &mut self.trace {
                trace(format!("{} {leg:?}, {} bytes", line(self.now, payload, &arrivals), payload.len()));
            }
            for Arrival { at, frame, .. } in arrivals {
                self.agenda.add(at + delay, WorldEvent::FromServer { to: target, payload: frame });
            }
        }
    }

    pub(super) fn send(&mut self, source: Cable, frame: &[u8]) {
        self.packets += 1;
        // The frame as the client receives it, with the service's address as source.
        let place = ends_of(frame).and_then(|(place, _)| self.fabric.cabling.service_of(source, place));
        let rewritten = place.map(|service| with_source(frame, service));
        let seen = rewritten.as_deref().unwrap_or(frame);
        let verdict = if self.is_to_unknown_host(frame) {
            sniff(seen).map(|_| ())
        } else {
            self.sniffer.observe(seen, true)
        };
        let is_single = self.check_sender(source, seen);
        for why in [verdict, is_single].into_iter().filter_map(Result::err) {
            self.oracle.borrow_mut().violation(why);
        }
        self.send_up(self.fabric.cabling.port_of(source), frame);
        self.forge(source, seen);
    }

    fn is_to_unknown_host(&self, frame: &[u8]) -> bool {
        let known =
            |end: SocketAddr| (0..self.plan.hosts).any(|host| self.plan.family.address_of(host) == end.ip());
        self.rogue.is_some() && ends_of(frame).is_some_and(|(_, target)| !known(target))
    }

    /// Sends a frame to the switch.
    pub(super) fn send_up(&mut self, port: usize, frame: &[u8]) {
        self.send_up_after(Duration::ZERO, port, frame);
    }

    /// Sends a frame to the switch, where it arrives later by a delay.
    pub(super) fn send_up_after(&mut self, delay: Duration, port: usize, frame: &[u8]) {
        let digest = frame.chunks(8).fold(frame.len() as u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        self.hash = mix(self.hash ^ digest ^ self.now.as_nanos());
        let arrivals = self.fabric.send(self.now, Leg::Up(port), frame);
        self.trace_frame(format_args!("port {port} to switch"), frame, &arrivals);
        for Arrival { at, frame, .. } in arrivals {
            self.agenda.add(at + delay, WorldEvent::AtSwitch { port, frame });
        }
    }

    /// Sends what leaves the switch to the servers.
    pub(super) fn send_down(&mut self, departures: Vec<Departure>) {
        for (flow, owner) in self.fabric.switch.take_ended() {
            self.witness.record_ended(flow, owner);
        }
        for departure in departures {
            if let Err(why) = self.check_passed(&departure) {
                self.oracle.borrow_mut().violation(why);
            }
            if let Err(why) = self.check_list(&departure) {
                self.oracle.borrow_mut().violation(why);
            }
            let delays = self.stage_departure(&departure);
            let Departure { port, verdict, frame, .. } = departure;
            for delay in delays {
                let arrivals = self.fabric.send(self.now, Leg::Down(port), &frame);
                self.trace_frame(
                    format_args!("switch to port {port} ({})", verdict.name()),
                    &frame,
                    &arrivals,
                );
                for Arrival { at, frame, is_corrupt } in arrivals {
                    let arrive = WorldEvent::Arrive { port, frame, is_damaged: is_corrupt };
                    self.agenda.add(at + delay, arrive);
                }
            }
        }
    }

    fn trace_frame(&mut self, leg: std::fmt::Arguments<'_>, frame: &[u8], arrivals: &[Arrival]) {
        if let Some(trace) = &mut self.trace {
            trace(format!("{} {leg}", line(self.now, frame, arrivals)));
        }
    }

    pub(super) fn send_rogue_frames(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            self.rogue_frames += 1;
            self.send_up(self.fabric.cabling.rogue_port(), frame);
        }
    }

    /// May forge an answer to a frame, which arrives before the peer's answer.
    fn forge(&mut self, victim: Cable, frame: &[u8]) {
        let Some(rogue) = &mut self.rogue else { return };
        if !rogue.is_forgery_due() {
            return;
        }
        let Ok(Some(seen)) = sniff(frame) else { return };
        let Some((us, them)) = self.sniffer.ends(seen.source, seen.target) else { return };
        if seen.header.flags.intersects(Flags::RST | Flags::SYN) {
            return;
        }
        let Some(forged) = rogue.forge(seen.target, seen.source, them, us) else { return };
        let departures =
            self.fabric.switch.arrive(self.now, self.fabric.cabling.rogue_port(), forged.clone());
        let Some(departure) = departures.into_iter().next() else { return };
        // A target would keep the segment until its numbers may be right by chance.
        if departure.verdict == Verdict::ToTarget {
            return;
        }
        self.sniffer.record_forged(&forged);
        self.rogue_frames += 1;
        self.trace_frame(format_args!("forged, to port {}", departure.port), &forged, &[]);
        debug_assert!(victim.host < self.plan.hosts, "a host has sent the frame");
        if let Some(cable) = self.fabric.cabling.at(departure.port) {
            self.hosts[cable.host].arrive(cable.server, departure.frame, false);
            self.turn_after(cable.host, 0);
        }
    }
}
