/* Runs a fuzz target without libFuzzer: COUNT random inputs from SEED, the same ones each time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 1024 };

static uint64_t state;

static uint64_t next(void) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1DULL;
}

int main(int count, char **arguments)
{
    uint8_t input[LONGEST];

    if (count != 3)
        return 2;
    state = strtoull(arguments[1], NULL, 10) | 1;
    for (unsigned long long left = strtoull(arguments[2], NULL, 10); left > 0; left--) {
        size_t size = next() >> 32 & (LONGEST - 1);
        for (size_t i = 0; i < size; i++)
            input[i] = (uint8_t)(next() >> 56);
        LLVMFuzzerTestOneInput(input, size);
    }
    puts("done");
    return 0;
}
