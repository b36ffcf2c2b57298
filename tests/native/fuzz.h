/* What both fuzz targets need: values taken from an input, an environment and a dynamic linker made of them.
 *
 * A target includes the source of a front library, so its constructor can run again for each input. The front asks this
 * getenv, dlopen and dlsym, and every text and every structure that it is given has a heap block of its very size: the
 * address sanitizer sees each byte too many.
 */
#ifndef GPUSHARE_FUZZ_H
#define GPUSHARE_FUZZ_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU "GPU-01234567-89ab-cdef-0123-456789abcdef"
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *rest; /* of the input; after its end all is zero */
static size_t rest_size;

static uint8_t take_byte(void)
{
    if (rest_size == 0)
        return 0;
    rest_size--;
    return *rest++;
}

static uint64_t take_number(void)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value = value << 8 | take_byte();
    return value;
}

/* A size as a driver says it: often near the grants that take_variable gives. */
static uint64_t take_size(void)
{
    uint8_t kind = take_byte();

    return kind < 64 ? take_number() : (uint64_t)take_byte() << (20 + kind % 16);
}

/* A heap copy of its very size: of `valid`, of `valid` with one byte replaced, or of bytes of the input; or NULL. */
static char *take_text(const char *valid)
{
    uint8_t kind = take_byte();
    size_t length = kind < 224 ? strlen(valid) : take_byte() % 80;
    char *text;

    if (kind < 16 || (text = malloc(length + 1)) == NULL)
        return NULL;
    memset(text, 0, length + 1);
    if (kind < 224)
        memcpy(text, valid, length);
    if (kind >= 176 && kind < 224 && length > 0)
        text[take_byte() % length] = (char)take_byte();
    for (size_t i = 0; kind >= 224 && i < length; i++)
        text[i] = (char)take_byte();
    return text;
}

static const char *const numbers[] = {"17179869184", "1048576", "4294967296", "1", "2", "3", "999999999999999", "0"};

static const char *const classes[] = {"BestEffort", "BestEffort", "Protected", "Normal"};

static struct {
    const char *name;
    char *value;
} environment[] = {
    {"GPUSHARE_GPU", NULL},
    {"GPUSHARE_MEMORY_BYTES", NULL},
    {"GPUSHARE_PROCESSES", NULL},
    {"GPUSHARE_MEMORY_LIMIT_BYTES", NULL},
    {"GPUSHARE_CLASS", NULL},
    {"GPUSHARE_ATTACH", NULL},
};
enum { VARIABLES = sizeof environment / sizeof *environment, NUMBERS = 4 };

static void take_environment(void)
{
    environment[0].value = take_text(GPU);
    for (int i = 1; i < NUMBERS; i++)
        environment[i].value = take_text(numbers[take_byte() % (sizeof numbers / sizeof *numbers)]);
    environment[NUMBERS].value = take_text(classes[take_byte() % (sizeof classes / sizeof *classes)]);
    environment[NUMBERS + 1].value = take_text("/run/gpushare/mps");
}

/* Of the variables that are read while a call runs nothing may be needed: a program may have changed them. */
static void drop_environment(void)
{
    for (int i = 0; i < VARIABLES; i++) {
        free(environment[i].value);
        environment[i].value = NULL;
    }
}

static char *fuzz_getenv(const char *name)
{
    for (int i = 0; i < VARIABLES; i++)
        if (strcmp(name, environment[i].name) == 0)
            return environment[i].value;
    abort(); /* a variable that no target knows */
}

struct symbol {
    const char *name;
    void *address;
};

static uint32_t missing; /* a bit for each symbol that this driver has not */
static bool no_driver, no_nvml;

static void *find(const struct symbol *symbols, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, symbols[i].name) == 0)
            return missing >> i & 1 ? NULL : symbols[i].address;
    return NULL;
}

static void *fuzz_dlopen(const char *name, int flags)
{
    bool absent = strcmp(name, "libnvidia-ml.so.1") == 0 ? no_nvml : no_driver;

    (void)flags;
    return absent ? NULL : &missing;
}

static void *fuzz_dlsym(void *library, const char *name);

static int fuzz_dlclose(void *library)
{
    return library == &missing ? 0 : -1;
}

static char *fuzz_dlerror(void)
{
    return NULL;
}

#define getenv fuzz_getenv
#define dlopen fuzz_dlopen
#define dlsym fuzz_dlsym
#define dlclose fuzz_dlclose
#define dlerror fuzz_dlerror
#define DRIVER "the driver"

#endif
