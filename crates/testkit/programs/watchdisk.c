/*
 * watchdisk: runs a command and notes everything that it and its descendants do to the disk below one directory.
 *
 *   watchdisk NOTES ROOT [SHM] -- COMMAND ARGUMENTS...
 *
 *   NOTES   one file for any number of watched commands: every write, change of length, flush and change of a directory
 *           below ROOT, and every line on standard output, in one order.
 *   SHM     a file that is mapped, whose content is noted with every flush after which it is another.
 *
 * It looks at system calls (ptrace, with a filter in the kernel so that others cost nothing), not at functions of a library:
 * a program may make them by itself, as Rust's rustix does. What could change a file unseen is answered as a kernel would
 * that does not know it. A change is noted after it was made, and no other change is let through in between, so the notes are
 * in the order in which things happened. A flush is noted when it has ended, with the place in the notes where it began.
 *
 * A name changed if it is another afterwards: what a call answers is not asked, for a thread that dies in it gives none.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_MACHINE AUDIT_ARCH_AARCH64
#else
#error "the filter does not know this machine"
#endif

enum { WRITTEN = 1, CUT, FLUSHED, ANSWERED, SET, REMOVED, MOVED, EXCHANGED, MAPPED, INDEX };

/* What `object` is that a name was given to. */
enum { OLD = 0, NEW_FILE = 1, NEW_DIRECTORY = 2, NEW_LINK = 3 };

struct note {
    uint64_t kind, who, object, directory, other, offset, length;
};

static int notes;
static const char *root, *shm;
static uint64_t who;

static void fail(const char *what) {
    fprintf(stderr, "watchdisk: %s: %s\n", what, strerror(errno));
    exit(99);
}

/* ---- the notes ---- */

/* The first eight bytes of the notes say how long they are. */
static uint64_t end_of_notes(void) {
    uint64_t end = 0;
    if (pread(notes, &end, sizeof end, 0) != sizeof end) end = sizeof end;
    return end;
}

static void put(const void *data, uint64_t size, uint64_t at) {
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pwrite(notes, (const char *)data + done, size - done, (off_t)(at + done));
        if (n <= 0) fail("write notes");
        done += (uint64_t)n;
    }
}

static void note(struct note n, const void *data) {
    n.who = who;
    uint64_t end = end_of_notes();
    put(&n, sizeof n, end);
    end += sizeof n;
    if (data) {
        put(data, n.length, end);
        end += n.length;
    }
    put(&end, sizeof end, 0);
}

static void lock(void) {
    while (flock(notes, LOCK_EX) != 0) {
    }
}

static void unlock(void) { flock(notes, LOCK_UN); }

/* ---- the watched threads ---- */

struct place {
    int known;
    uint64_t directory;     /* the inode of the directory that the name is in */
    char parent[PATH_MAX];  /* a way to it */
    char name[NAME_MAX + 1];
    uint64_t before;        /* the inode that had the name, or 0 */
};

struct thread {
    pid_t id;
    int here, stopped_once, waiting, in_call;
    long call;
    uint64_t argument[6];
    uint64_t inode, at, begun, size;
    char *data;
    struct place from, to;
};

/* Each where it stays, for others are known by their place in memory. */
static struct thread **threads;
static size_t count;

static struct thread *find(pid_t id) {
    struct thread *t = NULL;
    for (size_t i = 0; i < count; i++) {
        if (threads[i]->here && threads[i]->id == id) return threads[i];
        if (!threads[i]->here) t = threads[i];
    }
    if (!t) {
        threads = realloc(threads, (count + 1) * sizeof *threads);
        t = malloc(sizeof *t);
        if (!threads || !t) fail("memory");
        threads[count++] = t;
    }
    memset(t, 0, sizeof *t);
    t->id = id;
    t->here = 1;
    return t;
}

