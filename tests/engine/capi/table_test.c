/* Every function of the header in one table. A row says what the function takes; the checks follow
 * from that: NULL for each pointer, each wrong struct_size, a handle in another state, an update
 * under way, a poisoned session, handles destroyed in each order, and a forked child. capi_symbols
 * fails if an exported function has no row. Compiled again for the simulated CUDA driver. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/engine/capi/structs.h"
#include "tests/engine/capi/tested_device.h"

#define MIB ((uint64_t)1 << 20)
enum { ELEMS = 100, MOST_ARGUMENTS = 4, MOST_STREAMS = 100 };

struct world {
  sluice_engine* engine;
  sluice_allocator* allocator;
  sluice_session *open, *sealed;
  sluice_pager *open_pager, *sealed_pager; /* with one unit of one weight */
  sluice_group group;
  sluice_unit unit;
  void* block; /* of the allocator */
  float values[ELEMS];
  char path[4096];
  const char* folder; /* of storage and commits */
};
static struct world world;
static sluice_stream pinned_streams[MOST_STREAMS];
static int pinned_stream_count;
static int is_forked_child; /* where CUDA must not be called */

/* One letter for each pointer that a call passes, in order.
 *   E A        an engine, an allocator
 *   S O N      a session: sealed, open, either (the sealed one is passed)
 *   P Q R      a pager, likewise
 *   i f b      a struct that is read, filled, or both
 *   j c        as i and b, and NULL stands for the defaults
 *   o t d      required: an out parameter, a text, data
 *   ?          may be NULL */
struct row {
  const char* name;
  const char* kinds;
  sluice_status (*call)(void** a);
  const void* structure; /* a valid one */
  size_t struct_bytes;
  void (*before)(void* handle); /* each call that may pass */
};

/* The beginning of dlpack.h's DLManagedTensorVersioned. */
struct dl_head {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct dl_head* self);
};
#define PLAN_REQUEST                                                                              \
  "{\"config\":{\"model\":{\"family\":\"gpt2\",\"layers\":1,\"hidden\":64,\"heads\":1,\"vocab\":" \
  "64},"                                                                                          \
  "\"train\":{\"seq\":16,\"precision\":\"fp32\"},\"memory\":{\"backend\":\"host\",\"device\":"    \
  "\"32MiB\","                                                                                    \
  "\"pinned\":\"64MiB\"}}}"
static sluice_tensor full_gradient;
static int64_t dims[1] = {ELEMS};
static sluice_tensor gradient(void) {
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  tensor.ndim = 1;
  tensor.shape = dims;
  tensor.data = world.values;
  return tensor;
}
static void give(void* session) {
  const sluice_tensor tensor = gradient();
  EXPECT(SLUICE_OK, sluice_session_give_grad(session, (sluice_param){0}, &tensor));
}
static const char* new_name(void) {
  static char text[32];
  static int count;
  snprintf(text, sizeof(text), "parameter %d", count++);
  return text;
}

