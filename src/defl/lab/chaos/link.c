/* The network between the laboratory's hosts: one TUN device in each network namespace, and one
 * loop that carries packets from device to device. link.py compiles, starts and controls it.
 *
 *   link NAMESPACE...      the k-th namespace (from 0) is the host 10.77.0.(k + 1); tests give
 *                          sockets in place of devices, as fd:NUMBER
 *
 * Each host has a line with two directions, up (away from it) and down (towards it). A packet
 * passes the sender's up, then the receiver's down. A direction has, in this order: a queue that
 * drops what would wait too long, a rate, loss, and a delay with jitter. Times are computed from
 * when a packet arrived, not from when this process got to it, so rates and delays stay exact as
 * long as the process is not starved; `late_us` tells how late it has been at worst.
 *
 * Commands on stdin, one per line; the program ends with its stdin:
 *   line HOST up|down DELAY_US JITTER_US LOSS_PPM BITS_PER_S QUEUE_US REORDER
 *   cut FROM TO 0|1        packets from one host to another vanish (1) or pass (0)
 *   stats                  answers with one line of figures per host, then "end"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define HOSTS_MAX 32
#define PACKET_MAX 2048        /* devices have an MTU of 1500 */
#define PACKETS_MAX 200000     /* 400 MB: beyond this the laboratory itself is at fault */
#define READ_AT_ONCE 64        /* so that no host starves the others */
#define NAP_NS 200000          /* packets that are due within this leave together */
#define SECOND_NS 1000000000LL

typedef struct {
    int64_t delay_ns, jitter_ns, queue_ns, bits_per_s;
    uint32_t loss_ppm;
    int reorder;
    int64_t free_at;  /* when the last byte of the queue has left */
    int64_t last_due; /* of the packet before: without reordering none overtakes it */
    uint64_t packets, bytes, dropped_queue, dropped_loss, dropped_cut;
} Line;

typedef struct Packet {
    struct Packet *next; /* in the list of free packets */
    uint16_t size;
    uint8_t from, to, down;
    uint8_t data[PACKET_MAX];
} Packet;

typedef struct {
    int64_t due;
    uint64_t number; /* equal times keep their order */
    Packet *packet;
} Event;

static int hosts, device[HOSTS_MAX];
static Line lines[HOSTS_MAX][2]; /* up, down */
static uint8_t cut[HOSTS_MAX][HOSTS_MAX];
static Event heap[PACKETS_MAX];
static int waiting;
static uint64_t events, random_state = 88172645463325252ULL;
static int64_t late_ns;
static Packet *unused;

