//! The services of a relay. A turn processes only services in which something has changed or is due.

mod drain;
mod service;

pub(crate) use service::Service;

use crate::config::ServiceConfig;
use crate::marked::MarkedList;

/// Services by index. A removed service keeps its index.
pub(crate) type Services = MarkedList<Service>;

impl Services {
    /// The index of the service with this name, removed services included.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.iter().position(|service| service.config().name == name)
    }

    /// The index of the service with this name, unless it was removed and has drained.
    pub(crate) fn index_of_active(&self, name: &str) -> Option<usize> {
        self.index_of(name).filter(|index| !self[*index].has_ended_after_removal())
    }

    pub(crate) fn configs(&self) -> impl Iterator<Item = &ServiceConfig> + '_ {
        self.iter().map(Service::config)
    }
}
