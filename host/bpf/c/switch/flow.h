/* Rule 4: TCP packets of flows, between clients and owners. */
#ifndef SPILLWAY_SWITCH_FLOW_H
#define SPILLWAY_SWITCH_FLOW_H

#include "rewrite.h"
#include "table.h"

/* What a packet from a server needs of an entry. */
struct outbound {
    struct standing standing;
    struct mac original; /* of the original owner */
    bool is_owners;      /* Ethernet address, IP address and TCP port of the source are the owner's */
};

/* What a packet to a server needs of an entry. */
struct inbound {
    struct standing standing;
    struct site site; /* where it goes */
};

static __always_inline bool look_outbound(struct flow *flow, const struct flow_key *key,
                                          const struct frame *frame, struct outbound *view)
{
    bool found;

    bpf_spin_lock(&flow->lock);
    found = is_present(flow, key);
    if (found) {
        read_standing(&view->standing, flow);
        view->original = flow->original_mac;
        view->is_owners = same_mac(&frame->source, &flow->owner_mac) &&
                          same_address(&frame->packet.peer, &flow->owner_address) &&
                          frame->packet.peer_port == flow->owner_port;
    }
    bpf_spin_unlock(&flow->lock);
    return found;
}

static __always_inline bool look_inbound(struct flow *flow, const struct flow_key *key, struct inbound *view)
{
    bool found;

    bpf_spin_lock(&flow->lock);
    found = is_present(flow, key);
    if (found) {
        read_standing(&view->standing, flow);
        if (flow->state == STATE_HELD) {
            read_target(flow, &view->site);
            /* Keeps two copies from constant offsets. Otherwise the compiler makes one copy from a computed pointer,
             * which only a loader with CAP_PERFMON may use. */
            barrier();
        } else {
            read_owner(flow, &view->site);
        }
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
           same_mac(&frame->source, &server->mac);
}

/* The number with which the receiver acknowledges all of a segment that has FIN. */
__noinline __u32 end_of(struct xdp_md *context, const struct packet *packet, const struct tcp *tcp)
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

/* Result of from_server(): rule 4b applies. */
#define NOT_FROM_PLACE (UNDECIDED + 1)

/* Rule 4a: a segment that arrives at a server's port and comes from a place. UNDECIDED: it passes, and is forwarded. */
__noinline int from_server(struct xdp_md *context, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key;
    struct place *place;
    struct flow *flow;
    struct outbound view;
    struct standing *at = &view.standing;
    struct tcp tcp = {};
    bool is_short;
    __u8 flags = 0;
    __u32 claim = 0;

    if (!frame)
        return DROP_SHORT;
    place = place_of(&packet->peer, packet->peer_port);
    if (!place)
        return NOT_FROM_PLACE;
    key = (struct flow_key){
        .client = packet->local,
        .service = place->service.address,
        .client_port = packet->local_port,
        .service_port = place->service.port,
    };
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
    replace_end(context, packet, true, &place->service.address, place->service.port);
    set_source(context, &view.original);
    frame->from_owner = true;
    return UNDECIDED;
}

/* Sends a packet to a server of a flow. The caller writes the address and port at which the server has the connection,
 * if the verdict is TO_OWNER or TO_TARGET. */
static __always_inline int to_site(struct xdp_md *context, struct frame *frame, const struct inbound *view)
{
    struct server *server = server_of(view->site.server);

    if (!server)
        return DROP_UNKNOWN_STATION;
    if (server->port == frame->ingress)
        return DROP_SAME_PORT;
    if (frame->is_routed && !route_out(context, &frame->packet, server->port))
        return PASSED;
    set_target(context, &view->site.mac);
    frame->egress = server->port;
    return view->standing.state == STATE_HELD ? TO_TARGET : TO_OWNER;
}

/* Rule 4b: any other segment. UNDECIDED: its flow has no entry. */
__noinline int to_server(struct xdp_md *context, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key;
    struct flow *flow;
    struct tcp tcp = {};
    struct inbound view;
    struct standing *at = &view.standing;
    bool is_short;
    int verdict;
    __u8 flags = 0;
    __u32 claim = 0;

    if (!frame)
        return DROP_SHORT;
    key = (struct flow_key){
        .client = packet->peer,
        .service = packet->local,
        .client_port = packet->peer_port,
        .service_port = packet->local_port,
    };
    flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || !look_inbound(flow, &key, &view))
        return UNDECIDED;
    if (may_be_due(at, frame->now) && settle(&key, at, frame->now)) {
        if (!look_inbound(flow, &key, &view))
            return UNDECIDED;
    }
    is_short = !load_tcp(context, packet, &tcp);
    if (!is_short && (tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
        (at->flags & FIN_CLOSED) == FIN_CLOSED) {
        end_entry(flow, &key, at->state, at->generation, false);
        return UNDECIDED;
    }
    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (is_short)
        return DROP_SHORT;
    if (tcp.flags & TCP_FIN) {
        flags |= FIN_CLAIMED;
        claim = end_of(context, packet, &tcp);
    }
    if ((tcp.flags & TCP_ACK) && (at->flags & (FIN_OWNER | FIN_CONFIRMED)) == FIN_OWNER &&
        bpf_ntohl(tcp.acknowledgment) == at->owner_claim)
        flags |= FIN_CONFIRMED;
    note(flow, &key, flags, claim, frame->now);
    verdict = to_site(context, frame, &view);
    if (verdict == TO_OWNER || verdict == TO_TARGET)
        replace_end(context, packet, false, &view.site.address, view.site.port);
    return verdict;
}

static __always_inline enum verdict flow_rule(struct xdp_md *context, struct frame *frame)
{
    int verdict = frame->port.is_server ? from_server(context, frame) : NOT_FROM_PLACE;

    return verdict == NOT_FROM_PLACE ? to_server(context, frame) : verdict;
}

#endif
