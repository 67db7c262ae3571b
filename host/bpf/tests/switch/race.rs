//! Messages and packets that several CPUs handle at the same moment.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use spillway_bpf::switch::Switch;
use spillway_rules::{Endpoint, Verdict};
use spillway_transport::Time;
use spillway_wire::switch::{Kind, Site, Status};

use super::scene::*;

const NOW: Time = Time(5_000_000_000);
/// Flows for which the two servers compete in one round, each in the same order.
const FLOWS: usize = 1000;
const ROUNDS: usize = 1000;

/// Lets two threads go on together.
#[derive(Default)]
struct Meeting {
    arrived: AtomicUsize,
    /// Claims that each thread has begun.
    begun: [AtomicUsize; 2],
}

impl Meeting {
    /// Waits for the other thread; `number` counts the meetings from 1.
    fn wait(&self, number: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut yields = 0_u32;
        while self.arrived.load(Ordering::Acquire) < 2 * number {
            std::thread::yield_now();
            yields += 1;
            assert!(yields < 100_000_000, "the other thread has failed");
        }
    }

    /// Waits for the other thread before the next claim, but not long: it may not be running.
    fn aim(&self, server: u8) {
        let [own, other] = [server - 1, 2 - server].map(|index| &self.begun[usize::from(index)]);
        let number = own.fetch_add(1, Ordering::AcqRel) + 1;
        for _ in 0..2000 {
            if other.load(Ordering::Acquire) >= number {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

/// What the two threads share about a flow.
#[derive(Default)]
struct Pair {
    generation: AtomicU64,
    /// Number of servers whose claim has succeeded.
    winners: AtomicUsize,
}

#[test]
fn of_two_simultaneous_claims_exactly_one_succeeds() {
    let Some(switch) = loaded(Switch::load_for_tests(&config(2), EPOCH)) else { return };
    register(&switch, 2, NOW);
    let pairs: Vec<Pair> = (0..FLOWS).map(|_| Pair::default()).collect();
    for (flow, pair) in pairs.iter().enumerate() {
        pair.generation.store(hold_first(&switch, flow as u32), Ordering::Release);
    }
    let meeting = Meeting::default();
    let wins = std::thread::scope(|scope| {
        let threads = [1, 2].map(|server| {
            let (switch, pairs, meeting) = (&switch, &pairs, &meeting);
            scope.spawn(move || compete(switch, server, pairs, meeting))
        });
        threads.map(|thread| thread.join().unwrap())
    });
    println!("of {} pairs server 1 won {}, server 2 {}", FLOWS * ROUNDS, wins[0], wins[1]);
    assert_eq!(wins[0] + wins[1], FLOWS * ROUNDS);
    assert!(
        wins.iter().all(|wins| *wins > 0),
        "both should win sometimes, otherwise nothing was simultaneous"
    );
}

/// Makes server 1 hold a flow for server 2.
fn hold_first(switch: &Switch, flow: u32) -> u64 {
    let sequence = 3 + u64::from(flow);
    let mut prepare = message(Kind::Prepare, 1, sequence, flow);
    prepare.set_owner(site(2));
    let relayed = switch.test_run(port(1), NOW, &control_frame(1, prepare)).unwrap();
    let mut prepared = message(Kind::Prepared, 2, sequence, flow);
    prepared.set_generation(answer_of(2, &relayed.frame).generation());
    prepared.set_owner(site(2));
    let held = switch.test_run(port(2), NOW, &control_frame(2, prepared)).unwrap();
    answer_of(1, &held.frame).generation()
}

/// One of the two servers: claims all flows in each round, and holds those that it has won for the other server again.
fn compete(switch: &Switch, server: u8, pairs: &[Pair], meeting: &Meeting) -> usize {
    let mut sequence = 10_000;
    let mut wins = 0;
    let mut next = |kind, flow| {
        sequence += 1;
        message(kind, server, sequence, flow)
    };
    for round in 0..ROUNDS {
        let mut won = Vec::new();
        meeting.wait(3 * round + 1);
        for (flow, pair) in (0..).zip(pairs) {
            let mut own = next(Kind::Own, flow);
            own.set_generation(pair.generation.load(Ordering::Acquire));
            let frame = control_frame(server, own);
            meeting.aim(server);
            let run = switch.test_run(port(server), NOW, &frame).unwrap();
            let answer = answer_of(server, &run.frame);
            match answer.status() {
                Ok(Status::Ok) => won.push((flow, pair, answer.generation())),
                Ok(Status::Stale | Status::Forbidden) => continue,
                other => panic!("an unexpected answer: {other:?}"),
            }
            pair.winners.fetch_add(1, Ordering::AcqRel);
        }
        meeting.wait(3 * round + 2);
        for (flow, pair) in pairs.iter().enumerate() {
            assert_eq!(pair.winners.load(Ordering::Acquire), 1, "winners of flow {flow} in round {round}");
        }
        meeting.wait(3 * round + 3);
        wins += won.len();
        for (flow, pair, generation) in won {
            pair.winners.store(0, Ordering::Release);
            let mut hold = next(Kind::Hold, flow);
            hold.set_generation(generation);
            hold.set_owner(site(3 - server));
            let held = ask(switch, server, NOW, hold);
            assert_eq!(held.status(), Ok(Status::Ok));
            pair.generation.store(held.generation(), Ordering::Release);
        }
    }
    wins
}

/// The server to which a flow moves while entries come and go.
fn target_of(flow: u32) -> u8 {
    2 + u8::try_from(flow % 3).unwrap()
}

/// Two servers ask for more entries than their service may have, and end them: never more exist, and no place is lost.
#[test]
fn two_cpus_do_not_exceed_the_bound_of_a_service() {
    const BOUND: usize = 5;
    const TRIES: u64 = 50_000;
    let mut config = config(2);
    config.service_flows_max.insert(SERVICE, BOUND);
    // A second service endpoint, of server 2.
    let other = place_of(2);
    let place = config.places.iter_mut().find(|place| place.at == other).unwrap();
    place.service = other;
    let Some(switch) = loaded(Switch::load_for_tests(&config, EPOCH)) else { return };
    register(&switch, 2, NOW);
    // Entries that exist for sure: those that were created, and whose end has not begun.
    let entries = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (switch, entries) = (&switch, &entries);
        let threads = [(1_u8, service()), (2, other)].map(|(server, endpoint)| {
            scope.spawn(move || {
                let (mut held, mut refused) = (Vec::new(), 0);
                for number in 0..TRIES {
                    // Ends its oldest entry when it has three, so that both compete for the last places.
                    let flow = (number % 1000) as u32;
                    let mut prepare = message(Kind::Prepare, server, 10 + 3 * number, flow);
                    prepare.set_service(endpoint);
                    prepare.set_owner(Site::new(endpoint, mac(server)));
                    let run = switch.test_run(port(server), NOW, &control_frame(server, prepare)).unwrap();
                    let reply = answer_of(server, &run.frame);
                    if run.verdict == Verdict::Relayed {
                        let before = entries.fetch_add(1, Ordering::AcqRel);
                        assert!(before < BOUND, "{before} entries existed before");
                        held.push((flow, reply.generation()));
                    } else {
                        assert_eq!(reply.status(), Ok(Status::Full));
                        refused += 1;
                    }
                    if held.len() > 3 || (run.verdict != Verdict::Relayed && !held.is_empty()) {
                        let (flow, generation) = held.remove(0);
                        entries.fetch_sub(1, Ordering::AcqRel);
                        release_asked(switch, server, endpoint, 11 + 3 * number, flow, generation);
                    }
                }
                for (index, (flow, generation)) in held.into_iter().enumerate() {
                    let sequence = 20 + 3 * TRIES + 2 * index as u64;
                    entries.fetch_sub(1, Ordering::AcqRel);
                    release_asked(switch, server, endpoint, sequence, flow, generation);
                }
                refused
            })
        });
        let refused = threads.map(|thread| thread.join().unwrap());
        println!("of {TRIES} each, {refused:?} were refused");
        assert!(refused.iter().all(|count| *count > 0), "the servers should compete");
    });
    assert_eq!(switch.flows().unwrap().count(), 0);
    // All places are free again.
    let relayed = |flow: u32| {
        let mut prepare = message(Kind::Prepare, 1, 10 * TRIES + u64::from(flow), flow);
        prepare.set_owner(Site::new(service(), mac(1)));
        switch.test_run(port(1), NOW, &control_frame(1, prepare)).unwrap().verdict == Verdict::Relayed
    };
    assert_eq!((0..20).filter(|flow| relayed(*flow)).count(), BOUND);
}

/// Takes a flow back from a target that was asked, and ends its entry.
fn release_asked(switch: &Switch, server: u8, endpoint: Endpoint, sequence: u64, flow: u32, generation: u64) {
    let mut own = message(Kind::Own, server, sequence, flow);
    own.set_service(endpoint);
    own.set_generation(generation);
    let owned = ask(switch, server, NOW, own);
    assert_eq!(owned.status(), Ok(Status::Ok));
    let mut release = message(Kind::Release, server, sequence + 1, flow);
    release.set_service(endpoint);
    release.set_generation(owned.generation());
    assert_eq!(ask(switch, server, NOW, release).status(), Ok(Status::Ok));
}

/// Elements of a small table are used for one flow after the other while packets of all flows arrive.
#[test]
fn entries_come_and_go_while_packets_arrive() {
    const CLIENTS: u32 = 9;
    const MOVES: u32 = 100_000;
    let mut config = config(4);
    config.flows_max = 2;
    let Some(switch) = loaded(Switch::load_for_tests(&config, EPOCH)) else { return };
    register(&switch, 4, NOW);
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let packets = scope.spawn(|| {
            let mut seen = [0_usize; 3];
            while !done.load(Ordering::Relaxed) {
                (0..CLIENTS).for_each(|flow| seen[check_packet(&switch, flow)] += 1);
            }
            seen
        });
        for number in 0..MOVES {
            move_and_release(&switch, number % CLIENTS, 10 + u64::from(number));
        }
        done.store(true, Ordering::Relaxed);
        packets.join().unwrap()
    });
    println!("{} packets without entry, {} to owners, {} to targets", seen[0], seen[1], seen[2]);
    assert!(seen.iter().all(|count| *count > 0), "packets should meet entries in all states");
    assert_eq!(switch.flows().unwrap().count(), 0);
}

