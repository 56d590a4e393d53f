/* Sluice's C API: memory of a training program over device, pinned host memory and storage.
 *
 * Conventions of the whole header. A function states only its additions.
 *  1. Handles are opaque. X_create makes one. X_destroy ends its use, waits for queued work, and
 *     never fails; X_destroy(NULL) does nothing. Handles may be destroyed in any order: an engine's
 *     memory lives until its last handle is gone.
 *  2. Every other call returns sluice_status, but sluice_version(), sluice_status_name() and the
 *     functions for PyTorch, sluice_torch_alloc(), _free() and _record_stream(). If the status is
 *     not SLUICE_OK, out parameters are untouched, and nothing has changed unless the call says so.
 *     sluice_error() has the message.
 *  3. Structs that are handed in begin with struct_size: use X_INIT, then set what differs. NULL in
 *     place of options means X_INIT. A zero member means the default; only in sluice_group_options
 *     a zero is a value (a rate of 0). Members are only ever appended. Bytes beyond the size that
 *     the library knows must be zero, and so must members called reserved, else SLUICE_E_VERSION,
 *     so a setting that a library does not know is never ignored. Structs that are filled begin
 *     with struct_size too: the caller's. The library fills the members that it knows and sets the
 *     rest to zero. No struct has padding that the compiler adds.
 *  4. Units, groups, parameters and paged tensors are numbers, each kind a struct of its own,
 *     passed by value.
 *  5. Enumerations are int32_t, and numbers are never reused. Text is UTF-8 and is copied in.
 *  6. Threads: [any] from any thread at once. Other calls: one thread at a time for each handle; a
 *     second thread gets SLUICE_E_BUSY, never a race.
 *  7. [waits]: the call may block for a device, a disk or another thread. Every wait has a
 *     deadline: SLUICE_E_TIMEOUT names the awaited thing. No other call waits.
 *  8. A stream is {device type as in DLPack, device number, native handle}. On CUDA, calls queue
 *     work and order it by events. On the CPU, the work of a stream is the work of the calling
 *     thread.
 *  9. The library never throws through this interface, aborts, exits, prints, or changes a signal
 *     handler, the locale, the floating-point mode, the CUDA device or the context. Messages go to
 *     sluice_set_log().
 * 10. Callbacks come on the thread that makes the call, unless said otherwise, with no lock held.
 * 11. After fork() the child's calls return SLUICE_E_FORKED and its destroys do nothing. A process
 *     is such a child if its parent had made an engine, until it calls exec(). Pinned memory does
 *     not exist in it.
 * 12. Binary interface: symbols of version SLUICE_1. Until version 1.0 it may change with each
 *     minor version: build against the header of the library that you load. From 1.0 on, a program
 *     that was built keeps working with every 1.x.
 * 13. Sizes are uint64_t and say bytes, elems or ns. */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default"))) __attribute__((warn_unused_result))
#define SLUICE_API_VOID __attribute__((visibility("default")))
#else
#define SLUICE_API
#define SLUICE_API_VOID
#endif
#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 2
#define SLUICE_VERSION_PATCH 0

/* ---- Library: version, errors, log ----------------------------------------------------------- */

typedef int32_t sluice_status;
enum {
  SLUICE_OK = 0,
  SLUICE_E_INPUT = 1,        /* an argument, a file or a tensor is wrong; nothing changed */
  SLUICE_E_REFUSED = 2,      /* no plan fits the budgets; the message has the least change */
  SLUICE_E_MEMORY = 3,       /* a budget or a tier is full */
  SLUICE_E_IO = 4,           /* a system call on a file failed */
  SLUICE_E_INTEGRITY = 5,    /* bytes on storage are not those that were written */
  SLUICE_E_TIMEOUT = 6,      /* a wait passed its deadline */
  SLUICE_E_DEVICE = 7,       /* the device's driver or the kernel reported a failure */
  SLUICE_E_STATE = 8,        /* the call does not belong here in the handle's life */
  SLUICE_E_BUSY = 9,         /* another thread is in a call on the handle */
  SLUICE_E_UNSUPPORTED = 10, /* this build or version does not have it */
  SLUICE_E_VERSION = 11,     /* a struct has settings that this library does not know */
  SLUICE_E_FORKED = 12,      /* the process was forked off one with an engine */
  SLUICE_E_NOT_FINITE = 13,  /* a gradient is not finite; the update was not made */
  SLUICE_E_POISONED = 14,    /* an earlier call failed halfway; destroy the handle */
  SLUICE_E_INTERNAL = 15,    /* a bug of the library; please report the message */
  SLUICE_E_LIMIT = 16        /* a fixed limit of the library, which the message names */
};
typedef struct sluice_error_info {
  uint32_t struct_size;
  sluice_status status;
  int32_t system_errno; /* 0: none */
  /* With SLUICE_E_MEMORY and SLUICE_E_REFUSED: the tier that lacks room (SLUICE_TIER_*; -1: none),
   * the bytes that were asked of it or that the plan nearest to fitting needs, and the bytes
   * there. */
  int32_t tier;
  uint64_t requested_bytes, available_bytes;
  const char* message; /* what failed, and what would be right */
  const char* subject; /* the failed operation and its file; "": none */
} sluice_error_info;
#define SLUICE_ERROR_INFO_INIT \
  { sizeof(sluice_error_info), 0, 0, -1, 0, 0, NULL, NULL }

