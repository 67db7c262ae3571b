/* The key of one connection. `src/steer.rs` writes the same bytes. */
#ifndef SPILLWAY_FLOW_KEY_H
#define SPILLWAY_FLOW_KEY_H

#include "parse.h"

struct flow {
    struct address local;
    struct address peer;
    __be16 local_port;
    __be16 peer_port;
    __u8 protocol;
    __u8 zero[3];
};

/* The connection to which a received packet belongs. */
static __always_inline struct flow flow_of(const struct packet *packet)
{
    return (struct flow){
        .local = packet->target,
        .peer = packet->source,
        .local_port = packet->target_port,
        .peer_port = packet->source_port,
        .protocol = packet->protocol,
    };
}

#endif
