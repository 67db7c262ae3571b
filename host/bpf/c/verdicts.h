/* The program's decision on a packet, with the reason. `src/verdict.rs` has the same list. */
#ifndef SPILLWAY_VERDICTS_H
#define SPILLWAY_VERDICTS_H

enum verdict {
    /* Passed to the kernel: */
    PASS_OTHER,          /* neither TCP nor UDP over IP, for example ARP or ICMP */
    PASS_SHORT,          /* cut or invalid headers */
    PASS_LATER_FRAGMENT, /* a later fragment, which has no ports; useless without the first one */
    PASS_FOREIGN,        /* an address and port of the kernel or of another host */
    /* Passed to the stack: */
    TO_ENDPOINT, /* an address and port of the stack */
    TO_RANGE,    /* a port from the range for connections that the stack opens */
    TO_FLOW,     /* a connection that moved here */
    TO_ADDRESS,  /* an address that the kernel does not have */
    /* Dropped: packets of the stack, which the kernel would answer with resets. */
    DROP_FRAGMENT,   /* a fragment; the stack does not reassemble */
    DROP_LONG_CHAIN, /* PARSED_LONG_CHAIN, to an address of the stack */
    DROP_NO_SOCKET,  /* no socket is bound to the packet's queue */
    VERDICTS,
};

#endif
