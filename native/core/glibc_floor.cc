// Keeps the addon loadable on glibc 2.28 although it is compiled on a younger one; scripts/check-floor.mjs names each
// symbol that is too young. glibc moved its threads and its dynamic loader into libc.so in 2.34 under new versions; the
// old versions are still there, and are the same functions. The definitions here are hidden: they serve the addon and
// the C++ library linked into it, and nobody else.
#include <features.h>

// The sanitizers watch some of these functions, and their build goes nowhere else.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)

#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

// The first version of each architecture's glibc.
#if defined(__x86_64__)
#define RDMA_GLIBC_FIRST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define RDMA_GLIBC_FIRST "GLIBC_2.17"
#endif

#define RDMA_OLD_VERSION(alias, name) __asm__(".symver " #alias "," #name "@" RDMA_GLIBC_FIRST)
#define RDMA_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

void* OldDlopen(const char* path, int flags);
void* OldDlsym(void* handle, const char* name);
char* OldDlerror();
int OldDladdr(const void* address, Dl_info* info);
int OldPthreadOnce(pthread_once_t* once, void (*function)());
RDMA_OLD_VERSION(OldDlopen, dlopen);
RDMA_OLD_VERSION(OldDlsym, dlsym);
RDMA_OLD_VERSION(OldDlerror, dlerror);
RDMA_OLD_VERSION(OldDladdr, dladdr);
RDMA_OLD_VERSION(OldPthreadOnce, pthread_once);

RDMA_HIDDEN void* dlopen(const char* path, int flags) noexcept { return OldDlopen(path, flags); }
RDMA_HIDDEN void* dlsym(void* __restrict handle, const char* __restrict name) noexcept {
  return OldDlsym(handle, name);
}
RDMA_HIDDEN char* dlerror() noexcept { return OldDlerror(); }
RDMA_HIDDEN int dladdr(const void* address, Dl_info* info) noexcept { return OldDladdr(address, info); }
RDMA_HIDDEN int pthread_once(pthread_once_t* once, void (*function)()) { return OldPthreadOnce(once, function); }

// New in 2.32: false means that shared_ptr counts atomically, as it must under Node.
RDMA_HIDDEN char __libc_single_threaded = 0;  // NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

// New in 2.36, and called by std::random_device, which nothing here uses but which comes along with the C++ library.
RDMA_HIDDEN std::uint32_t arc4random() {
  std::uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}

}  // extern "C"

#endif
