/*
** Record locks that a stray close cannot drop.
**
** A POSIX record lock belongs to (process, inode): closing ANY descriptor of the
** file in the process drops them all, and SQLite is not told. Open-file-description
** locks belong to the description instead. SQLite arbitrates between the connections
** of one process itself and asks the kernel only on behalf of the whole process, so
** one description for each inode, the "owner", has the same meaning without the drop.
**
** What is replaced in SQLite's unix system-call table:
**   fcntl   F_SETLK, F_SETLKW and F_GETLK act as F_OFD_* on the owner of the inode
**   open    notes which descriptors are SQLite's own
**   close   with SQLite's last descriptor of an inode its owner is closed too: SQLite
**           never unlocks byte 128 of -shm, it relies on the close
**   unlink  of -wal and -shm is refused
**   write   (and pwrite) is refused in a child of fork while its parent's write lock stands
**
** An owner is opened anew through /proc/self/fd (a dup would share SQLite's own
** description), at a high number, close-on-exec. Something that closes every
** descriptor can free that number for another file, or for another description of
** the same file. So each owner carries a mark that a foreign description does not
** have, its file offset, and each lock call compares device, inode and mark first.
** Nothing else uses the offset: the owner is never read or written.
**
** After a fork the child shares the owner's description: an unlock there would take
** the parent's lock away. The child therefore closes its copy at once, and at its
** first lock call opens an owner of its own, on which it takes the read locks again
** that the parent had recorded. It cannot inherit a write lock: a lock call that would
** need it fails, and so does every write into that family until the child has released it
** (SQLite makes no lock call between BEGIN IMMEDIATE and the end of COMMIT).
*/
#define _GNU_SOURCE
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

/* One inode that SQLite has open. */
struct inode {
  struct inode *next;
  dev_t device;
  ino_t number;
  size_t descriptors;        /* SQLite's own */
  int owner;                 /* -1: none yet, or none any more */
  off_t mark;                /* the owner's file offset */
  int writable;              /* the owner can take write locks */
  int lost;                  /* the owner was taken away: every lock call fails */
  int inherited;             /* the ranges were taken by a parent process */
  struct sh_range *ranges;   /* what the owner holds, sorted, disjoint */
  size_t held;
  size_t room;
};

/* One descriptor that SQLite opened. */
struct descriptor {
  struct inode *inode;       /* 0: this slot is free */
  char *path;
};

#define BUCKETS 1024

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct inode *buckets[BUCKETS];
static struct descriptor *table;
static size_t table_size;
static pid_t home;           /* the process that the owners belong to */
static uint64_t marks;

static int (*real_open)(const char *, int, int);
static int (*real_close)(int);
static int (*real_fcntl)(int, int, ...);
static int (*real_unlink)(const char *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off_t);
static int forked_while_writing;   /* some inode may have ranges that are its parent's write locks */

/* ---- inodes and descriptors; the mutex is held in all of these ---- */

static size_t bucket(dev_t device, ino_t number){
  return (size_t)((number * 0x9E3779B97F4A7C15ull) ^ device) % BUCKETS;
}

static struct inode *find(dev_t device, ino_t number){
  struct inode *i = buckets[bucket(device, number)];
  while( i && (i->device != device || i->number != number) ) i = i->next;
  return i;
}

/* True if the descriptor is still the very description that was opened as the owner. */
static int owner_is_ours(const struct inode *i){
  struct stat st;
  return i->owner >= 0 && fstat(i->owner, &st) == 0
      && st.st_dev == i->device && st.st_ino == i->number
      && lseek(i->owner, 0, SEEK_CUR) == i->mark;
}

static void close_owner(struct inode *i){
  /* If the number belongs to something else by now it is not ours to close. */
  if( owner_is_ours(i) ) close(i->owner);
  i->owner = -1;
}

static void forget_inode(struct inode *gone){
  struct inode **at = &buckets[bucket(gone->device, gone->number)];
  while( *at != gone ) at = &(*at)->next;
  *at = gone->next;
  close_owner(gone);
  free(gone->ranges);
  free(gone);
}

