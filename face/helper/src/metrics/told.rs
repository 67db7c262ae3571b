//! What samples are taken from: one look at a helper.

use spillway_metrics::Family;
use spillway_relay::ServiceStatus;

use crate::distribution::Distribution;
use crate::registering::RegistrationStatus;
use crate::status::{self, HelperStatus, Part};

/// What a helper is doing, and what each of its network threads answered.
#[derive(Debug)]
pub(crate) struct Told {
    /// The sum of all threads.
    pub(super) status: HelperStatus,
    /// Under their numbers, as labels want them.
    contexts: Vec<(String, Part)>,
    /// Context and place there of each service: of one service all contexts follow each other.
    services: Vec<(usize, usize)>,
}

pub(super) fn flag(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

impl Told {
    /// What each network thread answered, under its number; `status` is the sum of it.
    pub(crate) fn new(status: HelperStatus, parts: Vec<(usize, Part)>) -> Told {
        let contexts: Vec<(String, Part)> =
            parts.into_iter().map(|(n, part)| (n.to_string(), part)).collect();
        let mut services: Vec<(usize, usize)> = Vec::new();
        for (context, (_, part)) in contexts.iter().enumerate() {
            services.extend((0..part.status.services.len()).map(|service| (context, service)));
        }
        services.sort_by_key(|&(context, service)| &contexts[context].1.status.services[service].name);
        Told { status, contexts, services }
    }

    /// Each service of each thread, with the labels of both.
    fn services(&self) -> impl Iterator<Item = ([&str; 2], &ServiceStatus)> {
        self.services.iter().map(|&(context, service)| {
            let (label, part) = &self.contexts[context];
            let service = &part.status.services[service];
            ([&*service.name, &**label], service)
        })
    }

    pub(super) fn each_context(&self, family: &mut Family<'_>, value: fn(&Part) -> f64) {
        self.contexts.iter().for_each(|(context, part)| family.sample(&[context], value(part)));
    }

    pub(super) fn each_load(&self, family: &mut Family<'_>) {
        for (context, part) in &self.contexts {
            let load = part.status.load;
            for (resource, share) in [
                ("cpu", load.cpu),
                ("network", load.network),
                ("connections", load.connections),
                ("memory", load.memory),
            ] {
                family.sample(&[context, resource], f64::from(share) / 1e3);
            }
            family.sample(&[context, "all"], f64::from(load.load) / 1e6);
        }
    }

    /// One figure for each service and thread.
    pub(super) fn each(&self, family: &mut Family<'_>, value: fn(&ServiceStatus) -> u64) {
        self.services().for_each(|(labels, service)| family.count(&labels, value(service)));
    }

    /// Several for each service and thread, told apart by the third label.
    pub(super) fn split<const N: usize>(
        &self,
        family: &mut Family<'_>,
        values: fn(&ServiceStatus) -> [(&'static str, u64); N],
    ) {
        for ([name, context], service) in self.services() {
            values(service)
                .into_iter()
                .for_each(|(label, value)| family.count(&[name, context, label], value));
        }
    }

    /// The same of figures that are no whole numbers.
    pub(super) fn split_exactly<const N: usize>(
        &self,
        family: &mut Family<'_>,
        values: fn(&ServiceStatus) -> [(&'static str, f64); N],
    ) {
        for ([name, context], service) in self.services() {
            values(service)
                .into_iter()
                .for_each(|(label, value)| family.sample(&[name, context, label], value));
        }
    }

    pub(super) fn each_registration(&self, family: &mut Family<'_>, value: fn(&RegistrationStatus) -> u64) {
        for service in &self.status.services {
            if let Some(registration) = &service.registration {
                family.count(&[&service.name], value(registration));
            }
        }
    }

    /// All threads together: with one histogram each, a large host would tell tens of thousands of lines. `unit`: what
    /// values are divided by.
    pub(super) fn distributions(
        &self,
        family: &mut Family<'_>,
        of: fn(&status::ServiceStatus) -> &Distribution,
        unit: f64,
    ) {
        for service in self.status.services.iter().filter(|service| !service.batch_bytes.bounds.is_empty()) {
            let of = of(service);
            let bounds = of.bounds.iter().map(|bound| *bound as f64 / unit);
            family.histogram(&[&service.name], bounds, &of.counts, of.sum as f64 / unit);
        }
    }
}
