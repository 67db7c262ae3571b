//! The addresses and ports whose packets a steering program passes to the stacks of several threads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_bpf::{BpfError, Endpoint, Protocol, VerdictCounters};

use crate::adapter::Adapter;

/// Counts the leases of each address and port, and steers packets to leased ones. Clones share one count.
#[derive(Clone, Debug)]
pub struct Endpoints(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    adapter: Adapter,
    leased: LeasedAddresses,
}

/// The present leases. Clones share one state and do not keep the program attached.
#[derive(Clone, Debug, Default)]
pub struct LeasedAddresses(Arc<Mutex<BTreeMap<SocketAddr, usize>>>);

impl LeasedAddresses {
    /// The leased addresses and ports, sorted, each once.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.leases().keys().copied().collect()
    }

    /// Number of leases by address and port; never 0.
    fn leases(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While a lease exists, packets to its address and port belong to the stacks.
#[derive(Debug)]
pub struct Lease {
    address: SocketAddr,
    endpoints: Endpoints,
}

impl Endpoints {
    /// No leases. Dropping the last clone and the last lease detaches the program.
    pub fn new(adapter: Adapter) -> Endpoints {
        Endpoints(Arc::new(Inner { adapter, leased: LeasedAddresses::default() }))
    }

    /// The interface with its program.
    pub fn adapter(&self) -> &Adapter {
        &self.0.adapter
    }

    /// The leases: the value always shows the present ones.
    pub fn leased(&self) -> &LeasedAddresses {
        &self.0.leased
    }

    /// The steering program's counters of packets, by verdict.
    ///
    /// # Errors
    /// The system has failed.
    pub fn verdicts(&self) -> Result<VerdictCounters, BpfError> {
        self.0.adapter.steer().counters()
    }

    /// Steers TCP packets to this address and port to the stacks until the lease is dropped.
    ///
    /// # Errors
    /// The program has no room for more endpoints.
    pub fn lease(&self, address: SocketAddr) -> Result<Lease, BpfError> {
        let mut leases = self.0.leased.leases();
        if !leases.contains_key(&address) {
            self.0.adapter.steer().add_endpoint(endpoint(address))?;
        }
        *leases.entry(address).or_insert(0) += 1;
        Ok(Lease { address, endpoints: self.clone() })
    }
}

impl Lease {
    /// The address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let inner = &self.endpoints.0;
        let mut leases = inner.leased.leases();
        let Some(count) = leases.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            leases.remove(&self.address);
            // After an error, packets still go to the stack, which answers with resets.
            let _ = inner.adapter.steer().remove_endpoint(endpoint(self.address));
        }
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint { protocol: Protocol::Tcp, address }
}
