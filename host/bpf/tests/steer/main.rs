//! Runs the steering program in the kernel (`BPF_PROG_TEST_RUN`) on a table of frames with verdicts, and on
//! random frames, for which it must agree with the model.

mod frames;
mod model;

use std::net::{IpAddr, SocketAddr};

use frames::{Frame, SERVICE_VLAN, VLAN};
use model::Model;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use spillway_bpf::{AddressRule, BpfError, Endpoint, Flow, Protocol, Steer, Verdict};
use spillway_parts::Random;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const PEER: &str = "192.0.2.9:40000";
const PEER_V6: &str = "[2001:db8::9]:40000";

/// The program with the model's entries, or `None` without the privileges to load it.
fn steer(model: &Model) -> Option<Steer> {
    let steer = match Steer::load() {
        Err(error) if error.is_unprivileged() => {
            eprintln!("skipped: {error}");
            return None;
        }
        result => result.unwrap(),
    };
    for (address, rule) in &model.addresses {
        steer.set_address(*address, rule).unwrap();
    }
    for endpoint in &model.endpoints {
        steer.add_endpoint(*endpoint).unwrap();
    }
    for flow in &model.flows {
        steer.add_flow(*flow).unwrap();
    }
    Some(steer)
}

/// A stack at 10.0.0.2 and 2001:db8::2 with a listener at port 7000, a range of ports, a separate address
/// (10.0.0.5), and a connection that moved here.
fn example() -> Model {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let tcp = |text| Endpoint { protocol: Protocol::Tcp, address: address(text) };
    Model {
        addresses: vec![
            (ip("10.0.0.2"), AddressRule { ports: Some(50_000..=50_999), is_separate: false }),
            (ip("2001:db8::2"), AddressRule { ports: Some(50_000..=50_999), is_separate: false }),
            (ip("10.0.0.3"), AddressRule::default()),
            (ip("10.0.0.5"), AddressRule { ports: None, is_separate: true }),
            (ip("10.0.0.6"), AddressRule { ports: Some(50_000..=50_999), is_separate: true }),
        ],
        endpoints: vec![
            tcp("10.0.0.2:7000"),
            tcp("[2001:db8::2]:7000"),
            Endpoint { protocol: Protocol::Udp, address: address("10.0.0.2:7001") },
        ],
        flows: vec![Flow {
            protocol: Protocol::Tcp,
            local: address("198.51.100.7:11211"),
            peer: address("203.0.113.4:5555"),
        }],
    }
}

/// Runs the program on a frame and checks its action and that it does not change the frame. Returns the
/// verdict, which the counters show.
fn verdict_of(steer: &Steer, frame: &[u8]) -> Result<Verdict, BpfError> {
    let before = steer.counters()?;
    let run = steer.test_run(frame)?;
    let after = steer.counters()?;
    assert_eq!(run.frame, frame, "the program does not change frames");
    let counted: Vec<_> =
        Verdict::ALL.into_iter().filter(|verdict| after.of(*verdict) != before.of(*verdict)).collect();
    let [verdict] = counted[..] else { panic!("one verdict is counted for a frame, not {counted:?}") };
    let action = match verdict {
        Verdict::PassOther | Verdict::PassShort | Verdict::PassLaterFragment | Verdict::PassForeign => {
            XDP_PASS
        }
        _ => XDP_DROP,
    };
    assert_eq!(run.action, action, "{verdict:?}");
    Ok(verdict)
}

/// The program's verdict in a test run, in which no socket is bound. `verdict`: the model's.
fn without_sockets(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::ToEndpoint | Verdict::ToRange | Verdict::ToFlow | Verdict::ToAddress => {
            Verdict::DropNoSocket
        }
        other => other,
    }
}

