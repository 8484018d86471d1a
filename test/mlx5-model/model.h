/*
 * Private header of the software device: what its files share.
 *
 * Everything the model knows is guarded by one lock (engine_lock), as one NIC has one state. The exceptions are
 * marked "read without the lock": the file table and a few flags that the hot paths look at first.
 *
 * Facts about layouts come from the public headers: <rdma/ib_user_verbs.h> (kernel command ABI),
 * <rdma/mlx5-abi.h> (the driver's part of it) and <infiniband/mlx5dv.h> (WQEs and CQEs, named after the PRM).
 */
#ifndef MLX5_MODEL_H
#define MLX5_MODEL_H

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define container_of(ptr, type, member) ((type*)((char*)(ptr)-offsetof(type, member)))
#define min_of(a, b) ((a) < (b) ? (a) : (b))

/* ------------------------------------------------------------------ config.c */

enum mode {
  MODE_THREAD, /* an engine thread of its own, asynchronous as a NIC is */
  MODE_INLINE, /* work is executed inside the call that posts it */
  MODE_POLL,   /* work is executed when a completion queue is polled or armed */
};

struct config {
  enum mode mode;
  int log;
  bool ib; /* link layer InfiniBand instead of Ethernet (RoCE) */
  int ndev;
  bool ioctl; /* else a kernel without the ioctl interface, before Linux 4.20 */
  bool scatter_to_cqe;
  uint64_t spin_ns;      /* how long the idle engine thread spins before it sleeps */
  int64_t memlock;       /* forced limit of pinned bytes, -1: RLIMIT_MEMLOCK as the kernel applies it */
  char sysfs_parent[96]; /* where the sysfs trees live */
};
extern struct config cfg HIDDEN;

void config_read(void) HIDDEN;
uint64_t now_ns(void) HIDDEN;

#define MODEL_LOG(...)                                        \
  do {                                                        \
    if (cfg.log) fprintf(stderr, "[mlx5model] " __VA_ARGS__); \
  } while (0)
/* Trouble that is worth a line even when nobody asked for a log: the program under test broke a rule of the NIC. */
#define MODEL_WARN(...) fprintf(stderr, "[mlx5model] " __VA_ARGS__)

/* Device figures that more than one file needs; the rest are in device.c. */
#define DEVICE_ID 0x1017 /* ConnectX-5 */
#define MAX_DEVICES 8
#define GID_TABLE_LEN 8
#define COMP_VECTORS 8
#define MAX_CQE 4194303u
#define MAX_CQ_PERIOD 4095u
#define MAX_QP_WR 32768u
#define MAX_SRQ_WR 32767u
#define MAX_SRQ_SGE 31u
#define MAX_RD_ATOMIC 16u
#define ECE_OPTIONS 0x10000005u /* version 1, and two options that mean nothing here */
#define MAX_MSG_SIZE (1ull << 30)

/* ------------------------------------------------------------------ objects.c */

struct list {
  struct list *next, *prev;
};
static inline void list_init(struct list* l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list* l) { return l->next == l; }
static inline void list_append(struct list* head, struct list* l) {
  l->next = head;
  l->prev = head->prev;
  head->prev->next = l;
  head->prev = l;
}
static inline void list_remove(struct list* l) {
  l->prev->next = l->next;
  l->next->prev = l->prev;
  list_init(l);
}

enum kind {
  KIND_PD,
  KIND_MKEY,
  KIND_AH,
  KIND_CQ,
  KIND_SRQ,
  KIND_QP,
  KIND_UAR,
  KIND_DM,
  KIND_FLOW,
  KIND_COUNTERS,
  KIND_WQ,
  KIND_TABLE,
  KIND_XRCD,
  KIND_COUNT
};

struct ctx;

/* What every verbs object starts with. The handle that the kernel would give is the id, unique per kind. */
struct object {
  struct ctx* ctx;
  enum kind kind;
  uint32_t id;
  uint32_t users; /* objects that refer to this one: destroying it is EBUSY while there are any */
  struct list of_ctx;
};