static void forget_descriptor(int fd){
  struct descriptor *d;
  if( fd < 0 || (size_t)fd >= table_size || table[fd].inode == 0 ) return;
  d = &table[fd];
  if( --d->inode->descriptors == 0 ) forget_inode(d->inode);
  free(d->path);
  d->inode = 0;
  d->path = 0;
}

/* Notes that SQLite opened `path` as `fd`. 0, or an errno. */
static int note_descriptor(int fd, const char *path){
  struct stat st;
  struct inode *i;
  char *copy;
  if( fstat(fd, &st) != 0 ) return errno;
  forget_descriptor(fd);   /* a number that somebody else closed behind SQLite's back */
  if( !S_ISREG(st.st_mode) ) return 0;
  if( (size_t)fd >= table_size ){
    size_t size = (size_t)fd + 64;
    struct descriptor *grown = realloc(table, size * sizeof *grown);
    if( grown == 0 ) return ENOMEM;
    memset(grown + table_size, 0, (size - table_size) * sizeof *grown);
    table = grown;
    table_size = size;
  }
  copy = strdup(path);
  if( copy == 0 ) return ENOMEM;
  i = find(st.st_dev, st.st_ino);
  if( i == 0 ){
    i = calloc(1, sizeof *i);
    if( i == 0 ){ free(copy); return ENOMEM; }
    i->device = st.st_dev;
    i->number = st.st_ino;
    i->owner = -1;
    i->next = buckets[bucket(i->device, i->number)];
    buckets[bucket(i->device, i->number)] = i;
  }
  i->descriptors++;
  table[fd].inode = i;
  table[fd].path = copy;
  return 0;
}

/* ---- the ranges that an owner holds ---- */

static int64_t range_end(const struct flock *lock){
  return lock->l_len == 0 ? INT64_MAX : (int64_t)lock->l_start + lock->l_len;
}

/* Makes room for the two ranges that one change can add at most. */
static int reserve_ranges(struct inode *i){
  struct sh_range *grown;
  if( i->held + 2 <= i->room ) return 0;
  grown = realloc(i->ranges, (i->room + 8) * sizeof *grown);
  if( grown == 0 ) return ENOMEM;
  i->ranges = grown;
  i->room += 8;
  return 0;
}

/* Records that [start,end) now has this type, as the kernel does: the new lock replaces what it overlaps. */
static void record_range(struct inode *i, int64_t start, int64_t end, int type){
  size_t n, kept = 0;
  struct sh_range tail;
  int has_tail = 0;
  for(n = 0; n < i->held; n++){
    struct sh_range r = i->ranges[n];
    if( r.end <= start || r.start >= end ){ i->ranges[kept++] = r; continue; }
    if( r.end > end ){ tail = r; tail.start = end; has_tail = 1; }
    if( r.start < start ){ r.end = start; i->ranges[kept++] = r; }
  }
  if( has_tail ) i->ranges[kept++] = tail;
  if( type != F_UNLCK ){
    i->ranges[kept].start = start;
    i->ranges[kept].end = end;
    i->ranges[kept].write = (type == F_WRLCK);
    kept++;
  }
  i->held = kept;
}

static int set_lock(int fd, int command, int type, int64_t start, int64_t end){
  struct flock lock;
  memset(&lock, 0, sizeof lock);   /* l_pid must be zero for open-file-description locks */
  lock.l_type = (short)type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = end == INT64_MAX ? 0 : end - start;
  return fcntl(fd, command, &lock);
}

/* ---- owners ---- */

static int high_number(void){
  struct rlimit limit;
  rlim_t half = 128;
  if( getrlimit(RLIMIT_NOFILE, &limit) == 0 ) half = limit.rlim_cur / 2;
  return half > 4096 ? 4096 : (int)half;
}

