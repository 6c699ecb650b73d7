/*
 * Preloaded, sets a process's wall clock ahead or back while it runs, as a step of NTP does.
 *
 * WALLSHIFT_FILE names a file that holds seconds, as decimal text. It is read again at each
 * look at the clock; no file, or nothing in it: no shift. CLOCK_MONOTONIC, sleeps, select and
 * poll are what they were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS 1000000000LL

static long long shift_ns(void)
{
    const char *path = getenv("WALLSHIFT_FILE");
    char text[64];
    int before = errno; /* who asks for the time does not expect it to change */
    ssize_t length = 0;
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    if (file >= 0) {
        length = read(file, text, sizeof text - 1);
        close(file);
    }
    errno = before;
    if (length <= 0)
        return 0;
    text[length] = '\0';
    return (long long)(strtod(text, NULL) * (double)NANOSECONDS);
}

static void move(struct timespec *when, long long by_ns)
{
    long long ns = when->tv_nsec + by_ns % NANOSECONDS;

    when->tv_sec += (time_t)(by_ns / NANOSECONDS);
    if (ns < 0) {
        ns += NANOSECONDS;
        when->tv_sec--;
    } else if (ns >= NANOSECONDS) {
        ns -= NANOSECONDS;
        when->tv_sec++;
    }
    when->tv_nsec = (long)ns;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*original)(clockid_t, struct timespec *);
    int failed;

    if (original == NULL)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    failed = original(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        move(now, shift_ns());
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

time_t time(time_t *kept)
{
    struct timespec exact;

    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept != NULL)
        *kept = exact.tv_sec;
    return exact.tv_sec;
}

/*
 * Python before 3.11 waits for its locks until a wall-clock instant that it took from the functions above;
 * the kernel counts by the clock that is not shifted.
 */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until)
{
    static int (*original)(sem_t *, const struct timespec *);
    struct timespec unshifted = *until;

    if (original == NULL)
        original = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    move(&unshifted, -shift_ns());
    return original(semaphore, &unshifted);
}
