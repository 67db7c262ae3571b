/* Calls every function with every mistake that the library detects, and checks the status. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

static int failures;

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, spw_last_error(), wanted);
        if (++failures == 20)
            exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

static void *const nothing = NULL;

static void no_objects(void) {
    char address[SPW_ADDRESS_BYTES];
    unsigned char byte = 0;
    uint32_t route;
    spw_event event;
    spw_session_event session_event;
    spw_info info;
    spw_session *session;
    spw_port *port;
    EXPECT(SPW_INVALID, spw_settings_server(nothing, "127.0.0.1:1"));
    EXPECT(SPW_INVALID, spw_settings_helpers(nothing, "127.0.0.1:1"));
    EXPECT(SPW_KEY, spw_settings_key_text(nothing, "x")); /* the text is checked first */
    EXPECT(SPW_INVALID, spw_settings_service(nothing, "127.0.0.1:1"));
    EXPECT(SPW_INVALID, spw_settings_begin(nothing, 0));
    EXPECT(SPW_INVALID, spw_settings_carrier_timeouts_ms(nothing, 1, 1, 1));
    EXPECT(SPW_INVALID, spw_settings_pace_ms(nothing, 1, 1));
    EXPECT(SPW_INVALID, spw_settings_give_up_ms(nothing, 1, 1));
    EXPECT(SPW_INVALID, spw_settings_limits(nothing, 65536, 65536));
    EXPECT(SPW_INVALID, spw_connect(nothing, &session));
    EXPECT(0, session != NULL);
    EXPECT(SPW_INVALID, spw_send(nothing, &byte, 1));
    EXPECT(SPW_INVALID, spw_receive(nothing, &byte, 1));
    EXPECT(SPW_INVALID, spw_poll_descriptor(nothing));
    EXPECT(SPW_INVALID, spw_next_timeout_ms(nothing));
    EXPECT(SPW_INVALID, spw_handle(nothing));
    EXPECT(SPW_INVALID, spw_wait(nothing, 0));
    EXPECT(SPW_INVALID, spw_next_event(nothing, &session_event));
    EXPECT(SPW_INVALID, spw_carrier(nothing, &route, address, sizeof address));
    EXPECT(SPW_INVALID, spw_move(nothing, 0));
    EXPECT(SPW_INVALID, spw_finish(nothing));
    EXPECT(SPW_INVALID, spw_close(nothing));
    EXPECT(SPW_INVALID, spw_is_over(nothing));
    EXPECT(SPW_INVALID, spw_gone(nothing, NULL, NULL));
    EXPECT(SPW_INVALID, spw_port_settings_key_file(nothing, SPW_HELPER, "x"));
    EXPECT(SPW_INVALID, spw_port_settings_key_text(nothing, SPW_HELPER, "x"));
    EXPECT(SPW_INVALID, spw_port_settings_allow_clients(nothing, "10.0.0.0/8"));
    EXPECT(SPW_INVALID, spw_port_settings_links(nothing, 1, 1));
    EXPECT(SPW_INVALID, spw_port_settings_sessions(nothing, 1, 1, 1));
    EXPECT(SPW_INVALID, spw_port_settings_sessions_memory(nothing, 1 << 20));
    EXPECT(SPW_INVALID, spw_port_settings_limits(nothing, 65536, 65536));
    EXPECT(SPW_INVALID, spw_port_settings_share(nothing));
    EXPECT(SPW_INVALID, spw_listen(nothing, "127.0.0.1:0", &port));
    EXPECT(0, port != NULL);
    EXPECT(SPW_INVALID, spw_port_address(nothing, address, sizeof address));
    EXPECT(SPW_INVALID, spw_port_descriptor(nothing));
    EXPECT(SPW_INVALID, spw_port_next_timeout_ms(nothing));
    EXPECT(SPW_INVALID, spw_port_handle(nothing));
    EXPECT(SPW_INVALID, spw_decompose(nothing, &event));
    EXPECT(SPW_INVALID, spw_accept(nothing, 1));
    EXPECT(SPW_INVALID, spw_refuse(nothing, 1, SPW_REFUSE_FULL));
    EXPECT(SPW_INVALID, spw_compose(nothing, 1, &byte, 1));
    EXPECT(SPW_INVALID, spw_consumed(nothing, 1, 1));
    EXPECT(SPW_INVALID, spw_get_info(nothing, 1, &info));
    EXPECT(SPW_INVALID, spw_set_context(nothing, 1, NULL));
    EXPECT(SPW_INVALID, spw_finish_reply(nothing, 1));
    EXPECT(SPW_INVALID, spw_close_connection(nothing, 1, 0));
    EXPECT(SPW_INVALID, spw_flush(nothing));
    EXPECT(SPW_INVALID, spw_drain(nothing, 1));
    EXPECT(SPW_INVALID, spw_port_relief(nothing, SPW_OVERRIDE_ON, 1));
    EXPECT(SPW_INVALID, spw_port_release(nothing, 1));
    EXPECT(SPW_INVALID, spw_set_routes(nothing, nothing));
    EXPECT(SPW_INVALID, spw_port_counts(nothing, NULL, NULL, NULL));
    spw_settings_free(NULL);
    spw_free(NULL);
    spw_port_settings_free(NULL);
    spw_port_free(NULL);
    EXPECT(0, strcmp(spw_version(), SPW_VERSION));
}

