/* The maps of the switch. `src/switch/layout.rs` writes and reads the same keys and values. */
#ifndef SPILLWAY_SWITCH_MAPS_H
#define SPILLWAY_SWITCH_MAPS_H

#include "../parse.h"
#include "message.h"
#include "settings.h"
#include "verdicts.h"

/* --- Configuration, which the loader writes --- */

struct settings {
    __u32 layout; /* LAYOUT_VERSION; first, so that every later layout finds it */
    __be16 control_port;
    __u16 server_last; /* the highest id of a configured server */
    __u64 epoch;
    __u64 owner_timeout; /* ns */
    __u8 is_host;        /* for the loader, which refuses pinned maps of the other mode */
    __u8 local;          /* id of the local server, in host mode; 0: not configured */
    __u8 zero[6];
    struct address control_address; /* that of the first control endpoint; `own_addresses` has the others, too */
};

/* The port of an interface, in the element that the low bits of the interface's index name. Empty: zero. */
struct interface_slot {
    __u32 index;
    __u32 number; /* the port's, plus 1 */
};

struct port {
    struct mac mac;
    __u8 is_server;
    __u8 is_internal; /* the daemon's or the local server's: it has no interface, and accepts only control messages */
    __u16 mtu;        /* of the interface; compared only with packets for tunnels */
};

struct station_key {
    struct mac mac;
    __u16 zero;
};

struct station {
    __u8 port;   /* PORT_NONE: a server's address that is no configured station's */
    __u8 server; /* 0: not a server */
    __u16 zero;
};

/* The family comes first, so that prefixes of IPv6 do not contain IPv4 addresses, which are mapped to IPv6. */
struct prefix {
    __u32 bits; /* of what follows */
    __u8 family; /* 4 or 6 */
    __u8 address[16];
    __u8 zero[3];
};

#define PREFIX_BITS (8 + 128)

struct next_hop {
    struct mac mac;
    __u8 port;
    __u8 zero;
};

struct own_address {
    __u32 is_control; /* control messages are sent to it */
};

/* An address and TCP port of a server: a service endpoint, or where the server imports connections of a service. */
struct place {
    struct endpoint service;
    __u16 number;
    __u8 server; /* of a service endpoint: the original owner */
    __u8 is_endpoint;
    __u64 may_own_ports; /* bit n: servers at port n may own the service */
    __u64 flows_max;     /* maximum number of the service's flows with an entry */
};

struct server {
    __u64 key[2]; /* little endian */
    struct address address;
    struct mac mac;
    __u8 port;
    __u8 is_configured;
    struct mac next_hop;   /* Ethernet destination of frames to the server: a router's, or the server's own */
    __u8 is_encapsulated;  /* packets of moved flows go through a tunnel */
    __u8 zero;
};

/* --- State, which the program writes --- */

struct shared {
    struct bpf_spin_lock lock; /* of clock, last_heartbeat and is_running */
    __u32 is_running;          /* a heartbeat or hello has arrived */
    __u64 generation;          /* counter */
    __u64 clock;               /* the clock of silence, ns; see advance_silence_clock() */
    __u64 last_heartbeat;      /* of any owner */
    __u32 rotation;            /* number of choices of a least loaded owner */
    __u32 zero;
};

struct owner {
    struct bpf_spin_lock lock;
    __u32 load;
    __u64 term; /* 0: not an owner */
    __u64 last_heartbeat; /* for *list* and status */
    __u64 clock;          /* shared.clock at the last heartbeat */
    __u64 highest;        /* sequence number */
    __u64 window;         /* bit n: the sequence number highest - n has arrived */
    __u32 free_places;
    __be16 control_port;
    __u16 service;
    __u16 weight;
    __u16 zero[3];
};

/* Where a server has the connection of a flow. */
struct site {
    struct address address;
    __be16 port;
    struct mac mac;
    __u32 server;
    __u32 zero;
    __u64 term; /* the server's when the site was named */
};

enum state {
    STATE_NONE, /* just created: not filled in yet */
    STATE_ASKED,
    STATE_HELD,
    STATE_OWNED,
    STATE_ENDED, /* about to be deleted */
};

#define FIN_CLIENT 1
#define FIN_OWNER 2
#define FIN_BOTH (FIN_CLIENT | FIN_OWNER)
#define RESET_OWNER 4
/* A client's packet with FIN has passed. FIN_CLIENT is set when the owner acknowledges it, because a
 * host that does not know the sequence number could forge a FIN. */
