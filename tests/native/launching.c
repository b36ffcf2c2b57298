/* A program that launches from several threads, waits in each way, and forks meanwhile: what a class has to stand. */
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned int flags);
int cuStreamCreateWithPriority(void **stream, unsigned int flags, int priority);
int cuStreamDestroy_v2(void *stream);
int cuEventCreate(void **event, unsigned int flags);
int cuEventRecord(void *event, void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned int flags);
int cuStreamSynchronize(void *stream);
int cuStreamSynchronize_ptsz(void *stream);
int cuCtxSynchronize(void);
int cuEventSynchronize(void *event);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernel_ptsz(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuGraphLaunch(void *, void *);

enum { THREADS = 4, TURNS = 25 };

static int turn(void *stream, void *event)
{
    return cuLaunchKernel((void *)1, 20, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) || cuEventRecord(event, stream) ||
           cuLaunchKernel_ptsz((void *)2, 5, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) || cuStreamWaitEvent((void *)1, event, 0) ||
           cuGraphLaunch((void *)9, NULL) || cuEventSynchronize(event) || cuStreamSynchronize(stream) ||
           cuStreamSynchronize_ptsz(NULL) || cuCtxSynchronize();
}

static void *thread(void *failed)
{
    void *stream, *event;

    for (int number = 0; number < TURNS; number++) {
        *(int *)failed |= cuStreamCreateWithPriority(&stream, 1, 0) || cuEventCreate(&event, 2) || turn(stream, event);
        *(int *)failed |= cuStreamDestroy_v2(stream);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int failed[THREADS] = {0}, status = 1, sum = 0;

    if (cuInit(0) != 0)
        return 1;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread, &failed[i]) != 0)
            return 1;
    pid_t child = fork();
    if (child == 0) /* a lock of the stand-in may be held by a thread that is not here: nothing of it is called */
        _exit(0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += failed[i];
    }
    waitpid(child, &status, 0);
    printf("failed %d\n", sum + status);
    return 0;
}
