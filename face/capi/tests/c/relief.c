/* Sessions of a relief, a server and a helper: the override, late replies, the server's release, and the end of both.
 *
 * Prints the address of its link port; reads the address of a helper's link port from standard input. Latencies are
 * reported, not measured: the test checks only that sessions move. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spillway.h>

enum { SESSIONS = 8, TURNS = 60000, SLA_US = 1000, LATE_US = 50000, FAST_US = 100 };

static spw_port *port;
static spw_relief *relief;
static spw_session *sessions[SESSIONS];
static int reports_latencies, notices;

static void expect(int line, const char *call, ptrdiff_t status, ptrdiff_t wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s: %td (%s) instead of %td\n", line, call, status, spw_last_error(), wanted);
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))

static void serve(void) {
    spw_event event;
    EXPECT(SPW_OK, spw_port_handle(port));
    while (spw_decompose(port, &event) == 1) {
        if (event.kind == SPW_CONNECTED) {
            EXPECT(SPW_OK, spw_accept(port, event.client));
        } else if (event.kind == SPW_DATA) {
            EXPECT((ptrdiff_t)event.length, spw_compose(port, event.client, event.data, event.length));
            EXPECT(SPW_OK, spw_consumed(port, event.client, event.length));
        }
    }
    EXPECT(SPW_OK, spw_flush(port));
}

static int is_carried_by(int number, uint32_t wanted) {
    uint32_t route;
    return spw_carrier(sessions[number], &route, NULL, 0) == SPW_OK && route == wanted;
}

static int are_carried_by(uint32_t wanted) {
    int count = 0;
    for (int at = 0; at < SESSIONS; at++)
        count += sessions[at] != NULL && is_carried_by(at, wanted);
    return count;
}

/* A turn of server, sessions and relief, after a wait of 1 ms. Descriptors are not tested here. */
static void turn(void) {
    char notice[256];
    poll(NULL, 0, 1);
    serve();
    for (int at = 0; at < SESSIONS; at++) {
        if (sessions[at] == NULL)
            continue;
        EXPECT(1, spw_handle(sessions[at]) >= 0);
        if (reports_latencies)
            EXPECT(SPW_OK, spw_measured(sessions[at], is_carried_by(at, SPW_DIRECT) ? LATE_US : FAST_US));
    }
    if (relief == NULL)
        return;
    EXPECT(1, spw_relief_next_timeout_ms(relief) >= -1);
    EXPECT(1, spw_relief_handle(relief) >= 0);
    while (spw_relief_next_notice(relief, notice, sizeof notice) == 1)
        notices += notice[0] != 0;
}

