/* Client and server in one program and one thread, with a helper between them. Makes the calls that the examples do not
 * make.
 *
 * Prints the address of its link port; reads the address of a helper's link port from standard input. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

enum { TURNS = 60000, MUCH = 3 * 1024 * 1024 };

static spw_port_settings *port_settings;
static spw_settings *settings;
static spw_port *port;
static spw_session *session;
static spw_client client; /* the client's number at the server; 0: no client */
static char address[SPW_ADDRESS_BYTES], helper[SPW_ADDRESS_BYTES];
static size_t at_server; /* bytes that the server has received */
static int is_finished, room_at_server, room_at_client, accepted;

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, spw_last_error(), wanted);
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

/* Byte `place` of the stream, in both directions. */
static unsigned char byte_at(size_t place) {
    return (unsigned char)(place * 7 + place / 251);
}

static void serve(void) {
    spw_event event;
    EXPECT(SPW_OK, spw_port_handle(port));
    while (spw_decompose(port, &event) == 1) {
        if (event.kind == SPW_CONNECTED) {
            client = event.client;
            EXPECT(SPW_OK, spw_accept(port, client));
        } else if (event.kind == SPW_DATA) {
            for (size_t at = 0; at < event.length; at++, at_server++)
                EXPECT(byte_at(at_server), event.data[at]);
            EXPECT(SPW_OK, spw_consumed(port, event.client, event.length));
        } else if (event.kind == SPW_FINISHED) {
            is_finished = 1;
        } else if (event.kind == SPW_CAN_COMPOSE) {
            room_at_server++;
        } else if (event.kind == SPW_DISCONNECTED) {
            client = 0;
        }
    }
    EXPECT(SPW_OK, spw_flush(port));
}

/* A turn of client and server. Waits until either has something to do, at most 100 ms. */
static void turn(void) {
    spw_session_event event;
    int of_session = spw_next_timeout_ms(session), of_port = spw_port_next_timeout_ms(port);
    int timeout = of_session < 0 || (of_port >= 0 && of_port < of_session) ? of_port : of_session;
    struct pollfd watched[2] = {
        {.fd = spw_poll_descriptor(session), .events = POLLIN},
        {.fd = spw_port_descriptor(port), .events = POLLIN},
    };
    poll(watched, 2, timeout < 0 || timeout > 100 ? 100 : timeout);
    serve();
    EXPECT(1, spw_handle(session) >= 0);
    while (spw_next_event(session, &event) == 1) {
        room_at_client += event.kind == SPW_SESSION_ROOM;
        accepted += event.kind == SPW_SESSION_ACCEPTED;
    }
}

static int is_carried_by(uint32_t wanted) {
    uint32_t route;
    return spw_carrier(session, &route, NULL, 0) == SPW_OK && route == wanted;
}

