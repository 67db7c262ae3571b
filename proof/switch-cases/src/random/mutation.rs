//! Small changes of frames.

use super::traffic::Drawn;
use super::world::World;
use crate::mac::Mac;
use crate::packet::{Edit, Fragment, Payload, SERVICE_VLAN, VLAN};
use crate::program::FRAME_BYTES_MIN;

/// The first bytes of a frame, which contain all headers.
const HEADER_BYTES: u64 = 100;

impl World {
    /// Changes a frame, sometimes twice.
    pub(super) fn mutate(&mut self, drawn: &mut Drawn) {
        while self.chance(20) {
            self.mutate_once(drawn);
        }
    }

    fn mutate_once(&mut self, drawn: &mut Drawn) {
        match self.random.below(14) {
            0 => drawn.ingress = self.any_port(),
            1 => self.tag(drawn),
            2 => {
                let macs: Vec<Mac> = self.setup.hosts.values().map(|host| host.mac).collect();
                drawn.packet.source = self.pick(&macs);
            }
            3 => {
                let macs: Vec<Mac> = self.setup.hosts.values().map(|host| host.mac).collect();
                drawn.packet.destination = self.pick(&macs);
            }
            4 => drawn.packet.destination = self.port_mac(drawn.ingress),
            5 => {
                let bytes = drawn.packet.bytes().len();
                let length = FRAME_BYTES_MIN + self.index(bytes.saturating_sub(FRAME_BYTES_MIN) + 1);
                drawn.packet.edits.push(Edit::Cut(length));
            }
            6 => drawn.packet.edits.push(Edit::Pad(1 + self.index(8))),
            7 | 8 => {
                let at = self.random.below(HEADER_BYTES);
                let byte = self.random.below(256);
                let number = |number: u64| usize::try_from(number).expect("small");
                drawn.packet.edits.push(Edit::Byte(number(at), u8::try_from(byte).expect("below 256")));
            }
            _ => self.mutate_ip(drawn),
        }
    }

    fn tag(&mut self, drawn: &mut Drawn) {
        let tags = 1 + self.index(4);
        drawn.packet.vlan_tags.clear();
        for _ in 0..tags {
            let kind = self.pick(&[VLAN, SERVICE_VLAN]);
            let control = self.pick(&[0_u16, 5, 0xf123]);
            drawn.packet.vlan_tags.push((kind, control));
        }
    }

    fn mutate_ip(&mut self, drawn: &mut Drawn) {
        let change = self.random.below(6);
        let hop_limit = self.pick(&[0, 1, 2, 63, 65, 255]);
        let fragment = self.pick(&[Fragment::First, Fragment::Later, Fragment::Atomic]);
        let option_words = self.pick(&[1, 2, 10]);
        let checksum_error = self.pick(&[1, 0x8000, 0xfffe, 0xffff]);
        let extensions: Vec<(u8, u8)> = (0..self.random.below(11))
            .map(|_| self.pick(&[(0, 0), (43, 0), (60, 0), (60, 2), (44, 0)]))
            .collect();
        let Some(ip) = drawn.packet.ip_mut() else { return };
        match change {
            0 => ip.hop_limit = hop_limit,
            1 => ip.fragment = fragment,
            2 => ip.option_words = option_words,
            3 => ip.checksum_error = checksum_error,
            4 => match &mut ip.payload {
                Payload::Tcp(tcp) => tcp.checksum_error = checksum_error,
                Payload::Error(error) => error.checksum_error = checksum_error,
                Payload::Udp(udp) => udp.checksum_error = Some(checksum_error).filter(|error| error & 1 == 0),
                _ => {}
            },
            _ => ip.extensions = extensions,
        }
    }
}
