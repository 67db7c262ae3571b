/* Every function is called in every wrong way that can be told, and says so. */
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
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, pm_last_error(), wanted);
        if (++failures == 20)
            exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

static void *const nothing = NULL;

static void no_objects(void) {
    char address[PM_ADDRESS_BYTES];
    unsigned char byte = 0;
    uint32_t route;
    pm_event event;
    pm_session_event session_event;
    pm_info info;
    pm_session *session;
    pm_port *port;
    EXPECT(PM_INVALID, pm_settings_server(nothing, "127.0.0.1:1"));
    EXPECT(PM_INVALID, pm_settings_helpers(nothing, "127.0.0.1:1"));
    EXPECT(PM_INVALID, pm_settings_key_text(nothing, "x") == PM_KEY ? PM_INVALID : 0);
    EXPECT(PM_INVALID, pm_settings_service(nothing, "127.0.0.1:1"));
    EXPECT(PM_INVALID, pm_settings_begin(nothing, 0));
    EXPECT(PM_INVALID, pm_settings_patience_ms(nothing, 1, 1, 1));
    EXPECT(PM_INVALID, pm_settings_pace_ms(nothing, 1, 1));
    EXPECT(PM_INVALID, pm_settings_give_up_ms(nothing, 1, 1));
    EXPECT(PM_INVALID, pm_settings_limits(nothing, 65536, 65536));
    EXPECT(PM_INVALID, pm_connect(nothing, &session));
    EXPECT(0, session != NULL);
    EXPECT(PM_INVALID, pm_send(nothing, &byte, 1));
    EXPECT(PM_INVALID, pm_receive(nothing, &byte, 1));
    EXPECT(PM_INVALID, pm_poll_descriptor(nothing));
    EXPECT(PM_INVALID, pm_next_timeout_ms(nothing));
    EXPECT(PM_INVALID, pm_handle(nothing));
    EXPECT(PM_INVALID, pm_wait(nothing, 0));
    EXPECT(PM_INVALID, pm_next_event(nothing, &session_event));
    EXPECT(PM_INVALID, pm_carrier(nothing, &route, address, sizeof address));
    EXPECT(PM_INVALID, pm_move(nothing, 0));
    EXPECT(PM_INVALID, pm_finish(nothing));
    EXPECT(PM_INVALID, pm_close(nothing));
    EXPECT(PM_INVALID, pm_is_over(nothing));
    EXPECT(PM_INVALID, pm_gone(nothing, NULL, NULL));
    EXPECT(PM_INVALID, pm_port_settings_key_file(nothing, PM_HELPER, "x"));
    EXPECT(PM_INVALID, pm_port_settings_key_text(nothing, PM_HELPER, "x"));
    EXPECT(PM_INVALID, pm_port_settings_allow_clients(nothing, "10.0.0.0/8"));
    EXPECT(PM_INVALID, pm_port_settings_links(nothing, 1, 1));
    EXPECT(PM_INVALID, pm_port_settings_sessions(nothing, 1, 1, 1));
    EXPECT(PM_INVALID, pm_port_settings_sessions_memory(nothing, 1 << 20));
    EXPECT(PM_INVALID, pm_port_settings_limits(nothing, 65536, 65536));
    EXPECT(PM_INVALID, pm_port_settings_share(nothing));
    EXPECT(PM_INVALID, pm_listen(nothing, "127.0.0.1:0", &port));
    EXPECT(0, port != NULL);
    EXPECT(PM_INVALID, pm_port_address(nothing, address, sizeof address));
    EXPECT(PM_INVALID, pm_port_descriptor(nothing));
    EXPECT(PM_INVALID, pm_port_next_timeout_ms(nothing));
    EXPECT(PM_INVALID, pm_port_handle(nothing));
    EXPECT(PM_INVALID, pm_decompose(nothing, &event));
    EXPECT(PM_INVALID, pm_accept(nothing, 1));
    EXPECT(PM_INVALID, pm_refuse(nothing, 1, PM_REFUSE_FULL));
    EXPECT(PM_INVALID, pm_compose(nothing, 1, &byte, 1));
    EXPECT(PM_INVALID, pm_consumed(nothing, 1, 1));
    EXPECT(PM_INVALID, pm_get_info(nothing, 1, &info));
    EXPECT(PM_INVALID, pm_set_context(nothing, 1, NULL));
    EXPECT(PM_INVALID, pm_finish_reply(nothing, 1));
    EXPECT(PM_INVALID, pm_close_connection(nothing, 1, 0));
    EXPECT(PM_INVALID, pm_flush(nothing));
    EXPECT(PM_INVALID, pm_drain(nothing, 1));
    EXPECT(PM_INVALID, pm_port_relief(nothing, PM_RELIEF_ON, 1));
    EXPECT(PM_INVALID, pm_port_release(nothing, 1));
    EXPECT(PM_INVALID, pm_set_routes(nothing, nothing));
    EXPECT(PM_INVALID, pm_port_counts(nothing, NULL, NULL, NULL));
    pm_settings_free(NULL);
    pm_free(NULL);
    pm_port_settings_free(NULL);
    pm_port_free(NULL);
    EXPECT(0, strcmp(pm_version(), PM_VERSION));
}