#define FIN_CLAIMED 8
/* The client has acknowledged the owner's FIN. */
#define FIN_CONFIRMED 16
/* Each end has acknowledged the other one's FIN: neither will repeat a byte. */
#define FIN_CLOSED (FIN_BOTH | FIN_CONFIRMED)

/* An entry as the control messages change it: a copy. The table has it as struct flow. */
struct entry {
    struct flow_key key;
    __u8 state;
    __u8 flags;
    __u16 service; /* the number under which the entry is counted in `service_flows` */
    __u64 generation;
    /* Recognizes the repetition of a message whose answer was lost. Asked, or held after that: the generation that
     * *prepare* named, 0 without an entry. Owned: the generation that the entry had during the last move. After *hold*,
     * or a return to the original owner: REPEAT_NONE. */
    __u64 repeat_generation;
    struct site owner;
    struct site target; /* zero if owned */
    struct site original; /* only server and mac: its place is the service endpoint, and its term does not matter */
    __u64 deadline; /* of asked and held */
};

/*
 * An entry in the table. What packets of an owned flow need comes first, and what only messages, moves and ends need comes
 * last: in the kernel's map an element has 48 bytes of header and 40 bytes of key before this value, so that the value ends
 * the second cache line after 40 bytes, the third after 104, and the fourth with its end.
 */
struct flow {
    struct bpf_spin_lock lock;
    __u8 state;
    __u8 flags;
    __u8 owner; /* ids of servers; 0: none */
    __u8 original;
    __u64 last_packet;
    __u64 generation;
    __u64 owner_term;
    __be16 owner_port;
    struct mac owner_mac;
    /* The third cache line. */
    struct flow_key key; /* the map's key again: see table.h */
    struct mac original_mac;
    __u8 target;
    __u8 service; /* the number under which the entry is counted in `service_flows` */
    struct address owner_address;
    __u32 owner_claim; /* acknowledgment number of the owner's FIN, if FIN_OWNER is set */
    /* The fourth cache line. Target and deadline count only if the flow is asked or held. */
    struct address target_address;
    __be16 target_port;
    struct mac target_mac;
    __u64 target_term;
    __u64 deadline;
    __u64 reset;    /* time of the owner's first RST, if RESET_OWNER is set */
    __u64 repeat_generation; /* as in struct entry */
    __u32 claim;    /* acknowledgment number of the client's FIN, if FIN_CLAIMED is set */
    __u32 zero;
};

_Static_assert(__builtin_offsetof(struct flow, key) == 40, "the second cache line of an element ends before");
_Static_assert(__builtin_offsetof(struct flow, target_address) == 104, "the third cache line ends before");
_Static_assert(sizeof(struct flow) == 168, "an element has 256 bytes, so that all begin at a cache line");

/* A server in the term in which it was named. */
struct party {
    __u64 term;
    __u32 server;
    __u32 zero;
};

/* The parts of an entry that settle() needs: a copy, because no BPF helper function may be called under the lock. */
struct standing {
    __u64 generation;
    __u64 deadline;
    __u64 last_packet;
    __u64 reset;
    struct party owner;
    struct party target;
    __u32 original; /* server id */
    __u32 claim;
    __u32 owner_claim;
    __u8 state;
    __u8 flags;
    __u16 zero;
};

/* A control message while the program handles it. Too large for the stack of 512 bytes: see the map `scratch`. */
struct control {
    /* The datagram's pseudo-header, header and payload, contiguous for the checksum. */
    struct address source;
    struct address destination;
    __be32 length;
    __be32 protocol;
    struct udp udp;
    struct message message;
    /* A copy of the entry of the message's flow. Without an entry: STATE_NONE, and zeros in what an answer shows. */
    struct entry entry;
    struct standing standing;
    struct flow_key key;
    /* The place of the message's service; server 0 without a place. */
    struct place place;
    struct site site; /* that the message names, or that was chosen */
    __u64 now;
    __u64 term; /* the sender's */
    __u32 sender;
    __u32 receiver;
    __u32 ingress;
    __u8 is_ipv6;
    __u8 is_plain; /* no VLAN tags, IPv4 options and IPv6 extension headers */
    __u8 zero[2];
};

/* Bytes of a packet that an ICMP error quotes. With them the IPv4 error has less than 576 bytes (RFC 1812 section 4.3.2.3), and
 * the error has as many as bpf_csum_diff() adds at once. */
#define QUOTED_BYTES 504

