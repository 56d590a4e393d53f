/* Pagers: 1,000 passes in random and in steady orders over every placement, each byte compared with
 * a plain array; plans, refusals, wrong calls, and corrupted storage. */
#define _POSIX_C_SOURCE 200809L
#include "tests/engine/capi/corrupt.h"
#include "tests/engine/capi/structs.h"

#define MIB ((uint64_t)1 << 20)
enum { UNITS = 9 };

/* Windows take whole pages of 2 MiB: one to three each, 17 in all. */
static const uint64_t weight_bytes[UNITS] = {MIB,     3 * MIB + 12, 5 * MIB, 100,    2 * MIB,
                                             4 * MIB, 3 * MIB,      5000,    MIB + 1};
static const uint64_t state_bytes = 70000;

static uint32_t random_state = 7;
static uint32_t draw(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % below;
}

struct trial {
  sluice_pager* pager;
  sluice_unit units[UNITS];
  sluice_paged weights[UNITS], states[UNITS];
  unsigned char* expected[UNITS]; /* weights, then state */
  void* windows[UNITS];
};

static sluice_engine* make_engine(const char* folder, uint64_t device_bytes,
                                  uint64_t pinned_bytes) {
  sluice_engine_options options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_engine* engine = NULL;
  options.device_bytes = device_bytes;
  options.pinned_bytes = pinned_bytes;
  options.storage_engine = SLUICE_STORAGE_POSIX;
  options.deadline_s = 100;
  if (folder != NULL) {
    options.storage_paths = &folder;
    options.storage_path_count = 1;
    options.storage_bytes = 64 * MIB;
  }
  EXPECT(SLUICE_OK, sluice_engine_create(&options, &engine));
  return engine;
}

static void add_units(struct trial* t) {
  int u;
  for (u = 0; u < UNITS; ++u) {
    uint64_t i;
    char name[20];
    t->expected[u] = malloc(weight_bytes[u] + state_bytes);
    if (t->expected[u] == NULL) abort();
    for (i = 0; i < weight_bytes[u] + state_bytes; ++i) {
      t->expected[u][i] = (unsigned char)(i * 31 + (i >> 12) + (uint64_t)u * 77);
    }
    snprintf(name, sizeof(name), "unit %d", u);
    EXPECT(SLUICE_OK, sluice_pager_add_unit(t->pager, name, &t->units[u]));
    EXPECT(SLUICE_OK, sluice_pager_add(t->pager, t->units[u], SLUICE_PART_WEIGHT, weight_bytes[u],
                                       t->expected[u], &t->weights[u]));
    EXPECT(SLUICE_OK, sluice_pager_add(t->pager, t->units[u], SLUICE_PART_STATE, state_bytes,
                                       t->expected[u] + weight_bytes[u], &t->states[u]));
  }
}

static void open_trial(struct trial* t, sluice_engine* engine, int32_t weights, int32_t state) {
  sluice_pager_options options = SLUICE_PAGER_OPTIONS_INIT;
  int u;
  options.weights = weights;
  options.state = state;
  EXPECT(SLUICE_OK, sluice_pager_create(engine, &options, &t->pager));
  add_units(t);
  EXPECT(SLUICE_OK, sluice_pager_seal(t->pager));
  for (u = 0; u < UNITS; ++u) {
    EXPECT(SLUICE_OK, sluice_pager_window(t->pager, t->weights[u], &t->windows[u]));
  }
}

static void close_trial(struct trial* t) {
  int u;
  sluice_pager_destroy(t->pager);
  for (u = 0; u < UNITS; ++u) free(t->expected[u]);
}

static void use(struct trial* t, int u) {
  void* window = NULL;
  EXPECT(SLUICE_OK, sluice_pager_acquire(t->pager, t->units[u], NULL));
  EXPECT(SLUICE_OK, sluice_pager_window(t->pager, t->weights[u], &window));
  CHECK(window == t->windows[u]);
  CHECK(memcmp(window, t->expected[u], weight_bytes[u]) == 0);
}

static void end_use(struct trial* t, int u) {
  CHECK(memcmp(t->windows[u], t->expected[u], weight_bytes[u]) == 0);
  EXPECT(SLUICE_OK, sluice_pager_release(t->pager, t->units[u], NULL));
}

