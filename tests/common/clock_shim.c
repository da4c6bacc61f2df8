/* Replaces libc's clocks in a server under test (LD_PRELOAD). The file named by REDIS_CELL_CLOCK contains the time of
 * the wall clock and of the monotonic clock in nanoseconds. If `running`, these are offsets to the true clocks. If
 * `ticking`, each reading lets a nanosecond pass on both, and the wall clock is set forward by `step` at the reading
 * `step_at`. Without that variable, REDIS_CELL_CLOCK_AHEAD is the offset of the wall clock, for a whole run of tests
 * with its servers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct clocks {
    _Atomic int64_t wall, monotonic, running, ticking, readings, step_at, step;
};

static struct clocks *clocks;

__attribute__((constructor)) static void open_clocks(void) {
    const char *name = getenv("REDIS_CELL_CLOCK"), *ahead = getenv("REDIS_CELL_CLOCK_AHEAD");
    if (!name && ahead) {
        static struct clocks run = {.running = 1};
        run.wall = strtoll(ahead, NULL, 10);
        clocks = &run;
        return;
    }
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *map = mmap(NULL, sizeof *clocks, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) _exit(111);
    close(file);
    clocks = map;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    /* Calls the kernel directly, because libc may need the time to find its own function. */
    if (syscall(SYS_clock_gettime, clock, time) != 0) return -1;
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                       clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
    if (clocks && (is_wall || is_monotonic)) {
        int64_t nanos = clocks->running ? time->tv_sec * INT64_C(1000000000) + time->tv_nsec : 0;
        nanos += is_wall ? clocks->wall : clocks->monotonic;
        if (clocks->ticking) {
            int64_t reading = clocks->readings++;
            if (reading >= clocks->step_at) clocks->wall += atomic_exchange(&clocks->step, 0);
            nanos = (is_wall ? clocks->wall : clocks->monotonic) + reading;
        }
        time->tv_sec = nanos / 1000000000;
        time->tv_nsec = nanos % 1000000000;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

/* Valkey 8.1 loads modules with a flag by which they would find libc's clocks before these. */
void *dlopen(const char *file, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(file, flags & ~RTLD_DEEPBIND);
}