#define MAX_OBJECTS (1u << 18)
extern struct object* object_table[KIND_COUNT][MAX_OBJECTS] HIDDEN;

/* For the data path: any context's object, because ids stand for numbers on the wire too (QPN, mkey index). */
static inline void* object_at(enum kind kind, uint32_t id) { return id < MAX_OBJECTS ? object_table[kind][id] : NULL; }

bool object_add(struct ctx* c, enum kind kind, struct object* o) HIDDEN;
void object_remove(struct object* o) HIDDEN;
/* For commands: only the context's own objects, as the kernel's handle table is per open file. */
void* object_find(struct ctx* c, enum kind kind, uint32_t id) HIDDEN;

/* An open device file. */
struct ctx {
  struct list all;                 /* in every_context */
  struct list objects[KIND_COUNT]; /* of_ctx */
  int dev;
  bool orphan;             /* inherited over fork(): the objects stay with the parent */
  bool dead;               /* the device is gone, for this file: every command is EIO */
  bool ready;              /* after GET_CONTEXT */
  struct file* async_file; /* where events go: the first that was made */
  /* Which doorbell registers (bfregs) are handed to which QP: see qp.c */
  uint32_t bfregs, low_latency_bfregs, low_latency_used, next_shared_bfreg;
  uint64_t* core_clock; /* the page where the program reads the device's clock */
};
extern struct list every_context HIDDEN;

struct ctx* ctx_open(int dev) HIDDEN;
void ctx_close(struct ctx* c) HIDDEN;
void ctx_release_objects(struct ctx* c) HIDDEN;

struct pd {
  struct object o;
};
struct ah {
  struct object o;
  struct pd* pd;
};

#include "memory.h" /* memory.c, on_demand.c, dm.c */

/* ------------------------------------------------------------------ files.c */

enum file_kind { FILE_UVERBS, FILE_EVENTS };

/* What a file descriptor of ours refers to: shared by duplicates, and held by the CQs that report to it. */
struct file {
  enum file_kind kind;
  int fds;               /* descriptors that refer to it */
  int holders;           /* objects that do */
  struct ctx* ctx;       /* FILE_UVERBS */
  int read_fd, write_fd; /* FILE_EVENTS: the user's end and ours */
};

struct file* file_of(int fd) HIDDEN; /* read without the lock */
int file_install(int fd, struct file* f) HIDDEN;
void file_duplicate(int from, int to) HIDDEN;
void file_close_fd(int fd) HIDDEN;
struct file* file_new_events(void) HIDDEN;
/* Nothing more will come: who reads it is told so. */
void file_hang_up(struct file* f) HIDDEN;
void file_hold(struct file* f) HIDDEN;
void file_put(struct file* f) HIDDEN;
/* Queues an event record; false when it could not be (nobody reads any more, or too many wait). */
bool file_event(struct file* f, const void* record, size_t size) HIDDEN;
/* Takes the unread records about `element` back; returns how many there were. */
uint32_t file_forget(struct file* f, size_t size, uint64_t element) HIDDEN;

/* ------------------------------------------------------------------ cq.c */

/* Places in a CQ's doorbell record (PRM; libmlx5 keeps the names private). */
enum { DBREC_CONSUMER = 0, DBREC_ARM = 1 };

struct cq {
  struct object o;
  uint64_t user_handle; /* the struct ibv_cq of libibverbs */
  uint32_t entries, entry_size;
  uint32_t produced;           /* producer index */
  uint32_t produced_solicited; /* the same just behind the last solicited one */
  bool any_solicited, overrun, armed;
  bool ignore_overrun;     /* entries are written whether there is room or not */
  bool stamped;            /* CQEs carry the time */
  uint32_t moderate_count; /* an event for so many completions, */
  uint64_t moderate_ns;    /* or so long after the first of them */
  uint64_t due;            /* when that is; 0: none waits for it */
  struct list delayed;     /* in the list of those that wait */
  uint8_t* ring;
  struct pin pin;
  _Atomic uint32_t* dbrec; /* [DBREC_CONSUMER], [DBREC_ARM], big endian */
  struct file* channel;
  uint32_t events_sent, async_sent;
  int (*start_poll)(struct ibv_cq_ex*, struct ibv_poll_cq_attr*); /* libmlx5's own, where we hooked it */
};

