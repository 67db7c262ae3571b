//! Connections that leave one stack and go on in another, as bytes, between any two frames (Capybara §3.3).

use spillway_tcp::{ExportError, ImportError, Stack};
use spillway_transport::{Conn, Time};
use spillway_wire::state::ConnectionState;

use super::rack::Rack;
use super::switch::Ends;

/// How many differences between two states a fault tells.
const DIFFERENCES_MAX: usize = 8;

impl Rack {
    /// A frame of these ends has come or was sent: who moves, moves.
    pub(super) fn move_after(&mut self, now: Time, ends: Option<Ends>) {
        let framed = || ends.and_then(|ends| self.switch.name(&ends));
        let name = self.moves.pick(framed, &self.places);
        if let Some((name, place)) = name.and_then(|name| Some((name, *self.places.get(&name)?))) {
            let step = self.moves.step(self.seats.len());
            let target = (place.0 + step) % self.seats.len();
            if let Err(why) = self.relocate(now, name, place, target) {
                self.faults.push(format!("{name:?} moves from stack {} to {target}: {why}", place.0));
            }
        }
    }

    fn relocate(&mut self, now: Time, name: Conn, place: (usize, Conn), target: usize) -> Result<(), String> {
        let mut state = match self.take_out(now, place) {
            Ok(state) => state?,
            Err(ExportError::Opening | ExportError::Ended) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.names.remove(&place);
        let left = state.clone();
        self.moves.meddle(&mut state);
        let (reached, conn) = match self.put_in(now, target, &state) {
            Ok(conn) => (target, conn),
            Err(ImportError::TooMuch(_) | ImportError::Full) if target != place.0 => {
                self.moves.refused += 1;
                (
                    place.0,
                    self.put_in(now, place.0, &state)
                        .map_err(|error| format!("it may not come back: {error}"))?,
                )
            }
            Err(error) => return Err(error.to_string()),
        };
        self.moves.made += 1;
        if self.moves.looks() {
            self.compare(now, reached, &left, &state)?;
        }
        self.places.insert(name, (reached, conn));
        self.names.insert((reached, conn), name);
        self.switch.turn(now, name, reached);
        Ok(())
    }

    /// What a stack writes and another would read.
    fn take_out(
        &mut self,
        now: Time,
        place: (usize, Conn),
    ) -> Result<Result<ConnectionState, String>, ExportError> {
        let seat = &mut self.seats[place.0];
        let state = seat.stack.export(seat.time(now), place.1)?;
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        Ok(match ConnectionState::parse(&bytes) {
            Ok(read) if read == state => Ok(read),
            Ok(_) => Err("what was read is not what was written".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn put_in(&mut self, now: Time, target: usize, state: &ConnectionState) -> Result<Conn, ImportError> {
        let seat = &mut self.seats[target];
        seat.stack.import(seat.time(now), state)
    }

    /// What has arrived would leave as it came. This is tried in a stack of its own.
    fn compare(
        &self,
        now: Time,
        reached: usize,
        left: &ConnectionState,
        came: &ConnectionState,
    ) -> Result<(), String> {
        let seat = &self.seats[reached];
        let here = seat.time(now);
        let mut other = Stack::new(here, seat.stack.settings().clone()).map_err(|error| error.to_string())?;
        let conn = other.import(here, came).map_err(|error| error.to_string())?;
        let state = other.export(here, conn).map_err(|error| error.to_string())?;
        alike(left, &state, here)
    }
}

/// Two states are the same but for what another host changes. Its clock shows `now`.
fn alike(left: &ConnectionState, came: &ConnectionState, now: Time) -> Result<(), String> {
    let (mut left, mut came) = (left.clone(), came.clone());
    // Its segments may be smaller, and its queue longer, which was told then.
    came.agreed.mss = left.agreed.mss;
    came.sending.wants_room |= left.sending.wants_room;
    (left.receiving.late, came.receiving.late) = (whole(&left.receiving.late), whole(&came.receiving.late));
    // What was before its time cannot be told.
    let young = |age_ns: &mut u64| *age_ns = (*age_ns).min(now.0);
    young(&mut left.heard_age_ns);
    left.agreed.stamps.iter_mut().for_each(|stamps| young(&mut stamps.recent_age_ns));
    if let (Some(left), Some(came)) = (&mut left.recovery, &mut came.recovery) {
        young(&mut left.sent_age_ns);
        young(&mut left.progress_age_ns);
        young(&mut left.latest_age_ns);
        if left.segments.is_empty() {
            left.probe = None; // it has arrived
        }
        for (left, came) in
            left.segments.iter_mut().zip(&came.segments).filter(|(left, _)| left.age_ns > now.0)
        {
            (left.age_ns, left.transmissions) = (now.0, came.transmissions);
        }
        // Another algorithm begins anew, and epochs that are older than the clock begin with it.
        came.controller = left.controller;
        if let (Some(left), Some(came)) = (&mut left.undo, &mut came.undo) {
            came.controller = left.controller;
            left.first_age_ns.iter_mut().for_each(young);
        }
    }
    if left == came {
        return Ok(());
    }
    let (left, came) = (format!("{left:#?}"), format!("{came:#?}"));
    let differences: Vec<String> = left
        .lines()
        .zip(came.lines())
        .filter(|(left, came)| left != came)
        .take(DIFFERENCES_MAX)
        .map(|(left, came)| format!("{} left, {} came", left.trim(), came.trim()))
        .collect();
    Err(format!("another state has arrived: {}", differences.join("; ")))
}

/// Pieces that touch are one.
fn whole(pieces: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    for (from, bytes) in pieces {
        match all.last_mut() {
            Some((first, before)) if *first + before.len() as u64 == *from => before.extend_from_slice(bytes),
            _ => all.push((*from, bytes.clone())),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_touch_are_one() {
        let pieces = [(5, vec![1, 2]), (7, vec![3]), (2, vec![4])];
        assert_eq!(whole(&pieces), [(5, vec![1, 2, 3]), (2, vec![4])]);
    }
}
