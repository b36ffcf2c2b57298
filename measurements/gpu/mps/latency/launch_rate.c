/* Launches per second of a kernel that does nothing: launch_rate SECONDS DEPTH, a wait after each DEPTH. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cuInit(unsigned int);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const char *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamSynchronize(void *);

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int count, char **arguments)
{
    void *context, *module, *function;
    int device;
    long done = 0;

    if (count != 3 || cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuModuleLoadData(&module, ptx) || cuModuleGetFunction(&function, module, "nothing"))
        return 1;
    const int depth = atoi(arguments[2]);
    for (int turn = 0; turn < 2; turn++) { /* the first one warms up */
        const double began = now(), end = began + atof(arguments[1]) * (turn ? 1 : 0.2);
        for (done = 0; now() < end; done += depth) {
            for (int i = 0; i < depth; i++)
                if (cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
                    return 2;
            if (cuStreamSynchronize(NULL) != 0)
                return 3;
        }
        if (turn)
            printf("%f\n", (double)done / (now() - began));
    }
    return 0;
}
