//! A model of a capture and of the client's segments that are on their way meanwhile, in all orders in which their steps can
//! happen. It shows that the order of `Capturer::export` and `Leaving` loses nothing, and what a simpler order loses: trials on a
//! real kernel meet these orders too rarely.
//!
//! In the model a segment passes the switch, then the filter, and then it is queued and acknowledged, each at any later time.
//! Between the filter and the queue it is on another CPU. Numbers of segments stand for bytes. One packet that the source
//! forwards to the new owner may be lost.

use std::collections::BTreeSet;

/// Segments that are on their way. Two suffice: what happens to one depends on at most one other.
const SEGMENTS: usize = 2;
/// Packets of the source with late bytes that may be lost on their way to the new owner, or find no room there.
const LOSSES: usize = 1;
/// Times that late bytes are forwarded if they are repeated.
const ROUNDS: usize = LOSSES + 1;

/// What an export does.
#[derive(Clone, Copy)]
struct Way {
    filter: Filter,
    /// Reads the ends again after the contents, and both again if they have moved.
    reads_again: bool,
    /// The old socket remains until no segment is on its way.
    has_grace: bool,
    /// How late bytes are given to the new owner.
    late_bytes: LateBytes,
    /// The new owner accepts the connection; otherwise the source resumes.
    is_accepted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    None,
    Dropping,
    Copying,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LateBytes {
    Ignored,
    ForwardedOnce,
    /// Forwarded in a number of rounds after the first late bytes.
    RepeatedSinceFirst,
    /// The rounds begin again with each byte that is found.
    RepeatedSinceLatest,
}

/// The order that docs/capture.md describes.
const COMPLETE: Way = Way {
    filter: Filter::Copying,
    reads_again: true,
    has_grace: true,
    late_bytes: LateBytes::RepeatedSinceLatest,
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
    /// The source forwards late bytes.
    Forward,
    /// The source ends its socket, or continues with it. Before the end, the last step is repeated until all late bytes were
    /// forwarded in all rounds.
    End,
}

const STEPS: [Step; 8] = [
    Step::Hold,
    Step::Filter,
    Step::ReadEnds,
    Step::ReadContents,
    Step::ReadEndsAgain,
    Step::Decide,
    Step::Forward,
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
    /// Late segments that were forwarded, and rounds in which this happened.
    late: usize,
    rounds: usize,
    /// Packets that may still be lost.
    losses: usize,
    /// Segments that the new owner has.
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

    /// What the source's next step may lead to. Nothing: it waits.
    fn step(&self, way: &Way) -> Vec<Model> {
        let mut model = self.clone();
        model.next += 1;
        match STEPS[self.next] {
            Step::Hold => model.is_held = true,
            Step::Filter => model.is_filtered = way.filter != Filter::None,
            Step::ReadEnds => model.ends = self.queued(),
            Step::ReadContents => model.contents = self.queued(),
            Step::ReadEndsAgain => {
                if way.reads_again && self.queued() != self.ends {
                    model.next = index_of(Step::ReadEnds);
                }
            }
            Step::Decide => {
                // A socket that resumes is filtered no more.
                model.is_filtered &= way.is_accepted;
                model.owned = self.contents;
            }
            Step::Forward if way.is_accepted => return self.forward(model, way),
            Step::End if way.is_accepted => {
                if way.has_grace && self.is_on_its_way() {
                    return vec![];
                }
                if way.has_grace && self.must_forward(way) {
                    model.next = index_of(Step::Forward);
                } else {
                    model.has_socket = false;
                }
            }
            Step::Forward | Step::End => {}
        }
        vec![model]
    }

    /// `model`: this one after a step without an effect.
    fn forward(&self, mut model: Model, way: &Way) -> Vec<Model> {
        let late = self.queued() - self.contents;
        if late == 0 || way.late_bytes == LateBytes::Ignored {
            return vec![model];
        }
        if late > self.late && way.late_bytes == LateBytes::RepeatedSinceLatest {
            model.rounds = 0;
        }
        model.rounds += 1;
        model.late = late;
        let lost = (self.losses > 0).then(|| Model { losses: self.losses - 1, ..model.clone() });
        model.owned = self.contents + late;
        lost.into_iter().chain([model]).collect()
    }

    /// Whether late bytes must be forwarded, or repeated.
    fn must_forward(&self, way: &Way) -> bool {
        let rounds = match way.late_bytes {
            LateBytes::Ignored => return false,
            LateBytes::ForwardedOnce => 1,
            LateBytes::RepeatedSinceFirst | LateBytes::RepeatedSinceLatest => ROUNDS,
        };
        let late = self.queued() - self.contents;
        late > self.late || late > 0 && self.rounds < rounds
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

fn index_of(step: Step) -> usize {
    STEPS.iter().position(|candidate| *candidate == step).expect("all steps are in the list")
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
        late: 0,
        rounds: 0,
        losses: LOSSES,
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
    let cases: [(&str, Way, &[Fault]); 8] = [
        ("a filter that drops", Way { filter: Filter::Dropping, ..COMPLETE }, &[Fault::Waits]),
        (
            "a source that resumes after a filter that drops",
            Way { filter: Filter::Dropping, is_accepted: false, ..COMPLETE },
            &[Fault::Waits],
        ),
        ("no second reading", Way { reads_again: false, ..COMPLETE }, &[Fault::Inconsistent]),
        ("no late bytes", Way { late_bytes: LateBytes::Ignored, ..COMPLETE }, &[Fault::AcknowledgedLost]),
        (
            "late bytes that are forwarded once",
            Way { late_bytes: LateBytes::ForwardedOnce, ..COMPLETE },
            &[Fault::AcknowledgedLost],
        ),
        (
            "a last late byte that is forwarded once",
            Way { late_bytes: LateBytes::RepeatedSinceFirst, ..COMPLETE },
            &[Fault::AcknowledgedLost],
        ),
        ("no grace", Way { has_grace: false, ..COMPLETE }, &[Fault::AcknowledgedLost, Fault::Reset]),
        (
            "neither grace nor late bytes, and no filter",
            Way { filter: Filter::None, has_grace: false, late_bytes: LateBytes::Ignored, ..COMPLETE },
            &[Fault::AcknowledgedLost, Fault::Reset],
        ),
    ];
    for (what, way, expected) in cases {
        let faults = explore(&way).0;
        assert_eq!(faults, expected.iter().copied().collect(), "{what}");
    }
}
