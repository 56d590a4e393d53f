/* Sessions: the update against a plain AdamW, the same bits on every tier, refusals, files, wrong
 * calls, and faults of storage. */
#include <math.h>

#include "tests/engine/capi/structs.h"
#include "tests/engine/capi/trial.h"

static const struct format formats[FORMATS] = ALL_FORMATS;

/* One AdamW step of one element, in the order of kernels/optimizer.hpp. */
static void adamw(float* w, float* m, float* v, float g, int step, float lr, float decay,
                  double beta1, double beta2) {
  const float b1 = (float)beta1, b2 = (float)beta2;
  const float one_b1 = (float)(1.0 - beta1), one_b2 = (float)(1.0 - beta2);
  const float correction = (float)(1.0 - pow(beta1, step));
  const float root_scale = (float)(1.0 / sqrt(1.0 - pow(beta2, step)));
  volatile float a = b1 * *m, b = one_b1 * g, gg = g * g, c, d, root;
  *m = a + b;
  a = b2 * *v;
  b = one_b2 * gg;
  *v = a + b;
  c = lr * decay;
  d = c * *w;
  *w = *w - d;
  root = sqrtf(*v);
  root = root * root_scale;
  root = root + 1e-8f;
  d = *m / root;
  c = lr / correction;
  d = c * d;
  *w = *w - d;
}

/* fp32; gradients given once and twice, scaled and clipped: every weight equals the plain loop's to
 * the bit. */
static void test_arithmetic(void) {
  struct trial t;
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  uint32_t random = 7, grad_random;
  float *w[PARAMS], *m[PARAMS], *v[PARAMS];
  int p, step;
  size_t i, wrong = 0;
  open_trial(&t, engine, SLUICE_STATE_PINNED, formats[0]);
  for (p = 0; p < PARAMS; ++p) {
    w[p] = malloc(elems_of(p) * sizeof(float));
    m[p] = calloc(elems_of(p), sizeof(float));
    v[p] = calloc(elems_of(p), sizeof(float));
    for (i = 0; i < elems_of(p); ++i) w[p][i] = draw(&random) * 0.1f;
  }
  for (step = 1; step <= STEPS; ++step) {
    sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
    const int twice = step % 2 == 0;
    uint32_t second_random = (uint32_t)(step + 100) * 977 + 3;
    double squares = 0, factor = 1;
    give_grads(&t, (uint32_t)step, 0.01f);
    if (twice) give_grads(&t, (uint32_t)step + 100, 0.01f);
    if (step % 3 == 0) {
      info.max_norm = 0.125;
      info.grad_scale = 0.5;
    }
    EXPECT(SLUICE_OK, sluice_session_update(t.session, &info));
    if (step % 3 == 0) {
      CHECK(info.grad_norm > info.max_norm);
      factor = info.max_norm / info.grad_norm / 2.0;
    }
    grad_random = (uint32_t)step * 977 + 3;
    for (p = 0; p < PARAMS; ++p) {
      for (i = 0; i < elems_of(p); ++i) {
        volatile float g = draw(&grad_random) * 0.01f;
        if (twice) g = g + draw(&second_random) * 0.01f;
        squares += (double)g * g;
        g = g * (float)factor;
        if (p % 2 == 0) {
          adamw(&w[p][i], &m[p][i], &v[p][i], g, step, 1e-3f, 0.1f, 0.9, 0.999);
        } else {
          adamw(&w[p][i], &m[p][i], &v[p][i], g, step, 3e-3f, 0.0f, 0.9, 0.95);
        }
      }
    }
    CHECK(fabs(info.grad_norm / (step % 3 == 0 ? 0.5 : 1) - sqrt(squares)) < 1e-12 * sqrt(squares));
  }
  for (p = 0; p < PARAMS; ++p) {
    sluice_tensor home = SLUICE_TENSOR_INIT;
    EXPECT(SLUICE_OK, sluice_session_weight(t.session, t.params[p], &home));
    for (i = 0; i < elems_of(p); ++i) wrong += ((const float*)home.data)[i] != w[p][i];
    CHECK(home.ndim == 2 && home.shape[0] == shapes[p][0] && home.shape[1] == shapes[p][1]);
    free(w[p]);
    free(m[p]);
    free(v[p]);
  }
  CHECK(wrong == 0);
  close_trial(&t);
  sluice_engine_destroy(engine);
}