#define UNTIL(condition)                                                                                          \
    do {                                                                                                          \
        int turns = 0;                                                                                            \
        for (; turns < TURNS && !(condition); turns++)                                                            \
            turn();                                                                                               \
        expect(__LINE__, #condition, turns < TURNS, 1);                                                           \
    } while (0)

static uint32_t helped(void) {
    spw_relief_figures figures;
    EXPECT(SPW_OK, spw_relief_status(relief, &figures));
    return figures.helped;
}

static void round_trips(void) {
    for (int at = 0; at < SESSIONS; at++) {
        char reply[5];
        size_t received = 0;
        if (sessions[at] == NULL)
            continue;
        EXPECT(5, spw_send(sessions[at], "hello", 5));
        EXPECT(SPW_OK, spw_oldest_wait(sessions[at], 10));
        while (received < 5) {
            ptrdiff_t length = spw_receive(sessions[at], reply + received, 5 - received);
            if (length == SPW_AGAIN) {
                serve();
                EXPECT(1, spw_wait(sessions[at], 1) >= 0);
                continue;
            }
            EXPECT(1, length > 0);
            received += (size_t)length;
        }
        EXPECT(0, memcmp(reply, "hello", 5));
        EXPECT(SPW_OK, spw_oldest_wait(sessions[at], -1));
    }
}

static void wrong_calls(const spw_settings *settings) {
    spw_settings *none = spw_settings_new();
    spw_relief *wrong;
    spw_relief_figures figures;
    EXPECT(SPW_OK, spw_settings_helpers(none, "127.0.0.1:1"));
    EXPECT(SPW_INVALID, spw_relief_new(none, SLA_US, &wrong)); /* no server */
    EXPECT(SPW_INVALID, spw_relief_set_helpers(relief, none));
    EXPECT(SPW_INVALID, spw_relief_new(settings, 1, &wrong));
    EXPECT(0, wrong != NULL);
    EXPECT(SPW_INVALID, spw_relief_new(settings, SLA_US, NULL));
    EXPECT(SPW_INVALID, spw_relief_new(NULL, SLA_US, &wrong));
    EXPECT(SPW_INVALID, spw_relief_connect(relief, NULL));
    EXPECT(SPW_INVALID, spw_relief_connect(NULL, &sessions[0]));
    EXPECT(SPW_INVALID, spw_relief_override(relief, 3, 0));
    EXPECT(SPW_INVALID, spw_relief_override(NULL, SPW_OVERRIDE_ON, 0));
    EXPECT(SPW_INVALID, spw_relief_handle(NULL));
    EXPECT(SPW_INVALID, spw_relief_descriptor(NULL));
    EXPECT(SPW_INVALID, spw_relief_next_timeout_ms(NULL));
    EXPECT(SPW_INVALID, spw_relief_next_notice(NULL, NULL, 0));
    EXPECT(SPW_INVALID, spw_relief_status(relief, NULL));
    EXPECT(SPW_INVALID, spw_relief_status(NULL, &figures));
    EXPECT(SPW_INVALID, spw_measured(NULL, 1));
    EXPECT(SPW_INVALID, spw_oldest_wait(NULL, 1));
    spw_relief_free(NULL);
    spw_settings_free(none);
}

int main(int count, char **arguments) {
    char address[SPW_ADDRESS_BYTES], helper[SPW_ADDRESS_BYTES];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    spw_port_settings *port_settings = spw_port_settings_new();
    spw_settings *settings = spw_settings_new();
    spw_relief_figures figures;
    EXPECT(3, count);
    EXPECT(SPW_OK, spw_port_settings_key_file(port_settings, SPW_HELPER, arguments[1]));
    EXPECT(SPW_OK, spw_port_settings_key_file(port_settings, SPW_CLIENT, arguments[2]));
    EXPECT(SPW_OK, spw_settings_key_file(settings, arguments[2]));
    EXPECT(SPW_OK, spw_listen(port_settings, "127.0.0.1:0", &port));
    EXPECT(SPW_OK, spw_port_address(port, address, sizeof address));
    printf("%s\n", address);
    fflush(stdout);
    while (poll(&input, 1, 1) == 0)
        serve();
    EXPECT(1, fgets(helper, sizeof helper, stdin) != NULL);
    EXPECT(SPW_OK, spw_settings_server(settings, address));
    EXPECT(SPW_OK, spw_settings_helpers(settings, helper));

    EXPECT(SPW_OK, spw_relief_new(settings, SLA_US, &relief));
    wrong_calls(settings);
    for (int at = 0; at < SESSIONS; at++)
        EXPECT(SPW_OK, spw_relief_connect(relief, &sessions[at]));
    UNTIL(are_carried_by(SPW_DIRECT) == SESSIONS);
    round_trips();
    EXPECT(SPW_INVALID, spw_move(sessions[0], 0));
    EXPECT(SPW_INVALID, spw_set_routes(sessions[0], settings));

    /* The override. */
    EXPECT(SPW_OK, spw_relief_override(relief, SPW_OVERRIDE_ON, 0));
    UNTIL(are_carried_by(0) == SESSIONS && helped() == SESSIONS);
    round_trips();
    EXPECT(SPW_OK, spw_relief_override(relief, SPW_OVERRIDE_OFF, 3600000));
    UNTIL(are_carried_by(SPW_DIRECT) == SESSIONS && helped() == 0);
    EXPECT(SPW_OK, spw_relief_status(relief, &figures));
    EXPECT(1, figures.manual_override == SPW_OVERRIDE_OFF && figures.sessions == SESSIONS && figures.moves >= 2 * SESSIONS);

    /* Late replies, and then the server's release. */
    EXPECT(SPW_OK, spw_relief_override(relief, SPW_OVERRIDE_AUTO, 0));
    reports_latencies = 1;
    UNTIL(are_carried_by(0) == SESSIONS && helped() == SESSIONS);
    EXPECT(SPW_OK, spw_relief_status(relief, &figures));
    EXPECT(1, figures.activations >= 1 && figures.stage[0] != 0);
    reports_latencies = 0;
    EXPECT(1, spw_port_release(port, 1) >= 1);
    UNTIL(are_carried_by(SPW_DIRECT) == SESSIONS);
    round_trips();
    EXPECT(1, notices >= 2);

    /* A session that is opened while all are helped begins at the helper; without helpers no session is helped. */
    EXPECT(SPW_OK, spw_relief_override(relief, SPW_OVERRIDE_ON, 0));
    spw_free(sessions[0]);
    EXPECT(SPW_OK, spw_relief_connect(relief, &sessions[0]));
    UNTIL(are_carried_by(0) == SESSIONS);
    EXPECT(SPW_OK, spw_settings_helpers(settings, ""));
    EXPECT(SPW_OK, spw_relief_set_helpers(relief, settings));
    EXPECT(SPW_OK, spw_relief_override(relief, SPW_OVERRIDE_OFF, 0));
    UNTIL(are_carried_by(SPW_DIRECT) == SESSIONS);

    /* Sessions that end before and after their relief. */
    spw_free(sessions[0]);
    sessions[0] = NULL;
    spw_relief_free(relief);
    relief = NULL;
    round_trips();
    EXPECT(SPW_OK, spw_measured(sessions[1], 1));
    EXPECT(SPW_INVALID, spw_move(sessions[1], SPW_DIRECT));
    EXPECT(SPW_OK, spw_set_routes(sessions[1], settings));
    EXPECT(SPW_OK, spw_move(sessions[1], SPW_DIRECT));
    UNTIL(is_carried_by(1, SPW_DIRECT));
    for (int at = 1; at < SESSIONS; at++)
        spw_free(sessions[at]);
    spw_port_free(port);
    spw_settings_free(settings);
    spw_port_settings_free(port_settings);
    puts("relief is right");
    return EXIT_SUCCESS;
}
