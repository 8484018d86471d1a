// mlx5dv_is_supported(3), mlx5dv_query_device(3), mlx5dv_get_clock_info(3).
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/args.h"
#include "mlx5/mlx5.h"
#include "rdma_core/library.h"
#include "verbs/verbs.h"

namespace rdma {

void RequireMlx5(Napi::Env env, ibv_context* context, const char* function) {
  if (!mlx5dv_is_supported(context->device)) Check(env, {function, EOPNOTSUPP});
}

namespace {

Napi::Value LoadState(const Napi::CallbackInfo& info) {
  Napi::Object state = Napi::Object::New(info.Env());
  state.Set("available", Libmlx5().Open());
  state.Set("path", Libmlx5().path());
  state.Set("error", Libmlx5().error());
  return state;
}

// (name): whether the device is there and of libmlx5; throws ENODEV when it is not there.
Napi::Value IsSupported(const Napi::CallbackInfo& info) {
  const std::string name = StringArg(info, 0, "name");
  int count = 0;
  errno = 0;
  ibv_device** list = Unwrap(info.Env(), FromPtr("ibv_get_device_list", ibv_get_device_list(&count)));
  bool found = false;
  bool supported = false;
  for (int i = 0; i < count && !found; i++) {
    found = name == ibv_get_device_name(list[i]);
    supported = found && mlx5dv_is_supported(list[i]);
  }
  ibv_free_device_list(list);
  TakeMissingFunction();
  if (!found) Check(info.Env(), {"mlx5dv_is_supported", ENODEV});
  return Napi::Boolean::New(info.Env(), supported);
}

// The members of struct mlx5dv_context that came after crypto_caps, its last one in our oldest header. A library fills
// in what is asked for and it knows, and says so.
struct YoungerContext {
  uint64_t max_dc_rd_atom;  // rdma-core 47
  uint64_t max_dc_init_rd_atom;
  uint32_t reg_c0_value;  // 50
  uint32_t reg_c0_mask;
  uint32_t max_rc;  // 55: out-of-order receives
  uint32_t max_xrc;
  uint32_t max_dct;
  uint32_t max_ud;
  uint32_t max_uc;
};
enum : uint64_t { kMaxDcRdAtom = 1U << 14, kRegC0 = 1U << 15, kOooRecvWrs = 1U << 16 };

constexpr size_t kYounger = (offsetof(mlx5dv_context, crypto_caps) + sizeof(mlx5dv_crypto_caps) + 7) / 8 * 8;
union Context {
  mlx5dv_context known;
  unsigned char room[std::max(sizeof(mlx5dv_context), kYounger + sizeof(YoungerContext))];
};

constexpr uint64_t kAllFields =
    MLX5DV_CONTEXT_MASK_CQE_COMPRESION | MLX5DV_CONTEXT_MASK_SWP | MLX5DV_CONTEXT_MASK_STRIDING_RQ |
    MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS | MLX5DV_CONTEXT_MASK_DYN_BFREGS | MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE |
    MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS | MLX5DV_CONTEXT_MASK_DC_ODP_CAPS | MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK |
    MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS | MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD | MLX5DV_CONTEXT_MASK_DCI_STREAMS |
    MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH | MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD | kMaxDcRdAtom | kRegC0 | kOooRecvWrs;

// A member of the result that is a struct of numbers.
class Group {
 public:
  Group(Napi::Object parent, const char* name) : object_(Napi::Object::New(parent.Env())) { parent.Set(name, object_); }
  Group& Add(const char* name, double value) {
    SetNumber(object_, name, value);
    return *this;
  }

