/* Spillway for programs in C: the client and server libraries, version 0.1.0.
 *
 * Generated from the Rust sources and header.txt by cbindgen: do not edit.
 *
 * CLIENT                                        SERVER, in its own epoll or poll loop
 *   spw_settings_new, spw_settings_...              spw_port_settings_new, spw_port_settings_...
 *   spw_connect                                    spw_listen; watch spw_port_descriptor
 *   watch spw_poll_descriptor, wait no longer      wait no longer than spw_port_next_timeout_ms
 *     than spw_next_timeout_ms, spw_handle          spw_port_handle
 *     (or, without a loop of your own, spw_wait)   spw_decompose until 0: spw_accept, spw_compose, spw_consumed
 *   spw_send, spw_receive, spw_next_event            spw_flush
 *   spw_finish, spw_close until spw_is_over          spw_finish_reply, spw_close_connection, spw_port_relief, spw_drain
 *   spw_free, spw_settings_free                     spw_port_free, spw_port_settings_free
 *
 * AUTOMATIC RELIEF: spw_relief_new, spw_relief_connect instead of spw_connect, spw_measured for each reply; watch
 *   spw_relief_descriptor too, spw_relief_handle. A relief moves its sessions to helpers when replies are late, and back.
 *
 * NAMES begin with spw_ or SPW_: the verbs are PostMan's (USENIX ATC 2019).
 *
 * RESULTS. Functions that return int return SPW_OK (0), a number if their comment says so, or a negative
 * spw_status. Functions that return ptrdiff_t return a number of bytes or a negative spw_status.
 * spw_last_error() returns a text: why the last call in this thread failed, and what to do.
 *
 * OWNERSHIP. The caller of spw_..._new, spw_connect, spw_relief_connect or spw_listen frees the object with the
 * object's own function. Texts and bytes that are passed to a function are the caller's, and are used only
 * during the call. Texts and bytes that a function or an event returns are the library's: their comment says
 * how long they are valid; never free them. Descriptors belong to their objects: never read or close them.
 *
 * THREADS. One thread at a time may use an object; another thread may use it later. Different objects may be
 * used by different threads at once, also a relief and its sessions. Several threads may pass the same settings
 * to spw_connect and spw_listen at once. Otherwise, a call with an object in use returns SPW_INVALID.
 *
 * MISTAKES. Null pointers, objects of another kind, texts that are not UTF-8 and numbers out of range return
 * SPW_INVALID and change nothing. Freed pointers, and pointers to other memory, may go undetected.
 * No function blocks, except spw_wait, spw_relief_connect for some milliseconds, and functions that look up a
 * host name. No function raises SIGPIPE or changes its disposition. After fork() only the parent may use its
 * objects.
 *
 * Addresses are HOST:PORT, as in 10.0.0.5:11411 or [::1]:11411. SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

#define SPW_VERSION "0.1.0"
#define SPW_VERSION_MAJOR 0
#define SPW_VERSION_MINOR 1
#define SPW_VERSION_PATCH 0

// Size in bytes of a buffer for any address, `HOST:PORT` with its final zero.
#define SPW_ADDRESS_BYTES 64

// The route to the server's own link port: direct. Helpers have the numbers 0, 1, 2 and so on, in the order of the list.
#define SPW_DIRECT UINT32_MAX

// The number of a route that carries the session, but is not in its present list (`spw_set_routes`).
#define SPW_FORMER_ROUTE (UINT32_MAX - 1)

// Results of functions. Errors are negative errno values of Linux, so that `strerror(-status)` is a similar text.
typedef enum spw_status {
    // Success.
    SPW_OK = 0,
    // Try again later: nothing has arrived, or there is no room.
    SPW_AGAIN = -11,
    // A null pointer, an object of another kind, a text that cannot be read, a number out of range, or an object
    // that another thread is using. Nothing was done.
    SPW_INVALID = -22,
    // A system call failed: no descriptors, an address in use, no memory.
    SPW_SYSTEM = -5,
    // A key file, or a key's text, is invalid, or a key is missing.
    SPW_KEY = -126,
    // The stream was finished or closed, and accepts no more bytes.
    SPW_CLOSED = -32,
    // The other end reset the connection: bytes in flight are lost.
    SPW_RESET = -104,
    // The server refused the session.
    SPW_REFUSED = -111,
    // The server does not know the session any more: it was restarted, or the session expired. `spw_gone` returns how
    // many bytes the server is known to have received; the outcome of the rest is unknown.
    SPW_GONE = -103,
    // No server has answered on any route for too long.
    SPW_TIMED_OUT = -110,
    // The client's number is unknown, or its connection has ended.
    SPW_UNKNOWN_CLIENT = -107,
    // A panic inside the library, with a message on standard error; the object can only be freed.
    SPW_INTERNAL = -131,
} spw_status;

// Roles of peers at a link port.
typedef enum spw_role {
    // A helper, which carries the connections of many clients.
    SPW_HELPER = 1,
    // A library client.
    SPW_CLIENT = 2,
} spw_role;

// Reasons for `spw_refuse`.
typedef enum spw_refusal {
    // There are too many clients.
    SPW_REFUSE_FULL = 1,
    // This client may not connect.
    SPW_REFUSE_FORBIDDEN = 2,
    // The server drains, or does not serve now.
    SPW_REFUSE_UNAVAILABLE = 3,
} spw_refusal;

// An operator's override of relief.
typedef enum spw_override {
    // No override: clients decide.
    SPW_OVERRIDE_AUTO = 0,
    // Sessions are helped.
    SPW_OVERRIDE_ON = 1,
    // Sessions are direct.
    SPW_OVERRIDE_OFF = 2,
} spw_override;

// Kinds of events of a link port.
typedef enum spw_event_kind {
    // A client connects: answer with `spw_accept` or `spw_refuse`, now or later. Requests may arrive before the answer.
    // `text` is the client's address.
    SPW_CONNECTED = 1,
    // `data` and `length`: at least one byte of a client's requests; a request may be split over several events at any
    // byte. Call `spw_consumed` when the bytes are processed: until then they count against the client's window.
    SPW_DATA = 2,
    // The client sends no more bytes, but still receives replies.
    SPW_FINISHED = 3,
    // The connection has ended, and the number is not valid any more; no answer is needed. This is the last event with
    // the client's `context`: free what `context` points to. `reason` is 0 if the client closed the connection.
    // Otherwise the connection was reset: by the client, because its link was lost, or because a bound was exceeded.
    SPW_DISCONNECTED = 4,
    // An earlier `spw_compose` accepted only a part of the bytes; now it accepts more.
    SPW_CAN_COMPOSE = 5,
    // A helper or a library client has opened a link. For the log.
    SPW_LINK_OPENED = 6,
    // A link was lost. Each of its connections without a session has ended with `SPW_DISCONNECTED` before; its
    // sessions have no event and continue on another link. For the log.
    SPW_LINK_LOST = 7,
    // A connection was refused: the link on which it arrived may not carry clients of that address. For the log.
    SPW_FORBIDDEN = 8,
    // A helper drains, and moves its clients itself. For the log.
    SPW_LINK_DRAINS = 9,
} spw_event_kind;

// Kinds of events of a session.
typedef enum spw_session_event_kind {
    // A route carries the session: the first one, or another one than before.
    SPW_SESSION_MOVED = 1,
    // A route does not carry the session any more, or could not be used; `why` is the cause. Another route is tried.
    SPW_SESSION_CARRIER_LOST = 2,
    // The server's application accepted the session.
    SPW_SESSION_ACCEPTED = 3,
    // An earlier `spw_send` accepted only a part of its bytes. Now there is room again.
    SPW_SESSION_ROOM = 4,
} spw_session_event_kind;

// A link port, to which helpers and library clients open links.
typedef struct spw_port spw_port;

// Settings of link ports: keys, bounds and timeouts. Owned by the caller; ports keep a copy.
typedef struct spw_port_settings spw_port_settings;

// Automatic relief of one service for this program: moves its sessions to helpers while replies are late, and back.
typedef struct spw_relief spw_relief;

// A session: one ordered stream of bytes in each direction. It continues on another route when its carrier is lost.
typedef struct spw_session spw_session;

// Settings of sessions. Owned by the caller; sessions keep a copy.
typedef struct spw_settings spw_settings;

// An event of a session. It needs no answer. Texts are valid until the next call with this session, and never null.
typedef struct spw_session_event {
    // A `spw_session_event_kind`.
    int32_t kind;
    // *Moved* and *carrier lost*: the route, a helper's number or `SPW_DIRECT`.
    uint32_t route;
    // *Moved* and *carrier lost*: the route's address. Otherwise empty.
    const char *address;
    // *Carrier lost*: the cause, as text. Otherwise empty.
    const char *why;
} spw_session_event;

// The number of a client's connection. Never 0. A number is used again only after about 4 billion further connections.
typedef uint64_t spw_client;

// An event of a link port. `data` and `text` are valid until the next `spw_decompose` or `spw_port_handle` with this port.
typedef struct spw_event {
    // A `spw_event_kind`.
    int32_t kind;
    // `SPW_DISCONNECTED`: 0 if the client closed the connection, otherwise the code of the reset's cause.
    int32_t reason;
    // The client's number; 0 for events of links.
    spw_client client;
    // The pointer that `spw_set_context` has set for this client; null before.
    void *context;
    // `SPW_DATA`: the bytes.
    const uint8_t *data;
    // `SPW_DATA`: the number of bytes.
    size_t length;
    // `SPW_CONNECTED` and events of links: addresses and causes, as text. Otherwise null.
    const char *text;
} spw_event;

// A client's role, address and byte counts: the paper's *get_info*.
typedef struct spw_info {
    // The role of the client's link: `SPW_HELPER` or `SPW_CLIENT`, a library client's own link.
    int32_t role;
    // The client's own address.
    char address[SPW_ADDRESS_BYTES];
    // Bytes of requests received.
    uint64_t bytes_received;
    // Bytes of replies sent.
    uint64_t bytes_sent;
} spw_info;

// The state of a relief.
typedef struct spw_relief_figures {
    // The stage, such as "direct", "late", "moving", "helped" or "backed off".
    char stage[16];
    // The present override, a `spw_override`.
    int32_t manual_override;
    // Number of sessions.
    uint32_t sessions;
    // Number of helped sessions.
    uint32_t helped;
    // p99 of recent latencies, in microseconds. 0 without replies.
    uint64_t p99_us;
    // Number of times that the sessions moved to helpers together.
    uint64_t activations;
    // Number of times that helpers did not make the replies faster.
    uint64_t back_offs;
    // Moves of single sessions that succeeded.
    uint64_t moves;
} spw_relief_figures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of the last error in this thread: why the call failed, and what to do. Never null; empty without an error.
// Valid until the next call in this thread that fails.
const char *spw_last_error(void);

// A short text for a status. Never null, and always valid.
const char *spw_status_text(int status);

// The library's version, as in "0.1.0". Compare it with `SPW_VERSION`, the header's.
const char *spw_version(void);

// Makes settings with default values and without addresses. Null after a fault inside the library.
struct spw_settings *spw_settings_new(void);

// Sets the server's own link port, `HOST:PORT`: the direct route. A host's name is looked up at once, which may block.
int spw_settings_server(struct spw_settings *settings,
                        const char *address);

// Sets the list of helpers' link ports, `HOST:PORT`, separated by commas or white space, 256 at most. It replaces an
// earlier list. Names are looked up at once, which may block. The first helper is tried first: to spread programs over
// helpers, give them lists in different orders.
int spw_settings_helpers(struct spw_settings *settings,
                         const char *list);

// Sets the client key, from a key file that only its owner can read (`spillway key new FILE`). Not needed on loopback
// if neither server nor helpers have keys.
int spw_settings_key_file(struct spw_settings *settings,
                          const char *path);

// Sets the client key, from the text of a key file. The library erases its copy when it is freed; the caller should
// erase its own.
int spw_settings_key_text(struct spw_settings *settings,
                          const char *text);

// If `require` is not 0 (default 0), refuses unencrypted links, which servers and helpers of older versions have.
// Otherwise links are encrypted if both ends can encrypt and have a key.
int spw_settings_require_encryption(struct spw_settings *settings,
                                    int require);

// Names the server for helpers that serve several servers: its link port, as in the helpers' configuration. Not needed
// for helpers of one server.
int spw_settings_service(struct spw_settings *settings,
                         const char *address);

// Sets the route that sessions try first: a helper's number, or `SPW_DIRECT`. Default: the first helper, or direct
// without helpers.
int spw_settings_begin(struct spw_settings *settings,
                       uint32_t route);

// Sets the bounds of the timeout after which a session leaves a carrier that owes an answer, in milliseconds. The
// timeout follows measured round trips, between `floor` (default 100) and `ceiling` (1000). A carrier that owes no
// answer is probed after `idle` (5000) of silence.
int spw_settings_carrier_timeouts_ms(struct spw_settings *settings,
                                     uint32_t floor,
                                     uint32_t ceiling,
                                     uint32_t idle);

// Sets how the return of sessions to the server is spread in time when no helper is left, in milliseconds: each
// session returns at a random time within `window` (default 1000), which doubles up to `window_max` (8000) after each
// attempt that fails.
int spw_settings_pace_ms(struct spw_settings *settings,
                         uint32_t window,
                         uint32_t window_max);

// Sets two timeouts in milliseconds: for the server's answer on a new `route` (default 1000), and for a `session`
// without an answering route, which is then given up (60000).
int spw_settings_give_up_ms(struct spw_settings *settings,
                            uint32_t route,
                            uint32_t session);

// Sets the bounds of a session's memory: bytes that have arrived and were not received (default 256 KiB), and bytes
// that were sent and not acknowledged (256 KiB). From 4 KiB to 64 MiB each.
int spw_settings_limits(struct spw_settings *settings,
                        uint32_t window_bytes,
                        uint32_t kept_bytes);

// Frees settings. Sessions made with them continue. Null is allowed.
void spw_settings_free(struct spw_settings *settings);

// Begins to open a session on the first route, and returns at once. Bytes that are sent before the server has answered
// wait. `*session` becomes the new session, for the caller to free, or null on an error.
int spw_connect(const struct spw_settings *settings,
                struct spw_session **session);

// Accepts a prefix of the `length` bytes, and returns its length. These bytes are kept, and sent on any route, until
// the server has acknowledged them. `SPW_AGAIN` when too many bytes are not acknowledged yet: try again after
// `SPW_SESSION_ROOM`.
ptrdiff_t spw_send(struct spw_session *session,
                   const void *data,
                   size_t length);

// Receives up to `size` bytes and returns their number; 0 is the end of the stream. `SPW_AGAIN` when nothing has arrived;
// other errors of the stream are final.
ptrdiff_t spw_receive(struct spw_session *session,
                      void *buffer,
                      size_t size);

// The descriptor to watch for reading, by `poll`, `epoll` or similar. It never changes, and belongs to the session: do not
// close it.
int spw_poll_descriptor(const struct spw_session *session);

// The timeout for `poll`: how long to wait for the descriptor before `spw_handle` is due, in milliseconds, rounded up; -1:
// without limit. Call it after all other calls, right before the wait.
int spw_next_timeout_ms(const struct spw_session *session);

// Sends, receives and handles timeouts. Call it when the descriptor is ready and when the timeout has passed; spurious
// calls are harmless. Returns 1 if `spw_receive` would return bytes, the end, or a final error; otherwise 0.
int spw_handle(struct spw_session *session);

// For programs without an event loop: waits for input or a timer, at most `timeout_ms` (-1: without limit), and then does
// what `spw_handle` does. Returns 1 like `spw_handle`; 0 after other input, after the timeout, or after a signal: call it
// again until the result is there.
int spw_wait(struct spw_session *session,
             int timeout_ms);

// Returns 1 and the next event, or 0 without an event. Call it after `spw_handle` until it returns 0; only the latest 32
// events are kept.
int spw_next_event(struct spw_session *session,
                   struct spw_session_event *event);

// The route that carries the session now: `*route` becomes a helper's number or `SPW_DIRECT`, and `address` its address.
// Both may be null (with a `size` of 0). `SPW_AGAIN` while no route carries the session.
int spw_carrier(const struct spw_session *session,
                uint32_t *route,
                char *address,
                size_t size);

// Moves the session at once to a route, a helper's number or `SPW_DIRECT`. Requests may be in flight: no byte is lost.
int spw_move(struct spw_session *session,
             uint32_t route);

// Replaces the session's routes by the server and the helpers of these settings. The present carrier stays in use, even if
// it is not among them (`SPW_FORMER_ROUTE`). The key must be the same as before; other settings have no effect.
int spw_set_routes(struct spw_session *session,
                   const struct spw_settings *settings);

// Reports a reply to the session's relief: `latency_us` is the time in microseconds since the request was due. Do not
// report blocking commands, which wait on purpose. No effect for sessions of `spw_connect`.
int spw_measured(struct spw_session *session,
                 uint64_t latency_us);

// Reports to the session's relief for how long the oldest request without a reply has waited, in microseconds; negative
// without such a request. Call it when that request changes. No effect for sessions of `spw_connect`.
int spw_oldest_wait(struct spw_session *session,
                    int64_t waited_us);

// Ends the outgoing stream; replies still arrive.
int spw_finish(struct spw_session *session);

// Closes the session. Sent bytes still reach the server if the session is handled until it is over (`spw_is_over`).
int spw_close(struct spw_session *session);

// 1 if the session has ended: it was closed and the server has received everything, or it failed, with the error that
// `spw_receive` returns. Otherwise 0.
int spw_is_over(const struct spw_session *session);

// After `SPW_GONE`: the server is known to have received `*acknowledged` of the `*written` bytes that were sent. Both may
// be null. `SPW_AGAIN` when no call has returned `SPW_GONE`.
int spw_gone(const struct spw_session *session,
             uint64_t *acknowledged,
             uint64_t *written);

// Frees a session and its events' texts. If the session is freed before it is closed and over, the server may not
// receive everything. Null is allowed.
void spw_free(struct spw_session *session);

// Makes settings with default values. Null after a fault inside the library.
struct spw_port_settings *spw_port_settings_new(void);

// Adds a key of helpers (`SPW_HELPER`) or clients (`SPW_CLIENT`), from a key file that only its owner can read. The port
// accepts all added keys, so that keys can be rotated. Without a key, only a loopback address is possible, and every
// process on this host is accepted.
int spw_port_settings_key_file(struct spw_port_settings *settings,
                               int role,
                               const char *path);

// If `require` is not 0 (default 0), refuses unencrypted links, which helpers and clients of older versions open, and
// `spw_listen` fails without a key.
int spw_port_settings_require_encryption(struct spw_port_settings *settings,
                                         int require);

// As `spw_port_settings_key_file`, from the text of a key file. The library erases its copy when it is freed.
int spw_port_settings_key_text(struct spw_port_settings *settings,
                               int role,
                               const char *text);

// Sets the client addresses that helpers may carry: ranges as in `10.0.0.0/8`, separated by commas or white space. They
// replace earlier ones. Default: private ranges and loopback.
int spw_port_settings_allow_clients(struct spw_port_settings *settings,
                                    const char *ranges);

// Sets the maximum of concurrent links (default 16384), of which each helper thread and each library client opens one,
// and of virtual connections on each link (65536).
int spw_port_settings_links(struct spw_port_settings *settings,
                            uint32_t links_max,
                            uint32_t connections_max);

// Sets the maximum of sessions (default 65536), how long a session without a carrier waits for its client (60000 ms), and
// how long a closed session waits until its client has received the rest (30000 ms).
int spw_port_settings_sessions(struct spw_port_settings *settings,
                               uint32_t sessions_max,
                               uint32_t detached_ms,
                               uint32_t linger_ms);

// Sets the maximum of memory that all sessions may hold, in bytes (default 256 MiB, at least 64 KiB). At the limit,
// the sessions that hold most and whose clients do not read are reset: the application gets `SPW_DISCONNECTED`.
int spw_port_settings_sessions_memory(struct spw_port_settings *settings,
                                      uint64_t bytes);

// Sets the bounds of each client: request bytes that have arrived and were not consumed (default 256 KiB), and reply bytes
// that are kept until they are acknowledged (256 KiB). From 4 KiB to 64 MiB each.
int spw_port_settings_limits(struct spw_port_settings *settings,
                             uint32_t window_bytes,
                             uint32_t kept_bytes);

// Lets several threads share the address: each calls `spw_listen` with these settings, and has its own port and event loop.
// The kernel distributes links over the threads, and a session stays with the thread where it began.
int spw_port_settings_share(struct spw_port_settings *settings);

// Frees settings. Ports made with them stay open. Null is allowed.
void spw_port_settings_free(struct spw_port_settings *settings);

// Opens a link port at `HOST:PORT`; with port 0 the system chooses one (`spw_port_address`). `*port` becomes the new port,
// for the caller to free, or null on an error.
int spw_listen(const struct spw_port_settings *settings,
               const char *address,
               struct spw_port **port);

// Writes the port's address into a buffer of `SPW_ADDRESS_BYTES`.
int spw_port_address(const struct spw_port *port, char *buffer, size_t size);

// The descriptor to watch for reading, by `poll`, `epoll` or similar. It never changes, and belongs to the port: do not
// close it.
int spw_port_descriptor(const struct spw_port *port);

// The timeout for `poll`: how long to wait for the descriptor before `spw_port_handle` is due, in milliseconds, rounded up;
// -1: without limit. Call it after `spw_flush`, right before the wait.
int spw_port_next_timeout_ms(const struct spw_port *port);

// Begins a turn. Call it when the descriptor is ready and when the timeout has passed, then `spw_decompose` until it
// returns 0, then `spw_flush`. Spurious calls are harmless.
int spw_port_handle(struct spw_port *port);

// Returns 1 and the next event, or 0 when this turn has no more events. Bytes and text of the previous event are not
// valid any more. This call also accepts links and receives from them.
int spw_decompose(struct spw_port *port,
                  struct spw_event *event);

// Accepts a client that connects. No effect for a client that was accepted before.
int spw_accept(struct spw_port *port, spw_client client);

// Refuses a client that was not accepted; `reason` is a `spw_refusal`. The number is not valid any more, and the client's
// requests count as undelivered.
int spw_refuse(struct spw_port *port,
               spw_client client,
               int reason);

// Copies a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and returns
// its length. If that is less than the whole reply, try again after `SPW_CAN_COMPOSE`.
ptrdiff_t spw_compose(struct spw_port *port,
                      spw_client client,
                      const void *reply,
                      size_t length);

// Reports that the application has processed `length` more bytes of a client's requests: the client may send as many
// more. `SPW_INVALID` if that is more than were received.
int spw_consumed(struct spw_port *port,
                 spw_client client,
                 size_t length);

// Returns a client's role, address and byte counts: the paper's *get_info*.
int spw_get_info(const struct spw_port *port, spw_client client, struct spw_info *info);

// Sets the application's own pointer for a client, which all later events of this client have as `context`. The library
// neither follows nor frees it.
int spw_set_context(struct spw_port *port,
                    spw_client client,
                    void *context);

// Ends the stream of replies to a client, which may still send. Replies composed before still reach the client.
int spw_finish_reply(struct spw_port *port,
                     spw_client client);

// Closes the connection of a client that was accepted; the number is not valid any more. Replies composed before still
// reach the client, unless `reset` is not 0.
int spw_close_connection(struct spw_port *port,
                         spw_client client,
                         int reset);

// Ends a turn: sends everything that was composed, in one batch for each link. Call it also after composing outside of a
// turn.
int spw_flush(struct spw_port *port);

// Asks helpers and library clients to move all connections away within `deadline_ms`, before the server ends. `spw_flush`
// sends the request.
int spw_drain(struct spw_port *port,
              uint32_t deadline_ms);

// Sets the override of relief, a `spw_override`. Present sessions on the wrong carrier are asked to move at random times
// within `within_ms`, and so are later ones after they are accepted. A session whose client has no such route stays.
// Returns the number of sessions asked to move; `spw_flush` sends the requests.
int spw_port_relief(struct spw_port *port,
                    int manual_override,
                    uint32_t within_ms);

// Sends the sessions that are helped now back to the server's own port, once, at random times within `within_ms`. Later
// sessions are not affected. Returns the number of sessions asked to move.
int spw_port_release(struct spw_port *port,
                     uint32_t within_ms);

// Returns the numbers of links, clients and sessions; each pointer may be null. Sessions include those that wait for
// their clients, and closed ones that linger.
int spw_port_counts(const struct spw_port *port,
                    size_t *links,
                    size_t *clients,
                    size_t *sessions);

// Closes the port and its links, and frees the port and its events' data. The application frees its contexts. Null is
// allowed.
void spw_port_free(struct spw_port *port);

// Creates the relief of a service. The settings name the server and the helpers, and limit the sessions. Replies are late
// after `sla_us` microseconds (10 to 10,000,000). `*relief` becomes the new relief, for the caller to free, or null on an
// error.
int spw_relief_new(const struct spw_settings *settings,
                   uint32_t sla_us,
                   struct spw_relief **relief);

// Opens a session, as `spw_connect` does, on the carrier that the relief chooses; the relief also moves it later.
// While sessions are helped, this call queries the load of helpers, which blocks for some milliseconds. `SPW_AGAIN`
// when there are too many sessions. Report each reply by `spw_measured`, and the oldest request without a reply by
// `spw_oldest_wait`.
int spw_relief_connect(struct spw_relief *relief,
                       struct spw_session **session);

// The descriptor to watch for reading, in addition to those of the sessions.
int spw_relief_descriptor(const struct spw_relief *relief);

// The timeout for `poll`: how long to wait before `spw_relief_handle` is due, in milliseconds, rounded up; -1: without
// limit. Call it after all calls with sessions, right before the wait.
int spw_relief_next_timeout_ms(const struct spw_relief *relief);

// Applies the policy and moves sessions. Call it when the descriptor is ready and when the timeout has passed. Returns the
// number of sessions that were ordered to move. `spw_wait` with one of the relief's sessions does this, too.
int spw_relief_handle(struct spw_relief *relief);

// Sets the operator's override, a `spw_override`, for `lasts_ms` milliseconds; 0 is without limit.
int spw_relief_override(struct spw_relief *relief, int manual_override, uint32_t lasts_ms);

// Replaces the helpers by those of these settings, which must name the same server; other settings have no effect. A
// session on a helper outside the new list stays there until it moves.
int spw_relief_set_helpers(struct spw_relief *relief,
                           const struct spw_settings *settings);

// Returns 1 and the next decision as a line for the log, truncated to `size` bytes; 0 without a decision.
int spw_relief_next_notice(struct spw_relief *relief,
                           char *buffer,
                           size_t size);

// Returns the state of a relief.
int spw_relief_status(const struct spw_relief *relief, struct spw_relief_figures *figures);

// Frees a relief. Its sessions continue on their carriers, like sessions of `spw_connect`. Null is allowed.
void spw_relief_free(struct spw_relief *relief);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_H */
