#include "gpu/driver.h"

#include <unistd.h>

#include <cstdio>

namespace rdma {

HostPages::HostPages(const GpuRange& range) {
  const auto mask = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) - 1;
  offset = range.address & mask;
  first = range.address - offset;
  length = (offset + range.length + mask) & ~mask;
}

std::string PciAddress(uint32_t domain, uint32_t bus, uint32_t device, uint32_t function) {
  char text[32];
  (void)snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text;
}

}  // namespace rdma
