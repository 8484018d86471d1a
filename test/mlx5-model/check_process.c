/* Checks: descriptors, forks, many processes, threads, sleep and exit. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static bool some_traffic(struct pair* p) {
  for (uint64_t i = 0; i < 100; i++) {
    EXPECT(!post_receive(&p->b, p->b.buf, 64, i) && !post_rdma(&p->a, IBV_WR_SEND, IBV_SEND_SIGNALED, 40, &p->b, i));
    EXPECT(completes(p->a.cq, i, IBV_WC_SUCCESS) && completes(p->b.recv_cq, i, IBV_WC_SUCCESS));
  }
  return true;
}

static bool whole_program(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}) && some_traffic(&p));
  return pair_close(&p);
}

static bool duplicates(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  int fd = dup(p.a.context->cmd_fd), other = fcntl(p.a.context->cmd_fd, F_DUPFD_CLOEXEC, 0),
      channel = dup(p.a.channel->fd);
  EXPECT(fd >= 0 && other >= 0 && channel >= 0 && dup2(fd, other) == other && dup3(fd, other, O_CLOEXEC) == other);
  EXPECT(!close(fd) && !close(other) && !close(channel) && some_traffic(&p)); /* the context is still there */
  struct pollfd event = {p.a.channel->fd, POLLIN, 0};
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0) && !post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(poll(&event, 1, 1000) == 1 && completes(p.a.cq, 1, IBV_WC_SUCCESS));
  return pair_close(&p);
}

static bool high_descriptors(void) {
  enum { MANY = 5000 };
  struct rlimit limit, before;
  int fds[MANY];
  EXPECT(!getrlimit(RLIMIT_NOFILE, &before));
  limit = before;
  limit.rlim_cur = limit.rlim_max;
  EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_cur < MANY + 100) return puts("  (the hard limit of open files is too low here)"), true;
  for (int i = 0; i < MANY; i++) EXPECT((fds[i] = open("/dev/zero", O_RDONLY | O_CLOEXEC)) >= 0);
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}) && p.a.context->cmd_fd > 4096 && some_traffic(&p) && pair_close(&p));
  for (int i = 0; i < MANY; i++) EXPECT(!close(fds[i]));
  EXPECT(!setrlimit(RLIMIT_NOFILE, &before));
  return true;
}

static bool child_succeeds(pid_t pid) {
  int status;
  EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return true;
}

/* A forked child closes what it inherited, and the parent does not feel it. */
static bool fork_and_close(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0) && !post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS)); /* and an event waits unread */
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    bool refused = ibv_modify_qp(p.a.qp, &err, IBV_QP_STATE) == EIO;
    post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 2); /* without effect */
    close(p.a.channel->fd);
    close(p.a.context->async_fd);
    close(p.a.context->cmd_fd);
    _exit(refused ? 0 : 1);
  }
  EXPECT(child_succeeds(pid) && quiet(p.a.cq) && some_traffic(&p));
  struct ibv_cq* cq;
  void* user;
  EXPECT(!ibv_get_cq_event(p.a.channel, &cq, &user));
  ibv_ack_cq_events(cq, 1);
  return pair_close(&p);
}

/* A forked child has a device of its own, while the parent's engine is at work. */
static bool fork_and_work(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (int i = 0; i < 5; i++) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(whole_program() ? 0 : 1);
    EXPECT(some_traffic(&p) && child_succeeds(pid));
  }
  return pair_close(&p);
}

static bool exec_and_spawn(void) {
  extern char** environ;
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}) && run_self("program", NULL) == 0);
  char* argv[] = {"check", "child", "program", NULL};
  posix_spawn_file_actions_t actions; /* the child closes and duplicates in memory that it shares with us */
  pid_t pid;
  EXPECT(!posix_spawn_file_actions_init(&actions));
  EXPECT(!posix_spawn_file_actions_addclose(&actions, p.a.context->cmd_fd));
  EXPECT(!posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ) && child_succeeds(pid));
  EXPECT(!posix_spawn_file_actions_destroy(&actions));
  pid = vfork();
  if (pid == 0) {
    close(p.a.context->cmd_fd);
    _exit(0);
  }
  EXPECT(child_succeeds(pid) && some_traffic(&p));
  return pair_close(&p);
}