/* Any order of uses, with up to two units held at once. */
static void random_pass(struct trial* t) {
  int held = -1, uses = 1 + (int)draw(12);
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(t->pager));
  while (uses-- > 0) {
    const int u = (int)draw(UNITS);
    use(t, u);
    if (held < 0 && draw(3) == 0) {
      held = u;
      continue;
    }
    end_use(t, u);
    if (held >= 0 && draw(2) == 0) {
      end_use(t, held);
      held = -1;
    }
  }
  if (held >= 0) end_use(t, held);
}

static void steady_pass(struct trial* t) {
  int i;
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(t->pager));
  for (i = 0; i < 2 * UNITS; ++i) {
    const int u = i < UNITS ? i : 2 * UNITS - 1 - i;
    use(t, u);
    end_use(t, u);
  }
}

/* Units in any order, the next one told rightly, wrongly or not. */
static void update(struct trial* t) {
  int count = 1 + (int)draw(5);
  int u = (int)draw(UNITS);
  while (count-- > 0) {
    const int next = (int)draw(UNITS);
    void *weight = NULL, *state = NULL;
    const uint64_t at = draw((uint32_t)weight_bytes[u]);
    EXPECT(SLUICE_OK, sluice_pager_stage(t->pager, t->units[u],
                                         draw(4) == 0 ? SLUICE_NO_UNIT : t->units[next]));
    EXPECT(SLUICE_OK, sluice_pager_staged(t->pager, t->weights[u], &weight));
    EXPECT(SLUICE_OK, sluice_pager_staged(t->pager, t->states[u], &state));
    CHECK(memcmp(weight, t->expected[u], weight_bytes[u]) == 0);
    CHECK(memcmp(state, t->expected[u] + weight_bytes[u], state_bytes) == 0);
    ((unsigned char*)weight)[at] = t->expected[u][at] = (unsigned char)draw(256);
    ((unsigned char*)state)[at % state_bytes] = t->expected[u][weight_bytes[u] + at % state_bytes] =
        (unsigned char)draw(256);
    EXPECT(SLUICE_OK, sluice_pager_unstage(t->pager, t->units[u]));
    u = draw(4) == 0 ? (int)draw(UNITS) : next;
  }
}

static void read_and_write(struct trial* t) {
  const int u = (int)draw(UNITS);
  const uint64_t at = draw((uint32_t)weight_bytes[u]);
  unsigned char byte = 0;
  EXPECT(SLUICE_OK, sluice_pager_read(t->pager, t->weights[u], at, &byte, 1));
  CHECK(byte == t->expected[u][at]);
  byte = t->expected[u][at] = (unsigned char)draw(256);
  EXPECT(SLUICE_OK, sluice_pager_write(t->pager, t->weights[u], at, &byte, 1));
}

static void test_orders(const char* folder) {
  static const int32_t places[4][2] = {{SLUICE_STATE_PINNED, SLUICE_STATE_PINNED},
                                       {SLUICE_STATE_PINNED, SLUICE_STATE_STORAGE},
                                       {SLUICE_STATE_STORAGE, SLUICE_STATE_STORAGE},
                                       {SLUICE_STATE_STORAGE, SLUICE_STATE_PINNED}};
  int place, i;
  for (place = 0; place < 4; ++place) {
    struct trial t;
    sluice_pager_stats stats = {0};
    sluice_usage usage = {0};
    sluice_engine* engine = make_engine(folder, 12 * MIB, 64 * MIB);
    stats.struct_size = sizeof(stats);
    usage.struct_size = sizeof(usage);
    open_trial(&t, engine, places[place][0], places[place][1]);
    for (i = 0; i < 250; ++i) {
      random_pass(&t);
      if (draw(4) == 0) update(&t);
      if (draw(8) == 0) read_and_write(&t);
    }
    EXPECT(SLUICE_OK, sluice_pager_settle(t.pager));
    EXPECT(SLUICE_OK, sluice_pager_get_stats(t.pager, &stats));
    CHECK(stats.window_bytes == 12 * MIB && stats.sealed == 1);
    EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_DEVICE, &usage));
    CHECK(usage.live_bytes == stats.window_bytes && usage.measured_peak_bytes == 12 * MIB);
    EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_PINNED, &usage));
    CHECK(usage.live_bytes == stats.pinned_bytes);
    EXPECT(SLUICE_OK, sluice_engine_usage(engine, SLUICE_TIER_STORAGE, &usage));
    CHECK(usage.live_bytes == stats.storage_bytes);
    close_trial(&t);
    sluice_engine_destroy(engine);
  }
}

