//! The metrics of a switch, for Prometheus.

use spillway_metrics::{Declared, Exposition, Family, Metric};

use crate::status::{ServerStatus, SwitchStatus};

const NONE: &[&str] = &[];
const SERVER: &[&str] = &["server"];

/// All metrics of a switch except [those of every process](spillway_metrics::process::METRICS).
pub const METRICS: &[Metric] = &Declared::metrics(&ALL);

const ALL: [Declared<SwitchStatus>; 16] = [
    Declared::gauge(
        "spillway_switch_build_info",
        &["version"],
        "Always 1; the label is the program's version.",
        |status, family| family.sample(&[&status.version], 1.0),
    ),
    Declared::counter(
        "spillway_switch_packets_total",
        &["verdict"],
        "Packets by verdict, since the switch's tables were made; those with drop_ in front were dropped.",
        |status, family| {
            status.packets.iter().for_each(|(verdict, packets)| family.count(&[verdict], *packets));
        },
    ),
    Declared::gauge(
        "spillway_switch_flows",
        &["state"],
        "Flows with an entry by state: asked, held, owned.",
        |status, family| {
            family.count(&["asked"], status.flows.asked);
            family.count(&["held"], status.flows.held);
            family.count(&["owned"], status.flows.owned);
        },
    ),
    Declared::gauge(
        "spillway_switch_flows_max",
        NONE,
        "Maximum number of flows with an entry.",
        |status, family| family.count(&[], status.flows.max),
    ),
    Declared::gauge(
        "spillway_switch_service_flows",
        &["service"],
        "Flows with an entry by service: services share the table.",
        |status, family| {
            status.services.iter().for_each(|service| family.count(&[&service.name], service.flows));
        },
    ),
    Declared::counter(
        "spillway_switch_flows_swept_total",
        NONE,
        "Entries of ended flows, and of flows that a reload has left without a basis, that the daemon has removed; the program \
         removes others at their next packet.",
        |status, family| family.count(&[], status.flows.swept),
    ),
    Declared::gauge(
        "spillway_switch_port_attached",
        &["interface"],
        "Whether the program runs on a port's interface.",
        |status, family| {
            let ports = status.ports.iter();
            ports.for_each(|port| family.count(&[&port.interface], port.problem.is_none().into()));
        },
    ),
    Declared::gauge(
        "spillway_switch_port_up",
        &["interface"],
        "Whether a port's interface, on which the program runs, is up and has a carrier.",
        |status, family| {
            let ports = status.ports.iter();
            ports.for_each(|port| family.count(&[&port.interface], port.fault().is_none().into()));
        },
    ),
    Declared::gauge(
        "spillway_switch_server_alive",
        SERVER,
        "Whether a server has said hello and its heartbeats arrive.",
        |status, family| each_server(status, family, |server| u64::from(server.is_alive) as f64),
    ),
    Declared::gauge(
        "spillway_switch_server_load",
        SERVER,
        "Load in a server's last heartbeat, in the unit of its service.",
        |status, family| each_server(status, family, |server| server.load.into()),
    ),
    Declared::gauge(
        "spillway_switch_server_free_places",
        SERVER,
        "Connections that a server can still import.",
        |status, family| each_server(status, family, |server| server.free_places.into()),
    ),
    Declared::gauge(
        "spillway_switch_server_weight",
        SERVER,
        "Capacity of a server relative to other servers of its service; 0 imports nothing.",
        |status, family| each_server(status, family, |server| server.weight.into()),
    ),
    Declared::counter(
        "spillway_switch_local_messages_total",
        NONE,
        "Control messages that the daemon has passed on for this host's own server, in host mode.",
        |status, family| family.count(&[], status.local_messages),
    ),
    Declared::counter(
        "spillway_switch_local_messages_dropped_total",
        NONE,
        "Datagrams at the control endpoints that the daemon has dropped, in host mode.",
        |status, family| family.count(&[], status.local_messages_dropped),
    ),
    Declared::gauge(
        "spillway_switch_snapshot_age_seconds",
        NONE,
        "Time since these figures were read from the switch's tables, which is once a second.",
        |status, family| family.sample(&[], status.age_ms as f64 / 1e3),
    ),
    Declared::counter(
        "spillway_switch_log_lines_dropped_total",
        NONE,
        "Log lines dropped because writing failed or was too slow.",
        |status, family| family.count(&[], status.log_lines_dropped),
    ),
];

pub(crate) fn write(status: &SwitchStatus, out: &mut Exposition) {
    Declared::write(&ALL, status, out);
}

/// One sample for each configured server; zeros for a server that has not sent a heartbeat.
fn each_server(status: &SwitchStatus, family: &mut Family<'_>, value: fn(&ServerStatus) -> f64) {
    status.servers.iter().for_each(|server| family.sample(&[&server.name], value(server)));
}
