/*
** The index of a log where SQLite has it mapped, reading what it has open, and families that were given up.
**
** A stranger can shorten -shm while SQLite has it mapped, and the next look at what is gone is SIGBUS.
** Nobody can look quickly enough to prevent that. So the core answers SIGBUS where it hits a mapping of
** SQLite's: private memory takes the place of the mapping, the family is given up, and SQLite goes on for
** the moment in which it reads zeros and can change none of its files. A signal that is about anything else goes
** to whoever answered it before. A family is also given up when its content was found destroyed.
*/
#define _GNU_SOURCE
#include "inodes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A piece of an index of a log that SQLite has mapped. */
struct mapping {
  struct mapping *next;
  struct inode *inode;       /* 0: its descriptors are closed */
  char *at;
  size_t length;
};

static struct mapping *mappings;
static volatile int copying;       /* the mutex is held while a mapping is read */
static struct sigaction bus_before;

void *(*shi_real_mmap)(void *, size_t, int, int, int, off_t);
int (*shi_real_munmap)(void *, size_t);

void shi_forget_maps(const struct inode *gone){
  struct mapping *m;
  for(m = mappings; m; m = m->next) if( m->inode == gone ) m->inode = 0;
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

void shi_copy_parents_maps(void){
  const struct mapping *m;
  for(m = mappings; m; m = m->next) if( m->inode && shi_inode_is_parents(m->inode) ) make_private(m);
}

/* Gives up every file of the family that this inode belongs to. The mutex is held. */
static void give_up(const struct inode *gone){
  struct mapping *m;
  size_t n, k;
  for(n = 0; n < shi_table_size; n++){
    size_t length;
    if( shi_table[n].inode != gone ) continue;
    length = shi_family_length(shi_table[n].path);
    for(k = 0; k < shi_table_size; k++){
      const struct descriptor *d = &shi_table[k];
      if( d->inode && shi_family_length(d->path) == length && strncmp(d->path, shi_table[n].path, length) == 0 ){
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
  if( locked ) pthread_mutex_lock(&shi_mutex);
  for(m = mappings; m; m = m->next){
    if( address < m->at || address >= m->at + m->length ) continue;
    found = mmap(m->at, m->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    if( m->inode ) give_up(m->inode);
    break;
  }
  if( locked ) pthread_mutex_unlock(&shi_mutex);
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

int shi_answer_bus(void){
  struct sigaction answer;
  memset(&answer, 0, sizeof answer);
  sigemptyset(&answer.sa_mask);
  answer.sa_flags = SA_SIGINFO | SA_ONSTACK;
  answer.sa_sigaction = on_bus;
  return sigaction(SIGBUS, &answer, &bus_before) == 0 ? 0 : errno;
}

void *sh_mmap(void *wanted, size_t length, int protection, int flags, int fd, off_t offset){
  struct mapping *m;
  void *at = shi_real_mmap(wanted, length, protection, flags, fd, offset);
  if( at == MAP_FAILED || !(protection & PROT_WRITE) || !(flags & MAP_SHARED) ) return at;
  m = malloc(sizeof *m);
  if( m == 0 ){
    shi_real_munmap(at, length);
    errno = ENOMEM;
    return MAP_FAILED;
  }
  shi_enter();
  m->inode = shi_inode_of(fd);
  m->at = at;
  m->length = length;
  m->next = mappings;
  mappings = m;
  shi_leave();
  return at;
}

int sh_munmap(void *at, size_t length){
  struct mapping **m, *gone;
  int rc;
  shi_enter();
  for(m = &mappings; *m && (*m)->at != (char *)at; m = &(*m)->next){}
  gone = *m;
  if( gone ) *m = gone->next;
  /* Inside the mutex, so that the address is not noted anew before it is free. */
  rc = shi_real_munmap(at, length);
  shi_leave();
  free(gone);
  return rc;
}

/* A descriptor of the inode that can be read at a position: the owner, else one of SQLite's. -1: none. */
static int readable(const struct inode *i){
  size_t fd;
  if( i->owner >= 0 && !shi_is_foreign(i->owner, i) ) return i->owner;
  for(fd = 0; fd < shi_table_size; fd++) if( shi_table[fd].inode == i && !shi_is_foreign((int)fd, i) ) return (int)fd;
  return -1;
}

ssize_t sh_read(uint64_t device, uint64_t inode, void *out, size_t count, int64_t offset){
  struct inode *i;
  ssize_t got = -1;
  int fd, error;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  errno = ESTALE;
  if( i && !i->given_up && (fd = readable(i)) >= 0 ) got = pread(fd, out, count, offset);
  error = errno;
  shi_leave();
  errno = error;
  return got;
}

void sh_give_up(uint64_t device, uint64_t inode){
  struct inode *i;
  shi_enter();
  i = shi_find((dev_t)device, (ino_t)inode);
  if( i ) give_up(i);
  shi_leave();
}