/* Two passes that are alike make a plan; from then on only first uses are fetched on demand. */
static void test_plans(void) {
  struct trial t;
  sluice_pager_stats before = {0}, after = {0};
  sluice_engine* engine = make_engine(NULL, 14 * MIB, 64 * MIB);
  int i;
  before.struct_size = after.struct_size = sizeof(before);
  open_trial(&t, engine, SLUICE_STATE_AUTO, SLUICE_STATE_AUTO);
  for (i = 0; i < 3; ++i) steady_pass(&t);
  EXPECT(SLUICE_OK, sluice_pager_get_stats(t.pager, &before));
  CHECK(before.plans == 1 && before.deviations == 0 && before.prefetches > 0);
  for (i = 0; i < 4; ++i) steady_pass(&t);
  EXPECT(SLUICE_OK, sluice_pager_get_stats(t.pager, &after));
  CHECK(after.plans == 1 && after.deviations == 0);
  CHECK(after.uses - before.uses == 4 * 2 * UNITS);
  CHECK(after.prefetches - before.prefetches > 4 * (after.demand_fetches - before.demand_fetches));
  random_pass(&t);
  steady_pass(&t);
  EXPECT(SLUICE_OK, sluice_pager_get_stats(t.pager, &after));
  CHECK(after.deviations > 0 && after.plans == 1);
  close_trial(&t);
  sluice_engine_destroy(engine);
}

static void test_refusals(const char* folder) {
  sluice_pager_options options = SLUICE_PAGER_OPTIONS_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_engine* small = make_engine(NULL, 4 * MIB, 64 * MIB);
  sluice_engine* tight = make_engine(NULL, 8 * MIB, 10 * MIB);
  sluice_engine* stored = make_engine(folder, 8 * MIB, 39 * MIB / 2);
  struct trial t;
  int i;
  for (i = 0; i < 2; ++i) {
    EXPECT(SLUICE_OK, sluice_pager_create(i == 0 ? small : tight, &options, &t.pager));
    add_units(&t);
    EXPECT(SLUICE_E_REFUSED, sluice_pager_seal(t.pager));
    EXPECT(SLUICE_OK, sluice_error(&info));
    CHECK(strstr(info.message, i == 0 ? "device_bytes larger by 2MiB" : "pinned_bytes larger by"));
    CHECK(info.tier == (i == 0 ? SLUICE_TIER_DEVICE : SLUICE_TIER_PINNED));
    CHECK(i > 0 || info.requested_bytes == info.available_bytes + 2 * MIB);
    EXPECT(SLUICE_E_STATE, sluice_pager_begin_pass(t.pager));
    close_trial(&t);
  }
  /* With storage, what does not fit goes there. */
  open_trial(&t, stored, SLUICE_STATE_AUTO, SLUICE_STATE_AUTO);
  {
    sluice_pager_stats stats = {0};
    stats.struct_size = sizeof(stats);
    EXPECT(SLUICE_OK, sluice_pager_get_stats(t.pager, &stats));
    CHECK(stats.stored_state_bytes > 0 && stats.pinned_bytes <= 39 * MIB / 2);
  }
  steady_pass(&t);
  close_trial(&t);
  sluice_engine_destroy(small);
  sluice_engine_destroy(tight);
  sluice_engine_destroy(stored);
}

/* An allocator and a pager divide the device budget: pages that one caches are not the other's,
 * until they are trimmed. */
