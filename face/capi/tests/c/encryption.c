/* Client and server require encryption, and their peers do not encrypt: both report why there is no link.
 * Arguments: the clients' key file, and the link port of a server that does not encrypt. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, spw_last_error(), wanted);
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

/* Opens a session at that server, and prints why it has no carrier. */
static void refused_by_us(const char *key, const char *server) {
    spw_settings *settings = spw_settings_new();
    spw_session *session;
    spw_session_event event;
    EXPECT(SPW_OK, spw_settings_server(settings, server));
    EXPECT(SPW_OK, spw_settings_require_encryption(settings, 1));
    if (spw_connect(settings, &session) == SPW_OK || !strstr(spw_last_error(), "not encrypted"))
        exit(EXIT_FAILURE);
    EXPECT(SPW_OK, spw_settings_key_file(settings, key));
    EXPECT(SPW_OK, spw_connect(settings, &session));
    while (spw_next_event(session, &event) != 1)
        EXPECT(1, spw_wait(session, -1) >= 0);
    EXPECT(SPW_SESSION_CARRIER_LOST, event.kind);
    printf("session: %s\n", event.why);
    EXPECT(SPW_AGAIN, spw_carrier(session, NULL, NULL, 0));
    spw_free(session);
    spw_settings_free(settings);
}

/* Opens a port, prints its address, and then why the link of a client that does not encrypt is lost. */
static void refused_at_our_port(const char *key) {
    spw_port_settings *settings = spw_port_settings_new();
    spw_port *port;
    spw_event event = {0};
    char address[SPW_ADDRESS_BYTES];
    EXPECT(SPW_OK, spw_port_settings_require_encryption(settings, 1));
    if (spw_listen(settings, "127.0.0.1:0", &port) == SPW_OK)
        exit(EXIT_FAILURE);
    EXPECT(SPW_OK, spw_port_settings_key_file(settings, SPW_CLIENT, key));
    EXPECT(SPW_OK, spw_listen(settings, "127.0.0.1:0", &port));
    EXPECT(SPW_OK, spw_port_address(port, address, sizeof address));
    printf("%s\n", address);
    fflush(stdout);
    while (event.kind != SPW_LINK_LOST) {
        struct pollfd watched = {.fd = spw_port_descriptor(port), .events = POLLIN};
        EXPECT(SPW_OK, spw_flush(port));
        poll(&watched, 1, spw_port_next_timeout_ms(port));
        EXPECT(SPW_OK, spw_port_handle(port));
        while (event.kind != SPW_LINK_LOST && spw_decompose(port, &event) == 1)
            if (event.kind == SPW_LINK_OPENED || event.kind == SPW_CONNECTED)
                exit(EXIT_FAILURE);
    }
    printf("port: %s\n", event.text);
    EXPECT(SPW_OK, spw_flush(port));
    spw_port_free(port);
    spw_port_settings_free(settings);
}

int main(int count, char **arguments) {
    if (count != 3)
        return EXIT_FAILURE;
    refused_by_us(arguments[1], arguments[2]);
    refused_at_our_port(arguments[1]);
    return EXIT_SUCCESS;
}
