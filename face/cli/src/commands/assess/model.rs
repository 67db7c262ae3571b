//! Estimates from a measurement whether batching would help a server.
//!
//! A request's CPU time has three parts. The application's time and the cost of copying bytes stay the same in batches.
//! The cost per packet (kernel network code, wake-ups, event loop) is shared by the messages of a batch.

use super::process::CpuUse;
use super::sockets::Counts;

/// A measurement of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) cpu: CpuUse,
    /// Traffic of the counted connections.
    pub(super) traffic: Counts,
    /// Connections of clients that stayed open during the measurement.
    pub(super) connections: usize,
    /// Counted connections that carried data.
    pub(super) active: usize,
    /// Connections that were opened or closed meanwhile; not counted.
    pub(super) changed: usize,
    /// Links of helpers, and the virtual connections on them; not counted.
    pub(super) helped: (usize, u64),
}

/// Messages in a batch, and the fraction of the cost per packet that is left. Measured with memcached and redis of
/// Debian 12, 64-byte values, one core, loopback, under the preload library. Interpolated over the logarithm.
const PACKET_COST_LEFT: [(f64, f64); 6] =
    [(1.0, 1.0), (5.0, 1.0), (10.0, 0.45), (20.0, 0.23), (50.0, 0.15), (200.0, 0.077)];

/// Seconds of user time spent on packets (event loop, entering the kernel) for each second of system time.
const USER_WITH_SYSTEM: f64 = 0.3;
/// CPU time to copy a byte; batching does not reduce it.
const NS_PER_BYTE: f64 = 0.15;
/// The batch delay of a helper.
const DELAY_SECONDS: f64 = 200e-6;
/// Messages a second that one helper core carries at most.
const HELPER_RATE_MAX: f64 = 150_000.0;
const BATCH_BYTES_MAX: f64 = 64.0 * 1024.0;
/// Below this rate in requests a second, or this fraction of a core, the measurement is too small to judge.
const RATE_MIN: f64 = 200.0;
const BUSY_MIN: f64 = 0.02;
/// A gain below this is not worth the helpers.
const GAIN_MIN: f64 = 1.5;

/// Whether helpers would relieve the server, and the main reason if not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Helps,
    Application,
    LargeMessages,
    FewConnections,
    /// The gain is small for no single reason.
    Little,
    TooQuiet,
    NoClients,
}

#[derive(Clone, Debug)]
pub(super) struct Estimate {
    pub(super) verdict: Verdict,
    pub(super) requests_per_second: f64,
    pub(super) packets_per_second: f64,
    pub(super) bytes_per_request: f64,
    pub(super) bytes_per_reply: f64,
    /// CPU time of a request now, in microseconds.
    pub(super) cpu_us: f64,
    /// The part of `cpu_us` that batching does not reduce, in microseconds.
    pub(super) staying_us: f64,
    /// Messages a batch at the present rate.
    pub(super) batch_now: f64,
    /// CPU time of a request now, divided by that with batches of `batch_now`.
    pub(super) gain_now: f64,
    /// The same figures when clients send as many requests as the helped server can answer.
    pub(super) batch_overloaded: f64,
    pub(super) gain_overloaded: f64,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Helps => "yes",
            Verdict::Application => "no_application",
            Verdict::LargeMessages => "no_large_messages",
            Verdict::FewConnections => "no_few_connections",
            Verdict::Little => "no",
            Verdict::TooQuiet => "unclear_too_quiet",
            Verdict::NoClients => "unclear_no_clients",
        }
    }
}

impl Sample {
    pub(super) fn estimate(&self) -> Estimate {
        let traffic = &self.traffic;
        // Without pipelining, a request is one segment in and one out. With pipelining, several requests share a
        // segment, but each small reply still has a segment of its own.
        let requests = traffic.data_in.max(if self.reply_bytes() < 1000.0 { traffic.data_out } else { 0 });
        let per_request = |number: f64| number / (requests as f64).max(1.0);
        let rate = requests as f64 / self.seconds;
        let cpu = per_request(self.cpu.total_ns as f64);
        let (bytes_in, bytes_out) =
            (per_request(traffic.bytes_in as f64), per_request(traffic.bytes_out as f64));

        // If the split between user and system time is not known, assume halves.
        let user = self.cpu.user.unwrap_or(0.5);
        let application = (cpu * (user - USER_WITH_SYSTEM * (1.0 - user))).max(0.0);
        let bytes = ((bytes_in + bytes_out) * NS_PER_BYTE).min(cpu - application);
        let staying = application + bytes;
        let gain = |batch: f64| {
            cpu / (staying + (cpu - staying) * packet_cost_left(batch)).max(cpu / 1000.0).max(1.0)
        };

        let batch_max = (self.active as f64)
            .min(BATCH_BYTES_MAX / bytes_in.max(1.0))
            .clamp(1.0, HELPER_RATE_MAX * DELAY_SECONDS);
        let batch_at = |rate: f64| (rate * DELAY_SECONDS).clamp(1.0, batch_max);
        let busy = (self.cpu.busiest_ns as f64 / 1e9 / self.seconds).clamp(1e-6, 1.0);
        let capacity = rate / busy;
        // Iterate to a fixed point: more capacity makes fuller batches, and fuller batches give more capacity.
        let mut batch_overloaded = batch_at(capacity);
        for _ in 0..20 {
            batch_overloaded = batch_at(capacity * gain(batch_overloaded));
        }
        let batch_now = batch_at(rate);
        let mut estimate = Estimate {
            verdict: Verdict::Helps,
            requests_per_second: rate,
            packets_per_second: (traffic.segments_in + traffic.segments_out) as f64 / self.seconds,
            bytes_per_request: bytes_in,
            bytes_per_reply: bytes_out,
            cpu_us: cpu / 1000.0,
            staying_us: staying / 1000.0,
            batch_now,
            gain_now: gain(batch_now),
            batch_overloaded,
            gain_overloaded: gain(batch_overloaded),
        };
        estimate.verdict = self.verdict(&estimate, application, bytes, cpu, batch_max);
        estimate
    }