/* [any] major << 16 | minor << 8 | patch, of the library that is loaded. */
SLUICE_API uint32_t sluice_version(void);
/* [any] "SLUICE_E_IO"; for a number that is no status, "SLUICE_E_UNKNOWN". */
SLUICE_API const char* sluice_status_name(sluice_status status);
/* [any] This thread's last call that failed; status SLUICE_OK: none has. Its text lives until the
 * thread's next call that fails. This call itself is not recorded. */
SLUICE_API sluice_status sluice_error(sluice_error_info* info);

enum { SLUICE_LOG_DEBUG = 0, SLUICE_LOG_INFO = 1, SLUICE_LOG_WARNING = 2 };
typedef void (*sluice_log_callback)(void* user, int32_t level, const char* line);
/* [any] One for the process; NULL drops all lines. Called from any thread, the library's own
 * too. */
SLUICE_API sluice_status sluice_set_log(sluice_log_callback callback, void* user);

/* ---- Engine: a device, the tiers below it, their budgets ------------------------------------- */

enum { SLUICE_TIER_DEVICE = 0, SLUICE_TIER_PINNED = 1, SLUICE_TIER_STORAGE = 2 };
/* DLPack's numbers. CPU: host memory that emulates a GPU's, with a budget of its own. */
enum { SLUICE_DEVICE_CPU = 1, SLUICE_DEVICE_CUDA = 2 };
enum { SLUICE_STORAGE_AUTO = 0, SLUICE_STORAGE_IO_URING = 1, SLUICE_STORAGE_POSIX = 2 };
typedef struct sluice_stream {
  int32_t device_type, device_id;
  void* native; /* a cudaStream_t, NULL for the default stream; on the CPU any number */
} sluice_stream;

typedef struct sluice_engine sluice_engine;
typedef struct sluice_engine_options {
  uint32_t struct_size;
  int32_t device_type, device_id; /* device_type 0: the CPU */
  int32_t storage_engine;         /* SLUICE_STORAGE_* */
  /* Hard caps. 0: nine tenths of the bytes that are free now. On the CPU, device and pinned memory
   * both are the host's. Paths on one file system share its bytes. */
  uint64_t device_bytes, pinned_bytes, storage_bytes;
  const char* const* storage_paths; /* directories; none: the engine has no storage */
  uint32_t storage_path_count;
  int32_t threads;                     /* of updates; 0: all cores of this process */
  double deadline_s;                   /* of a whole pass of an update; 0: 600 */
  uint64_t link_bandwidth_bytes_per_s; /* CPU: of a made-up link to the device; 0: memory's own */
} sluice_engine_options;
#define SLUICE_ENGINE_OPTIONS_INIT \
  { sizeof(sluice_engine_options), SLUICE_DEVICE_CPU, 0, 0, 0, 0, 0, NULL, 0, 0, 0.0, 0 }

/* [any] */
SLUICE_API sluice_status sluice_engine_create(const sluice_engine_options* options,
                                              sluice_engine** out);
SLUICE_API_VOID void sluice_engine_destroy(sluice_engine* engine);

enum {
  SLUICE_CATEGORY_WEIGHT = 0,
  SLUICE_CATEGORY_GRADIENT = 1,
  SLUICE_CATEGORY_OPTIMIZER = 2,
  SLUICE_CATEGORY_ACTIVATION = 3,
  SLUICE_CATEGORY_WORKSPACE = 4,
  SLUICE_CATEGORY_COMMUNICATION = 5,
  SLUICE_CATEGORY_EXTERNAL = 6,
  SLUICE_CATEGORY_COUNT = 7
};
typedef struct sluice_usage {
  uint32_t struct_size, reserved;
  uint64_t cap_bytes, live_bytes, peak_bytes; /* charged, before any driver or system call */
  uint64_t measured_peak_bytes;               /* counted by the device itself; 0 for storage */
  uint64_t live_by_category[SLUICE_CATEGORY_COUNT];
} sluice_usage;
#define SLUICE_USAGE_INIT                  \
  {                                        \
    sizeof(sluice_usage), 0, 0, 0, 0, 0, { \
      0                                    \
    }                                      \
  }
