/*
 * The kernel's older command interface: requests that arrive as one write() each on the device file. (The younger one
 * is in ioctl.c.)
 *
 * Layout (<rdma/ib_user_verbs.h>): a header, then the core request, then the driver's request. A plain core request
 * starts with the address of the response buffer, and the driver's response follows the core response directly. An
 * extended command has a second header that says where each part starts and ends.
 */
#include <errno.h>
#include <string.h>

#include "model.h"

static const struct {
  const char* name;
  command_fn *plain, *extended;
} commands[] = {
#define PLAIN(NAME, fn) [IB_USER_VERBS_CMD_##NAME] = {#NAME, fn, NULL}
#define BOTH(NAME, fn, ex) [IB_USER_VERBS_CMD_##NAME] = {#NAME, fn, ex}
    PLAIN(GET_CONTEXT, cmd_get_context),
    BOTH(QUERY_DEVICE, cmd_query_device, cmd_ex_query_device),
    PLAIN(QUERY_PORT, cmd_query_port),
    PLAIN(ALLOC_PD, cmd_alloc_pd),
    PLAIN(DEALLOC_PD, cmd_dealloc_pd),
    PLAIN(CREATE_AH, cmd_create_ah),
    PLAIN(DESTROY_AH, cmd_destroy_ah),
    PLAIN(REG_MR, cmd_reg_mr),
    PLAIN(REREG_MR, cmd_rereg_mr),
    PLAIN(DEREG_MR, cmd_dereg_mr),
    PLAIN(ALLOC_MW, cmd_alloc_mw),
    PLAIN(DEALLOC_MW, cmd_dealloc_mw),
    PLAIN(CREATE_COMP_CHANNEL, cmd_create_comp_channel),
    BOTH(CREATE_CQ, cmd_create_cq, cmd_ex_create_cq),
    PLAIN(RESIZE_CQ, cmd_resize_cq),
    [IB_USER_VERBS_EX_CMD_MODIFY_CQ] = {"MODIFY_CQ", NULL, cmd_ex_modify_cq},
    PLAIN(DESTROY_CQ, cmd_destroy_cq),
    BOTH(CREATE_QP, cmd_create_qp, cmd_ex_create_qp),
    PLAIN(QUERY_QP, cmd_query_qp),
    BOTH(MODIFY_QP, cmd_modify_qp, cmd_ex_modify_qp),
    PLAIN(DESTROY_QP, cmd_destroy_qp),
    PLAIN(CREATE_SRQ, cmd_create_srq),
    PLAIN(MODIFY_SRQ, cmd_modify_srq),
    PLAIN(QUERY_SRQ, cmd_query_srq),
    PLAIN(DESTROY_SRQ, cmd_destroy_srq),
#define EXTENDED(NAME, fn) [IB_USER_VERBS_EX_CMD_##NAME] = {#NAME, NULL, fn}
    EXTENDED(CREATE_FLOW, cmd_ex_create_flow),
    EXTENDED(DESTROY_FLOW, cmd_ex_destroy_flow),
    EXTENDED(CREATE_WQ, cmd_ex_create_wq),
    EXTENDED(MODIFY_WQ, cmd_ex_modify_wq),
    EXTENDED(DESTROY_WQ, cmd_ex_destroy_wq),
    EXTENDED(CREATE_RWQ_IND_TBL, cmd_ex_create_rwq_ind_table),
    EXTENDED(DESTROY_RWQ_IND_TBL, cmd_ex_destroy_rwq_ind_table),
#undef EXTENDED
    PLAIN(OPEN_XRCD, cmd_open_xrcd),
    PLAIN(CLOSE_XRCD, cmd_close_xrcd),
    PLAIN(CREATE_XSRQ, cmd_create_xsrq),
#undef PLAIN
#undef BOTH
};

static void take(void* to, size_t size, const uint8_t* from, size_t available) {
  memset(to, 0, size);
  if (available) memcpy(to, from, min_of(size, available));
}

void command_request(const struct command* cmd, void* core, size_t size) { take(core, size, cmd->in, cmd->in_size); }

void command_driver_request(const struct command* cmd, size_t core_size, void* driver, size_t size) {
  if (cmd->driver_in)
    take(driver, size, cmd->driver_in, cmd->driver_in_size);
  else
    take(driver, size, cmd->in + core_size, cmd->in_size > core_size ? cmd->in_size - core_size : 0);
}

/* Writes as much of the answer as there is room for: an older library asks for less. */
void command_reply(const struct command* cmd, const void* core, size_t size, const void* driver, size_t driver_size) {
  size_t offset = cmd->driver_out_offset ? cmd->driver_out_offset : size;
  size_t core_room = min_of(offset, cmd->out_size);
  if (core_room) memcpy(cmd->out, core, min_of(size, core_room));
  if (driver && cmd->out_size > offset) memcpy(cmd->out + offset, driver, min_of(driver_size, cmd->out_size - offset));
}

static int run(struct ctx* c, uint32_t number, bool extended, struct command* cmd) {
  bool known = number < sizeof commands / sizeof *commands;
  command_fn* fn = !known ? NULL : extended ? commands[number].extended : commands[number].plain;
  if (c->orphan || c->dead) return EIO;
  if (!fn) return EOPNOTSUPP;
  if (!c->ready && fn != cmd_get_context) return EINVAL;
  return fn(cmd);
}

ssize_t uverbs_write(struct ctx* c, const void* buf, size_t size) {
  const struct ib_uverbs_cmd_hdr* header = buf;
  const struct ib_uverbs_ex_cmd_hdr* ex = (const void*)(header + 1);
  struct command cmd = {.ctx = c};
  if (size < sizeof *header) return errno = EINVAL, -1;
  uint32_t number = header->command & IB_USER_VERBS_CMD_COMMAND_MASK;
  bool extended = header->command & IB_USER_VERBS_CMD_FLAG_EXTENDED;
  if (extended) {
    if (size < sizeof *header + sizeof *ex) return errno = EINVAL, -1;
    size_t left = size - sizeof *header - sizeof *ex, core = header->in_words * 8u;
    if (core > left) return errno = EINVAL, -1;
    cmd.in = (const uint8_t*)(ex + 1);
    cmd.in_size = core;
    cmd.driver_in = cmd.in + core;
    cmd.driver_in_size = left - core;
    cmd.out = (uint8_t*)ex->response;
    cmd.driver_out_offset = header->out_words * 8u;
    cmd.out_size = cmd.driver_out_offset + ex->provider_out_words * 8u;
  } else {
    cmd.in = (const uint8_t*)(header + 1);
    cmd.in_size = size - sizeof *header;
    cmd.out_size = header->out_words * 4u;
    if (cmd.out_size) {
      uint64_t response = 0;
      take(&response, sizeof response, cmd.in, cmd.in_size);
      cmd.out = (uint8_t*)response;
    }
  }
  if (!extended) memory_fault_in_before(&cmd, number);
  engine_lock();
  int err = run(c, number, extended, &cmd);
  if (!err) engine_kick();
  engine_unlock();
  MODEL_LOG("%s%s: %s\n", extended ? "EX_" : "",
            number < sizeof commands / sizeof *commands && commands[number].name ? commands[number].name : "unknown",
            err ? strerror(err) : "ok");
  if (err) return errno = err, -1;
  return (ssize_t)size;
}