/// One flow moves from server to server while its packets arrive: each goes to one of them, with all of its addresses.
#[test]
fn packets_never_see_half_of_a_change() {
    const MOVES: u64 = 200_000;
    let Some(switch) = loaded(Switch::load_for_tests(&config(3), EPOCH)) else { return };
    register(&switch, 3, NOW);
    let mut generation = hold_first(&switch, 1);
    let sent = tcp_frame((mac(1), mac(0)), client(1), service(), 0x10);
    let whole: Vec<_> = std::iter::once(tcp_frame((mac(2), mac(0)), client(1), service(), 0x10))
        .chain([2, 3].map(|server| tcp_frame((mac(server), mac(0)), client(1), place_of(server), 0x10)))
        .chain([sent.clone()])
        .collect();
    let done = AtomicBool::new(false);
    let packets = std::thread::scope(|scope| {
        let packets = scope.spawn(|| {
            let mut packets = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let run = switch.test_run(port(0), NOW, &sent).unwrap();
                assert!(whole.contains(&run.frame), "{:?}: {:02x?}", run.verdict, run.frame);
                packets += 1;
            }
            packets
        });
        let (mut owner, mut next) = (2, 3);
        for number in 0..MOVES {
            let mut own = message(Kind::Own, owner, 10 + 2 * number, 1);
            own.set_generation(generation);
            let mut hold = message(Kind::Hold, owner, 11 + 2 * number, 1);
            hold.set_generation(ask(&switch, owner, NOW, own).generation());
            hold.set_owner(Site::new(place_of(next), mac(next)));
            generation = ask(&switch, owner, NOW, hold).generation();
            (owner, next) = (next, owner);
        }
        done.store(true, Ordering::Relaxed);
        packets.join().unwrap()
    });
    println!("{packets} packets during {MOVES} moves");
    let flow = switch.flows().unwrap().next().unwrap();
    assert!(flow.generation >= EPOCH + 2 * MOVES, "all moves should have succeeded: {flow:?}");
}