/* The calls. Arguments without a letter are constants. What a call makes, it destroys. */
static sluice_status call_version(void** a) {
  (void)a;
  CHECK(sluice_version() >> 16 == SLUICE_VERSION_MAJOR);
  return SLUICE_OK;
}
static sluice_status call_status_name(void** a) {
  (void)a;
  CHECK(sluice_status_name(12345) != NULL);
  return SLUICE_OK;
}
static sluice_status call_error(void** a) {
  return sluice_error(a[0]);
}
static sluice_status call_set_log(void** a) {
  (void)a;
  return sluice_set_log(NULL, NULL);
}
static sluice_status call_engine_create(void** a) {
  const sluice_status status = sluice_engine_create(a[0], a[1]);
  if (status == SLUICE_OK) sluice_engine_destroy(*(sluice_engine**)a[1]);
  return status;
}
static sluice_status call_destroys(void** a) {
  (void)a;
  sluice_engine_destroy(NULL);
  sluice_allocator_destroy(NULL);
  sluice_session_destroy(NULL);
  sluice_pager_destroy(NULL);
  return SLUICE_OK;
}
static sluice_status call_engine_usage(void** a) {
  return sluice_engine_usage(a[0], SLUICE_TIER_PINNED, a[1]);
}
static sluice_status call_allocator_create(void** a) {
  const sluice_status status = sluice_allocator_create(a[0], a[1], a[2]);
  if (status == SLUICE_OK) sluice_allocator_destroy(*(sluice_allocator**)a[2]);
  return status;
}
static sluice_status call_alloc(void** a) {
  const sluice_status status = sluice_allocator_alloc(a[0], 512, a[1], 0, a[2]);
  if (status == SLUICE_OK) EXPECT(SLUICE_OK, sluice_allocator_free(a[0], *(void**)a[2]));
  return status;
}
static sluice_status call_free(void** a) {
  return sluice_allocator_free(a[0], NULL);
}
static sluice_status call_record_use(void** a) {
  return sluice_allocator_record_use(a[0], a[1] == NULL ? NULL : world.block, a[2]);
}
static sluice_status call_allocator_step(void** a) {
  return sluice_allocator_step(a[0]);
}
static sluice_status call_pin_stream(void** a) {
  /* Before its first allocation, so each call has a stream of its own. */
  if (!is_forked_child) {
    CHECK(pinned_stream_count < MOST_STREAMS);
    pinned_streams[pinned_stream_count++] = make_stream();
  }
  return sluice_allocator_pin_stream(a[0], &pinned_streams[pinned_stream_count - 1]);
}
static sluice_status call_site(void** a) {
  return sluice_allocator_site(a[0], a[1], a[2]);
}
static sluice_status call_on_pressure(void** a) {
  return sluice_allocator_on_pressure(a[0], NULL, NULL);
}
static sluice_status call_trim(void** a) {
  return sluice_allocator_trim(a[0]);
}
static sluice_status call_allocator_stats(void** a) {
  return sluice_allocator_get_stats(a[0], a[1]);
}
static sluice_status call_snapshot(void** a) {
  return sluice_allocator_snapshot(a[0], a[1], SLUICE_FORMAT_CSV);
}
static sluice_status call_report(void** a) {
  return sluice_allocator_report(a[0], 0, a[1]);
}
static sluice_status call_attach(void** a) {
  return sluice_torch_attach(a[0]);
}
/* The three have no status of their own. */
static sluice_status call_torch(void** a) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  void* data = sluice_torch_alloc(512, 0, NULL);
  (void)a;
  if (data == NULL) {
    EXPECT(SLUICE_OK, sluice_error(&info));
    return info.status;
  }
  sluice_torch_record_stream(data, NULL);
  sluice_torch_free(data, 512, 0, NULL);
  return SLUICE_OK;
}
static sluice_status call_session_create(void** a) {
  const sluice_status status = sluice_session_create(a[0], a[1], a[2]);
  if (status == SLUICE_OK) sluice_session_destroy(*(sluice_session**)a[2]);
  return status;
}
static sluice_status call_add_group(void** a) {
  return sluice_session_add_group(a[0], a[1], a[2]);
}
static sluice_status call_set_group(void** a) {
  return sluice_session_set_group(a[0], world.group, a[1]);
}
static sluice_status call_add_unit(void** a) {
  return sluice_session_add_unit(a[0], a[1], a[2]);
}
static sluice_status call_add_param(void** a) {
  /* Names are unique, so each call that may pass has one of its own. */
  const uint32_t size = a[1] == NULL ? 0 : *(uint32_t*)a[1];
  const char* name = new_name();
  if (size >= sizeof(sluice_param_options) && size < 4096) {
    memcpy((char*)a[1] + offsetof(sluice_param_options, name), &name, sizeof(name));
  }
  return sluice_session_add_param(a[0], a[1], a[2]);
}
static sluice_status call_seal(void** a) {
  return sluice_session_seal(a[0]);
}
static sluice_status call_param_weight(void** a) {
  return sluice_session_weight(a[0], (sluice_param){0}, a[1]);
}
static sluice_status call_param_grad(void** a) {
  return sluice_session_grad(a[0], (sluice_param){0}, a[1]);
}
static sluice_status call_give_grad(void** a) {
  return sluice_session_give_grad(a[0], (sluice_param){0}, a[1]);
}
static sluice_status call_update(void** a) {
  return sluice_session_update(a[0], a[1]);
}
static sluice_status call_update_begin(void** a) {
  sluice_update_part part = SLUICE_UPDATE_PART_INIT;
  const sluice_status status = sluice_session_update_begin(a[0], a[1]);
  if (status == SLUICE_OK) EXPECT(SLUICE_OK, sluice_session_update_next(a[0], &part));
  return status;
}
static void begin(void* session) {
  const sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  give(session);
  EXPECT(SLUICE_OK, sluice_session_update_begin(session, &info));
}
static sluice_status call_update_next(void** a) {
  return sluice_session_update_next(a[0], a[1]);
}
static sluice_status call_kind_dtype(void** a) {
  return sluice_session_kind_dtype(a[0], (sluice_param){0}, SLUICE_KIND_MOMENT1, a[1]);
}
static sluice_status call_read(void** a) {
  return sluice_session_read(a[0], (sluice_param){0}, SLUICE_KIND_WEIGHT, 0, 10, a[1],
                             10 * sizeof(float));
}
static sluice_status call_write(void** a) {
  return sluice_session_write(a[0], (sluice_param){0}, SLUICE_KIND_WEIGHT, 0, 10, a[1],
                              10 * sizeof(float));
}
static sluice_status call_save(void** a) {
  return sluice_session_save(a[0], a[1]);
}
static void save(void* session) {
  EXPECT(SLUICE_OK, sluice_session_save(session, world.path));
}
static sluice_status call_commit(void** a) {
  return sluice_session_commit(a[0]);
}
static sluice_status call_load(void** a) {
  return sluice_session_load(a[0], a[1]);
}
static sluice_status call_set_updates(void** a) {
  return sluice_session_set_updates(a[0], 3);
}
static sluice_status call_pager_create(void** a) {
  const sluice_status status = sluice_pager_create(a[0], a[1], a[2]);
  if (status == SLUICE_OK) sluice_pager_destroy(*(sluice_pager**)a[2]);
  return status;
}
static sluice_status call_pager_add_unit(void** a) {
  return sluice_pager_add_unit(a[0], a[1], a[2]);
}
static sluice_status call_pager_add(void** a) {
  return sluice_pager_add(a[0], (sluice_unit){0}, SLUICE_PART_STATE, 100, NULL, a[1]);
}
static sluice_status call_pager_seal(void** a) {
  return sluice_pager_seal(a[0]);
}
static sluice_status call_pager_window(void** a) {
  return sluice_pager_window(a[0], (sluice_paged){0}, a[1]);
}
static sluice_status call_pager_home(void** a) {
  return sluice_pager_home(a[0], (sluice_paged){0}, a[1]);
}
static sluice_status call_pager_staged(void** a) {
  return sluice_pager_staged(a[0], (sluice_paged){0}, a[1]);
}
static sluice_status call_begin_pass(void** a) {
  return sluice_pager_begin_pass(a[0]);
}
static void begin_pass(void* pager) {
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(pager));
}
static sluice_status call_acquire(void** a) {
  const sluice_status status = sluice_pager_acquire(a[0], (sluice_unit){0}, a[1]);
  if (status == SLUICE_OK) EXPECT(SLUICE_OK, sluice_pager_release(a[0], (sluice_unit){0}, NULL));
  return status;
}
static void acquire(void* pager) {
  begin_pass(pager);
  EXPECT(SLUICE_OK, sluice_pager_acquire(pager, (sluice_unit){0}, NULL));
}
static sluice_status call_release(void** a) {
  return sluice_pager_release(a[0], (sluice_unit){0}, a[1]);
}
static sluice_status call_stage(void** a) {
  const sluice_status status = sluice_pager_stage(a[0], (sluice_unit){0}, SLUICE_NO_UNIT);
  if (status == SLUICE_OK) EXPECT(SLUICE_OK, sluice_pager_unstage(a[0], (sluice_unit){0}));
  return status;
}
static void stage(void* pager) {
  EXPECT(SLUICE_OK, sluice_pager_stage(pager, (sluice_unit){0}, SLUICE_NO_UNIT));
}
static sluice_status call_unstage(void** a) {
  return sluice_pager_unstage(a[0], (sluice_unit){0});
}
static sluice_status call_settle(void** a) {
  return sluice_pager_settle(a[0]);
}
static sluice_status call_pager_read(void** a) {
  return sluice_pager_read(a[0], (sluice_paged){0}, 0, a[1], 100);
}
static sluice_status call_pager_write(void** a) {
  return sluice_pager_write(a[0], (sluice_paged){0}, 0, a[1], 100);
}
static sluice_status call_pager_stats(void** a) {
  return sluice_pager_get_stats(a[0], a[1]);
}
static sluice_status call_to_dlpack(void** a) {
  const sluice_status status = sluice_to_dlpack(a[0], a[1]);
  if (status == SLUICE_OK) {
    struct dl_head* made = *(struct dl_head**)a[1];
    made->deleter(made);
  }
  return status;
}
static sluice_status call_from_dlpack(void** a) {
  struct DLManagedTensorVersioned* lent = NULL;
  sluice_status status = sluice_to_dlpack(&full_gradient, &lent);
  if (status != SLUICE_OK) return status;
  status = sluice_from_dlpack(a[0] == NULL ? NULL : lent, a[1], a[2]);
  ((struct dl_head*)lent)->deleter((struct dl_head*)lent);
  return status;
}
static sluice_status call_plan(void** a) {
  return sluice_plan(a[0] == NULL ? NULL : PLAN_REQUEST, a[1]);
}
static sluice_status call_trace_start(void** a) {
  return sluice_trace_start(a[0], 100);
}
static sluice_status call_trace_span(void** a) {
  return sluice_trace_span(a[0], a[1], a[2], 1, 2);
}
static sluice_status call_trace_counter(void** a) {
  return sluice_trace_counter(a[0], a[1], 1, 2);
}
static sluice_status call_trace_mark(void** a) {
  return sluice_trace_mark(a[0], a[1]);
}
static sluice_status call_trace_write(void** a) {
  return sluice_trace_write(a[0], a[1], SLUICE_FORMAT_JSON);
}
static sluice_status call_session_stats(void** a) {
  return sluice_session_get_stats(a[0], a[1]);
}