#[test]
fn frames_of_the_table_get_their_verdicts() {
    use Verdict::*;
    let to = |destination| Frame::tcp(PEER, destination);
    let to_v6 = |destination| Frame::tcp(PEER_V6, destination);
    let tagged = |tags: &[(u16, u16)], destination| Frame { vlan_tags: tags.into(), ..to(destination) };
    let with_extensions =
        |extensions: &[(u8, u16)]| Frame { extensions: extensions.into(), ..to_v6("[2001:db8::2]:7000") };
    let table = [
        ("listener", to("10.0.0.2:7000"), ToEndpoint),
        ("listener, VLAN tag", tagged(&[(VLAN, 5)], "10.0.0.2:7000"), ToEndpoint),
        ("listener, 802.1ad priority tag", tagged(&[(SERVICE_VLAN, 0)], "10.0.0.2:7000"), ToEndpoint),
        ("listener, two priority tags", tagged(&[(VLAN, 0), (VLAN, 0)], "10.0.0.2:7000"), ToEndpoint),
        ("range, 802.1ad", tagged(&[(SERVICE_VLAN, 7), (VLAN, 5)], "10.0.0.2:50000"), ToRange),
        (
            "listener, three tags",
            tagged(&[(VLAN, 0), (SERVICE_VLAN, 0), (VLAN, 0)], "10.0.0.2:7000"),
            ToEndpoint,
        ),
        (
            "first fragment, three tags",
            Frame { fragment_field: 0x2000, ..tagged(&[(VLAN, 0); 3], "10.0.0.2:7000") },
            DropFragment,
        ),
        ("foreign, three tags", tagged(&[(VLAN, 0); 3], "10.0.0.2:80"), PassForeign),
        ("listener, four tags", tagged(&[(VLAN, 0); 4], "10.0.0.2:7000"), PassOther),
        (
            "IPv6 listener, three tags",
            Frame { vlan_tags: vec![(SERVICE_VLAN, 0); 3], ..to_v6("[2001:db8::2]:7000") },
            ToEndpoint,
        ),
        (
            "IPv6 eight options, three tags",
            Frame {
                vlan_tags: vec![(VLAN, 0); 3],
                extensions: vec![(60, 0); 8],
                ..to_v6("[2001:db8::2]:7000")
            },
            DropLongChain,
        ),
        ("listener, IP options", Frame { option_words: 10, ..to("10.0.0.2:7000") }, ToEndpoint),
        ("listener, do not fragment", Frame { fragment_field: 0x4000, ..to("10.0.0.2:7000") }, ToEndpoint),
        ("listener, first fragment", Frame { fragment_field: 0x2000, ..to("10.0.0.2:7000") }, DropFragment),
        (
            "listener, later fragment",
            Frame { fragment_field: 0x2001, ..to("10.0.0.2:7000") },
            PassLaterFragment,
        ),
        (
            "listener, last fragment",
            Frame { fragment_field: 0x0020, ..to("10.0.0.2:7000") },
            PassLaterFragment,
        ),
        ("another port", to("10.0.0.2:7001"), PassForeign),
        (
            "another port, first fragment",
            Frame { fragment_field: 0x2000, ..to("10.0.0.2:7001") },
            PassForeign,
        ),
        ("another address", to("10.0.0.4:7000"), PassForeign),
        ("an address without ports", to("10.0.0.3:50000"), PassForeign),
        ("UDP to the TCP listener", Frame::udp(PEER, "10.0.0.2:7000"), PassForeign),
        ("UDP endpoint", Frame::udp(PEER, "10.0.0.2:7001"), ToEndpoint),
        ("ICMP", Frame { protocol: 1, ..to("10.0.0.2:7000") }, PassOther),
        ("below the range", to("10.0.0.2:49999"), PassForeign),
        ("first of the range", to("10.0.0.2:50000"), ToRange),
        ("last of the range", to("10.0.0.2:50999"), ToRange),
        ("above the range", to("10.0.0.2:51000"), PassForeign),
        ("UDP in the range", Frame::udp(PEER, "10.0.0.2:50000"), PassForeign),
        ("moved connection", Frame::tcp("203.0.113.4:5555", "198.51.100.7:11211"), ToFlow),
        (
            "moved connection's port, another peer",
            Frame::tcp("203.0.113.5:5555", "198.51.100.7:11211"),
            PassForeign,
        ),
        ("IPv6 listener", to_v6("[2001:db8::2]:7000"), ToEndpoint),
        ("IPv6 range", to_v6("[2001:db8::2]:50500"), ToRange),
        ("IPv6 foreign", to_v6("[2001:db8::2]:80"), PassForeign),
        ("IPv6 ICMP", Frame { protocol: 58, ..to_v6("[2001:db8::2]:7000") }, PassOther),
        (
            "IPv6 hop-by-hop, destination and routing options",
            with_extensions(&[(0, 0), (60, 3), (43, 1)]),
            ToEndpoint,
        ),
        ("IPv6 first fragment", with_extensions(&[(44, 1)]), DropFragment),
        ("IPv6 whole packet with a fragment header", with_extensions(&[(44, 0)]), DropFragment),
        ("IPv6 first fragment after options", with_extensions(&[(0, 0), (44, 1), (60, 0)]), DropFragment),
        (
            "IPv6 first fragment with padding in place of its ports",
            Frame { ipv6_length: Some(8), ..with_extensions(&[(44, 1)]) },
            DropLongChain,
        ),
        ("IPv6 later fragment", with_extensions(&[(44, 8)]), PassLaterFragment),
        ("IPv6 seven options", with_extensions(&[(60, 0); 7]), ToEndpoint),
        ("IPv6 eight options", with_extensions(&[(60, 0); 8]), DropLongChain),
        (
            "IPv6 eight options, another address",
            Frame { extensions: vec![(60, 0); 8], ..to_v6("[2001:db8::3]:7000") },
            PassForeign,
        ),
        ("separate address, any port", to("10.0.0.5:1"), ToAddress),
        ("separate address, UDP", Frame::udp(PEER, "10.0.0.5:1"), ToAddress),
        ("separate address, ICMP", Frame { protocol: 1, ..to("10.0.0.5:1") }, ToAddress),
        (
            "separate address, first fragment",
            Frame { fragment_field: 0x2000, ..to("10.0.0.5:1") },
            DropFragment,
        ),
        (
            "separate address, later fragment",
            Frame { fragment_field: 0x2001, ..to("10.0.0.5:1") },
            DropFragment,
        ),
        ("separate address, ARP", Frame { is_arp: true, ..to("10.0.0.5:1") }, ToAddress),
        ("shared address, ARP", Frame { is_arp: true, ..to("10.0.0.2:1") }, PassOther),
        ("no payload", Frame { payload: 0, ..to("10.0.0.2:7000") }, ToEndpoint),
    ];
    let model = example();
    let Some(steer) = steer(&model) else { return };
    for (name, frame, expected) in table {
        let frame = frame.bytes();
        assert_eq!(model.decide(&frame), expected, "model: {name}");
        assert_eq!(verdict_of(&steer, &frame).unwrap(), without_sockets(expected), "{name}");
    }
}

