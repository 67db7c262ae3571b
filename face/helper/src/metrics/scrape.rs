//! The status of a helper from which the samples of one scrape are computed.

use spillway_metrics::Family;
use spillway_relay::ServiceStatus;
use spillway_xdp::Figures;

use super::xdp::Labelled;
use crate::distribution::Distribution;
use crate::registration::RegistrationStatus;
use crate::status::{self, HelperStatus, ThreadSnapshot};

#[derive(Debug)]
pub(crate) struct Scrape {
    /// Sum over all threads.
    pub(super) status: HelperStatus,
    /// Threads with their numbers as label values.
    threads: Vec<(String, ThreadSnapshot)>,
    /// Indexes of thread and service in `threads`, sorted by the service's name.
    services: Vec<(usize, usize)>,
}

pub(super) fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

impl Scrape {
    /// `threads`: each thread's number and status. `status`: their sum.
    pub(crate) fn new(status: HelperStatus, threads: Vec<(usize, ThreadSnapshot)>) -> Scrape {
        let threads: Vec<(String, ThreadSnapshot)> =
            threads.into_iter().map(|(number, thread)| (number.to_string(), thread)).collect();
        let mut services: Vec<(usize, usize)> = Vec::new();
        for (index, (_, thread)) in threads.iter().enumerate() {
            services.extend((0..thread.status.services.len()).map(|service| (index, service)));
        }
        services.sort_by_key(|&(thread, service)| &threads[thread].1.status.services[service].name);
        Scrape { status, threads, services }
    }

    /// Each service on each thread, with the labels `service` and `thread`.
    fn services(&self) -> impl Iterator<Item = ([&str; 2], &ServiceStatus)> {
        self.services.iter().map(|&(thread, service)| {
            let (label, thread) = &self.threads[thread];
            let service = &thread.status.services[service];
            ([&*service.name, &**label], service)
        })
    }

    pub(super) fn each_thread(&self, family: &mut Family<'_>, value: fn(&ThreadSnapshot) -> f64) {
        self.threads.iter().for_each(|(label, thread)| family.sample(&[label], value(thread)));
    }

    pub(super) fn each_load(&self, family: &mut Family<'_>) {
        for (label, thread) in &self.threads {
            let load = thread.status.load;
            for (resource, share) in [
                ("cpu", load.cpu),
                ("network", load.network),
                ("connections", load.connections),
                ("memory", load.memory),
            ] {
                family.sample(&[label, resource], f64::from(share) / 1e3);
            }
            family.sample(&[label, "all"], f64::from(load.load) / 1e6);
        }
    }

    /// One sample for each service and thread.
    pub(super) fn each_service(&self, family: &mut Family<'_>, value: fn(&ServiceStatus) -> u64) {
        self.services().for_each(|(labels, service)| family.count(&labels, value(service)));
    }

    /// `N` samples for each service and thread, which differ in a third label.
    pub(super) fn by_label<const N: usize>(
        &self,
        family: &mut Family<'_>,
        values: fn(&ServiceStatus) -> [(&'static str, u64); N],
    ) {
        // As in `Family::count`, values beyond 2^53 are rounded.
        self.fractions_by_label(family, |service| {
            values(service).map(|(label, value)| (label, value as f64))
        });
    }

    /// As [`by_label`](Self::by_label), for fractions.
    pub(super) fn fractions_by_label<const N: usize>(
        &self,
        family: &mut Family<'_>,
        values: impl Fn(&ServiceStatus) -> [(&'static str, f64); N],
    ) {
        for ([name, thread], service) in self.services() {
            values(service)
                .into_iter()
                .for_each(|(label, value)| family.sample(&[name, thread, label], value));
        }
    }

    /// `N` samples for each thread of the engine xdp, which differ in a second label; none on kernel sockets.
    pub(super) fn each_xdp<const N: usize>(
        &self,
        family: &mut Family<'_>,
        values: fn(&Figures) -> Labelled<N>,
    ) {
        for (label, thread) in &self.threads {
            let figures = thread.xdp.iter();
            figures
                .flat_map(|figures| values(figures))
                .for_each(|(second, value)| family.count(&[label, second], value));
        }
    }

    /// One sample for each thread of the engine xdp; none on kernel sockets.
    pub(super) fn deferring_threads(&self, family: &mut Family<'_>) {
        for (label, thread) in &self.threads {
            let figures = thread.xdp.iter();
            figures.for_each(|figures| family.sample(&[label], f64::from(u8::from(figures.is_deferring))));
        }
    }

    /// One sample for each verdict of the engine's XDP program, which counts the packets of all threads together.
    pub(super) fn verdicts(&self, family: &mut Family<'_>) {
        let first = self.threads.iter().find_map(|(_, thread)| thread.xdp.as_ref());
        for (verdict, packets) in first.iter().flat_map(|figures| figures.verdicts.iter()) {
            family.count(&[verdict.name()], packets);
        }
    }

    pub(super) fn each_registration(&self, family: &mut Family<'_>, value: fn(&RegistrationStatus) -> u64) {
        for service in &self.status.services {
            if let Some(registration) = &service.registration {
                family.count(&[&service.name], value(registration));
            }
        }
    }

    /// One histogram for each service over all threads: one for each thread would be tens of thousands of
    /// lines on a large host. Divides values by `unit`.
    pub(super) fn distributions(
        &self,
        family: &mut Family<'_>,
        distribution: fn(&status::ServiceStatus) -> &Distribution,
        unit: f64,
    ) {
        for service in self.status.services.iter().filter(|service| !service.batch_bytes.bounds.is_empty()) {
            let distribution = distribution(service);
            let bounds = distribution.bounds.iter().map(|bound| *bound as f64 / unit);
            family.histogram(&[&service.name], bounds, &distribution.counts, distribution.sum as f64 / unit);
        }
    }
}
