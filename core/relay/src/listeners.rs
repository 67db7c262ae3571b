//! The transport's listeners: which service uses each, and which are open.

use alloc::vec::Vec;

use crate::clients::Sort;
use crate::config::ServiceConfig;

/// All listeners, by their index in the transport.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Listener {
    /// The service whose clients come in there, and their sort. None: no service uses it any more.
    user: Option<(u16, Sort)>,
    /// The host listens there.
    is_open: bool,
}

impl Listeners {
    /// Which service uses a listener, and for which sort of clients.
    pub(crate) fn user(&self, listener: u16) -> Option<(u16, Sort)> {
        self.listeners.get(usize::from(listener)).and_then(|listener| listener.user)
    }

    /// Services as they are configured now, in the order of their indexes. A listener keeps its state, because its address
    /// may go from one service to another.
    pub(crate) fn assign<'a>(&mut self, services: impl Iterator<Item = &'a ServiceConfig>) {
        self.listeners.iter_mut().for_each(|listener| listener.user = None);
        for (service, config) in (0_u16..).zip(services) {
            let raw = config.raw_listeners.iter().map(|listener| (*listener, Sort::Raw));
            let library = config.link_listeners.iter().map(|listener| (*listener, Sort::Library));
            for (listener, sort) in raw.chain(library) {
                let index = usize::from(listener);
                if self.listeners.len() <= index {
                    self.listeners.resize(index + 1, Listener::default());
                }
                self.listeners[index].user = Some((service, sort));
            }
        }
    }

    /// Opens or closes all listeners of a service. `set` gets those that were not so.
    pub(crate) fn set_open(&mut self, service: &ServiceConfig, open: bool, mut set: impl FnMut(u16, bool)) {
        for index in service.raw_listeners.iter().chain(&service.link_listeners) {
            if let Some(listener) = self.listeners.get_mut(usize::from(*index))
                && listener.is_open != open
            {
                listener.is_open = open;
                set(*index, open);
            }
        }
    }

    /// Closes listeners that no service uses any more. `set` gets those that were open.
    pub(crate) fn close_unused(&mut self, mut set: impl FnMut(u16, bool)) {
        for (index, listener) in (0_u16..).zip(&mut self.listeners) {
            if listener.user.is_none() && core::mem::take(&mut listener.is_open) {
                set(index, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn service(raw: &[u16], library: &[u16]) -> ServiceConfig {
        let server = "127.0.0.1:11411".parse().unwrap();
        let config = ServiceConfig::new("cache", server);
        ServiceConfig { raw_listeners: raw.to_vec(), link_listeners: library.to_vec(), ..config }
    }

    #[test]
    fn a_listener_is_told_only_what_changes_and_closes_with_its_last_user() {
        let mut listeners = Listeners::default();
        let (first, second) = (service(&[0], &[3]), service(&[1], &[]));
        listeners.assign([&first, &second].into_iter());
        assert_eq!(listeners.user(3), Some((0, Sort::Library)));
        assert_eq!((listeners.user(1), listeners.user(2)), (Some((1, Sort::Raw)), None));
        assert_eq!(listeners.user(9), None, "not one of ours");
        let mut told = vec![];
        listeners.set_open(&first, true, |index, open| told.push((index, open)));
        listeners.set_open(&first, true, |index, open| told.push((index, open)));
        // The second service takes over one of the first one's listeners, which stays open meanwhile.
        listeners.assign([&service(&[], &[]), &service(&[0, 1], &[])].into_iter());
        assert_eq!(listeners.user(0), Some((1, Sort::Raw)));
        listeners.close_unused(|index, open| told.push((index, open)));
        assert_eq!(told, [(0, true), (3, true), (3, false)]);
    }
}