/* No bit depends on the tier, nor on a save and load in between. The plan is what is held. */
static void test_tiers(const char* folder) {
  char path[4096];
  int format, tier;
  snprintf(path, sizeof(path), "%s/capi_session.safetensors", folder);
  for (format = 0; format < FORMATS; ++format) {
    uint64_t digests[4] = {0, 1, 2, 3};
    double norms[4] = {0, 1, 2, 3};
    for (tier = 0; tier < 4; ++tier) {
      /* 8 MiB hold all state, 2.25 MiB do not; 8-bit moments may fit. */
      const uint64_t pinned = tier < 2 ? 8 * MIB : 9 * MIB / 4;
      sluice_engine* engine = make_engine(folder, pinned);
      sluice_usage usage = SLUICE_USAGE_INIT;
      sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
      struct trial t;
      open_trial(&t, engine,
                 tier == 0   ? SLUICE_STATE_PINNED
                 : tier == 1 ? SLUICE_STATE_STORAGE
                             : SLUICE_STATE_AUTO,
                 formats[format]);
      EXPECT(SLUICE_OK, sluice_session_get_stats(t.session, &stats));
      CHECK(stats.units == 4 && stats.sealed == 1);
      CHECK(tier > 0 || stats.stored_units == 0);
      CHECK(tier == 0 || stats.stored_units > 0 || (tier > 1 && formats[format].moments != 0));
      EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_PINNED, &usage));
      CHECK(usage.live_bytes == stats.planned_pinned_bytes && usage.peak_bytes <= pinned);
      EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_STORAGE, &usage));
      CHECK(usage.live_bytes == stats.planned_storage_bytes);
      if (tier < 3) {
        digests[tier] = train(&t, 0, STEPS, &norms[tier]);
      } else {
        struct trial next;
        sluice_engine* other = make_engine(folder, 8 * MIB);
        train(&t, 0, 3, &norms[tier]);
        EXPECT(SLUICE_OK, sluice_session_save(t.session, path));
        open_trial(&next, other, SLUICE_STATE_PINNED, formats[format]);
        EXPECT(SLUICE_OK, sluice_session_load(next.session, path));
        digests[tier] = train(&next, 3, STEPS, &norms[tier]);
        close_trial(&next);
        sluice_engine_destroy(other);
      }
      close_trial(&t);
      EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_PINNED, &usage));
      CHECK(usage.live_bytes == 0);
      sluice_engine_destroy(engine);
    }
    for (tier = 1; tier < 4; ++tier) {
      CHECK(digests[tier] == digests[0]);
      CHECK(norms[tier] == norms[0]);
    }
  }
}

static void test_refusal(void) {
  struct trial t;
  sluice_engine* engine = make_engine(NULL, 2 * MIB);
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_usage usage = SLUICE_USAGE_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  const int64_t huge = (int64_t)1 << 37;
  sluice_unit unit;
  t.engine = engine;
  t.dtype = SLUICE_DTYPE_F32;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &t.session));
  EXPECT(SLUICE_OK, sluice_session_add_group(t.session, &group, &t.groups[0]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(t.session, "unit", &unit));
  EXPECT(SLUICE_E_INPUT, sluice_session_seal(t.session)); /* nothing to update */
  EXPECT(SLUICE_OK, add_param(&t, 3, unit, t.groups[0], NULL));
  EXPECT(SLUICE_OK, add_param(&t, 2, unit, t.groups[0], NULL));
  EXPECT(SLUICE_OK, add_param(&t, 1, unit, t.groups[0], NULL));
  EXPECT(SLUICE_E_REFUSED, sluice_session_seal(t.session));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(strstr(info.message, "pinned_bytes larger by") != NULL);
  CHECK(info.tier == SLUICE_TIER_PINNED && info.requested_bytes > info.available_bytes);
  EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_PINNED, &usage));
  CHECK(usage.peak_bytes == 0); /* refused before anything was taken */
  sluice_session_destroy(t.session);
  /* 512 GiB of weights: refused by size, before a layout of 2^37 elements is made. */
  EXPECT(SLUICE_OK, sluice_session_create(engine, NULL, &t.session));
  EXPECT(SLUICE_OK, sluice_session_add_group(t.session, NULL, &t.groups[0]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(t.session, "unit", &param.unit));
  param.name = "w";
  param.group = t.groups[0];
  param.ndim = 1;
  param.shape = &huge;
  EXPECT(SLUICE_OK, sluice_session_add_param(t.session, &param, &t.params[0]));
  EXPECT(SLUICE_E_REFUSED, sluice_session_seal(t.session));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(strstr(info.message, "this machine has") != NULL);
  CHECK(info.tier == SLUICE_TIER_PINNED && info.requested_bytes == (uint64_t)1 << 40);
  sluice_session_destroy(t.session);
  sluice_engine_destroy(engine);
}

