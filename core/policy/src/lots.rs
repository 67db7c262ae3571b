//! Random numbers that are evenly distributed even among few draws.

use spillway_parts::Random;

/// Each block of 16 draws has one number in each sixteenth of the range, in random order. Thus the number of clients
/// that choose a helper deviates less from the mean than with independent numbers.
#[derive(Clone, Debug)]
pub(crate) struct Lots {
    random: Random,
    order: [u8; 16],
    drawn: usize,
}

impl Lots {
    pub(crate) fn new(seed: u64) -> Lots {
        #[expect(clippy::cast_possible_truncation, reason = "indexes are below 16")]
        let order = core::array::from_fn(|index| index as u8);
        Lots { random: Random::new(seed), order, drawn: 16 }
    }

    pub(crate) fn draw(&mut self) -> u16 {
        if self.drawn == self.order.len() {
            self.drawn = 0;
            self.random.shuffle(&mut self.order);
        }
        let sixteenth = self.order[self.drawn];
        self.drawn += 1;
        #[expect(clippy::cast_possible_truncation, reason = "any 12 bits of a random word are random")]
        let low_bits = self.random.word() as u16 & 0xfff;
        u16::from(sixteenth) << 12 | low_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_covers_all_sixteenths_and_helpers_draw_differently() {
        let (mut first, mut second) = (Lots::new(1), Lots::new(2));
        let mut first_lower = 0;
        for _ in 0..100 {
            let mut counts = [0; 16];
            for _ in 0..16 {
                let lot = first.draw();
                counts[usize::from(lot >> 12)] += 1;
                first_lower += u32::from(lot < second.draw());
            }
            assert_eq!(counts, [1; 16]);
        }
        assert!(
            (740..860).contains(&first_lower),
            "half of 1600 draws should be lower, within 3 standard deviations of 20: {first_lower}"
        );
    }
}
