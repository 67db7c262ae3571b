//! Copies of control messages, which an attacker replays on other carriers. The attacker can read all frames
//! here; only opening messages and their answers are authenticated.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use spillway_batch::Control;
use spillway_wire::session::{Resumed, SessionId};

use crate::rng::Rng;

const COPIES_MAX: usize = 100;
/// Half of the replayed opening messages are among the newest four, which may arrive before their originals.
const NEWEST_COUNT: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Copies {
    openings: VecDeque<(SessionId, Control)>,
    answers: VecDeque<(SessionId, Resumed)>,
    to_server: VecDeque<(SessionId, Control)>,
    to_client: VecDeque<(SessionId, Control)>,
}

pub(crate) type SharedCopies = Rc<RefCell<Copies>>;

fn push_bounded<T>(queue: &mut VecDeque<T>, copy: T) {
    if queue.len() >= COPIES_MAX {
        queue.pop_front();
    }
    queue.push_back(copy);
}

fn random_copy(queue: &VecDeque<(SessionId, Control)>, id: SessionId, rng: &mut Rng) -> Option<Control> {
    let of_session: Vec<Control> =
        queue.iter().filter(|(session, _)| *session == id).map(|(_, control)| *control).collect();
    (!of_session.is_empty()).then(|| rng.pick(&of_session))
}

/// Whether the message has an absolute offset, which makes an old copy harmless. *Finish* and *close* are not
/// replayed: they are not authenticated, and an attacker who can replay them can also forge them.
fn has_absolute_offset(control: &Control) -> bool {
    matches!(control, Control::Credit(_) | Control::Acknowledge(_))
}

impl Copies {
    pub(crate) fn keep_opening(&mut self, id: SessionId, opening: Control) {
        push_bounded(&mut self.openings, (id, opening));
    }

    pub(crate) fn keep_from_client(&mut self, id: SessionId, control: Control) {
        if has_absolute_offset(&control) {
            push_bounded(&mut self.to_server, (id, control));
        }
    }

    pub(crate) fn keep_from_server(&mut self, id: SessionId, control: Control) {
        match control {
            Control::Resumed(answer) => push_bounded(&mut self.answers, (id, answer)),
            control if has_absolute_offset(&control) => push_bounded(&mut self.to_client, (id, control)),
            _ => {}
        }
    }

    pub(crate) fn opening(&self, rng: &mut Rng) -> Option<(SessionId, Control)> {
        let count = self.openings.len();
        let newest = if rng.chance(1, 2) { NEWEST_COUNT } else { count };
        let age = rng.below(newest.min(count).max(1) as u64) as usize;
        self.openings.get(count.checked_sub(1 + age)?).copied()
    }

    /// A copy of an answer to an opening message: of this session, in a quarter of the calls of any.
    pub(crate) fn answer(&self, id: SessionId, rng: &mut Rng) -> Option<Resumed> {
        let own: Vec<Resumed> =
            self.answers.iter().filter(|(session, _)| *session == id).map(|(_, answer)| *answer).collect();
        if own.is_empty() || rng.chance(1, 4) {
            let index = rng.below(self.answers.len().max(1) as u64) as usize;
            return self.answers.get(index).map(|(_, answer)| *answer);
        }
        Some(rng.pick(&own))
    }

    pub(crate) fn client_copy(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        random_copy(&self.to_server, id, rng)
    }

    pub(crate) fn server_copy(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        random_copy(&self.to_client, id, rng)
    }
}