static void test_shared_budget(void) {
  const sluice_allocator_options of_allocator = SLUICE_ALLOCATOR_OPTIONS_INIT;
  const sluice_pager_options of_pager = SLUICE_PAGER_OPTIONS_INIT;
  sluice_engine* engine = make_engine(NULL, 14 * MIB, 64 * MIB);
  sluice_allocator* allocator = NULL;
  void *block = NULL, *other = NULL;
  struct trial t;
  EXPECT(SLUICE_OK, sluice_allocator_create(engine, &of_allocator, &allocator));
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 10 * MIB, NULL, 0, &block));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, block));
  EXPECT(SLUICE_OK, sluice_pager_create(engine, &of_pager, &t.pager));
  add_units(&t);
  EXPECT(SLUICE_E_REFUSED, sluice_pager_seal(t.pager));
  close_trial(&t);
  EXPECT(SLUICE_OK, sluice_allocator_trim(allocator));
  open_trial(&t, engine, SLUICE_STATE_AUTO, SLUICE_STATE_AUTO);
  EXPECT(SLUICE_E_MEMORY, sluice_allocator_alloc(allocator, 10 * MIB, NULL, 0, &other));
  steady_pass(&t);
  close_trial(&t);
  EXPECT(SLUICE_OK, sluice_allocator_alloc(allocator, 10 * MIB, NULL, 0, &other));
  EXPECT(SLUICE_OK, sluice_allocator_free(allocator, other));
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
}

static sluice_engine* struct_engine;
static sluice_status create_with(void* context, void* options) {
  sluice_pager* pager = NULL;
  const sluice_status status = sluice_pager_create(struct_engine, options, &pager);
  (void)context;
  sluice_pager_destroy(pager);
  return status;
}
static sluice_status stats_with(void* context, void* stats) {
  return sluice_pager_get_stats(context, stats);
}

static void test_wrong_calls(void) {
  const sluice_pager_options options = SLUICE_PAGER_OPTIONS_INIT;
  sluice_pager_options wrong = SLUICE_PAGER_OPTIONS_INIT;
  sluice_pager_stats stats = {0};
  sluice_engine* engine = make_engine(NULL, 6 * MIB, 64 * MIB);
  sluice_stream stream = {SLUICE_DEVICE_CUDA, 0, NULL};
  struct trial t;
  sluice_pager* open = NULL;
  sluice_unit unit = {0};
  sluice_paged tensor = {0};
  void* address = NULL;
  char byte = 0;
  struct_engine = engine;
  stats.struct_size = sizeof(stats);
  check_struct(create_with, NULL, &options, sizeof(options), 2);
  EXPECT(SLUICE_E_INPUT, sluice_pager_create(NULL, &options, &open));
  EXPECT(SLUICE_E_INPUT, sluice_pager_create(engine, &options, NULL));
  wrong.weights = 9;
  EXPECT(SLUICE_E_INPUT, sluice_pager_create(engine, &wrong, &open));
  EXPECT(SLUICE_OK, sluice_pager_create(engine, &options, &open));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add_unit(open, NULL, &unit));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add_unit(open, "u", NULL));
  EXPECT(SLUICE_OK, sluice_pager_add_unit(open, "u", &unit));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add(open, (sluice_unit){7}, 0, 8, NULL, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add(open, unit, 2, 8, NULL, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add(open, unit, 0, 0, NULL, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_pager_add(open, unit, 0, UINT64_MAX, NULL, &tensor));
  EXPECT(SLUICE_E_INPUT, sluice_pager_seal(open)); /* nothing to bring */
  EXPECT(SLUICE_E_STATE, sluice_pager_acquire(open, unit, NULL));
  EXPECT(SLUICE_E_STATE, sluice_pager_stage(open, unit, SLUICE_NO_UNIT));
  EXPECT(SLUICE_E_STATE, sluice_pager_settle(open));
  sluice_pager_destroy(open);
  sluice_pager_destroy(NULL);

  open_trial(&t, engine, SLUICE_STATE_AUTO, SLUICE_STATE_AUTO);
  check_struct(stats_with, t.pager, &stats, sizeof(stats), 0);
  EXPECT(SLUICE_E_STATE, sluice_pager_add_unit(t.pager, "late", &unit));
  EXPECT(SLUICE_E_STATE, sluice_pager_add(t.pager, (sluice_unit){0}, 0, 8, NULL, &tensor));
  EXPECT(SLUICE_E_STATE, sluice_pager_seal(t.pager));
  EXPECT(SLUICE_E_INPUT, sluice_pager_window(t.pager, t.states[0], &address));
  EXPECT(SLUICE_E_INPUT, sluice_pager_home(t.pager, (sluice_paged){99}, &address));
  EXPECT(SLUICE_E_INPUT, sluice_pager_staged(t.pager, t.weights[0], NULL));
  EXPECT(SLUICE_E_INPUT, sluice_pager_acquire(t.pager, (sluice_unit){UNITS}, NULL));
  EXPECT(SLUICE_E_INPUT, sluice_pager_acquire(t.pager, (sluice_unit){0}, &stream));
  EXPECT(SLUICE_E_STATE, sluice_pager_release(t.pager, (sluice_unit){0}, NULL));
  EXPECT(SLUICE_E_STATE, sluice_pager_unstage(t.pager, (sluice_unit){0}));
  EXPECT(SLUICE_E_INPUT, sluice_pager_read(t.pager, t.weights[3], 99, &byte, 2));
  EXPECT(SLUICE_E_INPUT, sluice_pager_read(t.pager, t.weights[3], 0, NULL, 1));
  EXPECT(SLUICE_E_INPUT, sluice_pager_write(t.pager, t.weights[3], UINT64_MAX, &byte, 2));
  /* Units that are held leave no room for another: 3 + 1 pages of 3. The pager goes on. */
  use(&t, 2);
  EXPECT(SLUICE_E_MEMORY, sluice_pager_acquire(t.pager, t.units[0], NULL));
  end_use(&t, 2);
  use(&t, 0);
  EXPECT(SLUICE_OK, sluice_pager_stage(t.pager, (sluice_unit){1}, SLUICE_NO_UNIT));
  EXPECT(SLUICE_E_STATE, sluice_pager_stage(t.pager, (sluice_unit){2}, SLUICE_NO_UNIT));
  EXPECT(SLUICE_E_STATE, sluice_pager_begin_pass(t.pager));
  EXPECT(SLUICE_E_STATE, sluice_pager_read(t.pager, t.weights[3], 0, &byte, 1));
  EXPECT(SLUICE_OK, sluice_pager_unstage(t.pager, (sluice_unit){1}));
  EXPECT(SLUICE_E_STATE,
         sluice_pager_acquire(t.pager, (sluice_unit){3}, NULL)); /* another pass first */
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(t.pager));
  end_use(&t, 0);
  steady_pass(&t);
  sluice_engine_destroy(engine); /* the pager keeps it alive */
  steady_pass(&t);
  close_trial(&t);
}

