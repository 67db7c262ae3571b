//! The addresses at which a helper listens: each is given once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use spillway_config::{Any, Texts, Values};
use spillway_values::{listen_address, listen_addresses};

use super::engine::EngineReader;

/// The configuration key that gave each listening address, to report an address that is given twice.
#[derive(Default)]
pub(super) struct Listening {
    key_by_address: BTreeMap<SocketAddr, String>,
}

impl Listening {
    /// Reads the address of the port for metrics, which uses the kernel's sockets with each engine.
    pub(super) fn metrics(&mut self, values: &mut Values<'_>, setting: &Any) -> Option<SocketAddr> {
        let (text, span) = values.string(setting)?;
        let found = values.checked(&span, listen_address(&text))?;
        self.add(values, found, "metrics", &span);
        Some(found)
    }

    /// Reads the addresses of ports for clients, which the engine must be able to use. `key` is the setting's name.
    pub(super) fn clients(
        &mut self,
        values: &mut Values<'_>,
        engine: &EngineReader,
        texts: &Texts,
        key: &str,
    ) -> Vec<SocketAddr> {
        let mut all = Vec::new();
        for text in texts.iter().flat_map(|list| list.get_ref()) {
            let found = values.checked(&text.span(), listen_addresses(text.get_ref())).unwrap_or_default();
            for address in found {
                self.add(values, address, key, &text.span());
                engine.check_listener(values, address, &text.span());
                all.push(address);
            }
        }
        all
    }

    fn add(&mut self, values: &mut Values<'_>, address: SocketAddr, key: &str, span: &Range<usize>) {
        if address.port() == 0 {
            return;
        }
        if let Some(other_key) = self.key_by_address.insert(address, key.to_owned()) {
            values.problem(
                span.clone(),
                format!("{address} is already used by {other_key}: give each its own address"),
            );
        }
    }
}
