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
**   unlink  of -wal and -shm is refused, until the database leaves WAL mode
**   mmap    (and munmap) notes where the index of a log is mapped (mapped.c)
**   write, pwrite, ftruncate, fallocate
**           are refused on a number that is not SQLite's file any more, in a child of fork whose
**           parent was writing, and on a family that was given up
**
** SQLite unlinks the log with its last close, and when a database leaves WAL mode. To both it
** takes the main file's exclusive lock and copies the log first. The close needs no unlink: a log
** that was copied may lie there. But a database that leaves WAL mode and is written would, with the
** next opening, be overlaid with that old log. So a refused unlink is remembered while the exclusive
** lock stands, and made up for when SQLite turns that lock into a shared one or writes into the
** main file under it: a closing connection does neither.
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
** that the parent had recorded. It cannot inherit a write lock: where the parent held one at
** the fork, the child's connections to that family are good for nothing but closing. Until it has
** closed them all, each lock call, write, truncation and unlink of that family fails in the child.
** Closing rolls back, and a rollback clears the index of the log in shared memory, where the parent's
** uncommitted frames are listed: so the child gets a private copy of that memory at the fork.
**
** The locks belong to the description, so whoever else has that description can drop them behind our back: a process
** made by a bare clone(), one that was passed the descriptor, a library that unlocks whatever is open. So what is recorded
** is not taken for granted: sh_standing asks the kernel. Where a process does so before it believes anything, lock calls
** go on without an owner, on a new one that has nothing yet: SQLite takes each failure for a lock that is busy, and would
** wait for seconds. A lock of a transaction that is found gone when SQLite releases it marks the inode as betrayed
** until SQLite has closed it: what ran under that lock proves nothing.
*/
#define _GNU_SOURCE
#include "inodes.h"

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

enum { UNLINK_WAL = 1, UNLINK_SHM = 2 };

#define BUCKETS 1024

/* The shared range of a main file (os_unix.c, SHARED_FIRST and SHARED_SIZE). */
#define SHARED_FIRST 0x40000002
#define SHARED_END (SHARED_FIRST + 510)

/* The byte of an index that everybody who has it mapped holds (os_unix.c, UNIX_SHM_DMS). */
#define PRESENCE 128

pthread_mutex_t shi_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct inode *buckets[BUCKETS];
struct descriptor *shi_table;
size_t shi_table_size;
static pid_t home;           /* the process that the owners belong to */
static uint64_t marks;
static int forked_while_writing;   /* some inode may be its parent's to write */
static int watched;          /* this process asks sh_standing before it believes anything */

static int (*real_open)(const char *, int, int);
static int (*real_close)(int);
static int (*real_fcntl)(int, int, ...);
static int (*real_unlink)(const char *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fallocate)(int, off_t, off_t);

/* ---- inodes and descriptors; the mutex is held in all of these ---- */

static size_t bucket(dev_t device, ino_t number){
  return (size_t)((number * 0x9E3779B97F4A7C15ull) ^ device) % BUCKETS;
}

