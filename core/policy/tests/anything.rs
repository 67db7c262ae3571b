//! For any reports to a group in any order: no panic, one order for a member at a time, moves within the limit, and
//! consistent counts.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use spillway_policy::{Activation, ActivationSettings, Carrier, Member, Order, Override};
use spillway_transport::Time;

#[derive(Clone, Copy, Debug)]
enum Told {
    Join,
    Leave(usize),
    Measured(usize, u64),
    Waits(usize, Option<u64>),
    GaveUp(usize, u64),
    Carried(usize, bool),
    NotMoved(usize),
    Asked(usize),
    Helpers(bool),
    Say(u8, Option<u64>),
    Pass(u64),
    Obey,
}

fn told() -> impl Strategy<Value = Told> {
    let who = 0..40_usize;
    let us = prop_oneof![0..2_000_u64, 0..1_000_000_u64, Just(u64::MAX / 2)];
    prop_oneof![
        3 => Just(Told::Join),
        1 => who.clone().prop_map(Told::Leave),
        12 => (who.clone(), us.clone()).prop_map(|(who, us)| Told::Measured(who, us)),
        3 => (who.clone(), proptest::option::of(us.clone())).prop_map(|(who, us)| Told::Waits(who, us)),
        1 => (who.clone(), us).prop_map(|(who, us)| Told::GaveUp(who, us)),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, helped)| Told::Carried(who, helped)),
        1 => who.clone().prop_map(Told::NotMoved),
        1 => who.prop_map(Told::Asked),
        1 => any::<bool>().prop_map(Told::Helpers),
        1 => (0..3_u8, proptest::option::of(0..5_000_u64)).prop_map(|(word, ms)| Told::Say(word, ms)),
        6 => prop_oneof![0..50_u64, 50..3_000_u64].prop_map(Told::Pass),
        4 => Just(Told::Obey),
    ]
}

/// The group, and the state that its reports imply.
struct Model {
    activation: Activation,
    now_us: u64,
    members: Vec<Member>,
    carriers: HashMap<Member, Carrier>,
    orders: HashMap<Member, (Carrier, u64)>,
    ordered_us: Vec<u64>,
    cap: u32,
}

impl Model {
    fn now(&self) -> Time {
        Time(self.now_us * 1000)
    }

    fn at(&self, who: usize) -> Option<Member> {
        self.members.get(who % self.members.len().max(1)).copied()
    }

    fn tell(&mut self, told: Told) {
        let now = self.now();
        match told {
            Told::Join => {
                let (member, carrier) = self.activation.join(now).unwrap();
                self.members.push(member);
                assert!(self.carriers.insert(member, carrier).is_none(), "a name of its own");
            }
            Told::Leave(who) => {
                let Some(member) = self.at(who) else { return };
                self.activation.leave(now, member);
                self.members.retain(|other| *other != member);
                self.carriers.remove(&member);
                self.orders.remove(&member);
                self.activation.measured(now, member, Duration::from_secs(1));
                self.activation.carried(now, member, Carrier::Helped);
            }
            Told::Measured(who, us) => {
                let Some(member) = self.at(who) else { return };
                self.activation.measured(now, member, Duration::from_micros(us));
            }
            Told::Waits(who, us) => {
                let Some(member) = self.at(who) else { return };
                let since = us.map(|us| Time(self.now_us.saturating_sub(us) * 1000));
                self.activation.waits_since(member, since);
            }
            Told::GaveUp(who, us) => {
                let Some(member) = self.at(who) else { return };
                self.activation.gave_up(now, member, Duration::from_micros(us));
            }
            Told::Carried(who, helped) => {
                let Some(member) = self.at(who) else { return };
                self.carry(member, if helped { Carrier::Helped } else { Carrier::Direct });
            }
            Told::NotMoved(who) => {
                let Some(member) = self.at(who) else { return };
                self.activation.not_moved(now, member);
                self.orders.remove(&member);
            }
            Told::Asked(who) => {
                let Some(member) = self.at(who) else { return };
                self.activation.release_requested(now, member);
            }
            Told::Helpers(available) => self.activation.helpers(available),
            Told::Say(word, ms) => {
                let word = [Override::Auto, Override::On, Override::Off][usize::from(word)];
                self.activation.say(now, word, ms.map(Duration::from_millis));
            }
            Told::Pass(ms) => self.pass(ms),
            Told::Obey => {
                for (member, (carrier, _)) in self.orders.clone() {
                    self.carry(member, carrier);
                }
            }
        }
        self.poll();
        let status = self.activation.status(self.now());
        let helped = self.carriers.values().filter(|carrier| **carrier == Carrier::Helped).count();
        assert_eq!((status.members as usize, status.helped as usize), (self.members.len(), helped));
    }