/* What no file could name, settings that a rule does not have, and paths that are no files. */
static void test_names_and_ranges(const char* folder) {
  static const char* const wrong[] = {"\xff\xfe", "__metadata__", "moment1.w", ""};
  const int64_t shape = 4;
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_session* session = NULL;
  sluice_unit unit;
  sluice_param made;
  size_t i;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  group.nesterov = 1;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &param.group));
  group.rule = SLUICE_RULE_SGD;
  group.momentum = 0;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &param.group));
  group.momentum = 0.9;
  group.lr = -1;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &param.group));
  EXPECT(SLUICE_OK, sluice_error(&info));
  CHECK(strstr(info.message, "lr is -1; it is at least 0 and below 1e+30") != NULL);
  group.lr = 0.1;
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &param.group));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_unit(session, "bad\xff", &unit));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &param.unit));
  param.ndim = 1;
  param.shape = &shape;
  for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    param.name = wrong[i];
    EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &made));
  }
  param.name = "line\nbreak \"quoted\" \xc3\xa9";
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param, &made));
  EXPECT(SLUICE_OK, sluice_session_seal(session));
  EXPECT(SLUICE_E_INPUT, sluice_session_save(session, ""));
  EXPECT(SLUICE_E_INPUT, sluice_session_save(session, folder));
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
}

static sluice_status create_session(void* context, void* data) {
  sluice_session* session = NULL;
  const sluice_status status = sluice_session_create(context, data, &session);
  CHECK((session != NULL) == (status == SLUICE_OK));
  sluice_session_destroy(session);
  return status;
}
static sluice_status add_group_call(void* context, void* data) {
  sluice_group group;
  return sluice_session_add_group(context, data, &group);
}
static sluice_status set_group_call(void* context, void* data) {
  return sluice_session_set_group(context, (sluice_group){0}, data);
}
static sluice_status add_param_call(void* context, void* data) {
  static int count = 0;
  static char text[32];
  sluice_param param;
  const size_t at = offsetof(sluice_param_options, name);
  const char* name = text;
  snprintf(text, sizeof(text), "p%d", count++); /* names are unique */
  if (data != NULL && ((sluice_param_options*)data)->struct_size >= sizeof(sluice_param_options) &&
      ((sluice_param_options*)data)->struct_size < 4096) {
    memcpy((char*)data + at, &name, sizeof(name));
  }
  return sluice_session_add_param(context, data, &param);
}
static sluice_status get_weight(void* context, void* data) {
  return sluice_session_weight(context, (sluice_param){0}, data);
}
static sluice_status get_grad(void* context, void* data) {
  return sluice_session_grad(context, (sluice_param){0}, data);
}
static sluice_status give_grad_call(void* context, void* data) {
  return sluice_session_give_grad(context, (sluice_param){0}, data);
}
static sluice_status get_session_stats(void* context, void* data) {
  return sluice_session_get_stats(context, data);
}

static void test_structs(void) {
  const sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  const sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_session_stats stats = SLUICE_SESSION_STATS_INIT;
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  sluice_session* session = NULL;
  struct trial t;
  sluice_unit unit;
  float grad[15] = {0};
  CHECK(sizeof(sluice_session_options) == 2 * 4 + sizeof(void*));
  CHECK(sizeof(sluice_tensor) == 6 * 4 + 2 * sizeof(void*));
  CHECK(sizeof(sluice_group_options) == 6 * 4 + 6 * 8);
  CHECK(sizeof(sluice_param_options) == 6 * 4 + 3 * sizeof(void*));
  CHECK(sizeof(sluice_update_info) == 2 * 4 + 3 * 8);
  CHECK(sizeof(sluice_update_part) == 2 * 4 + 2 * 8 + 4 * sizeof(void*));
  CHECK(sizeof(sluice_session_stats) == 2 * 4 + 8 * 8);
  check_struct(create_session, engine, &options, sizeof(options), 2);
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  check_struct(add_group_call, session, &group, sizeof(group), 2);
  check_struct(set_group_call, session, &group, sizeof(group), 1);
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "unit", &unit));
  param.unit = unit;
  check_struct(add_param_call, session, &param, sizeof(param), 1);
  check_struct(get_session_stats, session, &stats, sizeof(stats), 0);
  sluice_session_destroy(session);

  open_trial(&t, engine, SLUICE_STATE_PINNED, formats[0]);
  check_struct(get_weight, t.session, &tensor, sizeof(tensor), 0);
  check_struct(get_grad, t.session, &tensor, sizeof(tensor), 0);
  tensor.ndim = 2;
  tensor.shape = shapes[0];
  tensor.data = grad;
  check_struct(give_grad_call, t.session, &tensor, sizeof(tensor), 1);
  close_trial(&t);
  sluice_engine_destroy(engine);
}

