//! All cases through the XDP program (`BPF_PROG_TEST_RUN`), whose state is compared with that of the rules after each
//! step. Without the privileges to load the program the test says so and passes.

use spillway_switch_cases::case::{Action, read_all};
use spillway_switch_cases::program::{FRAME_BYTES_MIN, Program};
use spillway_switch_cases::rules::Rules;
use spillway_switch_cases::run::{Coverage, run};
use spillway_switch_cases::switch::Switch;

#[test]
fn cases_get_their_outcomes() {
    let files = read_all().unwrap_or_else(|error| panic!("{error}"));
    let mut failures = Vec::new();
    for file in files {
        for mut case in file.cases {
            // The kernel refuses to run programs on shorter frames.
            case.steps.retain(|step| match &step.action {
                Action::Frame(arrival) => arrival.frame.len() >= FRAME_BYTES_MIN,
                _ => true,
            });
            let Some(mut program) = Program::load(&case.setup) else { return };
            let mut rules = Rules::new(&case.setup);
            let result = run(&case, &mut program, &mut Coverage::default(), |step, program| {
                match &step.action {
                    Action::Frame(arrival) => {
                        rules.handle(arrival.ingress, step.now_ns, &arrival.frame);
                    }
                    Action::Reload(setup) => rules.reload(setup),
                    _ => {}
                }
                let (found, expected) = (program.state(step.now_ns), rules.state(step.now_ns));
                if found == expected {
                    return Ok(());
                }
                Err(format!("the state differs\nthe rules have {expected:#?}\nthe program has {found:#?}"))
            });
            if let Err(failure) = result {
                let path = file.path.display();
                failures.push(format!(
                    "{path}:{}: case \"{}\": {}",
                    failure.position.line, case.name, failure.message
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n\n"));
}