extern int cqs_armed HIDDEN; /* how many are armed and wait for an event */

void cq_destroy(struct cq* cq) HIDDEN;
void cq_check_arm(struct cq* cq) HIDDEN;
/* Sends the events whose time has come; returns when the next one is due, 0 when none is. */
uint64_t cq_check_due(void) HIDDEN;
/* The CQE to fill in next, or NULL if the ring is full. */
struct mlx5_cqe64* cq_next(struct cq* cq) HIDDEN;
/* Hands the CQE over to software. `format` is what goes into op_own beside the ownership bit. */
void cq_commit(struct cq* cq, struct mlx5_cqe64* cqe, uint8_t format, bool solicited) HIDDEN;

struct qp;
void cq_report_sent(struct qp* qp, uint8_t opcode, uint16_t counter, uint32_t bytes) HIDDEN;
void cq_report_error(struct qp* qp, bool receive, uint8_t syndrome, uint8_t opcode, uint16_t counter) HIDDEN;
void async_event(struct ctx* c, uint64_t element, uint32_t type, uint32_t* counter) HIDDEN;

/* ------------------------------------------------------------------ recv.c */

struct srq {
  struct object o;
  uint64_t user_handle;
  struct pd* pd;
  struct xrcd* xrcd; /* of an XRC SRQ, as the two below */
  struct cq* cq;     /* where its receives complete */
  uint32_t uidx;     /* how CQEs name it to libmlx5 */
  uint32_t max_wr, max_sge, limit;
  uint8_t* buf;
  struct pin pin;
  _Atomic uint32_t* dbrec;
  uint32_t shift; /* log2 of the WQE's size */
  uint16_t head, consumed;
  uint32_t async_sent;
};

#define MAX_SCATTER 64

/* A receive request taken off its queue. */
struct receive {
  struct piece piece[MAX_SCATTER];
  int pieces;
  uint16_t counter; /* names the WQE in the completion */
  uint64_t total;
  bool bad; /* an entry is not memory that may be written */
};

int recv_available(struct qp* qp) HIDDEN;
void recv_take(struct qp* qp, struct receive* r) HIDDEN;
void srq_destroy(struct srq* srq) HIDDEN;
/* What SRQs of both kinds are made of; a command does the rest. */
int srq_create(struct ctx* c, const struct ib_uverbs_create_srq* req, const struct mlx5_ib_create_srq* buf,
               struct srq** created) HIDDEN;

/* ------------------------------------------------------------------ grh.c */

#define GRH_BYTES 40u

/*
 * What comes in front of a datagram's data, so that the receiver can answer to it. Of RoCE v2 over IPv4 the last 20
 * bytes are its header. Returns how many at the beginning are not defined: they stay what they were.
 */
uint32_t grh_make(int dev, const struct mlx5_wqe_av* av, uint64_t length, uint8_t bytes[GRH_BYTES]) HIDDEN;

/* ------------------------------------------------------------------ qp.c, qp_state.c, send.c */

enum wait_reason { WAIT_NONE, WAIT_RECEIVER, WAIT_PEER };

/* What a queue pair of type IBV_QPT_DRIVER is: see dc.c */
enum dc { NOT_DC, DC_INITIATOR, DC_TARGET };
#define DC_LOG_CONCURRENT 5 /* the limits of stream channels: both are logarithms */
#define DC_LOG_ERRORED 4