static void wrong_settings(void) {
    pm_settings *settings = pm_settings_new();
    pm_session *session;
    char many[16 * 300 + 1] = "";
    EXPECT(PM_INVALID, pm_settings_server(settings, NULL));
    EXPECT(PM_INVALID, pm_settings_server(settings, "127.0.0.1"));
    EXPECT(PM_INVALID, pm_settings_server(settings, "127.0.0.1:99999"));
    EXPECT(PM_INVALID, pm_settings_server(settings, "\xff\xfe:1"));
    EXPECT(PM_INVALID, pm_settings_helpers(settings, NULL));
    EXPECT(PM_INVALID, pm_settings_helpers(settings, "127.0.0.1:1, 127.0.0.1"));
    for (int at = 0; at < 300; at++)
        strcat(many, "127.0.0.1:1 ");
    EXPECT(PM_INVALID, pm_settings_helpers(settings, many));
    EXPECT(PM_KEY, pm_settings_key_file(settings, "/nonexistent/key"));
    EXPECT(PM_INVALID, pm_settings_key_file(settings, NULL));
    EXPECT(PM_KEY, pm_settings_key_text(settings, "spillway-key-1 secret"));
    EXPECT(0, strstr(pm_last_error(), "secret") != NULL);
    EXPECT(PM_INVALID, pm_settings_patience_ms(settings, 2, 1, 1));
    EXPECT(PM_INVALID, pm_settings_pace_ms(settings, 2, 1));
    EXPECT(PM_INVALID, pm_settings_give_up_ms(settings, 0, 1));
    EXPECT(PM_INVALID, pm_settings_limits(settings, 1, 65536));
    EXPECT(PM_INVALID, pm_settings_limits(settings, 65536, UINT32_MAX));
    EXPECT(PM_INVALID, pm_connect(settings, NULL));
    EXPECT(PM_INVALID, pm_connect(settings, &session)); /* no address */
    EXPECT(PM_OK, pm_settings_server(settings, "192.0.2.1:1"));
    EXPECT(PM_INVALID, pm_connect(settings, &session)); /* no key */
    EXPECT(PM_OK, pm_settings_server(settings, "127.0.0.1:1"));
    EXPECT(PM_OK, pm_settings_begin(settings, 0));
    EXPECT(PM_INVALID, pm_connect(settings, &session)); /* no such helper */
    /* An object of another kind. */
    EXPECT(PM_INVALID, pm_handle((pm_session *)settings));
    EXPECT(PM_INVALID, pm_flush((pm_port *)settings));
    EXPECT(PM_INVALID, pm_handle((pm_session *)((char *)settings + 1)));
    pm_free((pm_session *)settings);
    pm_settings_free(settings);
}

static void wrong_port_settings(void) {
    pm_port_settings *settings = pm_port_settings_new();
    pm_port *port;
    EXPECT(PM_INVALID, pm_port_settings_key_file(settings, 3, "x"));
    EXPECT(PM_KEY, pm_port_settings_key_file(settings, PM_CLIENT, "/nonexistent/key"));
    EXPECT(PM_KEY, pm_port_settings_key_text(settings, PM_CLIENT, "x"));
    EXPECT(PM_INVALID, pm_port_settings_allow_clients(settings, "10.0.0.1/8"));
    EXPECT(PM_INVALID, pm_port_settings_allow_clients(settings, " , "));
    EXPECT(PM_INVALID, pm_port_settings_links(settings, 0, 1));
    EXPECT(PM_INVALID, pm_port_settings_limits(settings, 0, 0));
    EXPECT(PM_KEY, pm_listen(settings, "0.0.0.0:0", &port)); /* without a key only loopback */
    EXPECT(PM_INVALID, pm_listen(settings, "127.0.0.1", &port));
    EXPECT(PM_INVALID, pm_listen(settings, NULL, &port));
    EXPECT(PM_INVALID, pm_listen(settings, "127.0.0.1:0", NULL));
    EXPECT(PM_SYSTEM, pm_listen(settings, "192.0.2.1:0", &port) == PM_KEY ? PM_SYSTEM : 0);
    pm_port_settings_free(settings);
}

