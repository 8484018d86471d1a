/*
 * The checks of the software device: ordinary verbs programs, each a function that returns true when all is as a NIC
 * and the kernel would have it. check.c runs them; the other check_*.c hold them by topic.
 */
#ifndef MLX5_MODEL_CHECK_H
#define MLX5_MODEL_CHECK_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

struct check {
  const char* name;
  bool (*run)(void);
};
extern const struct check data_checks[], cq_checks[], error_checks[], object_checks[], dc_checks[], xrc_checks[],
    ioctl_checks[], process_checks[]; /* end with a null name */

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) return fail(__FILE__, __LINE__, #condition); \
  } while (0)
bool fail(const char* file, int line, const char* condition);

/* One end of a connection: a context of its own, and everything that a QP needs. */
enum { BUFFER = 1 << 20, DEPTH = 256 };
struct end {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_comp_channel* channel;
  struct ibv_cq *cq, *recv_cq; /* the channel is the first one's */
  struct ibv_srq* srq;         /* null unless set before end_qp() */
  struct ibv_qp* qp;
  struct ibv_mr* mr; /* of buf, with every right */
  char* buf;
};
struct pair {
  struct end a, b;
};

/* How pair_open() connects: all zero is what most checks want. */
struct setup {
  enum ibv_qp_type type; /* 0: RC */
  bool one_device;       /* else device 0 and device 1 */
  int rnr_retry;         /* as given where `weak` is set, else 7; likewise the others */
  int timeout, retry_cnt;
  bool weak;
};

struct ibv_context* open_device(int dev);
bool end_open(struct end* e, int dev);
bool end_qp(struct end* e, enum ibv_qp_type type);
bool end_close(struct end* e);
bool connect_qp(struct end* e, uint32_t dest_qpn, const struct setup* s);
bool pair_open(struct pair* p, struct setup s);
bool pair_close(struct pair* p);
int qp_state(struct ibv_qp* qp);

int post_rdma(struct end* from, enum ibv_wr_opcode op, int flags, uint32_t length, const struct end* to, uint64_t id);
int post_to(struct end* from, enum ibv_wr_opcode op, void* local, uint32_t length, uint32_t lkey, uint64_t remote,
            uint32_t rkey, uint64_t id);
int post_receive(struct end* e, void* p, uint32_t length, uint64_t id);
/* Polls until a completion comes; one with status -1 after three seconds without. */
struct ibv_wc next_completion(struct ibv_cq* cq);
bool completes(struct ibv_cq* cq, uint64_t id, enum ibv_wc_status status);
bool quiet(struct ibv_cq* cq);

uint64_t now(void);
/* Runs this program again with the given argument and environment setting; its exit status. */
int run_self(const char* argument, const char* setting);
/* What such a child does; the tasks of check_objects.c are in the second. */
int child_task(const char* name);
int child_objects(const char* name);
int benchmark(long rounds);

#endif
