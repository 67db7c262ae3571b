//! Runs an [`Application`] on a [`Stack`]: what every driver does between its device and the two.

use spillway_transport::{Application, Event, Time};

use crate::event::StackEvent;
use crate::stack::Stack;

/// A turn begins: what the application wants done by now. Before frames, and only after the turn before has ended.
pub fn begin_turn<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
    if application.poll_timeout().is_some_and(|at| at <= now) {
        application.handle_timeout(now, stack);
    }
    if stack.has_events() {
        drain(stack, application, now);
    }
}

/// A frame has come.
#[inline]
pub fn deliver<A: Application>(stack: &mut Stack, application: &mut A, now: Time, frame: &[u8]) {
    if let Some(delivery) = stack.handle_frame(now, frame) {
        let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
        application.handle(now, delivery.conn, event, stack);
    }
    if stack.has_events() {
        drain(stack, application, now);
    }
}

/// A turn ends: all frames that were there have been delivered. Then frames are to be sent. The stack's own timers come
/// after the frames: whoever was not run for a while finds acknowledgements there that a timer would miss.
pub fn end_turn<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
    if stack.is_timeout_due(now) {
        stack.handle_timeout(now);
        drain(stack, application, now);
    }
    application.end_of_turn(now, stack);
    // Commands at the end of a turn may lead to events, such as bytes that were only granted then.
    while stack.has_events() {
        drain(stack, application, now);
        application.end_of_turn(now, stack);
    }
}

/// When the next turn is due, if no frame comes.
#[must_use]
pub fn poll_timeout<A: Application>(stack: &Stack, application: &A) -> Option<Time> {
    [stack.poll_timeout(), application.poll_timeout()].into_iter().flatten().min()
}

/// What the stack has to tell.
fn drain<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
    while let Some((conn, event)) = stack.poll_event() {
        let event = match &event {
            StackEvent::Opened { peer, listener } => Event::Opened { peer: *peer, listener: *listener },
            StackEvent::Data { end, bytes } => Event::Data { end: *end, bytes },
            StackEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            StackEvent::Room => Event::Room,
            StackEvent::Finished => Event::Finished,
            StackEvent::Lost(reason) => Event::Lost(*reason),
        };
        application.handle(now, conn, event, stack);
    }
}