static const sluice_error_info error_info = SLUICE_ERROR_INFO_INIT;
static sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
static const sluice_usage usage = SLUICE_USAGE_INIT;
static const sluice_allocator_options allocator_options = SLUICE_ALLOCATOR_OPTIONS_INIT;
static const sluice_allocator_stats allocator_stats = SLUICE_ALLOCATOR_STATS_INIT;
static const sluice_session_options session_options = SLUICE_SESSION_OPTIONS_INIT;
static const sluice_group_options group_options = SLUICE_GROUP_OPTIONS_INIT;
static const sluice_param_options param_options = SLUICE_PARAM_OPTIONS_INIT;
static const sluice_tensor tensor = SLUICE_TENSOR_INIT;
static const sluice_update_info update_info = SLUICE_UPDATE_INFO_INIT;
static const sluice_update_part update_part = SLUICE_UPDATE_PART_INIT;
static const sluice_session_stats session_stats = SLUICE_SESSION_STATS_INIT;
static const sluice_pager_options pager_options = SLUICE_PAGER_OPTIONS_INIT;
static const sluice_pager_stats pager_stats = SLUICE_PAGER_STATS_INIT;

#define PLAIN(name, kinds, call) \
  { #name, kinds, call, NULL, 0, NULL }
#define STRUCT(name, kinds, call, structure) \
  { #name, kinds, call, &(structure), sizeof(structure), NULL }
static const struct row rows[] = {
    PLAIN(sluice_version, "", call_version),
    PLAIN(sluice_status_name, "", call_status_name),
    STRUCT(sluice_error, "f", call_error, error_info),
    PLAIN(sluice_set_log, "", call_set_log),
    STRUCT(sluice_engine_create, "jo", call_engine_create, engine_options),
    PLAIN(sluice_engine_destroy, "", call_destroys),
    STRUCT(sluice_engine_usage, "Ef", call_engine_usage, usage),
    STRUCT(sluice_allocator_create, "Ejo", call_allocator_create, allocator_options),
    PLAIN(sluice_allocator_destroy, "", call_destroys),
    PLAIN(sluice_allocator_alloc, "A?o", call_alloc),
    PLAIN(sluice_allocator_free, "A", call_free),
    PLAIN(sluice_allocator_record_use, "Ad?", call_record_use),
    PLAIN(sluice_allocator_step, "A", call_allocator_step),
    PLAIN(sluice_allocator_pin_stream, "A", call_pin_stream),
    PLAIN(sluice_allocator_site, "Ato", call_site),
    PLAIN(sluice_allocator_on_pressure, "A", call_on_pressure),
    PLAIN(sluice_allocator_trim, "A", call_trim),
    STRUCT(sluice_allocator_get_stats, "Af", call_allocator_stats, allocator_stats),
    PLAIN(sluice_allocator_snapshot, "At", call_snapshot),
    PLAIN(sluice_allocator_report, "Ao", call_report),
    PLAIN(sluice_torch_attach, "A", call_attach),
    PLAIN(sluice_torch_alloc, "", call_torch),
    PLAIN(sluice_torch_free, "", call_torch),
    PLAIN(sluice_torch_record_stream, "", call_torch),
    STRUCT(sluice_session_create, "Ejo", call_session_create, session_options),
    PLAIN(sluice_session_destroy, "", call_destroys),
    STRUCT(sluice_session_add_group, "Ojo", call_add_group, group_options),
    STRUCT(sluice_session_set_group, "Ni", call_set_group, group_options),
    PLAIN(sluice_session_add_unit, "Oto", call_add_unit),
    STRUCT(sluice_session_add_param, "Oio", call_add_param, param_options),
    PLAIN(sluice_session_seal, "O", call_seal),
    STRUCT(sluice_session_weight, "Sf", call_param_weight, tensor),
    STRUCT(sluice_session_grad, "Sf", call_param_grad, tensor),
    STRUCT(sluice_session_give_grad, "Si", call_give_grad, full_gradient),
    {"sluice_session_update", "Sc", call_update, &update_info, sizeof(update_info), give},
    {"sluice_session_update_begin", "Sj", call_update_begin, &update_info, sizeof(update_info),
     give},
    {"sluice_session_update_next", "Sf", call_update_next, &update_part, sizeof(update_part),
     begin},
    PLAIN(sluice_session_kind_dtype, "So", call_kind_dtype),
    PLAIN(sluice_session_read, "Sd", call_read),
    PLAIN(sluice_session_write, "Sd", call_write),
    PLAIN(sluice_session_save, "St", call_save),
    {"sluice_session_load", "St", call_load, NULL, 0, save},
    PLAIN(sluice_session_commit, "S", call_commit),
    PLAIN(sluice_session_set_updates, "S", call_set_updates),
    STRUCT(sluice_session_get_stats, "Nf", call_session_stats, session_stats),
    STRUCT(sluice_pager_create, "Ejo", call_pager_create, pager_options),
    PLAIN(sluice_pager_destroy, "", call_destroys),
    PLAIN(sluice_pager_add_unit, "Qto", call_pager_add_unit),
    PLAIN(sluice_pager_add, "Qo", call_pager_add),
    PLAIN(sluice_pager_seal, "Q", call_pager_seal),
    PLAIN(sluice_pager_window, "Po", call_pager_window),
    PLAIN(sluice_pager_home, "Po", call_pager_home),
    PLAIN(sluice_pager_staged, "Po", call_pager_staged),
    PLAIN(sluice_pager_begin_pass, "P", call_begin_pass),
    {"sluice_pager_acquire", "P?", call_acquire, NULL, 0, begin_pass},
    {"sluice_pager_release", "P?", call_release, NULL, 0, acquire},
    PLAIN(sluice_pager_stage, "P", call_stage),
    {"sluice_pager_unstage", "P", call_unstage, NULL, 0, stage},
    PLAIN(sluice_pager_settle, "P", call_settle),
    PLAIN(sluice_pager_read, "Pd", call_pager_read),
    PLAIN(sluice_pager_write, "Pd", call_pager_write),
    STRUCT(sluice_pager_get_stats, "Rf", call_pager_stats, pager_stats),
    STRUCT(sluice_to_dlpack, "io", call_to_dlpack, full_gradient),
    STRUCT(sluice_from_dlpack, "dfd", call_from_dlpack, tensor),
    PLAIN(sluice_plan, "to", call_plan),
    PLAIN(sluice_trace_start, "E", call_trace_start),
    PLAIN(sluice_trace_span, "Ett", call_trace_span),
    PLAIN(sluice_trace_counter, "Et", call_trace_counter),
    PLAIN(sluice_trace_mark, "Et", call_trace_mark),
    PLAIN(sluice_trace_write, "Et", call_trace_write),
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static sluice_session* make_session(sluice_engine* engine, int32_t rule, int seals, int commits) {
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_session* session = NULL;
  sluice_param number;
  group.rule = rule;
  group.caller_moments = rule == SLUICE_RULE_CALLER;
  sluice_session_options options = session_options;
  if (commits) options.commit_path = world.folder;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &param.group));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param.unit));
  param.name = "p";
  param.ndim = 1;
  param.shape = dims;
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param, &number));
  if (seals) EXPECT(SLUICE_OK, sluice_session_seal(session));
  return session;
}

