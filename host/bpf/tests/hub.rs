//! The forwarding program in the kernel (`BPF_PROG_TEST_RUN`).

use spillway_bpf::Hub;

const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

fn frame(target: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&target);
    frame
}

#[test]
fn frames_for_stations_are_forwarded_and_all_others_pass() {
    let hub = match Hub::load() {
        Err(error) if error.is_unprivileged() => {
            eprintln!("skipped: {error}");
            return;
        }
        result => result.unwrap(),
    };
    let station = [2, 0, 10, 77, 0, 1];
    let run = |target| hub.test_run(&frame(target)).unwrap();
    assert_eq!(run(station), XDP_PASS, "before the station is known");
    hub.set_station(station, 1).unwrap();
    assert_eq!(run(station), XDP_REDIRECT);
    for other in [[2, 0, 10, 77, 0, 2], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [0; 6]] {
        assert_eq!(run(other), XDP_PASS, "{other:?}");
    }
    hub.set_station(station, 2).unwrap();
    assert_eq!(run(station), XDP_REDIRECT, "at another interface");
    for number in 1..256_u32 {
        let [.., high, low] = number.to_be_bytes();
        hub.set_station([2, 1, 0, 0, high, low], 1).unwrap();
    }
    let error = hub.set_station([2, 2, 0, 0, 0, 0], 1).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("room for 256"), "{error}");
}