static void wrong_settings(void) {
    spw_settings *settings = spw_settings_new();
    spw_session *session;
    char many[16 * 300 + 1] = "";
    EXPECT(SPW_INVALID, spw_settings_server(settings, NULL));
    EXPECT(SPW_INVALID, spw_settings_server(settings, "127.0.0.1"));
    EXPECT(SPW_INVALID, spw_settings_server(settings, "127.0.0.1:99999"));
    EXPECT(SPW_INVALID, spw_settings_server(settings, "\xff\xfe:1"));
    EXPECT(SPW_INVALID, spw_settings_helpers(settings, NULL));
    EXPECT(SPW_INVALID, spw_settings_helpers(settings, "127.0.0.1:1, 127.0.0.1"));
    for (int at = 0; at < 300; at++)
        strcat(many, "127.0.0.1:1 ");
    EXPECT(SPW_INVALID, spw_settings_helpers(settings, many));
    EXPECT(SPW_KEY, spw_settings_key_file(settings, "/nonexistent/key"));
    EXPECT(SPW_INVALID, spw_settings_key_file(settings, NULL));
    EXPECT(SPW_KEY, spw_settings_key_text(settings, "spillway-key-1 secret"));
    EXPECT(0, strstr(spw_last_error(), "secret") != NULL);
    EXPECT(SPW_INVALID, spw_settings_carrier_timeouts_ms(settings, 2, 1, 1));
    EXPECT(SPW_INVALID, spw_settings_pace_ms(settings, 2, 1));
    EXPECT(SPW_INVALID, spw_settings_give_up_ms(settings, 0, 1));
    EXPECT(SPW_INVALID, spw_settings_limits(settings, 1, 65536));
    EXPECT(SPW_INVALID, spw_settings_limits(settings, 65536, UINT32_MAX));
    EXPECT(SPW_INVALID, spw_connect(settings, NULL));
    EXPECT(SPW_INVALID, spw_connect(settings, &session)); /* no address */
    EXPECT(SPW_OK, spw_settings_server(settings, "192.0.2.1:1"));
    EXPECT(SPW_INVALID, spw_connect(settings, &session)); /* no key */
    EXPECT(SPW_OK, spw_settings_server(settings, "127.0.0.1:1"));
    EXPECT(SPW_OK, spw_settings_begin(settings, 0));
    EXPECT(SPW_INVALID, spw_connect(settings, &session)); /* no such helper */
    /* An object of another kind. */
    EXPECT(SPW_INVALID, spw_handle((spw_session *)settings));
    EXPECT(SPW_INVALID, spw_flush((spw_port *)settings));
    EXPECT(SPW_INVALID, spw_handle((spw_session *)((char *)settings + 1)));
    spw_free((spw_session *)settings);
    spw_settings_free(settings);
}

static void wrong_port_settings(void) {
    spw_port_settings *settings = spw_port_settings_new();
    spw_port *port;
    EXPECT(SPW_INVALID, spw_port_settings_key_file(settings, 3, "x"));
    EXPECT(SPW_KEY, spw_port_settings_key_file(settings, SPW_CLIENT, "/nonexistent/key"));
    EXPECT(SPW_KEY, spw_port_settings_key_text(settings, SPW_CLIENT, "x"));
    EXPECT(SPW_INVALID, spw_port_settings_allow_clients(settings, "10.0.0.1/8"));
    EXPECT(SPW_INVALID, spw_port_settings_allow_clients(settings, " , "));
    EXPECT(SPW_INVALID, spw_port_settings_links(settings, 0, 1));
    EXPECT(SPW_INVALID, spw_port_settings_limits(settings, 0, 0));
    EXPECT(SPW_KEY, spw_listen(settings, "0.0.0.0:0", &port)); /* without a key only loopback */
    EXPECT(SPW_INVALID, spw_listen(settings, "127.0.0.1", &port));
    EXPECT(SPW_INVALID, spw_listen(settings, NULL, &port));
    EXPECT(SPW_INVALID, spw_listen(settings, "127.0.0.1:0", NULL));
    EXPECT(SPW_KEY, spw_listen(settings, "192.0.2.1:0", &port)); /* the key is checked first */
    spw_port_settings_free(settings);
}