/* [any] */
SLUICE_API sluice_status sluice_engine_usage(sluice_engine* engine, int32_t tier,
                                             sluice_usage* out);

/* ---- Allocator: device memory for somebody else's tensors ------------------------------------ */

typedef struct sluice_allocator sluice_allocator;
typedef struct sluice_allocator_options {
  uint32_t struct_size;
  int32_t planned;          /* 1: watches steps, then answers from an arena packed for them */
  uint64_t recorded_events; /* the last events that snapshots and reports have; 0: none */
} sluice_allocator_options;
#define SLUICE_ALLOCATOR_OPTIONS_INIT \
  { sizeof(sluice_allocator_options), 0, 0 }

/* [any] */
SLUICE_API sluice_status sluice_allocator_create(sluice_engine* engine,
                                                 const sluice_allocator_options* options,
                                                 sluice_allocator** out);
/* [waits] Blocks that are still out go too. Every stream that the allocator was told of must still
 * exist. */
SLUICE_API_VOID void sluice_allocator_destroy(sluice_allocator* allocator);

/* [any] [waits] Device memory, aligned to 512 bytes, reused in the order of `stream` (NULL: the
 * device's default stream). It waits only for blocks that other streams still use, before it is out
 * of memory. 0 bytes: *out is NULL. site: a number of sluice_allocator_site(), or 0.
 * SLUICE_E_MEMORY: sluice_allocator_report() says why. SLUICE_E_LIMIT: an allocator serves at most
 * 1,024 streams. */
SLUICE_API sluice_status sluice_allocator_alloc(sluice_allocator* allocator, uint64_t bytes,
                                                const sluice_stream* stream, uint32_t site,
                                                void** out);
/* [any] In the order of the block's stream; `data` NULL does nothing. */
SLUICE_API sluice_status sluice_allocator_free(sluice_allocator* allocator, void* data);
/* [any] `stream` uses the block too: once freed, it is not reused before that work is done. */
SLUICE_API sluice_status sluice_allocator_record_use(sluice_allocator* allocator, void* data,
                                                     const sluice_stream* stream);
/* [any] [waits] A step of the program begins. */
SLUICE_API sluice_status sluice_allocator_step(sluice_allocator* allocator);
/* [any] Pages of this stream never move (NCCL's registered memory, CUDA graphs). Before the
 * stream's first allocation, else SLUICE_E_STATE. */
SLUICE_API sluice_status sluice_allocator_pin_stream(sluice_allocator* allocator,
                                                     const sluice_stream* stream);
/* [any] The number of a name, for reports. Equal names have equal numbers. */
SLUICE_API sluice_status sluice_allocator_site(sluice_allocator* allocator, const char* name,
                                               uint32_t* out);
/* Called on the thread that allocates, when a request finds no room. It may free blocks; it returns
 * 1 if the request shall be tried again, else 0. */
typedef int32_t (*sluice_pressure_callback)(void* user, uint64_t wanted_bytes);
/* [any] NULL: none. */
SLUICE_API sluice_status sluice_allocator_on_pressure(sluice_allocator* allocator,
                                                      sluice_pressure_callback callback,
                                                      void* user);
