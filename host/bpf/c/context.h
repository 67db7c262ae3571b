/* The context of a program, which has the frame: XDP's, or tc's in a program that defines PROGRAM_IS_TC before it includes
 * any header. */
#ifndef SPILLWAY_CONTEXT_H
#define SPILLWAY_CONTEXT_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#ifdef PROGRAM_IS_TC
#define frame_context __sk_buff
#define load_frame bpf_skb_load_bytes
#define IS_EGRESS true
#else
#define frame_context xdp_md
#define load_frame bpf_xdp_load_bytes
#define IS_EGRESS false
#endif

/* Copies bytes of the frame; false if the frame is too short. A direct read at an offset that depends on the
 * frame's content would need CAP_PERFMON, not only CAP_BPF. */
static __always_inline bool load(struct frame_context *context, __u32 at, void *to, __u32 bytes)
{
    return load_frame(context, at, to, bytes) == 0;
}

#endif
