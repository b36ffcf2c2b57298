/* What client.c switches and reads, for measurements/gpu/mps/busy.py. Nobody else depends on it. */
#pragma once
#include <stdint.h>

enum { SILENT = 0, ALWAYS = 1, WINDOWS = 2 };

typedef struct {
    volatile int mode;                    /* SILENT and ALWAYS are for comparison alone */
    volatile double records_per_second;   /* at most, in the long run */
    volatile double listened_s, busy_s;   /* how long records were made; the result, of all time */
    volatile double called_s, longest_s;  /* spent in CUPTI's calls that switch and flush, and the longest of them */
    volatile uint64_t windows, kernels, graphs, without_times;
} Busytime;
