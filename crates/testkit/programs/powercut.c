/*
 * powercut: notes everything that reaches or does not reach the disk, preloaded into every process that has a database open.
 *
 *   POWERCUT_MAIN, POWERCUT_WAL   the two files that a power cut does not empty (-shm is made anew).
 *   POWERCUT_NOTES=path           one file for all processes: every write, every change of length and every flush of the two
 *                                 files, and every line on standard output, in one order.
 *   POWERCUT_SLOW=microseconds    how long a flush takes at most, so that others write meanwhile.
 *   POWERCUT_LIES=1               a flush of the log answers that all is well, and flushes nothing.
 *
 * No flush is really made: what counts is what the notes say. A write is noted before it is made, while the notes are
 * locked; a process that is killed in between has made a write that nobody has read, which a kill a moment later would have
 * left as well. A flush is noted when it has ended, with the place in the notes where it began.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <stdio.h>

enum { WRITTEN = 1, CUT = 2, FLUSHED = 3, ANSWERED = 4 };

struct note {
    uint64_t kind, pid, file, offset, length;
};

static const char *files[2];
static int notes = -1;
static long slow;
static int lies;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void enter(void) {
    files[0] = getenv("POWERCUT_MAIN");
    files[1] = getenv("POWERCUT_WAL");
    const char *path = getenv("POWERCUT_NOTES");
    if (path) notes = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const char *time = getenv("POWERCUT_SLOW");
    if (time) slow = atol(time);
    const char *lying = getenv("POWERCUT_LIES");
    lies = lying && lying[0] == '1';
}

/* Which of the two files this is, or -1. */
static int file_of(int fd) {
    if (notes < 0) return -1;
    int saved = errno;
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = saved;
    if (length <= 0) return -1;
    path[length] = 0;
    for (int i = 0; i < 2; i++) {
        if (files[i] && strcmp(files[i], path) == 0) return i;
    }
    return -1;
}

static void lock(void) {
    pthread_mutex_lock(&one);
    while (syscall(SYS_flock, notes, LOCK_EX) != 0) {
    }
}

static void unlock(void) {
    syscall(SYS_flock, notes, LOCK_UN);
    pthread_mutex_unlock(&one);
}

/* The first eight bytes of the notes say how long they are, so that half a note of a killed process is none. */
static uint64_t end_of_notes(void) {
    uint64_t end = 0;
    if (syscall(SYS_pread64, notes, &end, sizeof end, 0L) != sizeof end) end = sizeof end;
    return end;
}

static void put(const void *data, uint64_t size, uint64_t at) {
    for (uint64_t done = 0; done < size;) {
        long n = syscall(SYS_pwrite64, notes, (const char *)data + done, size - done, at + done);
        if (n <= 0) abort();
        done += (uint64_t)n;
    }
}

static void note(int kind, int file, uint64_t offset, const void *data, uint64_t length) {
    struct note n = {(uint64_t)kind, (uint64_t)getpid(), (uint64_t)file, offset, length};
    uint64_t end = end_of_notes();
    put(&n, sizeof n, end);
    end += sizeof n;
    if (data) {
        put(data, length, end);
        end += length;
    }
    put(&end, sizeof end, 0);
}

static ssize_t noted_write(int fd, int file, const void *data, size_t size, off_t at) {
    lock();
    note(WRITTEN, file, (uint64_t)at, data, size);
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, at);
    unlock();
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    int file = file_of(fd);
    if (file >= 0) {
        off_t at = (off_t)syscall(SYS_lseek, fd, 0L, SEEK_CUR);
        ssize_t done = noted_write(fd, file, data, size, at);
        if (done > 0) syscall(SYS_lseek, fd, at + done, SEEK_SET);
        return done;
    }
    if (fd == 1 && notes >= 0) {
        lock();
        note(ANSWERED, 0, 0, data, size);
        unlock();
    }
    return syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    int file = file_of(fd);
    return file >= 0 ? noted_write(fd, file, data, size, at) : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return pwrite(fd, data, size, at); }

int ftruncate(int fd, off_t length) {
    int file = file_of(fd);
    if (file < 0) return (int)syscall(SYS_ftruncate, fd, length);
    lock();
    note(CUT, file, 0, NULL, (uint64_t)length);
    int result = (int)syscall(SYS_ftruncate, fd, length);
    unlock();
    return result;
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

static int flush(int fd, long call) {
    int file = file_of(fd);
    if (file < 0) return (int)syscall(call, fd);
    if (lies && file == 1) return 0;
    lock();
    uint64_t begun = end_of_notes();
    unlock();
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    struct timespec pause = {0, slow ? (now.tv_nsec / 64 % slow) * 1000 : 0};
    syscall(SYS_nanosleep, &pause, NULL);
    lock();
    note(FLUSHED, file, begun, NULL, 0);
    unlock();
    return 0;
}

int fsync(int fd) { return flush(fd, SYS_fsync); }

int fdatasync(int fd) { return flush(fd, SYS_fdatasync); }