 private:
  Napi::Object object_;
};

void AddYounger(Napi::Object object, uint64_t mask, const Context& attrs) {
  YoungerContext younger{};
  memcpy(&younger, attrs.room + kYounger, sizeof younger);
  if ((mask & kMaxDcRdAtom) != 0) {
    SetBigInt(object, "maxDcRdAtom", younger.max_dc_rd_atom);
    SetBigInt(object, "maxDcInitRdAtom", younger.max_dc_init_rd_atom);
  }
  if ((mask & kRegC0) != 0) Group(object, "regC0").Add("value", younger.reg_c0_value).Add("mask", younger.reg_c0_mask);
  if ((mask & kOooRecvWrs) != 0) {
    Group(object, "oooRecvWrsCaps")
        .Add("maxRc", younger.max_rc)
        .Add("maxXrc", younger.max_xrc)
        .Add("maxDct", younger.max_dct)
        .Add("maxUd", younger.max_ud)
        .Add("maxUc", younger.max_uc);
  }
}

// What the library does not know of the device is not there.
Napi::Value QueryDevice(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  RequireMlx5(env, context->get(), "mlx5dv_query_device");
  Context attrs{};
  attrs.known.comp_mask = kAllFields;
  errno = 0;
  Check(env, FromRet("mlx5dv_query_device", mlx5dv_query_device(context->get(), &attrs.known)));
  const mlx5dv_context& known = attrs.known;
  const uint64_t mask = known.comp_mask;
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "version", known.version);
  SetNumber(object, "flags", static_cast<double>(known.flags));
  SetNumber(object, "compMask", static_cast<double>(mask));
  if ((mask & MLX5DV_CONTEXT_MASK_CQE_COMPRESION) != 0) {
    const auto& caps = known.cqe_comp_caps;
    Group(object, "cqeCompCaps").Add("maxNum", caps.max_num).Add("supportedFormat", caps.supported_format);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_SWP) != 0) {
    const auto& caps = known.sw_parsing_caps;
    Group(object, "swParsingCaps")
        .Add("swParsingOffloads", caps.sw_parsing_offloads)
        .Add("supportedQpts", caps.supported_qpts);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_STRIDING_RQ) != 0) {
    const auto& caps = known.striding_rq_caps;
    Group(object, "stridingRqCaps")
        .Add("minSingleStrideLogNumOfBytes", caps.min_single_stride_log_num_of_bytes)
        .Add("maxSingleStrideLogNumOfBytes", caps.max_single_stride_log_num_of_bytes)
        .Add("minSingleWqeLogNumOfStrides", caps.min_single_wqe_log_num_of_strides)
        .Add("maxSingleWqeLogNumOfStrides", caps.max_single_wqe_log_num_of_strides)
        .Add("supportedQpts", caps.supported_qpts);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS) != 0) {
    SetNumber(object, "tunnelOffloadsCaps", known.tunnel_offloads_caps);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_DYN_BFREGS) != 0) SetNumber(object, "maxDynamicBfregs", known.max_dynamic_bfregs);
  if ((mask & MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE) != 0) {
    SetBigInt(object, "maxClockInfoUpdateNsec", known.max_clock_info_update_nsec);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS) != 0) {
    SetNumber(object, "flowActionFlags", known.flow_action_flags);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_DC_ODP_CAPS) != 0) SetNumber(object, "dcOdpCaps", known.dc_odp_caps);
  object.Set("hcaCoreClock", (mask & MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK) != 0);
  if ((mask & MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS) != 0) SetNumber(object, "numLagPorts", known.num_lag_ports);
  if ((mask & MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD) != 0) {
    const auto& caps = known.sig_caps;
    Group(object, "sigCaps")
        .Add("blockSize", static_cast<double>(caps.block_size))
        .Add("blockProt", caps.block_prot)
        .Add("t10difBg", caps.t10dif_bg)
        .Add("crcType", caps.crc_type);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_DCI_STREAMS) != 0) {
    const auto& caps = known.dci_streams_caps;
    Group(object, "dciStreamsCaps")
        .Add("maxLogNumConcurent", caps.max_log_num_concurent)
        .Add("maxLogNumErrored", caps.max_log_num_errored);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH) != 0) {
    SetBigInt(object, "maxWrMemcpyLength", known.max_wr_memcpy_length);
  }
  if ((mask & MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD) != 0) {
    const auto& caps = known.crypto_caps;
    Group(object, "cryptoCaps")
        .Add("failedSelftests", caps.failed_selftests)
        .Add("cryptoEngines", caps.crypto_engines)
        .Add("wrappedImportMethod", caps.wrapped_import_method)
        .Add("logMaxNumDeks", caps.log_max_num_deks)
        .Add("flags", caps.flags);
  }
  AddYounger(object, mask, attrs);
  return object;
}

Napi::Value GetClockInfo(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto context = HandleArg<ContextHandle>(info, 0);
  RequireMlx5(env, context->get(), "mlx5dv_get_clock_info");
  mlx5dv_clock_info clock{};
  errno = 0;
  Check(env, FromRet("mlx5dv_get_clock_info", mlx5dv_get_clock_info(context->get(), &clock)));
  Napi::Object object = Napi::Object::New(env);
  SetBigInt(object, "nsec", clock.nsec);
  SetBigInt(object, "lastCycles", clock.last_cycles);
  SetBigInt(object, "frac", clock.frac);
  SetNumber(object, "mult", clock.mult);
  SetNumber(object, "shift", clock.shift);
  SetBigInt(object, "mask", clock.mask);
  return object;
}

}  // namespace

void ExportMlx5Device(Napi::Object exports) {
  Export(exports, "mlx5LoadState", LoadState);
  Export(exports, "mlx5IsSupported", IsSupported);
  Export(exports, "mlx5QueryDevice", QueryDevice);
  Export(exports, "mlx5GetClockInfo", GetClockInfo);
}

}  // namespace rdma
