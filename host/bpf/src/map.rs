//! Access to the maps of a loaded program.

use std::ffi::OsStr;
use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use crate::BpfError;

#[derive(Debug)]
pub(crate) struct Map {
    handle: MapHandle,
    name: &'static str,
}

impl Map {
    pub(crate) fn of(object: &Object, name: &'static str) -> Result<Map, BpfError> {
        let map = object
            .maps()
            .find(|map| map.name() == OsStr::new(name))
            .unwrap_or_else(|| unreachable!("the program's source in c/ defines the map `{name}`"));
        let handle =
            MapHandle::try_from(&map).map_err(BpfError::of(format!("cannot open the map `{name}`")))?;
        Ok(Map { handle, name })
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        let action =
            || format!("cannot change the map `{}` (room for {})", self.name, self.handle.max_entries());
        self.handle.update(key, value, MapFlags::ANY).map_err(|error| BpfError::of(action())(error))
    }

    pub(crate) fn remove(&self, key: &[u8]) -> Result<(), BpfError> {
        match self.handle.delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(BpfError::of(format!("cannot change the map `{}`", self.name))(error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn value(&self, key: &[u8], flags: MapFlags) -> Result<Option<Vec<u8>>, BpfError> {
        self.handle.lookup(key, flags).map_err(BpfError::of(format!("cannot read the map `{}`", self.name)))
    }

    /// Changes one value while the program, which locks the values of this map, may change it too.
    pub(crate) fn set_locked(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        self.handle
            .update(key, value, MapFlags::LOCK)
            .map_err(BpfError::of(format!("cannot change the map `{}`", self.name)))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn handle(&self) -> &MapHandle {
        &self.handle
    }

    pub(crate) fn sum(&self, index: u32) -> Result<u64, BpfError> {
        let values = self
            .handle
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(BpfError::of(format!("cannot read the map `{}`", self.name)))?;
        let counters = values.iter().flatten().filter_map(|value| value.first_chunk());
        Ok(counters.map(|bytes| u64::from_ne_bytes(*bytes)).sum())
    }
}

/// The bytes of `struct address` in `c/parse.h`: IPv4 addresses are IPv4-mapped (RFC 4291 §2.5.5.2).
pub(crate) fn address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