static int below_root(const char *path) {
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

/* The inode of what is open by this number below the root, or 0. */
static uint64_t inode_of(struct thread *t, int fd, mode_t kind) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", t->id, fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    struct stat s;
    if (!below_root(path) || stat(link, &s) != 0) return 0;
    return (s.st_mode & S_IFMT) == kind ? s.st_ino : 0;
}

static int text(struct thread *t, uint64_t address, char *into, size_t size) {
    size_t done = 0;
    while (done < size) {
        /* Up to the end of a page, for the next one may not be there. */
        size_t want = 4096 - (address + done) % 4096;
        if (want > size - done) want = size - done;
        struct iovec here = {into + done, want}, there = {(void *)(uintptr_t)(address + done), want};
        ssize_t n = process_vm_readv(t->id, &here, 1, &there, 1, 0);
        if (n <= 0) return 0;
        if (memchr(into + done, 0, (size_t)n)) return 1;
        done += (size_t)n;
    }
    return 0;
}

static uint64_t inode_at(const struct place *p) {
    char path[PATH_MAX + NAME_MAX + 2];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", p->parent, p->name);
    return lstat(path, &s) == 0 ? s.st_ino : 0;
}

static mode_t kind_at(const struct place *p) {
    char path[PATH_MAX + NAME_MAX + 2];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", p->parent, p->name);
    return lstat(path, &s) == 0 ? s.st_mode & S_IFMT : 0;
}

/* What a pair of directory and path names, if its directory is below the root. */
static void look_up(struct thread *t, int directory, uint64_t address, struct place *p) {
    char given[PATH_MAX], path[PATH_MAX];
    p->known = 0;
    if (!text(t, address, given, sizeof given)) return;
    /* The thread's own, not this program's. */
    for (const char *const *own = (const char *const[]){"/proc/self/", "/proc/thread-self/", NULL}; *own; own++) {
        if (strncmp(given, *own, strlen(*own)) != 0) continue;
        snprintf(path, sizeof path, "/proc/%d/%s", t->id, given + strlen(*own));
        memcpy(given, path, sizeof given);
        break;
    }
    size_t end = strlen(given);
    while (end > 1 && given[end - 1] == '/') given[--end] = 0;
    char *slash = strrchr(given, '/');
    const char *name = slash ? slash + 1 : given;
    if (!*name || strlen(name) > NAME_MAX) return;
    int n;
    if (given[0] == '/')
        n = snprintf(path, sizeof path, "%.*s", (int)(slash - given > 0 ? slash - given : 1), given);
    else if (directory == AT_FDCWD)
        n = snprintf(path, sizeof path, "/proc/%d/cwd/%.*s", t->id, slash ? (int)(slash - given) : 0, given);
    else
        n = snprintf(path, sizeof path, "/proc/%d/fd/%d/%.*s", t->id, directory, slash ? (int)(slash - given) : 0, given);
    if (n < 0 || n >= (int)sizeof path || !realpath(path, p->parent) || !below_root(p->parent)) return;
    struct stat s;
    if (stat(p->parent, &s) != 0) return;
    p->directory = s.st_ino;
    strcpy(p->name, name);
    p->before = inode_at(p);
    p->known = 1;
}

/* The place at which `write` writes, and whether it is the end whatever that is. */
static uint64_t place_of(struct thread *t, int fd) {
    char path[64], line[256];
    unsigned long long at = 0, flags = 0;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", t->id, fd);
    FILE *info = fopen(path, "re");
    if (!info) return 0;
    while (fgets(line, sizeof line, info)) {
        if (sscanf(line, "pos: %llu", &at) == 1) continue;
        if (sscanf(line, "flags: %llo", &flags) == 1) continue;
    }
    fclose(info);
    if (flags & O_APPEND) {
        struct stat s;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", t->id, fd);
        if (stat(path, &s) == 0) at = (unsigned long long)s.st_size;
    }
    return at;
}

