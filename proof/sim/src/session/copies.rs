//! Copies of what was said: somebody on the way keeps them, and says them again later, on other carriers. Frames are not
//! encrypted, so it can; only first words and their answers are proved.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use spillway_batch::Control;
use spillway_wire::session::{Resumed, SessionId};

use crate::rng::Rng;

/// Of each sort, at most.
const KEPT_MAX: usize = 100;
/// The newest may still overtake their originals.
const NEWEST: usize = 4;

/// What was copied.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    words: VecDeque<(SessionId, Control)>,
    answers: VecDeque<(SessionId, Resumed)>,
    to_server: VecDeque<(SessionId, Control)>,
    to_client: VecDeque<(SessionId, Control)>,
}

/// Shared by everybody on the way.
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

/// What an old copy does no harm: it is an absolute offset. The others (*finish*, *close*) are not proved, and whoever
/// can say them again on a carrier can as well make them up.
fn is_absolute(control: &Control) -> bool {
    matches!(control, Control::Credit(_) | Control::Acknowledge(_))
}

impl Copies {
    /// A session's first words.
    pub(crate) fn of_words(&mut self, id: SessionId, words: Control) {
        keep(&mut self.words, (id, words));
    }

    /// Something else that a client said.
    pub(crate) fn of_client(&mut self, id: SessionId, control: Control) {
        if is_absolute(&control) {
            keep(&mut self.to_server, (id, control));
        }
    }

    /// Something that a server said.
    pub(crate) fn of_server(&mut self, id: SessionId, control: Control) {
        match control {
            Control::Resumed(answer) => keep(&mut self.answers, (id, answer)),
            control if is_absolute(&control) => keep(&mut self.to_client, (id, control)),
            _ => {}
        }
    }

    /// First words: of the newest, or of any.
    pub(crate) fn words(&self, rng: &mut Rng) -> Option<(SessionId, Control)> {
        let all = self.words.len();
        let newest = if rng.chance(1, 2) { NEWEST } else { all };
        let back = rng.below(newest.min(all).max(1) as u64) as usize;
        self.words.get(all.checked_sub(1 + back)?).copied()
    }

    /// An answer to first words: of this session, or of any.
    pub(crate) fn answer(&self, id: SessionId, rng: &mut Rng) -> Option<Resumed> {
        let own: Vec<Resumed> = self.answers.iter().filter(|(of, _)| *of == id).map(|(_, a)| *a).collect();
        if own.is_empty() || rng.chance(1, 4) {
            let any = rng.below(self.answers.len().max(1) as u64) as usize;
            return self.answers.get(any).map(|(_, answer)| *answer);
        }
        Some(rng.pick(&own))
    }

    /// What this session's client said.
    pub(crate) fn said_by_client(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        any_of(&self.to_server, id, rng)
    }

    /// What the server said to this session's client.
    pub(crate) fn said_by_server(&self, id: SessionId, rng: &mut Rng) -> Option<Control> {
        any_of(&self.to_client, id, rng)
    }
}
