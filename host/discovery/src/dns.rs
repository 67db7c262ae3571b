//! Looks up all addresses of a name periodically, with the system's resolver.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use crate::stop::{Stop, spread};
use crate::updates::Sender;
use crate::{Entry, is_connectable};

/// Pause after a failed look-up, shorter than usual: the resolver or the service may just be starting.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

pub(crate) fn watch(host: &str, port: u16, interval: Duration, stop: &Stop, sender: &Sender) {
    let name = format!("dns:{host}:{port}");
    loop {
        let wait = match look_up(host, port) {
            Ok(list) => {
                sender.report_success(&name);
                sender.set_list(list);
                interval
            }
            Err(why) => {
                sender.report_failure(&name, why);
                interval.min(RETRY_PAUSE)
            }
        };
        if stop.wait(spread(wait)) {
            return;
        }
    }
}

fn look_up(host: &str, port: u16) -> Result<Vec<Entry>, String> {
    let found = (host, port).to_socket_addrs().map_err(|error: io::Error| error.to_string())?;
    let list: Vec<Entry> = found.filter(|address| is_connectable(*address)).map(Entry::at).collect();
    if list.is_empty() { Err("the name has no address".to_owned()) } else { Ok(list) }
}