/* All start at once in a directory where there is no sysfs tree yet. */
static bool many_processes(void) {
  enum { PROCESSES = 24 };
  char dir[] = "/tmp/mlx5model-check-XXXXXX", setting[64], command[96];
  pid_t pids[PROCESSES];
  EXPECT(mkdtemp(dir));
  snprintf(setting, sizeof setting, "MLX5MODEL_DIR=%s", dir);
  fflush(stdout);
  for (int i = 0; i < PROCESSES; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      putenv(setting);
      execl("/proc/self/exe", "check", "child", "program", (char*)NULL);
      _exit(127);
    }
  }
  for (int i = 0; i < PROCESSES; i++) EXPECT(child_succeeds(pids[i]));
  snprintf(command, sizeof command, "test $(ls %s | wc -l) = 1 && rm -r %s", dir, dir); /* one tree, no leftovers */
  EXPECT(system(command) == 0);
  return true;
}

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool idle_is_cheap(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}) && some_traffic(&p));
  usleep(50000);
  double before = cpu_seconds();
  usleep(1000000);
  double used = cpu_seconds() - before;
  if (used > 0.1) printf("  %.1f ms CPU in one idle second\n", used * 1e3);
  EXPECT(used <= 0.1); /* spinning takes all of it */
  EXPECT(some_traffic(&p));
  return pair_close(&p);
}

/* After each sleep the engine has to notice the next request without a poll: somebody waits for the event. */
static bool wakes_up(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  uint64_t slowest = 0;
  for (uint64_t i = 0; i < 50; i++) {
    struct ibv_cq* cq;
    void* user;
    EXPECT(!ibv_req_notify_cq(p.a.cq, 0));
    usleep(3000);
    uint64_t start = now();
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, i));
    EXPECT(!ibv_get_cq_event(p.a.channel, &cq, &user));
    if (now() - start > slowest) slowest = now() - start;
    ibv_ack_cq_events(cq, 1);
    EXPECT(completes(p.a.cq, i, IBV_WC_SUCCESS));
  }
  if (slowest > 15000000) printf("  slowest: %.1f ms\n", (double)slowest * 1e-6);
  return pair_close(&p);
}

static void* thread_body(void* result) {
  *(bool*)result = true;
  for (int i = 0; i < 10; i++) *(bool*)result &= whole_program();
  return NULL;
}

static bool threads(void) {
  enum { THREADS = 4 };
  pthread_t thread[THREADS];
  bool ok[THREADS];
  for (int i = 0; i < THREADS; i++) EXPECT(!pthread_create(&thread[i], NULL, thread_body, &ok[i]));
  for (int i = 0; i < THREADS; i++) EXPECT(!pthread_join(thread[i], NULL) && ok[i]);
  return true;
}

static void* leaving_thread(void* result) {
  struct pair* p = malloc(sizeof *p);
  *(struct pair**)result = p;
  if (!pair_open(p, (struct setup){0})) *(struct pair**)result = NULL;
  return NULL;
}

/* A thread ends with all its objects alive; another one goes on with them. */
static bool thread_leaves(void) {
  pthread_t thread;
  struct pair* p = NULL;
  EXPECT(!pthread_create(&thread, NULL, leaving_thread, &p) && !pthread_join(thread, NULL));
  EXPECT(p && some_traffic(p) && pair_close(p));
  free(p);
  return true;
}

static void* busy_thread(void* arg) {
  struct pair* p = arg;
  for (uint64_t i = 0;; i++) {
    post_rdma(&p->a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, BUFFER, &p->b, i);
    struct ibv_wc wc;
    ibv_poll_cq(p->a.cq, 1, &wc);
  }
  return NULL;
}

/* Exits in the middle of everything. */
static bool exit_child(void) {
  static struct pair p;
  pthread_t thread;
  EXPECT(pair_open(&p, (struct setup){0}) && !pthread_create(&thread, NULL, busy_thread, &p));
  EXPECT(!post_rdma(&p.b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.a, 1)); /* waits for a receiver for ever */
  usleep(1000 + (unsigned)getpid() % 7 * 1000);
  return true;
}

static bool exits_at_any_time(void) {
  for (int i = 0; i < 20; i++) EXPECT(run_self("exit", NULL) == 0);
  return true;
}

int child_task(const char* name) {
  alarm(60);
  if (!strcmp(name, "program")) return !whole_program();
  if (!strcmp(name, "exit")) return !exit_child();
  return child_objects(name);
}

const struct check process_checks[] = {
    {"duplicated descriptors", duplicates},
    {"descriptors beyond 4096", high_descriptors},
    {"fork: the child closes, the parent goes on", fork_and_close},
    {"fork: the child has its own devices", fork_and_work},
    {"exec, posix_spawn and vfork", exec_and_spawn},
    {"24 processes at once", many_processes},
    {"idle costs no CPU time", idle_is_cheap},
    {"wakes up from idle", wakes_up},
    {"four threads, each with its own contexts", threads},
    {"a thread leaves its objects behind", thread_leaves},
    {"process exit in any state", exits_at_any_time},
    {0},
};