/* Any byte of a saved file that is not as it was written: never a wrong state without a word. */
static void check_flipped_bytes(struct trial* t, const char* folder) {
  char path[512];
  long at, size;
  uint64_t before;
  FILE* file;
  snprintf(path, sizeof(path), "%s/capi_flipped.safetensors", folder);
  EXPECT(SLUICE_OK, sluice_session_save(t->session, path));
  EXPECT(SLUICE_OK, sluice_session_load(t->session, path));
  before = digest_state(t);
  file = fopen(path, "r+b");
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  size = ftell(file);
  for (at = 0; at < size; at += 1 + size / 499) {
    sluice_status status;
    int byte = EOF, written;
    CHECK(fseek(file, at, SEEK_SET) == 0 && (byte = fgetc(file)) != EOF);
    CHECK(fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fflush(file) == 0);
    status = sluice_session_load(t->session, path);
    CHECK(status == SLUICE_E_INTEGRITY || status == SLUICE_E_INPUT);
    written = fseek(file, at, SEEK_SET) == 0 && fputc(byte, file) != EOF && fflush(file) == 0;
    CHECK(written);
  }
  CHECK(fclose(file) == 0);
  CHECK(digest_state(t) == before);
  EXPECT(SLUICE_OK, sluice_session_load(t->session, path));
}

