#include "handles/page_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace rdma {

namespace {

// Hugepagesize of /proc/meminfo in bytes; a length that is no multiple of it makes munmap() fail.
size_t HugePageSize() {
  size_t kib = 0;
  if (FILE* file = fopen("/proc/meminfo", "re")) {
    char line[128];
    while (kib == 0 && fgets(line, sizeof line, file) != nullptr) {
      if (sscanf(line, "Hugepagesize: %zu kB", &kib) != 1) kib = 0;  // NOLINT(cert-err34-c): the kernel wrote it
    }
    (void)fclose(file);
  }
  return (kib != 0 ? kib : 2048) * 1024;
}

// A millisecond, or thereabouts.
constexpr size_t kLarge = size_t{16} << 20;

// The thread that unmaps. It needs no environment, since memory may outlive the one that it was made in, and goes on
// until the process ends, which takes what is left.
class Unmapper {
 public:
  // Null where there can be no thread.
  static Unmapper* Get() {
    static Unmapper* const unmapper = Start();
    return unmapper;
  }

  void Take(char* data, size_t length) {
    uv_mutex_lock(&mutex_);
    mappings_.emplace_back(data, length);
    uv_cond_signal(&filled_);
    uv_mutex_unlock(&mutex_);
  }

 private:
  static Unmapper* Start() {
    // The end of a worker may unload the addon, and with it what the thread is running.
    Dl_info self{};
    if (dladdr(reinterpret_cast<void*>(Run), &self) == 0) return nullptr;
    if (dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) return nullptr;
    auto unmapper = std::unique_ptr<Unmapper>(new Unmapper);
    if (uv_mutex_init(&unmapper->mutex_) != 0 || uv_cond_init(&unmapper->filled_) != 0) return nullptr;
    uv_thread_t thread{};
    return uv_thread_create(&thread, Run, unmapper.get()) == 0 ? unmapper.release() : nullptr;
  }

  static void Run(void* self) {
    auto* unmapper = static_cast<Unmapper*>(self);
    for (;;) {
      auto [data, length] = unmapper->Next();
      // In parts: whoever else maps memory waits for as long as one takes.
      for (; length > kLarge; data += kLarge, length -= kLarge) munmap(data, kLarge);
      munmap(data, length);
    }
  }

  std::pair<char*, size_t> Next() {
    uv_mutex_lock(&mutex_);
    while (mappings_.empty()) uv_cond_wait(&filled_, &mutex_);
    const auto mapping = mappings_.back();
    mappings_.pop_back();
    uv_mutex_unlock(&mutex_);
    return mapping;
  }

  uv_mutex_t mutex_{};
  uv_cond_t filled_{};
  std::vector<std::pair<char*, size_t>> mappings_;
};

}  // namespace

Outcome<std::shared_ptr<PageMemory>> PageMemory::Map(size_t length, bool huge_pages) {
  const size_t page = huge_pages ? HugePageSize() : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (length > SIZE_MAX - page) return VerbError{"mmap", ENOMEM};
  const size_t mapped = (length + page - 1) / page * page;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | (huge_pages ? MAP_HUGETLB : 0), -1, 0);
  if (data == MAP_FAILED) return VerbError{"mmap", errno};
  return std::shared_ptr<PageMemory>(new PageMemory(static_cast<char*>(data), mapped, huge_pages));
}

// Huge pages are few, and so quickly gone; whoever asks for them again needs those that were given back.
PageMemory::~PageMemory() {
  Unmapper* const unmapper = mapped_ >= kLarge && !huge_pages_ ? Unmapper::Get() : nullptr;
  if (unmapper != nullptr) {
    unmapper->Take(data_, mapped_);
  } else {
    munmap(data_, mapped_);
  }
}

}  // namespace rdma
