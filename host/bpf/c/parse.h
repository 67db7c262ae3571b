/* Finds the addresses and ports of a frame: Ethernet with VLAN tags, ARP, IPv4 with options, IPv6 with
 * extension headers. `tests/steer/model.rs` does the same in Rust, and the tests compare the results. */
#ifndef SPILLWAY_PARSE_H
#define SPILLWAY_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include "context.h"

/* A chain of this number of extension headers is too long; shorter chains are parsed. RFC 8200 §4.1 recommends at most
 * five of the kinds that are parsed here. */
#define EXTENSIONS_MAX 8

/* Maximum VLAN tags, of 802.1Q or 802.1ad in any order; 802.1ad uses two. Frames with more tags pass. Tags
 * with VLAN 0 are the reason for parsing them: the kernel removes them, and its TCP would send a reset. */
#define VLAN_TAGS_MAX 3

#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV6_FRAGMENT_OFFSET 0xfff8

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d (RFC 4291 §2.5.5.2). */
struct address {
    __be32 words[4];
};

/* Result of parse(). */
enum parsed {
    PARSED_OTHER, /* neither IP nor ARP */
    PARSED_SHORT, /* cut or invalid headers */
    /* All of struct packet is set: */
    PARSED_PORTS, /* TCP or UDP */
    /* Only the addresses are set, for IP also is_ipv6 and network: */
    PARSED_ARP,            /* of the ARP packet's target and of its sender (RFC 826) */
    PARSED_NO_PORTS,       /* neither TCP nor UDP over IP */
    PARSED_LATER_FRAGMENT, /* ports are in another fragment */
    PARSED_LONG_CHAIN,     /* EXTENSIONS_MAX extension headers, or a first fragment without all headers (RFC 7112) */
};

/* A received packet. */
struct packet {
    struct address target; /* destination */
    struct address source;
    __be16 target_port;
    __be16 source_port;
    __u8 protocol; /* IPPROTO_TCP or IPPROTO_UDP */
    bool is_fragment;
    bool is_ipv6;
    bool has_more_tags; /* PARSED_OTHER because of more than VLAN_TAGS_MAX tags */
    /* Offsets in the frame. */
    __u32 network;   /* of the IP header */
    __u32 transport; /* of what follows the IP headers; also set for PARSED_NO_PORTS */
};

struct vlan_tag {
    __be16 control;
    __be16 kind;
};

/* An ARP packet for IPv4 over Ethernet (RFC 826). <linux/if_arp.h> would need the C library's headers. */
struct arp {
    __be16 hardware;
    __be16 protocol;
    __u8 hardware_bytes;
    __u8 protocol_bytes;
    __be16 operation;
    __u8 sender_mac[ETH_ALEN];
    __be16 sender_ip[2];
    __u8 target_mac[ETH_ALEN];
    __be16 target_ip[2];
};

#define ARP_HARDWARE_ETHERNET 1
#define ARP_HARDWARE_IEEE802 6 /* accepted by Linux as Ethernet */

struct ports {
    __be16 source;
    __be16 destination;
};

/* The first two bytes of extension headers (RFC 8200 §4). */
struct extension {
    __u8 next;
    __u8 length; /* in units of 8 bytes, without the first unit */
};

/* The least length of a header behind an IPv6 header. */
#define NEXT_HEADER_BYTES_MIN 8

struct fragment {
    __u8 next;
    __u8 reserved;
    __be16 offset;
    __be32 identification;
};

static __always_inline struct address mapped(__be32 ipv4)
{
    return (struct address){{0, 0, bpf_htonl(0xffff), ipv4}};
}

static __always_inline enum parsed parse_ports(struct frame_context *context, __u32 at, struct packet *packet)
{
    struct ports ports;

    packet->transport = at;
    if (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP)
        return PARSED_NO_PORTS;
    if (!load(context, at, &ports, sizeof(ports)))
        return PARSED_SHORT;
    packet->target_port = ports.destination;
    packet->source_port = ports.source;
    return PARSED_PORTS;
}

static __always_inline enum parsed parse_ipv4(struct frame_context *context, __u32 at, struct packet *packet)
{
    struct iphdr header;
    __u16 fragment;

    if (!load(context, at, &header, sizeof(header)) || header.version != 4 || header.ihl < 5)
        return PARSED_SHORT;
    packet->network = at;
    packet->target = mapped(header.daddr);
    packet->source = mapped(header.saddr);
    packet->protocol = header.protocol;
    fragment = bpf_ntohs(header.frag_off);
    if (fragment & IPV4_FRAGMENT_OFFSET)
        return PARSED_LATER_FRAGMENT;
    packet->is_fragment = fragment & IPV4_MORE_FRAGMENTS;
    return parse_ports(context, at + header.ihl * 4, packet);
}

