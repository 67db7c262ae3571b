//! The text of cases.
//!
//! ```text
//! case "A held flow goes to its target" after "A flow is asked for"
//! with timeout 2s
//! ready A load 10 free 4 weight 1 service web
//! at 10ms rack-b: prepared B flow alice:40000 web generation g3 owner B@web-b
//!     -> relayed to rack-a for A status ok state held generation g3 owner B@web-b
//! at 11ms clients: tcp alice:40000 > web ack data 10 -> to-target to rack-b, eth to B, to web-b
//! flow alice:40000 web: held g3 owner A@web target B@web-b
//! beat A B
//! no flow bob:40000 web
//! flows 1
//! owner A: term g1 free 3
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `case NAME` | starts a case with the common setup; `after NAME` continues an earlier case of the file or of `common.txt` |
//! | `with DEFINITION` | changes the setup, before the first step |
//! | `at TIME PORT: PACKET -> VERDICT ...` | a frame arrives; time 0 is an arbitrary time. `PORT` is a name or a number, or `egress`: the frame leaves a host through its interface |
//! | `at TIME reload without server B without place web-c with DEFINITION` | a new configuration: one from the file, less servers and places. Names stay |
//! | `at TIME ready A ...`, `at TIME beat A B` | shortcuts: hello and heartbeat, or heartbeats with the values of the last ones; all are answered `ok` |
//! | `flow CLIENT SERVICE: STATE GENERATION owner SITE ...` | the entry, as it is in the table: nothing is settled by looking |
//! | `no flow CLIENT SERVICE`, `flows N`, `owner A: term G ...` | other checks of the state |
//!
//! After the verdict: `to PORT ...` for the egress; for `answered` and `relayed` the message's fields; then changes of
//! the packet. `answered STATUS FIELDS` starts from the packet with its ends swapped, flags, tag and hop limit set,
//! and state, generation and owner zero (hello and heartbeats keep the owner; list keeps the generation).
//! `too-long-answered to PORT mtu N` is the ICMP error about the packet, to its sender.
//! `relayed to PORT for SERVER [port N] FIELDS` starts from the packet addressed to the server's control port.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{Action, Arrival, Case, FlowCheck, OwnerCheck, START_NS, Step};
use crate::error::{Position, TextError};
use crate::mac::Mac;
use crate::message::{Message, STATES, STATUSES, parse as fields};
use crate::packet::parse::{PacketContext, control_port};
use crate::packet::{Content, Packet};
use crate::setup::{DAEMON_PORT, Server, Setup};
use crate::switch::{VERDICTS, Verdict};
use crate::text::{Line, lines};

const OK: u8 = 1;
const REPLAYED: u8 = 8;
const HEARTBEAT: u8 = 7;
const HELLO: u8 = 8;
const LIST: u8 = 9;

/// A case while it is read.
#[derive(Clone)]
struct Writer {
    case: Case,
    /// Last sequence number of each server.
    sequences: BTreeMap<u8, u64>,
    /// Last heartbeat of each server.
    heartbeats: BTreeMap<u8, Message>,
    now_ns: u64,
}

/// Cases that other cases may continue.
#[derive(Default)]
pub struct Bases(Vec<Writer>);

impl Case {
    /// Parses a file of cases, which may continue each other and those of `common`. Returns them also as bases.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn parse_all(setup: &Setup, common: &Bases, text: &str) -> Result<(Vec<Case>, Bases), TextError> {
        let mut writers: Vec<Writer> = Vec::new();
        for mut line in lines(text)? {
            if line.accept("case") {
                let writer = begin(setup, &[&writers, &common.0], &mut line)?;
                writers.push(writer);
            } else {
                let Some(writer) = writers.last_mut() else {
                    return Err(line.error("expected `case NAME` first"));
                };
                writer.read_line(&mut line)?;
            }
            line.end()?;
        }
        Ok((writers.iter().map(|writer| writer.case.clone()).collect(), Bases(writers)))
    }
}

fn begin(setup: &Setup, earlier: &[&Vec<Writer>; 2], line: &mut Line<'_>) -> Result<Writer, TextError> {
    let name = line.word("the case's name")?;
    let find = |name: &str| {
        earlier.iter().flat_map(|writers| writers.iter()).find(|writer| writer.case.name == name)
    };
    if find(name.text).is_some() {
        return Err(name.error(format!("there is another case `{}`", name.text)));
    }
    let mut writer = if line.accept("after") {
        let base = line.word("the name of an earlier case")?;
        find(base.text)
            .ok_or_else(|| base.error(format!("no case `{}` before this one, or in common.txt", base.text)))?
            .clone()
    } else {
        Writer {
            case: Case { name: String::new(), setup: setup.clone(), steps: Vec::new() },
            sequences: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            now_ns: START_NS,
        }
    };
    writer.case.name = name.text.into();
    Ok(writer)
}

