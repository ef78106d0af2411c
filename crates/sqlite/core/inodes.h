/*
** What the two files of the lock core share: which inodes SQLite has open, and by which descriptors. The mutex is held
** by whoever touches any of it.
*/
#ifndef STATEHOUSE_INODES_H
#define STATEHOUSE_INODES_H

#include "locks.h"

#include <pthread.h>
#include <sys/types.h>

/* One inode that SQLite has open. */
struct inode {
  struct inode *next;
  dev_t device;
  ino_t number;
  size_t descriptors;        /* SQLite's own */
  int owner;                 /* -1: none yet, or none any more */
  off_t mark;                /* the owner's file offset */
  int writable;              /* the owner can take write locks */
  int lost;                  /* the owner was taken away, and no lock is granted until there is a new one */
  int asked;                 /* the kernel was asked about a lock right after it was taken */
  int mute;                  /* and did not know of it: this file system or system does not tell */
  int betrayed;              /* a lock of a transaction was gone when it was released */
  int inherited;             /* the ranges were taken by a parent process */
  int parents;               /* this process is a child, and its parent held a write lock here at the fork */
  int given_up;              /* SQLite may not change it any more, until it has closed all descriptors */
  int unlinks;               /* what SQLite wanted unlinked under the exclusive lock that still stands */
  struct sh_range *ranges;   /* what the owner holds, sorted, disjoint */
  size_t held;
  size_t room;
};

/* One descriptor that SQLite opened. */
struct descriptor {
  struct inode *inode;       /* 0: this slot is free */
  char *path;
};

extern pthread_mutex_t shi_mutex;
extern struct descriptor *shi_table;   /* by number */
extern size_t shi_table_size;

/* Takes the mutex, and lets it go. */
void shi_enter(void);
void shi_leave(void);

struct inode *shi_find(dev_t device, ino_t number);

/* The inode of a descriptor of SQLite's. 0: it is none. */
struct inode *shi_inode_of(int fd);

/* True if the number does not belong to the file that SQLite opened by it any more. */
int shi_is_foreign(int fd, const struct inode *i);

/* The length of a path without what SQLite appends to the name of the main file. */
size_t shi_family_length(const char *path);

/* True if a descriptor of this inode has a path of a family that is the parent's. */
int shi_inode_is_parents(const struct inode *i);

/* ---- mapped.c ---- */

extern void *(*shi_real_mmap)(void *, size_t, int, int, int, off_t);
extern int (*shi_real_munmap)(void *, size_t);
void *sh_mmap(void *wanted, size_t length, int protection, int flags, int fd, off_t offset);
int sh_munmap(void *at, size_t length);

/* The inode is not SQLite's any more. */
void shi_forget_maps(const struct inode *gone);

/* In a child of fork: private copies of the index of each family that is its parent's. */
void shi_copy_parents_maps(void);

/* Puts the core's answer before whatever answers SIGBUS now. 0, or an errno. */
int shi_answer_bus(void);

#endif
