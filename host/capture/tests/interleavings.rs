//! A model of a capture and of the client's segments that are on their way meanwhile, in all orders in which their steps can
//! happen. It shows that the order of `Capturer::export` and `Leaving` loses nothing, and what a simpler order loses: trials on a
//! real kernel meet these orders too rarely.
//!
//! In the model a segment passes the switch, then the filter, and then it is queued and acknowledged, each at any later time.
//! Between the filter and the queue it is on another CPU. Numbers of segments stand for bytes.

use std::collections::BTreeSet;

/// Segments that are on their way. Two suffice: what happens to one depends on at most one other.
const SEGMENTS: usize = 2;

/// What an export does.
#[derive(Clone, Copy)]
struct Way {
    filter: Filter,
    /// Reads the ends again after the contents, and both again if they have moved.
    reads_again: bool,
    /// The old socket remains until no segment is on its way.
    has_grace: bool,
    /// Gives late bytes to the new owner.
    reads_late_bytes: bool,
    /// The new owner accepts the connection; otherwise the source resumes.
    is_accepted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    None,
    Dropping,
    Copying,
}

/// The order that docs/capture.md describes.
const COMPLETE: Way = Way {
    filter: Filter::Copying,
    reads_again: true,
    has_grace: true,
    reads_late_bytes: true,
    is_accepted: true,
};

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    BeforeSwitch,
    BeforeFilter,
    /// Past the filter, on another CPU.
    BeforeQueue,
    /// In the old socket's queue, and acknowledged.
    Queued,
    Copied,
    /// Held for the connection's owner, or passed to it.
    Switch,
    Dropped,
    /// It met no socket.
    Reset,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The owner has not got bytes that the client has an acknowledgement of: they are lost for ever.
    AcknowledgedLost,
    /// The client must repeat a segment after its timeout.
    Waits,
    /// The client gets a reset.
    Reset,
    /// The state has an end of the queue that does not belong to its bytes.
    Inconsistent,
}

/// The steps of the source, in their order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Hold,
    Filter,
    ReadEnds,
    ReadContents,
    /// Repeats the last two if the ends have moved.
    ReadEndsAgain,
    /// The move is decided: the new owner accepts, or the source resumes.
    Decide,
    /// The source forwards, and ends its socket; or it injects.
    End,
}

const STEPS: [Step; 7] = [
    Step::Hold,
    Step::Filter,
    Step::ReadEnds,
    Step::ReadContents,
    Step::ReadEndsAgain,
    Step::Decide,
    Step::End,
];

#[derive(Clone)]
struct Model {
    segments: [Place; SEGMENTS],
    /// Index of the source's next step.
    next: usize,
    is_held: bool,
    is_filtered: bool,
    has_socket: bool,
    /// Segments queued when the ends were read, and when the contents were.
    ends: usize,
    contents: usize,
    /// Segments that the owner has at the end of the source's steps.
    owned: usize,
}

impl Model {
    fn queued(&self) -> usize {
        self.segments.iter().filter(|place| **place == Place::Queued).count()
    }

    /// Whether a segment is at the old host, or will get there.
    fn is_on_its_way(&self) -> bool {
        self.segments.iter().any(|place| matches!(place, Place::BeforeFilter | Place::BeforeQueue))
    }

    /// The source's next step. `None`: it waits.
    fn step(&self, way: &Way) -> Option<Model> {
        let mut model = self.clone();
        model.next += 1;
        match STEPS[self.next] {
            Step::Hold => model.is_held = true,
            Step::Filter => model.is_filtered = way.filter != Filter::None,
            Step::ReadEnds => model.ends = self.queued(),
            Step::ReadContents => model.contents = self.queued(),
            Step::ReadEndsAgain => {
                if way.reads_again && self.queued() != self.ends {
                    model.next = STEPS.iter().position(|step| *step == Step::ReadEnds)?;
                }
            }
            // A socket that resumes is filtered no more.
            Step::Decide => model.is_filtered &= way.is_accepted,
            Step::End if way.is_accepted => {
                if way.has_grace && self.is_on_its_way() {
                    return None;
                }
                let late = if way.reads_late_bytes { self.queued() - self.contents } else { 0 };
                model.owned = self.contents + late;
                model.has_socket = false;
            }
            Step::End => {}
        }
        Some(model)
    }

