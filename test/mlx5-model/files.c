/*
 * The file descriptors that are ours: opened device files, and the pipes that carry completion and async events.
 *
 * The table is looked into on every close() and write() of the process, so it is a plain array that is read without
 * the lock. A pipe stands in for the kernel's event file: one record a read(), readable while records wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

/* Linux's default fs.nr_open: no process gets higher descriptors unless root raised it. Untouched pages cost nothing.
 */
#define MAX_FDS (1 << 20)
static _Atomic(struct file*) table[MAX_FDS];
static int highest_fd = -1;

struct file* file_of(int fd) {
  return fd >= 0 && fd < MAX_FDS ? atomic_load_explicit(&table[fd], memory_order_acquire) : NULL;
}

int file_install(int fd, struct file* f) {
  if (fd >= MAX_FDS) return EMFILE;
  f->fds++;
  if (fd > highest_fd) highest_fd = fd;
  atomic_store_explicit(&table[fd], f, memory_order_release);
  return 0;
}

static void file_free_if_unused(struct file* f) {
  if (f->fds || f->holders) return;
  if (f->kind == FILE_UVERBS) ctx_close(f->ctx);
  free(f);
}

void file_duplicate(int from, int to) {
  struct file* f = file_of(from);
  if (f && file_of(to) != f) file_install(to, f);
}

static int any_fd_of(const struct file* f) {
  for (int fd = 0; fd <= highest_fd; fd++)
    if (atomic_load_explicit(&table[fd], memory_order_relaxed) == f) return fd;
  return -1;
}

/* The descriptor goes; what it refers to goes with the last one, as in the kernel. */
void file_close_fd(int fd) {
  struct file* f = file_of(fd);
  if (!f) return;
  atomic_store_explicit(&table[fd], NULL, memory_order_release);
  f->fds--;
  if (f->kind == FILE_EVENTS && f->fds && f->read_fd == fd) f->read_fd = any_fd_of(f);
  if (f->kind == FILE_EVENTS && !f->fds) { /* nobody reads any more: writing would raise SIGPIPE */
    file_hang_up(f);
    f->read_fd = -1;
  }
  file_free_if_unused(f);
}

/* The kernel says EPOLLERR and EIO here; of a pipe it is EPOLLHUP, and nothing to read. */
void file_hang_up(struct file* f) {
  if (f->write_fd >= 0) real_close(f->write_fd);
  f->write_fd = -1;
}

void file_hold(struct file* f) { f->holders++; }

void file_put(struct file* f) {
  f->holders--;
  file_free_if_unused(f);
}

struct file* file_new_events(void) {
  int ends[2];
  struct file* f = calloc(1, sizeof *f);
  if (!f || pipe2(ends, O_CLOEXEC)) {
    free(f);
    return NULL;
  }
  /* A full pipe must not block the engine. The read end stays as it is: the user may set O_NONBLOCK on it. */
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  *f = (struct file){.kind = FILE_EVENTS, .read_fd = ends[0], .write_fd = ends[1]};
  if (file_install(ends[0], f)) {
    real_close(ends[0]);
    real_close(ends[1]);
    free(f);
    return NULL;
  }
  return f;
}

/* System calls by number here: write() and read() of this process are interposed, by us and by sanitizers. */
bool file_event(struct file* f, const void* record, size_t size) {
  if (f->write_fd < 0) return false;
  if (syscall(SYS_write, f->write_fd, record, size) != (long)size) {
    MODEL_WARN("an event is lost: too many wait unread\n");
    return false;
  }
  stats.events++;
  return true;
}

/*
 * Reads by a description of its own that does not block: the user may be reading at the same time, and whether the
 * user's end blocks is for the user to say.
 */
uint32_t file_forget(struct file* f, size_t size, uint64_t element) {
  int bytes = 0;
  uint32_t forgotten = 0;
  if (f->read_fd < 0 || ioctl(f->read_fd, FIONREAD, &bytes) || bytes == 0) return 0;
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", f->read_fd);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  for (int left = bytes / (int)size; left > 0; left--) { /* takes each out, and puts the others back in order */
    uint64_t record[2] = {0};                            /* both kinds of record start with the element */
    if (syscall(SYS_read, fd, record, size) != (long)size) break;
    if (record[0] == element)
      forgotten++;
    else
      (void)!syscall(SYS_write, f->write_fd, record, size);
  }
  if (fd >= 0) real_close(fd);
  return forgotten;
}
