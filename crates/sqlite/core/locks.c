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
**   mmap    (and munmap) notes where the index of a log is mapped
**   write, pwrite, ftruncate, fallocate
**           are refused on a number that is not SQLite's file any more, in a child of fork whose
**           parent was writing, and on a family that was given up
**
** A stranger can shorten -shm while SQLite has it mapped, and the next look at what is gone is SIGBUS.
** Nobody can look quickly enough to prevent that. So the core answers SIGBUS where it hits a mapping of
** SQLite's: private memory takes the place of the mapping, the family is given up, and SQLite goes on for
** the moment in which it reads zeros and can change none of its files. A signal that is about anything else goes
** to whoever answered it before. A family is also given up when its content was found destroyed.
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
*/
#define _GNU_SOURCE
#include "locks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* A piece of an index of a log that SQLite has mapped. */
struct mapping {
  struct mapping *next;
  struct inode *inode;       /* 0: its descriptors are closed */
  char *at;
  size_t length;
};

enum { UNLINK_WAL = 1, UNLINK_SHM = 2 };

#define BUCKETS 1024

/* The shared range of a main file (os_unix.c, SHARED_FIRST and SHARED_SIZE). */
#define SHARED_FIRST 0x40000002
#define SHARED_END (SHARED_FIRST + 510)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct inode *buckets[BUCKETS];
static struct descriptor *table;
static size_t table_size;
static struct mapping *mappings;
static pid_t home;           /* the process that the owners belong to */
static uint64_t marks;
static int forked_while_writing;   /* some inode may be its parent's to write */
static volatile int copying;       /* the mutex is held while a mapping is read */
static struct sigaction bus_before;

static int (*real_open)(const char *, int, int);
static int (*real_close)(int);
static int (*real_fcntl)(int, int, ...);
static int (*real_unlink)(const char *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fallocate)(int, off_t, off_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);

/* ---- inodes and descriptors; the mutex is held in all of these ---- */

static size_t bucket(dev_t device, ino_t number){
  return (size_t)((number * 0x9E3779B97F4A7C15ull) ^ device) % BUCKETS;
}

