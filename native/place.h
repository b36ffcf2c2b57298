/* Where a process waits for a place on its GPU: before the driver makes a context.
 *
 * The driver's own connection for a context would wait at the broker just as long, inside a call that no signal ends and
 * that tells nobody why. So the library asks on a connection of its own before that, says on stderr what is waited for,
 * and gives up with an error when a signal comes whose handler may want to end the wait. It decides nothing: who is not
 * waited for here waits there.
 *
 * Only where the broker's board says that the GPU has a queue, so a broker of before is never asked.
 */
#ifndef GPUSHARE_PLACE_H
#define GPUSHARE_PLACE_H

#include <errno.h>

#include "ask.h"

enum {
    NO_PLACE = 808,        /* CUDA_ERROR_MPS_MAX_CLIENTS_REACHED */
    LONGEST_LINE = 192,
    WRITABLE = 4,          /* POLLOUT */
};

#define SIGNAL(number) ((uint64_t)1 << ((number) - 1))
/* Signals that programs handle while they go on with what they do: USR1, USR2, PIPE, CHLD, URG, VTALRM, PROF, WINCH, IO and
 * those of real time. They are handled each LOOK, and end no wait. */
#define GO_ON (SIGNAL(10) | SIGNAL(12) | SIGNAL(13) | SIGNAL(17) | SIGNAL(23) | SIGNAL(26) | SIGNAL(27) | SIGNAL(28) | \
               SIGNAL(29) | ~(uint64_t)0 << 33)
#define LOOK (1 * SECONDS)
#define SILENT (180 * SECONDS) /* a broker that has something to say each minute */
#define MISSED (3 * SECONDS) /* so long a broker may be away without a word of it */
#define AWAY (900 * SECONDS) /* a broker that cannot be asked: then the driver finds out by itself */

/* A line that is put together without a C library. */
struct line {
    char text[LONGEST_LINE];
    size_t length;
};

static void add_text(struct line *line, const char *text)
{
    while (*text != '\0' && line->length < sizeof line->text)
        line->text[line->length++] = *text++;
}

static void add_number(struct line *line, uint64_t number)
{
    char digits[20];
    size_t count = 0;

    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count > 0 && line->length < sizeof line->text)
        line->text[line->length++] = digits[--count];
}

/* Never waits: who reads stderr may be slow, or nobody. */
static void tell(struct line *line)
{
    struct kernel_poll errors = {2, WRITABLE, 0};
    const struct timespec at_once = {0, 0};

    add_text(line, "\n");
    if (syscall(SYS_ppoll, &errors, 1, &at_once, NULL, 0) == 1 && errors.found == WRITABLE)
        syscall(SYS_write, 2, line->text, line->length);
}

static void tell_position(const struct place *place)
{
    struct line line = {"", 0};

    add_text(&line, "gpushare: this program waits for a place on the GPU: number ");
    add_number(&line, place->position);
    add_text(&line, " of ");
    add_number(&line, place->waiting);
    add_text(&line, " that wait; all ");
    add_number(&line, place->places);
    add_text(&line, " places are taken. Ctrl-C gives up.");
    tell(&line);
}

static void tell_end(const char *text, nanoseconds waited)
{
    struct line line = {"", 0};

    add_text(&line, "gpushare: ");
    add_text(&line, text);
    add_text(&line, " after ");
    add_number(&line, (uint64_t)(waited / SECONDS));
    add_text(&line, " s");
    tell(&line);
}

/* Whether there is something to hear: 1; 0: not in LOOK; -1: a signal came that may want to end the wait. `sock` -1: there is
 * nothing to listen to. */
static int wait_for_broker(int sock)
{
    struct kernel_poll waiting = {sock, READABLE, 0};
    const struct timespec look = {LOOK / SECONDS, LOOK % SECONDS};
    uint64_t blocked = 0;

    syscall(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, NULL, &blocked, sizeof blocked);
    blocked |= GO_ON;
    long found = syscall(SYS_ppoll, &waiting, 1, &look, &blocked, sizeof blocked);
    return found > 0 ? 1 : found < 0 && errno == EINTR ? -1 : 0;
}

enum outcome { GOES_ON, GIVEN, REFUSED, GIVEN_UP, LOST };

/* What the broker says on one connection, until its last word. `position`: that was told last. `heard`: when it last said
 * something that is as it has to be. */
static enum outcome hear_places(int sock, uint32_t *position, nanoseconds *heard)
{
    nanoseconds since = now();
    bool greeted = false;

    for (;;) {
        char greeting[64];
        struct place place = {0};
        int found = wait_for_broker(sock);

        if (found < 0)
            return GIVEN_UP;
        if (found == 0 && now() - since > SILENT)
            return LOST;
        if (found == 0)
            continue;
        since = now();
        if (!greeted) {
            greeted = hear(sock, greeting, sizeof greeting, NULL, since + LOOK) > 0;
            if (!greeted || !say_request(sock, REQUEST_PLACE))
                return LOST;
            continue;
        }
        if (hear(sock, &place, sizeof place, NULL, since + LOOK) != sizeof place || place.magic != PLACE_MAGIC ||
            place.version != PAGES_VERSION)
            return LOST;
        *heard = since;
        if (place.state != PLACE_WAITING)
            return place.state == PLACE_GIVEN ? GIVEN : place.state == PLACE_REFUSED ? REFUSED : GOES_ON;
        if (place.position != *position)
            tell_position(&place);
        *position = place.position;
    }
}

static CUresult give_up(nanoseconds began)
{
    tell_end("a signal came, so this program waits no longer for a place on the GPU (CUDA error 808),", now() - began);
    return NO_PLACE;
}

/* Waits until this process may make a context, or nobody says that it may not. Else the error that its caller gets. */
static CUresult wait_for_place(void)
{
    const nanoseconds began = now();
    nanoseconds heard = began;
    uint32_t position = 0;
    bool is_missed = false;

    while (has_class() && atomic_load_explicit(&pages->board.places, memory_order_relaxed) != 0) {
        int sock = connection();
        enum outcome outcome = sock >= 0 ? hear_places(sock, &position, &heard) : LOST;
        if (sock >= 0)
            hang_up(sock);
        switch (outcome) {
        case GIVEN:
            if (position != 0 || is_missed)
                tell_end("this program has a place on the GPU now,", now() - began);
            return CUDA_SUCCESS;
        case REFUSED:
            tell_end("no place on the GPU became free in time (CUDA error 808),", now() - began);
            return NO_PLACE;
        case GIVEN_UP:
            return give_up(began);
        case GOES_ON:
            return CUDA_SUCCESS;
        case LOST:
            break;
        }
        if (now() - heard > AWAY)
            break;
        if (now() - heard > MISSED && !is_missed) {
            tell_end("the GPU takes no program now, as while its MPS pod is replaced; waiting, for 15 minutes at most,",
                     now() - began);
            is_missed = true;
        }
        if (wait_for_broker(-1) < 0)
            return give_up(began);
    }
    return CUDA_SUCCESS;
}

#endif
