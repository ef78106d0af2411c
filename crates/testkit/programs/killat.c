/* Runs a command and kills it, all of it, right before the N-th of its system calls that change something on the disk; or lets
 * that call, or that and every later one, fail with EIO and not be made.
 *
 *   killat kill|fail|dead N REPORT COMMAND ARGUMENTS...
 *
 * With N = 0 nothing is killed and nothing fails. REPORT gets the number of such calls, with N > 0 the name of the one that was
 * not made, and the file that it was about.
 * Calls are seen by the kernel's own tracing, so it does not matter whether they go through the C library; and a filter in
 * the kernel lets all others pass without a stop. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    long number;
    const char *name;
} CALLS[] = {
    { SYS_pwrite64, "pwrite" }, { SYS_write, "write" }, { SYS_openat, "create" }, { SYS_fsync, "fsync" },
    { SYS_fdatasync, "fdatasync" }, { SYS_ftruncate, "ftruncate" }, { SYS_fallocate, "fallocate" },
    { SYS_renameat2, "renameat2" }, { SYS_linkat, "linkat" }, { SYS_unlinkat, "unlinkat" }, { SYS_mkdirat, "mkdirat" },
    { SYS_fchmod, "fchmod" },
#ifdef SYS_renameat
    { SYS_renameat, "renameat" },
#endif
#ifdef SYS_rename
    { SYS_rename, "rename" }, { SYS_unlink, "unlink" }, { SYS_rmdir, "rmdir" }, { SYS_mkdir, "mkdir" }, { SYS_link, "link" },
    { SYS_open, "create" },
#endif
};
enum { KNOWN = sizeof CALLS / sizeof *CALLS };

typedef struct __ptrace_syscall_info info_t;

/* The name of a call that changes something; NULL for one that does not. */
static const char *changes(const info_t *info)
{
    const char *name = NULL;
    for (int i = 0; i < KNOWN; i++)
        if (CALLS[i].number == (long)info->seccomp.nr) name = CALLS[i].name;
    /* Answers on standard output and error change nothing, nor does opening what is there. */
    if (info->seccomp.nr == SYS_write && info->seccomp.args[0] <= 2) return NULL;
    if (info->seccomp.nr == SYS_openat && !(info->seccomp.args[2] & O_CREAT)) return NULL;
#ifdef SYS_open
    if (info->seccomp.nr == SYS_open && !(info->seccomp.args[1] & O_CREAT)) return NULL;
#endif
    return name;
}

/* From here on the kernel stops this process at those calls. */
static int filter(void)
{
    struct sock_filter program[2 * KNOWN + 2];
    int n = 0;
    program[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < KNOWN; i++) {
        program[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog whole = { .len = n, .filter = program };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole);
}

static void report(const char *path, long seen, const char *name, const char *about)
{
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%ld %s %s\n", seen, name, about) < 0 || fclose(file)) _exit(120);
}

/* The file that a call is about: what its descriptor leads to, or the path that it names. */
static void about(pid_t pid, const info_t *info, char *name, size_t room)
{
    int at = -1;
    switch ((long)info->seccomp.nr) {
    case SYS_openat: case SYS_mkdirat: case SYS_unlinkat: case SYS_renameat2: case SYS_linkat:
#ifdef SYS_renameat
    case SYS_renameat:
#endif
        at = 1;
        break;
#ifdef SYS_rename
    case SYS_rename: case SYS_unlink: case SYS_rmdir: case SYS_mkdir: case SYS_link: case SYS_open:
        at = 0;
        break;
#endif
    }
    name[0] = 0;
    char where[64];
    if (at >= 0) {
        snprintf(where, sizeof where, "/proc/%d/mem", pid);
        int memory = open(where, O_RDONLY);
        ssize_t length = memory < 0 ? -1 : pread(memory, name, room - 1, (off_t)info->seccomp.args[at]);
        if (memory >= 0) close(memory);
        name[length < 0 ? 0 : length] = 0;
        name[strcspn(name, "\n")] = 0;
        return;
    }
    snprintf(where, sizeof where, "/proc/%d/fd/%llu", pid, (unsigned long long)info->seccomp.args[0]);
    ssize_t length = readlink(where, name, room - 1);
    name[length < 0 ? 0 : length] = 0;
}

/* The call that the process is about to make is not made, and answers EIO. */
static int fails(pid_t pid)
{
    struct iovec part;
#if defined(__x86_64__)
    struct user_regs_struct registers;
    part = (struct iovec){ .iov_base = &registers, .iov_len = sizeof registers };
    if (ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &part)) return -1;
    registers.orig_rax = -1;
    registers.rax = -EIO;
    return (int)ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &part);
#elif defined(__aarch64__)
    struct user_regs_struct registers;
    int none = -1;
    part = (struct iovec){ .iov_base = &none, .iov_len = sizeof none };
    if (ptrace(PTRACE_SETREGSET, pid, NT_ARM_SYSTEM_CALL, &part)) return -1;
    part = (struct iovec){ .iov_base = &registers, .iov_len = sizeof registers };
    if (ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &part)) return -1;
    registers.regs[0] = -EIO;
    return (int)ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &part);
#else
    (void)pid;
    (void)part;
    return -1;
#endif
}

int main(int argc, char **argv)
{
    if (argc < 5) return 121;
    char how = argv[1][0], file[4096] = "";
    long wanted = atol(argv[2]), seen = 0;
    const char *failed = "end";
    argv++;
    pid_t child = fork();
    if (child < 0) return 122;
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(123);
        raise(SIGSTOP);
        if (filter()) _exit(127);
        execvp(argv[3], argv + 3);
        _exit(124);
    }
    int status;
    if (waitpid(child, &status, 0) != child) return 125;
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC
                 | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, 0, options)) return 126;
    pid_t at = child;
    int sent = 0, result = 1;
    for (;;) {
        ptrace(PTRACE_CONT, at, 0, sent);
        sent = 0;
        at = waitpid(-1, &status, __WALL);
        if (at < 0) break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (at == child) {
                result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                break;
            }
            continue;
        }
        int stop = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) {
            info_t info;
            if (ptrace(PTRACE_GET_SYSCALL_INFO, at, sizeof info, &info) <= 0) continue;
            if (info.op != PTRACE_SYSCALL_INFO_SECCOMP) continue;
            const char *name = changes(&info);
            if (!name) continue;
            char written[4096] = "";
            about(at, &info, written, sizeof written);
            /* What goes into a pipe is on no disk. */
            if ((long)info.seccomp.nr == SYS_write && written[0] != '/') continue;
            seen++;
            if (wanted && how != 'k' && (seen == wanted || (how == 'd' && seen > wanted))) {
                if (seen == wanted) {
                    failed = name;
                    strcpy(file, written);
                }
                if (fails(at)) return 119;
                continue;
            }
            if (seen == wanted) {
                kill(child, SIGKILL);
                while (waitpid(-1, &status, __WALL) >= 0 || errno == EINTR) {}
                report(argv[2], seen, name, "");
                return 137;
            }
        } else if (!event && stop != SIGTRAP && stop != SIGSTOP) {
            sent = stop;
        }
    }
    report(argv[2], seen, failed, file);
    return result;
}
