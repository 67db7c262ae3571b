/* Spillway for programs in C: the client and server libraries, version 0.1.0.
 *
 * Made from Rust source by cbindgen: change that, not this.
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
 * RELIEF by itself: spw_relief_new, spw_relief_connect instead of spw_connect, spw_measured for each reply; watch
 *   spw_relief_descriptor too, spw_relief_handle. It moves its sessions to helpers when replies are late, and back.
 *
 * NAMES begin with spw_ or SPW_: the verbs are PostMan's (USENIX ATC 2019).
 *
 * RESULTS. Functions that return int return SPW_OK (0), a number where their text says so, or a negative
 * spw_status. Those that return ptrdiff_t return a number of bytes or a negative spw_status. spw_last_error()
 * says in words why the last call in this thread failed, and what to do about it.
 *
 * OWNERSHIP. Whoever gets an object from spw_..._new, spw_connect or spw_listen frees it with its own function.
 * Texts and bytes that are given to a function are the caller's, and are needed during the call only. What
 * a function or an event lends is the library's: read it before the call that ends the loan, never free it.
 * Descriptors belong to their objects: watch them, never read or close them.
 *
 * THREADS. An object belongs to one thread at a time; it may be given from one to another. Different objects
 * may be in different threads, a relief and its sessions too. Settings may be read by several threads at once:
 * spw_connect, spw_listen. Otherwise a call with an object that another thread is using returns SPW_INVALID.
 *
 * MISTAKES. Null pointers, objects of another kind, texts that are not UTF-8 and numbers out of range return
 * SPW_INVALID and change nothing. Pointers that were freed, or that are no objects, cannot be told.
 * No function blocks, except spw_wait, spw_relief_connect for a moment, and those that look up a name. None
 * raises a signal: SIGPIPE is left as it is, and none comes from here. After fork() only the parent may use
 * its objects.
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

// The route to the server's own link port: direct. Helpers have 0, 1, 2 and so on, in the order in which they were given.
#define SPW_DIRECT UINT32_MAX

// The number of a route that is no longer among those of the session (`spw_set_routes`), and still carries it.
#define SPW_FORMER_ROUTE (UINT32_MAX - 1)

// What functions return. Errors are negative, with the numbers of Linux's errno, so that `strerror(-status)` fits.
typedef enum spw_status {
    // It is done.
    SPW_OK = 0,
    // Not now: nothing has arrived, or there is no room.
    SPW_AGAIN = -11,
    // A null pointer, an object of another kind, a text that cannot be read, a number out of range, or an object
    // that another thread uses at this moment. Nothing was done.
    SPW_INVALID = -22,
    // The system refused: a socket, an address in use, memory.
    SPW_SYSTEM = -5,
    // A key file, or a key's text, is not as it must be.
    SPW_KEY = -126,
    // No more is taken: it was finished or closed.
    SPW_CLOSED = -32,
    // The other end reset the connection: bytes under way are lost.
    SPW_RESET = -104,
    // The server refused the session.
    SPW_REFUSED = -111,
    // The server does not know the session any more: it was restarted, or the session expired. `spw_gone` tells how
    // much it is known to have received; the outcome of the rest is unknown.
    SPW_GONE = -103,
    // No server has answered on any route for too long.
    SPW_TIMED_OUT = -110,
    // There is no such client (any more).
    SPW_UNKNOWN_CLIENT = -107,
    // A fault inside the library. It was told on standard error; the object can only be freed.
    SPW_INTERNAL = -131,
} spw_status;

// Whose key it is.
typedef enum spw_role {
    // A helper: it carries the connections of many clients.
    SPW_HELPER = 1,
    // A client that speaks links itself.
    SPW_CLIENT = 2,
} spw_role;

// Why a client is refused.
typedef enum spw_refusal {
    // There are too many clients.
    SPW_REFUSE_FULL = 1,
    // This client may not connect.
    SPW_REFUSE_FORBIDDEN = 2,
    // The server is going away, or does not serve now.
    SPW_REFUSE_UNAVAILABLE = 3,
} spw_refusal;

// Where the operator wants sessions.
typedef enum spw_override {
    // Clients decide.
    SPW_OVERRIDE_AUTO = 0,
    // With helpers.
    SPW_OVERRIDE_ON = 1,
    // Direct.
    SPW_OVERRIDE_OFF = 2,
} spw_override;

// What happened at a link port.
typedef enum spw_event_kind {
    // A client connects: answer with `spw_accept` or `spw_refuse`, now or later. Its requests may come before the
    // answer. `text` is its address.
    SPW_CONNECTED = 1,
    // `data` and `length`: bytes of a client, cut anywhere, at least one. Say `spw_consumed` when they are dealt with: until
    // then they count against the client's window.
    SPW_DATA = 2,
    // The client sends no more. Replies still reach it.
    SPW_FINISHED = 3,
    // The connection has ended; the number is no longer good, and needs no answer. `context` is there for the last time:
    // free what it points to. `reason` is 0 when the client closed it, otherwise it was reset.
    SPW_CLOSED_BY_CLIENT = 4,
    // `spw_compose` took less than it was given, and would take more now.
    SPW_ROOM = 5,
    // A helper, or a client that speaks links itself, has opened a link. For the log.
    SPW_LINK_OPENED = 6,
    // A link is gone. Each of its connections was told as closed before; sessions go on. For the log.
    SPW_LINK_LOST = 7,
    // A link claimed a client address that it may not carry; that connection was refused. For the log.
    SPW_FORBIDDEN = 8,
    // A helper wants to go away, and moves its clients itself. For the log.
    SPW_LINK_DRAINS = 9,
} spw_event_kind;

// What happened to a session.
typedef enum spw_session_event_kind {
    // Another route carries it from now on, or the first one does.
    SPW_SESSION_MOVED = 1,
    // A route carries it no more, or did not come to it; `why` tells the reason. Another is tried.
    SPW_SESSION_CARRIER_LOST = 2,
    // The server's application accepted it.
    SPW_SESSION_ACCEPTED = 3,
    // `spw_send` has room again after it took less than it was given.
    SPW_SESSION_ROOM = 4,
} spw_session_event_kind;

// A link port: helpers, and clients that speak links themselves, open links to it.
typedef struct spw_port spw_port;

// What a link port accepts, and its bounds. Owned by the caller; ports keep a copy.
typedef struct spw_port_settings spw_port_settings;

// Relief of one service, for this program: it learns how fast replies come, moves sessions to helpers when they are late,
// and back.
typedef struct spw_relief spw_relief;

// A session: one ordered stream of bytes in each direction, which goes on by itself when what carries it is lost.
typedef struct spw_session spw_session;

// What sessions need to know. Owned by the caller; sessions keep a copy.
typedef struct spw_settings spw_settings;

// An event of a session. None needs an answer.
typedef struct spw_session_event {
    // Which: a `spw_session_event_kind`.
    int32_t kind;
    // Of *moved* and *carrier lost*: the route, a helper's number or `SPW_DIRECT`.
    uint32_t route;
    // Of these two: the route's address. Otherwise empty, never null. Lent until the next call with this session.
    const char *address;
    // Of *carrier lost*: why, in words. Otherwise empty, never null. Lent likewise.
    const char *why;
} spw_session_event;

// Names a client's connection. Never 0; a number that has ended is not another's for a long time.
typedef uint64_t spw_client;

// An event of a link port.
typedef struct spw_event {
    // Which: a `spw_event_kind`.
    int32_t kind;
    // Of `SPW_CLOSED_BY_CLIENT`.
    int32_t reason;
    // Whose; 0 for events of links.
    spw_client client;
    // What `spw_set_context` has set for this client; null before.
    void *context;
    // Of `SPW_DATA`: the bytes, lent until the next call of `spw_decompose` or `spw_port_handle` with this port.
    const uint8_t *data;
    // How many.
    size_t length;
    // Of `SPW_CONNECTED` and of links: who, and why, in words. Otherwise null. Lent likewise.
    const char *text;
} spw_event;

// What is known about a client: the paper's *get_info*.
typedef struct spw_info {
    // `SPW_HELPER`: through a helper. `SPW_CLIENT`: it speaks links itself.
    int32_t role;
    // Its own address.
    char address[SPW_ADDRESS_BYTES];
    // Bytes of requests received.
    uint64_t bytes_received;
    // Bytes of replies sent.
    uint64_t bytes_sent;
} spw_info;

// What a relief is about.
typedef struct spw_relief_figures {
    // In a word, as in "direct", "late", "moving", "helped", "backed off".
    char stage[16];
    // The operator's `spw_override` that holds.
    int32_t word;
    // Its sessions.
    uint32_t sessions;
    // Those of them that are helped.
    uint32_t helped;
    // Of the last while: 99 of 100 replies came within so many microseconds. 0: there was none.
    uint64_t p99_us;
    // Times that the sessions were moved to helpers as a whole.
    uint64_t activations;
    // Times that this was found to be of no use.
    uint64_t back_offs;
    // Sessions that went where they were sent.
    uint64_t moves;
} spw_relief_figures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says in words why the last call in this thread failed, and what to do about it. Never null; empty when none has.
// Good until the next call in this thread that fails.
const char *spw_last_error(void);

// A short text for a status. Never null, and for ever good.
const char *spw_status_text(int status);

// The library's version, as in "0.1.0". Compare it with `SPW_VERSION`, the header's.
const char *spw_version(void);

// Makes settings with the defaults of everything: no address yet. Null when there is no memory.
struct spw_settings *spw_settings_new(void);

// The server's own link port, `HOST:PORT`: the direct route. A host's name is looked up at once, which may wait.
int spw_settings_server(struct spw_settings *settings,
                        const char *address);

// The helpers' link ports, `HOST:PORT`, separated by commas or white space, 256 at most. They take the place of those
// that were given before. Names are looked up at once, which may wait. The first is tried first: give programs that shall
// not all meet at one helper different orders.
int spw_settings_helpers(struct spw_settings *settings,
                         const char *list);

// The client key, from a key file that only its owner can read (`spillway key new FILE`). Not needed on loopback
// when neither server nor helpers have keys.
int spw_settings_key_file(struct spw_settings *settings,
                          const char *path);

// The client key, as the text of a key file. The library keeps a copy, and wipes it at the end; the caller's is the
// caller's to wipe.
int spw_settings_key_text(struct spw_settings *settings,
                          const char *text);

// Whether links that would not be encrypted are refused (0 by default): of a server or helper that is too old for it.
// Otherwise links are encrypted where both ends can and have a key.
int spw_settings_require_encryption(struct spw_settings *settings,
                                    int require);

// The server that is wanted of helpers which serve several: its link port, as the helpers' configuration names it. Not
// needed where they serve one.
int spw_settings_service(struct spw_settings *settings,
                         const char *address);

// The route on which sessions begin: a helper's number, or `SPW_DIRECT`. By default the first helper, or direct where
// there is none.
int spw_settings_begin(struct spw_settings *settings,
                       uint32_t route);

// How long a carrier may be silent while something is awaited of it, in milliseconds: what is chosen by measured round
// trips is never less than `floor` (100 by default) nor more than `ceiling` (1000). One that is silent for `idle` (5000)
// although nothing is awaited is asked for a sign of life.
int spw_settings_patience_ms(struct spw_settings *settings,
                             uint32_t floor,
                             uint32_t ceiling,
                             uint32_t idle);

// Over how much time sessions return to the server when no helper is left, in milliseconds: each at random within
// `window` (1000 by default), which doubles up to `window_max` (8000) while the server does not take it.
int spw_settings_pace_ms(struct spw_settings *settings,
                         uint32_t window,
                         uint32_t window_max);

// How long one route may take until the server has answered on it (1000 by default), and after how long without any the
// session is given up (60000), in milliseconds.
int spw_settings_give_up_ms(struct spw_settings *settings,
                            uint32_t route,
                            uint32_t session);

// Bytes that may have arrived and not been received (256 KiB by default), and bytes that may be sent and not
// acknowledged, which are kept in memory (256 KiB). From 4 KiB to 64 MiB.
int spw_settings_limits(struct spw_settings *settings,
                        uint32_t window_bytes,
                        uint32_t kept_bytes);

// Frees settings. Sessions that were made of them go on. Null is allowed.
void spw_settings_free(struct spw_settings *settings);

// Opens a session and returns at once: the first route is tried from now on. What is sent before a server has answered
// waits. `*session` becomes the new session, for the caller to free, or null on an error.
int spw_connect(const struct spw_settings *settings,
                struct spw_session **session);

// Sends a prefix of `length` bytes and returns its length. `SPW_AGAIN` when too much is not acknowledged yet:
// `SPW_SESSION_ROOM` tells when it is worth trying again. What was taken is kept until the server has it, on whatever
// route.
ptrdiff_t spw_send(struct spw_session *session,
                   const void *data,
                   size_t length);

// Receives up to `size` bytes and returns how many. 0 is the end of the stream. `SPW_AGAIN` when nothing has arrived; all
// other errors are for ever.
ptrdiff_t spw_receive(struct spw_session *session,
                      void *buffer,
                      size_t size);

// The descriptor to watch for reading, in `poll`, `epoll` or anything like it. It never changes, and belongs to the
// session: do not close it.
int spw_poll_descriptor(const struct spw_session *session);

// How long to wait for the descriptor at most before `spw_handle` is due, in milliseconds, rounded up: as `poll` takes it.
// -1: for ever. Ask after the other calls, right before the wait.
int spw_next_timeout_ms(const struct spw_session *session);

// Does what there is to do: to be called when the descriptor is ready and when the timeout has passed; once too often does
// no harm. Returns 1 when `spw_receive` has something (bytes, the end, or an error), otherwise 0.
int spw_handle(struct spw_session *session);

// For programs without a loop: waits until there is something to do, `timeout_ms` at most (-1: for ever), and does it.
// Returns as `spw_handle`. 0 says that something was done, that the time has passed, or that a signal came: call again as
// long as what is wanted has not come.
int spw_wait(struct spw_session *session,
             int timeout_ms);

// What happened since it was last asked: 1 and an event, or 0. Ask until 0 after `spw_handle`; of those that nobody asks for
// the latest 32 are kept.
int spw_next_event(struct spw_session *session,
                   struct spw_session_event *event);

// What carries the session now: `*route` becomes a helper's number or `SPW_DIRECT`, and the buffer its address; both may be
// null (with a `size` of 0). `SPW_AGAIN` while nothing does.
int spw_carrier(const struct spw_session *session,
                uint32_t *route,
                char *address,
                size_t size);

// Moves to a route, a helper's number or `SPW_DIRECT`, at once. Requests may be under way: nothing is lost.
int spw_move(struct spw_session *session,
             uint32_t route);

// Other routes from now on: the server and the helpers of these settings, which may be others than the session was opened
// with. What carries it goes on doing so, be it among them or not (`SPW_FORMER_ROUTE`). All else in the settings is of no
// effect; the key must be the same.
int spw_set_routes(struct spw_session *session,
                   const struct spw_settings *settings);

// Tells the session's relief that a reply came, so long after its request was meant to be sent, in microseconds. Not for
// requests that wait because they are asked to. Of no effect for sessions of `spw_connect`.
int spw_measured(struct spw_session *session,
                 uint64_t latency_us);

// Tells the session's relief for how long the oldest request without a reply has waited, in microseconds; negative when
// none waits. Say so when it changes. Of no effect for sessions of `spw_connect`.
int spw_waiting(struct spw_session *session,
                int64_t waited_us);

// Sends no more; replies still come.
int spw_finish(struct spw_session *session);

// Closes. What was sent still reaches the server if the session is handled until it is over (`spw_is_over`).
int spw_close(struct spw_session *session);

// 1 when nothing more comes of the session: it was closed and the server has everything, or it failed for ever, which
// `spw_receive` then tells. Otherwise 0.
int spw_is_over(const struct spw_session *session);

// After `SPW_GONE`: the server is known to have received `*acknowledged` of the `*written` bytes that were sent. Both may be
// null. `SPW_AGAIN` when no call has returned `SPW_GONE`.
int spw_gone(const struct spw_session *session,
             uint64_t *acknowledged,
             uint64_t *written);

// Frees a session, with all that it lent; without `spw_close` before, and until it is over, the server may not have
// everything. Null is allowed.
void spw_free(struct spw_session *session);

// Makes settings with the defaults of everything. Null when there is no memory.
struct spw_port_settings *spw_port_settings_new(void);

// Accepts a key of helpers (`SPW_HELPER`) or of clients (`SPW_CLIENT`), from a key file that only its owner can read. May be
// called several times: all are accepted, so that keys can be exchanged. Without any key only a loopback address can be
// listened on, and everybody on this machine is accepted.
int spw_port_settings_key_file(struct spw_port_settings *settings,
                               int role,
                               const char *path);

// Whether links that would not be encrypted are refused (0 by default): of helpers and clients that are too old for it.
// `spw_listen` then fails without a key.
int spw_port_settings_require_encryption(struct spw_port_settings *settings,
                                         int require);

// The same, as the text of a key file. The library keeps a copy, and wipes it at the end.
int spw_port_settings_key_text(struct spw_port_settings *settings, int role, const char *text);

// Which client addresses helpers may carry: ranges as in `10.0.0.0/8`, separated by commas or white space. They take the
// place of those before. By default private ranges and loopback.
int spw_port_settings_allow_clients(struct spw_port_settings *settings,
                                    const char *ranges);

// Links at a time (16384 by default: one for each helper thread and for each client that speaks links itself), and virtual
// connections on each (65536).
int spw_port_settings_links(struct spw_port_settings *settings,
                            uint32_t links_max,
                            uint32_t connections_max);

// Sessions at a time (65536 by default); how long one without a carrier waits for its client (60000 ms), and a closed one
// for its client to have the rest (30000 ms).
int spw_port_settings_sessions(struct spw_port_settings *settings,
                               uint32_t sessions_max,
                               uint32_t detached_ms,
                               uint32_t linger_ms);

// Bytes of memory that all sessions may hold (256 MiB by default): beyond it, those that hold most and do not read are
// ended, which the application hears of as of a client that never returned. At least 64 KiB.
int spw_port_settings_sessions_memory(struct spw_port_settings *settings,
                                      uint64_t bytes);

// Of each session, and of each other client: bytes that may have come and not been consumed (256 KiB by default), and
// replies that are kept until they are acknowledged (256 KiB). From 4 KiB to 64 MiB.
int spw_port_settings_limits(struct spw_port_settings *settings,
                             uint32_t window_bytes,
                             uint32_t kept_bytes);

// Several threads share the address: each calls `spw_listen` with these settings, and has a port and a loop of its own. The
// kernel spreads links over them, and a session stays with the thread where it began.
int spw_port_settings_share(struct spw_port_settings *settings);

// Frees settings. Ports that were made of them go on. Null is allowed.
void spw_port_settings_free(struct spw_port_settings *settings);

// Opens a link port, `HOST:PORT`; with port 0 the system chooses one (`spw_port_address`). `*port` becomes the new port,
// for the caller to free, or null on an error.
int spw_listen(const struct spw_port_settings *settings,
               const char *address,
               struct spw_port **port);

// The port's address, into a buffer of `SPW_ADDRESS_BYTES`.
int spw_port_address(const struct spw_port *port, char *buffer, size_t size);

// The descriptor to watch for reading in the application's `epoll` or `poll`. It never changes, and belongs to the port: do
// not close it.
int spw_port_descriptor(const struct spw_port *port);

// How long to wait for the descriptor at most, in milliseconds, as `poll` takes it. -1: for ever. Ask after `spw_flush`,
// right before the wait.
int spw_port_next_timeout_ms(const struct spw_port *port);

// Begins a turn: to be called when the descriptor is ready and when the timeout has passed; once too often does no harm.
// Then `spw_decompose` until 0, then `spw_flush`. Links are accepted, and lost ones noticed, by the way.
int spw_port_handle(struct spw_port *port);

// Takes what came apart: 1 and the next event, or 0 when this turn has no more. What the event before lent is no longer
// good.
int spw_decompose(struct spw_port *port,
                  struct spw_event *event);

// Accepts a client that connects. Once is enough.
int spw_accept(struct spw_port *port, spw_client client);

// Refuses a client that was not accepted, with a `spw_refusal`. The number is no longer good, and what it asked counts as
// undelivered.
int spw_refuse(struct spw_port *port,
               spw_client client,
               int reason);

// Puts a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and returns its
// length. The bytes are copied. After it took less than all, `SPW_ROOM` tells when it is worth trying again.
ptrdiff_t spw_compose(struct spw_port *port,
                      spw_client client,
                      const void *reply,
                      size_t length);

// So many bytes of a client's requests are dealt with: it may send as many more. `SPW_INVALID` when that
// is more than came.
int spw_consumed(struct spw_port *port,
                 spw_client client,
                 size_t length);

// What is known about a client: the paper's *get_info*.
int spw_get_info(const struct spw_port *port, spw_client client, struct spw_info *info);

// Sets a pointer of the application's own for a client: all its events have it as `context`. It is never followed or freed
// here.
int spw_set_context(struct spw_port *port,
                    spw_client client,
                    void *context);

// Sends no more to a client, which may still send. What was composed before still reaches it.
int spw_finish_reply(struct spw_port *port, spw_client client);

// Closes the connection of a client that was accepted; the number is no longer good. What was composed before still reaches the client, unless
// `reset` is not 0.
int spw_close_connection(struct spw_port *port,
                         spw_client client,
                         int reset);

// Ends a turn: everything that was composed leaves, in one batch for each link. Call it also after composing outside of a
// turn.
int spw_flush(struct spw_port *port);

// Asks helpers and clients to move all connections away within this time, before the server goes. `spw_flush` sends it.
int spw_drain(struct spw_port *port,
              uint32_t deadline_ms);

// Sends sessions where they are wanted, by a `spw_override`, each within this time; it holds for sessions that come
// later, too. A session whose client knows no such way stays where it is. Returns how many are sent elsewhere now;
// `spw_flush` tells them.
int spw_port_relief(struct spw_port *port,
                    int word,
                    uint32_t within_ms);

// Sends sessions that are helped now back, once: this server can serve them directly again. Returns how many.
int spw_port_release(struct spw_port *port,
                     uint32_t within_ms);

// How many links, clients and sessions there are; each may be null. Sessions include those that wait for their clients, or
// that linger.
int spw_port_counts(const struct spw_port *port,
                    size_t *links,
                    size_t *clients,
                    size_t *sessions);

// Closes the port with all its links, and frees it with all that it lent. Contexts are the application's to free. Null is
// allowed.
void spw_port_free(struct spw_port *port);

// Makes the relief of a service, whose server and helpers these settings name, with the bounds of its sessions. Replies are
// late after `sla_us` microseconds (10 to 10,000,000). `*relief` becomes the new relief, for the caller to free, or null on
// an error.
int spw_relief_new(const struct spw_settings *settings,
                   uint32_t sla_us,
                   struct spw_relief **relief);

// Opens a session, as `spw_connect` does, where the relief wants it: it moves it from then on. While sessions are helped the
// helpers are asked first, which takes some milliseconds. `SPW_AGAIN` when there are too many. Tell `spw_measured` of each of
// its replies, and `spw_waiting` of what has none.
int spw_relief_connect(struct spw_relief *relief,
                       struct spw_session **session);

// The descriptor to watch for reading, beside those of the sessions.
int spw_relief_descriptor(const struct spw_relief *relief);

// How long to wait at most before `spw_relief_handle` is due, in milliseconds, as `poll` takes it. -1: for ever. Ask after
// the sessions' calls, right before the wait.
int spw_relief_next_timeout_ms(const struct spw_relief *relief);

// Does what is due, and moves sessions: to be called when the descriptor is ready and when the timeout has passed. Returns
// how many are moving. `spw_wait` with one of its sessions does this, too.
int spw_relief_handle(struct spw_relief *relief);

// The operator's word, a `spw_override`: it overrides everything for so many milliseconds; 0 is until another word.
int spw_relief_say(struct spw_relief *relief,
                   int word_of,
                   uint32_t lasts_ms);

// Other helpers from now on: those of these settings, of which only the helpers are looked at. Sessions at a helper that is
// no longer named stay until they are moved.
int spw_relief_set_helpers(struct spw_relief *relief,
                           const struct spw_settings *settings);

// What it has decided since it was last asked: 1 and a line for the log, or 0. Longer ones are cut to `size`.
int spw_relief_next_notice(struct spw_relief *relief,
                           char *buffer,
                           size_t size);

// What it is about.
int spw_relief_status(const struct spw_relief *relief, struct spw_relief_figures *figures);

// Frees a relief. Its sessions go on where they are, as those of `spw_connect` do. Null is allowed.
void spw_relief_free(struct spw_relief *relief);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_H */