static __always_inline enum parsed parse_ipv6(struct frame_context *context, __u32 at, struct packet *packet)
{
    struct ipv6hdr header;
    __u32 end;
    __u8 next;

    if (!load(context, at, &header, sizeof(header)) || header.version != 6)
        return PARSED_SHORT;
    packet->network = at;
    packet->is_ipv6 = true;
    __builtin_memcpy(&packet->target, &header.daddr, sizeof(packet->target));
    __builtin_memcpy(&packet->source, &header.saddr, sizeof(packet->source));
    next = header.nexthdr;
    at += sizeof(header);
    end = at + bpf_ntohs(header.payload_len);
    /* Unrolled, because without CAP_PERFMON the verifier does not track a loop's counter. */
#pragma clang loop unroll(full)
    for (int count = 0; count < EXTENSIONS_MAX; count++) {
        bool is_extension = next == IPPROTO_FRAGMENT || next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING ||
                            next == IPPROTO_DSTOPTS;

        /* What follows in the frame is padding, in place of headers that another fragment has. */
        if (packet->is_fragment && at + NEXT_HEADER_BYTES_MIN > end &&
            (is_extension || next == IPPROTO_TCP || next == IPPROTO_UDP))
            return PARSED_LONG_CHAIN;
        if (next == IPPROTO_FRAGMENT) {
            struct fragment fragment;

            if (!load(context, at, &fragment, sizeof(fragment)))
                return PARSED_SHORT;
            if (fragment.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
                return PARSED_LATER_FRAGMENT;
            /* Includes fragments that are whole packets (RFC 6946): the stack parses no fragment headers. */
            packet->is_fragment = true;
            next = fragment.next;
            at += sizeof(fragment);
        } else if (is_extension) {
            struct extension extension;

            if (!load(context, at, &extension, sizeof(extension)))
                return PARSED_SHORT;
            next = extension.next;
            at += (extension.length + 1) * 8;
        } else {
            packet->protocol = next;
            return parse_ports(context, at, packet);
        }
    }
    return PARSED_LONG_CHAIN;
}

static __always_inline enum parsed parse_arp(struct frame_context *context, __u32 at, struct packet *packet)
{
    struct arp arp;
    __be32 sender, target;

    if (!load(context, at, &arp, sizeof(arp)))
        return PARSED_SHORT;
    if ((arp.hardware != bpf_htons(ARP_HARDWARE_ETHERNET) && arp.hardware != bpf_htons(ARP_HARDWARE_IEEE802)) ||
        arp.protocol != bpf_htons(ETH_P_IP) || arp.hardware_bytes != ETH_ALEN ||
        arp.protocol_bytes != sizeof(target))
        return PARSED_OTHER;
    __builtin_memcpy(&sender, arp.sender_ip, sizeof(sender));
    __builtin_memcpy(&target, arp.target_ip, sizeof(target));
    packet->source = mapped(sender);
    packet->target = mapped(target);
    return PARSED_ARP;
}

static __always_inline bool is_vlan_tag(__be16 kind)
{
    return kind == bpf_htons(ETH_P_8021Q) || kind == bpf_htons(ETH_P_8021AD);
}

static __always_inline enum parsed parse(struct frame_context *context, struct packet *packet)
{
    struct ethhdr *header = (void *)(long)context->data;
    __u32 at = sizeof(*header);
    __be16 kind;

    if ((void *)(header + 1) > (void *)(long)context->data_end)
        return PARSED_SHORT;
    kind = header->h_proto;
#pragma clang loop unroll(full)
    for (int count = 0; count < VLAN_TAGS_MAX; count++) {
        struct vlan_tag tag;

        if (!is_vlan_tag(kind))
            break;
        if (!load(context, at, &tag, sizeof(tag)))
            return PARSED_SHORT;
        kind = tag.kind;
        at += sizeof(tag);
    }
    if (kind == bpf_htons(ETH_P_IP))
        return parse_ipv4(context, at, packet);
    if (kind == bpf_htons(ETH_P_IPV6))
        return parse_ipv6(context, at, packet);
    if (kind == bpf_htons(ETH_P_ARP))
        return parse_arp(context, at, packet);
    packet->has_more_tags = is_vlan_tag(kind);
    return PARSED_OTHER;
}

#endif
