/* A pager over the simulated CUDA driver, with streams that belong to the program. Their work is
 * slow: each reads a unit's window long after the unit was released, so a fetch that does not wait
 * for it would be seen. */
#define _POSIX_C_SOURCE 200809L
#include "tests/engine/capi/tested_device.h"

#define MIB ((uint64_t)1 << 20)
enum { UNITS = 6, STREAMS = 3, USES = 24, PASSES = 12 };

static uint32_t random_state = 5;
static uint32_t draw(uint32_t below) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % below;
}

static uint64_t bytes_of(int unit) {
  return (uint64_t)(unit % 3 + 1) * MIB + 40;
}
static unsigned char value_of(int unit, int version) {
  return (unsigned char)(unit * 31 + version + 1);
}

struct program {
  sluice_engine* engine;
  sluice_pager* pager;
  sluice_paged weights[UNITS];
  sluice_stream streams[STREAMS];
  unsigned char* results; /* pinned: a slice for each use */
  int version;            /* of all weights: the number of updates */
};

static uint64_t slice_bytes(void) {
  return 3 * MIB + 4096;
}

static void open_program(struct program* p) {
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_pager_options options = SLUICE_PAGER_OPTIONS_INIT;
  unsigned char* data[UNITS]; /* read by seal */
  int i;
  engine_options.device_type = TESTED_DEVICE;
  engine_options.device_bytes = 12 * MIB; /* six pages; the units have eleven */
  engine_options.pinned_bytes = 64 * MIB;
  EXPECT(SLUICE_OK, sluice_engine_create(&engine_options, &p->engine));
  EXPECT(SLUICE_OK, sluice_pager_create(p->engine, &options, &p->pager));
  for (i = 0; i < UNITS; ++i) {
    sluice_unit unit;
    data[i] = malloc(bytes_of(i));
    memset(data[i], value_of(i, 0), bytes_of(i));
    EXPECT(SLUICE_OK, sluice_pager_add_unit(p->pager, "unit", &unit));
    EXPECT(SLUICE_OK, sluice_pager_add(p->pager, unit, SLUICE_PART_WEIGHT, bytes_of(i), data[i],
                                       &p->weights[i]));
  }
  EXPECT(SLUICE_OK, sluice_pager_seal(p->pager));
  for (i = 0; i < UNITS; ++i) free(data[i]);
  for (i = 0; i < STREAMS; ++i) p->streams[i] = make_stream();
  p->results = make_results(USES * slice_bytes());
  p->version = 0;
}

static void close_program(struct program* p) {
  int i;
  sluice_pager_destroy(p->pager);
  sluice_engine_destroy(p->engine);
  destroy_results(p->results);
  for (i = 0; i < STREAMS; ++i) destroy_stream(p->streams[i]);
}

static void read_window(struct program* p, int unit, int stream, int use) {
  void* window = NULL;
  unsigned char* slice = p->results + (uint64_t)use * slice_bytes();
  EXPECT(SLUICE_OK, sluice_pager_window(p->pager, p->weights[unit], &window));
  queue_read(slice, window, bytes_of(unit), p->streams[stream]);
}

static void check_result_of(struct program* p, int unit, int use) {
  const unsigned char* slice = p->results + (uint64_t)use * slice_bytes();
  uint64_t i, wrong = 0;
  for (i = 0; i < bytes_of(unit); ++i) wrong += slice[i] != value_of(unit, p->version);
  CHECK(wrong == 0);
}

/* Steady orders are fetched ahead, others on demand; a third of the uses are of two streams at
 * once. */
static void pass(struct program* p, int steady) {
  int units[USES], use, stream;
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(p->pager));
  for (use = 0; use < USES; ++use) {
    const int both = use % 3 == 2 && use + 1 < USES;
    const int unit = steady ? use * 5 % UNITS : (int)draw(UNITS);
    stream = use % STREAMS;
    EXPECT(SLUICE_OK,
           sluice_pager_acquire(p->pager, (sluice_unit){(uint32_t)unit}, &p->streams[stream]));
    units[use] = unit;
    read_window(p, unit, stream, use);
    if (both) {
      const int other = (stream + 1) % STREAMS;
      EXPECT(SLUICE_OK,
             sluice_pager_acquire(p->pager, (sluice_unit){(uint32_t)unit}, &p->streams[other]));
      units[++use] = unit;
      EXPECT(SLUICE_OK,
             sluice_pager_release(p->pager, (sluice_unit){(uint32_t)unit}, &p->streams[stream]));
      finish_stream(p->streams[other]);
      read_window(p, unit, other, use);
      finish_stream(p->streams[other]);
      stream = other;
    }
    EXPECT(SLUICE_OK,
           sluice_pager_release(p->pager, (sluice_unit){(uint32_t)unit}, &p->streams[stream]));
  }
  for (stream = 0; stream < STREAMS; ++stream) finish_stream(p->streams[stream]);
  for (use = 0; use < USES; ++use) check_result_of(p, units[use], use);
}

static void update(struct program* p) {
  int unit;
  ++p->version;
  for (unit = 0; unit < UNITS; ++unit) {
    void* staged = NULL;
    EXPECT(SLUICE_OK, sluice_pager_stage(p->pager, (sluice_unit){(uint32_t)unit}, SLUICE_NO_UNIT));
    EXPECT(SLUICE_OK, sluice_pager_staged(p->pager, p->weights[unit], &staged));
    memset(staged, value_of(unit, p->version), bytes_of(unit));
    EXPECT(SLUICE_OK, sluice_pager_unstage(p->pager, (sluice_unit){(uint32_t)unit}));
  }
}

int main(void) {
  struct program program;
  sluice_stream wrong = {SLUICE_DEVICE_CPU, 0, NULL};
  sluice_pager_stats stats = SLUICE_PAGER_STATS_INIT;
  int i;
  if (!open_device()) return check_result();
  open_program(&program);
  EXPECT(SLUICE_OK, sluice_pager_begin_pass(program.pager));
  EXPECT(SLUICE_E_INPUT, sluice_pager_acquire(program.pager, (sluice_unit){0}, &wrong));
  for (i = 0; i < PASSES; ++i) {
    pass(&program, i % 6 < 4);
    if (i % 3 == 1) update(&program);
  }
  EXPECT(SLUICE_OK, sluice_pager_get_stats(program.pager, &stats));
  CHECK(stats.plans > 0 && stats.prefetches > 0 && stats.deviations > 0);
  close_program(&program);
  close_device();
  return check_result();
}
