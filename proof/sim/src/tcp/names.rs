//! The names by which a host's program knows its connections, and where each connection is now.

use std::collections::BTreeMap;

use spillway_transport::Conn;

/// A connection on one of a host's stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Handle {
    /// Index of the server.
    pub(super) server: usize,
    /// The connection's handle on the server's stack.
    pub(super) conn: Conn,
}

/// A connection keeps its name when it moves. While it is between two stacks it has no handle.
#[derive(Debug, Default)]
pub(super) struct Names {
    handles: BTreeMap<Conn, Handle>,
    /// The inverse of `handles`.
    names: BTreeMap<Handle, Conn>,
    next_name: u32,
}

impl Names {
    /// Gives a new connection a name.
    pub(super) fn add(&mut self, handle: Handle) -> Conn {
        let name = Conn { slot: self.next_name, generation: 0 };
        self.next_name += 1;
        self.put(name, handle);
        name
    }

    /// The connection is on a stack again.
    pub(super) fn put(&mut self, name: Conn, handle: Handle) {
        self.handles.insert(name, handle);
        self.names.insert(handle, name);
    }

    /// The connection is on no stack any more. Returns where it was.
    pub(super) fn remove(&mut self, name: Conn) -> Option<Handle> {
        let handle = self.handles.remove(&name)?;
        self.names.remove(&handle);
        Some(handle)
    }

    pub(super) fn name(&self, handle: Handle) -> Option<Conn> {
        self.names.get(&handle).copied()
    }

    pub(super) fn handle(&self, name: Conn) -> Option<Handle> {
        self.handles.get(&name).copied()
    }

    /// All connections on a server's stack.
    pub(super) fn at(&self, server: usize) -> Vec<Conn> {
        let all = self.handles.iter().filter(|(_, handle)| handle.server == server);
        all.map(|(name, _)| *name).collect()
    }

    /// Number of connections that are on a stack.
    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    /// The connection with this index among those that are on a stack, in the order of their names.
    pub(super) fn nth(&self, index: usize) -> Option<Conn> {
        self.handles.keys().nth(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_its_name_when_it_moves() {
        let handle = |server| Handle { server, conn: Conn { slot: 7, generation: 3 } };
        let mut names = Names::default();
        let [first, second] = [0, 1].map(|server| names.add(handle(server)));
        assert_eq!(names.remove(first), Some(handle(0)));
        assert_eq!((names.handle(first), names.name(handle(0)), names.len()), (None, None, 1));
        names.put(first, handle(2));
        assert_eq!((names.handle(first), names.name(handle(2))), (Some(handle(2)), Some(first)));
        assert_eq!((names.nth(0), names.nth(1), names.nth(2)), (Some(first), Some(second), None));
    }
}
