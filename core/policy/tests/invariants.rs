//! For any reports to a group in any order: no panic, one order for a member at a time, moves within the limit, and
//! consistent counts.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use spillway_policy::{Activation, ActivationSettings, Carrier, Member, Order, Override};
use spillway_transport::Time;

#[derive(Clone, Copy, Debug)]
enum Report {
    Join,
    Leave(usize),
    Measured(usize, u64),
    Waits(usize, Option<u64>),
    GaveUp(usize, u64),
    Carried(usize, bool),
    NotMoved(usize),
    ServerDrain(usize),
    Helpers(bool),
    SetOverride(u8, Option<u64>),
    Advance(u64),
    CompleteOrders,
}

fn report() -> impl Strategy<Value = Report> {
    let index = 0..40_usize;
    let us = prop_oneof![0..2_000_u64, 0..1_000_000_u64, Just(u64::MAX / 2)];
    prop_oneof![
        3 => Just(Report::Join),
        1 => index.clone().prop_map(Report::Leave),
        12 => (index.clone(), us.clone()).prop_map(|(index, us)| Report::Measured(index, us)),
        3 => (index.clone(), proptest::option::of(us.clone())).prop_map(|(index, us)| Report::Waits(index, us)),
        1 => (index.clone(), us).prop_map(|(index, us)| Report::GaveUp(index, us)),
        1 => (index.clone(), any::<bool>()).prop_map(|(index, helped)| Report::Carried(index, helped)),
        1 => index.clone().prop_map(Report::NotMoved),
        1 => index.prop_map(Report::ServerDrain),
        1 => any::<bool>().prop_map(Report::Helpers),
        1 => (0..3_u8, proptest::option::of(0..5_000_u64)).prop_map(|(choice, ms)| Report::SetOverride(choice, ms)),
        6 => prop_oneof![0..50_u64, 50..3_000_u64].prop_map(Report::Advance),
        4 => Just(Report::CompleteOrders),
    ]
}

/// The group, and the state that its reports imply.
struct Model {
    activation: Activation,
    now_us: u64,
    members: Vec<Member>,
    carriers: HashMap<Member, Carrier>,
    orders: HashMap<Member, (Carrier, u64)>,
    order_times_us: Vec<u64>,
    moves_per_s_max: u32,
}

impl Model {
    fn now(&self) -> Time {
        Time(self.now_us * 1000)
    }

    fn member_at(&self, index: usize) -> Option<Member> {
        self.members.get(index % self.members.len().max(1)).copied()
    }

    fn apply(&mut self, report: Report) {
        let now = self.now();
        match report {
            Report::Join => {
                let (member, carrier) = self.activation.join(now).unwrap();
                self.members.push(member);
                assert!(
                    self.carriers.insert(member, carrier).is_none(),
                    "a new member's key should be unused"
                );
            }
            Report::Leave(index) => {
                let Some(member) = self.member_at(index) else { return };
                self.activation.leave(now, member);
                self.members.retain(|other| *other != member);
                self.carriers.remove(&member);
                self.orders.remove(&member);
                self.activation.record_latency(now, member, Duration::from_secs(1));
                self.activation.carried(now, member, Carrier::Helped);
            }
            Report::Measured(index, us) => {
                let Some(member) = self.member_at(index) else { return };
                self.activation.record_latency(now, member, Duration::from_micros(us));
            }
            Report::Waits(index, us) => {
                let Some(member) = self.member_at(index) else { return };
                let since = us.map(|us| Time(self.now_us.saturating_sub(us) * 1000));
                self.activation.set_oldest_request(member, since);
            }
            Report::GaveUp(index, us) => {
                let Some(member) = self.member_at(index) else { return };
                self.activation.record_given_up(now, member, Duration::from_micros(us));
            }
            Report::Carried(index, helped) => {
                let Some(member) = self.member_at(index) else { return };
                self.complete_move(member, if helped { Carrier::Helped } else { Carrier::Direct });
            }
            Report::NotMoved(index) => {
                let Some(member) = self.member_at(index) else { return };
                self.activation.not_moved(now, member);
                self.orders.remove(&member);
            }
            Report::ServerDrain(index) => {
                let Some(member) = self.member_at(index) else { return };
                self.activation.release_requested(now, member);
            }
            Report::Helpers(available) => self.activation.set_helpers_available(available),
            Report::SetOverride(choice, ms) => {
                let relief = [Override::Auto, Override::On, Override::Off][usize::from(choice)];
                self.activation.set_override(now, relief, ms.map(Duration::from_millis));
            }
            Report::Advance(ms) => self.advance(ms),
            Report::CompleteOrders => {
                for (member, (carrier, _)) in self.orders.clone() {
                    self.complete_move(member, carrier);
                }
            }
        }
        self.poll();
        let status = self.activation.status(self.now());
        let helped = self.carriers.values().filter(|carrier| **carrier == Carrier::Helped).count();
        assert_eq!((status.members as usize, status.helped as usize), (self.members.len(), helped));
    }