static struct inode *find(dev_t device, ino_t number){
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
  struct mapping *m;
  while( *at != gone ) at = &(*at)->next;
  *at = gone->next;
  for(m = mappings; m; m = m->next) if( m->inode == gone ) m->inode = 0;
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

/* True in a child of fork for a family that its parent was writing at the fork. */
static int is_parents(const char *path){
  size_t n, length;
  if( !forked_while_writing ) return 0;
  length = family_length(path);
  for(n = 0; n < table_size; n++){
    const struct descriptor *d = &table[n];
    if( d->inode == 0 || !d->inode->parents ) continue;
    if( family_length(d->path) == length && memcmp(d->path, path, length) == 0 ) return 1;
  }
  return 0;
}

/* True if a descriptor of this inode has a path of a family that is the parent's. */
static int inode_is_parents(const struct inode *i){
  size_t n;
  for(n = 0; n < table_size; n++) if( table[n].inode == i && is_parents(table[n].path) ) return 1;
  return 0;
}

/* Puts a private copy of the memory in its place. On failure the memory can only be read from now on. */
static void make_private(const struct mapping *m){
  char *copy = mmap(0, m->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if( copy != MAP_FAILED ){
    copying = 1;
    memcpy(copy, m->at, m->length);
    copying = 0;
    if( mremap(copy, m->length, m->length, MREMAP_MAYMOVE | MREMAP_FIXED, m->at) != MAP_FAILED ) return;
    munmap(copy, m->length);
  }
  mprotect(m->at, m->length, PROT_READ);
}

static void become_child(void){
  size_t n;
  struct inode *i;
  struct mapping *m;
  int writing = forked_while_writing;
  for(n = 0; n < BUCKETS; n++){
    for(i = buckets[n]; i; i = i->next){
      if( i->owner >= 0 ){ drop_owner(i); i->inherited = 1; }
      if( i->inherited && holds_write(i) ){ i->parents = 1; writing = 1; }
      i->unlinks = 0;
    }
  }
  forked_while_writing = writing;
  if( writing ){
    for(m = mappings; m; m = m->next) if( m->inode && inode_is_parents(m->inode) ) make_private(m);
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

static struct inode *inode_of(int fd){
  return fd >= 0 && (size_t)fd < table_size ? table[fd].inode : 0;
}

/* True if the number does not belong to the file that SQLite opened by it any more. */
static int is_foreign(int fd, const struct inode *i){
  struct stat st;
  return fstat(fd, &st) != 0 || st.st_dev != i->device || st.st_ino != i->number;
}

int sh_close(int fd){
  int rc = 0, foreign;
  const struct inode *i;
  enter();
  i = inode_of(fd);
  /* What somebody else opened by this number meanwhile is not SQLite's to close. */
  foreign = i && is_foreign(fd, i);
  forget_descriptor(fd);
  /* Inside the mutex, so that the number is not noted anew before it is free. */
  if( !foreign ) rc = real_close(fd);
  leave();
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
  for(n = 0; n < table_size; n++){
    struct descriptor *d = &table[n];
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
  enter();
  refused = what != 0 || is_parents(path);
  if( what && (d = exclusive_main(path, length - 4)) != 0 ) d->inode->unlinks |= what;
  leave();
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
  if( i->lost || is_parents(table[fd].path) ){ errno = EIO; return -1; }
  if( i->unlinks && command != F_GETLK && lock->l_type == F_RDLCK && lock->l_start == SHARED_FIRST ){
    if( make_up(&table[fd]) != 0 ) return -1;
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
  i = inode_of(fd);
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

/* Gives up every file of the family that this inode belongs to. The mutex is held. */
static void give_up(const struct inode *gone){
  struct mapping *m;
  size_t n, k;
  for(n = 0; n < table_size; n++){
    size_t length;
    if( table[n].inode != gone ) continue;
    length = family_length(table[n].path);
    for(k = 0; k < table_size; k++){
      const struct descriptor *d = &table[k];
      if( d->inode && family_length(d->path) == length && strncmp(d->path, table[n].path, length) == 0 ){
        d->inode->given_up = 1;
      }
    }
  }
  for(m = mappings; m; m = m->next){
    if( m->inode == 0 || !m->inode->given_up ) continue;
    mmap(m->at, m->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
}

/* 1 if the address is in a mapping of SQLite's, which can be touched from now on. */
static int give_way(const char *address){
  struct mapping *m;
  int found = 0;
  /* SQLite touches its mappings while it holds no lock of the core; only a child that copies one does. */
  int locked = !copying;
  if( locked ) pthread_mutex_lock(&mutex);
  for(m = mappings; m; m = m->next){
    if( address < m->at || address >= m->at + m->length ) continue;
    found = mmap(m->at, m->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    if( m->inode ) give_up(m->inode);
    break;
  }
  if( locked ) pthread_mutex_unlock(&mutex);
  return found;
}

static void on_bus(int number, siginfo_t *info, void *context){
  int error = errno;
  int given = info->si_code > 0 && give_way(info->si_addr);
  errno = error;
  if( given ) return;
  if( bus_before.sa_flags & SA_SIGINFO ){
    bus_before.sa_sigaction(number, info, context);
  }else if( bus_before.sa_handler == SIG_DFL || (bus_before.sa_handler == SIG_IGN && info->si_code > 0) ){
    /* What the system does by itself; a signal that was sent comes once more. */
    signal(number, SIG_DFL);
    if( info->si_code <= 0 ) raise(number);
  }else if( bus_before.sa_handler != SIG_IGN ){
    bus_before.sa_handler(number);
  }
}

static int answer_bus(void){
  struct sigaction answer;
  memset(&answer, 0, sizeof answer);
  sigemptyset(&answer.sa_mask);
  answer.sa_flags = SA_SIGINFO | SA_ONSTACK;
  answer.sa_sigaction = on_bus;
  return sigaction(SIGBUS, &answer, &bus_before) == 0 ? 0 : errno;
}

/* 0 if SQLite may change the file behind its descriptor now, or -1 with errno set. */
static int may_change(int fd){
  const struct inode *i;
  int rc = 0;
  enter();
  i = inode_of(fd);
  if( i && (i->given_up || is_foreign(fd, i) || is_parents(table[fd].path)) ){
    errno = EIO;
    rc = -1;
  }else if( i && i->unlinks ){
    rc = make_up(&table[fd]);
  }
  leave();
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

void *sh_mmap(void *wanted, size_t length, int protection, int flags, int fd, off_t offset){
  struct mapping *m;
  void *at = real_mmap(wanted, length, protection, flags, fd, offset);
  if( at == MAP_FAILED || !(protection & PROT_WRITE) || !(flags & MAP_SHARED) ) return at;
  m = malloc(sizeof *m);
  if( m == 0 ){
    real_munmap(at, length);
    errno = ENOMEM;
    return MAP_FAILED;
  }
  enter();
  m->inode = inode_of(fd);
  m->at = at;
  m->length = length;
  m->next = mappings;
  mappings = m;
  leave();
  return at;
}

int sh_munmap(void *at, size_t length){
  struct mapping **m, *gone;
  int rc;
  enter();
  for(m = &mappings; *m && (*m)->at != (char *)at; m = &(*m)->next){}
  gone = *m;
  if( gone ) *m = gone->next;
  /* Inside the mutex, so that the address is not noted anew before it is free. */
  rc = real_munmap(at, length);
  leave();
  free(gone);
  return rc;
}

/* ---- doors for the crate ---- */

int sh_prepare(void){
  struct timespec now;
  if( access("/proc/self/fd", X_OK) != 0 ) return errno;
  home = getpid();
  clock_gettime(CLOCK_MONOTONIC, &now);
  marks = (uint64_t)now.tv_nsec ^ ((uint64_t)home << 32) ^ (uint64_t)(uintptr_t)&now;
  if( answer_bus() != 0 ) return errno;
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
  { "mmap",     (any)sh_mmap,     (any *)&real_mmap },
  { "munmap",   (any)sh_munmap,   (any *)&real_munmap },
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

/* A descriptor of the inode that can be read at a position: the owner, else one of SQLite's. -1: none. */
static int readable(const struct inode *i){
  size_t fd;
  if( i->owner >= 0 && !is_foreign(i->owner, i) ) return i->owner;
  for(fd = 0; fd < table_size; fd++) if( table[fd].inode == i && !is_foreign((int)fd, i) ) return (int)fd;
  return -1;
}

ssize_t sh_read(uint64_t device, uint64_t inode, void *out, size_t count, int64_t offset){
  struct inode *i;
  ssize_t got = -1;
  int fd, error;
  enter();
  i = find((dev_t)device, (ino_t)inode);
  errno = ESTALE;
  if( i && !i->given_up && (fd = readable(i)) >= 0 ) got = pread(fd, out, count, offset);
  error = errno;
  leave();
  errno = error;
  return got;
}

int sh_locked(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  struct inode *i;
  struct flock lock;
  size_t fd;
  int rc = -1;
  enter();
  i = find((dev_t)device, (ino_t)inode);
  /* Not the owner: to itself its own locks are no obstacle. */
  for(fd = 0; i && fd < table_size; fd++){
    if( table[fd].inode != i || is_foreign((int)fd, i) ) continue;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = end - start;
    if( fcntl((int)fd, F_OFD_GETLK, &lock) == 0 ) rc = lock.l_type != F_UNLCK;
    break;
  }
  leave();
  return rc;
}

int sh_locked_by_others(uint64_t device, uint64_t inode, int64_t start, int64_t end){
  const struct inode *i;
  struct flock lock;
  int rc = -1;
  enter();
  i = find((dev_t)device, (ino_t)inode);
  if( i && owner_is_ours(i) ){
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = end - start;
    if( fcntl(i->owner, F_OFD_GETLK, &lock) == 0 ) rc = lock.l_type != F_UNLCK;
  }
  leave();
  return rc;
}

void sh_give_up(uint64_t device, uint64_t inode){
  struct inode *i;
  enter();
  i = find((dev_t)device, (ino_t)inode);
  if( i ) give_up(i);
  leave();
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
