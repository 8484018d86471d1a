// Socket addresses, as JavaScript writes them: an address in text ("10.0.0.1", "fe80::1%eth0") and a port.
#pragma once

#include <napi.h>
#include <sys/socket.h>

namespace rdma {

// From two arguments, the address and the port; throws when the address cannot be read, or its scope does not exist.
sockaddr_storage AddressArg(const Napi::CallbackInfo& info, size_t index);
sockaddr_storage ParseAddress(Napi::Env env, const std::string& text, uint16_t port);
socklen_t AddressLength(const sockaddr_storage& address);

// {address, family, port}, or null for one that is not set or of another family than IP.
Napi::Value AddressObject(Napi::Env env, const sockaddr* address);

inline sockaddr* Generic(sockaddr_storage* address) { return reinterpret_cast<sockaddr*>(address); }

}  // namespace rdma
