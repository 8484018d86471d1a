// The exports of what node-rdma/gpu is made of.
#pragma once

#include <napi.h>

#include <memory>

#include "core/cell.h"
#include "handles/dmabuf_handle.h"
#include "handles/gpu_memory_handle.h"

namespace rdma {

RDMA_HANDLE_TYPE(DmabufHandle, "DmaBuf", 60);
RDMA_HANDLE_TYPE(GpuMemoryHandle, "GpuBuffer", 63);

// A new handle, and the number of its descriptor.
Napi::Object DescribeDmabuf(Napi::Env env, std::shared_ptr<DmabufHandle> dmabuf);

void ExportDmabuf(Napi::Object exports);
void ExportFdSocket(Napi::Object exports);
void ExportGpuMemory(Napi::Object exports);

}  // namespace rdma
