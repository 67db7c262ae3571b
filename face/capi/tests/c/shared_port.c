/* A link port that two threads share, each with its own loop, and sessions that move to a new link in each round. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

enum { THREADS = 2, SESSIONS = 8, ROUNDS = 40, LENGTH = 1000 };

static spw_port_settings *settings;
static spw_port *ports[THREADS];
static char address[SPW_ADDRESS_BYTES];
static atomic_int is_stopped, clients[THREADS];

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, spw_last_error(), wanted);
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

static void *serve(void *which) {
    spw_port *port = ports[*(int *)which];
    while (!is_stopped) {
        spw_event event;
        int timeout = spw_port_next_timeout_ms(port);
        struct pollfd watched = {.fd = spw_port_descriptor(port), .events = POLLIN};
        poll(&watched, 1, timeout < 0 || timeout > 20 ? 20 : timeout);
        EXPECT(SPW_OK, spw_port_handle(port));
        while (spw_decompose(port, &event) == 1) {
            if (event.kind == SPW_CONNECTED) {
                clients[*(int *)which]++;
                EXPECT(SPW_OK, spw_accept(port, event.client));
            } else if (event.kind == SPW_DATA) {
                /* Each client has one message in flight, which fits into its window. */
                EXPECT((ptrdiff_t)event.length, spw_compose(port, event.client, event.data, event.length));
                EXPECT(SPW_OK, spw_consumed(port, event.client, event.length));
            }
        }
        EXPECT(SPW_OK, spw_flush(port));
    }
    return NULL;
}

static void round_trip(spw_session *session, int number) {
    unsigned char request[LENGTH], reply[LENGTH];
    size_t received = 0;
    for (size_t at = 0; at < LENGTH; at++)
        request[at] = (unsigned char)(at * 7 + (size_t)number * 31);
    EXPECT(LENGTH, spw_send(session, request, LENGTH));
    while (received < LENGTH) {
        ptrdiff_t length = spw_receive(session, reply + received, LENGTH - received);
        if (length == SPW_AGAIN) {
            EXPECT(1, spw_wait(session, -1) >= 0);
            continue;
        }
        EXPECT(1, length > 0);
        received += (size_t)length;
    }
    EXPECT(0, memcmp(request, reply, LENGTH));
}

int main(void) {
    int numbers[THREADS] = {0, 1};
    pthread_t threads[THREADS];
    spw_session *sessions[SESSIONS];
    spw_settings *of_client = spw_settings_new();
    settings = spw_port_settings_new();
    EXPECT(SPW_OK, spw_port_settings_share(settings));
    for (int at = 0; at < THREADS; at++) {
        EXPECT(SPW_OK, spw_listen(settings, at == 0 ? "127.0.0.1:0" : address, &ports[at]));
        EXPECT(SPW_OK, spw_port_address(ports[at], address, sizeof address));
    }
    /* The ports are opened here and then used by one thread each. */
    for (int at = 0; at < THREADS; at++)
        EXPECT(0, pthread_create(&threads[at], NULL, serve, &numbers[at]));
    EXPECT(SPW_OK, spw_settings_server(of_client, address));
    for (int at = 0; at < SESSIONS; at++)
        EXPECT(SPW_OK, spw_connect(of_client, &sessions[at]));
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < SESSIONS; at++) {
            round_trip(sessions[at], round * SESSIONS + at);
            /* The move opens a new link, which either thread may get. */
            EXPECT(SPW_OK, spw_move(sessions[at], SPW_DIRECT));
        }
    }
    for (int at = 0; at < SESSIONS; at++)
        spw_free(sessions[at]);
    is_stopped = 1;
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    EXPECT(SESSIONS, clients[0] + clients[1]);
    for (int at = 0; at < THREADS; at++)
        spw_port_free(ports[at]);
    spw_port_settings_free(settings);
    spw_settings_free(of_client);
    puts("the port is shared");
    return EXIT_SUCCESS;
}
