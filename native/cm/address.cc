#include "cm/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

sockaddr_storage ParseAddress(Napi::Env env, const std::string& text, uint16_t port) {
  sockaddr_storage storage{};
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    memcpy(&storage, &v4, sizeof v4);
    return storage;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  const size_t percent = text.find('%');
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &v6.sin6_addr) != 1) {
    ThrowType(env, "'" + text + "' is not an IP address");
  }
  if (percent != std::string::npos) {
    const std::string scope = text.substr(percent + 1);
    v6.sin6_scope_id = if_nametoindex(scope.c_str());
    if (v6.sin6_scope_id == 0) Check(env, {"if_nametoindex", errno});
  }
  memcpy(&storage, &v6, sizeof v6);
  return storage;
}

sockaddr_storage AddressArg(const Napi::CallbackInfo& info, size_t index) {
  const std::string text = StringArg(info, index, "address");
  return ParseAddress(info.Env(), text, static_cast<uint16_t>(Uint32Arg(info, index + 1, "port")));
}

socklen_t AddressLength(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

Napi::Value AddressObject(Napi::Env env, const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return env.Null();
  Napi::Object object = Napi::Object::New(env);
  char text[INET6_ADDRSTRLEN];
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    memcpy(&v4, address, sizeof v4);
    object.Set("address", inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text));
    object.Set("family", "IPv4");
    SetNumber(object, "port", ntohs(v4.sin_port));
    return object;
  }
  sockaddr_in6 v6;
  memcpy(&v6, address, sizeof v6);
  std::string full = inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  char scope[IF_NAMESIZE];
  if (v6.sin6_scope_id != 0 && if_indextoname(v6.sin6_scope_id, scope) != nullptr) {
    full += std::string("%") + scope;
  }
  object.Set("address", full);
  object.Set("family", "IPv6");
  SetNumber(object, "port", ntohs(v6.sin6_port));
  return object;
}

}  // namespace rdma