/* The next event of a kind at the server. */
static void next(spw_port *port, spw_session *session, spw_event *event, int32_t kind) {
    for (int turns = 0; turns < 10000; turns++) {
        while (spw_decompose(port, event) == 1)
            if (event->kind == kind)
                return;
        EXPECT(SPW_OK, spw_flush(port));
        EXPECT(1, spw_wait(session, 1) >= 0);
        EXPECT(SPW_OK, spw_port_handle(port));
    }
    EXPECT(kind, 0);
}

static void wrong_clients(void) {
    spw_port_settings *port_settings = spw_port_settings_new();
    spw_settings *settings = spw_settings_new();
    spw_port *port;
    spw_session *session;
    spw_event event;
    spw_info info;
    size_t links = 9, clients = 9, sessions = 9;
    uint64_t acknowledged;
    uint32_t route = 7;
    char address[SPW_ADDRESS_BYTES], buffer[16];
    EXPECT(SPW_OK, spw_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(SPW_OK, spw_port_address(port, address, sizeof address));
    EXPECT(SPW_INVALID, spw_port_address(port, address, 3));
    EXPECT(SPW_INVALID, spw_port_address(port, NULL, 3));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_accept(port, 0));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_compose(port, 1, "x", 1));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_close_connection(port, UINT64_MAX, 0));
    EXPECT(SPW_INVALID, spw_decompose(port, NULL));

    EXPECT(SPW_OK, spw_settings_server(settings, address));
    EXPECT(SPW_OK, spw_connect(settings, &session));
    EXPECT(SPW_AGAIN, spw_carrier(session, &route, NULL, 0));
    EXPECT(SPW_AGAIN, spw_gone(session, &acknowledged, NULL));
    EXPECT(SPW_INVALID, spw_next_event(session, NULL));
    EXPECT(SPW_INVALID, spw_send(session, NULL, 1));
    EXPECT(SPW_INVALID, spw_send(session, "x", SIZE_MAX));
    EXPECT(0, spw_send(session, NULL, 0));
    EXPECT(SPW_INVALID, spw_receive(session, buffer, 0));
    EXPECT(SPW_INVALID, spw_receive(session, NULL, 1));
    EXPECT(SPW_AGAIN, spw_receive(session, buffer, sizeof buffer));
    EXPECT(SPW_INVALID, spw_move(session, 0));
    EXPECT(SPW_OK, spw_move(session, SPW_DIRECT));
    EXPECT(5, spw_send(session, "hello", 5));

    next(port, session, &event, SPW_CONNECTED);
    spw_client client = event.client;
    EXPECT(0, event.text == NULL || event.context != NULL);
    EXPECT(SPW_INVALID, spw_refuse(port, client, 99));
    EXPECT(SPW_OK, spw_set_context(port, client, &failures));
    EXPECT(SPW_INVALID, spw_compose(port, client, "early", 5)); /* not accepted yet */
    EXPECT(SPW_INVALID, spw_finish_reply(port, client));
    EXPECT(SPW_OK, spw_accept(port, client));
    EXPECT(SPW_OK, spw_accept(port, client));
    next(port, session, &event, SPW_DATA);
    EXPECT(1, event.context == &failures && event.length == 5 && memcmp(event.data, "hello", 5) == 0);
    EXPECT(SPW_INVALID, spw_get_info(port, client, NULL));
    EXPECT(SPW_OK, spw_get_info(port, client, &info));
    EXPECT(1, info.role == SPW_CLIENT && info.bytes_received == 5 && strncmp(info.address, "127.0.0.1:", 10) == 0);
    EXPECT(SPW_OK, spw_port_counts(port, &links, &clients, &sessions));
    EXPECT(1, links >= 1 && clients == 1 && sessions == 1);
    EXPECT(SPW_INVALID, spw_consumed(port, client, SIZE_MAX)); /* more than was received */
    EXPECT(SPW_OK, spw_consumed(port, client, 2));
    EXPECT(SPW_INVALID, spw_consumed(port, client, 4));
    EXPECT(SPW_OK, spw_consumed(port, client, 3));
    EXPECT(SPW_INVALID, spw_compose(port, client, NULL, 1));
    EXPECT(0, spw_compose(port, client, NULL, 0));
    EXPECT(2, spw_compose(port, client, "ok", 2));
    EXPECT(SPW_INVALID, spw_port_relief(port, 3, 0));
    EXPECT(1, spw_port_relief(port, SPW_OVERRIDE_ON, 1000)); /* the client knows no helper, and stays */
    EXPECT(0, spw_port_relief(port, SPW_OVERRIDE_AUTO, 0));
    EXPECT(0, spw_port_release(port, 0));
    EXPECT(SPW_INVALID, spw_set_routes(session, (spw_settings *)port_settings));
    EXPECT(SPW_OK, spw_settings_server(settings, "127.0.0.1:1"));
    EXPECT(SPW_OK, spw_set_routes(session, settings));
    EXPECT(SPW_OK, spw_carrier(session, &route, NULL, 0));
    EXPECT(1, route == SPW_FORMER_ROUTE);
    EXPECT(SPW_OK, spw_settings_server(settings, address));
    EXPECT(SPW_OK, spw_set_routes(session, settings));
    EXPECT(SPW_OK, spw_finish_reply(port, client));
    EXPECT(SPW_OK, spw_finish_reply(port, client));
    EXPECT(0, spw_compose(port, client, "late", 4)); /* finished */
    EXPECT(SPW_INVALID, spw_refuse(port, client, SPW_REFUSE_FULL)); /* accepted */
    EXPECT(SPW_OK, spw_close_connection(port, client, 0));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_compose(port, client, "x", 1));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_get_info(port, client, &info));
    EXPECT(SPW_OK, spw_drain(port, 1000));

    ptrdiff_t received = SPW_AGAIN;
    for (int turns = 0; turns < 10000 && received == SPW_AGAIN; turns++) {
        EXPECT(SPW_OK, spw_flush(port));
        EXPECT(1, spw_wait(session, 1) >= 0);
        EXPECT(SPW_OK, spw_port_handle(port));
        while (spw_decompose(port, &event) == 1)
            EXPECT(0, event.client);
        received = spw_receive(session, buffer, sizeof buffer);
    }
    EXPECT(2, received);
    EXPECT(0, spw_receive(session, buffer, sizeof buffer));
    EXPECT(SPW_CLOSED, spw_send(session, "x", 1));
    spw_free(session);

    /* The next client may get the same slot, but gets another number. */
    EXPECT(SPW_OK, spw_connect(settings, &session));
    next(port, session, &event, SPW_CONNECTED);
    EXPECT(0, event.client == client || event.context != NULL);
    EXPECT(SPW_UNKNOWN_CLIENT, spw_accept(port, client));
    EXPECT(SPW_OK, spw_refuse(port, event.client, SPW_REFUSE_UNAVAILABLE));
    EXPECT(SPW_UNKNOWN_CLIENT, spw_accept(port, event.client));
    EXPECT(SPW_OK, spw_flush(port));
    EXPECT(SPW_OK, spw_port_counts(port, NULL, &clients, NULL));
    EXPECT(0, (ptrdiff_t)clients);
    spw_free(session);
    spw_port_free(port);
    spw_settings_free(settings);
    spw_port_settings_free(port_settings);
}

