/* A client of known work, for measurements/gpu/mps/busy.py: the GPU's own clock says how long each kernel ran.
 *
 * client KERNELS.ptx; then a line "ITERATIONS BLOCKS DEPTH GRAPH SECONDS MODE" on standard input, each answered with JSON.
 * GRAPH: kernels in each graph, 0: single launches. DEPTH: launches between two waits. MODE: of the library, if it is there.
 * Built without CUDA's headers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "busytime.h"

typedef void *Handle;
static void *cuda;
static void check(int error, const char *what) {
    if (error) { printf("{\"error\": %d, \"what\": \"%s\"}\n", error, what); exit(1); }
}
/* A function of the driver, called with its arguments; all of ours return an error code. */
#define CALL(name, ...) check(((int (*)())dlsym(cuda, #name))(__VA_ARGS__), #name)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

typedef struct { uint64_t start, end, sum, kernels; uint32_t done, unused; } Truth;

/* What the library has counted, some milliseconds after it is in this mode: time to end its window. */
static Busytime listen_as(Busytime *busy, int mode, int milliseconds) {
    Busytime seen = {0};
    if (busy) busy->mode = mode;
    struct timespec time = {0, milliseconds * 1000000L};
    nanosleep(&time, NULL);
    if (busy) memcpy(&seen, (void *)busy, sizeof seen);
    return seen;
}

int main(int count, char **words) {
    if (count < 2 || !(cuda = dlopen("libcuda.so.1", RTLD_NOW))) return 2;
    static char text[1 << 20];
    FILE *file = fopen(words[1], "r");
    if (!file || !fread(text, 1, sizeof text - 1, file)) return 2;
    int device;
    Handle context, module, kernel, stream;
    uint64_t truth, data;
    size_t before, after, total;
    double began = now();
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, text);
    CALL(cuModuleGetFunction, &kernel, module, "spin");
    CALL(cuStreamCreate, &stream, 1);
    CALL(cuMemAlloc_v2, &truth, sizeof(Truth));
    CALL(cuMemAlloc_v2, &data, (size_t)4096);
    Busytime *busy = dlsym(RTLD_DEFAULT, "gpushare_busytime");
    if (!busy) {
        const char *path = getenv("CUDA_INJECTION64_PATH");
        void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (library) busy = dlsym(library, "gpushare_busytime");
    }
    CALL(cuMemGetInfo_v2, &before, &total);
    printf("{\"ready\": true, \"library\": %s, \"start_s\": %.3f}\n", busy ? "true" : "false", now() - began);
    fflush(stdout);
    int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
    *(void **)&launch = dlsym(cuda, "cuLaunchKernel");
    int (*wait)(Handle) = dlsym(cuda, "cuStreamSynchronize");
    int (*launch_graph)(Handle, Handle) = dlsym(cuda, "cuGraphLaunch");
    int iterations, depth, graph, mode;
    unsigned blocks;
    double seconds;
    while (scanf("%d %u %d %d %lf %d", &iterations, &blocks, &depth, &graph, &seconds, &mode) == 6) {
        void *arguments[] = {&truth, &data, &iterations};
        Handle made = NULL, ready = NULL;
        if (graph) {
            CALL(cuStreamBeginCapture_v2, stream, 0);
            for (int i = 0; i < graph; i++) check(launch(kernel, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL), "launch");
            CALL(cuStreamEndCapture, stream, &made);
            CALL(cuGraphInstantiateWithFlags, &ready, made, (unsigned long long)0);
        }
        listen_as(busy, mode, 0);
        /* The first 50 ms are not counted: clocks rise, CUPTI prepares itself. */
        uint64_t launches = 0, late = 0;
        double rise = now() + 0.05, longest = 0, cpu_began = 0, end = 0;
        Truth zero = {.start = UINT64_MAX};
        Busytime first = {0};
        int counting = 0;
        for (began = now();;) {
            double at = now();
            if (!counting && at > rise) {
                CALL(cuMemcpyHtoD_v2, truth, &zero, sizeof zero);
                first = listen_as(busy, SILENT, 60);
                listen_as(busy, mode, 0);
                launches = late = 0, longest = 0, counting = 1;
                cpu_began = cpu(), began = at = now();
            }
            if (counting && at - began > seconds) break;
            for (int i = 0; i < depth; i++)
                check(graph ? launch_graph(ready, stream)
                            : launch(kernel, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL), "launch");
            check(wait(stream), "wait");
            double took = now() - at;
            launches += (uint64_t)depth;
            if (took > longest) longest = took;
            late += took > 0.001;
        }
        end = now();
        double used = cpu() - cpu_began;
        Truth seen;
        CALL(cuMemcpyDtoH_v2, &seen, truth, sizeof seen);
        CALL(cuMemGetInfo_v2, &after, &total);
        printf("{\"seconds\": %.6f, \"launches\": %llu, \"kernels\": %llu, \"true_busy\": %.5f, \"cpu\": %.4f, "
               "\"longest_round_ms\": %.3f, \"rounds_over_1ms\": %llu, \"memory_taken\": %lld",
               end - began, (unsigned long long)launches, (unsigned long long)seen.kernels,
               seen.sum * 1e-9 / (end - began), used / (end - began), longest * 1e3, (unsigned long long)late,
               (long long)before - (long long)after);
        if (busy) {
            Busytime last = listen_as(busy, SILENT, 60);
            double listened = last.listened_s - first.listened_s;
            printf(", \"listened\": %.5f, \"windows\": %llu, \"records\": %llu, \"graphs\": %llu, \"without_times\": %llu, "
                   "\"busy\": %.5f, \"called_ms\": %.3f, \"longest_call_ms\": %.3f",
                   listened / (end - began), (unsigned long long)(last.windows - first.windows),
                   (unsigned long long)(last.kernels - first.kernels), (unsigned long long)(last.graphs - first.graphs),
                   (unsigned long long)(last.without_times - first.without_times),
                   (last.busy_s - first.busy_s) / (end - began), (last.called_s - first.called_s) * 1e3,
                   last.longest_s * 1e3);
            busy->longest_s = 0;
        }
        printf("}\n");
        fflush(stdout);
        if (ready) { CALL(cuGraphExecDestroy, ready); CALL(cuGraphDestroy, made); }
    }
    return 0;
}
