// Direct verbs of libmlx5: what the provider of ConnectX has beyond libibverbs. Each call asks first whether the device
// is one of its own: releases of libmlx5 before 37 take every context for one.
#pragma once

#include <infiniband/mlx5dv.h>
#include <napi.h>

namespace rdma {

// Throws EOPNOTSUPP from that function where the device is not of libmlx5.
void RequireMlx5(Napi::Env env, ibv_context* context, const char* function);

void ExportMlx5Device(Napi::Object exports);
void ExportMlx5CompletionQueue(Napi::Object exports);
void ExportMlx5QueuePair(Napi::Object exports);

}  // namespace rdma