static sluice_pager* make_pager(int seals) {
  sluice_pager* pager = NULL;
  sluice_unit unit;
  sluice_paged weight;
  EXPECT(SLUICE_OK, sluice_pager_create(world.engine, &pager_options, &pager));
  EXPECT(SLUICE_OK, sluice_pager_add_unit(pager, "unit", &unit));
  EXPECT(SLUICE_OK, sluice_pager_add(pager, unit, SLUICE_PART_WEIGHT, 4096, NULL, &weight));
  if (seals) EXPECT(SLUICE_OK, sluice_pager_seal(pager));
  return pager;
}

static sluice_engine* make_engine(double deadline_s) {
  sluice_engine_options options = engine_options;
  sluice_engine* engine = NULL;
  options.deadline_s = deadline_s;
  options.storage_paths = &world.folder;
  options.storage_path_count = 1;
  options.storage_bytes = 16 * MIB;
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  return engine;
}

static void make_world(void) {
  world.engine = make_engine(0);
  EXPECT(SLUICE_OK, sluice_allocator_create(world.engine, &allocator_options, &world.allocator));
  EXPECT(SLUICE_OK, sluice_torch_attach(world.allocator));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(world.allocator, 512, NULL, 0, &world.block));
  world.open = make_session(world.engine, SLUICE_RULE_ADAMW, 0, 0);
  world.sealed = make_session(world.engine, SLUICE_RULE_ADAMW, 1, 1);
  world.open_pager = make_pager(0);
  world.sealed_pager = make_pager(1);
  full_gradient = gradient();
}
static void destroy_world(void) {
  sluice_pager_destroy(world.open_pager);
  sluice_pager_destroy(world.sealed_pager);
  sluice_session_destroy(world.open);
  sluice_session_destroy(world.sealed);
  sluice_allocator_destroy(world.allocator);
  sluice_engine_destroy(world.engine);
}

