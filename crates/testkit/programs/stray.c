/*
 * stray: an adversary for tests, preloaded into a process that has a database open.
 *
 * It commits the sabotages that a lock core and a writer have to survive, without any hook in the product:
 *
 *   STRAY_MAIN, STRAY_WAL, STRAY_SHM   the three files (a variable each, so that any path survives). Around every
 *       write, flush and lock call of the host, and around every STRAY_READS-th read, they are opened and closed by
 *       ordinary means. On Linux that drops every POSIX record lock that the process has on them.
 *   STRAY_BETWEEN=1   open and close them only when the host has just ended a transaction and is in no other that
 *       writes. Inside one, the write lock itself would be dropped, and two writers at once destroy a
 *       database whatever else protects it.
 *   STRAY_START=path   open and close nothing before this file exists, so that a whole house can be started first.
 *   STRAY_POSIX=1   open-file-description locks asked for through libc become plain POSIX locks, which is what a
 *       program without a lock core has. The core's code still runs, but it protects nothing.
 *   STRAY_UNFLUSHED=path   while this file exists, the disk takes no flush of a log: fsync and fdatasync of a file whose
 *       name ends in -wal fail with EIO, and flush nothing.
 *   STRAY_ROLES=a:b  act only in processes that have one of these words as an argument (children inherit a preload).
 *   STRAY_TALLY=dir  each process that acts keeps a file of counters there, named by its PID, so that a test can
 *       prove that the sabotage really happened in the process that it looks at.
 *
 * Every call of its own on a file is a raw system call: nothing can interpose, and nothing recurses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct tally {
    unsigned long sweeps;      /* times that the three files were opened and closed */
    unsigned long opened[3];   /* how often main, -wal and -shm could be opened */
    unsigned long translated;  /* locks turned from open-file-description into POSIX ones */
    unsigned long set;         /* lock calls seen, translated or not */
};

static struct tally nowhere;
static struct tally *tally = &nowhere;
static const char *files[3];
static const char *volatile start;
static const char *unflushed;
static int sweeping;   /* around every call */
static int between;    /* only between two transactions */
static int posix_locks;
static unsigned long reads_between = 16;
static unsigned long reads;

static void open_and_close(void) {
    int saved = errno;
    if (start) {
        if (syscall(SYS_faccessat, AT_FDCWD, start, F_OK) != 0) {
            errno = saved;
            return;
        }
        start = NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (!files[i]) continue;
        long fd = syscall(SYS_openat, AT_FDCWD, files[i], O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            syscall(SYS_close, fd);
            __atomic_fetch_add(&tally->opened[i], 1, __ATOMIC_RELAXED);
        }
    }
    __atomic_fetch_add(&tally->sweeps, 1, __ATOMIC_RELAXED);
    errno = saved;
}

static void sweep(void) {
    if (sweeping) open_and_close();
}

static int has_role(int argc, char **argv, const char *roles) {
    for (int i = 1; i < argc; i++) {
        size_t length = strlen(argv[i]);
        for (const char *role = roles; role && *role;) {
            const char *end = strchr(role, ':');
            size_t width = end ? (size_t)(end - role) : strlen(role);
            if (width == length && memcmp(role, argv[i], width) == 0) return 1;
            role = end ? end + 1 : NULL;
        }
    }
    return 0;
}

__attribute__((constructor)) static void enter(int argc, char **argv, char **envp) {
    (void)envp;
    const char *roles = getenv("STRAY_ROLES");
    if (roles && !has_role(argc, argv, roles)) return;
    const char *directory = getenv("STRAY_TALLY");
    if (directory) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", directory, (int)getpid());
        int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0) {
            if (ftruncate(fd, sizeof *tally) == 0) {
                void *map = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                if (map != MAP_FAILED) tally = map;
            }
            syscall(SYS_close, fd);
        }
    }
    const char *often = getenv("STRAY_READS");
    if (often && atol(often) > 0) reads_between = (unsigned long)atol(often);
    files[0] = getenv("STRAY_MAIN");
    files[1] = getenv("STRAY_WAL");
    files[2] = getenv("STRAY_SHM");
    start = getenv("STRAY_START");
    unflushed = getenv("STRAY_UNFLUSHED");
    const char *posix = getenv("STRAY_POSIX");
    posix_locks = posix && posix[0] == '1';
    const char *gaps = getenv("STRAY_BETWEEN");
    between = gaps && gaps[0] == '1';
    sweeping = !between && (files[0] || files[1] || files[2]);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LAZY(name)                                      \
    static __typeof__(&name) next;                      \
    if (!next) next = NEXT(name)

