/*
** Record locks that a stray close cannot drop. See locks.c for the why.
*/
#ifndef STATEHOUSE_LOCKS_H
#define STATEHOUSE_LOCKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A descriptor that SQLite has open, as seen by fstat on it now. */
struct sh_descriptor {
  int fd;
  int has_birth;     /* 1 if born_ns is known */
  uint64_t device;
  uint64_t inode;
  int64_t born_ns;   /* nanoseconds since 1970 */
};

/* A range that this process has locked on one inode. */
struct sh_range {
  int64_t start;
  int64_t end;       /* exclusive; INT64_MAX for "to the end of all files" */
  int write;         /* 1 for a write lock */
};

/* Once, before any replacement is put into the table. 0, or an errno. */
int sh_prepare(void);

/* The name of the n-th entry of SQLite's system-call table that is replaced; 0 after the last. */
const char *sh_call_name(size_t n);

/* Remembers the original function of the n-th entry and gives its replacement. */
void (*sh_call_replace(size_t n, void (*original)(void)))(void);

/* How many descriptors SQLite opened by exactly this path; the first `room` of them are written to `out`. */
size_t sh_descriptors(const char *path, struct sh_descriptor *out, size_t room);

/* 1 if SQLite has a descriptor of this inode open. */
int sh_in_use(uint64_t device, uint64_t inode);

/* The owner descriptor of an inode (-1: none) and the ranges that it should hold. */
int sh_owner(uint64_t device, uint64_t inode, struct sh_range *out, size_t room, size_t *count);

enum {
  SH_STANDS = 0,     /* all that is recorded for the inode is there, the asked range among it */
  SH_FELL = 1,       /* the asked range alone is gone */
  SH_BROKEN = 2      /* it was never taken, or a lock of a transaction is gone as well */
};

/* How a standing lock of an inode is by the kernel's account: one of the above. */
int sh_standing(uint64_t device, uint64_t inode, int64_t start, int64_t end);

/* Takes a standing lock again that fell, on a description that nobody else has if that is possible. 0, or an errno: EAGAIN
** if somebody else's lock is in the way, ENOLCK if more than this one is gone. */
int sh_retake(uint64_t device, uint64_t inode, int64_t start, int64_t end);

/* What runs in a transaction on this inode proves nothing: it is SH_BROKEN until SQLite has closed it. */
void sh_betray(uint64_t device, uint64_t inode);

/* 1 if a description has all of a lock, 0 if not, -1 if that cannot be found out; with `listed` by /proc, which every kernel
** can be asked. For tests: the core chooses by itself. */
int sh_has(int owner, const struct sh_range *range, int listed);

/* Reads at a position from a file that SQLite has open, and moves no offset. -1 with ESTALE when nothing of this
** process has that file open, or its family was given up. */
ssize_t sh_read(uint64_t device, uint64_t inode, void *out, size_t count, int64_t offset);

/* 1 if anybody, this process too, has a lock on the range of a file that SQLite has open; 0 if nobody; -1: not known. */
int sh_locked(uint64_t device, uint64_t inode, int64_t start, int64_t end);

/* As sh_locked, of anybody but this process's own connections. */
int sh_locked_by_others(uint64_t device, uint64_t inode, int64_t start, int64_t end);

/* SQLite changes no file of this family any more and touches none of its mappings, until it has closed them all. */
void sh_give_up(uint64_t device, uint64_t inode);

/* How many owners are open, and how many descriptors of SQLite are known. For tests and status. */
void sh_counts(size_t *owners, size_t *descriptors);

#endif
