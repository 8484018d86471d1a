/* The model's settings, from the environment. README.md lists them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "model.h"

struct config cfg;

static long number(const char* name, long fallback) {
  const char* value = getenv(name);
  return value && *value ? strtol(value, NULL, 0) : fallback;
}

static bool is(const char* name, const char* expected) {
  const char* value = getenv(name);
  return value && !strcmp(value, expected);
}

void config_read(void) {
  cfg.mode = is("MLX5MODEL_MODE", "inline") ? MODE_INLINE : is("MLX5MODEL_MODE", "poll") ? MODE_POLL : MODE_THREAD;
  cfg.log = number("MLX5MODEL_LOG", 0);
  cfg.ib = is("MLX5MODEL_LINK", "ib");
  cfg.ndev = number("MLX5MODEL_NDEV", 2);
  if (cfg.ndev < 0) cfg.ndev = 0;
  if (cfg.ndev > MAX_DEVICES) cfg.ndev = MAX_DEVICES;
  cfg.scatter_to_cqe = number("MLX5MODEL_S2C", 1);
  cfg.spin_ns = number("MLX5MODEL_SPIN_US", 100) * 1000ull;
  cfg.ioctl = number("MLX5MODEL_IOCTL", 1);
  cfg.memlock = number("MLX5MODEL_MEMLOCK", -1);
  const char* dir = getenv("MLX5MODEL_DIR");
  snprintf(cfg.sysfs_parent, sizeof cfg.sysfs_parent, "%s", dir && *dir ? dir : "/tmp");
}

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