    fn complete_move(&mut self, member: Member, carrier: Carrier) {
        self.activation.carried(self.now(), member, carrier);
        self.carriers.insert(member, carrier);
        if self.orders.get(&member).is_some_and(|(wanted, _)| *wanted == carrier) {
            self.orders.remove(&member);
        }
    }

    /// Advances the time, with a call at each timeout of the group.
    fn advance(&mut self, ms: u64) {
        let end = self.now_us + ms * 1000;
        for _ in 0..10_000 {
            self.poll();
            match self.activation.poll_timeout().map(|at| at.as_nanos().div_ceil(1000)) {
                Some(at) if at <= end => {
                    assert!(at > self.now_us, "the timeout should be later than the call");
                    self.now_us = at;
                }
                _ => {
                    self.now_us = end;
                    return;
                }
            }
        }
        panic!("{ms} ms should need at most 10,000 timeouts");
    }

    fn poll(&mut self) {
        while let Some(order) = self.activation.poll(self.now()) {
            let (member, carrier) = match order {
                Order::ToHelper(member) => (member, Carrier::Helped),
                Order::Direct(member) => (member, Carrier::Direct),
            };
            assert!(self.members.contains(&member), "a connection that has left should get no order");
            assert_ne!(self.carriers[&member], carrier, "no order should lead to the present carrier");
            let timeout_us = self.activation.settings().order_timeout.as_micros() as u64;
            if let Some((_, ordered_us)) = self.orders.insert(member, (carrier, self.now_us)) {
                assert!(
                    self.now_us - ordered_us >= timeout_us,
                    "a member should have one order at a time, until its timeout"
                );
            }
            self.order_times_us.push(self.now_us);
            let last_second =
                self.order_times_us.iter().rev().take_while(|us| self.now_us - **us < 1_000_000);
            assert!(
                last_second.count() <= self.moves_per_s_max as usize,
                "at most {} moves should be ordered in a second",
                self.moves_per_s_max
            );
        }
        while let Some(notice) = self.activation.poll_notice() {
            assert!(
                !notice.to_string().is_empty() && !notice.label().is_empty(),
                "each notice should have a text and a label"
            );
        }
    }
}

fn settings() -> impl Strategy<Value = ActivationSettings> {
    (1..200_u32, 1..=100_u32, 0..300_u64, 1..4_u32).prop_map(
        |(moves_per_s_max, canary_percent, spread_ms, late_looks)| ActivationSettings {
            moves_per_s_max,
            canary_percent,
            late_looks,
            spread: Duration::from_millis(spread_ms),
            backoff_min: Duration::from_millis(500),
            stay_min: Duration::from_secs(1),
            calm: Duration::from_secs(1),
            order_timeout: Duration::from_millis(700),
            ..ActivationSettings::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_reports_in_any_order_keep_the_invariants(
        settings in settings(),
        seed in any::<u64>(),
        reports in proptest::collection::vec(report(), 1..400),
    ) {
        let activation = Activation::new(Time(0), settings, seed).unwrap();
        let moves_per_s_max = settings.moves_per_s_max;
        let (carriers, orders) = (HashMap::new(), HashMap::new());
        let (members, order_times_us) = (Vec::new(), Vec::new());
        let mut model = Model { activation, now_us: 0, members, carriers, orders, order_times_us, moves_per_s_max };
        for _ in 0..8 {
            model.apply(Report::Join);
        }
        for report in reports {
            model.apply(report);
        }
        let counters = *model.activation.counters();
        let orders = counters.orders_to_helpers + counters.orders_to_server;
        prop_assert_eq!(orders as usize, model.order_times_us.len());
        prop_assert!(
            counters.orders_done + counters.orders_failed <= orders,
            "no order should be reported twice"
        );
    }
}
