/* A wall clock that a test can set, for one process: preload it, and write the shift in seconds to SHIFTED_CLOCK.
 *
 * A wait until a wall-clock time lasts longer when the clock is set back, as the kernel does it: glibc's
 * pthread_cond_timedwait and cnd_timedwait, with which librdkafka waits, count by the wall clock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *shift_s = &none; /* mapped: the test writes it while this process runs */

__attribute__((constructor)) static void open_shift(void)
{
    const char *name = getenv("SHIFTED_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        abort();
    close(file);
    shift_s = at;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until)
{
    if (until->tv_sec < 1000000000) /* seconds since the start of the machine: by the monotonic clock */
        return pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, until);
    for (;;) {
        struct timespec now, slice;
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t left_ns = (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + until->tv_nsec - now.tv_nsec;
        if (left_ns <= 0)
            return ETIMEDOUT;
        if (left_ns > 20000000) /* the clock may be set meanwhile */
            left_ns = 20000000;
        clock_gettime(CLOCK_MONOTONIC, &slice);
        slice.tv_nsec += left_ns;
        slice.tv_sec += slice.tv_nsec / 1000000000;
        slice.tv_nsec %= 1000000000;
        int result = pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &slice);
        if (result != ETIMEDOUT)
            return result;
    }
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict lock, const struct timespec *restrict until)
{
    int result = pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)lock, until);
    return result == 0 ? thrd_success : result == ETIMEDOUT ? thrd_timedout : thrd_error;
}