struct qp {
  struct object o; /* id is the QPN */
  uint64_t user_handle;
  enum ibv_qp_type type;
  enum ibv_qp_state state;
  struct pd* pd;
  struct cq *send_cq, *recv_cq;
  struct srq* srq;
  uint32_t uidx; /* how CQEs name the QP to libmlx5 (cqe_version 1) */
  uint32_t sq_count, rq_count, rq_shift;
  uint8_t *sq, *rq;
  struct pin pin;
  _Atomic uint32_t* dbrec; /* [MLX5_RCV_DBR], [MLX5_SND_DBR], big endian */
  uint16_t sq_consumed, rq_consumed;
  uint32_t bfreg, low_latency_slot;
  bool scatter_to_cqe;
  struct ib_uverbs_query_qp_resp attr;
  uint32_t async_sent;
  enum wait_reason wait;               /* why the WQE at the head of the send queue does not proceed */
  uint64_t wait_until;                 /* 0: for ever */
  struct list active;                  /* in the engine's list of all QPs */
  struct list pending;                 /* in the engine's list of QPs to serve, or on its own */
  void (*wr_start)(struct ibv_qp_ex*); /* libmlx5's own, where we hooked them */
  int (*wr_complete)(struct ibv_qp_ex*);
  struct object* table; /* with receive side scaling: of the receive work queues; such a QP has no queues */
  struct xrcd* xrcd;    /* XRC_RECV: the domain whose SRQs it receives into */
  uint32_t ece;         /* options that were agreed on */
  enum dc dc;
  uint64_t dc_key;         /* DC_TARGET: what an initiator has to know */
  uint32_t streams_failed; /* DC_INITIATOR with streams: how many, and which */
  uint32_t streams_failed_max;
  uint16_t failed_stream[1 << DC_LOG_ERRORED];
  uint8_t lag_port; /* set by devx.c, and told there; nothing is sent by it */
  uint16_t udp_sport;
};

void qp_destroy(struct qp* qp) HIDDEN;
void qp_to_error(struct qp* qp) HIDDEN;
/* A request of its own ended in error. */
void qp_send_failed(struct qp* qp) HIDDEN;
/* Nothing is executed for it any more, and its peer hears nothing of it. */
void qp_die(struct qp* qp) HIDDEN;
bool qp_transition_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, uint32_t mask) HIDDEN;
/* Executes the WQE at the head of the send queue; false when it has to wait. */
bool send_execute(struct qp* qp) HIDDEN;

/* ------------------------------------------------------------------ dc.c */

/* Whether a queue pair of that type can be made so: 0 or an errno. */
int dc_check_create(const struct ib_uverbs_create_qp* req, const struct mlx5_ib_create_qp* buf) HIDDEN;
void dc_created(struct qp* qp, const struct mlx5_ib_create_qp* buf) HIDDEN;
bool dc_transition_ok(const struct qp* qp, enum ibv_qp_state from, enum ibv_qp_state to, uint32_t mask) HIDDEN;
/* The target with that number, ready to receive, or NULL. */
struct qp* dc_target(uint32_t dctn) HIDDEN;
bool dc_stream_has_failed(const struct qp* qp, uint16_t stream) HIDDEN;
/* A request failed: true when its stream bears that alone, false when the queue pair goes down with it. */
bool dc_stream_fails(struct qp* qp, uint16_t stream) HIDDEN;
/* False for a stream that has not failed. */
bool dc_stream_reset(struct qp* qp, uint16_t stream) HIDDEN;

/* ------------------------------------------------------------------ xrc.c */

struct xrcd {
  struct object o;
  uint64_t device, inode; /* of the file that names it to others; 0: it is this handle's alone */
};

struct wqe_xrc {
  __be32 srqn;
  uint8_t reserved[12];
};

/* Points the receiving QP at the SRQ that a request names, and away from it again. False: not one of its domain. */
bool xrc_aim(struct qp* target, uint32_t srqn) HIDDEN;
void xrc_unaim(struct qp* target) HIDDEN;

/* ------------------------------------------------------------------ engine.c */