/* The first unit's weights are wrong on storage: a status, and all other units go on. */
static void test_corruption(const char* folder) {
  struct trial t;
  sluice_engine* engine = make_engine(folder, 12 * MIB, 64 * MIB);
  char byte = 0;
  int u;
  open_trial(&t, engine, SLUICE_STATE_STORAGE, SLUICE_STATE_STORAGE);
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(t.pager));
  CHECK(corrupt_files(folder, 8192) > 0);
  EXPECT(SLUICE_E_INTEGRITY, sluice_pager_acquire(t.pager, t.units[0], NULL));
  EXPECT(SLUICE_E_STATE, sluice_pager_release(t.pager, t.units[0], NULL));
  EXPECT(SLUICE_E_INTEGRITY, sluice_pager_stage(t.pager, t.units[0], SLUICE_NO_UNIT));
  EXPECT(SLUICE_E_INTEGRITY, sluice_pager_read(t.pager, t.weights[0], 0, &byte, 1));
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(t.pager));
  for (u = 1; u < UNITS; ++u) {
    use(&t, u);
    end_use(&t, u);
  }
  EXPECT(SLUICE_OK, sluice_pager_stage(t.pager, t.units[2], t.units[0]));
  EXPECT(SLUICE_OK, sluice_pager_unstage(t.pager, t.units[2]));
  EXPECT(SLUICE_OK, sluice_pager_settle(t.pager));
  close_trial(&t);
  sluice_engine_destroy(engine);
}

int main(int argc, char** argv) {
  const char* folder = argc > 1 ? argv[1] : ".";
  test_orders(folder);
  test_plans();
  test_refusals(folder);
  test_shared_budget();
  test_wrong_calls();
  test_corruption(folder);
  return check_result();
}