/* Copies what is about to be written out of the thread's memory. */
static void fetch(struct thread *t, const struct iovec *parts, size_t n) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) size += parts[i].iov_len;
    t->data = malloc(size + 1);
    if (!t->data) fail("memory");
    t->size = 0;
    for (size_t i = 0; i < n; i++) {
        struct iovec here = {t->data + t->size, parts[i].iov_len};
        if (parts[i].iov_len == 0) continue;
        ssize_t got = process_vm_readv(t->id, &here, 1, &parts[i], 1, 0);
        if (got <= 0) break;
        t->size += (uint64_t)got;
        if ((size_t)got < parts[i].iov_len) break;
    }
}

static void fetch_vector(struct thread *t) {
    struct iovec parts[1024];
    size_t n = t->argument[2] < 1024 ? t->argument[2] : 1024;
    struct iovec here = {parts, n * sizeof *parts}, there = {(void *)(uintptr_t)t->argument[1], n * sizeof *parts};
    if (process_vm_readv(t->id, &here, 1, &there, 1, 0) != (ssize_t)(n * sizeof *parts)) n = 0;
    fetch(t, parts, n);
}

/* ---- before a call and after it ---- */

enum { PASS, SERIAL, FLUSH };

/* What is to be known before the call is made; whether it must be alone. */
static int before(struct thread *t) {
    uint64_t *a = t->argument;
    int fd = (int)a[0];
    t->inode = 0;
    t->from.known = t->to.known = 0;
    switch (t->call) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_pwritev:
    case SYS_pwritev2: {
        int whole = t->call == SYS_write || t->call == SYS_pwrite64;
        if (fd == 1 && (t->inode = inode_of(t, fd, S_IFREG)) == 0) {
            if (whole) {
                struct iovec one = {(void *)(uintptr_t)a[1], a[2]};
                fetch(t, &one, 1);
            } else {
                fetch_vector(t);
            }
            note((struct note){.kind = ANSWERED, .length = t->size}, t->data);
            free(t->data);
            t->data = NULL;
            return PASS;
        }
        t->inode = inode_of(t, fd, S_IFREG);
        return t->inode ? SERIAL : PASS;
    }
    case SYS_ftruncate:
    case SYS_fallocate:
        t->inode = inode_of(t, fd, S_IFREG);
        return t->inode ? SERIAL : PASS;
    case SYS_fsync:
    case SYS_fdatasync:
        t->inode = inode_of(t, fd, S_IFREG);
        if (!t->inode) t->inode = inode_of(t, fd, S_IFDIR);
        return t->inode ? FLUSH : PASS;
    case SYS_mmap:
        t->inode = inode_of(t, (int)a[4], S_IFREG);
        return t->inode ? SERIAL : PASS;
#ifdef SYS_open
    case SYS_open:
    case SYS_creat:
    case SYS_mkdir:
    case SYS_mknod:
    case SYS_unlink:
    case SYS_rmdir:
    case SYS_truncate:
        look_up(t, AT_FDCWD, a[0], &t->to);
        return t->to.known ? SERIAL : PASS;
    case SYS_link:
    case SYS_rename:
        look_up(t, AT_FDCWD, a[0], &t->from);
        look_up(t, AT_FDCWD, a[1], &t->to);
        return t->from.known || t->to.known ? SERIAL : PASS;
    case SYS_symlink:
        look_up(t, AT_FDCWD, a[1], &t->to);
        return t->to.known ? SERIAL : PASS;
#else
    case SYS_truncate:
        look_up(t, AT_FDCWD, a[0], &t->to);
        return t->to.known ? SERIAL : PASS;
#endif
    case SYS_openat:
    case SYS_mkdirat:
    case SYS_mknodat:
    case SYS_unlinkat:
        look_up(t, fd, a[1], &t->to);
        return t->to.known ? SERIAL : PASS;
    case SYS_symlinkat:
        look_up(t, (int)a[1], a[2], &t->to);
        return t->to.known ? SERIAL : PASS;
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
    case SYS_linkat:
        look_up(t, fd, a[1], &t->from);
        look_up(t, (int)a[2], a[3], &t->to);
        return t->from.known || t->to.known ? SERIAL : PASS;
    }
    return PASS;
}

