#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "handles/dmabuf_handle.h"

namespace rdma {

// A Unix socket that carries descriptors beside bytes (SCM_RIGHTS). Never blocks: what cannot be done now is EAGAIN.
class FdSocketHandle final : public Owner {
 public:
  // A name that begins with NUL is in the abstract space, which no file system knows of.
  static Outcome<std::shared_ptr<FdSocketHandle>> Connect(const std::string& path);
  static Outcome<std::shared_ptr<FdSocketHandle>> Listen(const std::string& path);
  // Of a duplicate of a socket's descriptor: one that was inherited, say.
  static Outcome<std::shared_ptr<FdSocketHandle>> Duplicate(int fd);
  ~FdSocketHandle() override { Destroy(); }
  VerbError Destroy() override;

  Outcome<std::shared_ptr<FdSocketHandle>> Accept() const;
  // All of it or none: the kernel takes a message that is not larger than its buffer as a whole.
  VerbError Send(const std::vector<int>& fds, const uint8_t* bytes, size_t length) const;

  // No bytes: the peer has closed its end.
  struct Message {
    std::vector<std::shared_ptr<DmabufHandle>> fds;
    std::vector<uint8_t> bytes;
  };
  Outcome<Message> Receive() const;

  int fd() const { return fd_; }

 private:
  explicit FdSocketHandle(int fd) : fd_(fd) {}
  static std::shared_ptr<FdSocketHandle> Own(int fd) { return std::shared_ptr<FdSocketHandle>(new FdSocketHandle(fd)); }
  int fd_;
};

}  // namespace rdma
