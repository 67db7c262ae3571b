//! The outcome of a request, as text and as JSON.

use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_wire::switch::{Answer, FlowState, Kind, Site, Status};

#[derive(Debug)]
pub(super) enum Outcome {
    Answered {
        answer: Answer,
        epoch: u64,
    },
    /// The switch has relayed a request to another server.
    Relayed {
        kind: Kind,
        /// The answer to *get* after the request.
        entry: Answer,
        epoch: u64,
    },
    Listed {
        owners: Vec<Answer>,
        epoch: u64,
    },
    Failed(String),
}

impl Outcome {
    pub(super) fn failed(error: String) -> Outcome {
        Outcome::Failed(error)
    }

    /// Prints the outcome. Returns 0 if the switch has fulfilled the request, otherwise 1.
    pub(super) fn print(&self, as_json: bool) -> ExitCode {
        let lines = if as_json { vec![self.json().to_string()] } else { self.lines() };
        lines.iter().for_each(|line| print_line!("{line}"));
        match self.error() {
            None => ExitCode::SUCCESS,
            Some(error) => {
                eprintln!("spillway-lab agent: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Outcome::Failed(_) => Vec::new(),
            Outcome::Listed { owners, .. } => owners.iter().map(owner_line).collect(),
            Outcome::Answered { answer, epoch } => vec![answer_line(answer, *epoch)],
            Outcome::Relayed { kind, entry, .. } => {
                vec![format!("request={kind} status=relayed {}", entry_text(entry))]
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Outcome::Failed(error) => json!({ "ok": false, "error": error }),
            Outcome::Listed { owners, epoch } => {
                let owners: Vec<Value> = owners.iter().map(owner_json).collect();
                json!({ "ok": true, "request": "list", "status": "ok", "epoch": epoch, "owners": owners })
            }
            Outcome::Relayed { kind, entry, epoch } => json!({
                "ok": true, "request": kind.to_string(), "status": "relayed", "epoch": epoch,
                "entry": entry_json(entry),
            }),
            Outcome::Answered { answer, epoch } => {
                let mut object = json!({
                    "ok": answer.status == Status::Ok,
                    "request": answer.kind.to_string(),
                    "status": answer.status.to_string(),
                    "epoch": epoch,
                });
                match answer.kind {
                    Kind::Hello if answer.status == Status::Ok => object["term"] = json!(answer.generation),
                    Kind::Hello | Kind::Heartbeat | Kind::List => {}
                    _ => object["entry"] = entry_json(answer),
                }
                if let Some(error) = self.error() {
                    object["error"] = json!(error);
                }
                object
            }
        }
    }

    /// What failed, and the next step.
    fn error(&self) -> Option<String> {
        match self {
            Outcome::Failed(error) => Some(error.clone()),
            Outcome::Answered { answer, .. } if answer.status != Status::Ok => {
                let (kind, status) = (answer.kind, answer.status);
                Some(format!("the switch answers {kind} with {status}: {}", next_step(kind, status)))
            }
            Outcome::Answered { .. } | Outcome::Relayed { .. } | Outcome::Listed { .. } => None,
        }
    }
}

fn answer_line(answer: &Answer, epoch: u64) -> String {
    let (kind, status) = (answer.kind, answer.status.to_string().replace(' ', "-"));
    match kind {
        Kind::Hello if answer.status == Status::Ok => {
            format!("request={kind} status={status} epoch={epoch} term={}", answer.generation)
        }
        Kind::Hello | Kind::Heartbeat | Kind::List => format!("request={kind} status={status}"),
        _ => format!("request={kind} status={status} {}", entry_text(answer)),
    }
}

fn entry_text(answer: &Answer) -> String {
    let owner = answer.owner.map_or_else(
        || "owner=- mac=-".to_owned(),
        |site| format!("owner={} mac={}", site.endpoint(), site.mac()),
    );
    format!("state={} generation={} {owner}", answer.state, answer.generation)
}

fn entry_json(answer: &Answer) -> Value {
    let owner = answer.owner.as_ref().map(site_json);
    json!({ "state": answer.state.to_string(), "generation": answer.generation, "owner": owner })
}

fn site_json(site: &Site) -> Value {
    json!({ "address": site.endpoint().to_string(), "mac": site.mac().to_string() })
}

/// An owner of a service. It is alive or silent; a listed owner has no port.
fn owner_line(answer: &Answer) -> String {
    let address = answer.owner.map_or("-".to_owned(), |site| site.endpoint().ip().to_string());
    let mac = answer.owner.map_or("-".to_owned(), |site| site.mac().to_string());
    format!(
        "owner={address} mac={mac} alive={} load={} free_places={} weight={} heartbeat_ms={}",
        is_alive(answer),
        answer.load,
        answer.free_places,
        answer.weight,
        answer.lifetime_ms
    )
}

fn owner_json(answer: &Answer) -> Value {
    json!({
        "address": answer.owner.map(|site| site.endpoint().ip().to_string()),
        "mac": answer.owner.map(|site| site.mac().to_string()),
        "alive": is_alive(answer),
        "load": answer.load,
        "free_places": answer.free_places,
        "weight": answer.weight,
        "heartbeat_ms": answer.lifetime_ms,
    })
}

fn is_alive(answer: &Answer) -> bool {
    answer.state == FlowState::Owned
}

/// What to do when the switch refuses a request.
fn next_step(kind: Kind, status: Status) -> &'static str {
    match (status, kind) {
        (Status::Stale, _) => {
            "the entry has another generation or state, or this server has said hello since it was named: `get` shows \
             the entry"
        }
        (Status::NoEntry, Kind::Get) => "the flow belongs to its original server",
        (Status::NoEntry, _) => {
            "the flow belongs to its original server, and only that server's `prepare` creates an entry"
        }
        (Status::Full, _) => {
            "the switch has no room for another entry: clear flows there, or increase flows_max"
        }
        (Status::Forbidden, Kind::Heartbeat | Kind::List | Kind::Get) => {
            "the service is unknown, or `may_own` of this server's port does not name it: compare --service with the \
             switch's configuration"
        }
        (Status::Forbidden, Kind::Hello) => {
            "the message has arrived at another port than that of the server --id: run it on that server's host"
        }
        (Status::Forbidden, _) => {
            "this server is neither the flow's owner nor its target as the request needs, or no server has --target and \
             --mac for this service: `get` shows the owner, the switch's configuration the places"
        }
        (Status::UnknownVersion, _) => "the switch supports another version: use the program of its version",
        (Status::NoOwner, Kind::Heartbeat | Kind::Own | Kind::Release | Kind::Prepared) => {
            "this server is silent or has not said hello since the switch started: say `hello`"
        }
        (Status::NoOwner, _) => {
            "this server or the target is silent, or has not said hello since the switch started: say `hello` for both"
        }
        (Status::Replayed, _) => {
            "another agent of this server sends at the same time, or the clock of this host was set back: stop that \
             agent, correct the clock, and repeat the request"
        }
        (Status::None | Status::Ok, _) => "nothing is to do",
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::switch::{Endpoint, Flow, Subject};

    use super::*;

    fn answer(kind: Kind, status: Status, state: FlowState) -> Answer {
        let endpoint = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
        let flow = Flow::new(endpoint("10.0.0.7:4000"), endpoint("10.0.0.5:80")).unwrap();
        let mac = spillway_wire::packet::ethernet::Mac([2, 0, 0, 0, 0, 6]);
        Answer {
            kind,
            status,
            state,
            generation: 9,
            subject: Subject::Flow(flow),
            owner: Site::new(endpoint("10.0.0.6:81"), mac),
            load: 5,
            lifetime_ms: 3,
            free_places: 4,
            weight: 2,
        }
    }

    #[test]
    fn answers_are_shown_as_text_and_json() {
        let owned = Outcome::Answered { answer: answer(Kind::Own, Status::Ok, FlowState::Owned), epoch: 7 };
        let entry = "state=owned generation=9 owner=10.0.0.6:81 mac=02:00:00:00:00:06";
        assert_eq!(owned.lines(), [format!("request=own status=ok {entry}")]);
        assert_eq!(
            owned.json(),
            json!({
                "ok": true, "request": "own", "status": "ok", "epoch": 7,
                "entry": {
                    "state": "owned", "generation": 9,
                    "owner": { "address": "10.0.0.6:81", "mac": "02:00:00:00:00:06" },
                },
            })
        );
        assert_eq!(owned.error(), None);
        let listed =
            Outcome::Listed { owners: vec![answer(Kind::List, Status::Ok, FlowState::None)], epoch: 7 };
        let line =
            "owner=10.0.0.6 mac=02:00:00:00:00:06 alive=false load=5 free_places=4 weight=2 heartbeat_ms=3";
        assert_eq!(listed.lines(), [line]);
    }

    #[test]
    fn a_refusal_says_what_to_do_next() {
        let refused = |kind, status| {
            let answer = answer(kind, status, FlowState::None);
            let outcome = Outcome::Answered { answer, epoch: 7 };
            assert_eq!(outcome.json()["ok"], false);
            outcome.error().unwrap()
        };
        let refusals = Status::ALL.into_iter().filter(|status| !matches!(status, Status::None | Status::Ok));
        for (status, kind) in refusals.flat_map(|status| Kind::ALL.map(|kind| (status, kind))) {
            let error = refused(kind, status);
            assert!(error.starts_with(&format!("the switch answers {kind} with {status}: ")), "{error}");
        }
        assert!(refused(Kind::Own, Status::NoOwner).ends_with("say `hello`"));
        assert!(refused(Kind::Hold, Status::NoEntry).contains("`prepare` creates an entry"));
    }
}