static uint64_t length_of(struct thread *t, int fd) {
    char path[64];
    struct stat s;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", t->id, fd);
    return stat(path, &s) == 0 ? (uint64_t)s.st_size : 0;
}

static void note_name(int kind, uint64_t object, uint64_t what, const struct place *p) {
    note((struct note){.kind = (uint64_t)kind, .object = object, .directory = p->directory, .offset = what,
                       .length = strlen(p->name)}, p->name);
}

static void note_two(int kind, const struct place *from, const struct place *to) {
    char both[2 * NAME_MAX + 3];
    int n = snprintf(both, sizeof both, "%s/%s", from->name, to->name);
    note((struct note){.kind = (uint64_t)kind, .directory = to->directory, .other = from->directory,
                       .length = (uint64_t)n}, both);
}

/* What the call has done to names. */
static void after_names(struct thread *t) {
    uint64_t from = t->from.known ? inode_at(&t->from) : 0, to = t->to.known ? inode_at(&t->to) : 0;
    if (t->from.known) {
        if (!t->to.known) {
            if (from != t->from.before) fail("something was moved out of the watched directory");
            return;
        }
        if (to == t->to.before) return;
        if (from == t->from.before) {
            note_name(SET, to, OLD, &t->to);
        } else if (from && from == t->to.before) {
            note_two(EXCHANGED, &t->from, &t->to);
        } else {
            note_two(MOVED, &t->from, &t->to);
        }
        return;
    }
    if (!t->to.known || to == t->to.before) return;
    if (!to) {
        note_name(REMOVED, t->to.before, OLD, &t->to);
        return;
    }
    mode_t kind = kind_at(&t->to);
    note_name(SET, to, kind == S_IFREG ? NEW_FILE : kind == S_IFDIR ? NEW_DIRECTORY : NEW_LINK, &t->to);
}

static int is_open(long call, uint64_t *a, uint64_t *flags) {
#ifdef SYS_open
    if (call == SYS_open) return *flags = a[1], 1;
    if (call == SYS_creat) return *flags = O_CREAT | O_TRUNC, 1;
#endif
    if (call == SYS_openat) return *flags = a[2], 1;
    (void)call;
    return 0;
}

/* `done` is what the call has answered; a thread that died in it is taken to have done all of it. */
static void after(struct thread *t, int64_t done, int died) {
    uint64_t *a = t->argument, flags;
    switch (t->call) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_pwritev:
    case SYS_pwritev2:
        if (died) done = (int64_t)t->size;
        if (done > 0) {
            if ((uint64_t)done > t->size) fail("more was written than could be read");
            note((struct note){.kind = WRITTEN, .object = t->inode, .offset = t->at, .length = (uint64_t)done}, t->data);
        }
        free(t->data);
        t->data = NULL;
        return;
    case SYS_ftruncate:
        if (done == 0 || died) note((struct note){.kind = CUT, .object = t->inode, .offset = a[1]}, NULL);
        return;
    case SYS_fallocate:
        if (done == 0 && a[1] == 0 && !died) {
            note((struct note){.kind = CUT, .object = t->inode, .offset = length_of(t, (int)a[0])}, NULL);
        } else if ((done == 0 || died) && (a[1] & ~(uint64_t)FALLOC_FL_KEEP_SIZE)) {
            fail("a way of fallocate that is not noted");
        }
        return;
    case SYS_truncate:
        if (done == 0 || died) note((struct note){.kind = CUT, .object = t->to.before, .offset = a[1]}, NULL);
        return;
    case SYS_mmap:
        if (done > 0 || done < -4095) note((struct note){.kind = MAPPED, .object = t->inode}, NULL);
        return;
    }
    if (is_open(t->call, a, &flags) && (flags & O_TRUNC) && t->to.before && done >= 0) {
        note((struct note){.kind = CUT, .object = t->to.before, .offset = 0}, NULL);
    }
    after_names(t);
}