    /// The next step of a segment. `None`: it has arrived somewhere.
    fn advance(&self, index: usize, way: &Way) -> Option<Model> {
        let mut model = self.clone();
        model.segments[index] = match self.segments[index] {
            Place::BeforeSwitch if self.is_held => Place::Switch,
            Place::BeforeSwitch => Place::BeforeFilter,
            Place::BeforeFilter if !self.has_socket => Place::Reset,
            Place::BeforeFilter if !self.is_filtered => Place::BeforeQueue,
            Place::BeforeFilter if way.filter == Filter::Copying => Place::Copied,
            Place::BeforeFilter => Place::Dropped,
            Place::BeforeQueue if !self.has_socket => Place::Reset,
            Place::BeforeQueue => Place::Queued,
            _ => return None,
        };
        Some(model)
    }

    /// The faults when nothing can happen any more.
    fn faults(&self, way: &Way) -> BTreeSet<Fault> {
        let mut faults = BTreeSet::new();
        let mut add = |fault, has| {
            if has {
                faults.insert(fault);
            }
        };
        let count = |place| self.segments.iter().filter(|found| **found == place).count();
        add(Fault::Waits, count(Place::Dropped) > 0);
        add(Fault::Reset, count(Place::Reset) > 0);
        if way.is_accepted {
            add(Fault::AcknowledgedLost, self.queued() > self.owned);
            add(Fault::Inconsistent, self.ends != self.contents);
        }
        faults
    }
}

/// All faults in all orders, and the number of orders.
fn explore(way: &Way) -> (BTreeSet<Fault>, usize) {
    let start = Model {
        segments: [Place::BeforeSwitch; SEGMENTS],
        next: 0,
        is_held: false,
        is_filtered: false,
        has_socket: true,
        ends: 0,
        contents: 0,
        owned: 0,
    };
    let (mut faults, mut orders, mut open) = (BTreeSet::new(), 0, vec![start]);
    while let Some(model) = open.pop() {
        let before = open.len();
        if model.next < STEPS.len() {
            open.extend(model.step(way));
        }
        open.extend((0..SEGMENTS).filter_map(|index| model.advance(index, way)));
        if open.len() == before {
            assert_eq!(model.next, STEPS.len(), "the source never waits for ever");
            faults.extend(model.faults(way));
            orders += 1;
        }
    }
    (faults, orders)
}

#[test]
fn the_complete_order_loses_nothing() {
    for is_accepted in [true, false] {
        let (faults, orders) = explore(&Way { is_accepted, ..COMPLETE });
        assert!(faults.is_empty(), "{faults:?}");
        assert!(orders > 1_000, "{orders} orders");
    }
}

#[test]
fn each_part_of_the_order_is_needed() {
    let cases: [(&str, Way, &[Fault]); 6] = [
        ("a filter that drops", Way { filter: Filter::Dropping, ..COMPLETE }, &[Fault::Waits]),
        (
            "a source that resumes after a filter that drops",
            Way { filter: Filter::Dropping, is_accepted: false, ..COMPLETE },
            &[Fault::Waits],
        ),
        ("no second reading", Way { reads_again: false, ..COMPLETE }, &[Fault::Inconsistent]),
        ("no late bytes", Way { reads_late_bytes: false, ..COMPLETE }, &[Fault::AcknowledgedLost]),
        ("no grace", Way { has_grace: false, ..COMPLETE }, &[Fault::Reset]),
        (
            "neither grace nor late bytes, and no filter",
            Way { filter: Filter::None, has_grace: false, reads_late_bytes: false, ..COMPLETE },
            &[Fault::AcknowledgedLost, Fault::Reset],
        ),
    ];
    for (what, way, expected) in cases {
        let faults = explore(&way).0;
        assert_eq!(faults, expected.iter().copied().collect(), "{what}");
    }
}
