/* Rule 4: TCP packets of flows, between clients and owners. */
#ifndef SPILLWAY_SWITCH_FLOW_H
#define SPILLWAY_SWITCH_FLOW_H

#include "rewrite.h"
#include "table.h"

/* Whether a packet comes from a site: port, Ethernet address, IP address and TCP port. */
static __always_inline bool is_from(const struct frame *frame, const struct site *site)
{
    struct server *server = server_of(site->server);

    return server && server->port == frame->ingress && same_mac(&frame->source, &site->mac) &&
           same_address(&frame->packet.peer, &site->address) && frame->packet.peer_port == site->port;
}

/* Without an entry only the original owner is heard, at the service endpoint itself. */
static __always_inline bool is_from_original(const struct frame *frame, const struct place *place)
{
    struct server *server = server_of(place->server);

    return server && place->is_endpoint && server->port == frame->ingress &&
           same_mac(&frame->source, &server->mac);
}

/* Rule 4a: from a place at a server's port. */
static __always_inline enum verdict from_server(struct xdp_md *context, struct frame *frame, struct place *place)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key = {
        .client = packet->local,
        .service = place->service.address,
        .client_port = packet->local_port,
        .service_port = place->service.port,
    };
    struct replacement service = {
        .is_source = true,
        .address = &place->service.address,
        .port = place->service.port,
    };
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    struct view view;
    struct tcp tcp;
    __u8 flags = 0;

    if (!flow || !look_settled(flow, &key, &view, false, frame->now))
        return is_from_original(frame, place) ? UNDECIDED : DROP_NOT_OWNER;
    if (!is_from(frame, &view.site))
        return DROP_NOT_OWNER;
    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (!load_tcp(context, packet, &tcp))
        return DROP_SHORT;
    if (tcp.flags & TCP_FIN)
        flags |= FIN_OWNER;
    if (tcp.flags & TCP_RST)
        flags |= RESET_OWNER;
    if ((tcp.flags & TCP_ACK) && (view.standing.flags & FIN_CLAIMED) &&
        bpf_ntohl(tcp.acknowledgment) == view.standing.claim)
        flags |= FIN_CLIENT;
    if (!(flags & ~view.standing.flags))
        flags = 0; /* they are set already */
    note(flow, &key, flags, 0, frame->now);
    replace_end(context, packet, &service);
    set_source(context, &view.original);
    frame->from_owner = true;
    return UNDECIDED;
}

/* The number with which the receiver acknowledges all of a segment that has FIN. */
static __noinline __u32 end_of(struct xdp_md *context, const struct packet *packet, const struct tcp *tcp)
{
    __u32 headers = packet->transport - packet->network + (tcp->offset >> 4) * 4;
    __u32 at = packet->network + (packet->is_ipv6 ? 4 : __builtin_offsetof(struct ipv4, length));
    __be16 field = 0;
    __u32 bytes;

    load(context, at, &field, sizeof(field));
    bytes = bpf_ntohs(field) + (packet->is_ipv6 ? IPV6_HEADER_BYTES : 0);
    bytes = bytes > headers ? bytes - headers : 0;
    return bpf_ntohl(tcp->sequence) + bytes + 1 + (tcp->flags & TCP_SYN ? 1 : 0);
}

/* Rule 4b: to a service. */
static __always_inline enum verdict to_server(struct xdp_md *context, struct frame *frame)
{
    const struct packet *packet = &frame->packet;
    struct flow_key key = {
        .client = packet->peer,
        .service = packet->local,
        .client_port = packet->peer_port,
        .service_port = packet->local_port,
    };
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    struct replacement replacement = {.is_source = false};
    struct tcp tcp = {};
    struct server *server;
    struct view view;
    bool is_short;

    if (!flow || !look_settled(flow, &key, &view, true, frame->now))
        return UNDECIDED;
    is_short = !load_tcp(context, packet, &tcp);
    if (!is_short && (tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
        (view.standing.flags & FIN_BOTH) == FIN_BOTH) {
        end_entry(flow, &key, view.standing.state, view.generation);
        return UNDECIDED;
    }
    if (packet->is_fragment)
        return DROP_FRAGMENT;
    if (is_short)
        return DROP_SHORT;
    if (tcp.flags & TCP_FIN)
        note(flow, &key, FIN_CLAIMED, end_of(context, packet, &tcp), frame->now);
    else
        note(flow, &key, 0, 0, frame->now);
    server = server_of(view.site.server);
    if (!server)
        return DROP_UNKNOWN_STATION;
    if (server->port == frame->ingress)
        return DROP_SAME_PORT;
    if (frame->is_routed && !route_out(context, packet, server->port))
        return PASSED;
    replacement.address = &view.site.address;
    replacement.port = view.site.port;
    replace_end(context, packet, &replacement);
    set_target(context, &view.site.mac);
    frame->egress = server->port;
    return view.standing.state == STATE_HELD ? TO_TARGET : TO_OWNER;
}

static __always_inline enum verdict flow_rule(struct xdp_md *context, struct frame *frame)
{
    if (frame->port->is_server) {
        struct place *place = place_of(&frame->packet.peer, frame->packet.peer_port);

        if (place)
            return from_server(context, frame, place);
    }
    return to_server(context, frame);
}

#endif
