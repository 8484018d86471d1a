/*
 * The part of sysfs that libibverbs looks at, as plain files in a directory that SYSFS_PATH names.
 *
 * Many processes start at once, so a tree is never changed once it is in its place: it is written under a name of its
 * own and renamed, and its final name tells its contents (user, layout version, settings). Who comes second finds it.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

#define LAYOUT 2 /* to be raised whenever the tree's contents change */
#define PATH_SIZE 512

static char root[PATH_SIZE / 2];

__attribute__((format(printf, 2, 3))) static void put(const char* file, const char* format, ...) {
  char path[PATH_SIZE], text[128];
  snprintf(path, sizeof path, "%s/%s", root, file);
  for (char* slash = path + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    mkdir(path, 0755);
    *slash = '/';
  }
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || syscall(SYS_write, fd, text, length) != length)
    MODEL_WARN("cannot write %s: %s\n", path, strerror(errno));
  if (fd >= 0) real_close(fd);
}

#define PUT_DEVICE(file, ...)                                              \
  do {                                                                     \
    char name[128];                                                        \
    snprintf(name, sizeof name, "class/infiniband/mlx5_%d/%s", dev, file); \
    put(name, __VA_ARGS__);                                                \
  } while (0)

static void put_guid(int dev, const char* file) {
  uint64_t guid = device_guid(dev);
  PUT_DEVICE(file, "%04x:%04x:%04x:%04x\n", (unsigned)(guid >> 48), (unsigned)(guid >> 32 & 0xffff),
             (unsigned)(guid >> 16 & 0xffff), (unsigned)(guid & 0xffff));
}

static void put_gid(int dev, unsigned index) {
  char file[64];
  union ibv_gid gid;
  device_gid(dev, index, &gid);
  const uint8_t* g = gid.raw;
  snprintf(file, sizeof file, "ports/1/gids/%u", index);
  PUT_DEVICE(file, "%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", g[0], g[1], g[2], g[3],
             g[4], g[5], g[6], g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]);
  /* libibverbs reads the type of empty entries too, and gives the whole table up when it cannot */
  snprintf(file, sizeof file, "ports/1/gid_attrs/types/%u", index);
  PUT_DEVICE(file, "%s\n", device_gid_is_v2(index) ? "RoCE v2" : "IB/RoCE v1");
  snprintf(file, sizeof file, "ports/1/gid_attrs/ndevs/%u", index);
  if (!cfg.ib && gid.global.interface_id) PUT_DEVICE(file, "lo\n"); /* a netdev that every machine has */
}

static void put_device(int dev) {
  char file[64];
  snprintf(file, sizeof file, "class/infiniband_verbs/uverbs%d/ibdev", dev);
  put(file, "mlx5_%d\n", dev);
  snprintf(file, sizeof file, "class/infiniband_verbs/uverbs%d/dev", dev);
  put(file, "%d:%d\n", UVERBS_MAJOR, UVERBS_FIRST_MINOR + dev);
  snprintf(file, sizeof file, "class/infiniband_verbs/uverbs%d/abi_version", dev);
  put(file, "1\n");
  PUT_DEVICE("node_type", "1: CA\n");
  put_guid(dev, "node_guid");
  put_guid(dev, "sys_image_guid");
  PUT_DEVICE("fw_ver", "16.35.4030\n");
  PUT_DEVICE("board_id", "MODEL0000000001\n");
  PUT_DEVICE("hca_type", "MT%d\n", DEVICE_ID);
  PUT_DEVICE("hw_rev", "0\n");
  PUT_DEVICE("node_desc", "mlx5model\n");
  /* by this libibverbs chooses libmlx5 */
  PUT_DEVICE("device/modalias", "pci:v000015B3d%08Xsv000015B3sd00000001bc02sc00i00\n", DEVICE_ID);
  PUT_DEVICE("device/vendor", "0x15b3\n");
  PUT_DEVICE("device/device", "0x%04x\n", DEVICE_ID);
  PUT_DEVICE("device/numa_node", "-1\n");
  PUT_DEVICE("ports/1/state", "4: ACTIVE\n");
  PUT_DEVICE("ports/1/phys_state", "5: LinkUp\n");
  PUT_DEVICE("ports/1/link_layer", "%s\n", cfg.ib ? "InfiniBand" : "Ethernet");
  PUT_DEVICE("ports/1/rate", "100 Gb/sec (4X EDR)\n");
  PUT_DEVICE("ports/1/lid", "0x%x\n", cfg.ib ? 1 + dev : 0);
  PUT_DEVICE("ports/1/pkeys/0", "0xffff\n");
  for (unsigned i = 0; i < GID_TABLE_LEN; i++) put_gid(dev, i);
}

static int remove_entry(const char* path, const struct stat* st, int type, struct FTW* ftw) {
  (void)st, (void)type, (void)ftw;
  return remove(path);
}

static bool usable(const char* path) {
  struct stat st;
  return !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

void sysfs_create(void) {
  char final[PATH_SIZE / 2];
  snprintf(final, sizeof final, "%s/mlx5model-%u-v%d-%s-%d", cfg.sysfs_parent, (unsigned)geteuid(), LAYOUT,
           cfg.ib ? "ib" : "eth", cfg.ndev);
  if (!usable(final)) {
    snprintf(root, sizeof root, "%s/mlx5model-new-XXXXXX", cfg.sysfs_parent);
    if (!mkdtemp(root)) {
      MODEL_WARN("cannot make a directory in %s: %s\n", cfg.sysfs_parent, strerror(errno));
      return;
    }
    put("class/infiniband_verbs/abi_version", "6\n");
    mkdir(root, 0755);
    for (int dev = 0; dev < cfg.ndev; dev++) put_device(dev);
    /* rename() of a directory replaces only an empty one, so it fails if another process was first */
    if (rename(root, final)) nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (!usable(final)) MODEL_WARN("%s is not ours: set MLX5MODEL_DIR to another directory\n", final);
  }
  setenv("SYSFS_PATH", final, 1);
}
