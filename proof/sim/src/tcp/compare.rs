//! Compares the state of a connection before and after an import.

use spillway_transport::Time;
use spillway_wire::state::ConnectionState;

/// Maximum number of fields in the text about the differences of two states.
const DIFFERENCES_MAX: usize = 8;

/// Compares two states, except for values that may differ after a move. `now`: time on the target's clock.
pub(super) fn compare_states(
    exported: &ConnectionState,
    imported: &ConnectionState,
    now: Time,
) -> Result<(), String> {
    let (mut exported, mut imported) = (exported.clone(), imported.clone());
    // The target may import at another address.
    exported.local = imported.local;
    // The target may have a smaller MSS. If its send queue is longer, the import has reported room.
    imported.agreed.mss = exported.agreed.mss;
    imported.sending.wants_room |= exported.sending.wants_room;
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
    if exported == imported { Ok(()) } else { Err(differences(&exported, &imported)) }
}

fn differences(exported: &ConnectionState, imported: &ConnectionState) -> String {
    let (exported, imported) = (format!("{exported:#?}"), format!("{imported:#?}"));
    let differences: Vec<String> = exported
        .lines()
        .zip(imported.lines())
        .filter(|(exported, imported)| exported != imported)
        .take(DIFFERENCES_MAX)
        .map(|(exported, imported)| format!("{} exported, {} imported", exported.trim(), imported.trim()))
        .collect();
    format!("another state has arrived: {}", differences.join("; "))
}
