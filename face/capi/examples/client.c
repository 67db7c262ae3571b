/* A client of an echo server whose session continues when the helper that carries it is killed.
 *
 *     client --server 10.0.0.5:7400 [--helpers 10.0.0.9:7411,10.0.0.10:7411] [--key FILE] [--count N] [--sla-us T]
 *
 * --server is the server's link port. With --sla-us the session begins there, and moves to a helper when replies take longer
 * than T microseconds; otherwise it begins at the first helper. Without --count the client sends its standard input and
 * prints the replies. With --count it sends N messages, or, if N is 0, messages until standard input ends; it checks every
 * byte of the replies, and prints the session's carriers, and the number of messages after each 100. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <spillway.h>

/* Maximum of messages in flight, of a message's length in bytes, and of turns to close the session. */
enum { UNDER_WAY = 8, LENGTH_MAX = 3000, CLOSE_TURNS = 1000 };

struct client {
    spw_session *session;
    spw_relief *relief; /* null without --sla-us */
    long count; /* messages to send; 0: until standard input ends; -1: send standard input */
    int input_ended;
    long sent, received; /* messages */
    size_t sent_bytes, received_bytes; /* bytes of the present message */
    int64_t sent_at_us[UNDER_WAY]; /* when each message in flight was sent */
    char line[64 * 1024]; /* input that is being sent */
    size_t line_length, line_sent;
    int moves, finished, is_at_end;
};

