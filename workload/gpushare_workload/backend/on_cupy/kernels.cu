// The kernels of the workload. One block of 256 threads is the unit of every fixed amount of work: the number of blocks
// alone determines how much of the GPU a launch can fill.
//
// All values are whole numbers that float represents exactly: a result is right to the last bit, or wrong. Each launch of
// `compute`, `recorded` and `memory` adds to its output, modulo 2^32, so that the output counts the launches.

#define BLOCK 256
#define CHAINS 4

extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}

// Runs until the host writes to `released`, which lies in pinned host memory.
extern "C" __global__ void endless(const volatile int* released) {
    if (threadIdx.x == 0) while (*released == 0) __nanosleep(1000);
    __syncthreads();
}

extern "C" __global__ void rows(const double* matrix, double* sums, int columns) {
    __shared__ double part[BLOCK];
    double sum = 0.0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        double value = matrix[(size_t)blockIdx.x * columns + i];
        sum += value * value;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// Four independent chains of fused multiply-adds per thread hide the latency of one. `factor` is 1 and comes from the
// host, so that the compiler can neither fold the loop nor turn it into additions.
__device__ void begin_chains(float* value, int thread) {
    #pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) value[chain] = (float)(thread % 1024 + chain);
}

__device__ void step_chains(float* value, int iterations, float factor) {
    #pragma unroll 8
    for (int i = 0; i < iterations; i++) {
        #pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) value[chain] = fmaf(value[chain], factor, factor);
    }
}

__device__ unsigned int sum_of_chains(const float* value) {
    float sum = 0.0f;
    #pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) sum += value[chain];
    return (unsigned int)sum;
}

extern "C" __global__ void compute(unsigned int* results, int iterations, float factor) {
    int thread = blockIdx.x * BLOCK + threadIdx.x;
    float value[CHAINS];
    begin_chains(value, thread);
    step_chains(value, iterations, factor);
    results[thread] += sum_of_chains(value);
}

__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// `compute`, whose launches record themselves. `record` has 8 words: the first start and the last end of any block, the
// longest pause of block 0 (from, to), and a bit for each SM that ran a block. Between two looks at the clock lie PIECE
// iterations, some microseconds: a much longer gap is a time slice in which something else ran.
#define PIECE 256
#define SMS 256
extern "C" __global__ void recorded(unsigned int* results, int iterations, float factor, unsigned long long* record) {
    int thread = blockIdx.x * BLOCK + threadIdx.x;
    unsigned long long start = 0, last = 0, longest = 0, paused = 0, resumed = 0;
    if (threadIdx.x == 0) {
        unsigned int sm;
        asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
        start = last = now();
        atomicMin(&record[0], start);
        if (sm < SMS) atomicOr(&record[4 + sm / 64], 1ull << (sm % 64));
    }
    float value[CHAINS];
    begin_chains(value, thread);
    for (int done = 0; done < iterations; done += PIECE) {
        step_chains(value, min(PIECE, iterations - done), factor);
        if (threadIdx.x == 0) {
            unsigned long long time = now();
            if (time - last > longest) { longest = time - last; paused = last; resumed = time; }
            last = time;
        }
    }
    results[thread] += sum_of_chains(value);
    if (threadIdx.x == 0) {
        unsigned long long time = now();
        if (time - last > longest) { paused = last; resumed = time; }
        atomicMax(&record[1], time);
        if (blockIdx.x == 0) { record[2] = paused; record[3] = resumed; }
    }
}

// Each block streams its own slice of the three arrays.
extern "C" __global__ void memory(unsigned int* sums, const float* left, const float* right, int elements,
                                  float factor) {
    size_t base = (size_t)blockIdx.x * elements;
    for (int i = threadIdx.x; i < elements; i += BLOCK)
        sums[base + i] += (unsigned int)(left[base + i] + factor * right[base + i]);
}

extern "C" __global__ void increment(float* values, int elements) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < elements) values[i] += 1.0f;
}

// Adds one to each value `iterations` times: work of a given length on data that was copied in.
extern "C" __global__ void process(float* values, int elements, int iterations, float factor) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= elements) return;
    float value = values[i];
    for (int n = 0; n < iterations; n++) value = fmaf(value, factor, factor);
    values[i] = value;
}

// The filters of a pipeline, for one piece of a chunk. `convolve` reads values before its piece too: `first` is the place of
// the piece in the chunk.
extern "C" __global__ void add(const float* left, const float* right, float* result, int elements) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < elements) result[i] = left[i] + right[i];
}

extern "C" __global__ void scale(const float* values, float* result, int elements, double mean, double factor) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < elements) result[i] = (float)((values[i] - mean) * factor);
}

extern "C" __global__ void convolve(const float* chunk, const float* taps, float* result, int first, int elements,
                                    int count) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= elements) return;
    int last = first + i;
    float sum = 0.0f;
    for (int tap = 0; tap < count && tap <= last; tap++) sum = fmaf(taps[tap], chunk[last - tap], sum);
    result[last] = sum;
}

// One Jacobi sweep for -laplace(u) = f. `change` receives the largest change as the bits of a non-negative double: their
// order as integers is their order as numbers. One atomic for each block: one for each value would take longer than the
// sweep itself.
extern "C" __global__ void jacobi(const double* old, double* fresh, const double* source, double spacing_squared,
                                  int rows, int columns, unsigned long long* change) {
    __shared__ unsigned long long largest;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    int column = blockIdx.x * blockDim.x + threadIdx.x + 1, row = blockIdx.y + 1;
    unsigned long long mine = 0;
    if (column <= columns - 2 && row <= rows - 2) {
        size_t at = (size_t)row * columns + column;
        double value = 0.25 * (old[at - columns] + old[at + columns] + old[at - 1] + old[at + 1]
                               + spacing_squared * source[at]);
        fresh[at] = value;
        mine = (unsigned long long)__double_as_longlong(fabs(value - old[at]));
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        unsigned long long other = __shfl_down_sync(0xffffffffu, mine, offset);
        if (other > mine) mine = other;
    }
    if (threadIdx.x % 32 == 0) atomicMax(&largest, mine);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(change, largest);
}