static void fail(const char *what) {
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static uint64_t draw(void) { /* xorshift64; the same packets meet the same fate in each run */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int before(const Event *a, const Event *b) {
    return a->due != b->due ? a->due < b->due : a->number < b->number;
}

static void push(int64_t due, Packet *packet) {
    Event event = {due, events++, packet};
    int i = waiting++;
    while (i > 0 && before(&event, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = event;
}

static Event pop(void) {
    Event first = heap[0], last = heap[--waiting];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= waiting) break;
        if (child + 1 < waiting && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

static Packet *take(void) {
    Packet *packet = unused;
    if (packet) unused = packet->next;
    else if (!(packet = malloc(sizeof *packet))) fail("memory");
    return packet;
}

static void release(Packet *packet) {
    packet->next = unused;
    unused = packet;
}

/* The packet reaches one direction of a line at this time. */
static void enter(Packet *packet, int64_t at) {
    Line *line = &lines[packet->down ? packet->to : packet->from][packet->down];
    if (cut[packet->from][packet->to]) {
        line->dropped_cut++;
        release(packet);
        return;
    }
    int64_t leaves = at;
    if (line->bits_per_s && line->free_at > leaves) leaves = line->free_at;
    if (waiting == PACKETS_MAX || (line->bits_per_s && leaves - at > line->queue_ns)) {
        line->dropped_queue++;
        release(packet);
        return;
    }
    if (line->bits_per_s) {
        leaves += packet->size * 8 * SECOND_NS / line->bits_per_s;
        line->free_at = leaves;
    }
    line->packets++;
    line->bytes += packet->size;
    if (line->loss_ppm && draw() % 1000000 < line->loss_ppm) {
        line->dropped_loss++;
        release(packet);
        return;
    }
    int64_t due = leaves + line->delay_ns;
    if (line->jitter_ns) due += (int64_t)(draw() % (2 * line->jitter_ns)) - line->jitter_ns;
    if (!line->reorder && due < line->last_due) due = line->last_due;
    if (due < leaves) due = leaves;
    line->last_due = due;
    push(due, packet);
}

static void move_due(int64_t now) {
    while (waiting && heap[0].due <= now) {
        Event event = pop();
        Packet *packet = event.packet;
        if (now - event.due > late_ns) late_ns = now - event.due;
        if (!packet->down) {
            packet->down = 1;
            enter(packet, event.due);
            continue;
        }
        if (cut[packet->from][packet->to]) lines[packet->to][1].dropped_cut++;
        else if (write(device[packet->to], packet->data, packet->size) < 0 && errno != EAGAIN &&
                 errno != EIO && errno != EINVAL)
            fail("write"); /* EIO: the device is down */
        release(packet);
    }
}

static void read_from(int host) {
    for (int i = 0; i < READ_AT_ONCE; i++) {
        Packet *packet = take();
        ssize_t size = read(device[host], packet->data, PACKET_MAX);
        const uint8_t *ip = packet->data;
        if (size <= 0) {
            release(packet);
            return;
        }
        /* IPv4 to one of our own hosts; anything else (router solicitations) goes nowhere. */
        int to = ip[19] - 1;
        if (size < 20 || ip[0] >> 4 != 4 || ip[16] != 10 || ip[17] != 77 || ip[18] != 0 || to < 0 ||
            to >= hosts || to == host) {
            release(packet);
            continue;
        }
        packet->size = (uint16_t)size;
        packet->from = (uint8_t)host;
        packet->to = (uint8_t)to;
        packet->down = 0;
        enter(packet, now_ns());
    }
}

static void report(void) {
    static const char *names[2] = {"up", "down"};
    for (int host = 0; host < hosts; host++)
        for (int down = 0; down < 2; down++) {
            const Line *l = &lines[host][down];
            printf("%d %s %llu %llu %llu %llu %llu\n", host, names[down],
                   (unsigned long long)l->packets, (unsigned long long)l->bytes,
                   (unsigned long long)l->dropped_queue, (unsigned long long)l->dropped_loss,
                   (unsigned long long)l->dropped_cut);
        }
    printf("late_us %lld\nend\n", (long long)late_ns / 1000);
    late_ns = 0;
    fflush(stdout);
}

static void obey(const char *command) {
    int host, to, value, reorder;
    char direction[8];
    long long delay, jitter, loss, rate, queue;
    if (sscanf(command, "line %d %7s %lld %lld %lld %lld %lld %d", &host, direction, &delay,
               &jitter, &loss, &rate, &queue, &reorder) == 8 &&
        host >= 0 && host < hosts) {
        Line *line = &lines[host][strcmp(direction, "down") == 0];
        line->delay_ns = delay * 1000;
        line->jitter_ns = jitter * 1000;
        line->loss_ppm = (uint32_t)loss;
        line->bits_per_s = rate;
        line->queue_ns = queue * 1000;
        line->reorder = reorder;
        line->last_due = 0;
        if (!rate) line->free_at = 0;
    } else if (sscanf(command, "cut %d %d %d", &host, &to, &value) == 3 && host >= 0 &&
               host < hosts && to >= 0 && to < hosts) {
        cut[host][to] = (uint8_t)value;
    } else if (strcmp(command, "stats") == 0) {
        report();
    } else {
        fprintf(stderr, "link: not a command: %s\n", command);
        exit(1);
    }
}

/* Returns 0 at the end of stdin. */
static int read_commands(void) {
    static char text[65536];
    static size_t have;
    ssize_t size = read(0, text + have, sizeof text - 1 - have);
    if (size <= 0) return size < 0 && errno == EAGAIN;
    have += (size_t)size;
    char *start = text, *end;
    while ((end = memchr(start, '\n', have - (size_t)(start - text)))) {
        *end = 0;
        obey(start);
        start = end + 1;
    }
    have -= (size_t)(start - text);
    memmove(text, start, have);
    return 1;
}

/* The device is born in the namespace that this thread is in, and dies with its descriptor. */
static int open_device(const char *namespace) {
    char path[256];
    if (strncmp(namespace, "fd:", 3) == 0) return atoi(namespace + 3);
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int inside = open(path, O_RDONLY | O_CLOEXEC);
    if (inside < 0 || setns(inside, CLONE_NEWNET) < 0) fail(path);
    close(inside);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "wan");
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) < 0) fail("/dev/net/tun");
    return tun;
}

int main(int count, char **arguments) {
    struct pollfd ready[HOSTS_MAX + 1] = {{.fd = 0, .events = POLLIN}};
    hosts = count - 1;
    if (hosts < 1 || hosts > HOSTS_MAX) {
        fprintf(stderr, "link: name 1 to %d network namespaces\n", HOSTS_MAX);
        return 2;
    }
    for (int host = 0; host < hosts; host++) {
        device[host] = open_device(arguments[host + 1]);
        ready[host + 1] = (struct pollfd){.fd = device[host], .events = POLLIN};
    }
    /* Busy nodes must not slow their own network. */
    const struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_RR, &first) < 0 && errno != EPERM) fail("sched_setscheduler");
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct timespec nap = {0, 0}, *timeout = NULL;
        if (waiting) {
            int64_t left = heap[0].due - now_ns();
            if (left < NAP_NS) left = left < 0 ? 0 : NAP_NS;
            nap = (struct timespec){left / SECOND_NS, left % SECOND_NS};
            timeout = &nap;
        }
        if (ppoll(ready, (nfds_t)hosts + 1, timeout, NULL) < 0 && errno != EINTR) fail("ppoll");
        if (ready[0].revents && !read_commands()) return 0;
        for (int host = 0; host < hosts; host++)
            if (ready[host + 1].revents) read_from(host);
        move_due(now_ns());
    }
}