struct inode *shi_find(dev_t device, ino_t number){
  struct inode *i = buckets[bucket(device, number)];
  while( i && (i->device != device || i->number != number) ) i = i->next;
  return i;
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

/* True if the descriptor is still the very description that was opened as the owner. */
static int owner_is_ours(const struct inode *i){
  struct stat st;
  return i->owner >= 0 && fstat(i->owner, &st) == 0
      && st.st_dev == i->device && st.st_ino == i->number
      && lseek(i->owner, 0, SEEK_CUR) == i->mark;
}

/* Closes this process's copy of the owner's description. */
static void drop_owner(struct inode *i){
  /* If the number belongs to something else by now it is not ours to close. */
  if( owner_is_ours(i) ) close(i->owner);
  i->owner = -1;
}

/* Ends the owner. Its locks go even if a process that was made by a bare clone() has a copy of the description. */
static void close_owner(struct inode *i){
  if( owner_is_ours(i) ) set_lock(i->owner, F_OFD_SETLK, F_UNLCK, 0, INT64_MAX);
  drop_owner(i);
}

static void forget_inode(struct inode *gone){
  struct inode **at = &buckets[bucket(gone->device, gone->number)];
  while( *at != gone ) at = &(*at)->next;
  *at = gone->next;
  shi_forget_maps(gone);
  close_owner(gone);
  free(gone->ranges);
  free(gone);
}

static void forget_descriptor(int fd){
  struct descriptor *d;
  if( fd < 0 || (size_t)fd >= shi_table_size || shi_table[fd].inode == 0 ) return;
  d = &shi_table[fd];
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
  if( (size_t)fd >= shi_table_size ){
    size_t size = (size_t)fd + 64;
    struct descriptor *grown = realloc(shi_table, size * sizeof *grown);
    if( grown == 0 ) return ENOMEM;
    memset(grown + shi_table_size, 0, (size - shi_table_size) * sizeof *grown);
    shi_table = grown;
    shi_table_size = size;
  }
  copy = strdup(path);
  if( copy == 0 ) return ENOMEM;
  i = shi_find(st.st_dev, st.st_ino);
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
  shi_table[fd].inode = i;
  shi_table[fd].path = copy;
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
  if( i->unlinks && type != F_WRLCK && start < SHARED_END && end > SHARED_FIRST ) i->unlinks = 0;
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

/* ---- what the kernel says about them ---- */

/* As kernel_has, from what /proc tells of the description. */
static int is_listed(int owner, const struct sh_range *r){
  char path[40], text[8192], *line;
  ssize_t length;
  int64_t at = r->start;
  int fd, moved;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", owner);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  if( fd < 0 ) return -1;
  length = read(fd, text, sizeof text - 1);
  close(fd);
  if( length <= 0 || (size_t)length == sizeof text - 1 ) return -1;
  text[length] = 0;
  do {
    moved = 0;
    for(line = text; (line = strstr(line, "\nlock:")) != 0; line++){
      char kind[8], last[24];
      long long start;
      int64_t end;
      if( sscanf(line, " lock: %*d: OFDLCK %*s %7s %*d %*[^ ] %lld %23s", kind, &start, last) != 3 ) continue;
      end = strcmp(last, "EOF") == 0 ? INT64_MAX : strtoll(last, 0, 10) + 1;
      if( start > at || end <= at || (r->write && strcmp(kind, "WRITE") != 0) ) continue;
      at = end;
      moved = 1;
    }
  } while( moved && at < r->end );
  return at >= r->end;
}

/* 1 if the owner's description has all of this lock, 0 if not, -1 if the kernel does not tell. */
static int kernel_has(int owner, const struct sh_range *r){
  int64_t at = r->start;
  while( at < r->end ){
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_UNLCK;   /* Linux 6.6: asks for the description's own locks */
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = r->end == INT64_MAX ? 0 : r->end - at;
    if( fcntl(owner, F_OFD_GETLK, &lock) != 0 ) return errno == EINVAL ? is_listed(owner, r) : -1;
    if( lock.l_type == F_UNLCK || lock.l_start > at || range_end(&lock) <= at ) return 0;
    if( r->write && lock.l_type != F_WRLCK ) return 0;
    at = range_end(&lock);
  }
  return 1;
}

/* 1 unless the kernel says that the owner has not this lock, or there is no owner. */
static int still_has(const struct inode *i, const struct sh_range *r){
  return i->owner >= 0 && (i->mute || kernel_has(i->owner, r) != 0);
}

/* Once for each inode, right after a lock was granted: does the kernel tell the truth here? A compatible system or a file system
** that keeps its locks elsewhere may know of none. */
static void try_the_kernel(struct inode *i, const struct flock *granted){
  struct sh_range r;
  int has;
  if( i->asked || granted->l_type == F_UNLCK ) return;
  r.start = granted->l_start;
  r.end = range_end(granted);
  r.write = granted->l_type == F_WRLCK;
  has = kernel_has(i->owner, &r);
  i->asked = has >= 0;
  i->mute = has == 0;
}

/* The owner's number may belong to something else by now. */
static void look_at_owner(struct inode *i){
  if( i->owner < 0 || owner_is_ours(i) ) return;
  i->owner = -1;
  i->lost = 1;
}

/* True for the two locks that stand as long as a connection does; every other one belongs to a transaction. */
static int is_standing(const struct sh_range *r){
  return !r->write && (r->start == SHARED_FIRST || (r->start == PRESENCE && r->end == PRESENCE + 1));
}

/* Before SQLite releases [start,end): was it there all the time? */
static void notice_betrayal(struct inode *i, int64_t start, int64_t end){
  size_t n;
  if( i->inherited ) return;
  for(n = 0; n < i->held && !i->betrayed; n++){
    const struct sh_range *r = &i->ranges[n];
    if( r->end <= start || r->start >= end || is_standing(r) ) continue;
    if( !still_has(i, r) ) i->betrayed = 1;
  }
}

/* How the standing lock [start,end) is. */
static int standing(struct inode *i, int64_t start, int64_t end){
  size_t n;
  int recorded = 0, fell = 0;
  look_at_owner(i);
  if( i->betrayed || i->inherited ) return SH_BROKEN;
  for(n = 0; n < i->held; n++){
    const struct sh_range *r = &i->ranges[n];
    int wanted = r->start <= start && r->end >= end;
    recorded |= wanted;
    if( still_has(i, r) ) continue;
    if( !wanted || !is_standing(r) ) return SH_BROKEN;
    fell = 1;
  }
  return !recorded ? SH_BROKEN : fell ? SH_FELL : SH_STANDS;
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
    if( r->write ){ errno = EIO; return -1; }
    if( set_lock(owner, F_OFD_SETLK, F_RDLCK, r->start, r->end) != 0 ) return -1;
  }
  return 0;
}

/* Gives the inode a new owner, opened as SQLite's descriptor `fd` is, which has the read locks before the old one lets them
** go. 0; or with errno set -1 if it cannot be opened, and -2 if it cannot have the locks. */
static int replace_owner(struct inode *i, int fd, int access){
  off_t mark;
  int owner = open_owner(fd, access == O_RDWR ? O_RDWR : O_RDONLY, i, &mark);
  if( owner < 0 ) return -1;
  if( take_recorded(i, owner) != 0 ){
    int error = errno;
    close(owner);
    errno = error;
    return -2;
  }
  close_owner(i);
  i->owner = owner;
  i->mark = mark;
  i->writable = (access == O_RDWR);
  i->inherited = 0;
  return 0;
}

/* True if the number does not belong to the file that SQLite opened by it any more. */
int shi_is_foreign(int fd, const struct inode *i){
  struct stat st;
  return fstat(fd, &st) != 0 || st.st_dev != i->device || st.st_ino != i->number;
}

/* A descriptor of SQLite's, one that can write if there is any, and how it was opened. -1: none. */
static int best_descriptor(const struct inode *i, int *access){
  size_t fd;
  int best = -1;
  for(fd = 0; fd < shi_table_size; fd++){
    int mode;
    if( shi_table[fd].inode != i || shi_is_foreign((int)fd, i) ) continue;
    mode = fcntl((int)fd, F_GETFL) & O_ACCMODE;
    if( best < 0 || mode == O_RDWR ){ best = (int)fd; *access = mode; }
  }
  return best;
}

/* A new owner that has none of the locks which the lost one had. On failure the inode stays lost. */
static void begin_anew(struct inode *i){
  int access = O_RDONLY, fd = best_descriptor(i, &access);
  int owner = fd < 0 ? -1 : open_owner(fd, access == O_RDWR ? O_RDWR : O_RDONLY, i, &i->mark);
  if( owner < 0 ) return;
  i->owner = owner;
  i->writable = (access == O_RDWR);
  i->lost = 0;
}

/* Sees to it that the inode has an owner that can take locks of this type. 0, or -1 with errno set. */
static int ready_owner(struct inode *i, int fd, int type){
  int access;
  if( i->owner >= 0 && (type != F_WRLCK || i->writable) ) return 0;
  access = fcntl(fd, F_GETFL);
  if( access < 0 ) return -1;
  access &= O_ACCMODE;
  if( i->owner >= 0 && access != O_RDWR ){
    errno = EBADF;   /* what the kernel says to a write lock on a read-only descriptor */
    return -1;
  }
  switch( replace_owner(i, fd, access) ){
    case 0: return 0;
    case -2: errno = EIO;
  }
  return -1;
}

/* ---- fork ---- */

static int holds_write(const struct inode *i){
  size_t n;
  for(n = 0; n < i->held; n++) if( i->ranges[n].write ) return 1;
  return 0;
}

/* The length of a path without what SQLite appends to the name of the main file. */
size_t shi_family_length(const char *path){
  static const char *const suffixes[] = { "-wal", "-shm", "-journal" };
  size_t length = strlen(path), n;
  for(n = 0; n < sizeof suffixes / sizeof *suffixes; n++){
    size_t suffix = strlen(suffixes[n]);
    if( length > suffix && strcmp(path + length - suffix, suffixes[n]) == 0 ) return length - suffix;
  }
  return length;
}

/* True in a child of fork for a family that its parent was writing at the fork. */
static int is_parents(const char *path){
  size_t n, length;
  if( !forked_while_writing ) return 0;
  length = shi_family_length(path);
  for(n = 0; n < shi_table_size; n++){
    const struct descriptor *d = &shi_table[n];
    if( d->inode == 0 || !d->inode->parents ) continue;
    if( shi_family_length(d->path) == length && memcmp(d->path, path, length) == 0 ) return 1;
  }
  return 0;
}

/* True if a descriptor of this inode has a path of a family that is the parent's. */
int shi_inode_is_parents(const struct inode *i){
  size_t n;
  for(n = 0; n < shi_table_size; n++) if( shi_table[n].inode == i && is_parents(shi_table[n].path) ) return 1;
  return 0;
}

static void become_child(void){
  size_t n;
  struct inode *i;
  int writing = forked_while_writing;
  for(n = 0; n < BUCKETS; n++){
    for(i = buckets[n]; i; i = i->next){
      if( i->owner >= 0 ){ drop_owner(i); i->inherited = 1; }
      if( i->inherited && holds_write(i) ){ i->parents = 1; writing = 1; }
      i->unlinks = 0;
    }
  }
  forked_while_writing = writing;
  if( writing ) shi_copy_parents_maps();
  home = getpid();
}

static void before_fork(void){ pthread_mutex_lock(&shi_mutex); }
static void after_fork_parent(void){ pthread_mutex_unlock(&shi_mutex); }
static void after_fork_child(void){ become_child(); pthread_mutex_unlock(&shi_mutex); }

void shi_enter(void){
  pthread_mutex_lock(&shi_mutex);
  /* A raw clone() runs no fork handlers. */
  if( home != getpid() ) become_child();
}

void shi_leave(void){ pthread_mutex_unlock(&shi_mutex); }

/* ---- the replacements ---- */

int sh_open(const char *path, int flags, int mode){
  int error, fd = real_open(path, flags, mode);
  if( fd < 0 ) return fd;
  shi_enter();
  error = note_descriptor(fd, path);
  shi_leave();
  if( error ){
    real_close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

struct inode *shi_inode_of(int fd){
  return fd >= 0 && (size_t)fd < shi_table_size ? shi_table[fd].inode : 0;
}

int sh_close(int fd){
  int rc = 0, foreign;
  const struct inode *i;
  shi_enter();
  i = shi_inode_of(fd);
  /* What somebody else opened by this number meanwhile is not SQLite's to close. */
  foreign = i && shi_is_foreign(fd, i);
  forget_descriptor(fd);
  /* Inside the mutex, so that the number is not noted anew before it is free. */
  if( !foreign ) rc = real_close(fd);
  shi_leave();
  return rc;
}

/* 1 if this process holds the exclusive lock of a main file. */
static int is_exclusive(const struct inode *i){
  size_t n;
  for(n = 0; n < i->held; n++){
    const struct sh_range *r = &i->ranges[n];
    if( r->write && r->start <= SHARED_FIRST && r->end >= SHARED_END ) return 1;
  }
  return 0;
}

/* The descriptor of the main file whose log or index has this path, if this process has that file to itself. */
static struct descriptor *exclusive_main(const char *path, size_t main_length){
  size_t n;
  for(n = 0; n < shi_table_size; n++){
    struct descriptor *d = &shi_table[n];
    if( d->inode == 0 || strncmp(d->path, path, main_length) != 0 || d->path[main_length] != 0 ) continue;
    if( is_exclusive(d->inode) ) return d;
  }
  return 0;
}

static int has_suffix(const char *path, size_t length, const char *suffix){
  return length > 4 && strcmp(path + length - 4, suffix) == 0;
}

/* The database leaves WAL mode: unlinks what SQLite believes it has unlinked. 0, or -1 with errno set. */
static int make_up(const struct descriptor *d){
  static const struct { int what; const char *suffix; } kinds[] = { { UNLINK_WAL, "-wal" }, { UNLINK_SHM, "-shm" } };
  size_t n, length = strlen(d->path) + 5;
  char *path = malloc(length);
  int rc = 0;
  if( path == 0 ){ errno = ENOMEM; return -1; }
  for(n = 0; n < sizeof kinds / sizeof *kinds; n++){
    if( !(d->inode->unlinks & kinds[n].what) ) continue;
    snprintf(path, length, "%s%s", d->path, kinds[n].suffix);
    if( real_unlink(path) != 0 && errno != ENOENT ){ rc = -1; break; }
    d->inode->unlinks &= ~kinds[n].what;
  }
  free(path);
  return rc;
}

int sh_unlink(const char *path){
  size_t length = strlen(path);
  int refused, what = 0;
  struct descriptor *d;
  if( has_suffix(path, length, "-wal") ) what = UNLINK_WAL;
  if( has_suffix(path, length, "-shm") ) what = UNLINK_SHM;
  shi_enter();
  refused = what != 0 || is_parents(path);
  if( what && (d = exclusive_main(path, length - 4)) != 0 ) d->inode->unlinks |= what;
  shi_leave();
  if( refused ){
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
  look_at_owner(i);
  if( command != F_GETLK && lock->l_type == F_UNLCK ) notice_betrayal(i, lock->l_start, range_end(lock));
  if( i->lost && watched ) begin_anew(i);
  /* Without an owner there is nothing to release but the record; a child gives up what it inherited this way. */
  if( command != F_GETLK && lock->l_type == F_UNLCK && i->owner < 0 ){
    if( reserve_ranges(i) != 0 ){ errno = ENOMEM; return -1; }
    record_range(i, lock->l_start, range_end(lock), F_UNLCK);
    return 0;
  }
  if( i->lost || is_parents(shi_table[fd].path) ){ errno = EIO; return -1; }
  if( i->unlinks && command != F_GETLK && lock->l_type == F_RDLCK && lock->l_start == SHARED_FIRST ){
    if( make_up(&shi_table[fd]) != 0 ) return -1;
  }
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
      shi_leave();
      rc = fcntl(owner, F_OFD_SETLKW, &asked);
      shi_enter();
      /* Another thread may have replaced a read-only owner meanwhile; its locks went with it. */
      if( rc != 0 || owner == i->owner ) break;
      owner = i->owner;
    } while( owner >= 0 );
  }else{
    rc = fcntl(owner, F_OFD_SETLK, &asked);
  }
  if( rc != 0 && asked.l_type == F_UNLCK && !owner_is_ours(i) ){
    /* Its number was closed at this very moment. SQLite would believe for ever that the lock is still there. */
    look_at_owner(i);
    rc = 0;
  }
  if( rc == 0 && reserve_ranges(i) == 0 ) record_range(i, asked.l_start, range_end(&asked), asked.l_type);
  if( rc == 0 ) try_the_kernel(i, &asked);
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
  shi_enter();
  i = shi_inode_of(fd);
  if( i == 0 ){
    /* Opened before the core was installed: its locks are POSIX locks already. */
    shi_leave();
    return real_fcntl(fd, command, argument);
  }
  rc = lock_call(fd, i, command, argument);
  {
    int error = errno;
    shi_leave();
    errno = error;
  }
  return rc;
}

/* 0 if SQLite may change the file behind its descriptor now, or -1 with errno set. */
static int may_change(int fd){
  const struct inode *i;
  int rc = 0;
  shi_enter();
  i = shi_inode_of(fd);
  if( i && (i->given_up || shi_is_foreign(fd, i) || is_parents(shi_table[fd].path)) ){
    errno = EIO;
    rc = -1;
  }else if( i && i->unlinks ){
    rc = make_up(&shi_table[fd]);
  }
  shi_leave();
  return rc;
}

ssize_t sh_write(int fd, const void *bytes, size_t count){
  return may_change(fd) == 0 ? real_write(fd, bytes, count) : -1;
}

ssize_t sh_pwrite(int fd, const void *bytes, size_t count, off_t offset){
  return may_change(fd) == 0 ? real_pwrite(fd, bytes, count, offset) : -1;
}

ssize_t sh_pwrite64(int fd, const void *bytes, size_t count, off_t offset){
  return may_change(fd) == 0 ? real_pwrite64(fd, bytes, count, offset) : -1;
}

int sh_ftruncate(int fd, off_t length){
  return may_change(fd) == 0 ? real_ftruncate(fd, length) : -1;
}

/* Answers an errno, as posix_fallocate does. */
int sh_fallocate(int fd, off_t offset, off_t length){
  return may_change(fd) == 0 ? real_fallocate(fd, offset, length) : errno;
}

/* ---- doors for the crate ---- */

int sh_prepare(void){
  struct timespec now;
  if( access("/proc/self/fd", X_OK) != 0 ) return errno;
  home = getpid();
  clock_gettime(CLOCK_MONOTONIC, &now);
  marks = (uint64_t)now.tv_nsec ^ ((uint64_t)home << 32) ^ (uint64_t)(uintptr_t)&now;
  if( shi_answer_bus() != 0 ) return errno;
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
  { "ftruncate", (any)sh_ftruncate, (any *)&real_ftruncate },
  { "fallocate", (any)sh_fallocate, (any *)&real_fallocate },
  { "mmap",     (any)sh_mmap,     (any *)&shi_real_mmap },
  { "munmap",   (any)sh_munmap,   (any *)&shi_real_munmap },
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
  shi_enter();
  for(fd = 0; fd < shi_table_size; fd++){
    if( shi_table[fd].inode == 0 || strcmp(shi_table[fd].path, path) != 0 ) continue;
    if( found < room ) describe((int)fd, &out[found]);
    found++;
  }
  shi_leave();
  return found;
}

int sh_in_use(uint64_t device, uint64_t inode){
  int found;
  shi_enter();
  found = shi_find((dev_t)device, (ino_t)inode) != 0;
  shi_leave();
  return found;
}

int sh_owner(uint64_t device, uint64_t inode, struct sh_range *out, size_t room, size_t *count){
  struct inode *i;
  int owner = -1;
  *count = 0;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  if( i && owner_is_ours(i) ){
    owner = i->owner;
    *count = i->held;
    memcpy(out, i->ranges, (i->held < room ? i->held : room) * sizeof *out);
  }
  shi_leave();
  return owner;
}

int sh_standing(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  struct inode *i;
  int state = SH_BROKEN;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  watched = 1;
  if( i ) state = standing(i, start, end);
  shi_leave();
  return state;
}

void sh_betray(uint64_t device, uint64_t inode){
  struct inode *i;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  if( i ) i->betrayed = 1;
  shi_leave();
}

int sh_has(int owner, const struct sh_range *range, int listed){
  return listed ? is_listed(owner, range) : kernel_has(owner, range);
}

/* Opens a new owner, if no write lock would be lost with the old one. */
static int renew_owner(struct inode *i){
  int access, fd = best_descriptor(i, &access);
  if( holds_write(i) ){ errno = EBUSY; return -1; }
  if( fd < 0 ){ errno = EBADF; return -1; }
  return replace_owner(i, fd, access);
}

int sh_retake(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  struct inode *i;
  int error = ENOLCK, state = SH_BROKEN;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  if( i ) state = standing(i, start, end);
  if( state == SH_STANDS ){
    error = 0;
  }else if( state == SH_FELL ){
    /* Whoever dropped the lock may have the old description still, and do it again. */
    if( renew_owner(i) == 0 ){
      i->lost = 0;
      error = 0;
    }else if( errno != EAGAIN && errno != EACCES && i->owner >= 0 ){
      error = set_lock(i->owner, F_OFD_SETLK, F_RDLCK, start, end) == 0 ? 0 : errno;
    }else{
      error = errno;
    }
  }
  shi_leave();
  return error;
}

int sh_locked(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  struct inode *i;
  struct flock lock;
  size_t fd;
  int rc = -1;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  /* Not the owner: to itself its own locks are no obstacle. */
  for(fd = 0; i && fd < shi_table_size; fd++){
    if( shi_table[fd].inode != i || shi_is_foreign((int)fd, i) ) continue;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = end - start;
    if( fcntl((int)fd, F_OFD_GETLK, &lock) == 0 ) rc = lock.l_type != F_UNLCK;
    break;
  }
  shi_leave();
  return rc;
}

int sh_locked_by_others(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  const struct inode *i;
  struct flock lock;
  int rc = -1;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  if( i && owner_is_ours(i) ){
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = end - start;
    if( fcntl(i->owner, F_OFD_GETLK, &lock) == 0 ) rc = lock.l_type != F_UNLCK;
  }
  shi_leave();
  return rc;
}

void sh_counts(size_t *owners, size_t *descriptors){
  size_t n, fd;
  struct inode *i;
  *owners = *descriptors = 0;
  shi_enter();
  for(n = 0; n < BUCKETS; n++) for(i = buckets[n]; i; i = i->next) *owners += i->owner >= 0;
  for(fd = 0; fd < shi_table_size; fd++) *descriptors += shi_table[fd].inode != 0;
  shi_leave();
}
