//! Copies of control messages, which an attacker replays later, on other carriers. Frames are not encrypted here;
//! only opening messages and their answers are authenticated.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use spillway_batch::Control;
use spillway_wire::session::{Resumed, SessionId};

use crate::rng::Rng;

/// Bound of each queue.
const KEPT_MAX: usize = 100;
/// The newest copies may still arrive before their originals.
const NEWEST: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Copies {
    openings: VecDeque<(SessionId, Control)>,
    answers: VecDeque<(SessionId, Resumed)>,
    to_server: VecDeque<(SessionId, Control)>,
    to_client: VecDeque<(SessionId, Control)>,
}

pub(crate) type Shared = Rc<RefCell<Copies>>;

fn keep<T>(queue: &mut VecDeque<T>, copy: T) {
    if queue.len() >= KEPT_MAX {
        queue.pop_front();
    }
    queue.push_back(copy);
}

fn any_of(queue: &VecDeque<(SessionId, Control)>, id: SessionId, rng: &mut Rng) -> Option<Control> {
    let of_session: Vec<Control> = queue.iter().filter(|(of, _)| *of == id).map(|(_, c)| *c).collect();
    (!of_session.is_empty()).then(|| rng.pick(&of_session))
}

/// Whether an old copy is harmless: the message carries an absolute offset. *Finish* and *close* are not
/// authenticated: an attacker who can replay them on a carrier can also forge them.
fn is_absolute(control: &Control) -> bool {
    matches!(control, Control::Credit(_) | Control::Acknowledge(_))
}

impl Copies {
    pub(crate) fn keep_opening(&mut self, id: SessionId, opening: Control) {
        keep(&mut self.openings, (id, opening));
    }

    pub(crate) fn keep_from_client(&mut self, id: SessionId, control: Control) {
        if is_absolute(&control) {
            keep(&mut self.to_server, (id, control));
        }
    }

    pub(crate) fn keep_from_server(&mut self, id: SessionId, control: Control) {
        match control {
            Control::Resumed(answer) => keep(&mut self.answers, (id, answer)),
            control if is_absolute(&control) => keep(&mut self.to_client, (id, control)),
            _ => {}
        }
    }

    /// An opening message: one of the newest, or any.
    pub(crate) fn opening(&self, rng: &mut Rng) -> Option<(SessionId, Control)> {
        let all = self.openings.len();
        let newest = if rng.chance(1, 2) { NEWEST } else { all };
        let back = rng.below(newest.min(all).max(1) as u64) as usize;
        self.openings.get(all.checked_sub(1 + back)?).copied()
    }

    /// An answer to an opening message: of this session, or of any.
    pub(crate) fn answer(&self, id: SessionId, rng: &mut Rng) -> Option<Resumed> {
        let own: Vec<Resumed> = self.answers.iter().filter(|(of, _)| *of == id).map(|(_, a)| *a).collect();
        if own.is_empty() || rng.chance(1, 4) {
            let any = rng.below(self.answers.len().max(1) as u64) as usize;
            return self.answers.get(any).map(|(_, answer)| *answer);
        }
        Some(rng.pick(&own))
    }

    pub(crate) fn client_copy(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        any_of(&self.to_server, id, rng)
    }

    pub(crate) fn server_copy(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        any_of(&self.to_client, id, rng)
    }
}
