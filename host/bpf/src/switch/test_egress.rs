//! Runs of the program at a host's egress (`c/switch_egress.bpf.c`) on single frames.

use libbpf_rs::{Object, ProgramInput};
use spillway_rules::{Action, Verdict};
use spillway_transport::Time;

use super::egress::{self, NAME};
use super::run::TestRun;
use crate::{BpfError, object};

/// Value of `TC_ACT_SHOT` in <linux/pkt_cls.h>.
const TC_ACT_SHOT: u32 = 2;
/// Bytes of `struct __sk_buff` in <linux/bpf.h>.
const CONTEXT_BYTES: usize = 192;
/// Offset of the field `cb` of `struct __sk_buff`: it has the time of the run in two words, and after the run the verdict in
/// the third.
const CONTROL_BUFFER: usize = 48;

/// The program, with the maps of a program that was loaded for tests.
#[derive(Debug)]
pub(super) struct TestEgress(Object);

impl TestEgress {
    pub(super) fn load(ingress: &Object) -> Result<TestEgress, BpfError> {
        let mut object = egress::open(ingress)?;
        object::set_constant(&mut object, ".rodata.test");
        Ok(TestEgress(object::load(NAME, object)?))
    }

    /// Runs the program on a frame that leaves.
    pub(super) fn run(&self, now: Time, frame: &[u8]) -> Result<TestRun, BpfError> {
        let mut context = [0; CONTEXT_BYTES];
        context[CONTROL_BUFFER..][..8].copy_from_slice(&now.as_nanos().to_ne_bytes());
        let (mut context_after, mut after) = (context, vec![0; frame.len()]);
        let input = ProgramInput {
            context_in: Some(&mut context),
            context_out: Some(&mut context_after),
            data_in: Some(frame),
            data_out: Some(&mut after),
            repeat: 1,
            ..ProgramInput::default()
        };
        let output = object::program(NAME, &self.0)
            .test_run(input)
            .map_err(BpfError::of(format!("cannot run the program `{NAME}` on a frame")))?;
        let returned = output.return_value;
        let verdict = u32::from_ne_bytes(
            *context_after[CONTROL_BUFFER + 8..].first_chunk().expect("inside struct __sk_buff"),
        );
        let verdict = *Verdict::ALL.get(verdict as usize).expect("c/switch/verdicts.h has the same list");
        let is_drop = verdict >= Verdict::DropUnknownPort;
        assert_eq!(returned == TC_ACT_SHOT, is_drop, "{verdict:?}: the program returned {returned}");
        Ok(TestRun { verdict, action: if is_drop { Action::Drop } else { Action::Pass }, frame: after })
    }
}