/* Opens a new description of the file behind SQLite's descriptor, and marks it. -1 with errno set on failure. */
static int open_owner(int fd, int flags, const struct inode *i, off_t *mark){
  char path[32];
  struct stat st;
  int low, high;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  low = open(path, flags | O_CLOEXEC);
  if( low < 0 ) return -1;
  if( fstat(low, &st) != 0 || st.st_dev != i->device || st.st_ino != i->number ){
    close(low);
    errno = EIO;
    return -1;
  }
  /* Below, a program's own loops over low numbers would meet it sooner. Not possible: stay low. */
  high = fcntl(low, F_DUPFD_CLOEXEC, high_number());
  if( high >= 0 ) close(low); else high = low;
  marks = marks * 6364136223846793005ull + 1442695040888963407ull;
  *mark = (off_t)(0x40000000 + ((marks >> 33) & 0x3fffffff));
  if( lseek(high, *mark, SEEK_SET) != *mark ){
    close(high);
    errno = EIO;
    return -1;
  }
  return high;
}

/* Takes the recorded ranges on a new owner. Fails if one of them is a write lock. */
static int take_recorded(const struct inode *i, int owner){
  size_t n;
  for(n = 0; n < i->held; n++){
    const struct sh_range *r = &i->ranges[n];
    if( r->write || set_lock(owner, F_OFD_SETLK, F_RDLCK, r->start, r->end) != 0 ) return -1;
  }
  return 0;
}

/* Sees to it that the inode has an owner that can take locks of this type. 0, or -1 with errno set. */
static int ready_owner(struct inode *i, int fd, int type){
  int access, owner;
  off_t mark;
  if( i->owner >= 0 && (type != F_WRLCK || i->writable) ) return 0;
  access = fcntl(fd, F_GETFL);
  if( access < 0 ) return -1;
  access &= O_ACCMODE;
  if( i->owner >= 0 && access != O_RDWR ){
    errno = EBADF;   /* what the kernel says to a write lock on a read-only descriptor */
    return -1;
  }
  owner = open_owner(fd, access == O_RDWR ? O_RDWR : O_RDONLY, i, &mark);
  if( owner < 0 ) return -1;
  /* The new owner has the read locks before the old one lets them go. */
  if( take_recorded(i, owner) != 0 ){
    close(owner);
    errno = EIO;
    return -1;
  }
  close_owner(i);
  i->owner = owner;
  i->mark = mark;
  i->writable = (access == O_RDWR);
  i->inherited = 0;
  return 0;
}

/* ---- fork ---- */

static int holds_write(const struct inode *i){
  size_t n;
  for(n = 0; n < i->held; n++) if( i->ranges[n].write ) return 1;
  return 0;
}

static void become_child(void){
  size_t n;
  struct inode *i;
  for(n = 0; n < BUCKETS; n++){
    for(i = buckets[n]; i; i = i->next){
      if( i->owner >= 0 ){ close_owner(i); i->inherited = 1; }
      if( i->inherited && holds_write(i) ) forked_while_writing = 1;
    }
  }
  home = getpid();
}

static void before_fork(void){ pthread_mutex_lock(&mutex); }
static void after_fork_parent(void){ pthread_mutex_unlock(&mutex); }
static void after_fork_child(void){ become_child(); pthread_mutex_unlock(&mutex); }

static void enter(void){
  pthread_mutex_lock(&mutex);
  /* A raw clone() runs no fork handlers. */
  if( home != getpid() ) become_child();
}

static void leave(void){ pthread_mutex_unlock(&mutex); }

/* ---- the replacements ---- */