static void test_wrong_calls(const char* folder) {
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_param_options param = SLUICE_PARAM_OPTIONS_INIT;
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_update_part part = SLUICE_UPDATE_PART_INIT;
  sluice_error_info error = SLUICE_ERROR_INFO_INIT;
  sluice_session* session = NULL;
  struct trial t;
  sluice_group number = {9};
  sluice_unit unit = {9};
  sluice_param added = {9};
  const int64_t wrong_shape[2] = {3, 0};
  const int64_t huge[3] = {1 << 30, 1 << 30, 1 << 30};
  char path[4096];
  FILE* file;
  float values[15] = {0};
  int32_t dtype = -1;
  int i;

  /* NULL, everywhere. */
  EXPECT(SLUICE_E_INPUT, sluice_session_create(NULL, &options, &session));
  EXPECT(SLUICE_E_INPUT, sluice_session_create(engine, &options, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(NULL, &group, &number));
  EXPECT(SLUICE_E_INPUT, sluice_session_set_group(NULL, (sluice_group){0}, &group));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_unit(NULL, "x", &unit));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(NULL, &param, &added));
  EXPECT(SLUICE_E_INPUT, sluice_session_seal(NULL));
  EXPECT(SLUICE_E_INPUT, sluice_session_weight(NULL, (sluice_param){0}, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_session_grad(NULL, (sluice_param){0}, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(NULL, (sluice_param){0}, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_session_update(NULL, &info));
  EXPECT(SLUICE_E_INPUT, sluice_session_update_begin(NULL, &info));
  EXPECT(SLUICE_E_INPUT, sluice_session_update_next(NULL, &part));
  EXPECT(SLUICE_E_INPUT, sluice_session_kind_dtype(NULL, (sluice_param){0}, 0, &dtype));
  EXPECT(SLUICE_E_INPUT, sluice_session_read(NULL, (sluice_param){0}, 0, 0, 1, values, 4));
  EXPECT(SLUICE_E_INPUT, sluice_session_write(NULL, (sluice_param){0}, 0, 0, 1, values, 4));
  EXPECT(SLUICE_E_INPUT, sluice_session_set_updates(NULL, 1));
  EXPECT(SLUICE_E_INPUT, sluice_session_save(NULL, "x"));
  EXPECT(SLUICE_E_INPUT, sluice_session_load(NULL, "x"));
  sluice_session_destroy(NULL);
  options.state = 7;
  EXPECT(SLUICE_E_INPUT, sluice_session_create(engine, &options, &session));
  CHECK(session == NULL);
  options.state = 0;

  /* An open session: wrong options, and calls that belong after seal. */
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, NULL));
  group.rule = 99;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &number));
  group.rule = 0;
  group.beta1 = 1.0;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &number));
  group.beta1 = 0.9;
  group.lr = -1;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &number));
  group.lr = 1e-3;
  group.moments = SLUICE_DTYPE_F16;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_group(session, &group, &number));
  group.moments = 0;
  EXPECT(SLUICE_E_INPUT, sluice_session_set_group(session, (sluice_group){0}, &group));
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &number));
  group.moments = SLUICE_DTYPE_BF16;
  EXPECT(SLUICE_E_INPUT, sluice_session_set_group(session, number, &group));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_unit(session, NULL, &unit));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_unit(session, "x", NULL));
  EXPECT(SLUICE_OK, sluice_session_add_unit(session, "x", &unit));
  param.name = "p";
  param.unit = unit;
  param.group.index = 55;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.group = number;
  param.unit.index = 55;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.unit = unit;
  param.dtype = SLUICE_DTYPE_I16;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.dtype = SLUICE_DTYPE_F32;
  param.ndim = -1;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.ndim = 2;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added)); /* no shape */
  param.shape = wrong_shape;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.ndim = 3;
  param.shape = huge;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.ndim = 0;
  param.name = NULL;
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.name = "moment1.p";
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added));
  param.name = "p";
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, NULL));
  CHECK(added.index == 9);
  EXPECT(SLUICE_OK, sluice_session_add_param(session, &param, &added));
  EXPECT(SLUICE_E_INPUT, sluice_session_add_param(session, &param, &added)); /* the name again */
  EXPECT(SLUICE_E_STATE, sluice_session_weight(session, added, &tensor));
  EXPECT(SLUICE_E_STATE, sluice_session_update(session, &info));
  EXPECT(SLUICE_E_STATE, sluice_session_kind_dtype(session, added, 0, &dtype));
  EXPECT(SLUICE_E_STATE, sluice_session_set_updates(session, 1));
  EXPECT(SLUICE_E_STATE, sluice_session_save(session, "x"));
  EXPECT(SLUICE_E_STATE, sluice_session_load(session, "x"));
  sluice_session_destroy(session);

  /* A sealed one. */
  open_trial(&t, engine, SLUICE_STATE_PINNED, formats[0]);
  EXPECT(SLUICE_E_STATE, sluice_session_seal(t.session));
  EXPECT(SLUICE_E_STATE, sluice_session_add_unit(t.session, "x", &unit));
  EXPECT(SLUICE_E_STATE, sluice_session_add_group(t.session, &group, &number));
  EXPECT(SLUICE_E_STATE, sluice_session_add_param(t.session, &param, &added));
  EXPECT(SLUICE_E_INPUT, sluice_session_weight(t.session, (sluice_param){99}, &tensor));
  EXPECT(SLUICE_E_STATE, sluice_session_update(t.session, &info)); /* no gradients */
  tensor.data = values;
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(t.session, t.params[0], &tensor)); /* a scalar */
  tensor.ndim = 2;
  tensor.shape = shapes[1];
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(t.session, t.params[0], &tensor));
  tensor.shape = shapes[0];
  tensor.dtype = SLUICE_DTYPE_BF16;
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(t.session, t.params[0], &tensor));
  tensor.dtype = SLUICE_DTYPE_F32;
  tensor.device_type = SLUICE_DEVICE_CUDA;
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(t.session, t.params[0], &tensor));
  tensor.device_type = SLUICE_DEVICE_CPU;
  tensor.data = NULL;
  EXPECT(SLUICE_E_INPUT, sluice_session_give_grad(t.session, t.params[0], &tensor));
  EXPECT(SLUICE_E_INPUT,
         sluice_session_kind_dtype(t.session, t.params[0], SLUICE_KIND_MASTER, &dtype));
  EXPECT(SLUICE_E_INPUT, sluice_session_kind_dtype(t.session, t.params[0], 5, &dtype));
  EXPECT(SLUICE_E_INPUT, sluice_session_read(t.session, t.params[0], 0, 0, 15, values, 59));
  EXPECT(SLUICE_E_INPUT, sluice_session_read(t.session, t.params[0], 0, 1, 15, values, 60));
  EXPECT(SLUICE_E_INPUT, sluice_session_read(t.session, t.params[0], 0, UINT64_MAX, 1, values, 4));
  EXPECT(SLUICE_E_INPUT,
         sluice_session_read(t.session, t.params[0], 0, 0, UINT64_MAX / 4 + 1, values, 0));
  EXPECT(SLUICE_E_INPUT, sluice_session_read(t.session, t.params[0], 0, 0, 15, NULL, 60));
  EXPECT(SLUICE_E_INPUT, sluice_session_write(t.session, t.params[0], 0, 0, 15, NULL, 60));
  EXPECT(SLUICE_E_INPUT,
         sluice_session_write(t.session, t.params[0], 0, 0, 3, (char*)values + 1, 12));
  EXPECT(SLUICE_E_INPUT, sluice_session_load(t.session, "/nonexistent/x"));
  EXPECT(SLUICE_E_IO, sluice_session_save(t.session, "/nonexistent/x"));
  snprintf(path, sizeof(path), "%s/capi_garbage.safetensors", folder);
  file = fopen(path, "wb");
  CHECK(file != NULL && fputs("no file of tensors", file) >= 0 && fclose(file) == 0);
  EXPECT(SLUICE_E_INPUT, sluice_session_load(t.session, path));
  check_flipped_bytes(&t, folder);
  info.max_norm = -1;
  EXPECT(SLUICE_E_INPUT, sluice_session_update(t.session, &info));
  info.max_norm = NAN;
  EXPECT(SLUICE_E_INPUT, sluice_session_update(t.session, &info));

  /* A gradient that is not finite: nothing changes, and the session goes on. */
  {
    const uint64_t before = digest_state(&t);
    sluice_tensor grad = SLUICE_TENSOR_INIT;
    give_grads(&t, 1, 0.01f);
    EXPECT(SLUICE_OK, sluice_session_grad(t.session, t.params[2], &grad));
    ((float*)grad.data)[12345 % 13000] = INFINITY;
    info.max_norm = 1;
    EXPECT(SLUICE_E_NOT_FINITE, sluice_session_update(t.session, &info));
    EXPECT(SLUICE_OK, sluice_error(&error));
    CHECK(strstr(error.message, "'c'") != NULL);
    CHECK(digest_state(&t) == before);
    EXPECT(SLUICE_E_STATE,
           sluice_session_update(t.session, &info)); /* the gradients were dropped */
    give_grads(&t, 1, 0.01f);
    EXPECT(SLUICE_OK, sluice_session_update(t.session, &info));
    CHECK(digest_state(&t) != before);
  }
  /* Reads and writes of parts, and of a weight next to its neighbours. */
  for (i = 0; i < 15; ++i) values[i] = (float)i;
  EXPECT(SLUICE_OK,
         sluice_session_write(t.session, t.params[3], SLUICE_KIND_MOMENT2, 65530, 15, values, 60));
  memset(values, 0, sizeof(values));
  EXPECT(SLUICE_OK,
         sluice_session_read(t.session, t.params[3], SLUICE_KIND_MOMENT2, 65532, 13, values, 52));
  for (i = 0; i < 13; ++i) CHECK(values[i] == (float)(i + 2));
  close_trial(&t);
  sluice_engine_destroy(engine);
}