/* The position of one of these letters; -1: the row has none. */
static int find(const struct row* row, const char* letters) {
  const size_t at = strcspn(row->kinds, letters);
  return row->kinds[at] == '\0' ? -1 : (int)at;
}

/* Valid arguments. `scratch` has room for what is filled. */
static void fill(const struct row* row, void** a, unsigned char* scratch) {
  size_t i;
  for (i = 0; i < strlen(row->kinds); ++i) {
    switch (row->kinds[i]) {
      case 'E':
        a[i] = world.engine;
        break;
      case 'A':
        a[i] = world.allocator;
        break;
      case 'O':
        a[i] = world.open;
        break;
      case 'S':
      case 'N':
        a[i] = world.sealed;
        break;
      case 'Q':
        a[i] = world.open_pager;
        break;
      case 'P':
      case 'R':
        a[i] = world.sealed_pager;
        break;
      case 't':
        a[i] = world.path;
        break;
      case 'i':
      case 'f':
      case 'b':
      case 'j':
      case 'c':
        memcpy(scratch, row->structure, row->struct_bytes);
        a[i] = scratch;
        break;
      case '?':
        a[i] = NULL;
        break;
      default:
        a[i] = scratch + 1024;
    }
  }
}

static sluice_status call(const struct row* row, void** a, sluice_status wanted) {
  const int handle = find(row, "SNPR");
  if (wanted == SLUICE_OK && row->before != NULL) row->before(a[handle]);
  return row->call(a);
}
static void check_call(const struct row* row, void** a, sluice_status wanted, const char* trial) {
  char text[128];
  snprintf(text, sizeof(text), "%s with %s", row->name, trial);
  check_status(wanted, call(row, a, wanted), text, __FILE__, __LINE__);
}

