/* An echo server that ends in one of these ways, chosen by a client's message or by the program's argument:
 *
 * "quit..."  exit() inside a signal handler, which runs while the thread is inside malloc()
 * "free..."  the same inside free()
 * "early"    like "quit...", but before the program listens; given as the argument, instead of a port
 * "loop..."  closes the event loop that its listener is in, and goes on with the one that its clients are in
 *
 * Every call takes the heap's only lock, which is not recursive, like the lock of an arena in glibc.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;
static volatile int signal_comes;

static void end(int number) {
    (void)number;
    exit(3);
}

static void enter(void) {
    pthread_mutex_lock(&heap);
    if (signal_comes) {
        signal_comes = 0;
        raise(SIGUSR1);
    }
}

#define HEAP(call) enter(); void *result = call; pthread_mutex_unlock(&heap); return result

void *malloc(size_t size) { HEAP(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { HEAP(__libc_calloc(count, size)); }
void *realloc(void *memory, size_t size) { HEAP(__libc_realloc(memory, size)); }
void *memalign(size_t align, size_t size) { HEAP(__libc_memalign(align, size)); }
void *aligned_alloc(size_t align, size_t size) { HEAP(__libc_memalign(align, size)); }

int posix_memalign(void **memory, size_t align, size_t size) {
    return (*memory = memalign(align, size)) ? 0 : ENOMEM;
}

void free(void *memory) {
    enter();
    __libc_free(memory);
    pthread_mutex_unlock(&heap);
}

static void watch(int set, int operation, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(set, operation, fd, &event) < 0) _exit(10);
}

/* Whether the client's end is reported at once. */
static int is_end_reported(int set, int fd) {
    struct epoll_event events[8];
    int count = epoll_wait(set, events, 8, 0);
    for (int at = 0; at < count; at++) {
        if (events[at].data.fd == fd && events[at].events & EPOLLHUP) {
            return send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE;
        }
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 2) return 1;
    signal(SIGUSR1, end);
    if (!strcmp(arguments[1], "early")) {
        signal_comes = 1;
        free(malloc(10));
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) return 1;
    int main_set = epoll_create1(0), clients = epoll_create1(0);
    watch(main_set, EPOLL_CTL_ADD, listener);
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(main_set, &event, 1, 5) > 0) {
            int client = accept(listener, NULL, NULL);
            if (client < 0) continue;
            /* The first loop that a client is in serves its link from then on. */
            watch(main_set, EPOLL_CTL_ADD, client);
            watch(main_set, EPOLL_CTL_DEL, client);
            watch(clients, EPOLL_CTL_ADD, client);
        }
        if (epoll_wait(clients, &event, 1, 5) > 0) {
            char text[100];
            int fd = event.data.fd, length = recv(fd, text, sizeof text, 0);
            if (length <= 0) {
                close(fd);
                continue;
            }
            send(fd, text, length, MSG_NOSIGNAL);
            if (!memcmp(text, "quit", 4)) {
                signal_comes = 1;
                free(malloc(10));
            } else if (!memcmp(text, "free", 4)) {
                void *memory = malloc(10);
                signal_comes = 1;
                free(memory);
            } else if (!memcmp(text, "loop", 4)) {
                close(main_set);
                exit(is_end_reported(clients, fd) ? 4 : 5);
            }
        }
    }
}
