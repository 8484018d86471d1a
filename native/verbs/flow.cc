// ibv_create_flow(3), ibv_create_counters(3), ibv_attach_counters_point_flow(3), ibv_read_counters(3).
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// Bytes of a spec; 0 for a type that TypeScript does not make. libibverbs and the providers go by the type, and do not
// compare it with the size.
size_t SpecSize(uint32_t type) {
  switch (type & ~uint32_t{IBV_FLOW_SPEC_INNER}) {
    case IBV_FLOW_SPEC_ETH:
      return sizeof(ibv_flow_spec_eth);
    case IBV_FLOW_SPEC_IPV4:
      return sizeof(ibv_flow_spec_ipv4);
    case IBV_FLOW_SPEC_IPV4_EXT:
      return sizeof(ibv_flow_spec_ipv4_ext);
    case IBV_FLOW_SPEC_IPV6:
      return sizeof(ibv_flow_spec_ipv6);
    case IBV_FLOW_SPEC_ESP:
      return sizeof(ibv_flow_spec_esp);
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      return sizeof(ibv_flow_spec_tcp_udp);
    case IBV_FLOW_SPEC_VXLAN_TUNNEL:
      return sizeof(ibv_flow_spec_tunnel);
    case IBV_FLOW_SPEC_GRE:
      return sizeof(ibv_flow_spec_gre);
    case IBV_FLOW_SPEC_MPLS:
      return sizeof(ibv_flow_spec_mpls);
    case IBV_FLOW_SPEC_ACTION_TAG:
      return sizeof(ibv_flow_spec_action_tag);
    case IBV_FLOW_SPEC_ACTION_DROP:
      return sizeof(ibv_flow_spec_action_drop);
    case IBV_FLOW_SPEC_ACTION_COUNT:
      return sizeof(ibv_flow_spec_counter_action);
    default:
      return 0;
  }
}

// (qp, bytes, counters): a struct ibv_flow_attr with its specs behind it, but for the pointers to counters, which come
// in the order of their specs.
Napi::Value CreateFlow(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto qp = HandleArg<QpHandle>(info, 0);
  if (!info[1].IsTypedArray() || info[1].As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) {
    ThrowType(env, "bytes is not a Uint8Array");
  }
  const auto given = info[1].As<Napi::Uint8Array>();
  const auto counters = HandleListArg<CountersHandle>(info, 2, "counters");
  std::vector<uint8_t> bytes(given.Data(), given.Data() + given.ByteLength());
  ibv_flow_attr attr{};
  if (bytes.size() < sizeof attr) ThrowType(env, "bytes is no struct ibv_flow_attr");
  memcpy(&attr, bytes.data(), sizeof attr);
  auto next = counters.begin();
  size_t at = sizeof attr;
  for (int i = 0; i < attr.num_of_specs; i++) {
    decltype(ibv_flow_spec::hdr) header{};
    if (bytes.size() - at < sizeof header) ThrowType(env, "bytes ends within a spec");
    memcpy(&header, &bytes[at], sizeof header);
    if (header.size == 0 || header.size != SpecSize(header.type) || bytes.size() - at < header.size) {
      ThrowType(env, "bytes has a spec of a wrong size");
    }
    if (header.type == IBV_FLOW_SPEC_ACTION_COUNT) {
      if (next == counters.end()) ThrowType(env, "counters has too few");
      const void* pointer = (*next++)->get();
      memcpy(&bytes[at + offsetof(ibv_flow_spec_counter_action, counters)], &pointer, sizeof pointer);
    }
    at += header.size;
  }
  if (at != bytes.size() || attr.size != at || next != counters.end()) ThrowType(env, "bytes is not all specs");
  return WrapHandle(
      env, Unwrap(env, FlowHandle::Create(std::move(qp), reinterpret_cast<ibv_flow_attr*>(bytes.data()), counters)));
}

Napi::Value CreateCounters(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), CountersHandle::Create(HandleArg<ContextHandle>(info, 0))));
}

// (counters, counterDesc, index, flow | null)
Napi::Value AttachCounters(const Napi::CallbackInfo& info) {
  auto counters = HandleArg<CountersHandle>(info, 0);
  ibv_counter_attach_attr attr{};
  attr.counter_desc = static_cast<ibv_counter_description>(Uint32Arg(info, 1, "counterDesc"));
  attr.index = Uint32Arg(info, 2, "index");
  std::shared_ptr<FlowHandle> flow;
  if (!info[3].IsNull()) flow = HandleArg<FlowHandle>(info, 3);
  errno = 0;
  Check(info.Env(), FromRet("ibv_attach_counters_point_flow",
                            ibv_attach_counters_point_flow(counters->get(), &attr, flow ? flow->get() : nullptr)));
  return info.Env().Undefined();
}

// (counters, count, flags): bigints.
Napi::Value ReadCounters(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto counters = HandleArg<CountersHandle>(info, 0);
  std::vector<uint64_t> values(CountArg(info, 1, "count", 1U << 16));
  const uint32_t flags = Uint32Arg(info, 2, "flags");
  errno = 0;
  Check(env, FromRet("ibv_read_counters",
                     ibv_read_counters(counters->get(), values.data(), static_cast<uint32_t>(values.size()), flags)));
  Napi::Array array = Napi::Array::New(env, values.size());
  for (size_t i = 0; i < values.size(); i++) {
    array.Set(static_cast<uint32_t>(i), Napi::BigInt::New(env, values[i]));
  }
  return array;
}

}  // namespace

void ExportFlow(Napi::Object exports) {
  Export(exports, "createFlow", CreateFlow);
  Export(exports, "destroyFlow", CloseHandle<FlowHandle>);
  Export(exports, "createCounters", CreateCounters);
  Export(exports, "attachCounters", AttachCounters);
  Export(exports, "readCounters", ReadCounters);
  Export(exports, "destroyCounters", CloseHandle<CountersHandle>);
}

}  // namespace rdma
