/* A received frame, and reading of its headers. */
#ifndef SPILLWAY_SWITCH_FRAME_H
#define SPILLWAY_SWITCH_FRAME_H

#include "maps.h"

struct frame {
    struct packet packet;
    enum parsed parsed;
    struct mac target;
    struct mac source;
    __u64 now;
    __u32 ingress;     /* port number */
    __u32 egress;      /* port number, for verdicts that name a port */
    struct port port;  /* the ingress port */
    bool is_routed;    /* addressed to the ingress port */
    bool from_owner;   /* passed the check of rule 4a */
    __u8 tunnel;       /* the server to whose host the packet goes through a tunnel; 0: no tunnel */
};

struct ethernet {
    struct mac target;
    struct mac source;
    __be16 kind;
};

struct ipv4 {
    __u8 version_length;
    __u8 service_type;
    __be16 length;
    __be16 identification;
    __be16 fragment;
    __u8 hop_limit;
    __u8 protocol;
    __u16 check;
    __be32 source;
    __be32 destination;
};

struct tcp {
    __be16 source;
    __be16 destination;
    __be32 sequence;
    __be32 acknowledgment;
    __u8 offset;
    __u8 flags;
    __be16 window;
    __u16 check;
    __be16 urgent;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define IPV6_HEADER_BYTES 40
/* The flag "don't fragment" of an IPv4 header. */
#define IPV4_DONT_FRAGMENT 0x4000

/* Offsets of headers in a frame without VLAN tags and IPv4 options. */
#define PLAIN_NETWORK sizeof(struct ethernet)
#define PLAIN_TRANSPORT (PLAIN_NETWORK + sizeof(struct ipv4))

/* Whether the packet is ICMP of its family, with the beginning of the message. */
static __always_inline bool is_icmp(const struct frame *frame)
{
    return frame->parsed == PARSED_NO_PORTS &&
           frame->packet.protocol == (frame->packet.is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

/* Sets `data` to the frame's first bytes; false if it is shorter. (Not a pointer that may be NULL, because without
 * CAP_PERFMON the program may not compare a pointer to the frame with 0.) */
static __always_inline bool head(struct frame_context *context, __u32 bytes, void **data)
{
    *data = (void *)(long)context->data;
    return *data + bytes <= (void *)(long)context->data_end;
}

/* Whether the headers have their usual offsets, at which they can be read without a BPF helper function. */
static __always_inline bool is_plain(const struct packet *packet)
{
    return !packet->is_ipv6 && packet->network == PLAIN_NETWORK && packet->transport == PLAIN_TRANSPORT;
}

/* The datagram of a control message, and where it ends in a frame whose headers are at their usual offsets. */
#define DATAGRAM_BYTES (sizeof(struct udp) + sizeof(struct message))
#define PLAIN_DATAGRAM_END (PLAIN_TRANSPORT + DATAGRAM_BYTES)

/* Read and write 8 bytes of the frame as two words of 4 bytes: only these are aligned, if the IP header is. */
static __always_inline __u64 read_word(const void *at)
{
    __u32 low, high;

    __builtin_memcpy(&low, __builtin_assume_aligned(at, sizeof(low)), sizeof(low));
    __builtin_memcpy(&high, __builtin_assume_aligned(at + sizeof(low), sizeof(high)), sizeof(high));
    return (__u64)high << 32 | low;
}

static __always_inline void write_word(void *at, __u64 word)
{
    __u32 low = word, high = word >> 32;

    __builtin_memcpy(__builtin_assume_aligned(at, sizeof(low)), &low, sizeof(low));
    __builtin_memcpy(__builtin_assume_aligned(at + sizeof(low), sizeof(high)), &high, sizeof(high));
}

/* Whether the headers have their least lengths, and no VLAN tag precedes them. */
static __always_inline bool has_plain_headers(const struct packet *packet)
{
    __u32 bytes = packet->is_ipv6 ? IPV6_HEADER_BYTES : sizeof(struct ipv4);

    return packet->network == PLAIN_NETWORK && packet->transport == PLAIN_NETWORK + bytes;
}

/* A function of its own: its local variables take space on the stack (512 bytes in all) only during the call. */
__noinline int parse_slowly(struct frame_context *context, struct packet *packet)
{
    return packet ? parse(context, packet) : PARSED_SHORT;
}

/* As parse(), but faster for TCP and UDP over IPv4 without VLAN tags, options and fragments. */
static __always_inline enum parsed parse_frame(struct frame_context *context, struct packet *packet)
{
    struct ethernet *ethernet;
    struct ipv4 *ip;
    struct ports *ports;
    void *data;

    if (!head(context, PLAIN_TRANSPORT + sizeof(struct ports), &data))
        return parse_slowly(context, packet);
    ethernet = data;
    if (ethernet->kind != bpf_htons(ETH_P_IP))
        return parse_slowly(context, packet);
    ip = (void *)(ethernet + 1);
    if (ip->version_length != 0x45 || (ip->fragment & bpf_htons(IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)) ||
        (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
        return parse_slowly(context, packet);
    ports = (void *)(ip + 1);
    packet->target = mapped(ip->destination);
    packet->source = mapped(ip->source);
    packet->target_port = ports->destination;
    packet->source_port = ports->source;
    packet->protocol = ip->protocol;
    packet->network = PLAIN_NETWORK;
    packet->transport = PLAIN_TRANSPORT;
    return PARSED_PORTS;
}

/* Copies the TCP header without options; false if the frame is too short. */
static __always_inline bool load_tcp(struct frame_context *context, const struct packet *packet, struct tcp *tcp)
{
    void *data;

    if (is_plain(packet)) {
        if (!head(context, PLAIN_TRANSPORT + sizeof(*tcp), &data))
            return false;
        *tcp = *(struct tcp *)(data + PLAIN_TRANSPORT);
        return true;
    }
    return load(context, packet->transport, tcp, sizeof(*tcp));
}

#endif
