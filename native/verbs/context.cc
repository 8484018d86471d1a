// ibv_query_port(3), ibv_query_gid(3), ibv_query_gid_table(3), ibv_query_pkey(3), ibv_alloc_pd(3).
#include <infiniband/verbs.h>
#include <net/if.h>

#include <vector>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Value QueryPort(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  ibv_port_attr attr{};
  const uint32_t port = Uint32Arg(info, 1, "portNum");
  Check(env, FromRet("ibv_query_port", ibv_query_port(context->get(), static_cast<uint8_t>(port), &attr)));
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "state", attr.state);
  SetNumber(object, "maxMtu", attr.max_mtu);
  SetNumber(object, "activeMtu", attr.active_mtu);
  SetNumber(object, "gidTblLen", attr.gid_tbl_len);
  SetNumber(object, "portCapFlags", attr.port_cap_flags);
  SetNumber(object, "maxMsgSz", attr.max_msg_sz);
  SetNumber(object, "badPkeyCntr", attr.bad_pkey_cntr);
  SetNumber(object, "qkeyViolCntr", attr.qkey_viol_cntr);
  SetNumber(object, "pkeyTblLen", attr.pkey_tbl_len);
  SetNumber(object, "lid", attr.lid);
  SetNumber(object, "smLid", attr.sm_lid);
  SetNumber(object, "lmc", attr.lmc);
  SetNumber(object, "maxVlNum", attr.max_vl_num);
  SetNumber(object, "smSl", attr.sm_sl);
  SetNumber(object, "subnetTimeout", attr.subnet_timeout);
  SetNumber(object, "initTypeReply", attr.init_type_reply);
  SetNumber(object, "activeWidth", attr.active_width);
  SetNumber(object, "activeSpeed", attr.active_speed);
  SetNumber(object, "physState", attr.phys_state);
  SetNumber(object, "linkLayer", attr.link_layer);
  SetNumber(object, "flags", attr.flags);
  SetNumber(object, "portCapFlags2", attr.port_cap_flags2);
  return object;
}

Napi::Value QueryGid(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  const uint32_t port = Uint32Arg(info, 1, "portNum");
  const uint32_t index = Uint32Arg(info, 2, "gidIndex");
  ibv_gid gid{};
  errno = 0;
  Check(env, FromErrno("ibv_query_gid",
                       ibv_query_gid(context->get(), static_cast<uint8_t>(port), static_cast<int>(index), &gid)));
  return Napi::Buffer<uint8_t>::Copy(env, gid.raw, sizeof gid.raw);
}

Napi::Object GidEntry(Napi::Env env, const ibv_gid_entry& entry) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("gid", Napi::Buffer<uint8_t>::Copy(env, entry.gid.raw, sizeof entry.gid.raw));
  SetNumber(object, "gidIndex", entry.gid_index);
  SetNumber(object, "portNum", entry.port_num);
  SetNumber(object, "gidType", entry.gid_type);
  char name[IF_NAMESIZE];
  if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name) != nullptr) {
    object.Set("netdev", static_cast<const char*>(name));
  } else {
    object.Set("netdev", env.Null());
  }
  return object;
}

Napi::Value QueryGidEx(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  ibv_gid_entry entry{};
  Check(info.Env(), FromRet("ibv_query_gid_ex", ibv_query_gid_ex(context->get(), Uint32Arg(info, 1, "portNum"),
                                                                 Uint32Arg(info, 2, "gidIndex"), &entry, 0)));
  return GidEntry(info.Env(), entry);
}

Napi::Value QueryGidTable(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  std::vector<ibv_gid_entry> entries(Uint32Arg(info, 1, "maxEntries"));
  const ssize_t count = ibv_query_gid_table(context->get(), entries.data(), entries.size(), 0);
  if (count < 0) Check(env, {"ibv_query_gid_table", static_cast<int>(-count)});
  Napi::Array table = Napi::Array::New(env, static_cast<size_t>(count));
  for (ssize_t i = 0; i < count; i++) {
    table.Set(static_cast<uint32_t>(i), GidEntry(env, entries[static_cast<size_t>(i)]));
  }
  return table;
}

Napi::Value QueryPkey(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  const uint32_t port = Uint32Arg(info, 1, "portNum");
  const uint32_t index = Uint32Arg(info, 2, "index");
  __be16 pkey = 0;
  errno = 0;
  Check(env, FromErrno("ibv_query_pkey",
                       ibv_query_pkey(context->get(), static_cast<uint8_t>(port), static_cast<int>(index), &pkey)));
  return Napi::Number::New(env, be16toh(pkey));
}

}  // namespace

void ExportContext(Napi::Object exports) {
  Export(exports, "closeDevice", CloseHandle<ContextHandle>);
  Export(exports, "queryPort", QueryPort);
  Export(exports, "queryGid", QueryGid);
  Export(exports, "queryGidEx", QueryGidEx);
  Export(exports, "queryGidTable", QueryGidTable);
  Export(exports, "queryPkey", QueryPkey);
}

}  // namespace rdma
