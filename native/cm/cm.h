// The tags of the handles of librdmacm, and the exports of each file.
#pragma once

#include "handles/cm_handle.h"
#include "verbs/verbs.h"

namespace rdma {

RDMA_HANDLE_TYPE(CmChannelHandle, "EventChannel", 50);
RDMA_HANDLE_TYPE(CmIdHandle, "CmId", 51);

void ExportEventChannel(Napi::Object exports);
void ExportCmId(Napi::Object exports);
void ExportConnection(Napi::Object exports);
void ExportAddrInfo(Napi::Object exports);

}  // namespace rdma
