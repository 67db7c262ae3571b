//! Services with their endpoints.

use std::ops::Range;

use spillway_config::Any;
use spillway_rules::config::FLOWS_MAX;
use spillway_values::is_name;
use toml::Spanned;

use super::{Placed, Reader};
use crate::config::schema::{EndpointSection, ServerSection, ServiceSection};
use crate::config::{Endpoint, Server, Service, SwitchConfig};

const SERVICES_MAX: usize = 256;

/// A service as the file states it: servers are read after services, so its original servers are names still.
pub(super) struct Draft {
    pub(super) name: String,
    /// Position of the name in the text.
    pub(super) span: Range<usize>,
    pub(super) number: u8,
    pub(super) endpoints: Vec<DraftEndpoint>,
    flows_max: Option<usize>,
}

pub(super) struct DraftEndpoint {
    pub(super) address: std::net::SocketAddr,
    /// Name of the original server.
    server: Option<Placed<String>>,
}

impl Reader<'_> {
    pub(super) fn services(&mut self, sections: &[Spanned<ServiceSection>]) -> Vec<Draft> {
        if let Some(first) = sections.get(SERVICES_MAX) {
            self.values.problem(first.span(), format!("a switch has at most {SERVICES_MAX} services"));
        }
        let mut drafts: Vec<Draft> = Vec::new();
        for section in sections {
            let (head, section) = (section.span(), section.get_ref());
            let Some((name, span)) = self.name(&section.name, &head, "service") else { continue };
            if drafts.iter().any(|draft| draft.name == name) {
                self.values.problem(span, format!("{name} is already a service: give each its own name"));
                continue;
            }
            let number = u8::try_from(drafts.len()).unwrap_or(u8::MAX);
            let endpoints = self.endpoints(section, &head, &name);
            let flows_max = self.values.number(&section.flows_max, 1..=FLOWS_MAX);
            drafts.push(Draft { name, span, number, endpoints, flows_max });
        }
        drafts
    }

    /// The name of a service or server, which must be given.
    pub(super) fn name(&mut self, setting: &Any, head: &Range<usize>, what: &str) -> Option<Placed<String>> {
        let (name, span) = self.required(setting, head, &format!("name is missing: name the {what}"))?;
        if is_name(&name) {
            return Some((name, span));
        }
        let message = format!("a {what}'s name has 1 to 64 letters, digits, '-', '_' and '.'");
        self.values.problem(span, message);
        None
    }

    fn endpoints(&mut self, section: &ServiceSection, head: &Range<usize>, name: &str) -> Vec<DraftEndpoint> {
        const NEXT: &str = "give the addresses to which clients connect: endpoints = [{ address = \"ADDRESS:PORT\", server = \"NAME\" }]";
        let Some(list) = &section.endpoints else {
            self.values.problem(head.clone(), format!("endpoints is missing: {NEXT}"));
            return Vec::new();
        };
        if list.get_ref().is_empty() {
            self.values.problem(list.span(), NEXT);
        }
        list.get_ref().iter().filter_map(|endpoint| self.endpoint(endpoint, name)).collect()
    }

    fn endpoint(&mut self, endpoint: &Spanned<EndpointSection>, name: &str) -> Option<DraftEndpoint> {
        let (head, section) = (endpoint.span(), endpoint.get_ref());
        let missing = "server is missing: name the [[server]] that owns connections at first";
        let server = self.required(&section.server, &head, missing);
        let (address, span) = self.service_address(&section.address, &head, "endpoint")?;
        self.use_address(address, &span, &format!("an endpoint of service {name}"));
        Some(DraftEndpoint { address, server })
    }

    /// Looks up the endpoints' original servers.
    pub(super) fn with_servers(
        &mut self,
        drafts: Vec<Draft>,
        sections: &[Spanned<ServerSection>],
        config: &SwitchConfig,
    ) -> Vec<Service> {
        let mut services = Vec::new();
        for Draft { name, number, endpoints: drafts, flows_max, .. } in drafts {
            let mut endpoints = Vec::new();
            for draft in drafts {
                let Some((server, span)) = draft.server else { continue };
                let Some(found) = config.servers.iter().find(|one| one.name == server) else {
                    // A `[[server]]` with errors is not in `config`: its name is not reported as unknown.
                    if !sections.iter().any(|section| is_named(section.get_ref(), &server)) {
                        let message =
                            format!("no [[server]] has name = \"{server}\": add it, or correct the name");
                        self.values.problem(span, message);
                    }
                    continue;
                };
                self.check_original(found, &name, number, span, config);
                endpoints.push(Endpoint { address: draft.address, server: found.id });
            }
            services.push(Service { name, number, endpoints, flows_max });
        }
        services
    }

    /// Checks that the servers of the original server's port may own the service: otherwise no flow could ever leave
    /// the original server.
    fn check_original(
        &mut self,
        server: &Server,
        name: &str,
        number: u8,
        span: Range<usize>,
        config: &SwitchConfig,
    ) {
        let is_owned_somewhere = config.ports.iter().any(|port| self.may_own_service(port, number));
        let port = config.ports.iter().find(|port| port.number == server.port);
        let may_own = port.is_some_and(|port| self.may_own_service(port, number));
        if is_owned_somewhere && !may_own {
            let (server, interface) = (&server.name, config.interface(server.port));
            let message = format!(
                "{server} is on port {interface}, whose servers may not own {name}: add \"{name}\" to may_own there"
            );
            self.values.problem(span, message);
        }
    }
}

fn is_named(section: &ServerSection, name: &str) -> bool {
    section.name.as_ref().is_some_and(|value| value.get_ref().as_str() == Some(name))
}
