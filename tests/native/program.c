/* A program that is linked with libcuda as a toolkit links it: what it sees directly, in threads, and in a forked child. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB ((size_t)1 << 30)

int cuInit(unsigned int flags);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status);

static size_t seen(void)
{
    size_t free_bytes = 0, total = 0, whole = 0;
    void *address = NULL;
    int (*looked_up)(size_t *, size_t *);

    if (cuMemGetInfo_v2(&free_bytes, &total) != 0 || cuDeviceTotalMem_v2(&whole, 0) != 0 || whole != total)
        return 0;
    if (cuGetProcAddress_v2("cuMemGetInfo", &address, 12000, 0, NULL) != 0)
        return 0;
    memcpy(&looked_up, &address, sizeof looked_up);
    return looked_up(&free_bytes, &whole) == 0 && whole == total ? total / GIB : 0;
}

static void *thread(void *result)
{
    for (int turn = 0; turn < 1000; turn++)
        *(size_t *)result = seen();
    return NULL;
}

int main(void)
{
    pthread_t threads[8];
    size_t results[8];
    int status = 1;

    if (cuInit(0) != 0)
        return 1;
    printf("direct %zu\n", seen());
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, thread, &results[i]) != 0)
            return 1;
    fflush(stdout);
    pid_t child = fork(); /* while threads ask */
    if (child == 0)
        _exit((int)seen());
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    waitpid(child, &status, 0);
    for (int i = 0; i < 8; i++)
        printf("thread %zu\n", results[i]);
    printf("child %d\n", WEXITSTATUS(status));
    return 0;
}