/* Before and after, so that no instant between two writes of the host is without a stray close. */
#define AROUND(type, call)   \
    sweep();                 \
    type result = (call);    \
    sweep();                 \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    LAZY(write);
    AROUND(ssize_t, next(fd, data, size));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    LAZY(pwrite);
    AROUND(ssize_t, next(fd, data, size, at));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    LAZY(pwrite64);
    AROUND(ssize_t, next(fd, data, size, at));
}

/* True if the disk is to refuse this flush; errno is set then. */
static int refuses_flush(int fd) {
    char link[32], path[4096];
    if (!unflushed || syscall(SYS_faccessat, AT_FDCWD, unflushed, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path);
    if (length < 4 || memcmp(path + length - 4, "-wal", 4) != 0) return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    LAZY(fsync);
    if (refuses_flush(fd)) return -1;
    AROUND(int, next(fd));
}

int fdatasync(int fd) {
    LAZY(fdatasync);
    if (refuses_flush(fd)) return -1;
    AROUND(int, next(fd));
}

static void now_and_then(void) {
    if (__atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED) % reads_between == 0) sweep();
}

ssize_t read(int fd, void *data, size_t size) {
    LAZY(read);
    now_and_then();
    return next(fd, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) {
    LAZY(pread);
    now_and_then();
    return next(fd, data, size, at);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    LAZY(pread64);
    now_and_then();
    return next(fd, data, size, at);
}

/* The bytes of -shm that SQLite's wal.c locks: WAL_WRITE_LOCK, WAL_CKPT_LOCK, recovery, and five read marks. */
enum { WRITE_BYTE = 120, CHECKPOINT_BYTE = 121, FIRST_READ_MARK = 123, LAST_READ_MARK = 127 };

static pthread_mutex_t one_lock_call = PTHREAD_MUTEX_INITIALIZER;
static int writing; /* which of the two bytes this process has for itself */

static int covers(const struct flock *lock, off_t byte) {
    return lock->l_start <= byte && (lock->l_len == 0 || byte < lock->l_start + lock->l_len);
}

/* Called with the mutex held, after a lock call that went well. */
static void between_transactions(const struct flock *lock) {
    int ended = 0;
    for (int byte = WRITE_BYTE; byte <= CHECKPOINT_BYTE; byte++) {
        if (!covers(lock, byte)) continue;
        int bit = 1 << (byte - WRITE_BYTE);
        if (lock->l_type == F_WRLCK) writing |= bit;
        if (lock->l_type == F_UNLCK) {
            ended |= writing & bit;
            writing &= ~bit;
        }
    }
    for (int byte = FIRST_READ_MARK; byte <= LAST_READ_MARK; byte++) {
        if (lock->l_type == F_UNLCK && lock->l_start != 0 && covers(lock, byte)) ended = 1;
    }
    if (ended && !writing) open_and_close();
}

/* Every argument of fcntl that there is fits a pointer. */
static int control(int fd, int command, void *argument) {
    int is_set = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
    if (posix_locks) {
        int plain = command == F_OFD_SETLK ? F_SETLK
                  : command == F_OFD_SETLKW ? F_SETLKW
                  : command == F_OFD_GETLK ? F_GETLK
                                           : command;
        if (plain != command) __atomic_fetch_add(&tally->translated, 1, __ATOMIC_RELAXED);
        command = plain;
    }
    /* With the mutex, no lock is taken between the end of a transaction and the stray close; SQLite never waits here. */
    int watched = between && command == F_SETLK;
    if (watched) pthread_mutex_lock(&one_lock_call);
    int result = (int)syscall(SYS_fcntl, fd, command, argument);
    if (watched) {
        if (result == 0) between_transactions(argument);
        pthread_mutex_unlock(&one_lock_call);
    }
    if (is_set) {
        __atomic_fetch_add(&tally->set, 1, __ATOMIC_RELAXED);
        sweep();
    }
    return result;
}

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control(fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control(fd, command, argument);
}
