//! Checks that the interface still has the addresses of the stacks.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use spillway_transport::Time;

use crate::addresses::AddressReader;
use crate::endpoints::LeasedAddresses;
use crate::interface::Interface;
use crate::notice::Notice;
use crate::socket::CHECK_INTERVAL;

/// Watches the addresses at which stacks listen or from which they connect. When an address is removed, the
/// kernel stops answering ARP and neighbour discovery for it, so no packet arrives there any more. Clones
/// share one state: the first thread whose check is due checks for all threads.
#[derive(Clone, Debug)]
pub struct AddressWatch(Arc<Mutex<Watched>>);

#[derive(Debug)]
struct Watched {
    interface: Interface,
    kernel: AddressReader,
    /// Source addresses of connections that the stacks open.
    own: Vec<IpAddr>,
    /// Addresses of the listeners.
    leased: LeasedAddresses,
    missing: BTreeSet<IpAddr>,
    check_at: Time,
}

impl AddressWatch {
    /// Watches the addresses `own` and `leased` of an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new(interface: Interface, own: Vec<IpAddr>, leased: LeasedAddresses) -> io::Result<AddressWatch> {
        let (kernel, missing, check_at) = (AddressReader::open()?, BTreeSet::new(), Time::ZERO);
        let watched = Watched { interface, kernel, own, leased, missing, check_at };
        Ok(AddressWatch(Arc::new(Mutex::new(watched))))
    }

    /// Addresses in use that the interface did not have at the last check.
    pub fn missing(&self) -> Vec<IpAddr> {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.missing.iter().copied().collect()
    }

    /// Checks the addresses, at most once in [`CHECK_INTERVAL`]. Returns the changes since the last check.
    pub(crate) fn check(&self, now: Time) -> Vec<Notice> {
        // Locked: another thread is checking.
        let Ok(mut watched) = self.0.try_lock() else { return Vec::new() };
        if now < watched.check_at {
            return Vec::new();
        }
        watched.check_at = now + CHECK_INTERVAL;
        watched.check()
    }
}

impl Watched {
    fn check(&mut self) -> Vec<Notice> {
        // After an error the last state stays. A removed interface ends the loop (`Interface::check`).
        let Ok(networks) = self.kernel.networks_of(self.interface.index) else { return Vec::new() };
        let present: BTreeSet<IpAddr> = networks.into_iter().map(|(address, _)| address).collect();
        let listening = self.leased.addresses().into_iter().map(|address| address.ip());
        let used: BTreeSet<IpAddr> = listening.chain(self.own.iter().copied()).collect();
        let missing: BTreeSet<IpAddr> = used.into_iter().filter(|ip| !present.contains(ip)).collect();
        let interface = || self.interface.name.clone();
        let removed = missing
            .difference(&self.missing)
            .map(|address| Notice::AddressRemoved { interface: interface(), address: *address });
        let returned = self
            .missing
            .difference(&missing)
            .filter(|address| present.contains(address))
            .map(|address| Notice::AddressReturned { interface: interface(), address: *address });
        let notices = removed.chain(returned).collect();
        self.missing = missing;
        notices
    }
}
