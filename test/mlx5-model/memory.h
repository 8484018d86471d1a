/* What an mkey stands for: part of model.h, which includes it where what it needs is known. */
#ifndef MLX5_MODEL_MEMORY_H
#define MLX5_MODEL_MEMORY_H

/* ------------------------------------------------------------------ memory.c */

/* Pages that the kernel would hold pinned. */
struct pin {
  uint64_t pages;
};

/* A memory region or a memory window: what an mkey stands for. */
struct mkey {
  struct object o;
  uint32_t key; /* index << 8 | variant */
  struct pd* pd;
  uint32_t access; /* IBV_ACCESS_* */
  uint64_t iova, length;
  uint8_t* va;
  int mw_type;         /* 0 for a region, else the type of the window */
  uint32_t bound_qpn;  /* type 2: the QP it is bound to */
  struct mkey* region; /* the region a bound window lies in */
  struct pin pin;
  bool on_demand; /* not pinned: see on_demand.c */
  struct dm* dm;  /* device memory, which the region is of */
  void* mapping;  /* of a DMA-BUF */
  size_t mapping_size;
};
bool memory_fault_in(const struct mkey* m, uint64_t addr, uint64_t length, uint32_t need) HIDDEN;

/*
 * The memory behind (key, address, length), or NULL when the NIC would refuse. `need` are IBV_ACCESS_* bits. A type 2
 * window answers only to the QP it is bound to (qpn is the one that is being accessed).
 */
static inline uint8_t* memory_at(uint32_t key, const struct pd* pd, uint32_t qpn, uint64_t addr, uint64_t length,
                                 uint32_t need) {
  struct mkey* m = object_at(KIND_MKEY, key >> 8);
  if (!m || m->key != key || m->pd != pd || (m->access & need) != need) return NULL;
  if (addr < m->iova || length > m->length || addr - m->iova > m->length - length) return NULL;
  if (m->bound_qpn && m->bound_qpn != qpn) return NULL;
  if (m->on_demand && !memory_fault_in(m, addr, length, need)) return NULL;
  return m->va + (addr - m->iova);
}

/* The key of every domain that takes what is written, and reads as zeros: the null MR. */
#define NULL_MKEY 0x200u

/* A part of a message in memory; a null pointer stands for the null MR. */
struct piece {
  uint8_t* p;
  uint32_t length;
};

/* The same for a piece of local memory, which may be of the null MR. */
static inline bool piece_at(struct piece* piece, uint32_t key, const struct pd* pd, uint32_t qpn, uint64_t addr,
                            uint32_t length, uint32_t need) {
  piece->length = length;
  piece->p = key == NULL_MKEY ? NULL : memory_at(key, pd, qpn, addr, length, need);
  return piece->p || key == NULL_MKEY;
}

/* Are the pages there, with the right to read or write them? */
bool memory_present(uint64_t addr, uint64_t length, bool writable) HIDDEN;
struct command;
void memory_fault_in_before(struct command* cmd, uint32_t number) HIDDEN;
bool memory_writable(uint32_t access) HIDDEN;
/* Whether a region may have these rights: 0 or an errno. */
int check_access(uint32_t access) HIDDEN;
struct mkey* mkey_new(struct pd* pd, uint32_t access) HIDDEN;
void mkey_vary(struct mkey* m) HIDDEN;
int memory_pin(struct pin* pin, uint64_t addr, uint64_t length, bool writable) HIDDEN;
void memory_unpin(struct pin* pin) HIDDEN;
void mkey_destroy(struct mkey* m) HIDDEN;
void window_unbind(struct mkey* m) HIDDEN;
/* Binds or invalidates a window, as a UMR work request asks. Returns a CQE syndrome, 0 for success. */
uint8_t window_umr(struct pd* pd, uint32_t key, const struct mlx5_wqe_mkey_context_seg* seg,
                   const struct mlx5_wqe_umr_klm_seg* klm) HIDDEN;

/* ------------------------------------------------------------------ dm.c */

#define DM_SIZE (1ull << 18) /* of each device */

struct dm {
  struct object o;
  uint32_t page, pages; /* of the device's */
  uint64_t length;
};

void dm_destroy(struct dm* dm) HIDDEN;
void* dm_map(const struct ctx* c, void* addr, size_t length, uint64_t page) HIDDEN;

#endif
