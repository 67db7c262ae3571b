/* Both ends require encryption, with peers that are too old for it: each is told why there is no link.
 * Arguments: the clients' key file, and the link port of an old server. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, pm_last_error(), wanted);
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

/* A session at the old server: prints why it has no carrier. */
static void refused_by_us(const char *key, const char *server) {
    pm_settings *settings = pm_settings_new();
    pm_session *session;
    pm_session_event event;
    EXPECT(PM_OK, pm_settings_server(settings, server));
    EXPECT(PM_OK, pm_settings_require_encryption(settings, 1));
    if (pm_connect(settings, &session) == PM_OK || !strstr(pm_last_error(), "not encrypted"))
        exit(EXIT_FAILURE);
    EXPECT(PM_OK, pm_settings_key_file(settings, key));
    EXPECT(PM_OK, pm_connect(settings, &session));
    while (pm_next_event(session, &event) != 1)
        EXPECT(1, pm_wait(session, -1) >= 0);
    EXPECT(PM_SESSION_CARRIER_LOST, event.kind);
    printf("session: %s\n", event.why);
    EXPECT(PM_AGAIN, pm_carrier(session, NULL, NULL, 0));
    pm_free(session);
    pm_settings_free(settings);
}

/* A port: prints its address, and then why the link that comes is lost. */
static void refused_at_our_port(const char *key) {
    pm_port_settings *settings = pm_port_settings_new();
    pm_port *port;
    pm_event event = {0};
    char address[PM_ADDRESS_BYTES];
    EXPECT(PM_OK, pm_port_settings_require_encryption(settings, 1));
    if (pm_listen(settings, "127.0.0.1:0", &port) == PM_OK)
        exit(EXIT_FAILURE);
    EXPECT(PM_OK, pm_port_settings_key_file(settings, PM_CLIENT, key));
    EXPECT(PM_OK, pm_listen(settings, "127.0.0.1:0", &port));
    EXPECT(PM_OK, pm_port_address(port, address, sizeof address));
    printf("%s\n", address);
    fflush(stdout);
    while (event.kind != PM_LINK_LOST) {
        struct pollfd watched = {.fd = pm_port_descriptor(port), .events = POLLIN};
        EXPECT(PM_OK, pm_flush(port));
        poll(&watched, 1, pm_port_next_timeout_ms(port));
        EXPECT(PM_OK, pm_port_handle(port));
        while (event.kind != PM_LINK_LOST && pm_decompose(port, &event) == 1)
            if (event.kind == PM_LINK_OPENED || event.kind == PM_CONNECTED)
                exit(EXIT_FAILURE);
    }
    printf("port: %s\n", event.text);
    EXPECT(PM_OK, pm_flush(port));
    pm_port_free(port);
    pm_port_settings_free(settings);
}

int main(int count, char **arguments) {
    if (count != 3)
        return EXIT_FAILURE;
    refused_by_us(arguments[1], arguments[2]);
    refused_at_our_port(arguments[1]);
    return EXIT_SUCCESS;
}
