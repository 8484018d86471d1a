/*
 * The libc functions that the model puts itself in front of (it is loaded by LD_PRELOAD), and its start and end.
 *
 * An opened device file is really /dev/null: a character device, as libibverbs checks. What is written to it, mapped
 * or closed comes here first. Where several threads use one descriptor, only opening and closing take the lock.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "model.h"

#define EXPORT __attribute__((visibility("default")))
#define NETLINK_RDMA_PROTOCOL 20 /* NETLINK_RDMA in <linux/netlink.h> */

/* The next definition of a function: libc's, or a sanitizer's. Looked up late, as we may be called very early. */
#define NEXT(ret, fn, params)                                    \
  static ret(*next_##fn) params;                                 \
  static ret(*load_##fn(void)) params {                          \
    if (!next_##fn) *(void**)&next_##fn = dlsym(RTLD_NEXT, #fn); \
    return next_##fn;                                            \
  }
NEXT(int, open, (const char*, int, ...))
NEXT(int, openat, (int, const char*, int, ...))
NEXT(int, stat, (const char*, struct stat*))
NEXT(int, fstat, (int, struct stat*))
NEXT(int, close, (int))
NEXT(ssize_t, write, (int, const void*, size_t))
NEXT(int, ioctl, (int, unsigned long, ...))
NEXT(int, dup, (int))
NEXT(int, dup2, (int, int))
NEXT(int, dup3, (int, int, int))
NEXT(int, fcntl, (int, int, ...))
NEXT(int, socket, (int, int, int))

static pid_t own_pid;
static void remember_pid(void) { own_pid = getpid(); }

/* False in the child of vfork() or posix_spawn(), which shares our memory until it executes another program. */
bool in_own_process(void) { return getpid() == own_pid; }

int real_close(int fd) { return load_close()(fd); }

static bool is_device_file(int fd) {
  struct file* f = file_of(fd);
  return f && f->kind == FILE_UVERBS;
}

/* ------------------------------------------------------------------ open */

/* The number behind /dev/infiniband/uverbs, or -1 if the path is not one of ours. */
static int device_of(const char* path) {
  static const char prefix[] = "/dev/infiniband/uverbs";
  if (!path || strncmp(path, prefix, sizeof prefix - 1)) return -1;
  char* end;
  const char* digits = path + sizeof prefix - 1;
  long dev = strtol(digits, &end, 10);
  return end > digits && !*end && dev >= 0 && dev < cfg.ndev ? (int)dev : -1;
}

static int open_device(int dev, int flags) {
  int fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", flags, 0);
  if (fd < 0) return fd;
  struct file* f = calloc(1, sizeof *f);
  int err = f ? 0 : ENOMEM;
  engine_lock();
  if (f) {
    f->kind = FILE_UVERBS;
    f->ctx = ctx_open(dev);
    err = f->ctx ? file_install(fd, f) : ENOMEM;
    if (err && f->ctx) ctx_close(f->ctx);
  }
  engine_unlock();
  if (err) {
    free(f);
    real_close(fd);
    return errno = err, -1;
  }
  MODEL_LOG("open uverbs%d: descriptor %d\n", dev, fd);
  return fd;
}

/* To open one of these files makes it happen; there is nothing in it. */
static bool happens(const char* path) {
  static const char prefix[] = "/dev/mlx5model/";
  if (!path || strncmp(path, prefix, sizeof prefix - 1)) return false;
  engine_lock();
  bool done = device_happen(path);
  if (done) engine_kick();
  engine_unlock();
  return done;
}

#define MODE_ARGUMENT(flags)                    \
  mode_t mode = 0;                              \
  if ((flags) & (O_CREAT | O_TMPFILE)) {        \
    va_list args;                               \
    va_start(args, flags);                      \
    mode = va_arg(args, mode_t);                \
    va_end(args);                               \
  }                                             \
  int dev = device_of(path);                    \
  if (dev >= 0) return open_device(dev, flags); \
  if (happens(path)) path = "/dev/null"

EXPORT int open(const char* path, int flags, ...) {
  MODE_ARGUMENT(flags);
  return load_open()(path, flags, mode);
}
EXPORT int open64(const char* path, int flags, ...) {
  MODE_ARGUMENT(flags);
  return load_open()(path, flags | O_LARGEFILE, mode);
}
EXPORT int openat(int at, const char* path, int flags, ...) {
  MODE_ARGUMENT(flags);
  return load_openat()(at, path, flags, mode);
}
EXPORT int openat64(int at, const char* path, int flags, ...) {
  MODE_ARGUMENT(flags);
  return load_openat()(at, path, flags | O_LARGEFILE, mode);
}

/* Each device has a number of its own, by which ibv_import_device() tells whose file it was given. */
static int numbered(int result, struct stat* st, int dev) {
  if (!result && dev >= 0) st->st_rdev = makedev(UVERBS_MAJOR, UVERBS_FIRST_MINOR + dev);
  return result;
}

EXPORT int stat(const char* path, struct stat* st) {
  int dev = device_of(path);
  return numbered(load_stat()(dev >= 0 ? "/dev/null" : path, st), st, dev);
}
EXPORT int fstat(int fd, struct stat* st) {
  return numbered(load_fstat()(fd, st), st, is_device_file(fd) ? file_of(fd)->ctx->dev : -1);
}

/* ------------------------------------------------------------------ use */

EXPORT ssize_t write(int fd, const void* buf, size_t size) {
  if (is_device_file(fd)) return uverbs_write(file_of(fd)->ctx, buf, size);
  return load_write()(fd, buf, size);
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* arg = va_arg(args, void*);
  va_end(args);
  if (is_device_file(fd)) {
    if (!cfg.ioctl || request != RDMA_VERBS_IOCTL) return errno = ENOTTY, -1;
    return uverbs_ioctl(file_of(fd)->ctx, arg);
  }
  return load_ioctl()(fd, request, arg);
}

EXPORT void* mmap(void* addr, size_t length, int prot, int flags, int fd, off_t offset) {
  if (is_device_file(fd)) return device_mmap(file_of(fd)->ctx, addr, length, (uint64_t)offset);
  return (void*)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}
EXPORT void* mmap64(void* addr, size_t length, int prot, int flags, int fd, off_t offset) {
  return mmap(addr, length, prot, flags, fd, offset);
}

/* The netlink way to list devices would show the machine's real ones. Without it libibverbs takes sysfs. */
EXPORT int socket(int domain, int type, int protocol) {
  if (domain == AF_NETLINK && protocol == NETLINK_RDMA_PROTOCOL) return errno = EPROTONOSUPPORT, -1;
  return load_socket()(domain, type, protocol);
}

/* ------------------------------------------------------------------ close, duplicate */

static void forget(int fd) {
  if (!file_of(fd) || !in_own_process()) return;
  engine_lock();
  file_close_fd(fd);
  engine_unlock();
}

EXPORT int close(int fd) {
  forget(fd); /* first: the number may be given to somebody else as soon as it is closed */
  return real_close(fd);
}

static int duplicated(int from, int to) {
  if (to < 0 || !file_of(from) || !in_own_process()) return to;
  engine_lock();
  file_duplicate(from, to);
  engine_unlock();
  return to;
}

EXPORT int dup(int fd) { return duplicated(fd, load_dup()(fd)); }
EXPORT int dup2(int from, int to) {
  if (from != to) forget(to);
  return duplicated(from, load_dup2()(from, to));
}
EXPORT int dup3(int from, int to, int flags) {
  if (from != to) forget(to);
  return duplicated(from, load_dup3()(from, to, flags));
}

static int duplicate_by_fcntl(int fd, int command, void* arg) {
  int result = load_fcntl()(fd, command, arg);
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? duplicated(fd, result) : result;
}
#define FCNTL_ARGUMENT             \
  va_list args;                    \
  va_start(args, command);         \
  void* arg = va_arg(args, void*); \
  va_end(args)
EXPORT int fcntl(int fd, int command, ...) {
  FCNTL_ARGUMENT;
  return duplicate_by_fcntl(fd, command, arg);
}
EXPORT int fcntl64(int fd, int command, ...) {
  FCNTL_ARGUMENT;
  return duplicate_by_fcntl(fd, command, arg);
}

/* ------------------------------------------------------------------ start and end */

__attribute__((constructor)) static void start(void) {
  config_read();
  remember_pid();
  pthread_atfork(NULL, NULL, remember_pid);
  engine_init();
  sysfs_create();
}

__attribute__((destructor)) static void end(void) {
  engine_stop();
  MODEL_LOG("%lu WQEs, %lu CQEs, %lu bytes, %lu events\n", (unsigned long)stats.wqes, (unsigned long)stats.cqes,
            (unsigned long)stats.bytes, (unsigned long)stats.events);
}
