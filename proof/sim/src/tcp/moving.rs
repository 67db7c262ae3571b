//! Moves of connections between stacks, as bytes; a move may happen between any two frames (Capybara §3.3).

use spillway_tcp::{ExportError, ImportError, Stack};
use spillway_transport::{Conn, Time};
use spillway_wire::state::ConnectionState;

use super::rack::Rack;
use super::switch::Ends;

const DIFFERENCES_MAX: usize = 8;

impl Rack {
    /// Moves a connection, if a move is due, after a frame with these ends was received or sent.
    pub(super) fn move_after(&mut self, now: Time, ends: Option<Ends>) {
        let of_frame = || ends.and_then(|ends| self.switch.name(&ends));
        let name = self.moves.pick(of_frame, &self.places);
        if let Some((name, place)) = name.and_then(|name| Some((name, *self.places.get(&name)?))) {
            let step = self.moves.step(self.stacks.len());
            let target = (place.0 + step) % self.stacks.len();
            if let Err(why) = self.move_connection(now, name, place, target) {
                self.violations.push(format!("{name:?} moves from stack {} to {target}: {why}", place.0));
            }
        }
    }

    fn move_connection(
        &mut self,
        now: Time,
        name: Conn,
        place: (usize, Conn),
        target: usize,
    ) -> Result<(), String> {
        let mut state = match self.export_as_bytes(now, place) {
            Ok(state) => state?,
            Err(ExportError::Opening | ExportError::Ended) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.names.remove(&place);
        let exported = state.clone();
        self.moves.alter(&mut state);
        let (reached_stack, conn) = match self.import(now, target, &state) {
            Ok(conn) => (target, conn),
            Err(ImportError::TooMuch(_) | ImportError::Full) if target != place.0 => {
                self.moves.refused += 1;
                (
                    place.0,
                    self.import(now, place.0, &state).map_err(|error| {
                        format!("the source stack refuses the connection's return: {error}")
                    })?,
                )
            }
            Err(error) => return Err(error.to_string()),
        };
        self.moves.made += 1;
        if self.moves.is_check_due() {
            self.compare(now, reached_stack, &exported, &state)?;
        }
        self.places.insert(name, (reached_stack, conn));
        self.names.insert((reached_stack, conn), name);
        self.switch.redirect(now, name, reached_stack);
        Ok(())
    }

    /// Exports a connection, writes its state as bytes, and parses the bytes again.
    fn export_as_bytes(
        &mut self,
        now: Time,
        place: (usize, Conn),
    ) -> Result<Result<ConnectionState, String>, ExportError> {
        let entry = &mut self.stacks[place.0];
        let state = entry.stack.export(entry.time(now), place.1)?;
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        Ok(match ConnectionState::parse(&bytes) {
            Ok(read) if read == state => Ok(read),
            Ok(_) => Err("the parsed state differs from the written one".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn import(&mut self, now: Time, target: usize, state: &ConnectionState) -> Result<Conn, ImportError> {
        let entry = &mut self.stacks[target];
        entry.stack.import(entry.time(now), state)
    }

    /// Compares the exported state with the one that a new stack exports after an import.
    fn compare(
        &self,
        now: Time,
        reached_stack: usize,
        exported: &ConnectionState,
        imported: &ConnectionState,
    ) -> Result<(), String> {
        let entry = &self.stacks[reached_stack];
        let stack_now = entry.time(now);
        let mut fresh_stack =
            Stack::new(stack_now, entry.stack.settings().clone()).map_err(|error| error.to_string())?;
        let conn = fresh_stack.import(stack_now, imported).map_err(|error| error.to_string())?;
        let state = fresh_stack.export(stack_now, conn).map_err(|error| error.to_string())?;
        compare_states(exported, &state, stack_now)
    }
}

/// Compares two states, except for values that may differ after a move. `now`: time on the target's clock.
fn compare_states(exported: &ConnectionState, imported: &ConnectionState, now: Time) -> Result<(), String> {
    let (mut exported, mut imported) = (exported.clone(), imported.clone());
    // The target may have a smaller MSS. If its send queue is longer, the import has reported room.
    imported.agreed.mss = exported.agreed.mss;
    imported.sending.wants_room |= exported.sending.wants_room;
    let joined = |state: &ConnectionState| join_adjacent(&state.receiving.late);
    (exported.receiving.late, imported.receiving.late) = (joined(&exported), joined(&imported));
    // The target cannot represent times before the start of its clock.
    let clamp_age = |age_ns: &mut u64| *age_ns = (*age_ns).min(now.0);
    clamp_age(&mut exported.received_age_ns);
    exported.agreed.stamps.iter_mut().for_each(|stamps| clamp_age(&mut stamps.recent_age_ns));
    if let (Some(before), Some(after)) = (&mut exported.recovery, &mut imported.recovery) {
        clamp_age(&mut before.sent_age_ns);
        clamp_age(&mut before.progress_age_ns);
        clamp_age(&mut before.latest_age_ns);
        if before.segments.is_empty() {
            before.probe = None; // the probe has been acknowledged
        }
        for (before, after) in
            before.segments.iter_mut().zip(&after.segments).filter(|(before, _)| before.age_ns > now.0)
        {
            (before.age_ns, before.transmissions) = (now.0, after.transmissions);
        }
        // The target may use another congestion control algorithm, which starts anew. CUBIC's times before
        // the start of the target's clock are replaced by that start.
        after.controller = before.controller;
        if let (Some(before), Some(after)) = (&mut before.undo, &mut after.undo) {
            after.controller = before.controller;
            before.first_age_ns.iter_mut().for_each(clamp_age);
        }
    }
    if exported == imported {
        return Ok(());
    }
    let (exported, imported) = (format!("{exported:#?}"), format!("{imported:#?}"));
    let differences: Vec<String> = exported
        .lines()
        .zip(imported.lines())
        .filter(|(exported, imported)| exported != imported)
        .take(DIFFERENCES_MAX)
        .map(|(exported, imported)| format!("{} exported, {} imported", exported.trim(), imported.trim()))
        .collect();
    Err(format!("another state has arrived: {}", differences.join("; ")))
}

fn join_adjacent(ranges: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    for (from, bytes) in ranges {
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
    fn adjacent_ranges_are_joined() {
        let ranges = [(5, vec![1, 2]), (7, vec![3]), (2, vec![4])];
        assert_eq!(join_adjacent(&ranges), [(5, vec![1, 2, 3]), (2, vec![4])]);
    }
}