impl Writer {
    fn read_line(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let position = line.position();
        let keyword = line.word("a step")?;
        let action = match keyword.text {
            "with" if self.case.steps.is_empty() => return self.case.setup.define(line),
            "with" => return Err(keyword.error("the setup changes before the first step only")),
            "at" => return self.read_at(position, line),
            "flow" => Action::Flow(self.read_flow(line)?),
            "no" => {
                line.expect("flow")?;
                let (client, service) = self.read_key(line)?;
                Action::NoFlow(client, service)
            }
            "flows" => Action::Flows(line.number("a number of flows")?),
            "owner" => Action::Owner(self.read_owner(line)?),
            other => {
                return Err(keyword.error(format!(
                    "unknown step `{other}`: expected with, at, flow, no flow, flows or owner"
                )));
            }
        };
        self.push(position, action);
        Ok(())
    }

    fn push(&mut self, position: Position, action: Action) {
        self.case.steps.push(Step { position, now_ns: self.now_ns, action });
    }

    fn read_at(&mut self, position: Position, line: &mut Line<'_>) -> Result<(), TextError> {
        let at = line.position();
        let now_ns = START_NS + line.time("a time")?;
        if now_ns < self.now_ns {
            return Err(TextError::new(at, "an earlier step has a later time"));
        }
        self.now_ns = now_ns;
        if line.accept("ready") {
            return self.read_ready(position, line);
        }
        if line.accept("reload") {
            let setup = self.read_reload(line)?;
            self.push(position, Action::Reload(Box::new(setup)));
            return Ok(());
        }
        if line.accept("beat") {
            while !line.is_at_end() {
                let server = self.read_server(line)?;
                self.beat(position, &server)
                    .ok_or_else(|| line.error("this server has sent no heartbeat before"))?;
            }
            return Ok(());
        }
        let ingress = match line.accept_parsed() {
            Some(number) => number,
            None => self.case.setup.read_port(line)?,
        };
        line.expect(":")?;
        let arrival = self.read_arrival(ingress, line)?;
        self.push(position, Action::Frame(arrival));
        Ok(())
    }

    fn read_arrival(&mut self, ingress: u8, line: &mut Line<'_>) -> Result<Arrival, TextError> {
        let setup = &self.case.setup;
        let sequences = &mut self.sequences;
        let mut next_sequence = |server| {
            let last = sequences.entry(server).or_insert(0);
            *last = last.saturating_add(1);
            *last
        };
        let mut context = PacketContext { setup, ingress, next_sequence: &mut next_sequence };
        let mut packet = Packet::read(&mut context, line)?;
        if let Some(message) = packet.message_mut() {
            let sender = u8::try_from(message.sender).unwrap_or_default();
            let last = self.sequences.entry(sender).or_insert(0);
            *last = message.sequence.max(*last);
            if message.kind == HEARTBEAT {
                self.heartbeats.insert(sender, message.clone());
            }
        }
        line.expect("->")?;
        self.read_outcome(ingress, &packet, line)
    }

    /// Reads what follows `->`.
    fn read_outcome(&self, ingress: u8, packet: &Packet, line: &mut Line<'_>) -> Result<Arrival, TextError> {
        let setup = &self.case.setup;
        let word = line.word("a verdict")?;
        let verdict = Verdict::named(word.text).ok_or_else(|| {
            word.error(format!("unknown verdict `{}`: expected {}", word.text, VERDICTS.join(", ")))
        })?;
        let mut ports = Vec::new();
        if line.accept("to") {
            while let Some(port) = line.peek().and_then(|name| setup.port_number(name)) {
                line.word("a port")?;
                ports.push(port);
            }
            ports.sort_unstable();
        }
        let mut answer = None;
        let mut expected = match word.text {
            "answered" => {
                ports.push(ingress);
                let (packet, kind, status) = self.read_answer(packet, line)?;
                answer = Some((kind, status));
                packet
            }
            "relayed" => self.read_relayed(packet, line)?,
            "too-long-answered" => {
                line.expect("mtu")?;
                let mtu = line.number("an MTU")?;
                packet.too_long(mtu).ok_or_else(|| word.error("the packet is not IP, or too short"))?
            }
            "flooded" if ports.is_empty() => {
                ports = setup.flooded(ingress);
                packet.clone()
            }
            _ => packet.clone(),
        };
        expected.read_changes(setup, line)?;
        let takes_port = !verdict.is_drop() && word.text != "passed";
        if takes_port == ports.is_empty() {
            return Err(word.error(if takes_port {
                "the verdict needs `to PORT`"
            } else {
                "the verdict has no port"
            }));
        }
        let frame_out = if verdict.is_drop() { Vec::new() } else { expected.bytes() };
        Ok(Arrival { ingress, frame: packet.bytes(), verdict, ports, frame_out, answer })
    }