static void check_nulls(const struct row* row) {
  unsigned char scratch[2048] = {0};
  void* a[MOST_ARGUMENTS];
  size_t i;
  for (i = 0; i < strlen(row->kinds); ++i) {
    if (strchr("?jc", row->kinds[i]) != NULL) continue;
    fill(row, a, scratch);
    a[i] = NULL;
    check_call(row, a, SLUICE_E_INPUT, "NULL");
  }
}

/* Structs lie at the end of an allocation, so that ASan sees a read after their size. */
static void check_sizes(const struct row* row) {
  const uint32_t size = (uint32_t)row->struct_bytes;
  const uint32_t wrong[] = {0, 1, size - 1, UINT32_MAX};
  unsigned char scratch[2048] = {0};
  const int at = find(row, "ifbjc");
  void* a[MOST_ARGUMENTS];
  size_t i;
  if (at < 0) return;
  for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    fill(row, a, scratch);
    a[at] = struct_copy(row->structure, size, wrong[i] == UINT32_MAX ? size : wrong[i], 0);
    memcpy(a[at], &wrong[i], sizeof(uint32_t));
    check_call(row, a, SLUICE_E_INPUT, "a wrong struct_size");
    free(a[at]);
  }
  fill(row, a, scratch);
  a[at] = struct_copy(row->structure, size, size + 24, 0xab);
  check_call(row, a, row->kinds[at] == 'f' ? SLUICE_OK : SLUICE_E_VERSION, "a longer struct");
  if (row->kinds[at] == 'f') {
    for (i = 0; i < 24; ++i) CHECK(((unsigned char*)a[at])[size + i] == 0);
  }
  free(a[at]);
  fill(row, a, scratch);
  a[at] = struct_copy(row->structure, size, size + 24, 0);
  check_call(row, a, SLUICE_OK, "a longer struct of zeros");
  free(a[at]);
}