/* [any] [waits] Returns cached memory to the device. */
SLUICE_API sluice_status sluice_allocator_trim(sluice_allocator* allocator);
typedef struct sluice_allocator_stats {
  uint32_t struct_size, reserved;
  /* Requested and not freed. The peak counts the arena of a plan as a whole, and may be wrong by
   * 1/1,024 of the device for each thread and stream. */
  uint64_t live_bytes, peak_live_bytes;
  uint64_t reserved_bytes, peak_reserved_bytes; /* pages held */
  uint64_t allocations, frees;
  uint64_t planned_allocations; /* of these, answered from the arena of a plan */
  uint64_t remapped_pages;      /* pages that moved, in place of growth */
  /* With planned 1: the present arena (0: there is no plan), allocations that came
   * otherwise than planned and took memory outside it, and the steps that had such calls. */
  uint64_t arena_bytes, fallback_allocations, diverged_steps;
} sluice_allocator_stats;
#define SLUICE_ALLOCATOR_STATS_INIT \
  { sizeof(sluice_allocator_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* [any] */
SLUICE_API sluice_status sluice_allocator_get_stats(sluice_allocator* allocator,
                                                    sluice_allocator_stats* out);
enum { SLUICE_FORMAT_JSON = 0, SLUICE_FORMAT_TORCH = 1, SLUICE_FORMAT_CSV = 2 };
/* [any] [waits] Writes the blocks and the recorded events. SLUICE_FORMAT_TORCH: the pickle of
 * torch.cuda.memory._dump_snapshot; SLUICE_FORMAT_CSV: events alone. An existing file is
 * replaced. */
SLUICE_API sluice_status sluice_allocator_snapshot(sluice_allocator* allocator, const char* path,
                                                   int32_t format);
/* [any] The last request that found no room, as JSON: holders of memory, the cause with its proof.
 * "": there was none. search_fixes 1 adds changes that would have helped, each tried on the record;
 * that takes seconds. The text lives until this thread's next call of this function. */
SLUICE_API sluice_status sluice_allocator_report(sluice_allocator* allocator, int32_t search_fixes,
                                                 const char** json);

/* For torch.cuda.memory.CUDAPluggableAllocator and MemPool. Their functions have no handle: they
 * use the allocator that is attached to their device. At most one for each device number (0 to 63);
 * destroying the allocator detaches it. PyTorch drops tensor.record_stream() unless its allocator
 * was given sluice_torch_record_stream by set_record_stream_fn(). */
/* [any] */
SLUICE_API sluice_status sluice_torch_attach(sluice_allocator* allocator);
/* [any] [waits] NULL: no room, or none is attached; torch then raises. */
SLUICE_API void* sluice_torch_alloc(ptrdiff_t size, int device, void* stream);
/* [any] Data of a detached allocator are gone already; then this does nothing. */
SLUICE_API_VOID void sluice_torch_free(void* data, ptrdiff_t size, int device, void* stream);
/* [any] `stream` uses the data too: once freed, they are not reused before that work is done. Data
 * of no attached allocator: nothing happens. */
SLUICE_API_VOID void sluice_torch_record_stream(void* data, void* stream);

/* ---- Session: gradients and optimizer state of a model, on the tiers ------------------------- */

/* An offloaded optimizer. Life: create; add groups, units and parameters; seal, which plans and
 * takes all memory, or is SLUICE_E_REFUSED with the least change that fits; then, again and again,
 * give gradients and update. Weights and gradients of trainable parameters have homes in pinned
 * memory, at addresses that never change: compute with the weights there, or copy them to a device
 * after each update. Optimizer state lies in pinned memory or on storage, and results do not
 * depend on which. */
typedef struct sluice_session sluice_session;
/* Numbered from 0 in the order in which they were added. */
typedef struct sluice_group {
  uint32_t index;
} sluice_group;
typedef struct sluice_unit {
  uint32_t index;
} sluice_unit;
typedef struct sluice_param {
  uint32_t index;
} sluice_param;
#define SLUICE_NONE UINT32_MAX /* the index of no group, unit or parameter */
static const sluice_group SLUICE_NO_GROUP = {SLUICE_NONE};
static const sluice_unit SLUICE_NO_UNIT = {SLUICE_NONE};
enum { SLUICE_STATE_AUTO = 0, SLUICE_STATE_PINNED = 1, SLUICE_STATE_STORAGE = 2 };
typedef struct sluice_session_options {
  uint32_t struct_size;
  int32_t state; /* SLUICE_STATE_AUTO: pinned as far as the budget allows, the rest on storage */
  /* A directory for sluice_session_commit(), of one session at a time. All weights and state then
   * take their bytes twice on storage, in files that stay. NULL: the session does not commit. */
  const char* commit_path;
} sluice_session_options;
#define SLUICE_SESSION_OPTIONS_INIT \
  { sizeof(sluice_session_options), SLUICE_STATE_AUTO, NULL }
/* [any] */
SLUICE_API sluice_status sluice_session_create(sluice_engine* engine,
                                               const sluice_session_options* options,
                                               sluice_session** out);
SLUICE_API_VOID void sluice_session_destroy(sluice_session* session);

/* SLUICE_DTYPE_BLOCK8: of moments, a byte for each element and a scale for 128
 * (SLUICE_KIND_MOMENT1_SCALE). */
enum {
  SLUICE_DTYPE_F32 = 1,
  SLUICE_DTYPE_BF16 = 2,
  SLUICE_DTYPE_F16 = 3,
  SLUICE_DTYPE_I16 = 6,
  SLUICE_DTYPE_BLOCK8 = 9
};
/* Row-major and dense. */
typedef struct sluice_tensor {
  uint32_t struct_size;
  int32_t dtype, device_type, device_id, ndim, reserved;
  void* data;
  const int64_t* shape;
} sluice_tensor;
#define SLUICE_TENSOR_INIT \
  { sizeof(sluice_tensor), SLUICE_DTYPE_F32, SLUICE_DEVICE_CPU, 0, 0, 0, NULL, NULL }

struct DLManagedTensorVersioned; /* of dlpack.h, version 1; this header does not include it */
/* [any] Describes the tensor for other libraries. Its memory is lent: it must outlive all use, and
 * the deleter frees the description alone. Shape and strides are the description's own. */
SLUICE_API sluice_status sluice_to_dlpack(const sluice_tensor* tensor,
                                          struct DLManagedTensorVersioned** out);
/* [any] Describes a tensor of another library, which stays the owner: the caller calls its deleter
 * after the last use. shape: room for 8 dimensions, which *out refers to. Memory that CUDA pinned
 * counts as the CPU's. Strides that are not dense are SLUICE_E_INPUT, other dtypes than
 * SLUICE_DTYPE_F32, _BF16, _F16 and _I16 SLUICE_E_UNSUPPORTED. */
SLUICE_API sluice_status sluice_from_dlpack(const struct DLManagedTensorVersioned* managed,
                                            sluice_tensor* out, int64_t shape[8]);

/* SLUICE_RULE_CALLER: the program updates these parameters itself (sluice_session_update_begin). */
enum {
  SLUICE_RULE_ADAMW = 0,
  SLUICE_RULE_ADAM = 1,
  SLUICE_RULE_SGD = 2,
  SLUICE_RULE_LION = 3,
  SLUICE_RULE_CALLER = 7
};
/* docs/design/arithmetic.md has the arithmetic of each rule; it uses no fused multiply-add. */
typedef struct sluice_group_options {
  uint32_t struct_size;
  int32_t rule;
  int32_t
      moments; /* SLUICE_DTYPE_F32, SLUICE_DTYPE_BF16 or SLUICE_DTYPE_BLOCK8; 0: SLUICE_DTYPE_F32 */
  int32_t split_master;   /* 1: bf16 weights have a 16-bit remainder in place of an fp32 master */
  int32_t nesterov;       /* SLUICE_RULE_SGD */
  int32_t caller_moments; /* SLUICE_RULE_CALLER: states of a parameter's shape, 0 to 2; no master */
  double lr, weight_decay;
  double beta1, beta2, eps; /* AdamW, Adam, Lion */
  double momentum;          /* SGD */
} sluice_group_options;
#define SLUICE_GROUP_OPTIONS_INIT                                                               \
  {                                                                                             \
    sizeof(sluice_group_options), SLUICE_RULE_ADAMW, SLUICE_DTYPE_F32, 0, 0, 0, 1e-3, 0.0, 0.9, \
        0.999, 1e-8, 0.9                                                                        \
  }
/* Before seal. */
SLUICE_API sluice_status sluice_session_add_group(sluice_session* session,
                                                  const sluice_group_options* options,
                                                  sluice_group* out);
/* At any time, from the next update on; rule, moments and split_master must stay, and SGD's
 * momentum zero or not zero. */
SLUICE_API sluice_status sluice_session_set_group(sluice_session* session, sluice_group group,
                                                  const sluice_group_options* options);
/* Before seal. State of one unit moves together: a layer, or a block of layers. */
SLUICE_API sluice_status sluice_session_add_unit(sluice_session* session, const char* name,
                                                 sluice_unit* out);
typedef struct sluice_param_options {
  uint32_t struct_size;
  int32_t dtype; /* of weight and gradient: SLUICE_DTYPE_F32, SLUICE_DTYPE_BF16, SLUICE_DTYPE_F16 */
  int32_t ndim;  /* 0: a scalar */
  sluice_unit unit;
  sluice_group group; /* SLUICE_NO_GROUP: frozen; the session keeps nothing of it */
  uint32_t reserved;
  const char* name; /* unique: that of files */
  const int64_t* shape;
  const void* data; /* initial weights, read by sluice_session_seal(); NULL: zeros */
} sluice_param_options;
#define SLUICE_PARAM_OPTIONS_INIT \
  { sizeof(sluice_param_options), SLUICE_DTYPE_F32, 0, {0}, {SLUICE_NONE}, 0, NULL, NULL, NULL }
/* Before seal. */
SLUICE_API sluice_status sluice_session_add_param(sluice_session* session,
                                                  const sluice_param_options* options,
                                                  sluice_param* out);
/* [waits] SLUICE_E_REFUSED and SLUICE_E_INPUT leave the session open: change it, seal again. */
SLUICE_API sluice_status sluice_session_seal(sluice_session* session);

/* After seal, and not of frozen parameters: the homes of weight and gradient, until the session is
 * destroyed. The shape's memory is the session's, too. */
SLUICE_API sluice_status sluice_session_weight(sluice_session* session, sluice_param param,
                                               sluice_tensor* out);
SLUICE_API sluice_status sluice_session_grad(sluice_session* session, sluice_param param,
                                             sluice_tensor* out);
/* Takes a gradient over, on the CPU and of the parameter's dtype and shape; its memory is free
 * again. The first since the last update is copied home; others are added to it, each sum in fp32
 * and rounded to the dtype. A gradient that was written into its home counts as given by this
 * call. */
SLUICE_API sluice_status sluice_session_give_grad(sluice_session* session, sluice_param param,
                                                  const sluice_tensor* grad);
typedef struct sluice_update_info {
  uint32_t struct_size, reserved;
  double max_norm;   /* gradients are clipped to this norm of all together; 0: no clipping */
  double grad_scale; /* gradients are multiplied by it first; 0: 1 */
  double grad_norm;  /* filled: scaled, before clipping */
} sluice_update_info;
#define SLUICE_UPDATE_INFO_INIT \
  { sizeof(sluice_update_info), 0, 0.0, 0.0, 0.0 }
/* [waits] Every trainable parameter needs a gradient, else SLUICE_E_STATE names one.
 * SLUICE_E_NOT_FINITE: nothing was updated, and the gradients are dropped; also where grad_scale
 * takes them out of fp32's range. Any other failure within the update poisons the session. */
SLUICE_API sluice_status sluice_session_update(sluice_session* session, sluice_update_info* info);

/* An update of a session with SLUICE_RULE_CALLER groups (it may have others, too). Begin it; then
 * take part after part and update each: its weight and states in place, from its gradient times
 * grad_factor. Taking the next part ends the one before. Other parts are read and written
 * meanwhile. When param.index is SLUICE_NONE the update is made. Until then no other call is
 * allowed. */
typedef struct sluice_update_part {
  uint32_t struct_size;
  sluice_param param;
  double grad_norm;               /* of all gradients: scaled, before clipping */
  double grad_factor;             /* grad_scale times the clip factor */
  void *weight, *grad, *state[2]; /* of the group's formats; NULL: not kept */
} sluice_update_part;
#define SLUICE_UPDATE_PART_INIT                                        \
  {                                                                    \
    sizeof(sluice_update_part), {SLUICE_NONE}, 0.0, 0.0, NULL, NULL, { \
      NULL, NULL                                                       \
    }                                                                  \
  }
/* [waits] As sluice_session_update(); info.grad_norm is not filled. */
SLUICE_API sluice_status sluice_session_update_begin(sluice_session* session,
                                                     const sluice_update_info* info);
/* [waits] Fails as sluice_session_update(). A program that never takes the next part fails the
 * update when the engine's deadline passes. */
SLUICE_API sluice_status sluice_session_update_next(sluice_session* session,
                                                    sluice_update_part* out);

/* State as it is kept. The kinds that a parameter has, and their dtypes, depend on its group. */
enum {
  SLUICE_KIND_WEIGHT = 0,
  SLUICE_KIND_GRADIENT = 1,
  SLUICE_KIND_MASTER = 2, /* fp32; with split_master the SLUICE_DTYPE_I16 remainder */
  SLUICE_KIND_MOMENT1 = 3,
  SLUICE_KIND_MOMENT2 = 4,
  /* Scales of SLUICE_DTYPE_BLOCK8 moments: an fp32 for each 128 elements of the parameter, the last
   * for the rest. */
  SLUICE_KIND_MOMENT1_SCALE = 5,
  SLUICE_KIND_MOMENT2_SCALE = 6
};
SLUICE_API sluice_status sluice_session_kind_dtype(sluice_session* session, sluice_param param,
                                                   int32_t kind, int32_t* out);
/* [waits] Elements [first, first + count) of the parameter; `bytes` is the size of all of them. */
SLUICE_API sluice_status sluice_session_read(sluice_session* session, sluice_param param,
                                             int32_t kind, uint64_t first, uint64_t count,
                                             void* into, uint64_t bytes);
/* [waits] A weight that is written sets its master, too; one that is changed in its home does not,
 * and a parameter with a master loses the change at the next update. A gradient that is written as
 * a whole counts as given. A failure after the first written block poisons the session. */
SLUICE_API sluice_status sluice_session_write(sluice_session* session, sluice_param param,
                                              int32_t kind, uint64_t first, uint64_t count,
                                              const void* from, uint64_t bytes);
/* [waits] One safetensors file with all weights and state; an existing one is replaced as a
 * whole. */
SLUICE_API sluice_status sluice_session_save(sluice_session* session, const char* path);
/* [waits] Of a session with the same parameters, dtypes and rules. path: a saved file, or a
 * directory of commits, of which the newest is loaded that has whole data. It is checked first; a
 * failure to read it after that poisons the session. */
SLUICE_API sluice_status sluice_session_load(sluice_session* session, const char* path);
/* [waits] Makes all weights and state durable as they lie, and the number of updates. State on
 * storage is not copied, unless no update was made since the last commit. Until the next commit
 * has ended, nothing changes what was committed: the power may fail at any moment. A failure
 * poisons the session and leaves the commit before. SLUICE_E_STATE: the session has no
 * commit_path. */
SLUICE_API sluice_status sluice_session_commit(sluice_session* session);

/* The number of updates made so far, for a program that restores the moments by itself. */
SLUICE_API sluice_status sluice_session_set_updates(sluice_session* session, uint64_t updates);

typedef struct sluice_session_stats {
  uint32_t struct_size, sealed;
  uint64_t updates;
  uint64_t planned_pinned_bytes, planned_storage_bytes; /* exactly its memory */
  uint64_t units, stored_units; /* engine units: those of a unit with one dtype and group */
  uint64_t storage_read_bytes, storage_write_bytes;
  uint64_t update_ns; /* of the last update */
} sluice_session_stats;
#define SLUICE_SESSION_STATS_INIT \
  { sizeof(sluice_session_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
SLUICE_API sluice_status sluice_session_get_stats(sluice_session* session,
                                                  sluice_session_stats* out);

/* ---- Pager: weights in windows on the device, state in pinned memory, a unit at a time ------- */

/* Weights and optimizer state of a model that is larger than the device, for a program that
 * computes and updates by itself. Tensors are bytes without a type. Those of a unit move together.
 * Life: create; add units and tensors; seal, which plans and takes all memory, or is
 * SLUICE_E_REFUSED; then passes and updates. Results do not depend on the tiers. A pass:
 * sluice_pager_begin_pass(); then, for each use of a unit's weights, acquire, compute, release. An
 * update: for each unit stage, change the staged tensors, unstage; then settle. */
typedef struct sluice_pager sluice_pager;
typedef struct sluice_paged {
  uint32_t index;
} sluice_paged;
typedef struct sluice_pager_options {
  uint32_t struct_size;
  int32_t weights, state; /* SLUICE_STATE_*: where they rest */
  int32_t reserved;
  uint64_t window_bytes; /* most device memory of windows; 0: the rest of the engine's budget */
} sluice_pager_options;
#define SLUICE_PAGER_OPTIONS_INIT \
  { sizeof(sluice_pager_options), SLUICE_STATE_AUTO, SLUICE_STATE_AUTO, 0, 0 }
/* [any] */
SLUICE_API sluice_status sluice_pager_create(sluice_engine* engine,
                                             const sluice_pager_options* options,
                                             sluice_pager** out);
SLUICE_API_VOID void sluice_pager_destroy(sluice_pager* pager);

/* Before seal. */
SLUICE_API sluice_status sluice_pager_add_unit(sluice_pager* pager, const char* name,
                                               sluice_unit* out);
enum { SLUICE_PART_WEIGHT = 0, SLUICE_PART_STATE = 1 };
/* Before seal. data: initial bytes, read by sluice_pager_seal(); NULL: zeros. Tensors of a part lie
 * one after the other, each at a multiple of 256 bytes. */
SLUICE_API sluice_status sluice_pager_add(sluice_pager* pager, sluice_unit unit, int32_t part,
                                          uint64_t bytes, const void* data, sluice_paged* out);
/* [waits] SLUICE_E_REFUSED and SLUICE_E_INPUT leave the pager open: change it, seal again. */
SLUICE_API sluice_status sluice_pager_seal(sluice_pager* pager);

/* After seal: addresses that stay until the pager is destroyed. window: of a weight, on the device;
 * its bytes are there while the unit is acquired, and are another unit's or none otherwise. home:
 * NULL if the tensor rests on storage; a program may change it between passes. staged: the home; or
 * a place in pinned memory that has its bytes while the unit is staged. */
SLUICE_API sluice_status sluice_pager_window(sluice_pager* pager, sluice_paged tensor, void** out);
SLUICE_API sluice_status sluice_pager_home(sluice_pager* pager, sluice_paged tensor, void** out);
SLUICE_API sluice_status sluice_pager_staged(sluice_pager* pager, sluice_paged tensor, void** out);

/* [waits] A pass begins: weights are brought anew from their homes. Units that are held keep their
 * bytes until they are released. */
SLUICE_API sluice_status sluice_pager_begin_pass(sluice_pager* pager);
/* [waits] The unit's windows have its weights, in the stream's order, until it is released as
 * often as it was acquired. Two passes that were alike make a plan, and units come ahead of their
 * use; any other order costs demand fetches. SLUICE_E_MEMORY: units that are held leave no room
 * for this one. stream NULL: the device's default stream. */
SLUICE_API sluice_status sluice_pager_acquire(sluice_pager* pager, sluice_unit unit,
                                              const sluice_stream* stream);
SLUICE_API sluice_status sluice_pager_release(sluice_pager* pager, sluice_unit unit,
                                              const sluice_stream* stream);

/* [waits] The unit's weights and state are in pinned memory until it is unstaged. next: the unit
 * that is staged after it, read meanwhile; SLUICE_NO_UNIT: unknown. */
SLUICE_API sluice_status sluice_pager_stage(sluice_pager* pager, sluice_unit unit,
                                            sluice_unit next);
/* Staged bytes go home; another pass has to begin before a unit is acquired. A write that fails is
 * reported by a later call, and poisons the pager: a unit's bytes are lost. */
SLUICE_API sluice_status sluice_pager_unstage(sluice_pager* pager, sluice_unit unit);
/* [waits] All unstaged bytes are at home. */
SLUICE_API sluice_status sluice_pager_settle(sluice_pager* pager);
/* [waits] Bytes [first, first + bytes) of a tensor at home; not while a unit is staged. */
SLUICE_API sluice_status sluice_pager_read(sluice_pager* pager, sluice_paged tensor, uint64_t first,
                                           void* into, uint64_t bytes);
SLUICE_API sluice_status sluice_pager_write(sluice_pager* pager, sluice_paged tensor,
                                            uint64_t first, const void* from, uint64_t bytes);

typedef struct sluice_pager_stats {
  uint32_t struct_size, sealed;
  uint64_t window_bytes, pinned_bytes, storage_bytes; /* planned, and exactly its memory */
  uint64_t stored_weight_bytes, stored_state_bytes;   /* that rest on storage */
  uint64_t uses, demand_fetches, prefetches;          /* of units: acquired; brought to windows */
  uint64_t fetched_bytes, mapped_pages;
  uint64_t plans, deviations; /* plans made; uses that came otherwise than planned */
  uint64_t storage_read_bytes, storage_write_bytes;
  uint64_t wait_ns; /* in sluice_pager_acquire() */
} sluice_pager_stats;
#define SLUICE_PAGER_STATS_INIT \
  { sizeof(sluice_pager_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
SLUICE_API sluice_status sluice_pager_get_stats(sluice_pager* pager, sluice_pager_stats* out);

/* ---- Planner: before anything runs ----------------------------------------------------------- */

/* [any] Plans a training run of the program `sluice` for a described machine: no device, driver or
 * storage path is touched. request_json: {"config": …, "hardware": …, "world": …}. config is an
 * object of the configuration's sections, or the path of a TOML file (docs/guide/train.md has the
 * keys); budgets are config.memory's. hardware is the name or the path of a profile; without it the
 * measured profile of this machine counts, or else a default one. world is a number of ranks. Takes
 * seconds. The answer is the event that `sluice plan --json` prints, and is this thread's until its
 * next call of this function. SLUICE_E_REFUSED: no plan fits; the message has the least change
 * that does, and the answer is the refusal. */
SLUICE_API sluice_status sluice_plan(const char* request_json, const char** answer_json);

/* ---- Trace: what an engine's sessions did, and when ------------------------------------------ */

/* [any] Drops the events so far, and keeps the last `most_events` (at most 1e7) from now on. 0: no
 * more are recorded. Updates record a span for each instruction. */
SLUICE_API sluice_status sluice_trace_start(sluice_engine* engine, uint64_t most_events);
/* [any] The program's own; times are nanoseconds of CLOCK_MONOTONIC. Names are cut after 200
 * bytes. Nothing is recorded before sluice_trace_start(). */
SLUICE_API sluice_status sluice_trace_span(sluice_engine* engine, const char* track,
                                           const char* name, int64_t begin_ns, int64_t end_ns);
/* [any] */
SLUICE_API sluice_status sluice_trace_counter(sluice_engine* engine, const char* name,
                                              int64_t at_ns, double value);
/* [any] A point in time, such as "forward" or "step 7". */
SLUICE_API sluice_status sluice_trace_mark(sluice_engine* engine, const char* phase);
/* [any] [waits] SLUICE_FORMAT_JSON: that of a run directory's trace.json; `sluice report FILE
 * --format perfetto` shows it. An existing file is replaced. */
SLUICE_API sluice_status sluice_trace_write(sluice_engine* engine, const char* path,
                                            int32_t format);

#ifdef __cplusplus
}
#endif
#endif
