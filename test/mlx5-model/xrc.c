/*
 * Extended reliable connections: a receiving QP that many share, which puts each message into the SRQ that the message
 * names. The QP and the SRQs are of one domain, which programs find by a file.
 *
 * A receiving QP has neither protection domain nor queues: it borrows those of the SRQ for as long as a request lasts.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "model.h"

static bool is_same_domain(const struct xrcd* a, const struct xrcd* b) {
  return a == b || (a->inode && a->inode == b->inode && a->device == b->device && a->o.ctx->dev == b->o.ctx->dev);
}

bool xrc_aim(struct qp* target, uint32_t srqn) {
  struct srq* srq = object_at(KIND_SRQ, srqn);
  if (!srq || !srq->xrcd || !is_same_domain(srq->xrcd, target->xrcd)) return false;
  target->srq = srq;
  target->pd = srq->pd;
  target->recv_cq = srq->cq;
  target->uidx = srq->uidx;
  return true;
}

void xrc_unaim(struct qp* target) {
  target->srq = NULL;
  target->pd = NULL;
  target->recv_cq = NULL;
}

/* ------------------------------------------------------------------ commands */

static bool domain_exists(const struct xrcd* wanted) {
  for (struct list* l = every_context.next; l != &every_context; l = l->next) {
    struct ctx* c = container_of(l, struct ctx, all);
    for (struct list* o = c->objects[KIND_XRCD].next; o != &c->objects[KIND_XRCD]; o = o->next)
      if (is_same_domain((struct xrcd*)container_of(o, struct object, of_ctx), wanted)) return true;
  }
  return false;
}

int cmd_open_xrcd(struct command* cmd) {
  struct ib_uverbs_open_xrcd req;
  command_request(cmd, &req, sizeof req);
  struct xrcd* xrcd = calloc(1, sizeof *xrcd);
  if (!xrcd) return ENOMEM;
  xrcd->o.ctx = cmd->ctx;
  int err = 0;
  if (req.fd != UINT32_MAX) {
    struct stat file;
    if (fstat((int)req.fd, &file)) {
      err = EBADF;
    } else {
      xrcd->device = file.st_dev;
      xrcd->inode = file.st_ino;
      bool exists = domain_exists(xrcd);
      if (!exists && !(req.oflags & O_CREAT)) err = EAGAIN;
      if (exists && (req.oflags & O_EXCL)) err = EINVAL;
    }
  }
  if (!err && !object_add(cmd->ctx, KIND_XRCD, &xrcd->o)) err = ENOMEM;
  if (err) {
    free(xrcd);
    return err;
  }
  struct ib_uverbs_open_xrcd_resp resp = {.xrcd_handle = xrcd->o.id};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_close_xrcd(struct command* cmd) {
  struct ib_uverbs_close_xrcd req;
  command_request(cmd, &req, sizeof req);
  struct xrcd* xrcd = object_find(cmd->ctx, KIND_XRCD, req.xrcd_handle);
  if (!xrcd) return ENOENT;
  if (xrcd->o.users) return EBUSY;
  object_remove(&xrcd->o);
  free(xrcd);
  return 0;
}

int cmd_create_xsrq(struct command* cmd) {
  struct ib_uverbs_create_xsrq req;
  struct mlx5_ib_create_srq buf;
  struct srq* srq;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  if (req.srq_type != IBV_SRQT_XRC) return EOPNOTSUPP;
  struct xrcd* xrcd = object_find(cmd->ctx, KIND_XRCD, req.xrcd_handle);
  struct cq* cq = object_find(cmd->ctx, KIND_CQ, req.cq_handle);
  if (!xrcd || !cq) return EINVAL;
  struct ib_uverbs_create_srq core = {.user_handle = req.user_handle,
                                      .pd_handle = req.pd_handle,
                                      .max_wr = req.max_wr,
                                      .max_sge = req.max_sge,
                                      .srq_limit = req.srq_limit};
  int err = srq_create(cmd->ctx, &core, &buf, &srq);
  if (err) return err;
  srq->xrcd = xrcd;
  srq->cq = cq;
  srq->uidx = buf.uidx;
  xrcd->o.users++;
  cq->o.users++;
  struct ib_uverbs_create_srq_resp resp = {
      .srq_handle = srq->o.id, .max_wr = srq->max_wr, .max_sge = srq->max_sge, .srqn = srq->o.id};
  struct mlx5_ib_create_srq_resp driver = {.srqn = srq->o.id};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}
