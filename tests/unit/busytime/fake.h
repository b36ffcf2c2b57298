/* What program.c and fake_cupti.c share. Times are in seconds. */
#pragma once
#include <semaphore.h>

enum { STREAMS = 8 };

typedef struct {
    double first, period, seconds;   /* of the launches, and of each kernel */
    double on, cycle;                /* it launches in the first `on` seconds of each `cycle`; 0: always */
    int graph;
    double next, free;               /* the next launch, and when the last kernel ends */
} Stream;

extern Stream work[STREAMS];
extern int streams, freely;          /* freely: time passes without end */
extern double until;                 /* after so many seconds time stands still */
extern sem_t over;                   /* posted then */
extern volatile int driver_gone;     /* CUPTI's functions abort from then on */
extern volatile long calls, made, lost;
extern double truly_busy;            /* the union of all kernels, of those that still run too */