#[test]
fn every_prefix_of_a_frame_gets_the_models_verdict() {
    let model = example();
    let Some(steer) = steer(&model) else { return };
    let options = [(0, 1), (44, 1), (60, 0)].to_vec();
    for frame in [
        Frame {
            option_words: 3,
            vlan_tags: vec![(VLAN, 5), (SERVICE_VLAN, 0)],
            ..Frame::tcp(PEER, "10.0.0.2:7000")
        },
        Frame { extensions: options, ..Frame::tcp(PEER_V6, "[2001:db8::2]:7000") },
    ] {
        let frame = frame.bytes();
        // The kernel refuses to run a program on less than an Ethernet header.
        for length in 14..frame.len() {
            let frame = &frame[..length];
            let expected = without_sockets(model.decide(frame));
            assert_eq!(verdict_of(&steer, frame).unwrap(), expected, "{length} bytes");
        }
    }
}

#[test]
fn removed_entries_pass_to_the_kernel() {
    let model = example();
    let Some(steer) = steer(&model) else { return };
    for endpoint in &model.endpoints {
        steer.remove_endpoint(*endpoint).unwrap();
        steer.remove_endpoint(*endpoint).expect("removing twice should be harmless");
    }
    for (address, _) in &model.addresses {
        steer.remove_address(*address).unwrap();
    }
    for flow in &model.flows {
        steer.remove_flow(*flow).unwrap();
    }
    for frame in [
        Frame::tcp(PEER, "10.0.0.2:7000"),
        Frame::tcp(PEER, "10.0.0.2:50000"),
        Frame::tcp("203.0.113.4:5555", "198.51.100.7:11211"),
    ] {
        assert_eq!(verdict_of(&steer, &frame.bytes()).unwrap(), Verdict::PassForeign);
    }
}

