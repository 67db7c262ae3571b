/* Limits and times of the switch. `src/switch/layout.rs` repeats those that the loader needs. */
#ifndef SPILLWAY_SWITCH_SETTINGS_H
#define SPILLWAY_SWITCH_SETTINGS_H

#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

/* Version of the keys and values of all maps. Increase it with every change: a loader refuses pinned maps of
 * another version. */
#define LAYOUT_VERSION 5

/* Ports: their numbers are bits of a 64-bit set (may_own_ports). */
#define PORTS_MAX 64
/* Twice the ports, because indexes of removed interfaces stay until their port is attached again. */
#define INTERFACES_MAX 128
/* Elements of the map `interface_slots`: a power of two. */
#define INTERFACE_SLOTS 256
/* The port of the switch's daemon. Its messages come in through BPF_PROG_TEST_RUN; it has no interface. */
#define PORT_DAEMON 63
/* The port of a host's local server. Its messages come in like the daemon's. In gateway mode a port like others. */
#define PORT_LOCAL 62
/* Port of an address in the map `stations` that is a server's, but no configured station's. */
#define PORT_NONE 255
/* Configured stations, and the Ethernet addresses of servers that are not stations. */
#define STATIONS_MAX (4096 + SERVERS_MAX)
#define PREFIXES_MAX 1024
#define OWN_ADDRESSES_MAX 64
/* Ids of senders of control messages. 0 is the switch's daemon. */
#define SERVERS_MAX 256
#define PLACES_MAX 4096
/* Addresses of servers, of places and of the switch. */
#define HOMES_MAX (SERVERS_MAX + PLACES_MAX + OWN_ADDRESSES_MAX)
/* Numbers of services: a place has one below this. */
#define SERVICES_MAX 256
/* Default; the loader sets the configured number. An element takes 256 bytes (struct flow), so 34 MB. */
#define FLOWS_DEFAULT 131072

/* An owner's service number before its first heartbeat. */
#define SERVICE_NONE 0xffff

#define NS_PER_MS 1000000ULL
/* The following times are those of core/rules/src/times.rs; a test of `src/switch/layout.rs` compares them. */
/* The most by which the clock of silence advances from one heartbeat or hello of any sender to the next (see
 * advance_silence_clock()): during a longer gap the switch itself may have been paused. */
#define GAP_MAX_NS (100 * NS_PER_MS)
/* Time after the owner's RST at which an entry ends. */
#define AFTER_RST_NS (1000 * NS_PER_MS)
/* Time without a packet after which an entry with both FINs ends. */
#define AFTER_FINS_NS (60000 * NS_PER_MS)
/* Time without a packet after which a redundant entry ends: its flow is back at the original owner and at the service
 * endpoint, as without an entry. */
#define AFTER_RETURN_NS (600000 * NS_PER_MS)
/* Maximum lifetime of a move, in ms, as in core/wire/src/switch/mod.rs. */
#define LIFETIME_MS_MAX 60000
/* Value of `repeat_generation` in struct entry that no message can name. */
#define REPEAT_NONE (~0ULL)

/* Hop limit of answers and relayed messages, of the outer header of tunnels, and of ICMP errors. */
#define HOP_LIMIT 64

/* Host mode: the program is at the interface of the local server. The loader sets this constant before loading, because
 * frames pass also before the maps have a configuration. */
const volatile bool is_host SEC(".rodata.mode") = false;

static __always_inline bool is_local_port(__u32 port)
{
    return is_host && port == PORT_LOCAL;
}

/*
 * In tests the caller of BPF_PROG_TEST_RUN gives the time and the ingress port, and gets the decision, in metadata
 * before the frame. The loader sets this constant before loading. If it is false, the verifier removes the code for
 * tests.
 */
const volatile bool is_test SEC(".rodata.test") = false;

struct test_run {
    __u64 now;
    __u32 ingress; /* key of the map `interfaces` */
    __u32 verdict;
    __u32 egress;
    __u32 zero;
};

/* Time since `then`. It is 0 if another CPU has stored a time after this packet's. */
static __always_inline __u64 since(__u64 now, __u64 then)
{
    return now > then ? now - then : 0;
}

#endif
