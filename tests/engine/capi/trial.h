/* A session of five parameters in two units and two groups, trained on numbers that are drawn, in
 * each format of state. */
#ifndef SLUICE_TESTS_ENGINE_CAPI_TRIAL_H
#define SLUICE_TESTS_ENGINE_CAPI_TRIAL_H
#include "tests/engine/capi/check.h"

#define MIB ((uint64_t)1 << 20)
enum { PARAMS = 5, STEPS = 7 };

/* Shapes that share norm blocks of 4,096 elements, fill them, and pass them. */
static const int64_t shapes[PARAMS][2] = {{3, 5}, {64, 64}, {130, 100}, {1, 70000}, {7, 1}};
static const char* const names[PARAMS] = {"a", "b", "c", "d", "e"};

static size_t elems_of(int p) {
  return (size_t)(shapes[p][0] * shapes[p][1]);
}

static float draw(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

struct format {
  int32_t dtype, split_master, moments;
};
enum { FORMATS = 5 };
#define ALL_FORMATS                                                                 \
  {                                                                                 \
    {SLUICE_DTYPE_F32, 0, 0}, {SLUICE_DTYPE_BF16, 0, 0}, {SLUICE_DTYPE_BF16, 1, 0}, \
        {SLUICE_DTYPE_F32, 0, SLUICE_DTYPE_BLOCK8}, {                               \
      SLUICE_DTYPE_BF16, 1, SLUICE_DTYPE_BLOCK8                                     \
    }                                                                               \
  }
struct trial {
  sluice_engine* engine;
  sluice_session* session;
  sluice_group groups[2];
  sluice_param params[PARAMS];
  int32_t dtype;
  size_t elem_bytes;
};

static sluice_engine* make_engine(const char* folder, uint64_t pinned_bytes) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = MIB;
  options.pinned_bytes = pinned_bytes;
  options.threads = 2;
  options.storage_engine = SLUICE_STORAGE_POSIX;
  if (folder != NULL) {
    options.storage_paths = &folder;
    options.storage_path_count = 1;
    options.storage_bytes = 64 * MIB;
  }
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  return engine;
}

static sluice_status add_param(struct trial* t, int p, sluice_unit unit, sluice_group group,
                               const void* data) {
  sluice_param_options options = SLUICE_PARAM_OPTIONS_INIT;
  options.dtype = t->dtype;
  options.unit = unit;
  options.group = group;
  options.name = names[p];
  options.ndim = 2;
  options.shape = shapes[p];
  options.data = data;
  return sluice_session_add_param(t->session, &options, &t->params[p]);
}

/* Two units, two groups; values in both formats are those of the same numbers. */
static void fill(struct trial* t, void* data, size_t elems, uint32_t* random, float scale) {
  size_t i;
  for (i = 0; i < elems; ++i) {
    const float value = draw(random) * scale;
    const uint16_t half = to_bf16(value);
    if (t->dtype == SLUICE_DTYPE_BF16)
      memcpy((char*)data + 2 * i, &half, 2);
    else
      memcpy((char*)data + 4 * i, &value, 4);
  }
}

static void open_committing(struct trial* t, sluice_engine* engine, int32_t state,
                            struct format format, const char* commit_path) {
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_unit units[2];
  uint32_t random = 7;
  void* data[PARAMS];
  int p;
  t->engine = engine;
  t->dtype = format.dtype;
  t->elem_bytes = t->dtype == SLUICE_DTYPE_F32 ? 4 : 2;
  options.state = state;
  options.commit_path = commit_path;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &t->session));
  group.split_master = format.split_master;
  group.moments = format.moments;
  group.weight_decay = 0.1;
  EXPECT(SLUICE_OK, sluice_session_add_group(t->session, &group, &t->groups[0]));
  group.weight_decay = 0;
  group.beta2 = 0.95;
  group.lr = 3e-3;
  EXPECT(SLUICE_OK, sluice_session_add_group(t->session, &group, &t->groups[1]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(t->session, "first", &units[0]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(t->session, "second", &units[1]));
  for (p = 0; p < PARAMS; ++p) {
    data[p] = malloc(elems_of(p) * t->elem_bytes);
    fill(t, data[p], elems_of(p), &random, 0.1f);
    EXPECT(SLUICE_OK, add_param(t, p, units[p / 3], t->groups[p % 2], data[p]));
  }
  EXPECT(SLUICE_OK, sluice_session_seal(t->session));
  for (p = 0; p < PARAMS; ++p) free(data[p]);
}

static void open_trial(struct trial* t, sluice_engine* engine, int32_t state,
                       struct format format) {
  open_committing(t, engine, state, format, NULL);
}

static void close_trial(struct trial* t) {
  sluice_session_destroy(t->session);
}

static void give_grads(struct trial* t, uint32_t seed, float scale) {
  uint32_t random = seed * 977 + 3;
  int p;
  for (p = 0; p < PARAMS; ++p) {
    sluice_tensor grad = SLUICE_TENSOR_INIT;
    grad.dtype = t->dtype;
    grad.ndim = 2;
    grad.shape = shapes[p];
    grad.data = malloc(elems_of(p) * t->elem_bytes);
    fill(t, grad.data, elems_of(p), &random, scale);
    EXPECT(SLUICE_OK, sluice_session_give_grad(t->session, t->params[p], &grad));
    free(grad.data);
  }
}

static uint64_t digest_bytes(uint64_t digest, const void* data, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; ++i) {
    digest = (digest ^ ((const unsigned char*)data)[i]) * 1099511628211u;
  }
  return digest;
}

/* A digest of all state, by sluice_session_read. */
static uint64_t digest_state(struct trial* t) {
  uint64_t digest = 14695981039346656037u;
  int p;
  int32_t kind, dtype;
  for (p = 0; p < PARAMS; ++p) {
    for (kind = SLUICE_KIND_WEIGHT; kind <= SLUICE_KIND_MOMENT2_SCALE; ++kind) {
      size_t count = elems_of(p), bytes;
      void* data;
      if (kind == SLUICE_KIND_GRADIENT) continue;
      if (sluice_session_kind_dtype(t->session, t->params[p], kind, &dtype) != SLUICE_OK) continue;
      if (kind >= SLUICE_KIND_MOMENT1_SCALE) count = (count + 127) / 128;
      bytes = count * (dtype == SLUICE_DTYPE_F32 ? 4 : dtype == SLUICE_DTYPE_BLOCK8 ? 1 : 2);
      data = malloc(bytes);
      EXPECT(SLUICE_OK, sluice_session_read(t->session, t->params[p], kind, 0, count, data, bytes));
      digest = digest_bytes(digest, data, bytes);
      free(data);
    }
  }
  return digest;
}

static uint64_t train(struct trial* t, uint32_t first, uint32_t last, double* norm) {
  uint32_t step;
  for (step = first; step < last; ++step) {
    sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
    give_grads(t, step, 0.01f);
    if (step % 2 == 1) give_grads(t, step + 100, 0.01f);
    info.max_norm = step % 3 == 2 ? 0.5 : 0;
    info.grad_scale = step % 3 == 1 ? 0.25 : 0;
    EXPECT(SLUICE_OK, sluice_session_update(t->session, &info));
    *norm = info.grad_norm;
  }
  return digest_state(t);
}
#endif