/* Gradients that are not finite leave every format as it is, wherever its state lies. */
static void test_not_finite(const char* folder) {
  int format, place;
  for (format = 0; format < FORMATS; ++format) {
    for (place = 0; place < 2; ++place) {
      sluice_engine* engine = make_engine(place == 1 ? folder : NULL, 8 * MIB);
      sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
      struct trial t;
      uint64_t before;
      double norm;
      open_trial(&t, engine, place == 1 ? SLUICE_STATE_STORAGE : SLUICE_STATE_PINNED,
                 formats[format]);
      train(&t, 0, 2, &norm);
      before = digest_state(&t);
      give_grads(&t, 5, NAN);
      EXPECT(SLUICE_E_NOT_FINITE, sluice_session_update(t.session, &info));
      CHECK(digest_state(&t) == before);
      close_trial(&t);
      sluice_engine_destroy(engine);
    }
  }
}

/* A group keeps its states: momentum may change, but not come or go. */
static void test_momentum(void) {
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_session* session = NULL;
  sluice_group number = {0};
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &session));
  group.rule = SLUICE_RULE_SGD;
  EXPECT(SLUICE_OK, sluice_session_add_group(session, &group, &number));
  group.momentum = 0.5;
  EXPECT(SLUICE_OK, sluice_session_set_group(session, number, &group));
  group.momentum = 0;
  EXPECT(SLUICE_E_INPUT, sluice_session_set_group(session, number, &group));
  sluice_session_destroy(session);
  sluice_engine_destroy(engine);
}

