//! `spillway load`: the load generator.

use std::process::ExitCode;

use serde_json::Value;
pub use spillway_load::command::Args;

pub fn run(args: Args) -> ExitCode {
    spillway_load::command::run(args, "spillway", envelope)
}

fn envelope(result: Value, is_failure: bool) -> Value {
    super::output::Report { result, is_failure, ..Default::default() }.envelope("load")
}