/// The capabilities of the helper's systemd unit. Without CAP_PERFMON the verifier is stricter than for root.
#[test]
fn three_capabilities_suffice_to_load_and_change_the_program() {
    let model = example();
    if steer(&model).is_none() {
        return;
    }
    let work = || {
        let kept = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).unwrap();
        let steer = Steer::load().expect("CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF should suffice");
        for endpoint in &model.endpoints {
            steer.add_endpoint(*endpoint).unwrap();
        }
        steer.counters().unwrap();
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

#[test]
fn a_full_table_is_reported() {
    let Some(steer) = steer(&Model::default()) else { return };
    let address = |number: usize| IpAddr::from([10, 1, (number >> 8) as u8, number as u8]);
    for number in 0..spillway_bpf::ADDRESSES_MAX {
        steer.set_address(address(number), &AddressRule::default()).unwrap();
    }
    let error = steer.set_address(address(spillway_bpf::ADDRESSES_MAX), &AddressRule::default()).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("`addresses` (room for 256)"), "{error}");
}

/// Half of the frames are valid ones with a few changed bytes, so that the test reaches all branches.
#[test]
fn random_frames_get_the_models_verdict() {
    const FRAMES: usize = 20_000;
    let model = example();
    let Some(steer) = steer(&model) else { return };
    let mut random = Random::new(18);
    let mut seen = [0_usize; Verdict::ALL.len()];
    for number in 0..FRAMES {
        let frame = random_frame(&mut random);
        let expected = model.decide(&frame);
        seen[expected as usize] += 1;
        let verdict = verdict_of(&steer, &frame).unwrap();
        assert_eq!(verdict, without_sockets(expected), "frame {number}: {frame:02x?}");
    }
    for verdict in Verdict::ALL {
        let is_seen = seen[verdict as usize] > 0 || verdict == Verdict::DropNoSocket;
        assert!(is_seen, "no frame led to {verdict:?}: {seen:?}");
    }
}

fn random_frame(random: &mut Random) -> Vec<u8> {
    let mut pick = |of: &[&str]| of[random.below(of.len() as u64) as usize].to_owned();
    let v4 = [
        (pick(&[PEER, "203.0.113.4:5555"])),
        pick(&[
            "10.0.0.2:7000",
            "10.0.0.2:7001",
            "10.0.0.2:50999",
            "10.0.0.3:1",
            "10.0.0.5:1",
            "198.51.100.7:11211",
        ]),
    ];
    let v6 = [PEER_V6.to_owned(), pick(&["[2001:db8::2]:7000", "[2001:db8::2]:50000", "[2001:db8::3]:7000"])];
    let [source, destination] = if random.below(2) == 0 { v4 } else { v6 };
    let mut frame = Frame::tcp(&source, &destination);
    frame.protocol = [6, 6, 6, 17, 17, 1, 58, 0][random.below(8) as usize];
    frame.is_arp = frame.destination.is_ipv4() && random.below(6) == 0;
    for _ in 0..[0, 0, 0, 1, 2, 3, 4][random.below(7) as usize] {
        frame.vlan_tags.push(([VLAN, SERVICE_VLAN][random.below(2) as usize], random.below(3) as u16));
    }
    frame.option_words = random.below(11) as usize;
    frame.fragment_field = [0, 0, 0, 0x4000, 0x2000, 0x2001, 0x8000][random.below(7) as usize];
    frame.payload = random.below(40) as usize;
    for _ in 0..random.below(11) {
        let kind = [0, 43, 60, 60, 44][random.below(5) as usize];
        let field =
            if kind == 44 { [0, 1, 6, 8, 0xfff8][random.below(5) as usize] } else { random.below(4) as u16 };
        frame.extensions.push((kind, field));
    }
    let mut frame = frame.bytes();
    if random.below(2) == 0 {
        for _ in 0..1 + random.below(4) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.word() as u8;
        }
        frame.truncate(14.max(random.below(2 * frame.len() as u64) as usize));
    }
    frame
}
