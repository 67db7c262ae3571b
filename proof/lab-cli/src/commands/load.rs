//! `spillway-lab load`: the load generator, with the user-level stack as a choice.

use std::process::ExitCode;

use serde_json::{Value, json};
pub use spillway_load::command::Args;

pub fn run(args: Args) -> ExitCode {
    spillway_load::command::run(args, "spillway-lab", envelope)
}

/// The envelope of the `spillway` command, without copies of fields for older programs.
fn envelope(result: Value, is_failure: bool) -> Value {
    json!({
        "schema": 1,
        "command": "load",
        "ok": !is_failure,
        "warnings": [],
        "errors": [],
        "result": result,
    })
}
