// ibv_query_device(3), ibv_query_device_ex(3), ibv_query_rt_values_ex(3).
#include <infiniband/verbs.h>

#include <cstring>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Object DeviceAttr(Napi::Env env, const ibv_device_attr& attr) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("fwVer", Napi::String::New(env, attr.fw_ver, strnlen(attr.fw_ver, sizeof attr.fw_ver)));
  SetBigInt(object, "nodeGuid", be64toh(attr.node_guid));
  SetBigInt(object, "sysImageGuid", be64toh(attr.sys_image_guid));
  SetBigInt(object, "maxMrSize", attr.max_mr_size);
  SetBigInt(object, "pageSizeCap", attr.page_size_cap);
  SetNumber(object, "vendorId", attr.vendor_id);
  SetNumber(object, "vendorPartId", attr.vendor_part_id);
  SetNumber(object, "hwVer", attr.hw_ver);
  SetNumber(object, "maxQp", attr.max_qp);
  SetNumber(object, "maxQpWr", attr.max_qp_wr);
  SetNumber(object, "deviceCapFlags", attr.device_cap_flags);
  SetNumber(object, "maxSge", attr.max_sge);
  SetNumber(object, "maxSgeRd", attr.max_sge_rd);
  SetNumber(object, "maxCq", attr.max_cq);
  SetNumber(object, "maxCqe", attr.max_cqe);
  SetNumber(object, "maxMr", attr.max_mr);
  SetNumber(object, "maxPd", attr.max_pd);
  SetNumber(object, "maxQpRdAtom", attr.max_qp_rd_atom);
  SetNumber(object, "maxEeRdAtom", attr.max_ee_rd_atom);
  SetNumber(object, "maxResRdAtom", attr.max_res_rd_atom);
  SetNumber(object, "maxQpInitRdAtom", attr.max_qp_init_rd_atom);
  SetNumber(object, "maxEeInitRdAtom", attr.max_ee_init_rd_atom);
  SetNumber(object, "atomicCap", attr.atomic_cap);
  SetNumber(object, "maxEe", attr.max_ee);
  SetNumber(object, "maxRdd", attr.max_rdd);
  SetNumber(object, "maxMw", attr.max_mw);
  SetNumber(object, "maxRawIpv6Qp", attr.max_raw_ipv6_qp);
  SetNumber(object, "maxRawEthyQp", attr.max_raw_ethy_qp);
  SetNumber(object, "maxMcastGrp", attr.max_mcast_grp);
  SetNumber(object, "maxMcastQpAttach", attr.max_mcast_qp_attach);
  SetNumber(object, "maxTotalMcastQpAttach", attr.max_total_mcast_qp_attach);
  SetNumber(object, "maxAh", attr.max_ah);
  SetNumber(object, "maxFmr", attr.max_fmr);
  SetNumber(object, "maxMapPerFmr", attr.max_map_per_fmr);
  SetNumber(object, "maxSrq", attr.max_srq);
  SetNumber(object, "maxSrqWr", attr.max_srq_wr);
  SetNumber(object, "maxSrqSge", attr.max_srq_sge);
  SetNumber(object, "maxPkeys", attr.max_pkeys);
  SetNumber(object, "localCaAckDelay", attr.local_ca_ack_delay);
  SetNumber(object, "physPortCnt", attr.phys_port_cnt);
  return object;
}

Napi::Value QueryDevice(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  ibv_device_attr attr{};
  Check(info.Env(), FromRet("ibv_query_device", ibv_query_device(context->get(), &attr)));
  return DeviceAttr(info.Env(), attr);
}

Napi::Object Group(Napi::Object parent, const char* name) {
  Napi::Object object = Napi::Object::New(parent.Env());
  parent.Set(name, object);
  return object;
}

