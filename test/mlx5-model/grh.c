/* The header in front of a datagram. */
#include <netinet/in.h>
#include <netinet/ip.h>
#include <string.h>

#include "model.h"

#define NEXT_IBA 0x1b                      /* IBTA: what follows is IBA's own transport header */
#define ROCE_V2_BYTES (8u + 12u + 8u + 4u) /* around the data: UDP, BTH, DETH, ICRC */

static bool is_ipv4(const union ibv_gid* gid) {
  static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
  return !memcmp(gid->raw, mapped, sizeof mapped);
}

static uint16_t internet_checksum(const struct iphdr* header) {
  uint16_t words[sizeof *header / 2];
  memcpy(words, header, sizeof words);
  uint32_t sum = 0;
  for (unsigned i = 0; i < sizeof words / sizeof *words; i++) sum += words[i];
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)~sum;
}

uint32_t grh_make(int dev, const struct mlx5_wqe_av* av, uint64_t length, uint8_t bytes[GRH_BYTES]) {
  uint32_t fields = be32toh(av->grh_gid_fl);
  unsigned index = fields >> 20 & 0xff;
  bool v2 = device_gid_is_v2(index);
  union ibv_gid sgid, dgid;
  device_gid(dev, index, &sgid);
  memcpy(&dgid, av->rgid, sizeof dgid);
  if (v2 && is_ipv4(&dgid)) {
    struct iphdr ip = {.version = 4,
                       .ihl = 5,
                       .tos = av->tclass,
                       .tot_len = htobe16((uint16_t)(sizeof ip + ROCE_V2_BYTES + length)),
                       .frag_off = htobe16(IP_DF),
                       .ttl = av->hop_limit,
                       .protocol = IPPROTO_UDP};
    memcpy(&ip.saddr, sgid.raw + 12, sizeof ip.saddr);
    memcpy(&ip.daddr, dgid.raw + 12, sizeof ip.daddr);
    ip.check = internet_checksum(&ip);
    memcpy(bytes + GRH_BYTES - sizeof ip, &ip, sizeof ip);
    return GRH_BYTES - sizeof ip;
  }
  struct ibv_grh grh = {.version_tclass_flow = htobe32(6u << 28 | (uint32_t)av->tclass << 20 | (fields & 0xfffff)),
                        .paylen = htobe16((uint16_t)length),
                        .next_hdr = v2 ? IPPROTO_UDP : NEXT_IBA,
                        .hop_limit = av->hop_limit,
                        .sgid = sgid,
                        .dgid = dgid};
  memcpy(bytes, &grh, sizeof grh);
  return 0;
}
