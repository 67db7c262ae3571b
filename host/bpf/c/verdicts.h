/* What happens to a packet, and why. `src/verdict.rs` has the same list. */
#ifndef SPILLWAY_VERDICTS_H
#define SPILLWAY_VERDICTS_H

enum verdict {
    /* To the kernel: */
    PASS_OTHER,          /* neither TCP nor UDP over IP, such as ARP and ICMP */
    PASS_SHORT,          /* a frame whose headers are cut or invalid */
    PASS_LATER_FRAGMENT, /* a fragment without ports; its first fragment decides whether the kernel can use it */
    PASS_FOREIGN,        /* an address and port of the kernel's, or of another host */
    /* To the stack: */
    TO_ENDPOINT, /* an address and port of the stack's */
    TO_RANGE,    /* a port in the range for connections that the stack opens */
    TO_FLOW,     /* a connection that moved here */
    TO_ADDRESS,  /* an address that the kernel does not have */
    /* Dropped: they belong to the stack, and the kernel would answer them with resets. */
    DROP_FRAGMENT,   /* the stack does not reassemble */
    DROP_LONG_CHAIN, /* too many IPv6 extension headers to find the port, to one of the stack's addresses */
    DROP_NO_SOCKET,  /* no socket is bound to the packet's queue */
    VERDICTS,
};

#endif
