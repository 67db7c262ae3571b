/* The maps of the steering program. `src/steer.rs` writes the same keys and values. */
#ifndef SPILLWAY_MAPS_H
#define SPILLWAY_MAPS_H

#include "flow_key.h"
#include "verdicts.h"

/* Addresses of the stack: one or two for the helper, the others for connections that move here. */
#define ADDRESSES_MAX 256
/* Listeners: four for each of the 1,024 services of a helper (`SERVICES_MAX` in core/relay). */
#define ENDPOINTS_MAX 4096
/* Connections that moved here: as many as a stack holds by default (`connections_max`). */
#define FLOWS_MAX 65536
/* Queues of an interface. `ethtool -L` reduces the number on cards that have more. */
#define QUEUES_MAX 128

/* The packets to an address that belong to the stack besides those of `endpoints` and `flows`. */
struct address_rule {
    /* Local ports of connections that the stack opens, in host byte order. No ports if first_port is 0. */
    __u16 first_port;
    __u16 last_port;
    /* Not 0 if the kernel lacks the address: all packets to it, and ARP for it, belong to the stack. */
    __u8 is_separate;
    __u8 zero;
};

/* An address and port that belong to the stack. */
struct endpoint {
    struct address address;
    __be16 port;
    __u8 protocol;
    __u8 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, ADDRESSES_MAX);
    __type(key, struct address);
    __type(value, struct address_rule);
} addresses SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, ENDPOINTS_MAX);
    __type(key, struct endpoint);
    __type(value, __u8);
} endpoints SEC(".maps");

/* Connections that belong to the stack although their local addresses and ports do not. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, FLOWS_MAX);
    __type(key, struct flow);
    __type(value, __u8);
} flows SEC(".maps");

/* AF_XDP sockets by queue. */
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

/* AF_XDP sockets for packets of connections that the stack has opened, by queue. */
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} opened_sockets SEC(".maps");

/* Number of packets by verdict. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, VERDICTS);
    __type(key, __u32);
    __type(value, __u64);
} verdicts SEC(".maps");

#endif
