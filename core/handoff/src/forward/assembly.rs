//! Frames that arrive in parts.

use alloc::vec::Vec;

use spillway_wire::handoff::Part;

/// The parts of one sender's present frame. Parts must arrive in order: a frame with a lost or late part is dropped, and
/// TCP retransmits the bytes of the frame.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    packet: u32,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds a part. Returns the frame if that was the last one.
    pub(crate) fn add(&mut self, packet: u32, part: &Part<'_>) -> Option<Vec<u8>> {
        if part.number() == 0 {
            self.packet = packet;
            self.bytes.clear();
        }
        if self.packet != packet || self.bytes.len() != part.offset() {
            return None;
        }
        self.bytes.extend_from_slice(part.bytes());
        (self.bytes.len() == part.total()).then(|| core::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_frame_whose_parts_arrive_in_order_is_complete() {
        let frame: Vec<u8> = (0..3_000).map(|at| (at % 250) as u8).collect();
        let part = |number| Part::of(&frame, number).unwrap();
        let mut assembly = Assembly::default();
        assert_eq!([0, 1].map(|number| assembly.add(5, &part(number))), [None, None]);
        assert_eq!(assembly.add(5, &part(2)), Some(frame.clone()));
        assert_eq!(assembly.add(5, &part(2)), None, "the last part again");
        assert_eq!([0, 2, 1].map(|number| assembly.add(6, &part(number))), [None, None, None]);
        assert_eq!([part(0), part(1)].map(|part| assembly.add(7, &part)), [None, None]);
        assert_eq!(assembly.add(8, &part(2)), None, "a part of another frame");
    }
}
