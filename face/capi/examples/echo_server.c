/* An echo server for plain and helped clients, on one epoll loop.
 *
 *     echo_server --listen 127.0.0.1:7000 --link 127.0.0.1:7400 [--key FILE] [--client-key FILE]
 *
 * The plain half is an ordinary server: accept, recv, send. The helped half adds PostMan's verbs: decompose a helper's
 * batches, compose the replies, and flush them in one batch at the end of the turn. Both halves keep a client's unsent
 * replies in `struct client`. SIGTERM and SIGINT end the server with status 0. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <spillway.h>

/* Back-pressure: a plain client with PENDING_BYTES_MAX unsent reply bytes is not read. */
enum { PENDING_BYTES_MAX = 256 * 1024, EVENTS = 256, PAUSE_MS = 100 };

/* A plain or helped client, and its replies that wait for room. */
struct client {
    struct client *next, *previous;
    int descriptor; /* a plain client's socket; -1 for a helped client */
    spw_client number; /* a helped client's number */
    unsigned char *pending;
    size_t length, size;
    int finished; /* the client sends no more: close its connection after the last reply */
};

struct server {
    int epoll, listener, paused;
    spw_port *port;
    struct client clients; /* head of a circular list */
};

static volatile sig_atomic_t is_stopped;

static void stop(int signal) {
    (void)signal;
    is_stopped = 1;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "echo_server: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

/* Ends the program after an error: calls fail here only because of mistakes in this program. */
static void check(const char *what, ptrdiff_t status) {
    if (status < 0)
        die(what, spw_last_error());
}

static struct client *add_client(struct server *server, int descriptor, spw_client number) {
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return NULL;
    client->descriptor = descriptor;
    client->number = number;
    client->next = server->clients.next;
    client->previous = &server->clients;
    client->next->previous = client;
    client->previous->next = client;
    return client;
}

static void remove_client(struct client *client) {
    client->next->previous = client->previous;
    client->previous->next = client->next;
    if (client->descriptor >= 0)
        close(client->descriptor);
    free(client->pending);
    free(client);
}

/* Keeps replies that wait for room. Returns 0 without memory. */
static int keep(struct client *client, const void *bytes, size_t length) {
    if (length == 0)
        return 1;
    if (client->size - client->length < length) {
        size_t size = 2 * (client->length + length);
        unsigned char *grown = realloc(client->pending, size);
        if (grown == NULL)
            return 0;
        client->pending = grown;
        client->size = size;
    }
    memcpy(client->pending + client->length, bytes, length);
    client->length += length;
    return 1;
}

static void drop_sent(struct client *client, size_t sent) {
    client->length -= sent;
    if (client->length > 0)
        memmove(client->pending, client->pending + sent, client->length);
}

/* The helped half. */

static void reply(struct server *server, struct client *client) {
    ptrdiff_t composed = spw_compose(server->port, client->number, client->pending, client->length);
    check("spw_compose", composed);
    drop_sent(client, (size_t)composed);
    check("spw_consumed", spw_consumed(server->port, client->number, (size_t)composed));
    if (client->finished && client->length == 0) {
        check("spw_finish_reply", spw_finish_reply(server->port, client->number));
        check("spw_close_connection", spw_close_connection(server->port, client->number, 0));
        remove_client(client);
    }
}

static void handle_event(struct server *server, const spw_event *event) {
    struct client *client = event->context;
    switch (event->kind) {
    case SPW_CONNECTED:
        client = add_client(server, -1, event->client);
        if (client == NULL) {
            check("spw_refuse", spw_refuse(server->port, event->client, SPW_REFUSE_FULL));
            break;
        }
        check("spw_set_context", spw_set_context(server->port, event->client, client));
        check("spw_accept", spw_accept(server->port, event->client));
        break;
    case SPW_DATA: {
        /* Copy from the batch of requests into the batch of replies, unless earlier replies wait. */
        ptrdiff_t composed = 0;
        if (client->length == 0)
            composed = spw_compose(server->port, event->client, event->data, event->length);
        check("spw_compose", composed);
        check("spw_consumed", spw_consumed(server->port, event->client, (size_t)composed));
        /* The client's window bounds the rest, because it is not consumed before it is composed. */
        if (!keep(client, event->data + composed, event->length - (size_t)composed)) {
            check("spw_close_connection", spw_close_connection(server->port, event->client, 1));
            remove_client(client);
        }
        break;
    }
    case SPW_CAN_COMPOSE:
        reply(server, client);
        break;
    case SPW_FINISHED:
        client->finished = 1;
        reply(server, client);
        break;
    case SPW_DISCONNECTED:
        remove_client(client);
        break;
    case SPW_LINK_OPENED:
    case SPW_LINK_LOST:
    case SPW_FORBIDDEN:
        fprintf(stderr, "echo_server: link: %s\n", event->text);
        break;
    }
}

static void serve_links(struct server *server) {
    spw_event event;
    int more;
    check("spw_port_handle", spw_port_handle(server->port));
    while ((more = spw_decompose(server->port, &event)) == 1)
        handle_event(server, &event);
    check("spw_decompose", more);
    /* Each link gets one batch with all replies of this turn. */
    check("spw_flush", spw_flush(server->port));
}

/* The plain half. */

static uint32_t interest(const struct client *client) {
    uint32_t events = 0;
    if (!client->finished && client->length < PENDING_BYTES_MAX)
        events |= EPOLLIN;
    if (client->length > 0)
        events |= EPOLLOUT;
    return events;
}

static int watch(struct server *server, int how, int descriptor, uint32_t events, void *what) {
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(server->epoll, how, descriptor, &event);
}

static void accept_plain(struct server *server) {
    for (;;) {
        int on = 1, descriptor = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (descriptor < 0) {
            /* Most likely EMFILE: the listener stays readable, so it must not be watched for a while. */
            if (errno != EAGAIN)
                server->paused = watch(server, EPOLL_CTL_MOD, server->listener, 0, &server->listener) == 0;
            return;
        }
        struct client *client = add_client(server, descriptor, 0);
        if (client == NULL) {
            close(descriptor);
            continue;
        }
        setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (watch(server, EPOLL_CTL_ADD, descriptor, EPOLLIN, client) != 0)
            remove_client(client);
    }
}

/* Reads requests and writes replies. Returns whether the connection stays open. */
static int echo_plain(struct client *client) {
    static unsigned char buffer[64 * 1024];
    if (interest(client) & EPOLLIN) {
        ssize_t received = recv(client->descriptor, buffer, sizeof buffer, 0);
        if (received == 0)
            client->finished = 1;
        else if (received > 0 ? !keep(client, buffer, (size_t)received) : errno != EAGAIN && errno != EINTR)
            return 0;
    }
    if (client->length > 0) {
        ssize_t sent = send(client->descriptor, client->pending, client->length, MSG_NOSIGNAL);
        if (sent >= 0)
            drop_sent(client, (size_t)sent);
        else if (errno != EAGAIN && errno != EINTR)
            return 0;
    }
    return !(client->finished && client->length == 0);
}

static void serve_plain(struct server *server, struct client *client) {
    uint32_t before = interest(client);
    int stays = echo_plain(client);
    if (stays && interest(client) != before)
        stays = watch(server, EPOLL_CTL_MOD, client->descriptor, interest(client), client) == 0;
    if (!stays)
        remove_client(client);
}

/* The event loop. */

static void run(struct server *server, const sigset_t *waiting) {
    struct epoll_event events[EVENTS];
    while (!is_stopped) {
        int timeout = spw_port_next_timeout_ms(server->port);
        if (server->paused && (timeout < 0 || timeout > PAUSE_MS))
            timeout = PAUSE_MS;
        int ready = epoll_pwait(server->epoll, events, EVENTS, timeout, waiting);
        if (ready < 0 && errno != EINTR)
            die("epoll_pwait", strerror(errno));
        if (server->paused && watch(server, EPOLL_CTL_MOD, server->listener, EPOLLIN, &server->listener) == 0)
            server->paused = 0;
        for (int at = 0; at < ready; at++) {
            void *what = events[at].data.ptr;
            if (what == &server->listener)
                accept_plain(server);
            else if (what != &server->port)
                serve_plain(server, what);
        }
        /* In every turn, because the port's timeout may have passed. */
        serve_links(server);
    }
}

static int listen_plain(const char *text, struct sockaddr_in *address) {
    char host[64];
    const char *colon = strrchr(text, ':');
    int on = 1, descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof *address;
    if (colon == NULL || (size_t)(colon - text) >= sizeof host)
        die(text, "write ADDRESS:PORT");
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    if (inet_pton(AF_INET, host, &address->sin_addr) != 1)
        die(text, "write ADDRESS:PORT");
    if (descriptor < 0 || setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(descriptor, (struct sockaddr *)address, sizeof *address) != 0 || listen(descriptor, 1024) != 0
        || getsockname(descriptor, (struct sockaddr *)address, &length) != 0)
        die(text, strerror(errno));
    return descriptor;
}

int main(int count, char **arguments) {
    struct server server = {.paused = 0};
    const char *listen_on = NULL, *link_on = NULL;
    spw_port_settings *settings = spw_port_settings_new();
    for (int at = 1; at < count; at += 2) {
        const char *name = arguments[at], *value = arguments[at + 1]; /* arguments[count] is null */
        if (value == NULL)
            die(name, "needs a value");
        if (strcmp(name, "--listen") == 0)
            listen_on = value;
        else if (strcmp(name, "--link") == 0)
            link_on = value;
        else if (strcmp(name, "--key") == 0)
            check(name, spw_port_settings_key_file(settings, SPW_HELPER, value));
        else if (strcmp(name, "--client-key") == 0)
            check(name, spw_port_settings_key_file(settings, SPW_CLIENT, value));
        else
            die(name, "unknown argument");
    }
    if (listen_on == NULL || link_on == NULL)
        die("usage", "echo_server --listen ADDRESS:PORT --link ADDRESS:PORT [--key FILE] [--client-key FILE]");

    /* Signals are blocked except during epoll_pwait. */
    sigset_t blocked, waiting;
    struct sigaction action = {.sa_handler = stop};
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigprocmask(SIG_BLOCK, &blocked, &waiting);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);

    struct sockaddr_in address;
    char host[INET_ADDRSTRLEN], links[SPW_ADDRESS_BYTES];
    server.clients.next = server.clients.previous = &server.clients;
    server.listener = listen_plain(listen_on, &address);
    check("spw_listen", spw_listen(settings, link_on, &server.port));
    spw_port_settings_free(settings);
    server.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (server.epoll < 0 || watch(&server, EPOLL_CTL_ADD, server.listener, EPOLLIN, &server.listener) != 0
        || watch(&server, EPOLL_CTL_ADD, spw_port_descriptor(server.port), EPOLLIN, &server.port) != 0)
        die("epoll", strerror(errno));
    check("spw_port_address", spw_port_address(server.port, links, sizeof links));
    inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
    printf("listening on %s:%u, links on %s\n", host, ntohs(address.sin_port), links);
    fflush(stdout);

    run(&server, &waiting);

    while (server.clients.next != &server.clients)
        remove_client(server.clients.next);
    spw_port_free(server.port);
    close(server.listener);
    close(server.epoll);
    return EXIT_SUCCESS;
}
