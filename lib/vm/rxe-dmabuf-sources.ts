/**
 * What is added to the guest kernel's own rxe so that it registers DMA-BUFs, and the library in front of libibverbs that asks
 * it to. Both are our own; of the kernel's source nothing is kept here.
 */

/** A change to a file of rxe: `text` is put in front of or behind the one place where `at` stands. */
export interface Edit {
  file: string;
  at: RegExp;
  place: 'before' | 'after';
  text: string;
}

/** Each must find its place exactly once: else this rxe is another one than the edits were made for. */
export const edits: readonly Edit[] = [
  { file: 'Makefile', at: /\brxe_mr\.o/, place: 'before', text: 'rxe_dmabuf.o ' },
  {
    ...{ file: 'rxe_loc.h', at: /^void rxe_mr_cleanup\(.*\n/m, place: 'after' },
    text: `void rxe_dmabuf_release(struct rxe_mr *mr);
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs);
`,
  },
  { file: 'rxe_mr.c', at: /^\tib_umem_release\(mr->umem\);\n/m, place: 'after', text: '\trxe_dmabuf_release(mr);\n' },
  {
    ...{ file: 'rxe_verbs.c', at: /^\t\.reg_user_mr = rxe_reg_user_mr,\n/m, place: 'after' },
    text: '\t.reg_user_mr_dmabuf = rxe_reg_user_mr_dmabuf,\n',
  },
  { file: 'rxe_verbs.h', at: /^#include "rxe_pool\.h"\n/m, place: 'before', text: '#include <linux/iosys-map.h>\n' },
  {
    ...{ file: 'rxe_verbs.h', at: /^\tstruct rxe_mr_page\t\*page_info;\n/m, place: 'after' },
    text: '\tstruct dma_buf *dmabuf;\n\tstruct iosys_map dmabuf_map;\n',
  },
];

/** The file that is added to rxe. */
export const kernelSource = `// SPDX-License-Identifier: MIT
/*
 * A test vehicle: memory regions of DMA-BUFs for Soft-RoCE, whose "DMA" is a memcpy by the processor. It is no device that
 * an exporter could map its memory for, so it asks for the exporter's mapping in the kernel instead, and takes the pages
 * behind it. Mapping and buffer are held until the region goes.
 */
#include <linux/dma-buf.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/vmalloc.h>

#include "rxe.h"
#include "rxe_loc.h"

MODULE_IMPORT_NS(DMA_BUF);

void rxe_dmabuf_release(struct rxe_mr *mr)
{
	if (!mr->dmabuf)
		return;
	dma_buf_vunmap_unlocked(mr->dmabuf, &mr->dmabuf_map);
	dma_buf_put(mr->dmabuf);
	mr->dmabuf = NULL;
}

static struct page *page_of(void *address)
{
	return is_vmalloc_addr(address) ? vmalloc_to_page(address) : virt_to_page(address);
}

/* What it has taken when it fails is given back by the cleanup of the region. */
static int take_pages(struct rxe_mr *mr, u64 offset, u64 length, u64 iova)
{
	u64 first = offset >> PAGE_SHIFT;
	u64 count = ((offset + length - 1) >> PAGE_SHIFT) - first + 1;
	u64 i;

	if (mr->dmabuf_map.is_iomem)
		return -EOPNOTSUPP;
	mr->page_info = kcalloc(count, sizeof(*mr->page_info), GFP_KERNEL);
	if (!mr->page_info)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		mr->page_info[i].page = page_of(mr->dmabuf_map.vaddr + ((first + i) << PAGE_SHIFT));
	mr->num_buf = count;
	mr->max_allowed_buf = count;
	mr->nbuf = count;
	/* The core sets these for other regions only. */
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;
	return 0;
}

static int take_dmabuf(struct rxe_mr *mr, u64 offset, u64 length, u64 iova, int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	u64 end;
	int err;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (!length || check_add_overflow(offset, length, &end) || end > dmabuf->size)
		err = -EINVAL;
	else if (!dmabuf->ops->vmap)
		err = -EOPNOTSUPP;
	else
		err = dma_buf_vmap_unlocked(dmabuf, &mr->dmabuf_map);
	if (err) {
		dma_buf_put(dmabuf);
		return err;
	}
	mr->dmabuf = dmabuf;
	return take_pages(mr, offset, length, iova);
}

struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_mr *mr;
	int err;

	if (access & ~RXE_ACCESS_SUPPORTED_MR)
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_get(to_rpd(ibpd));
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;
	rxe_mr_init(access, mr);
	err = take_dmabuf(mr, offset, length, iova, fd);
	if (err) {
		rxe_cleanup(mr);
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_finalize(mr);
	return &mr->ibmr;
}
`;

/**
 * The library that stands for libibverbs: all of it, except that a provider without DMA-BUF regions (that of rxe is one) is no
 * reason not to ask the kernel.
 */
export const librarySource = `// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct ibv_pd;
struct ibv_mr;
typedef struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
typedef int (*cmd_reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, void *);

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	reg_dmabuf_mr ask_provider = (reg_dmabuf_mr)dlsym(RTLD_NEXT, "ibv_reg_dmabuf_mr");
	cmd_reg_dmabuf_mr ask_kernel = (cmd_reg_dmabuf_mr)dlsym(RTLD_NEXT, "ibv_cmd_reg_dmabuf_mr");
	struct ibv_mr *mr = ask_provider ? ask_provider(pd, offset, length, iova, fd, access) : NULL;
	int err;

	if (mr)
		return mr;
	if (ask_provider && errno != EOPNOTSUPP)
		return NULL;
	if (!ask_kernel) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	/* struct verbs_mr, which begins with the region and has 56 bytes; ibv_dereg_mr() frees it. */
	mr = calloc(1, 256);
	err = mr ? ask_kernel(pd, offset, length, iova, fd, access, mr) : ENOMEM;
	if (!err)
		return mr;
	free(mr);
	errno = err;
	return NULL;
}
`;