/// Checks where a client's packet goes: to server 1 at the service's address, or to its flow's target at its own.
fn check_packet(switch: &Switch, flow: u32) -> usize {
    let target = target_of(flow);
    let sent = tcp_frame((mac(1), mac(0)), client(flow), service(), 0x10);
    let moved = tcp_frame((mac(target), mac(0)), client(flow), place_of(target), 0x10);
    let run = switch.test_run(port(0), NOW, &sent).unwrap();
    match run.verdict {
        Verdict::Switched => assert_eq!(run.frame, sent),
        Verdict::ToOwner => {
            assert!(run.frame == sent || run.frame == moved, "flow {flow}: {:02x?}", run.frame)
        }
        Verdict::ToTarget => assert!(run.frame == moved, "flow {flow}: {:02x?}", run.frame),
        other => panic!("{other:?}"),
    }
    [Verdict::Switched, Verdict::ToOwner, Verdict::ToTarget]
        .iter()
        .position(|verdict| *verdict == run.verdict)
        .unwrap()
}

/// A whole move, after which the new owner releases the flow.
fn move_and_release(switch: &Switch, flow: u32, sequence: u64) {
    let target = target_of(flow);
    let site = Site::new(place_of(target), mac(target));
    let relayed = |from: u8, to: u8, message| {
        let run = switch.test_run(port(from), NOW, &control_frame(from, message)).unwrap();
        assert_eq!(run.verdict, Verdict::Relayed);
        answer_of(to, &run.frame)
    };
    let mut prepare = message(Kind::Prepare, 1, sequence, flow);
    prepare.set_owner(site);
    let asked = relayed(1, target, prepare);
    let mut prepared = message(Kind::Prepared, target, 3 * sequence, flow);
    prepared.set_generation(asked.generation());
    prepared.set_owner(site);
    let held = relayed(target, 1, prepared);
    let mut own = message(Kind::Own, target, 3 * sequence + 1, flow);
    own.set_generation(held.generation());
    let owned = ask(switch, target, NOW, own);
    assert_eq!(owned.status(), Ok(Status::Ok));
    let mut release = message(Kind::Release, target, 3 * sequence + 2, flow);
    release.set_generation(owned.generation());
    assert_eq!(ask(switch, target, NOW, release).status(), Ok(Status::Ok));
}
