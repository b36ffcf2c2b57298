/* What both front libraries need: the grant of this container, and the driver's own functions.
 *
 * A front has the SONAME of a library of the driver and lies at its place in a container. The driver's own library is its
 * only dependency (DT_NEEDED), under the name DRIVER, so the dynamic linker finds there every symbol that the front
 * does not define. It changes what is shown and enforces nothing: MPS does.
 *
 * Guarantees: all of this is settled while the library is loaded and is read-only from then on, so threads and forked
 * children need no lock. What is not understood of the environment, and of the driver, leaves everything as the driver
 * says it. Nothing beyond what a caller handed over is read or written, whatever the driver answers: tests/native has both
 * libraries under a fuzzer.
 */
#ifndef GPUSHARE_FRONT_H
#define GPUSHARE_FRONT_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MIB ((uint64_t)1 << 20)

enum { UUID_BYTES = 16, UUID_TEXT = sizeof "GPU-01234567-89ab-cdef-0123-456789abcdef", MOST_DIGITS = 15 };

typedef void (*function)(void);

struct grant {
    uint64_t bytes;     /* of each process; 0: nothing is changed */
    uint64_t processes; /* that the container may have */
    unsigned char gpu[UUID_BYTES];
    char gpu_text[UUID_TEXT]; /* the same, as it was written */
};

static inline bool read_number(const char *text, uint64_t *number)
{
    uint64_t value = 0;
    size_t digits = 0;

    for (; text != NULL && text[digits] >= '0' && text[digits] <= '9'; digits++) {
        if (digits == MOST_DIGITS)
            return false;
        value = value * 10 + (uint64_t)(text[digits] - '0');
    }
    *number = value;
    return digits > 0 && text[digits] == '\0';
}

static inline int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

/* Of GPU-01234567-89ab-cdef-0123-456789abcdef, as NVML writes it; false for anything else, such as a part made by MIG. */
static inline bool read_uuid(const char *text, unsigned char uuid[UUID_BYTES])
{
    if (text == NULL || strncmp(text, "GPU-", 4) != 0)
        return false;
    text += 4;
    for (int place = 0; place < UUID_BYTES; place++) {
        if (place == 4 || place == 6 || place == 8 || place == 10) {
            if (*text++ != '-')
                return false;
        }
        int high = hex_digit(*text);
        int low = high < 0 ? -1 : hex_digit(text[1]);
        if (low < 0)
            return false;
        uuid[place] = (unsigned char)(high * 16 + low);
        text += 2;
    }
    return *text == '\0';
}

/* As MPS limits it: the container's memory is divided by its processes and rounded down to whole MiB. */
static inline uint64_t of_each(uint64_t memory, uint64_t processes)
{
    return memory / MIB / processes * MIB;
}

static inline struct grant read_grant(void)
{
    struct grant grant = {0};
    uint64_t memory = 0;
    const char *gpu = getenv("GPUSHARE_GPU");

    if (read_uuid(gpu, grant.gpu) && read_number(getenv("GPUSHARE_MEMORY_BYTES"), &memory) &&
        read_number(getenv("GPUSHARE_PROCESSES"), &grant.processes) && grant.processes > 0) {
        grant.bytes = of_each(memory, grant.processes);
        memcpy(grant.gpu_text, gpu, sizeof grant.gpu_text); /* a UUID that was read has this very length */
    }
    return grant;
}

static inline bool is_granted(const struct grant *grant, const unsigned char uuid[UUID_BYTES])
{
    return memcmp(grant->gpu, uuid, UUID_BYTES) == 0;
}

struct wanted {
    const char *name;
    function *found;
};

/* Looks up the driver's own functions; one that this driver does not have stays NULL. The library is loaded already: it
 * is our dependency. The handle is given back, for the dependency keeps it. */
static inline void find_functions(const struct wanted *wanted, size_t count)
{
    void *driver = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);

    for (size_t i = 0; driver != NULL && i < count; i++) {
        void *address = dlsym(driver, wanted[i].name);
        memcpy(wanted[i].found, &address, sizeof address);
    }
    if (driver != NULL)
        dlclose(driver);
    (void)dlerror(); /* what a program asks for later is about its own calls */
}

#endif