static void die(const char *what, const char *why) {
    fprintf(stderr, "client: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void check(const char *what, ptrdiff_t status) {
    if (status < 0)
        die(what, spw_last_error());
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The length of message `number`. */
static size_t message_length(long number) {
    return 1 + (size_t)number * 397 % LENGTH_MAX;
}

/* The byte of message `number` at `place`. */
static unsigned char message_byte(long number, size_t place) {
    return (unsigned char)((size_t)number * 31 + place * 7 + place / 251);
}

static void print_events(struct client *client) {
    spw_session_event event;
    while (spw_next_event(client->session, &event) == 1) {
        if (event.kind == SPW_SESSION_MOVED) {
            client->moves++;
            if (event.route == SPW_DIRECT)
                printf("carried by the server at %s\n", event.address);
            else
                printf("carried by helper %u at %s\n", (unsigned)event.route, event.address);
        } else if (event.kind == SPW_SESSION_CARRIER_LOST) {
            fprintf(stderr, "client: %s: %s\n", event.address, event.why);
        }
    }
    fflush(stdout);
}

static int is_more_to_send(const struct client *client) {
    if (client->count < 0)
        return client->line_sent < client->line_length;
    if (client->sent_bytes > 0)
        return 1; /* complete the message */
    return client->count == 0 ? !client->input_ended : client->sent < client->count;
}

static int is_everything_sent(const struct client *client) {
    return !is_more_to_send(client) && (client->count > 0 || client->input_ended);
}

/* Sends until there is no room, or nothing left to send now. */
static void send_more(struct client *client) {
    unsigned char message[LENGTH_MAX];
    while (is_more_to_send(client)) {
        const void *bytes = client->line + client->line_sent;
        size_t length = client->line_length - client->line_sent;
        if (client->count >= 0) {
            if (client->sent - client->received >= UNDER_WAY)
                return;
            size_t whole = message_length(client->sent);
            if (client->sent_bytes == 0)
                client->sent_at_us[client->sent % UNDER_WAY] = now_us();
            for (size_t place = client->sent_bytes; place < whole; place++)
                message[place] = message_byte(client->sent, place);
            bytes = message + client->sent_bytes;
            length = whole - client->sent_bytes;
        }
        ptrdiff_t taken = spw_send(client->session, bytes, length);
        if (taken == SPW_AGAIN)
            return; /* when there is room, the descriptor is ready */
        check("spw_send", taken);
        if (client->count < 0) {
            client->line_sent += (size_t)taken;
            continue;
        }
        client->sent_bytes += (size_t)taken;
        if ((size_t)taken == length) {
            client->sent++;
            client->sent_bytes = 0;
        }
    }
    if (is_everything_sent(client) && !client->finished) {
        check("spw_finish", spw_finish(client->session));
        client->finished = 1;
    }
}

/* Compares reply bytes with the messages that were sent, and reports the latency of each complete reply. */
static void check_replies(struct client *client, const unsigned char *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) {
        if (client->received >= client->sent + (client->sent_bytes > 0))
            die("reply", "more bytes than were sent");
        if (bytes[at] != message_byte(client->received, client->received_bytes))
            die("reply", "differs from what was sent");
        if (++client->received_bytes == message_length(client->received)) {
            int64_t latency_us = now_us() - client->sent_at_us[client->received % UNDER_WAY];
            check("spw_measured", spw_measured(client->session, (uint64_t)latency_us));
            client->received_bytes = 0;
            if (++client->received % 100 == 0)
                printf("%ld messages\n", client->received);
        }
    }
}

/* Receives until no bytes are available. */
static void receive_all(struct client *client) {
    unsigned char buffer[16 * 1024];
    for (;;) {
        ptrdiff_t received = spw_receive(client->session, buffer, sizeof buffer);
        if (received == SPW_AGAIN)
            return;
        check("spw_receive", received);
        if (received == 0) {
            client->is_at_end = 1;
            return;
        }
        if (client->count < 0)
            fwrite(buffer, 1, (size_t)received, stdout);
        else
            check_replies(client, buffer, (size_t)received);
    }
}

/* Reports to the relief, and lets it move the session. */
static void relieve(struct client *client) {
    char notice[256];
    int waits = client->received < client->sent;
    int64_t waited_us = waits ? now_us() - client->sent_at_us[client->received % UNDER_WAY] : -1;
    check("spw_oldest_wait", spw_oldest_wait(client->session, waited_us));
    check("spw_relief_handle", spw_relief_handle(client->relief));
    while (spw_relief_next_notice(client->relief, notice, sizeof notice) == 1)
        fprintf(stderr, "client: relief: %s\n", notice);
}

/* The shorter of two timeouts; a negative one is without limit. */
static int shorter(int one, int other) {
    return other < 0 || (one >= 0 && one < other) ? one : other;
}

/* One turn of the loop: the session's descriptor, its relief's, and standard input. */
static void turn(struct client *client) {
    int reads_lines = client->count < 0 && client->line_sent == client->line_length;
    int reads_input = !client->input_ended && (client->count == 0 || reads_lines);
    struct pollfd watched[3] = {
        {.fd = spw_poll_descriptor(client->session), .events = POLLIN},
        {.fd = reads_input ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = client->relief ? spw_relief_descriptor(client->relief) : -1, .events = POLLIN},
    };
    int timeout = spw_next_timeout_ms(client->session);
    if (client->relief)
        timeout = shorter(timeout, spw_relief_next_timeout_ms(client->relief));
    if (poll(watched, 3, timeout) < 0 && errno != EINTR)
        die("poll", strerror(errno));
    if (reads_input && watched[1].revents != 0) {
        ssize_t length = read(STDIN_FILENO, client->line, sizeof client->line);
        if (length <= 0)
            client->input_ended = 1;
        client->line_length = length > 0 ? (size_t)length : 0;
        client->line_sent = 0;
    }
    check("spw_handle", spw_handle(client->session));
    receive_all(client);
    send_more(client);
    if (client->relief)
        relieve(client);
    print_events(client);
}

int main(int count, char **arguments) {
    static struct client client = {.count = -1};
    uint32_t sla_us = 0;
    spw_settings *settings = spw_settings_new();
    for (int at = 1; at < count; at += 2) {
        const char *name = arguments[at], *value = arguments[at + 1]; /* arguments[count] is null */
        if (value == NULL)
            die(name, "needs a value");
        if (strcmp(name, "--server") == 0)
            check(name, spw_settings_server(settings, value));
        else if (strcmp(name, "--helpers") == 0)
            check(name, spw_settings_helpers(settings, value));
        else if (strcmp(name, "--key") == 0)
            check(name, spw_settings_key_file(settings, value));
        else if (strcmp(name, "--count") == 0)
            client.count = atol(value);
        else if (strcmp(name, "--sla-us") == 0)
            sla_us = (uint32_t)strtoul(value, NULL, 10);
        else
            die(name, "unknown argument");
    }
    if (sla_us > 0) {
        check("spw_relief_new", spw_relief_new(settings, sla_us, &client.relief));
        check("spw_relief_connect", spw_relief_connect(client.relief, &client.session));
    } else {
        check("spw_connect", spw_connect(settings, &client.session));
    }
    spw_settings_free(settings);

    send_more(&client);
    while (!client.is_at_end)
        turn(&client);
    if (client.count >= 0 && (client.received != client.sent || client.received_bytes != 0))
        die("replies", "the stream ended too early");

    /* Both directions have ended: close the session, and give the server time to answer. */
    check("spw_close", spw_close(client.session));
    for (int turns = 0; turns < CLOSE_TURNS && !spw_is_over(client.session); turns++)
        check("spw_wait", spw_wait(client.session, 10));
    if (client.count >= 0)
        printf("%ld messages, every byte right, %d carriers\n", client.received, client.moves);
    spw_free(client.session);
    spw_relief_free(client.relief);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