void engine_lock(void) HIDDEN;
void engine_unlock(void) HIDDEN;
int engine_start_thread(void) HIDDEN;
void engine_add_qp(struct qp* qp) HIDDEN;
void engine_remove_qp(struct qp* qp) HIDDEN;
void engine_set_pending(struct qp* qp) HIDDEN;
/* The thread shall look anew when it has to wake up. */
void engine_wake(void) HIDDEN;
/* Something changed that may let work proceed; with the lock held. */
void engine_kick(void) HIDDEN;
/* What the hooked verbs call, without the lock. */
void engine_posted_send(uint32_t qpn) HIDDEN;
void engine_posted_recv(uint32_t qpn) HIDDEN;
void engine_posted_srq_recv(void) HIDDEN;
void engine_polling(void) HIDDEN;
void engine_armed(uint32_t cqn) HIDDEN;
void engine_init(void) HIDDEN;
void engine_stop(void) HIDDEN;

struct statistics {
  uint64_t wqes, cqes, bytes, events;
};
extern struct statistics stats HIDDEN;

/* ------------------------------------------------------------------ hooks.c */

void hook_context(struct ibv_context* context) HIDDEN;
void hook_cq(struct cq* cq) HIDDEN;
void hook_qp(struct qp* qp) HIDDEN;

/* ------------------------------------------------------------------ device.c, uverbs.c, ioctl.c */

/* One command as it came through write(). The *_size fields are what the caller gave room for. */
struct command {
  struct ctx* ctx;
  const uint8_t *in, *driver_in;
  size_t in_size, driver_in_size;
  uint8_t* out;
  size_t out_size, driver_out_offset; /* offset 0: directly behind the core response */
  bool is_faulted_in;                 /* see memory_fault_in_before() */
};

/* A command answers 0 or an errno. */
typedef int command_fn(struct command* cmd);

/* Copies the core request out of the command; what an older library does not send reads as zero. */
void command_request(const struct command* cmd, void* core, size_t size) HIDDEN;
/* Copies the driver's part of the request, which follows `core_size` bytes of core request. */
void command_driver_request(const struct command* cmd, size_t core_size, void* driver, size_t size) HIDDEN;
void command_reply(const struct command* cmd, const void* core, size_t size, const void* driver,
                   size_t driver_size) HIDDEN;
ssize_t uverbs_write(struct ctx* c, const void* buf, size_t size) HIDDEN;
void device_gid(int dev, unsigned index, union ibv_gid* gid) HIDDEN;
bool device_gid_is_v2(unsigned index) HIDDEN;
uint64_t device_guid(int dev) HIDDEN;
/* Makes something happen to a device, as `path` says; false when that is not for us. With the lock held. */
bool device_happen(const char* path) HIDDEN;
/* The device's clock: cycles of 6.4 ns. */
uint64_t device_clock(void) HIDDEN;
/* Maps what libmlx5 asks for at an offset of the device file. */
void* device_mmap(struct ctx* c, void* addr, size_t length, uint64_t offset) HIDDEN;

command_fn cmd_get_context HIDDEN, cmd_query_device HIDDEN, cmd_ex_query_device HIDDEN, cmd_query_port HIDDEN;
command_fn cmd_alloc_pd HIDDEN, cmd_dealloc_pd HIDDEN, cmd_create_ah HIDDEN, cmd_destroy_ah HIDDEN;
command_fn cmd_reg_mr HIDDEN, cmd_rereg_mr HIDDEN, cmd_dereg_mr HIDDEN, cmd_alloc_mw HIDDEN, cmd_dealloc_mw HIDDEN;
command_fn cmd_create_comp_channel HIDDEN, cmd_create_cq HIDDEN, cmd_ex_create_cq HIDDEN, cmd_resize_cq HIDDEN;
command_fn cmd_ex_modify_cq HIDDEN, cmd_destroy_cq HIDDEN, cmd_create_srq HIDDEN, cmd_modify_srq HIDDEN,
    cmd_query_srq HIDDEN;
