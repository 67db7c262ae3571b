/* SipHash-2-4 (Aumasson and Bernstein 2012) over the authenticated bytes of a control message. */
#ifndef SPILLWAY_SWITCH_SIPHASH_H
#define SPILLWAY_SWITCH_SIPHASH_H

#include "message.h"

#define SIPHASH_BYTES (MESSAGE_BYTES - 8)

#define ROTATE_LEFT(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

#define SIPHASH_ROUND                                                                                      \
    do {                                                                                                   \
        v0 += v1;                                                                                          \
        v1 = ROTATE_LEFT(v1, 13) ^ v0;                                                                     \
        v0 = ROTATE_LEFT(v0, 32);                                                                          \
        v2 += v3;                                                                                          \
        v3 = ROTATE_LEFT(v3, 16) ^ v2;                                                                     \
        v0 += v3;                                                                                          \
        v3 = ROTATE_LEFT(v3, 21) ^ v0;                                                                     \
        v2 += v1;                                                                                          \
        v1 = ROTATE_LEFT(v1, 17) ^ v2;                                                                     \
        v2 = ROTATE_LEFT(v2, 32);                                                                          \
    } while (0)

#define SIPHASH_WORD(word)                                                                                 \
    do {                                                                                                   \
        v3 ^= (word);                                                                                      \
        SIPHASH_ROUND;                                                                                     \
        SIPHASH_ROUND;                                                                                     \
        v0 ^= (word);                                                                                      \
    } while (0)

static __always_inline __u64 message_tag(const struct message *message, __u64 key0, __u64 key1)
{
    const __u8 *bytes = (const __u8 *)message;
    __u64 v0 = key0 ^ 0x736f6d6570736575ULL;
    __u64 v1 = key1 ^ 0x646f72616e646f6dULL;
    __u64 v2 = key0 ^ 0x6c7967656e657261ULL;
    __u64 v3 = key1 ^ 0x7465646279746573ULL;

    if (!message)
        return 0;
    /* Unrolled, because without CAP_PERFMON the verifier does not track a loop's counter. */
#pragma clang loop unroll(full)
    for (int at = 0; at < SIPHASH_BYTES; at += 8) {
        __u64 word;

        __builtin_memcpy(&word, __builtin_assume_aligned(bytes + at, 8), sizeof(word));
        SIPHASH_WORD(word);
    }
    /* SipHash's last word has the length in its top byte. The bytes below are 0, because the length is a multiple of 8. */
    SIPHASH_WORD((__u64)SIPHASH_BYTES << 56);
    v2 ^= 0xff;
    SIPHASH_ROUND;
    SIPHASH_ROUND;
    SIPHASH_ROUND;
    SIPHASH_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

#endif