/* A written weight is its master's value, on storage too, and neighbours keep theirs. */
static void test_write_weight(const char* folder) {
  sluice_engine* engine = make_engine(folder, 8 * MIB);
  struct trial t;
  uint16_t weights[100];
  float masters[300], before[300];
  int i;
  double norm;
  open_trial(&t, engine, SLUICE_STATE_STORAGE, formats[1]);
  train(&t, 0, 2, &norm);
  EXPECT(SLUICE_OK, sluice_session_read(t.session, t.params[3], SLUICE_KIND_MASTER, 4000, 300,
                                        before, sizeof(before)));
  for (i = 0; i < 100; ++i) weights[i] = to_bf16((float)i);
  EXPECT(SLUICE_OK, sluice_session_write(t.session, t.params[3], SLUICE_KIND_WEIGHT, 4100, 100,
                                         weights, sizeof(weights)));
  EXPECT(SLUICE_OK, sluice_session_read(t.session, t.params[3], SLUICE_KIND_MASTER, 4000, 300,
                                        masters, sizeof(masters)));
  for (i = 0; i < 300; ++i) {
    CHECK(masters[i] == (i >= 100 && i < 200 ? (float)(i - 100) : before[i]));
  }
  close_trial(&t);
  sluice_engine_destroy(engine);
}

/* Frozen parameters have no home; an engine may go before its session. */
static void test_frozen_and_order(void) {
  sluice_engine* engine = make_engine(NULL, 8 * MIB);
  sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
  sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
  sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
  sluice_tensor home = SLUICE_TENSOR_INIT;
  struct trial t;
  sluice_unit unit;
  t.dtype = SLUICE_DTYPE_F32;
  EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &t.session));
  sluice_engine_destroy(engine);
  group.rule = SLUICE_RULE_SGD;
  group.momentum = 0;
  group.lr = 0.5;
  EXPECT(SLUICE_OK, sluice_session_add_group(t.session, &group, &t.groups[0]));
  EXPECT(SLUICE_OK, sluice_session_add_unit(t.session, "unit", &unit));
  EXPECT(SLUICE_OK, add_param(&t, 0, unit, SLUICE_NO_GROUP, NULL));
  EXPECT(SLUICE_OK, add_param(&t, 4, unit, t.groups[0], NULL));
  EXPECT(SLUICE_OK, sluice_session_seal(t.session));
  EXPECT(SLUICE_E_INPUT, sluice_session_weight(t.session, t.params[0], &home));
  EXPECT(SLUICE_OK, sluice_session_grad(t.session, t.params[4], &home));
  ((float*)home.data)[3] = 2;
  EXPECT(SLUICE_OK, sluice_session_give_grad(t.session, t.params[4], &home));
  EXPECT(SLUICE_OK, sluice_session_update(t.session, &info));
  CHECK(info.grad_norm == 2);
  EXPECT(SLUICE_OK, sluice_session_weight(t.session, t.params[4], &home));
  CHECK(((float*)home.data)[3] == -1 && ((float*)home.data)[2] == 0);
  group.lr = 0.25;
  EXPECT(SLUICE_OK, sluice_session_set_group(t.session, t.groups[0], &group));
  EXPECT(SLUICE_OK, sluice_session_grad(t.session, t.params[4], &home));
  EXPECT(SLUICE_OK, sluice_session_give_grad(t.session, t.params[4], &home));
  EXPECT(SLUICE_OK, sluice_session_update(t.session, &info));
  EXPECT(SLUICE_OK, sluice_session_weight(t.session, t.params[4], &home));
  CHECK(((float*)home.data)[3] == -1.5f);
  sluice_session_destroy(t.session);
}

/* The program's own update over staged state: two moments of fp32 with bf16 weights, in one
 * session with a group of ours. State on storage, in pieces of whole parameters, gives the bits of
 * state in memory. */
