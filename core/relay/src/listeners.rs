//! The transport's listeners: which service uses each, and which are open.

use alloc::vec::Vec;

use crate::clients::ClientType;
use crate::config::ServiceConfig;

/// All listeners, by their index in the transport.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Listener {
    /// The index of the service that uses the listener, and the type of its clients. `None`: no service uses it any more.
    assignment: Option<(u16, ClientType)>,
    is_open: bool,
}

impl Listeners {
    /// The index of the service that uses a listener, and the type of its clients.
    pub(crate) fn assignment(&self, listener: u16) -> Option<(u16, ClientType)> {
        self.listeners.get(usize::from(listener)).and_then(|listener| listener.assignment)
    }

    /// Assigns listeners to `services`, given in the order of their indexes. Does not open or close
    /// listeners, because a reload may move an open listener from one service to another.
    pub(crate) fn assign<'a>(&mut self, services: impl Iterator<Item = &'a ServiceConfig>) {
        self.listeners.iter_mut().for_each(|listener| listener.assignment = None);
        for (service, config) in (0_u16..).zip(services) {
            let plain = config.plain_listeners.iter().map(|listener| (*listener, ClientType::Plain));
            let library = config.link_listeners.iter().map(|listener| (*listener, ClientType::Library));
            for (listener, client_type) in plain.chain(library) {
                let index = usize::from(listener);
                if self.listeners.len() <= index {
                    self.listeners.resize(index + 1, Listener::default());
                }
                self.listeners[index].assignment = Some((service, client_type));
            }
        }
    }

    /// Opens or closes all listeners of a service. Calls `set` for each listener that changes.
    pub(crate) fn set_open(&mut self, service: &ServiceConfig, open: bool, mut set: impl FnMut(u16, bool)) {
        for index in service.plain_listeners.iter().chain(&service.link_listeners) {
            if let Some(listener) = self.listeners.get_mut(usize::from(*index))
                && listener.is_open != open
            {
                listener.is_open = open;
                set(*index, open);
            }
        }
    }

    /// Closes listeners that no service uses any more. Calls `set` for each listener that was open.
    pub(crate) fn close_unused(&mut self, mut set: impl FnMut(u16, bool)) {
        for (index, listener) in (0_u16..).zip(&mut self.listeners) {
            if listener.assignment.is_none() && core::mem::take(&mut listener.is_open) {
                set(index, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn service(plain: &[u16], library: &[u16]) -> ServiceConfig {
        let server = "127.0.0.1:11411".parse().unwrap();
        let config = ServiceConfig::new("cache", server);
        ServiceConfig { plain_listeners: plain.to_vec(), link_listeners: library.to_vec(), ..config }
    }

    #[test]
    fn only_changes_are_reported_and_unused_listeners_close() {
        let mut listeners = Listeners::default();
        let (first, second) = (service(&[0], &[3]), service(&[1], &[]));
        listeners.assign([&first, &second].into_iter());
        assert_eq!(listeners.assignment(3), Some((0, ClientType::Library)));
        assert_eq!((listeners.assignment(1), listeners.assignment(2)), (Some((1, ClientType::Plain)), None));
        assert_eq!(
            listeners.assignment(9),
            None,
            "a listener that was not assigned should have no assignment"
        );
        let mut changes = vec![];
        listeners.set_open(&first, true, |index, open| changes.push((index, open)));
        listeners.set_open(&first, true, |index, open| changes.push((index, open)));
        // Listener 0 stays open while it moves from the first service to the second.
        listeners.assign([&service(&[], &[]), &service(&[0, 1], &[])].into_iter());
        assert_eq!(listeners.assignment(0), Some((1, ClientType::Plain)));
        listeners.close_unused(|index, open| changes.push((index, open)));
        assert_eq!(changes, [(0, true), (3, true), (3, false)]);
    }
}
