#pragma once

#include <cstdint>

namespace rdma {

// What an extended completion queue tells of a completion beyond struct ibv_wc.
struct WcExtra {
  uint64_t completion_ts;
  uint64_t completion_wallclock_ns;
  uint64_t tm_tag;
  uint32_t tm_priv;
  uint32_t flow_tag;
  uint16_t cvlan;
};

}  // namespace rdma