/* An ICMP error while the program writes it. Too large for the stack. */
struct too_long {
    /* The pseudo-header of ICMPv6. */
    struct address source;
    struct address destination;
    __be32 length;
    __be32 protocol;
    /* The error. The MTU is at the end of a word of 32 bits in both families (RFC 1191 section 4, RFC 4443 section 3.2). */
    __u8 type;
    __u8 code;
    __u16 check;
    __be16 zero;
    __be16 mtu;
    __u8 quoted[QUOTED_BYTES];
};

#define ARRAY(name, entries, value_type)                                                                   \
    struct {                                                                                               \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                                  \
        __uint(max_entries, entries);                                                                      \
        __type(key, __u32);                                                                                \
        __type(value, value_type);                                                                         \
    } name SEC(".maps")

#define HASH(name, entries, key_type, value_type)                                                          \
    struct {                                                                                               \
        __uint(type, BPF_MAP_TYPE_HASH);                                                                   \
        __uint(max_entries, entries);                                                                      \
        __type(key, key_type);                                                                             \
        __type(value, value_type);                                                                         \
    } name SEC(".maps")

ARRAY(settings, 1, struct settings);
ARRAY(shared, 1, struct shared);
/* Port number by the interface's index. */
HASH(interfaces, INTERFACES_MAX, __u32, __u32);
/* The same, for a look-up without a call: the program looks into `interfaces` only if the element has another interface. */
ARRAY(interface_slots, INTERFACE_SLOTS, struct interface_slot);
ARRAY(ports, PORTS_MAX, struct port);
HASH(stations, STATIONS_MAX, struct station_key, struct station);
HASH(own_addresses, OWN_ADDRESSES_MAX, struct address, struct own_address);
HASH(places, PLACES_MAX, struct endpoint, struct place);
/* For an address of a server, a place or the switch: bit n is set if the servers at port n may announce it. */
HASH(homes, HOMES_MAX, struct address, __u64);
ARRAY(servers, SERVERS_MAX, struct server);
ARRAY(owners, SERVERS_MAX, struct owner);
/* Preallocated, so that a *prepare* needs no memory and the table is full at exactly its size. */
HASH(flows, FLOWS_DEFAULT, struct flow_key, struct flow);
/* Number of entries by service. Counted before an entry is created, and until after it is deleted: never too low. */
ARRAY(service_flows, SERVICES_MAX, __u64);

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __uint(max_entries, PREFIXES_MAX);
    __type(key, struct prefix);
    __type(value, struct next_hop);
} prefixes SEC(".maps");

/* Interfaces by port number. */
struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, PORTS_MAX);
    __type(key, __u32);
    __type(value, __u32);
} egress SEC(".maps");

/* Number of packets by verdict. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, VERDICTS);
    __type(key, __u32);
    __type(value, __u64);
} verdicts SEC(".maps");

/* Working memory of control_rule(), two elements for each CPU. Element 0 is for packets, of which a CPU handles one at
 * a time; element 1 is for the messages of internal ports, because a packet can interrupt BPF_PROG_TEST_RUN in old kernels. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, struct control);
} scratch SEC(".maps");

/* Working memory of answer_too_long(). */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct too_long);
} error_scratch SEC(".maps");

/* The key of an array's only element. Not on the stack, where each use would take a place. */
static const __u32 only_index;

/* The only element of an array. It is never NULL, but callers must check: the verifier cannot know that. */
static __always_inline void *only(void *map)
{
    return bpf_map_lookup_elem(map, &only_index);
}

static __always_inline struct server *server_of(__u32 id)
{
    struct server *server = bpf_map_lookup_elem(&servers, &id);

    return server && server->is_configured ? server : NULL;
}

/* Whether the servers at a port may own a place's service. */
static __always_inline bool may_own_at(const struct place *place, __u32 port)
{
    return (place->may_own_ports >> (port & (PORTS_MAX - 1))) & 1;
}

static __always_inline struct place *place_of(const struct address *address, __be16 port)
{
    struct endpoint endpoint = {.address = *address, .port = port};

    return bpf_map_lookup_elem(&places, &endpoint);
}

static __always_inline struct station *station_of(const struct mac *mac)
{
    struct station_key key = {.mac = *mac};

    return bpf_map_lookup_elem(&stations, &key);
}

static __always_inline __u64 new_generation(void)
{
    struct shared *state = only(&shared);

    return state ? __sync_fetch_and_add(&state->generation, 1) + 1 : 0;
}

#endif
