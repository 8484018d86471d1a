/*
 * When work is executed: on a thread of its own, or inside the calls of the program, as MLX5MODEL_MODE says.
 *
 * A NIC is told of new work by a store to a doorbell register, which the model cannot see. It sees the calls that lead
 * to one (hooks.c), and looks at the doorbell records in memory. The thread looks at all queues while it is awake; the
 * other modes serve a QP when it is posted to, and keep those that have more to do in a list of their own.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "model.h"

struct statistics stats;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int lock_waiters; /* lets the busy thread step back, a mutex alone is not fair */
static struct list every_qp = {&every_qp, &every_qp};
static struct list pending = {&pending, &pending};
static atomic_int pending_count; /* read without the lock by every poll */

static bool thread_running, stopping;
static atomic_uint asleep;   /* the futex that the thread sleeps on: 1 while it does */
static uint64_t next_wakeup; /* when a time limit of a pending QP runs out; 0: none */

/* Programs that write to the doorbell themselves (mlx5dv) are not seen by the hooks: for them the thread looks up. */
#define LOOK_UP_NS 20000000ull
#define BUDGET 64 /* requests of one QP before the next one has its turn */

void engine_lock(void) {
  if (!pthread_mutex_trylock(&lock)) return;
  atomic_fetch_add_explicit(&lock_waiters, 1, memory_order_relaxed);
  pthread_mutex_lock(&lock);
  atomic_fetch_sub_explicit(&lock_waiters, 1, memory_order_relaxed);
}

void engine_unlock(void) { pthread_mutex_unlock(&lock); }

/* ------------------------------------------------------------------ serving a QP */

static inline uint16_t send_producer(struct qp* qp) {
  return (uint16_t)be32toh(atomic_load_explicit(&qp->dbrec[MLX5_SND_DBR], memory_order_acquire));
}

/* In state ERR whatever is posted completes in error, in order; in SQE the sends do. */
static int flush(struct qp* qp) {
  int done = 0;
  uint16_t producer = send_producer(qp);
  for (; qp->sq_count && qp->sq_consumed != producer; done++) {
    struct mlx5_wqe_ctrl_seg* ctrl = (void*)(qp->sq + (size_t)(qp->sq_consumed & (qp->sq_count - 1)) * 64);
    uint16_t units = be32toh(ctrl->qpn_ds) & 0x3f;
    cq_report_error(qp, false, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, be32toh(ctrl->opmod_idx_opcode) & 0xff, qp->sq_consumed);
    qp->sq_consumed = (uint16_t)(qp->sq_consumed + (units ? (units + 3) / 4 : 1));
  }
  for (; qp->state == IBV_QPS_ERR && !qp->srq && qp->rq_count && recv_available(qp); done++)
    cq_report_error(qp, true, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0, qp->rq_consumed++);
  return done;
}

static int serve(struct qp* qp) {
  int done = 0;
  if (qp->state == IBV_QPS_RTS && qp->sq_count) {
    uint16_t producer = send_producer(qp);
    while (qp->sq_consumed != producer && qp->state == IBV_QPS_RTS && done < BUDGET && send_execute(qp)) done++;
  }
  return qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE ? done + flush(qp) : done;
}

static bool has_more(struct qp* qp) {
  return qp->state == IBV_QPS_RTS && qp->sq_count && qp->sq_consumed != send_producer(qp);
}

static void unpend(struct qp* qp) {
  if (list_empty(&qp->pending)) return;
  list_remove(&qp->pending);
  pending_count--;
}

void engine_set_pending(struct qp* qp) {
  if (!list_empty(&qp->pending)) return;
  list_append(&pending, &qp->pending);
  pending_count++;
}

