#include "handles/dmabuf_handle.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rdma {

namespace {

// As in linux/udmabuf.h and linux/dma-heap.h, which the headers of older distributions lack.
struct UdmabufRequest {
  uint32_t memfd;
  uint32_t flags;
  uint64_t offset;
  uint64_t size;
};
constexpr unsigned long kUdmabufCreate = _IOW('u', 0x42, UdmabufRequest);
constexpr uint32_t kUdmabufCloexec = 1;
struct HeapAllocation {
  uint64_t len;
  uint32_t fd;
  uint32_t fd_flags;
  uint64_t heap_flags;
};
constexpr unsigned long kHeapAlloc = _IOWR('H', 0x0, HeapAllocation);

// The same numbers on every architecture that was added to Linux with or after them.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

// A descriptor that is closed with its scope. errno is that of the call that failed, whatever close() does.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() {
    const int saved = errno;
    if (fd_ >= 0) close(fd_);
    errno = saved;
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

Outcome<std::shared_ptr<DmabufMapping>> DmabufMapping::Map(int fd, size_t length, bool writable) {
  void* data = mmap(nullptr, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return VerbError{"mmap", errno};
  return std::shared_ptr<DmabufMapping>(new DmabufMapping(data, length));
}

DmabufMapping::~DmabufMapping() { munmap(data_, length_); }

Outcome<std::shared_ptr<DmabufHandle>> DmabufHandle::CreateUdmabuf(int memfd, uint64_t offset, uint64_t length) {
  const ScopedFd made(memfd >= 0 ? -1 : memfd_create("node-rdma", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = memfd >= 0 ? memfd : made.get();
  if (file < 0) return VerbError{"memfd_create", errno};
  if (made.get() >= 0 && ftruncate(file, static_cast<off_t>(offset + length)) != 0) {
    return VerbError{"ftruncate", errno};
  }
  // The kernel wants the promise that the memory does not go away under the device.
  if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return VerbError{"fcntl", errno};
  const ScopedFd device(open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
  if (device.get() < 0) return VerbError{"open", errno};
  const UdmabufRequest request{static_cast<uint32_t>(file), kUdmabufCloexec, offset, length};
  const int fd = ioctl(device.get(), kUdmabufCreate, &request);
  if (fd < 0) return VerbError{"UDMABUF_CREATE", errno};
  return Own(fd);
}

Outcome<std::shared_ptr<DmabufHandle>> DmabufHandle::AllocHeap(const std::string& path, uint64_t length) {
  const ScopedFd heap(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (heap.get() < 0) return VerbError{"open", errno};
  HeapAllocation request{};
  request.len = length;
  request.fd_flags = O_RDWR | O_CLOEXEC;
  if (ioctl(heap.get(), kHeapAlloc, &request) != 0) return VerbError{"DMA_HEAP_IOCTL_ALLOC", errno};
  return Own(static_cast<int>(request.fd));
}

Outcome<std::shared_ptr<DmabufHandle>> DmabufHandle::Duplicate(int fd) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return VerbError{"fcntl", errno};
  return Own(own);
}

Outcome<std::shared_ptr<DmabufHandle>> DmabufHandle::OfProcess(pid_t pid, int fd) {
  const ScopedFd process(static_cast<int>(syscall(kPidfdOpen, pid, 0)));
  if (process.get() < 0) return VerbError{"pidfd_open", errno};
  // The kernel sets FD_CLOEXEC on what it gives.
  const int own = static_cast<int>(syscall(kPidfdGetfd, process.get(), fd, 0));
  if (own < 0) return VerbError{"pidfd_getfd", errno};
  return Own(own);
}

VerbError DmabufHandle::Destroy() {
  // Linux has closed it even where it says EINTR or EIO.
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  return {};
}

VerbError DmabufHandle::Sync(bool read, bool write, bool end) const {
  dma_buf_sync request{};
  request.flags = (read ? DMA_BUF_SYNC_READ : 0U) | (write ? DMA_BUF_SYNC_WRITE : 0U) |
                  (end ? DMA_BUF_SYNC_END : DMA_BUF_SYNC_START);
  int rc = 0;
  do {
    rc = ioctl(fd_, DMA_BUF_IOCTL_SYNC, &request);
  } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
  return FromErrno("DMA_BUF_IOCTL_SYNC", rc);
}

}  // namespace rdma
