//! Runs of the program on single frames (`BPF_PROG_TEST_RUN`).

use std::time::Duration;

use libbpf_rs::{ProgramInput, ProgramMut};
use spillway_rules::{Action, Mode, PortId, Verdict};
use spillway_transport::Time;

use crate::BpfError;

/// Values of `enum xdp_action` in <linux/bpf.h>.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// Bytes of `struct test_run` in `c/switch/settings.h`, which precede the frame.
const RUN_BYTES: usize = 24;
/// Bytes of `struct xdp_md` in <linux/bpf.h>.
const CONTEXT_BYTES: usize = 24;
/// In test runs the key of a port in the map `interfaces` is this number plus the port's number: above all real indexes.
const TEST_INTERFACE: u32 = 1 << 30;

/// The program's decision on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The verdict, which was counted.
    pub verdict: Verdict,
    /// Where the frame goes.
    pub action: Action,
    /// The frame after the run.
    pub frame: Vec<u8>,
}

/// The key of a port in the map `interfaces` of a switch that was loaded for tests.
pub(super) fn test_interface(port: PortId) -> u32 {
    TEST_INTERFACE + u32::from(port.number())
}

/// Runs a program that was loaded for tests on a frame. Returns the decision and the duration of the run.
pub(super) fn test_run(
    program: &ProgramMut<'_>,
    mode: Mode,
    port: PortId,
    now: Time,
    frame: &[u8],
) -> Result<(TestRun, Duration), BpfError> {
    let mut data = Vec::with_capacity(RUN_BYTES + frame.len());
    data.extend(now.as_nanos().to_ne_bytes());
    data.extend(test_interface(port).to_ne_bytes());
    data.resize(RUN_BYTES, 0);
    data.extend_from_slice(frame);
    let Outcome { returned, duration, data: mut after } = run_on(program, RUN_BYTES, &data)
        .map_err(BpfError::of("cannot run the program `spillway_switch` on a frame"))?;
    let number = |at: usize| u32::from_ne_bytes(*after[at..].first_chunk().expect("inside struct test_run"));
    let (verdict, egress) = (number(12), number(16));
    let verdict = *Verdict::ALL.get(verdict as usize).expect("c/switch/verdicts.h has the same list");
    let action = action_of(mode, verdict, returned, port, egress);
    Ok((TestRun { verdict, action, frame: after.split_off(RUN_BYTES) }, duration))
}

/// The action of a verdict, which must be the one that the program has returned: the caller sends what comes from a port
/// without an interface.
fn action_of(mode: Mode, verdict: Verdict, returned: u32, ingress: PortId, egress: u32) -> Action {
    let is_host = mode == Mode::Host;
    let port = u8::try_from(egress).ok().and_then(PortId::new).expect("ports have numbers up to 63");
    let is_local = |port| is_host && port == PortId::LOCAL;
    let sent = if is_host || ingress == PortId::DAEMON { XDP_TX } else { XDP_REDIRECT };
    let (action, expected) = match verdict {
        Verdict::Passed => (Action::Pass, XDP_PASS),
        Verdict::Flooded => (Action::Flood, XDP_REDIRECT),
        Verdict::Answered => (Action::Answer, sent),
        drop if drop >= Verdict::DropUnknownPort => (Action::Drop, XDP_DROP),
        _ if is_local(port) => (Action::Pass, if is_local(ingress) { XDP_TX } else { XDP_PASS }),
        _ => (Action::To(port), sent),
    };
    assert_eq!(returned, expected, "{verdict:?} from port {ingress} to port {egress}");
    action
}

/// Runs the program on a frame with a control message that arrives at a port without an interface: see
/// [`Switch::control_at`](super::Switch::control_at).
pub(super) fn internal_run(
    program: &ProgramMut<'_>,
    port: PortId,
    frame: &[u8],
) -> Result<Option<Vec<u8>>, BpfError> {
    // The number of the local server's port is before the frame.
    let mark = u32::from(port.number()).to_ne_bytes();
    let mark = if port == PortId::DAEMON { &[][..] } else { &mark[..] };
    let data = [mark, frame].concat();
    let Outcome { returned, data: mut after, .. } = run_on(program, mark.len(), &data)
        .map_err(BpfError::of("cannot hand a control message to the switch"))?;
    Ok((returned == XDP_TX).then(|| after.split_off(mark.len())))
}

/// The outcome of one run of a program.
struct Outcome {
    /// The value that the program returned.
    returned: u32,
    duration: Duration,
    /// Metadata and frame as the program left them.
    data: Vec<u8>,
}

/// Runs a program once. The first `metadata_bytes` bytes of `data` are metadata before the frame.
fn run_on(program: &ProgramMut<'_>, metadata_bytes: usize, data: &[u8]) -> libbpf_rs::Result<Outcome> {
    let mut context = [0; CONTEXT_BYTES];
    context[..4].copy_from_slice(&(metadata_bytes as u32).to_ne_bytes());
    context[4..8].copy_from_slice(&(data.len() as u32).to_ne_bytes());
    let mut after = vec![0; data.len()];
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(data),
        data_out: Some(&mut after),
        repeat: 1,
        ..ProgramInput::default()
    };
    let output = program.test_run(input)?;
    let (returned, duration) = (output.return_value, output.duration);
    Ok(Outcome { returned, duration, data: after })
}