static void test_arguments(void) {
  int i;
  for (i = 0; i < ROWS; ++i) {
    unsigned char scratch[2048] = {0};
    void* a[MOST_ARGUMENTS];
    make_world();
    check_nulls(&rows[i]);
    check_sizes(&rows[i]);
    fill(&rows[i], a, scratch);
    check_call(&rows[i], a, SLUICE_OK, "valid arguments");
    destroy_world();
  }
}

/* Every function of a session or pager with this one in its place. `except` is served. */
static void check_handles(void* handle, const char* kinds, sluice_status wanted, const char* except,
                          const char* trial) {
  unsigned char scratch[2048] = {0};
  void* a[MOST_ARGUMENTS];
  int i;
  for (i = 0; i < ROWS; ++i) {
    const int at = find(&rows[i], kinds);
    if (at < 0 || strstr(except, rows[i].name) != NULL) continue;
    fill(&rows[i], a, scratch);
    a[at] = handle;
    check_call(&rows[i], a, wanted, trial);
  }
}

static void test_states(void) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_update_part part = SLUICE_UPDATE_PART_INIT;
  const struct timespec pause = {0, 200000000};
  sluice_engine* hurried = make_engine(0.05);
  sluice_session* session = make_session(hurried, SLUICE_RULE_CALLER, 1, 0);
  make_world();
  check_handles(world.sealed, "O", SLUICE_E_STATE, "", "a sealed session");
  check_handles(world.open, "S", SLUICE_E_STATE, "", "an open session");
  check_handles(world.sealed_pager, "Q", SLUICE_E_STATE, "", "a sealed pager");
  check_handles(world.open_pager, "P", SLUICE_E_STATE, "", "an open pager");
  give(session);
  EXPECT(SLUICE_OK, sluice_session_update_begin(session, &info));
  EXPECT(SLUICE_OK, sluice_session_update_next(session, &part));
  check_handles(session, "S", SLUICE_E_STATE, "sluice_session_update_next", "an update under way");
  /* The program does not take the next part in time. */
  nanosleep(&pause, NULL);
  EXPECT(SLUICE_E_TIMEOUT, sluice_session_update_next(session, &part));
  check_handles(session, "S", SLUICE_E_POISONED, "", "a poisoned session");
  check_handles(session, "O", SLUICE_E_STATE, "", "a poisoned session");
  sluice_session_destroy(session);
  sluice_engine_destroy(hurried);
  destroy_world();
}

