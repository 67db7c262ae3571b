/* Addresses, keys and the layout of control messages. docs/wire.md describes the messages, and core/wire has
 * them in Rust. */
#ifndef SPILLWAY_SWITCH_MESSAGE_H
#define SPILLWAY_SWITCH_MESSAGE_H

#include "../parse.h"

struct mac {
    __be16 words[3];
};

struct endpoint {
    struct address address;
    __be16 port;
    __u16 zero;
};

struct flow_key {
    struct address client;
    struct address service;
    __be16 client_port;
    __be16 service_port;
};

struct udp {
    __be16 source;
    __be16 destination;
    __be16 length;
    __u16 check;
};

static __always_inline bool same_mac(const struct mac *a, const struct mac *b)
{
    return !((a->words[0] ^ b->words[0]) | (a->words[1] ^ b->words[1]) | (a->words[2] ^ b->words[2]));
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
    return !((a->words[0] ^ b->words[0]) | (a->words[1] ^ b->words[1]) | (a->words[2] ^ b->words[2]) |
             (a->words[3] ^ b->words[3]));
}

static __always_inline bool same_key(const struct flow_key *a, const struct flow_key *b)
{
    return same_address(&a->client, &b->client) && same_address(&a->service, &b->service) &&
           !((a->client_port ^ b->client_port) | (a->service_port ^ b->service_port));
}

static __always_inline bool is_ipv4(const struct address *address)
{
    return !(address->words[0] | address->words[1] | (address->words[2] ^ bpf_htonl(0xffff)));
}

/* An address and port as a control message has them. */
struct wire_endpoint {
    __u8 address[16];
    __u8 port[2];
};

struct message {
    __u64 magic;
    __u8 version;
    __u8 kind;
    __be16 flags;
    __be32 sender;
    __be64 sequence;
    __be64 generation;
    __u8 family;
    __u8 reserved[3];
    struct wire_endpoint client;
    struct wire_endpoint service;
    struct wire_endpoint owner;
    struct mac mac;
    __be32 load;
    __be32 lifetime; /* ms */
    __u8 status;
    __u8 state;
    __u8 free_places[4];
    __be16 weight;
    __be64 epoch;
    __u64 tag; /* little endian */
};

#define MESSAGE_BYTES 128
_Static_assert(sizeof(struct message) == MESSAGE_BYTES, "docs/wire.md");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "magic, tag and keys are read as little-endian numbers"
#endif

/* f5 'S' 'P' 'W' 'S' 'W' 'C' 'H' */
#define MESSAGE_MAGIC 0x48435753575053f5ULL
#define MESSAGE_VERSION 1
#define FLAG_FROM_SWITCH 0x0001

enum kind {
    KIND_PREPARE = 1,
    KIND_PREPARED,
    KIND_HOLD,
    KIND_OWN,
    KIND_RELEASE,
    KIND_GET,
    KIND_HEARTBEAT,
    KIND_HELLO,
    KIND_LIST,
};

enum status {
    STATUS_NONE,
    STATUS_OK,
    STATUS_STALE,
    STATUS_NO_ENTRY,
    STATUS_FULL,
    STATUS_FORBIDDEN,
    STATUS_UNKNOWN_VERSION,
    STATUS_NO_OWNER,
    STATUS_REPLAYED,
};

static __always_inline void read_endpoint(const struct wire_endpoint *from, struct address *address, __be16 *port)
{
    __builtin_memcpy(address, from->address, sizeof(*address));
    __builtin_memcpy(port, from->port, sizeof(*port));
}

static __always_inline void write_endpoint(struct wire_endpoint *to, const struct address *address, __be16 port)
{
    __builtin_memcpy(to->address, address, sizeof(*address));
    __builtin_memcpy(to->port, &port, sizeof(port));
}

#endif