int sh_open(const char *path, int flags, int mode){
  int error, fd = real_open(path, flags, mode);
  if( fd < 0 ) return fd;
  enter();
  error = note_descriptor(fd, path);
  leave();
  if( error ){
    real_close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

int sh_close(int fd){
  int rc;
  enter();
  forget_descriptor(fd);
  /* Inside the mutex, so that the number is not noted anew before it is free. */
  rc = real_close(fd);
  leave();
  return rc;
}

int sh_unlink(const char *path){
  size_t length = strlen(path);
  if( length > 4 && (strcmp(path + length - 4, "-wal") == 0 || strcmp(path + length - 4, "-shm") == 0) ){
    errno = EPERM;
    return -1;
  }
  return real_unlink(path);
}

/* Answers a lock call for a descriptor of SQLite's. The mutex is held, and is let go while F_SETLKW waits. */
static int lock_call(int fd, struct inode *i, int command, struct flock *lock){
  struct stat st;
  struct flock asked;
  int rc, owner;
  if( lock->l_whence != SEEK_SET ){ errno = EINVAL; return -1; }
  if( fstat(fd, &st) != 0 ) return -1;
  if( st.st_dev != i->device || st.st_ino != i->number ){ errno = EIO; return -1; }
  if( i->owner >= 0 && !owner_is_ours(i) ){
    i->owner = -1;
    i->lost = 1;
  }
  /* Without an owner there is nothing to release but the record; a child gives up what it inherited this way. */
  if( command != F_GETLK && lock->l_type == F_UNLCK && i->owner < 0 ){
    if( reserve_ranges(i) != 0 ){ errno = ENOMEM; return -1; }
    record_range(i, lock->l_start, range_end(lock), F_UNLCK);
    return 0;
  }
  if( i->lost ){ errno = EIO; return -1; }
  if( reserve_ranges(i) != 0 ){ errno = ENOMEM; return -1; }
  if( ready_owner(i, fd, command == F_GETLK ? F_RDLCK : lock->l_type) != 0 ) return -1;

  asked = *lock;
  asked.l_pid = 0;
  owner = i->owner;
  if( command == F_GETLK ){
    rc = fcntl(owner, F_OFD_GETLK, &asked);
    if( rc == 0 ) *lock = asked;
    return rc;
  }
  if( command == F_SETLKW ){
    do {
      leave();
      rc = fcntl(owner, F_OFD_SETLKW, &asked);
      enter();
      /* Another thread may have replaced a read-only owner meanwhile; its locks went with it. */
      if( rc != 0 || owner == i->owner ) break;
      owner = i->owner;
    } while( owner >= 0 );
  }else{
    rc = fcntl(owner, F_OFD_SETLK, &asked);
  }
  if( rc == 0 && reserve_ranges(i) == 0 ) record_range(i, asked.l_start, range_end(&asked), asked.l_type);
  return rc;
}

int sh_fcntl(int fd, int command, ...){
  va_list arguments;
  void *argument;
  struct inode *i;
  int rc;
  va_start(arguments, command);
  argument = va_arg(arguments, void *);
  va_end(arguments);
  if( command != F_SETLK && command != F_SETLKW && command != F_GETLK ){
    return real_fcntl(fd, command, argument);
  }
  enter();
  i = (fd >= 0 && (size_t)fd < table_size) ? table[fd].inode : 0;
  if( i == 0 ){
    /* Opened before the core was installed: its locks are POSIX locks already. */
    leave();
    return real_fcntl(fd, command, argument);
  }
  rc = lock_call(fd, i, command, argument);
  {
    int error = errno;
    leave();
    errno = error;
  }
  return rc;
}

/* The length of a path without what SQLite appends to the name of the main file. */
static size_t family_length(const char *path){
  static const char *const suffixes[] = { "-wal", "-shm", "-journal" };
  size_t length = strlen(path), n;
  for(n = 0; n < sizeof suffixes / sizeof *suffixes; n++){
    size_t suffix = strlen(suffixes[n]);
    if( length > suffix && strcmp(path + length - suffix, suffixes[n]) == 0 ) return length - suffix;
  }
  return length;
}

/* True in a child of fork for a family whose write lock is its parent's. */
static int parent_is_writing(int fd){
  size_t n, length;
  const char *path;
  int found = 0;
  if( home == getpid() && !forked_while_writing ) return 0;
  enter();
  if( fd >= 0 && (size_t)fd < table_size && table[fd].inode ){
    path = table[fd].path;
    length = family_length(path);
    for(n = 0; n < table_size && !found; n++){
      const struct descriptor *d = &table[n];
      if( d->inode == 0 || !d->inode->inherited || !holds_write(d->inode) ) continue;
      found = family_length(d->path) == length && memcmp(d->path, path, length) == 0;
    }
  }
  leave();
  return found;
}

ssize_t sh_write(int fd, const void *bytes, size_t count){
  if( parent_is_writing(fd) ){ errno = EIO; return -1; }
  return real_write(fd, bytes, count);
}

ssize_t sh_pwrite(int fd, const void *bytes, size_t count, off_t offset){
  if( parent_is_writing(fd) ){ errno = EIO; return -1; }
  return real_pwrite(fd, bytes, count, offset);
}

ssize_t sh_pwrite64(int fd, const void *bytes, size_t count, off_t offset){
  if( parent_is_writing(fd) ){ errno = EIO; return -1; }
  return real_pwrite64(fd, bytes, count, offset);
}

/* ---- doors for the crate ---- */

int sh_prepare(void){
  struct timespec now;
  if( access("/proc/self/fd", X_OK) != 0 ) return errno;
  home = getpid();
  clock_gettime(CLOCK_MONOTONIC, &now);
  marks = (uint64_t)now.tv_nsec ^ ((uint64_t)home << 32) ^ (uint64_t)(uintptr_t)&now;
  return pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

typedef void (*any)(void);

static const struct { const char *name; any replacement; any *original; } calls[] = {
  { "open",     (any)sh_open,     (any *)&real_open },
  { "close",    (any)sh_close,    (any *)&real_close },
  { "fcntl",    (any)sh_fcntl,    (any *)&real_fcntl },
  { "unlink",   (any)sh_unlink,   (any *)&real_unlink },
  { "write",    (any)sh_write,    (any *)&real_write },
  { "pwrite",   (any)sh_pwrite,   (any *)&real_pwrite },
  { "pwrite64", (any)sh_pwrite64, (any *)&real_pwrite64 },
};

const char *sh_call_name(size_t n){
  return n < sizeof calls / sizeof *calls ? calls[n].name : 0;
}

any sh_call_replace(size_t n, any original){
  *calls[n].original = original;
  return calls[n].replacement;
}

static void describe(int fd, struct sh_descriptor *out){
  struct statx x;
  memset(out, 0, sizeof *out);
  out->fd = fd;
  if( statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x) != 0 ) return;
  out->device = makedev(x.stx_dev_major, x.stx_dev_minor);
  out->inode = x.stx_ino;
  out->has_birth = (x.stx_mask & STATX_BTIME) != 0;
  out->born_ns = (int64_t)x.stx_btime.tv_sec * 1000000000 + x.stx_btime.tv_nsec;
}

size_t sh_descriptors(const char *path, struct sh_descriptor *out, size_t room){
  size_t fd, found = 0;
  enter();
  for(fd = 0; fd < table_size; fd++){
    if( table[fd].inode == 0 || strcmp(table[fd].path, path) != 0 ) continue;
    if( found < room ) describe((int)fd, &out[found]);
    found++;
  }
  leave();
  return found;
}

int sh_in_use(uint64_t device, uint64_t inode){
  int found;
  enter();
  found = find((dev_t)device, (ino_t)inode) != 0;
  leave();
  return found;
}

int sh_owner(uint64_t device, uint64_t inode, struct sh_range *out, size_t room, size_t *count){
  struct inode *i;
  int owner = -1;
  *count = 0;
  enter();
  i = find((dev_t)device, (ino_t)inode);
  if( i && owner_is_ours(i) ){
    owner = i->owner;
    *count = i->held;
    memcpy(out, i->ranges, (i->held < room ? i->held : room) * sizeof *out);
  }
  leave();
  return owner;
}

void sh_counts(size_t *owners, size_t *descriptors){
  size_t n, fd;
  struct inode *i;
  *owners = *descriptors = 0;
  enter();
  for(n = 0; n < BUCKETS; n++) for(i = buckets[n]; i; i = i->next) *owners += i->owner >= 0;
  for(fd = 0; fd < table_size; fd++) *descriptors += table[fd].inode != 0;
  leave();
}