    fn reply_bytes(&self) -> f64 {
        self.traffic.bytes_out as f64 / self.traffic.data_out.max(1) as f64
    }

    fn verdict(
        &self,
        estimate: &Estimate,
        application: f64,
        bytes: f64,
        cpu: f64,
        batch_max: f64,
    ) -> Verdict {
        let busy = self.cpu.total_ns as f64 / 1e9 / self.seconds;
        // A busy program that sends few packets computes. Time spent waiting for a processor counts as busy, too.
        let demand = busy + self.cpu.waited_ns as f64 / 1e9 / self.seconds;
        if estimate.requests_per_second < RATE_MIN
            && demand >= 0.3
            && self.cpu.user.is_some_and(|user| user > 0.5)
        {
            return Verdict::Application;
        }
        if self.connections == 0 {
            return Verdict::NoClients;
        }
        if estimate.requests_per_second < RATE_MIN || busy < BUSY_MIN {
            return Verdict::TooQuiet;
        }
        if estimate.gain_overloaded >= GAIN_MIN {
            return Verdict::Helps;
        }
        if application > cpu / 2.0 {
            return Verdict::Application;
        }
        if bytes > cpu / 3.0 {
            return Verdict::LargeMessages;
        }
        if batch_max < 8.0 { Verdict::FewConnections } else { Verdict::Little }
    }
}

/// The fraction of the cost per packet that is left with `batch` messages a batch; see [`PACKET_COST_LEFT`].
fn packet_cost_left(batch: f64) -> f64 {
    let last = PACKET_COST_LEFT[PACKET_COST_LEFT.len() - 1];
    PACKET_COST_LEFT.windows(2).find(|pair| batch < pair[1].0).map_or(last.1, |pair| {
        let ((from, above), (to, below)) = (pair[0], pair[1]);
        let part = (batch.max(1.0) / from).ln() / (to / from).ln();
        above + (below - above) * part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with one thread that uses a whole core, with small messages on 600 connections. `user`: user share of
    /// CPU.
    fn busy(rate: u64, user: f64) -> Sample {
        let traffic = Counts {
            bytes_in: rate * 40,
            bytes_out: rate * 100,
            segments_in: rate,
            segments_out: rate,
            data_in: rate,
            data_out: rate,
        };
        let cpu = CpuUse {
            total_ns: 1_000_000_000,
            busiest_ns: 1_000_000_000,
            waited_ns: 0,
            threads: 1,
            user: Some(user),
        };
        Sample { seconds: 1.0, cpu, traffic, connections: 600, active: 600, changed: 0, helped: (0, 0) }
    }

    #[test]
    fn cache_with_small_requests_gets_the_verdict_helps() {
        let estimate = busy(180_000, 0.2).estimate();
        assert_eq!(estimate.verdict, Verdict::Helps);
        assert!((3.0..13.0).contains(&estimate.gain_overloaded), "{estimate:?}");
        assert!((estimate.cpu_us - 5.6).abs() < 0.1, "{estimate:?}");
        let slower = busy(30_000, 0.25).estimate();
        assert!(slower.gain_overloaded > slower.gain_now && slower.verdict == Verdict::Helps, "{slower:?}");
    }

    #[test]
    fn computing_server_gets_the_verdict_application() {
        let estimate = busy(30_000, 0.9).estimate();
        assert_eq!(estimate.verdict, Verdict::Application);
        assert!(estimate.gain_overloaded < 1.5 && estimate.staying_us > estimate.cpu_us / 2.0);
        let without_clients =
            Sample { connections: 0, active: 0, traffic: Counts::default(), ..busy(1, 1.0) };
        assert_eq!(without_clients.estimate().verdict, Verdict::Application);
        let mut waiting = without_clients;
        (waiting.cpu.total_ns, waiting.cpu.waited_ns) = (100_000_000, 500_000_000);
        assert_eq!(waiting.estimate().verdict, Verdict::Application);
        waiting.cpu.waited_ns = 0;
        assert_eq!(waiting.estimate().verdict, Verdict::NoClients);
    }

    #[test]
    fn large_values_and_few_connections_get_their_verdicts() {
        let mut large = busy(8_000, 0.1);
        large.traffic.bytes_out = 8_000 * 500_000;
        large.traffic.data_out = 8_000 * 350;
        assert_eq!(large.estimate().verdict, Verdict::LargeMessages);
        let few = Sample { connections: 4, active: 4, ..busy(80_000, 0.2) };
        assert_eq!(few.estimate().verdict, Verdict::FewConnections);
    }

    #[test]
    fn quiet_server_gets_an_unclear_verdict() {
        let mut quiet = busy(20, 0.2);
        quiet.cpu.total_ns = 5_000_000;
        assert_eq!(quiet.estimate().verdict, Verdict::TooQuiet);
        quiet.connections = 0;
        assert_eq!(quiet.estimate().verdict, Verdict::NoClients);
    }

    #[test]
    fn packet_cost_falls_with_the_batch_size() {
        let sizes = [0.0, 1.0, 5.0, 7.0, 10.0, 20.0, 100.0, 200.0, 1e6];
        assert!(sizes.windows(2).all(|pair| packet_cost_left(pair[0]) >= packet_cost_left(pair[1])));
        assert!((packet_cost_left(20.0) - 0.23).abs() < 1e-9 && (packet_cost_left(1e6) - 0.077).abs() < 1e-9);
    }
}