static void *wait_long(void *session) {
    /* The port is not served, so the session has nothing to do for its first second. */
    while (spw_wait(session, 100) == SPW_INVALID)
        ;
    return NULL;
}

/* A second thread's call fails because the object is in use. */
static void two_threads(void) {
    spw_settings *settings = spw_settings_new();
    spw_port_settings *port_settings = spw_port_settings_new();
    spw_port *port;
    spw_session *session;
    pthread_t thread;
    char address[SPW_ADDRESS_BYTES];
    int is_refused = 0;
    EXPECT(SPW_OK, spw_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(SPW_OK, spw_port_address(port, address, sizeof address));
    EXPECT(SPW_OK, spw_settings_server(settings, address));
    EXPECT(SPW_OK, spw_connect(settings, &session));
    for (int tries = 0; tries < 20 && !is_refused; tries++) {
        EXPECT(0, pthread_create(&thread, NULL, wait_long, session));
        for (int turns = 0; turns < 100 && !is_refused; turns++) {
            poll(NULL, 0, 1);
            is_refused = spw_is_over(session) == SPW_INVALID;
        }
        pthread_join(thread, NULL);
    }
    EXPECT(1, is_refused);
    EXPECT(0, spw_is_over(session));
    spw_free(session);
    spw_port_free(port);
    spw_settings_free(settings);
    spw_port_settings_free(port_settings);
}

int main(void) {
    no_objects();
    wrong_settings();
    wrong_port_settings();
    wrong_clients();
    two_threads();
    if (failures == 0)
        puts("every mistake was reported");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
