/*
** Record locks that a stray close cannot drop. See locks.c for the why.
*/
#ifndef STATEHOUSE_LOCKS_H
#define STATEHOUSE_LOCKS_H

#include <stddef.h>
#include <stdint.h>

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

/* Replacements for four entries of SQLite's unix system-call table. */
int sh_open(const char *path, int flags, int mode);
int sh_close(int fd);
int sh_fcntl(int fd, int command, ...);
int sh_unlink(const char *path);

/* Once, before the replacements are put into the table. 0, or an errno. */
int sh_prepare(int (*open_)(const char *, int, int), int (*close_)(int),
               int (*fcntl_)(int, int, ...), int (*unlink_)(const char *));

/* How many descriptors SQLite opened by exactly this path; the first `room` of them are written to `out`. */
size_t sh_descriptors(const char *path, struct sh_descriptor *out, size_t room);

/* 1 if SQLite has a descriptor of this inode open. */
int sh_in_use(uint64_t device, uint64_t inode);

/* The owner descriptor of an inode (-1: none) and the ranges that it should hold. */
int sh_owner(uint64_t device, uint64_t inode, struct sh_range *out, size_t room, size_t *count);

/* How many owners are open, and how many descriptors of SQLite are known. For tests and status. */
void sh_counts(size_t *owners, size_t *descriptors);

#endif