static void note_index(void) {
    static char last[1 << 16];
    static ssize_t had;
    char now[1 << 16];
    if (!shm) return;
    int fd = open(shm, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = pread(fd, now, sizeof now, 0);
    close(fd);
    if (n <= 0 || (n == had && memcmp(now, last, (size_t)n) == 0)) return;
    memcpy(last, now, (size_t)n);
    had = n;
    note((struct note){.kind = INDEX, .length = (uint64_t)n}, now);
}

/* ---- one call after the other ---- */

static struct thread *alone;

static void go(struct thread *t, int how, int signal) {
    /* A thread that was killed meanwhile says so by itself. */
    ptrace(how, t->id, NULL, (void *)(intptr_t)signal);
}

static void end(struct thread *t, int64_t done, int died) {
    if (!t->in_call) return;
    t->in_call = 0;
    if (alone == t) {
        after(t, done, died);
        unlock();
        alone = NULL;
        return;
    }
    lock();
    note_index();
    if (done == 0 && !died) note((struct note){.kind = FLUSHED, .object = t->inode, .offset = t->begun}, NULL);
    unlock();
}

static void begin(struct thread *t) {
    if (alone) {
        t->waiting = 1;
        return;
    }
    t->waiting = 0;
    /* Locked before it looks: what another watched command does meanwhile belongs into the notes first. */
    lock();
    int how = before(t), fd = (int)t->argument[0];
    if (how == PASS) {
        unlock();
        go(t, PTRACE_CONT, 0);
        return;
    }
    t->in_call = 1;
    if (how == FLUSH) {
        t->begun = end_of_notes();
        unlock();
        go(t, PTRACE_SYSCALL, 0);
        return;
    }
    alone = t;
    switch (t->call) {
    case SYS_write:
    case SYS_pwrite64: {
        struct iovec one = {(void *)(uintptr_t)t->argument[1], t->argument[2]};
        fetch(t, &one, 1);
        t->at = t->call == SYS_write ? place_of(t, fd) : t->argument[3];
        break;
    }
    case SYS_writev:
        fetch_vector(t);
        t->at = place_of(t, fd);
        break;
    case SYS_pwritev:
    case SYS_pwritev2:
        fetch_vector(t);
        t->at = t->argument[3] == (uint64_t)-1 ? place_of(t, fd) : t->argument[3];
        break;
    }
    go(t, PTRACE_SYSCALL, 0);
}

static void next(void) {
    for (size_t i = 0; !alone && i < count; i++) {
        if (threads[i]->here && threads[i]->waiting) begin(threads[i]);
    }
}

/* ---- the filter ---- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define UNKNOWN (SECCOMP_RET_ERRNO | ENOSYS)
#define TRACE(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), RETURN(SECCOMP_RET_TRACE)
#define REFUSE(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), RETURN(UNKNOWN)
/* Seen only if the argument has one of these bits. */
#define TRACE_IF(call, n, bits)                                                                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4), LOAD(args[n]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),   \
        RETURN(SECCOMP_RET_TRACE), RETURN(SECCOMP_RET_ALLOW)

static void filter(void) {
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_MACHINE, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        /* Calls that write where no note is made. */
        REFUSE(SYS_copy_file_range),
        REFUSE(SYS_sendfile),
        REFUSE(SYS_splice),
        REFUSE(SYS_vmsplice),
        REFUSE(SYS_io_uring_setup),
        REFUSE(SYS_io_setup),
        REFUSE(SYS_openat2),
        REFUSE(SYS_open_by_handle_at),
        TRACE(SYS_write),
        TRACE(SYS_pwrite64),
        TRACE(SYS_writev),
        TRACE(SYS_pwritev),
        TRACE(SYS_pwritev2),
        TRACE(SYS_ftruncate),
        TRACE(SYS_truncate),
        TRACE(SYS_fallocate),
        TRACE(SYS_fsync),
        TRACE(SYS_fdatasync),
        TRACE(SYS_mkdirat),
        TRACE(SYS_mknodat),
        TRACE(SYS_unlinkat),
        TRACE(SYS_symlinkat),
        TRACE(SYS_linkat),
        TRACE(SYS_renameat2),
#ifdef SYS_renameat
        TRACE(SYS_renameat),
#endif
#ifdef SYS_open
        TRACE(SYS_creat),
        TRACE(SYS_mkdir),
        TRACE(SYS_mknod),
        TRACE(SYS_unlink),
        TRACE(SYS_rmdir),
        TRACE(SYS_symlink),
        TRACE(SYS_link),
        TRACE(SYS_rename),
        TRACE_IF(SYS_open, 1, O_CREAT | O_TRUNC),
#endif
        TRACE_IF(SYS_openat, 2, O_CREAT | O_TRUNC),
        /* A map that others see and that may be written into. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
        LOAD(args[2]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_WRITE, 0, 2),
        LOAD(args[3]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 3, 2),
        RETURN(SECCOMP_RET_ALLOW),
        /* FICLONE and FICLONERANGE share blocks with another file. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 2, 0),
        RETURN(SECCOMP_RET_ALLOW),
        RETURN(SECCOMP_RET_TRACE),
        LOAD(args[1]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x40049409, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x4020940d, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | EOPNOTSUPP),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no new privileges");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) fail("the filter");
}

static pid_t child;

static void pass_on(int signal) { kill(child, signal); }

int main(int n, char **arguments) {
    int dashes = 1;
    while (dashes < n && strcmp(arguments[dashes], "--") != 0) dashes++;
    if (dashes < 3 || dashes + 1 >= n) fail("watchdisk NOTES ROOT [SHM] -- COMMAND ARGUMENTS...");
    notes = open(arguments[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (notes < 0) fail(arguments[1]);
    root = arguments[2];
    shm = dashes > 3 ? arguments[3] : NULL;
    who = (uint64_t)getpid();
    child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) fail("to be watched");
        raise(SIGSTOP);
        filter();
        execvp(arguments[dashes + 1], arguments + dashes + 1);
        fail(arguments[dashes + 1]);
    }
    /* The pipes are the command's alone, so that their ends are seen. */
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    close(null);
    signal(SIGTERM, pass_on);
    signal(SIGINT, pass_on);
    int status, code = 99;
    if (waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status)) fail("the command did not start");
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, options) != 0) fail("ptrace");
    find(child)->stopped_once = 1;
    ptrace(PTRACE_CONT, child, NULL, NULL);
    for (;;) {
        pid_t id = waitpid(-1, &status, __WALL);
        if (id < 0) {
            if (errno == EINTR) continue;
            break;
        }
        struct thread *t = find(id);
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (id == child) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            end(t, -1, 1);
            t->here = 0;
            t->waiting = 0;
            next();
            continue;
        }
        int stop = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) {
            struct __ptrace_syscall_info info;
            if (ptrace(PTRACE_GET_SYSCALL_INFO, id, sizeof info, &info) <= 0) continue;
            t->call = (long)info.seccomp.nr;
            for (int i = 0; i < 6; i++) t->argument[i] = info.seccomp.args[i];
            begin(t);
        } else if (event) {
            t->stopped_once = 1;
            go(t, PTRACE_CONT, 0);
        } else if (stop == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            if (ptrace(PTRACE_GET_SYSCALL_INFO, id, sizeof info, &info) <= 0) continue;
            end(t, info.exit.rval, 0);
            go(t, PTRACE_CONT, 0);
        } else if (stop == SIGSTOP && !t->stopped_once) {
            t->stopped_once = 1;
            go(t, PTRACE_CONT, 0);
        } else {
            go(t, PTRACE_CONT, stop);
        }
        next();
    }
    return code;
}
