/* Runs a command and kills it, all of it, right before the N-th of its system calls that change something on the disk.
 *
 *   killat N REPORT COMMAND ARGUMENTS...
 *
 * With N = 0 nothing is killed. REPORT gets the number of such calls, and with N > 0 the name of the one that was not made.
 * Calls are seen by the kernel's own tracing, so it does not matter whether they go through the C library; and a filter in
 * the kernel lets all others pass without a stop. */
#define _GNU_SOURCE
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

static void report(const char *path, long seen, const char *name)
{
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%ld %s\n", seen, name) < 0 || fclose(file)) _exit(120);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 121;
    long wanted = atol(argv[1]), seen = 0;
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
            seen++;
            if (seen == wanted) {
                kill(child, SIGKILL);
                while (waitpid(-1, &status, __WALL) >= 0 || errno == EINTR) {}
                report(argv[2], seen, name);
                return 137;
            }
        } else if (!event && stop != SIGTRAP && stop != SIGSTOP) {
            sent = stop;
        }
    }
    report(argv[2], seen, "end");
    return result;
}
