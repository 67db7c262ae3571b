//! Reads the section `[helper]`.

use std::time::Duration;

use super::Reader;
use crate::config::HelperConfig;
use crate::config::schema::HelperSection;

impl Reader<'_> {
    /// Settings of a helper without services.
    pub(super) fn helper(&mut self, helper: &HelperSection) -> HelperConfig {
        let default = HelperConfig::new(Vec::new());
        let socket = self.values.path(&helper.socket).unwrap_or_else(crate::default_socket);
        let mut config = HelperConfig {
            name: self.values.name(&helper.name).unwrap_or(default.name),
            engine: self.engine.engine(&mut self.values, helper),
            interface: self.engine.interface(&mut self.values, &helper.interface),
            xdp: self.engine.xdp(&mut self.values, &helper.xdp),
            threads: self.values.number(&helper.threads, 0..=1024).unwrap_or(default.threads),
            socket: Some(socket),
            admin_group: self.values.parsed(&helper.admin_group),
            metrics: self.listening.metrics(&mut self.values, &helper.metrics),
            max_connections: self
                .values
                .number(&helper.max_connections, 1..=10_000_000)
                .unwrap_or(default.max_connections),
            max_memory_bytes: self
                .values
                .size(&helper.max_memory, 1 << 20..=1 << 46)
                .map_or(default.max_memory_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            drain_deadline: self
                .values
                .time(&helper.drain_deadline, Duration::ZERO..=Duration::from_secs(86_400))
                .unwrap_or(default.drain_deadline),
            load_answers: self.values.flag(&helper.load_answers).unwrap_or(default.load_answers),
            network_bits: self.values.rate(&helper.network),
            shed_above: default.shed_above,
            shed_until: default.shed_until,
            etcd: default.etcd,
            services: default.services,
        };
        self.shedding(helper, &mut config);
        config
    }

    fn shedding(&mut self, helper: &HelperSection, config: &mut HelperConfig) {
        match self.values.number(&helper.shed_above, 0..=100) {
            Some(percent @ 1..50) => {
                if let Some(setting) = &helper.shed_above {
                    let message = format!("{percent} % is not an overload: give 50 to 100, or 0 for never");
                    self.values.problem(setting.span(), message);
                }
            }
            Some(percent) => config.shed_above = percent,
            None => {}
        }
        config.shed_until = config.shed_above.saturating_sub(10);
        if let Some(percent) = self.values.number(&helper.shed_until, 1..=99) {
            config.shed_until = percent;
            if let Some(setting) = &helper.shed_until
                && config.shed_above > 0
                && config.shed_until >= config.shed_above
            {
                let message = format!("give less than shed_above, which is {}", config.shed_above);
                self.values.problem(setting.span(), message);
            }
        }
    }
}