    fn read_answer(&self, packet: &Packet, line: &mut Line<'_>) -> Result<(Packet, u8, u8), TextError> {
        let mut answer = packet.answer();
        let at = line.position();
        let message =
            answer.message_mut().ok_or_else(|| TextError::new(at, "only control messages are answered"))?;
        message.status = fields::named(line, &STATUSES, "a status")?;
        message.state = 0;
        let header_is_wrong = message.version != 1 || message.kind == 0 || message.kind > LIST;
        if header_is_wrong || !matches!(message.kind, HELLO | HEARTBEAT) {
            (message.owner, message.mac) = (None, Mac::default());
        }
        if header_is_wrong || message.kind != LIST {
            message.generation = 0;
        }
        if message.kind == HELLO && matches!(message.status, OK | REPLAYED) {
            message.epoch = self.case.setup.epoch;
        }
        // The sender's own key, whatever the message was tagged with.
        if let Some(server) = u8::try_from(message.sender).ok().and_then(|id| self.case.setup.server(id)) {
            message.key = server.key;
        }
        message.read_fields(&self.case.setup, line)?;
        let (kind, status) = (message.kind, message.status);
        Ok((answer, kind, status))
    }

    fn read_relayed(&self, packet: &Packet, line: &mut Line<'_>) -> Result<Packet, TextError> {
        line.expect("for")?;
        let at = line.position();
        let server = self.read_server(line)?;
        let port = if line.accept("port") { line.number("a port")? } else { control_port(server.id) };
        let mut relayed = packet
            .relayed(&self.case.setup, server.id, port)
            .ok_or_else(|| TextError::new(at, "only control messages are relayed, to servers at ports"))?;
        if let Some(message) = relayed.message_mut() {
            message.read_fields(&self.case.setup, line)?;
        }
        Ok(relayed)
    }

    /// Reads what differs from the case's configuration.
    fn read_reload(&self, line: &mut Line<'_>) -> Result<Setup, TextError> {
        let mut setup = self.case.setup.clone();
        while line.accept("without") {
            if line.accept("server") {
                let server = self.read_server(line)?;
                setup.remove_server(server.id);
            } else {
                line.expect("place")?;
                let place = line.word("a place")?;
                setup.places.remove(place.text).ok_or_else(|| place.error("not a place"))?;
            }
        }
        if line.accept("with") {
            setup.define(line)?;
        }
        Ok(setup)
    }

    fn read_ready(&mut self, position: Position, line: &mut Line<'_>) -> Result<(), TextError> {
        let at = line.position();
        let server = self.read_server(line)?;
        let mut heartbeat =
            Message::new(HEARTBEAT, u32::from(server.id), server.key, 0, self.case.setup.epoch);
        heartbeat.weight = 1;
        heartbeat.read_fields(&self.case.setup, line)?;
        self.heartbeats.insert(server.id, heartbeat);
        // The term is the number of the hello among all generations, which the case states.
        line.expect("->")?;
        let term = fields::read_generation(&self.case.setup, line)?;
        let hello = Message::new(HELLO, u32::from(server.id), server.key, 0, self.case.setup.epoch);
        self.send(position, &server, hello, term).ok_or_else(|| TextError::new(at, "no control endpoint"))?;
        self.beat(position, &server).ok_or_else(|| TextError::new(at, "no control endpoint"))
    }

    /// The last heartbeat of a server again, or what a step stated for it.
    fn beat(&mut self, position: Position, server: &Server) -> Option<()> {
        let heartbeat = self.heartbeats.get(&server.id)?.clone();
        self.send(position, server, heartbeat, 0)
    }