command_fn cmd_destroy_srq HIDDEN, cmd_create_qp HIDDEN, cmd_ex_create_qp HIDDEN, cmd_modify_qp HIDDEN;
command_fn cmd_ex_modify_qp HIDDEN, cmd_query_qp HIDDEN, cmd_destroy_qp HIDDEN;
command_fn cmd_open_xrcd HIDDEN, cmd_close_xrcd HIDDEN, cmd_create_xsrq HIDDEN;

/* One call of the ioctl interface. */
struct call {
  struct ctx* ctx;
  struct ib_uverbs_attr* attributes;
  unsigned count;
};

/* A method answers 0 or an errno. To add one: the function beside what it is about, and a line in the table of ioctl.c.
 */
typedef int method_fn(struct call* call);

bool call_has(const struct call* call, uint16_t id) HIDDEN;
/* Attributes that are read: the first `size` bytes of one (zero where it has less), a number, an array, a handle. */
void call_in(const struct call* call, uint16_t id, void* to, size_t size) HIDDEN;
uint64_t call_u64(const struct call* call, uint16_t id) HIDDEN;
const void* call_in_array(const struct call* call, uint16_t id, size_t* size) HIDDEN;
/* How much room there is for an answer. */
size_t call_size(const struct call* call, uint16_t id) HIDDEN;
uint32_t call_handle(const struct call* call, uint16_t id) HIDDEN;
/* The context's own object that the handle names, or NULL. */
void* call_object(const struct call* call, uint16_t id, enum kind kind) HIDDEN;
/* Attributes that are answered: as much as there is room for, and nothing where the caller does not ask. */
void call_out(const struct call* call, uint16_t id, const void* from, size_t size) HIDDEN;
void call_out_handle(const struct call* call, uint16_t id, uint32_t handle) HIDDEN;
int uverbs_ioctl(struct ctx* c, void* arg) HIDDEN;

method_fn method_get_context HIDDEN, method_query_context HIDDEN, method_async_event_alloc HIDDEN;
method_fn method_devx_other HIDDEN, method_devx_obj_query HIDDEN, method_devx_obj_modify HIDDEN;
method_fn method_counters_create HIDDEN, method_counters_destroy HIDDEN, method_counters_read HIDDEN;
method_fn method_uar_alloc HIDDEN, method_uar_destroy HIDDEN, method_pd_query HIDDEN, method_query_mr HIDDEN;
method_fn method_advise_mr HIDDEN, method_reg_dmabuf_mr HIDDEN;
method_fn method_cq_create HIDDEN, method_qp_create HIDDEN, method_srq_create HIDDEN;
method_fn method_dm_alloc HIDDEN, method_dm_free HIDDEN, method_dm_query HIDDEN, method_dm_reg_mr HIDDEN;

command_fn cmd_ex_create_flow HIDDEN, cmd_ex_destroy_flow HIDDEN, cmd_ex_create_wq HIDDEN, cmd_ex_modify_wq HIDDEN;
command_fn cmd_ex_destroy_wq HIDDEN, cmd_ex_create_rwq_ind_table HIDDEN, cmd_ex_destroy_rwq_ind_table HIDDEN;
/* The table of a QP that is made with receive side scaling, where all is right; else 0 or an errno. */
int rss_check(struct command* cmd, const struct ib_uverbs_ex_create_qp* req, struct object** table) HIDDEN;
void flow_destroy(struct object* o) HIDDEN;
void wq_destroy(struct object* o) HIDDEN;
void table_destroy(struct object* o) HIDDEN;

/* Checks an address vector as the kernel does; 0 or an errno. */
int check_address(uint8_t port, bool is_global, unsigned sgid_index) HIDDEN;

/* ------------------------------------------------------------------ sysfs.c, interpose.c */

void sysfs_create(void) HIDDEN;
/* Number of the character device that a device file says it is; sysfs says the same. */
#define UVERBS_MAJOR 231
#define UVERBS_FIRST_MINOR 192
/* The calls that our own code makes: past the interposed ones. */
int real_close(int fd) HIDDEN;
bool in_own_process(void) HIDDEN;

#endif
