#include "handles/fd_socket_handle.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace rdma {

namespace {

// SCM_MAX_FD: as many as the kernel puts into one message.
constexpr size_t kMaxFds = 253;
// The longest message of this package.
constexpr size_t kMaxBytes = 65536;
// A stream is sent in pieces of this size, and somewhat more, and each is received by itself.
constexpr size_t kMaxStreamBytes = 32768;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Outcome<Address> AddressOf(const std::string& path) {
  Address address;
  // A path ends with NUL; a name of the abstract space has the length that the call says.
  const bool abstract = !path.empty() && path[0] == '\0';
  if (path.empty() || path.size() + (abstract ? 0 : 1) > sizeof address.name.sun_path) {
    return VerbError{"bind", ENAMETOOLONG};
  }
  address.name.sun_family = AF_UNIX;
  memcpy(address.name.sun_path, path.data(), path.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  return address;
}

using Bind = int (*)(int, const sockaddr*, socklen_t);

Outcome<int> Open(const char* verb, Bind bind, const std::string& path, int type) {
  auto address = AddressOf(path);
  if (address.error) return VerbError{verb, address.error.err};
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return VerbError{"socket", errno};
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address.value.name), address.value.length) == 0) return fd;
  const int err = errno;
  close(fd);
  return VerbError{verb, err};
}

bool IsStream(int fd) {
  int type = 0;
  socklen_t length = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type == SOCK_STREAM;
}

}  // namespace

Outcome<std::shared_ptr<FdSocketHandle>> FdSocketHandle::Connect(const std::string& path) {
  auto fd = Open("connect", connect, path, SOCK_SEQPACKET);
  // One that somebody else listens with.
  if (fd.error.err == EPROTOTYPE) fd = Open("connect", connect, path, SOCK_STREAM);
  if (fd.error) return fd.error;
  return Own(fd.value);
}

Outcome<std::shared_ptr<FdSocketHandle>> FdSocketHandle::Listen(const std::string& path) {
  auto fd = Open("bind", bind, path, SOCK_SEQPACKET);
  if (fd.error) return fd.error;
  auto socket = Own(fd.value);
  if (listen(socket->fd_, SOMAXCONN) != 0) return VerbError{"listen", errno};
  return socket;
}

Outcome<std::shared_ptr<FdSocketHandle>> FdSocketHandle::Duplicate(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return VerbError{"getsockname", errno};
  if (name.ss_family != AF_UNIX) return VerbError{"getsockname", EAFNOSUPPORT};
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return VerbError{"fcntl", errno};
  return Own(own);
}

VerbError FdSocketHandle::Destroy() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  return {};
}

Outcome<std::shared_ptr<FdSocketHandle>> FdSocketHandle::Accept() const {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return VerbError{"accept", errno};
  return Own(fd);
}

VerbError FdSocketHandle::Send(const std::vector<int>& fds, const uint8_t* bytes, size_t length) const {
  if (fds.size() > kMaxFds) return {"sendmsg", EINVAL};
  if (length > kMaxStreamBytes && IsStream(fd_)) return {"sendmsg", EMSGSIZE};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): sendmsg() only reads
  iovec part{const_cast<uint8_t*>(bytes), length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return {"sendmsg", errno};
  // A stream takes a part where its buffer is nearly full. The descriptors went with the first byte.
  if (static_cast<size_t>(sent) != length) return {"sendmsg", EMSGSIZE};
  return {};
}

Outcome<FdSocketHandle::Message> FdSocketHandle::Receive() const {
  Message received;
  received.bytes.resize(kMaxBytes);
  iovec part{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t length = 0;
  do {
    length = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (length < 0 && errno == EINTR);
  if (length < 0) return VerbError{"recvmsg", errno};
  received.bytes.resize(static_cast<size_t>(length));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      received.fds.push_back(DmabufHandle::Own(fd));
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) return VerbError{"recvmsg", EMSGSIZE};
  // There is room for all that a message can have: this process may have no more descriptors.
  if ((message.msg_flags & MSG_CTRUNC) != 0) return VerbError{"recvmsg", EMFILE};
  return received;
}

}  // namespace rdma