// What the device does not tell is 0.
Napi::Value QueryDeviceEx(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  ibv_device_attr_ex attr{};
  Check(info.Env(), FromRet("ibv_query_device_ex", ibv_query_device_ex(context->get(), nullptr, &attr)));
  Napi::Object object = Napi::Object::New(info.Env());
  object.Set("origAttr", DeviceAttr(info.Env(), attr.orig_attr));
  Napi::Object odp = Group(object, "odpCaps");
  SetBigInt(odp, "generalCaps", attr.odp_caps.general_caps);
  Napi::Object transports = Group(odp, "perTransportCaps");
  SetNumber(transports, "rcOdpCaps", attr.odp_caps.per_transport_caps.rc_odp_caps);
  SetNumber(transports, "ucOdpCaps", attr.odp_caps.per_transport_caps.uc_odp_caps);
  SetNumber(transports, "udOdpCaps", attr.odp_caps.per_transport_caps.ud_odp_caps);
  SetBigInt(object, "completionTimestampMask", attr.completion_timestamp_mask);
  SetBigInt(object, "hcaCoreClock", attr.hca_core_clock);
  SetBigInt(object, "deviceCapFlagsEx", attr.device_cap_flags_ex);
  Napi::Object tso = Group(object, "tsoCaps");
  SetNumber(tso, "maxTso", attr.tso_caps.max_tso);
  SetNumber(tso, "supportedQpts", attr.tso_caps.supported_qpts);
  Napi::Object rss = Group(object, "rssCaps");
  SetNumber(rss, "supportedQpts", attr.rss_caps.supported_qpts);
  SetNumber(rss, "maxRwqIndirectionTables", attr.rss_caps.max_rwq_indirection_tables);
  SetNumber(rss, "maxRwqIndirectionTableSize", attr.rss_caps.max_rwq_indirection_table_size);
  SetBigInt(rss, "rxHashFieldsMask", attr.rss_caps.rx_hash_fields_mask);
  SetNumber(rss, "rxHashFunction", attr.rss_caps.rx_hash_function);
  SetNumber(object, "maxWqTypeRq", attr.max_wq_type_rq);
  Napi::Object pacing = Group(object, "packetPacingCaps");
  SetNumber(pacing, "qpRateLimitMin", attr.packet_pacing_caps.qp_rate_limit_min);
  SetNumber(pacing, "qpRateLimitMax", attr.packet_pacing_caps.qp_rate_limit_max);
  SetNumber(pacing, "supportedQpts", attr.packet_pacing_caps.supported_qpts);
  SetNumber(object, "rawPacketCaps", attr.raw_packet_caps);
  Napi::Object matching = Group(object, "tmCaps");
  SetNumber(matching, "maxRndvHdrSize", attr.tm_caps.max_rndv_hdr_size);
  SetNumber(matching, "maxNumTags", attr.tm_caps.max_num_tags);
  SetNumber(matching, "flags", attr.tm_caps.flags);
  SetNumber(matching, "maxOps", attr.tm_caps.max_ops);
  SetNumber(matching, "maxSge", attr.tm_caps.max_sge);
  Napi::Object moderation = Group(object, "cqModCaps");
  SetNumber(moderation, "maxCqCount", attr.cq_mod_caps.max_cq_count);
  SetNumber(moderation, "maxCqPeriod", attr.cq_mod_caps.max_cq_period);
  SetBigInt(object, "maxDmSize", attr.max_dm_size);
  Napi::Object atomics = Group(object, "pciAtomicCaps");
  SetNumber(atomics, "fetchAdd", attr.pci_atomic_caps.fetch_add);
  SetNumber(atomics, "swap", attr.pci_atomic_caps.swap);
  SetNumber(atomics, "compareSwap", attr.pci_atomic_caps.compare_swap);
  SetNumber(object, "xrcOdpCaps", attr.xrc_odp_caps);
  SetNumber(object, "physPortCntEx", attr.phys_port_cnt_ex);
  return object;
}

// The clock in its own unit: mlx5 puts cycles into the nanoseconds of the struct, and more of them than a second has.
Napi::Value QueryRtValues(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  Check(info.Env(), FromRet("ibv_query_rt_values_ex", ibv_query_rt_values_ex(context->get(), &values)));
  constexpr uint64_t kNsPerSecond = 1000000000;
  Napi::Object object = Napi::Object::New(info.Env());
  if ((values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
    SetBigInt(object, "rawClock",
              static_cast<uint64_t>(values.raw_clock.tv_sec) * kNsPerSecond +
                  static_cast<uint64_t>(values.raw_clock.tv_nsec));
  }
  return object;
}

}  // namespace

void ExportDeviceAttributes(Napi::Object exports) {
  Export(exports, "queryDevice", QueryDevice);
  Export(exports, "queryDeviceEx", QueryDeviceEx);
  Export(exports, "queryRtValues", QueryRtValues);
}

}  // namespace rdma