/* The next event of a kind at the server. */
static void next(pm_port *port, pm_session *session, pm_event *event, int32_t kind) {
    for (int turns = 0; turns < 10000; turns++) {
        while (pm_decompose(port, event) == 1)
            if (event->kind == kind)
                return;
        EXPECT(PM_OK, pm_flush(port));
        EXPECT(1, pm_wait(session, 1) >= 0);
        EXPECT(PM_OK, pm_port_handle(port));
    }
    EXPECT(kind, 0);
}

static void wrong_clients(void) {
    pm_port_settings *port_settings = pm_port_settings_new();
    pm_settings *settings = pm_settings_new();
    pm_port *port;
    pm_session *session;
    pm_event event;
    pm_info info;
    size_t links = 9, clients = 9, sessions = 9;
    uint64_t acknowledged;
    uint32_t route = 7;
    char address[PM_ADDRESS_BYTES], buffer[16];
    EXPECT(PM_OK, pm_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(PM_OK, pm_port_address(port, address, sizeof address));
    EXPECT(PM_INVALID, pm_port_address(port, address, 3));
    EXPECT(PM_INVALID, pm_port_address(port, NULL, 3));
    EXPECT(PM_UNKNOWN_CLIENT, pm_accept(port, 0));
    EXPECT(PM_UNKNOWN_CLIENT, pm_compose(port, 1, "x", 1));
    EXPECT(PM_UNKNOWN_CLIENT, pm_close_connection(port, UINT64_MAX, 0));
    EXPECT(PM_INVALID, pm_decompose(port, NULL));

    EXPECT(PM_OK, pm_settings_server(settings, address));
    EXPECT(PM_OK, pm_connect(settings, &session));
    EXPECT(PM_AGAIN, pm_carrier(session, &route, NULL, 0));
    EXPECT(PM_AGAIN, pm_gone(session, &acknowledged, NULL));
    EXPECT(PM_INVALID, pm_next_event(session, NULL));
    EXPECT(PM_INVALID, pm_send(session, NULL, 1));
    EXPECT(PM_INVALID, pm_send(session, "x", SIZE_MAX));
    EXPECT(0, pm_send(session, NULL, 0));
    EXPECT(PM_INVALID, pm_receive(session, buffer, 0));
    EXPECT(PM_INVALID, pm_receive(session, NULL, 1));
    EXPECT(PM_AGAIN, pm_receive(session, buffer, sizeof buffer));
    EXPECT(PM_INVALID, pm_move(session, 0));
    EXPECT(PM_OK, pm_move(session, PM_DIRECT));
    EXPECT(5, pm_send(session, "hello", 5));

    next(port, session, &event, PM_CONNECTED);
    pm_client client = event.client;
    EXPECT(0, event.text == NULL || event.context != NULL);
    EXPECT(PM_INVALID, pm_refuse(port, client, 99));
    EXPECT(PM_OK, pm_set_context(port, client, &failures));
    EXPECT(PM_INVALID, pm_compose(port, client, "early", 5)); /* not accepted yet */
    EXPECT(PM_INVALID, pm_finish_reply(port, client));
    EXPECT(PM_OK, pm_accept(port, client));
    EXPECT(PM_OK, pm_accept(port, client));
    next(port, session, &event, PM_DATA);
    EXPECT(1, event.context == &failures && event.length == 5 && memcmp(event.data, "hello", 5) == 0);
    EXPECT(PM_INVALID, pm_get_info(port, client, NULL));
    EXPECT(PM_OK, pm_get_info(port, client, &info));
    EXPECT(1, info.role == PM_CLIENT && info.bytes_received == 5 && strncmp(info.address, "127.0.0.1:", 10) == 0);
    EXPECT(PM_OK, pm_port_counts(port, &links, &clients, &sessions));
    EXPECT(1, links >= 1 && clients == 1 && sessions == 1);
    EXPECT(PM_INVALID, pm_consumed(port, client, SIZE_MAX)); /* more than came */
    EXPECT(PM_OK, pm_consumed(port, client, 2));
    EXPECT(PM_INVALID, pm_consumed(port, client, 4));
    EXPECT(PM_OK, pm_consumed(port, client, 3));
    EXPECT(PM_INVALID, pm_compose(port, client, NULL, 1));
    EXPECT(0, pm_compose(port, client, NULL, 0));
    EXPECT(2, pm_compose(port, client, "ok", 2));
    EXPECT(PM_INVALID, pm_port_relief(port, 3, 0));
    EXPECT(1, pm_port_relief(port, PM_RELIEF_ON, 1000)); /* it knows no helper, and stays */
    EXPECT(0, pm_port_relief(port, PM_RELIEF_AUTO, 0));
    EXPECT(0, pm_port_release(port, 0));
    EXPECT(PM_INVALID, pm_set_routes(session, (pm_settings *)port_settings));
    EXPECT(PM_OK, pm_settings_server(settings, "127.0.0.1:1"));
    EXPECT(PM_OK, pm_set_routes(session, settings));
    EXPECT(PM_OK, pm_carrier(session, &route, NULL, 0));
    EXPECT(1, route == PM_FORMER_ROUTE);
    EXPECT(PM_OK, pm_settings_server(settings, address));
    EXPECT(PM_OK, pm_set_routes(session, settings));
    EXPECT(PM_OK, pm_finish_reply(port, client));
    EXPECT(PM_OK, pm_finish_reply(port, client));
    EXPECT(0, pm_compose(port, client, "late", 4)); /* finished */
    EXPECT(PM_INVALID, pm_refuse(port, client, PM_REFUSE_FULL)); /* accepted */
    EXPECT(PM_OK, pm_close_connection(port, client, 0));
    EXPECT(PM_UNKNOWN_CLIENT, pm_compose(port, client, "x", 1));
    EXPECT(PM_UNKNOWN_CLIENT, pm_get_info(port, client, &info));
    EXPECT(PM_OK, pm_drain(port, 1000));

    ptrdiff_t received = PM_AGAIN;
    for (int turns = 0; turns < 10000 && received == PM_AGAIN; turns++) {
        EXPECT(PM_OK, pm_flush(port));
        EXPECT(1, pm_wait(session, 1) >= 0);
        EXPECT(PM_OK, pm_port_handle(port));
        while (pm_decompose(port, &event) == 1)
            EXPECT(0, event.client);
        received = pm_receive(session, buffer, sizeof buffer);
    }
    EXPECT(2, received);
    EXPECT(0, pm_receive(session, buffer, sizeof buffer));
    EXPECT(PM_CLOSED, pm_send(session, "x", 1));
    pm_free(session);

    /* The next client may get the same place, and never the same number. */
    EXPECT(PM_OK, pm_connect(settings, &session));
    next(port, session, &event, PM_CONNECTED);
    EXPECT(0, event.client == client || event.context != NULL);
    EXPECT(PM_UNKNOWN_CLIENT, pm_accept(port, client));
    EXPECT(PM_OK, pm_refuse(port, event.client, PM_REFUSE_UNAVAILABLE));
    EXPECT(PM_UNKNOWN_CLIENT, pm_accept(port, event.client));
    EXPECT(PM_OK, pm_flush(port));
    EXPECT(PM_OK, pm_port_counts(port, NULL, &clients, NULL));
    EXPECT(0, (ptrdiff_t)clients);
    pm_free(session);
    pm_port_free(port);
    pm_settings_free(settings);
    pm_port_settings_free(port_settings);
}

static void *wait_long(void *session) {
    /* Nobody answers, and nobody wakes it for its first second. */
    while (pm_wait(session, 100) == PM_INVALID)
        ;
    return NULL;
}

/* A second thread is told that the object is in use. */
static void two_threads(void) {
    pm_settings *settings = pm_settings_new();
    pm_port_settings *port_settings = pm_port_settings_new();
    pm_port *port;
    pm_session *session;
    pthread_t thread;
    char address[PM_ADDRESS_BYTES];
    int told = 0;
    EXPECT(PM_OK, pm_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(PM_OK, pm_port_address(port, address, sizeof address));
    EXPECT(PM_OK, pm_settings_server(settings, address));
    EXPECT(PM_OK, pm_connect(settings, &session));
    for (int tries = 0; tries < 20 && !told; tries++) {
        EXPECT(0, pthread_create(&thread, NULL, wait_long, session));
        for (int turns = 0; turns < 100 && !told; turns++) {
            poll(NULL, 0, 1);
            told = pm_is_over(session) == PM_INVALID;
        }
        pthread_join(thread, NULL);
    }
    EXPECT(1, told);
    EXPECT(0, pm_is_over(session));
    pm_free(session);
    pm_port_free(port);
    pm_settings_free(settings);
    pm_port_settings_free(port_settings);
}

int main(void) {
    no_objects();
    wrong_settings();
    wrong_port_settings();
    wrong_clients();
    two_threads();
    if (failures == 0)
        puts("every mistake was told");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
