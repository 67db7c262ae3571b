//! Runs the tests of `traces` that hold for both families over IPv6. `traces/ipv6.rs` has those of IPv6 only.

const IS_IPV6: bool = true;

macro_rules! rules {
    ($($name:ident: $path:literal,)*) => {
        $(#[path = $path] mod $name;)*
    };
}

#[allow(dead_code, unused_imports, reason = "some items are used only over IPv4")]
#[path = "traces/trace/mod.rs"]
mod trace;

rules! {
    acceptance: "traces/acceptance.rs",
    acks: "traces/acks.rs",
    closing: "traces/closing.rs",
    cookies: "traces/cookies.rs",
    flood: "traces/flood.rs",
    gate: "traces/gate.rs",
    give_up: "traces/give_up.rs",
    handshake: "traces/handshake.rs",
    keep_alive: "traces/keep_alive.rs",
    long_streams: "traces/long_streams.rs",
    memory: "traces/memory.rs",
    migration: "traces/migration.rs",
    paws: "traces/paws.rs",
    persist: "traces/persist.rs",
    random_frames: "traces/random_frames.rs",
    reassembly: "traces/reassembly.rs",
    resets: "traces/resets.rs",
    sack: "traces/sack.rs",
    silly: "traces/silly.rs",
    simultaneous: "traces/simultaneous.rs",
    time_wait: "traces/time_wait.rs",
    windows: "traces/windows.rs",
}
