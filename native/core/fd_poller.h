// Watches one file descriptor on the environment's own loop. The only file that knows libuv.
#pragma once

#include <napi.h>
#include <uv.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <vector>

namespace rdma {

// Whether a read from a descriptor found nothing, rather than failed. libibverbs leaves errno 0 at the end of a file.
inline bool IsTryAgain(int err) { return err == EAGAIN || err == EWOULDBLOCK || err == EINTR; }

class FdPoller {
 public:
  // `on_readable` runs on the loop, outside of any handle scope, for as long as the descriptor is readable; also when
  // it has failed, which only reading it tells.
  static FdPoller* Create(Napi::Env env, int fd, std::function<void()> on_readable);

  // Watches the descriptor, from now on: to begin and end that for each wait would cost three system calls. What
  // arrives between two waits is read and told like all else. This does not keep the process alive.
  void Watch();
  // Watches too, and keeps the process alive from Start() to Stop(): while somebody waits.
  void Start();
  void Stop();
  // Reads no more, until Watch() or Start(): what arrives stays in the kernel, which counts it.
  void Pause();
  // The descriptor has failed, and would be readable for ever: it is not watched any more.
  void GiveUp();

  // Stops watching, and deletes this object once libuv has let go of it. The descriptor may be closed at once.
  void Close();

 private:
  explicit FdPoller(std::function<void()> on_readable) : on_readable_(std::move(on_readable)) {}
  ~FdPoller() = default;

  uv_poll_t poll_{};
  std::function<void()> on_readable_;
  // Holds the environment's end back until the handle is closed.
  napi_async_cleanup_hook_handle cleanup_ = nullptr;
  bool given_up_ = false;
  bool closing_ = false;
};

// Numbers of one call: they are its arguments, which are cheaper than an array and lie on the stack. Who has more
// leaves the rest where it is, so that the descriptor stays readable.
constexpr size_t kMostNumbers = 1U << 13;

// Calls JavaScript from libuv with the numbers; nothing is thrown. In a thread that is being terminated every
// call into JavaScript fails, the making of an exception too, and nobody listens any more.
void CallFromLoop(napi_env env, napi_ref callback, const std::vector<uint32_t>& numbers);

}  // namespace rdma