static void wake(void) {
  if (!atomic_exchange(&asleep, 0)) return;
  syscall(SYS_futex, &asleep, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* A pending QP waits for the other side only until its time is up: then somebody has to look at it again. */
static void note_wakeup(struct qp* qp) {
  if (qp->wait == WAIT_NONE || !qp->wait_until || (next_wakeup && next_wakeup <= qp->wait_until)) return;
  next_wakeup = qp->wait_until;
  wake();
}

/* One round over a list; what one QP does may let another one proceed. `link` is the list's place in struct qp. */
static int serve_all_qps(void) {
  int done = 0;
  next_wakeup = 0;
  for (struct list* l = every_qp.next; l != &every_qp; l = l->next) {
    struct qp* qp = container_of(l, struct qp, active);
    done += serve(qp);
    unpend(qp);
    if (qp->wait != WAIT_NONE && qp->wait_until && (!next_wakeup || qp->wait_until < next_wakeup))
      next_wakeup = qp->wait_until;
  }
  return done;
}

static void serve_pending(void) {
  for (int done = 1; done;) {
    struct list round;
    done = 0;
    next_wakeup = 0;
    if (list_empty(&pending)) return;
    /* takes the list over, because serving may append to it */
    round = pending;
    round.next->prev = round.prev->next = &round;
    list_init(&pending);
    while (!list_empty(&round)) {
      struct qp* qp = container_of(round.next, struct qp, pending);
      unpend(qp);
      done += serve(qp);
      if (has_more(qp)) engine_set_pending(qp);
      note_wakeup(qp);
    }
  }
}

static void serve_posted(struct qp* qp) {
  do {
    serve(qp);
  } while (qp->wait == WAIT_NONE && has_more(qp));
  if (has_more(qp)) {
    engine_set_pending(qp);
    note_wakeup(qp);
  }
  if (pending_count) serve_pending();
}

/* ------------------------------------------------------------------ the thread */

static void sleep_for(uint64_t ns) {
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
  syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, ns == UINT64_MAX ? NULL : &t, NULL, 0);
  atomic_store(&asleep, 0);
}

/* How long the thread may sleep; UINT64_MAX without end. */
static uint64_t time_to_sleep(void) {
  uint64_t ns = cfg.mode == MODE_THREAD && !list_empty(&every_qp) ? LOOK_UP_NS : UINT64_MAX;
  uint64_t due = cq_check_due(), wakeup = next_wakeup && (!due || next_wakeup < due) ? next_wakeup : due;
  if (!wakeup) return ns;
  uint64_t now = now_ns(), left = wakeup > now ? wakeup - now : 0;
  return min_of(ns, left);
}

static void* engine_thread(void* unused) {
  uint64_t idle_since = 0;
  bool going_to_sleep = false;
  for (;;) {
    while (atomic_load_explicit(&lock_waiters, memory_order_relaxed)) sched_yield();
    pthread_mutex_lock(&lock);
    if (stopping) break;
    int done = 0;
    if (cfg.mode == MODE_THREAD)
      done = serve_all_qps();
    else if (next_wakeup && now_ns() >= next_wakeup)
      serve_pending();
    uint64_t ns = time_to_sleep();
    pthread_mutex_unlock(&lock);
    if (done) {
      idle_since = 0;
      going_to_sleep = false;
      atomic_store(&asleep, 0);
    } else if (going_to_sleep) { /* looked once more after saying so: nothing was missed */
      if (ns) sleep_for(ns);
      going_to_sleep = false;
      idle_since = 0;
    } else {
      uint64_t now = now_ns();
      if (!idle_since) idle_since = now;
      going_to_sleep = cfg.mode != MODE_THREAD || now - idle_since >= cfg.spin_ns;
      if (going_to_sleep) atomic_store(&asleep, 1); /* sequentially consistent, and so is the look of who posts */
    }
  }
  pthread_mutex_unlock(&lock);
  return unused;
}

int engine_start_thread(void) {
  if (thread_running) return 0;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all); /* signals are for the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(&thread, NULL, engine_thread, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err) return err;
  pthread_setname_np(thread, "mlx5model");
  pthread_detach(thread);
  thread_running = true;
  return 0;
}

/* At exit the thread must not touch memory that is being torn down. It is not waited for: it may not even run. */
void engine_stop(void) {
  engine_lock();
  stopping = true;
  engine_unlock();
  wake();
}

/* ------------------------------------------------------------------ what the other files report */

void engine_add_qp(struct qp* qp) {
  list_append(&every_qp, &qp->active);
  list_init(&qp->pending);
}

void engine_remove_qp(struct qp* qp) {
  unpend(qp);
  list_remove(&qp->active);
}

void engine_wake(void) { wake(); }

void engine_kick(void) {
  if (cfg.mode == MODE_THREAD)
    wake();
  else if (pending_count)
    serve_pending();
}

/* In poll mode work waits for the next poll, unless an event is awaited: then nobody is going to poll. */
static bool serve_now(void) { return cfg.mode == MODE_INLINE || cqs_armed; }

void engine_posted_send(uint32_t qpn) {
  if (cfg.mode == MODE_THREAD) {
    atomic_thread_fence(memory_order_seq_cst); /* the doorbell record before the look at `asleep` */
    if (atomic_load_explicit(&asleep, memory_order_relaxed)) wake();
    return;
  }
  engine_lock();
  struct qp* qp = object_at(KIND_QP, qpn);
  if (qp && serve_now())
    serve_posted(qp);
  else if (qp)
    engine_set_pending(qp);
  engine_unlock();
}

void engine_posted_srq_recv(void) {
  if (cfg.mode == MODE_THREAD)
    engine_posted_send(0);
  else if (atomic_load_explicit(&pending_count, memory_order_relaxed)) {
    engine_lock();
    if (serve_now()) serve_pending();
    engine_unlock();
  }
}

void engine_posted_recv(uint32_t qpn) {
  struct qp* qp = object_at(KIND_QP, qpn);
  if (cfg.mode != MODE_THREAD && qp && qp->state == IBV_QPS_ERR)
    engine_posted_send(qpn); /* is flushed at once */
  else
    engine_posted_srq_recv();
}

void engine_polling(void) {
  if (cfg.mode == MODE_THREAD || !atomic_load_explicit(&pending_count, memory_order_relaxed)) return;
  engine_lock();
  serve_pending();
  engine_unlock();
}

void engine_armed(uint32_t cqn) {
  engine_lock();
  struct cq* cq = object_at(KIND_CQ, cqn);
  if (cfg.mode != MODE_THREAD && pending_count) serve_pending();
  if (cq && cq->channel) cq_check_arm(cq);
  engine_unlock();
}

/* ------------------------------------------------------------------ fork */

static void before_fork(void) { engine_lock(); }
static void in_parent(void) { engine_unlock(); }

/*
 * The child has the parent's memory but not its engine, and a NIC works for the parent alone. So the child's copies of
 * the objects go; its descriptors stay, for the program to close, and commands on them fail. (vfork() and
 * posix_spawn() do not come here: there the child shares the memory, see in_own_process().)
 */
static void in_child(void) {
  pthread_mutex_init(&lock, NULL);
  atomic_store(&lock_waiters, 0);
  atomic_store(&asleep, 0);
  thread_running = false;
  next_wakeup = 0;
  for (struct list* l = every_context.next; l != &every_context; l = l->next) {
    struct ctx* c = container_of(l, struct ctx, all);
    ctx_release_objects(c);
    c->orphan = true;
  }
}

void engine_init(void) { pthread_atfork(before_fork, in_parent, in_child); }
