//! Options of services: `--service NAME=ADDR`, each followed by its `--listen` and `--link-listen`.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use spillway_helper::config::Service;
use spillway_values::{AddressError, listen_addresses, server_address};

/// The services on the command line. The order of the options decides which listener belongs to which service; clap's
/// derive does not keep that order, so this type reads the options itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services(Vec<ServiceArgs>);

#[derive(Clone, Debug, Default)]
struct ServiceArgs {
    name: String,
    server: String,
    listen: Vec<String>,
    link_listen: Vec<String>,
}

impl clap::Args for Services {
    fn augment_args(command: Command) -> Command {
        let option = |name, value, help| {
            Arg::new(name).long(name).value_name(value).help(help).action(ArgAction::Append)
        };
        command
            .arg(
                option(
                    "service",
                    "NAME=ADDR",
                    "A server to relieve: a name of your choice, and the server's link port",
                )
                .required_unless_present("config"),
            )
            .arg(option(
                "listen",
                "[NAME=]ADDR",
                "Accept plain clients here, for the service named, or the one before",
            ))
            .arg(option(
                "link-listen",
                "[NAME=]ADDR",
                "Accept library clients here, for the service named, or the one before",
            ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Services::augment_args(command)
    }
}

impl clap::FromArgMatches for Services {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Services, clap::Error> {
        let mut options = Vec::new();
        for option in ["service", "listen", "link-listen"] {
            let values = matches.get_many::<String>(option).into_iter().flatten();
            let indices = matches.indices_of(option).into_iter().flatten();
            options.extend(indices.zip(values).map(|(index, value)| (index, option, value.as_str())));
        }
        options.sort_unstable();
        group_options(options.into_iter().map(|(_, option, value)| (option, value)))
            .map_err(|text| clap::Error::raw(ErrorKind::ValueValidation, format!("{text}\n")))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Services::from_arg_matches(matches)?;
        Ok(())
    }
}

fn group_options<'a>(options: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Services, String> {
    let mut services: Vec<ServiceArgs> = Vec::new();
    let mut named = Vec::new();
    for (option, value) in options {
        let split = value.split_once('=');
        if option == "service" {
            let Some((name, server)) = split.filter(|(name, server)| !name.is_empty() && !server.is_empty())
            else {
                return Err(format!(
                    "--service {value}: give a name and the server's link port, NAME=HOST:PORT"
                ));
            };
            services.push(ServiceArgs { name: name.into(), server: server.into(), ..ServiceArgs::default() });
        } else if let Some((name, address)) = split {
            // Resolved later: the named service may follow.
            named.push((option, name, address));
        } else {
            let previous = services.last_mut();
            let service =
                previous.ok_or_else(|| format!("--{option} {value}: give its --service before it"))?;
            service.add(option, value);
        }
    }
    for (option, name, address) in named {
        let service = services.iter_mut().find(|service| service.name == name);
        let service =
            service.ok_or_else(|| format!("--{option} {name}={address}: there is no --service {name}=…"))?;
        service.add(option, address);
    }
    Ok(Services(services))
}

impl ServiceArgs {
    fn add(&mut self, option: &str, address: &str) {
        let list = if option == "listen" { &mut self.listen } else { &mut self.link_listen };
        list.push(address.to_owned());
    }
}

impl Services {
    pub(crate) fn resolve(&self) -> Result<Vec<Service>, AddressError> {
        let service = |arguments: &ServiceArgs| {
            let mut service = Service::new(arguments.name.clone(), server_address(&arguments.server)?);
            for text in &arguments.listen {
                service.listen.extend(listen_addresses(text)?);
            }
            for text in &arguments.link_listen {
                service.link_listen.extend(listen_addresses(text)?);
            }
            Ok(service)
        };
        self.0.iter().map(service).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn listeners_belong_to_the_previous_or_the_named_service() {
        let options = [
            ("listen", "b=0.0.0.0:3"),
            ("service", "a=10.0.0.1:1"),
            ("listen", "1001"),
            ("link-listen", ":1002"),
            ("service", "b=10.0.0.2:2"),
            ("listen", "a=[::1]:5"),
            ("link-listen", "127.0.0.1:6"),
        ];
        let services = group_options(options.into_iter()).unwrap().resolve().unwrap();
        let text = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&services[0].listen), ["127.0.0.1:1001", "[::1]:5"]);
        assert_eq!(text(&services[0].link_listen)[0], "0.0.0.0:1002");
        assert_eq!(text(&services[1].listen), ["0.0.0.0:3"]);
        assert_eq!(text(&services[1].link_listen), ["127.0.0.1:6"]);
        assert_eq!((services[1].name.as_str(), services[1].server.to_string()), ("b", "10.0.0.2:2".into()));
    }

    #[test]
    fn errors_name_the_missing_part() {
        let error = |options: &[(&str, &str)]| group_options(options.iter().copied()).unwrap_err();
        assert!(error(&[("listen", "1001")]).contains("--service before it"));
        assert!(error(&[("service", "10.0.0.1:1")]).contains("NAME=HOST:PORT"));
        assert!(error(&[("service", "=10.0.0.1:1")]).contains("NAME=HOST:PORT"));
        assert!(error(&[("service", "a=h:1"), ("listen", "b=1")]).contains("no --service b="));
    }
}
