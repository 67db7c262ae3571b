/* Rule 4a: of the servers' segments under a service's address only those of the flow's owner pass. For frames that arrive
 * at a server's port, and at the egress of a host. */
#ifndef SPILLWAY_SWITCH_OUTBOUND_H
#define SPILLWAY_SWITCH_OUTBOUND_H

#include "frame.h"
#include "table.h"

/* A copy of the fields of an entry that decide on a packet from a server. */
struct outbound {
    struct standing standing;
    struct mac original; /* of the original owner */
    bool is_owners;      /* Ethernet address, IP address and TCP port of the source are the owner's */
};

/* Whether a frame comes from the server with this Ethernet address, which is at its ingress port. At the egress of a
 * host every frame is the local server's. */
static __always_inline bool is_its_mac(const struct frame *frame, const struct mac *mac)
{
    return IS_EGRESS || same_mac(&frame->source, mac);
}

static __always_inline void read_outbound(const struct flow *flow, const struct frame *frame, struct outbound *view)
{
    view->original = flow->original_mac;
    view->is_owners = is_its_mac(frame, &flow->owner_mac) &&
                      same_address(&frame->packet.source, &flow->owner_address) &&
                      frame->packet.source_port == flow->owner_port;
}

static __always_inline bool look_outbound(struct flow *flow, const struct flow_key *key,
                                          const struct frame *frame, struct outbound *view)
{
    __u64 generation;
    bool found;

    if (begin_reading(flow, key, &generation)) {
        read_owned_standing(&view->standing, flow, generation);
        read_outbound(flow, frame, view);
        if (end_reading(flow, generation))
            return true;
    }
    bpf_spin_lock(&flow->lock);
    found = is_present(flow, key);
    if (found) {
        read_standing(&view->standing, flow);
        read_outbound(flow, frame, view);
    }
    bpf_spin_unlock(&flow->lock);
    return found;
}

/* Whether a server is connected to the ingress port. */
static __always_inline bool is_at_ingress(const struct frame *frame, __u32 id)
{
    struct server *server = server_of(id);

    return server && server->port == frame->ingress;
}

/* Whether a packet of a flow without an entry comes from its original owner, from the service endpoint. */
static __always_inline bool is_from_original(const struct frame *frame, const struct place *place)
{
    struct server *server = server_of(place->server);

    return server && place->is_endpoint && server->port == frame->ingress &&
           is_its_mac(frame, &server->mac);
}

/* The number with which the receiver acknowledges all of a segment that has FIN. */
__noinline __u32 end_of(struct frame_context *context, const struct packet *packet, const struct tcp *tcp)
{
    __u32 headers, at, bytes;
    __be16 field = 0;

    if (!packet || !tcp)
        return 0;
    headers = packet->transport - packet->network + (tcp->offset >> 4) * 4;
    at = packet->network + (packet->is_ipv6 ? 4 : __builtin_offsetof(struct ipv4, length));
    load(context, at, &field, sizeof(field));
    bytes = bpf_ntohs(field) + (packet->is_ipv6 ? IPV6_HEADER_BYTES : 0);
    bytes = bytes > headers ? bytes - headers : 0;
    return bpf_ntohl(tcp->sequence) + bytes + 1 + (tcp->flags & TCP_SYN ? 1 : 0);
}

/* Rule 4a for a segment from a place. UNDECIDED: it passes. If its flow has an entry, `from_owner` is set, the segment is
 * noted, and `original` is the Ethernet address of the original owner. */
static __always_inline int check_source(struct frame_context *context, struct frame *frame, const struct place *place,
                                        struct mac *original)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key = {
        .client = packet->target,
        .service = place->service.address,
        .client_port = packet->target_port,
        .service_port = place->service.port,
    };
    struct flow *flow;
    struct outbound view;
    struct standing *at = &view.standing;
    struct tcp tcp = {};
    bool is_short;
    __u8 flags = 0;
    __u32 claim = 0;

    flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || !look_outbound(flow, &key, frame, &view))
        return is_from_original(frame, place) ? UNDECIDED : DROP_NOT_OWNER;
    if (may_be_due(at, frame->now) && settle(&key, at, frame->now)) {
        if (!look_outbound(flow, &key, frame, &view))
            return is_from_original(frame, place) ? UNDECIDED : DROP_NOT_OWNER;
    }
    if (!view.is_owners || !is_at_ingress(frame, at->owner.server))
        return DROP_NOT_OWNER;
    is_short = !load_tcp(context, packet, &tcp);
    /* After the export, packets that had already passed the switch make the source's kernel answer with RST. A source
     * that means to reset the connection takes the flow back first, by *own*. */
    if (!is_short && (tcp.flags & TCP_RST) && at->state == STATE_HELD)
        return DROP_NOT_OWNER;
    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (is_short)
        return DROP_SHORT;
    if (tcp.flags & TCP_RST)
        flags |= RESET_OWNER;
    if ((tcp.flags & TCP_ACK) && (at->flags & FIN_CLAIMED) && bpf_ntohl(tcp.acknowledgment) == at->claim)
        flags |= FIN_CLIENT;
    if (!(flags & ~at->flags))
        flags = 0; /* they are set already */
    if (tcp.flags & TCP_FIN) {
        flags |= FIN_OWNER;
        claim = end_of(context, packet, &tcp);
    }
    note(flow, &key, flags, claim, frame->now);
    *original = view.original;
    frame->from_owner = true;
    return UNDECIDED;
}

#endif
