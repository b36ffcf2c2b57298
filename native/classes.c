/* In front of libcuda.so.1 where clients have classes: beside the memory, when this process launches, and when it waits.
 *
 * With no class asked for (GPUSHARE_CLASS), each of these functions is the driver's after one look at a pointer.
 */
#define CLASSES
#include "cuda.c"
