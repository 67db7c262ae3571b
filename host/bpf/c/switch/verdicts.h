/* The switch's decision on a packet, with the reason. `spillway_rules::Verdict` (core/rules/src/verdict.rs) has the
 * same list, and describes each one. */
#ifndef SPILLWAY_SWITCH_VERDICTS_H
#define SPILLWAY_SWITCH_VERDICTS_H

enum verdict {
    SWITCHED,   /* to a station */
    ROUTED,     /* to the next hop of a prefix */
    FLOODED,    /* to all other ports */
    TO_OWNER,   /* a client's packet, or an ICMP error about one of the service, to the owner of the flow */
    TO_TARGET,  /* the same, to the target of the flow, which buffers it */
    ENCAPSULATED,      /* as the two before, through a tunnel */
    DECAPSULATED,      /* from a tunnel, to the kernel of the local server's host */
    TOO_LONG_ANSWERED, /* does not fit into a tunnel: turned into the ICMP error for the client */
    FROM_OWNER, /* from the owner of a flow to its client */
    ANSWERED,   /* a control message, turned into its answer */
    RELAYED,    /* a control message, sent on to another server */
    PASSED,     /* to the kernel of the switch's host */
    DROP_UNKNOWN_PORT,
    DROP_SHORT,
    DROP_LINK_LOCAL,
    DROP_SAME_PORT,
    DROP_NOT_OWNER,
    DROP_FRAGMENT,
    DROP_UNKNOWN_STATION,
    DROP_NO_ROUTE,
    DROP_CONTROL_PORT,
    DROP_CONTROL_INVALID,
    DROP_CONTROL_TAG,
    DROP_ANNOUNCEMENT,
    DROP_TOO_LONG,
    VERDICTS,
    UNDECIDED = VERDICTS, /* result of a step that leaves the decision to the next one */
};

#endif
