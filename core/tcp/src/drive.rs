//! Runs an [`Application`] on a [`Stack`]: the part of a driver's loop that is independent of the device.

use spillway_transport::{Application, Event, Time};

use crate::event::StackEvent;
use crate::stack::Stack;

/// Begins a turn: runs the application's timers that are due. Call it before [`deliver`].
pub fn begin_turn<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
    if application.poll_timeout().is_some_and(|at| at <= now) {
        application.handle_timeout(now, stack);
    }
    if stack.has_events() {
        pass_events(stack, application, now);
    }
}

/// Handles one received frame, and passes its bytes and events to the application.
#[inline]
pub fn deliver<A: Application>(stack: &mut Stack, application: &mut A, now: Time, frame: &[u8]) {
    if let Some(delivery) = stack.handle_frame(now, frame) {
        let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
        application.handle(now, delivery.conn, event, stack);
    }
    if stack.has_events() {
        pass_events(stack, application, now);
    }
}

/// Ends a turn, after all waiting frames were delivered and before frames are sent. The stack's own timers run after
/// the frames: if the process was not scheduled for a while, the frames may acknowledge what a timer would retransmit.
pub fn end_turn<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
    if stack.is_timeout_due(now) {
        stack.handle_timeout(now);
        pass_events(stack, application, now);
    }
    application.end_of_turn(now, stack);
    // Commands of `end_of_turn` may cause events, for example a grant that delivers waiting bytes.
    while stack.has_events() {
        pass_events(stack, application, now);
        application.end_of_turn(now, stack);
    }
}

/// Time of the next turn, unless a frame arrives earlier.
#[must_use]
pub fn poll_timeout<A: Application>(stack: &Stack, application: &A) -> Option<Time> {
    [stack.poll_timeout(), application.poll_timeout()].into_iter().flatten().min()
}

/// Passes all events of the stack to the application.
fn pass_events<A: Application>(stack: &mut Stack, application: &mut A, now: Time) {
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