static void test_caller(const char* folder) {
  uint64_t digests[2] = {0, 1};
  int place, step, p;
  for (place = 0; place < 2; ++place) {
    sluice_engine* engine = make_engine(folder, 16 * MIB);
    sluice_session_options options = SLUICE_SESSION_OPTIONS_INIT;
    sluice_group_options group = SLUICE_GROUP_OPTIONS_INIT;
    sluice_update_info info = SLUICE_UPDATE_INFO_INIT;
    sluice_update_part part = SLUICE_UPDATE_PART_INIT;
    sluice_unit units[2];
    struct trial t;
    t.dtype = SLUICE_DTYPE_BF16;
    t.elem_bytes = 2;
    options.state = place == 0 ? SLUICE_STATE_PINNED : SLUICE_STATE_STORAGE;
    EXPECT(SLUICE_OK, sluice_session_create(engine, &options, &t.session));
    EXPECT(SLUICE_OK, sluice_session_add_group(t.session, &group, &t.groups[0]));
    group.rule = SLUICE_RULE_CALLER;
    group.caller_moments = 3;
    EXPECT(SLUICE_E_INPUT, sluice_session_add_group(t.session, &group, &t.groups[1]));
    group.caller_moments = 2;
    EXPECT(SLUICE_OK, sluice_session_add_group(t.session, &group, &t.groups[1]));
    EXPECT(SLUICE_OK, sluice_session_add_unit(t.session, "first", &units[0]));
    EXPECT(SLUICE_OK, sluice_session_add_unit(t.session, "second", &units[1]));
    for (p = 0; p < PARAMS; ++p) {
      EXPECT(SLUICE_OK, add_param(&t, p, units[p / 3], t.groups[p > 0], NULL));
    }
    EXPECT(SLUICE_OK, sluice_session_seal(t.session));
    EXPECT(SLUICE_E_STATE, sluice_session_update_next(t.session, &part));
    info.max_norm = 0.25;
    for (step = 0; step < 4; ++step) {
      unsigned seen = 0;
      give_grads(&t, (uint32_t)step, 0.01f);
      EXPECT(SLUICE_E_STATE, sluice_session_update(t.session, &info));
      EXPECT(SLUICE_OK, sluice_session_update_begin(t.session, &info));
      EXPECT(SLUICE_E_STATE, sluice_session_update_begin(t.session, &info));
      EXPECT(SLUICE_E_INPUT, sluice_session_update_next(t.session, NULL));
      for (;;) {
        size_t i;
        EXPECT(SLUICE_OK, sluice_session_update_next(t.session, &part));
        CHECK(part.grad_norm > 0.25);
        if (part.param.index == SLUICE_NONE) break;
        CHECK(part.param.index > 0 && part.param.index < PARAMS && part.grad_factor < 1);
        seen |= 1u << part.param.index;
        for (i = 0; i < elems_of((int)part.param.index); ++i) {
          float* m = (float*)part.state[0] + i;
          float* v = (float*)part.state[1] + i;
          const uint32_t bits = (uint32_t)((uint16_t*)part.grad)[i] << 16;
          float g;
          memcpy(&g, &bits, sizeof(g));
          *m = 0.5f * *m + g;
          *v += g * g;
          ((uint16_t*)part.weight)[i] = to_bf16(*m / (1.0f + *v));
        }
      }
      CHECK(seen == 0x1e);
      part.param.index = 77;
      EXPECT(SLUICE_E_STATE, sluice_session_update_next(t.session, &part));
      CHECK(part.param.index == 77);
    }
    digests[place] = digest_state(&t);
    /* Not finite: no part is handed out. */
    give_grads(&t, 5, INFINITY);
    EXPECT(SLUICE_OK, sluice_session_update_begin(t.session, &info));
    EXPECT(SLUICE_E_NOT_FINITE, sluice_session_update_next(t.session, &part));
    CHECK(digest_state(&t) == digests[place]);
    /* Destroyed in the middle of an update. */
    give_grads(&t, 6, 0.01f);
    EXPECT(SLUICE_OK, sluice_session_update_begin(t.session, &info));
    EXPECT(SLUICE_OK, sluice_session_update_next(t.session, &part));
    sluice_session_destroy(t.session);
    sluice_engine_destroy(engine);
  }
  CHECK(digests[0] == digests[1]);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  test_structs();
  test_arithmetic();
  test_tiers(folder);
  test_refusal();
  test_names_and_ranges(folder);
  test_wrong_calls(folder);
  test_not_finite(folder);
  test_momentum();
  test_write_weight(folder);
  test_frozen_and_order();
  test_caller(folder);
  return check_result();
}
