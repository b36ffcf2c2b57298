/* A program that loads the library as the driver does: program LIBRARY SECONDS [FIRST PERIOD SECONDS ON CYCLE GRAPH]...
 *
 * Says how the library's thread is called after so many seconds, and what it cost; ends with its standard input.
 * SECONDS 0: it forks and ends in the midst.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../workload/busytime/busytime.h"

/* Runs after the library's own: it was registered before. In real time, which the library's sleeps do not take. */
static void driver_goes(void) {
    driver_gone = 1;
    poll(NULL, 0, 10);
}

/* Of the only other thread. */
static void other_thread(char *name, unsigned long long *blocked) {
    char path[300], line[200];
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *it; (it = readdir(tasks));) {
        if (it->d_name[0] == '.' || atoi(it->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", it->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "Name: %19s", name) != 1) sscanf(line, "SigBlk: %llx", blocked);
        if (file) fclose(file);
    }
    closedir(tasks);
}

int main(int count, char **words) {
    sem_init(&over, 0, 0);
    until = atof(words[2]);
    freely = until == 0;
    for (int i = 3; i + 5 < count; i += 6)
        work[streams++] = (Stream){atof(words[i]), atof(words[i + 1]), atof(words[i + 2]), atof(words[i + 3]),
                                   atof(words[i + 4]), atoi(words[i + 5]), 0, 0};
    atexit(driver_goes);
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    if (((int (*)(void))dlsym(library, "InitializeInjection"))() != 1) return 3;
    if (freely) {
        while (calls < 100) sched_yield();
        for (int i = 0; i < 30; i++) {
            pid_t child = fork();
            if (!child) exit(0);
            waitpid(child, NULL, 0);
        }
        return 0;
    }
    char name[20] = "";
    unsigned long long blocked = 0;
    if (!getenv("FAKE_CUPTI_REFUSES")) sem_wait(&over);
    else while (strcmp(name, "gpubusy-nocupti")) other_thread(name, &blocked);
    other_thread(name, &blocked);
    Busytime *it = dlsym(library, "gpushare_busytime");
    printf("{\"name\": \"%s\", \"records\": %ld, \"lost\": %ld, \"truly\": %f, \"listened\": %f, \"blocks_sigterm\": %s}\n",
           name, made, lost, truly_busy, it->listened_s, blocked >> (SIGTERM - 1) & 1 ? "true" : "false");
    fflush(stdout);
    getchar();
    _exit(0);
}