#define UNTIL(condition)                                                                                          \
    do {                                                                                                          \
        int turns = 0;                                                                                            \
        for (; turns < TURNS && !(condition); turns++)                                                            \
            turn();                                                                                               \
        expect(__LINE__, #condition, turns < TURNS, 1);                                                           \
    } while (0)

static void open_both(void) {
    EXPECT(SPW_OK, spw_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(SPW_OK, spw_port_address(port, address, sizeof address));
    printf("%s\n", address);
    fflush(stdout);
    /* Serve the helper, which opens its link, until its address is there. */
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        serve();
    EXPECT(1, fgets(helper, sizeof helper, stdin) != NULL);
    helper[strcspn(helper, "\n")] = 0;
    EXPECT(SPW_OK, spw_settings_server(settings, address));
    EXPECT(SPW_OK, spw_settings_helpers(settings, helper));
    EXPECT(SPW_OK, spw_settings_begin(settings, SPW_DIRECT));
    EXPECT(SPW_OK, spw_connect(settings, &session));
    UNTIL(is_carried_by(SPW_DIRECT));
    UNTIL(accepted == 1);
}

/* The server sends the session to the helper and back; then the client moves it. */
static void move_to_the_helper_and_back(void) {
    spw_info info;
    EXPECT(1, spw_port_relief(port, SPW_OVERRIDE_ON, 1));
    UNTIL(is_carried_by(0));
    EXPECT(SPW_OK, spw_get_info(port, client, &info));
    EXPECT(SPW_HELPER, info.role);
    EXPECT(0, spw_port_relief(port, SPW_OVERRIDE_AUTO, 0));
    EXPECT(1, spw_port_release(port, 1));
    UNTIL(is_carried_by(SPW_DIRECT));
    EXPECT(SPW_OK, spw_move(session, 0));
    UNTIL(is_carried_by(0));
    EXPECT(SPW_OK, spw_get_info(port, client, &info));
    EXPECT(SPW_HELPER, info.role);
    EXPECT(1, strncmp(info.address, "127.0.0.1:", 10) == 0);
}

/* Back-pressure in both directions, and the events that report room afterwards. */
static void fill_all_buffers(void) {
    static unsigned char bytes[64 * 1024], received[64 * 1024];
    size_t sent = 0, composed = 0, arrived = 0;
    while (sent < MUCH || composed < MUCH || arrived < MUCH || at_server < MUCH) {
        for (;;) {
            size_t length = sizeof bytes < MUCH - sent ? sizeof bytes : MUCH - sent;
            for (size_t at = 0; at < length; at++)
                bytes[at] = byte_at(sent + at);
            ptrdiff_t taken = length == 0 ? SPW_AGAIN : spw_send(session, bytes, length);
            if (taken == SPW_AGAIN)
                break;
            EXPECT(1, taken > 0);
            sent += (size_t)taken;
        }
        for (;;) {
            size_t length = sizeof bytes < MUCH - composed ? sizeof bytes : MUCH - composed;
            for (size_t at = 0; at < length; at++)
                bytes[at] = byte_at(composed + at);
            ptrdiff_t taken = spw_compose(port, client, bytes, length);
            EXPECT(1, taken >= 0);
            if (taken == 0)
                break;
            composed += (size_t)taken;
        }
        EXPECT(SPW_OK, spw_flush(port));
        turn();
        for (ptrdiff_t length; (length = spw_receive(session, received, sizeof received)) != SPW_AGAIN;) {
            EXPECT(1, length > 0);
            for (ptrdiff_t at = 0; at < length; at++, arrived++)
                EXPECT(byte_at(arrived), received[at]);
        }
    }
    EXPECT(1, room_at_server > 0 && room_at_client > 0);
    EXPECT(SPW_OK, spw_finish(session));
    EXPECT(SPW_CLOSED, spw_send(session, "x", 1));
    UNTIL(is_finished);
}

/* The server ends, and a new one at the same address does not know the session. */
static void restart_the_server(void) {
    uint64_t acknowledged = 0, written = 0;
    char byte;
    spw_port_free(port);
    EXPECT(SPW_OK, spw_listen(port_settings, address, &port));
    client = 0;
    ptrdiff_t status = SPW_AGAIN;
    for (int turns = 0; turns < TURNS && status == SPW_AGAIN; turns++) {
        turn();
        status = spw_receive(session, &byte, 1);
    }
    EXPECT(SPW_GONE, status);
    EXPECT(SPW_OK, spw_gone(session, &acknowledged, &written));
    EXPECT(MUCH, (ptrdiff_t)written);
    EXPECT(1, acknowledged <= written);
    EXPECT(1, spw_is_over(session));
    EXPECT(-1, spw_next_timeout_ms(session));
}

int main(int count, char **arguments) {
    port_settings = spw_port_settings_new();
    settings = spw_settings_new();
    EXPECT(3, count);
    EXPECT(SPW_OK, spw_port_settings_key_file(port_settings, SPW_HELPER, arguments[1]));
    EXPECT(SPW_OK, spw_port_settings_key_file(port_settings, SPW_CLIENT, arguments[2]));
    EXPECT(SPW_OK, spw_settings_key_file(settings, arguments[2]));
    open_both();
    move_to_the_helper_and_back();
    fill_all_buffers();
    restart_the_server();
    spw_free(session);
    spw_port_free(port);
    spw_settings_free(settings);
    spw_port_settings_free(port_settings);
    puts("both ends are right");
    return EXIT_SUCCESS;
}