    /// A message that is answered `ok` with this generation and the owner field as it was sent.
    fn send(&mut self, position: Position, server: &Server, mut message: Message, term: u64) -> Option<()> {
        debug_assert!(matches!(message.kind, HELLO | HEARTBEAT), "other answers change the owner field");
        let kind = message.kind;
        let last = self.sequences.entry(server.id).or_insert(0);
        *last = last.saturating_add(1);
        message.sequence = *last;
        let setup = &self.case.setup;
        let control = SocketAddr::new(setup.control_address(server.address)?, setup.control_port);
        let source = SocketAddr::new(server.address, control_port(server.id));
        let mut packet = Packet::udp(source, control, Content::Message(message));
        packet.source = server.mac;
        packet.destination = setup.port(server.port)?.mac;
        let mut answer = packet.answer();
        let answered = answer.message_mut()?;
        (answered.status, answered.generation) = (OK, term);
        let arrival = Arrival {
            ingress: server.port,
            frame: packet.bytes(),
            verdict: Verdict::named("answered")?,
            ports: vec![server.port],
            frame_out: answer.bytes(),
            answer: Some((kind, OK)),
        };
        self.push(position, Action::Frame(arrival));
        Some(())
    }

    fn read_server(&self, line: &mut Line<'_>) -> Result<Server, TextError> {
        let at = line.position();
        let id = self.case.setup.read_server(line)?;
        let server = self.case.setup.server(id).filter(|server| server.port != DAEMON_PORT);
        server.cloned().ok_or_else(|| TextError::new(at, "expected a server, not the daemon"))
    }

    fn read_key(&self, line: &mut Line<'_>) -> Result<(SocketAddr, SocketAddr), TextError> {
        let client = line.word("a client")?;
        let service = self.case.setup.read_endpoint(line, false)?;
        let client = self
            .case
            .setup
            .endpoint(client.text, service.is_ipv6())
            .ok_or_else(|| client.error(format!("`{}` is not an address and port", client.text)))?;
        Ok((client, service))
    }

    fn read_flow(&self, line: &mut Line<'_>) -> Result<FlowCheck, TextError> {
        let setup = &self.case.setup;
        let (client, service) = self.read_key(line)?;
        line.expect(":")?;
        let state = fields::named(line, &STATES, "a state")?;
        let generation = fields::read_generation(setup, line)?;
        line.expect("owner")?;
        let owner = fields::read_site(setup, line)?;
        let mut check = FlowCheck {
            client,
            service,
            state,
            generation,
            owner,
            target: None,
            original: None,
            deadline_ns: None,
            last_packet_ns: None,
            repeat_generation: None,
            claim: None,
            client_fin: false,
            owner_fin: false,
            owner_claim: None,
            reset_ns: None,
        };
        while !line.is_at_end() {
            let field = line.word("a field")?;
            match field.text {
                "target" => check.target = Some(fields::read_site(setup, line)?),
                "original" => check.original = Some(fields::read_site(setup, line)?),
                "until" if line.accept("never") => check.deadline_ns = Some(0),
                "until" => check.deadline_ns = Some(START_NS + line.time("a time")?),
                "last" => check.last_packet_ns = Some(START_NS + line.time("a time")?),
                "repeat-generation" if line.accept("none") => check.repeat_generation = Some(u64::MAX),
                "repeat-generation" => check.repeat_generation = Some(fields::read_generation(setup, line)?),
                "claim" => check.claim = Some(line.number("a sequence number")?),
                "client-fin" => check.client_fin = true,
                "owner-fin" => check.owner_fin = true,
                "owner-claim" => {
                    check.owner_fin = true;
                    check.owner_claim = Some(line.number("a sequence number")?);
                }
                "reset" => check.reset_ns = Some(START_NS + line.time("a time")?),
                other => return Err(field.error(format!("unknown field `{other}` of a flow"))),
            }
        }
        Ok(check)
    }

    fn read_owner(&self, line: &mut Line<'_>) -> Result<OwnerCheck, TextError> {
        let server = self.read_server(line)?.id;
        line.expect(":")?;
        line.expect("term")?;
        let term = fields::read_generation(&self.case.setup, line)?;
        let mut check = OwnerCheck {
            server,
            term,
            load: None,
            free: None,
            weight: None,
            service: None,
            last_heartbeat_ns: None,
        };
        while !line.is_at_end() {
            let field = line.word("a field")?;
            match field.text {
                "load" => check.load = Some(line.number("a load")?),
                "free" => check.free = Some(line.number("a number of places")?),
                "weight" => check.weight = Some(line.number("a weight")?),
                "number" => check.service = Some(line.number("a service number")?),
                "beat" => check.last_heartbeat_ns = Some(START_NS + line.time("a time")?),
                other => return Err(field.error(format!("unknown field `{other}` of an owner"))),
            }
        }
        Ok(check)
    }
}
