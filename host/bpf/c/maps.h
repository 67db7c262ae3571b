/*
 * The maps of the steering program; those of the laboratory are in their own programs. Each size is a constant with its
 * reason. `src/steer.rs` has the same keys and values.
 */
#ifndef SPILLWAY_MAPS_H
#define SPILLWAY_MAPS_H

#include "parse.h"
#include "verdicts.h"

/* Addresses of the stack: a helper has one or two; the rest is for connections that move here. */
#define ADDRESSES_MAX 256
/* Listeners: a hundred times as many as the helpers with the most services have in our measurements. */
#define ENDPOINTS_MAX 4096
/* Connections under foreign addresses, each of which took a move: as many as one stack holds. */
#define FLOWS_MAX 65536
/* Queues of an interface: the largest network cards in use have 128. */
#define QUEUES_MAX 128

/* Which packets to an address belong to the stack, besides those of `endpoints` and `flows`. */
struct address_rule {
    /* Ports of connections that the stack opens, in host order; none if the first is 0. The last is included. */
    __u16 first_port;
    __u16 last_port;
    /* Not 0: the kernel does not have this address. All packets to it are the stack's, and ARP for it. */
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

/* A connection that belongs to the stack though its address and port do not. */
struct flow {
    struct address local;
    struct address peer;
    __be16 local_port;
    __be16 peer_port;
    __u8 protocol;
    __u8 zero[3];
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

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, FLOWS_MAX);
    __type(key, struct flow);
    __type(value, __u8);
} flows SEC(".maps");

/* AF_XDP sockets by the number of their queue. */
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

/* AF_XDP sockets for packets of connections that the stack has opened, by the number of their queue. */
struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, QUEUES_MAX);
    __type(key, __u32);
    __type(value, __u32);
} opened_sockets SEC(".maps");

/* Packets by verdict. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, VERDICTS);
    __type(key, __u32);
    __type(value, __u64);
} verdicts SEC(".maps");

#endif
