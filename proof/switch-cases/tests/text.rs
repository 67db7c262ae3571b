//! Mistakes in case files are found with line and column.

use spillway_switch_cases::case::{Bases, Case, folder, read_setup};
use spillway_switch_cases::setup::Setup;

fn error(text: &str) -> (usize, usize, String) {
    let setup = read_setup(&folder()).unwrap();
    let Err(error) = Case::parse_all(&setup, &Bases::default(), text) else { panic!("{text} was accepted") };
    (error.position.line, error.position.column, error.message)
}

#[test]
fn mistakes_in_cases_have_positions() {
    let table = [
        ("at 0 clients: tcp alice:1 > web", (1, 1), "case NAME"),
        ("case a\ncase a", (2, 6), "another case"),
        ("case a after b", (1, 14), "no case `b`"),
        ("case a\nfoo", (2, 1), "unknown step `foo`"),
        ("case a\nat 5 clients: icmp alice > A -> passed", (2, 4), "`5` is not a time"),
        (
            "case a\nat 1s clients: icmp alice > A -> switched to rack-a\nat 0 clients: icmp alice > A",
            (3, 4),
            "later time",
        ),
        ("case a\nat 0 nowhere: icmp alice > A -> passed", (2, 6), "`nowhere` is not a port"),
        ("case a\nat 0 clients icmp alice > A -> passed", (2, 14), "expected `:`"),
        ("case a\nat 0 clients: sctp alice > A -> passed", (2, 15), "unknown packet `sctp`"),
        ("case a\nat 0 clients: tcp alice > web -> passed", (2, 19), "`alice` is not an address and port"),
        ("case a\nat 0 clients: tcp alice:1 > web urg -> passed", (2, 33), "unknown field `urg` of TCP"),
        (
            "case a\nat 0 clients: tcp alice:1 > web, ttl 300 -> passed",
            (2, 38),
            "`300` is not a number up to 255",
        ),
        ("case a\nat 0 clients: tcp alice:1 > web,\n  colour 3 -> passed", (3, 3), "unknown change `colour`"),
        ("case a\nat 0 clients: tcp alice:1 > web syn", (2, 36), "expected `->`"),
        ("case a\nat 0 clients: tcp alice:1 > web -> forwarded", (2, 36), "unknown verdict `forwarded`"),
        ("case a\nat 0 clients: tcp alice:1 > web -> switched", (2, 36), "needs `to PORT`"),
        ("case a\nat 0 clients: tcp alice:1 > web -> short to rack-a", (2, 36), "has no port"),
        ("case a\nat 0 clients: tcp alice:1 > web -> passed now", (2, 43), "unexpected `now`"),
        ("case a\nat 0 rack-a: get X -> answered ok", (2, 18), "`X` is not a server"),
        ("case a\nat 0 rack-a: get A colour 3 -> answered ok", (2, 20), "unknown field `colour`"),
        ("case a\nat 0 rack-a: get A -> answered fine", (2, 32), "is not a status"),
        ("case a\nat 0 rack-a: own A generation gx -> answered ok", (2, 31), "is not a generation"),
        ("case a\nat 0 rack-a: hold A owner B -> answered ok", (2, 27), "`B` is not a site"),
        ("case a\nflow alice:1 web: owned g1 owner A@web\n    colour red", (3, 5), "unknown field `colour`"),
        ("case a\nat 0 beat A", (2, 12), "no heartbeat before"),
        (
            "case a\nat 0 clients: icmp alice > A -> switched to rack-a\nwith flows 2",
            (3, 1),
            "before the first step",
        ),
        ("case \"a", (1, 6), "closing quotation mark"),
        ("case a\nwith flows many", (2, 12), "is not a number of flows"),
    ];
    for (text, position, message) in table {
        let (line, column, found) = error(text);
        assert_eq!((line, column), position, "{text:?}: {found}");
        assert!(found.contains(message), "{text:?}: {found}");
    }
}

#[test]
fn mistakes_in_setups_have_positions() {
    let table = [
        ("colour red", (1, 1), "unknown definition"),
        ("port a 63 mac 02:00:00:00:00:01", (1, 8), "at most 62"),
        ("port daemon 1 mac 02:00:00:00:00:01", (1, 6), "taken"),
        ("port a 1 mac 02:00:00:00:00", (1, 14), "is not a MAC"),
        ("host a 02:00:00:00:00:01 on b", (1, 29), "`b` is not a port"),
        ("prefix 10.0.0.0/33 via 02:00:00:00:00:01 on a", (1, 8), "is not a prefix"),
        ("server A 1 key 00 at 10.0.0.1", (1, 16), "32 hexadecimal digits"),
        ("server A 1 key 00112233445566778899aabbccddeeff at 10.0.0.1", (1, 8), "not a host at a port"),
        ("service web 10.0.0.1 number 1 owner A", (1, 13), "is not an address and port"),
        ("place p 10.0.0.1:1 for web at A", (1, 24), "`web` is not a service"),
        ("own 10.0.0.1 here", (1, 14), "expected an IP address"),
        ("timeout 1s 2s", (1, 12), "unexpected `2s`"),
    ];
    for (text, position, message) in table {
        let error = Setup::parse(text).unwrap_err();
        assert_eq!((error.position.line, error.position.column), position, "{text:?}: {}", error.message);
        assert!(error.message.contains(message), "{text:?}: {}", error.message);
    }
}
