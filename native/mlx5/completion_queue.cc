// mlx5dv_create_cq(3). All else of these queues is as of others.
#include "core/args.h"
#include "mlx5/mlx5.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// What is there of {cqeCompResFormat, flags, cqeSize}.
mlx5dv_cq_init_attr GetCqInitAttr(const Napi::Object& given) {
  mlx5dv_cq_init_attr attr{};
  if (given.Has("cqeCompResFormat")) {
    attr.comp_mask |= MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
    attr.cqe_comp_res_format = static_cast<uint8_t>(Uint32Field(given, "cqeCompResFormat"));
  }
  if (given.Has("flags")) {
    attr.comp_mask |= MLX5DV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = Uint32Field(given, "flags");
  }
  if (given.Has("cqeSize")) {
    attr.comp_mask |= MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
    attr.cqe_size = static_cast<uint16_t>(Uint32Field(given, "cqeSize"));
  }
  return attr;
}

// (context, cqe, channel | null, compVector, id, mlx5Attr): as createCq().
Napi::Value CreateCq(const Napi::CallbackInfo& info) {
  mlx5dv_cq_init_attr attr = GetCqInitAttr(ObjectArg(info, 5, "mlx5Attr"));
  RequireMlx5(info.Env(), HandleArg<ContextHandle>(info, 0)->get(), "mlx5dv_create_cq");
  return CreateCompletionQueue(info, &attr);
}

}  // namespace

void ExportMlx5CompletionQueue(Napi::Object exports) { Export(exports, "mlx5CreateCq", CreateCq); }

}  // namespace rdma