    fn carry(&mut self, member: Member, carrier: Carrier) {
        self.activation.carried(self.now(), member, carrier);
        self.carriers.insert(member, carrier);
        if self.orders.get(&member).is_some_and(|(wanted, _)| *wanted == carrier) {
            self.orders.remove(&member);
        }
    }

    /// Passes time, with calls at each timeout of the group.
    fn pass(&mut self, ms: u64) {
        let end = self.now_us + ms * 1000;
        for _ in 0..10_000 {
            self.poll();
            match self.activation.poll_timeout().map(|at| at.as_nanos().div_ceil(1000)) {
                Some(at) if at <= end => {
                    assert!(at > self.now_us, "asks to be called at once for ever");
                    self.now_us = at;
                }
                _ => {
                    self.now_us = end;
                    return;
                }
            }
        }
        panic!("asks to be called too often");
    }

    fn poll(&mut self) {
        while let Some(order) = self.activation.poll(self.now()) {
            let (member, carrier) = match order {
                Order::Help(member) => (member, Carrier::Helped),
                Order::Direct(member) => (member, Carrier::Direct),
            };
            assert!(self.members.contains(&member), "an order for nobody");
            assert_ne!(self.carriers[&member], carrier, "it is there");
            let timeout_us = self.activation.settings().order_timeout.as_micros() as u64;
            if let Some((_, given_us)) = self.orders.insert(member, (carrier, self.now_us)) {
                assert!(self.now_us - given_us >= timeout_us, "a second order while one is under way");
            }
            self.ordered_us.push(self.now_us);
            let second = self.ordered_us.iter().rev().take_while(|us| self.now_us - **us < 1_000_000);
            assert!(second.count() <= self.cap as usize, "more than {} moves in a second", self.cap);
        }
        while let Some(notice) = self.activation.poll_notice() {
            assert!(!notice.to_string().is_empty() && !notice.label().is_empty());
        }
    }
}

fn settings() -> impl Strategy<Value = ActivationSettings> {
    (1..200_u32, 1..=100_u32, 0..300_u64, 1..4_u32).prop_map(
        |(cap, canary_percent, spread_ms, late_looks)| ActivationSettings {
            moves_per_s_max: cap,
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
    fn whatever_it_is_told(
        settings in settings(),
        seed in any::<u64>(),
        course in proptest::collection::vec(told(), 1..400),
    ) {
        let activation = Activation::new(Time(0), settings, seed).unwrap();
        let cap = settings.moves_per_s_max;
        let (carriers, orders) = (HashMap::new(), HashMap::new());
        let (members, ordered_us) = (Vec::new(), Vec::new());
        let mut model = Model { activation, now_us: 0, members, carriers, orders, ordered_us, cap };
        for _ in 0..8 {
            model.tell(Told::Join);
        }
        for told in course {
            model.tell(told);
        }
        let counters = *model.activation.counters();
        let given = counters.orders_to_helpers + counters.orders_to_server;
        prop_assert_eq!(given as usize, model.ordered_us.len());
        prop_assert!(counters.orders_done + counters.orders_failed <= given);
    }
}