/* The handles that are left work, whichever went before them. */
static void check_left(const char* gone) {
  unsigned char scratch[2048] = {0};
  void* a[MOST_ARGUMENTS];
  int i;
  for (i = 0; i < ROWS; ++i) {
    if (find(&rows[i], gone) >= 0 || strstr(rows[i].name, "_seal") != NULL) continue;
    if (strchr(gone, 'A') != NULL && strncmp(rows[i].name, "sluice_torch", 12) == 0) continue;
    fill(&rows[i], a, scratch);
    check_call(&rows[i], a, SLUICE_OK, gone);
  }
}

static void test_orders(void) {
  static const char* const orders[] = {"EAS", "ESA", "AES", "ASE", "SEA", "SAE"};
  size_t order, at;
  for (order = 0; order < sizeof(orders) / sizeof(orders[0]); ++order) {
    char gone[16] = "";
    size_t used = 0;
    make_world();
    for (at = 0; at < 3; ++at) {
      const char handle = orders[order][at];
      if (handle == 'E') sluice_engine_destroy(world.engine);
      if (handle == 'A') sluice_allocator_destroy(world.allocator);
      if (handle == 'S') {
        sluice_session_destroy(world.open);
        sluice_session_destroy(world.sealed);
        sluice_pager_destroy(world.open_pager);
        sluice_pager_destroy(world.sealed_pager);
        memcpy(gone + used, "ONPQR", 5);
        used += 5;
      }
      gone[used++] = handle;
      gone[used] = '\0';
      check_left(gone);
    }
  }
}

/* In a child of fork() all but three functions say so; the destroys do nothing. */
static void check_forked(void) {
  unsigned char scratch[2048] = {0};
  void* a[MOST_ARGUMENTS];
  int i;
  is_forked_child = 1;
  for (i = 0; i < ROWS; ++i) {
    const int served =
        strstr("sluice_version sluice_status_name sluice_error", rows[i].name) != NULL;
    if (rows[i].call == call_destroys) continue;
    fill(&rows[i], a, scratch);
    check_status(served ? SLUICE_OK : SLUICE_E_FORKED, rows[i].call(a), rows[i].name, __FILE__,
                 __LINE__);
  }
  destroy_world();
}

/* fork() in the middle of an update and of a pass: the child is refused everything, the parent ends
 * both. */
static void test_fork(void) {
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_update_part part = SLUICE_UPDATE_PART_INIT;
  sluice_session* session;
  pid_t child;
  int status = 0;
  make_world();
  session = make_session(world.engine, SLUICE_RULE_CALLER, 1, 0);
  give(session);
  EXPECT(SLUICE_OK, sluice_session_update_begin(session, &info));
  EXPECT(SLUICE_OK, sluice_session_update_next(session, &part));
  acquire(world.sealed_pager);
  child = fork();
  if (child == 0) {
    check_forked();
    EXPECT(SLUICE_E_FORKED, sluice_session_update_next(session, &part));
    sluice_session_destroy(session);
    _exit(check_result());
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(part.param.index == 0);
  EXPECT(SLUICE_OK, sluice_pager_release(world.sealed_pager, (sluice_unit){0}, NULL));
  acquire(world.sealed_pager);
  EXPECT(SLUICE_OK, sluice_session_update_next(session, &part));
  CHECK(part.param.index == SLUICE_NONE);
  sluice_session_destroy(session);
  destroy_world();
}

int main(int argc, char** argv) {
  static char commits[4096];
  snprintf(commits, sizeof(commits), "%s/capi_table", argc > 1 ? argv[1] : ".");
  CHECK(mkdir(commits, 0700) == 0 || errno == EEXIST);
  world.folder = commits;
  snprintf(world.path, sizeof(world.path), "%s/capi_table.safetensors", argc > 1 ? argv[1] : ".");
  if (!open_device()) return check_result();
  engine_options.device_type = TESTED_DEVICE;
  engine_options.device_bytes = engine_options.pinned_bytes = 16 * MIB;
  engine_options.threads = 1;
  test_arguments();
  test_states();
  test_orders();
  test_fork();
  while (pinned_stream_count > 0) destroy_stream(pinned_streams[--pinned_stream_count]);
  close_device();
  return check_result();
}
