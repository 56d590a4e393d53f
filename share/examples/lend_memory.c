/* Gives device memory to a program's tensors with Sluice's allocator, and asks why it ran out.
 *
 *     lend_memory [SNAPSHOT]     SNAPSHOT: a file for torch.cuda.memory's viewers and for replay
 *
 * Tensors of 1 to 8 MiB live and die in a budget of 64 MiB. Memory is reused at once: the peak of
 * reserved pages stays near the peak of live bytes. The last request is larger than the
 * rest. */
#include <sluice/sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 8, ROUNDS = 200 };
#define MIB ((uint64_t)1 << 20)

/* Ends the program with the library's own message. */
static void check(sluice_status status) {
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  if (status == SLUICE_OK) return;
  if (sluice_error(&info) == SLUICE_OK) {
    fprintf(stderr, "lend_memory: %s: %s\n", sluice_status_name(status), info.message);
  }
  exit(1);
}

int main(int argc, char** argv) {
  sluice_engine_options engine_options = SLUICE_ENGINE_OPTIONS_INIT;
  sluice_allocator_options options = SLUICE_ALLOCATOR_OPTIONS_INIT;
  sluice_allocator_stats stats = SLUICE_ALLOCATOR_STATS_INIT;
  sluice_error_info info = SLUICE_ERROR_INFO_INIT;
  sluice_engine* engine = NULL;
  sluice_allocator* allocator = NULL;
  void* tensors[TENSORS];
  void* refused = NULL;
  const char* report = NULL;
  uint32_t random = 1, site = 0;
  sluice_status status;
  int round;

  memset(tensors, 0, sizeof(tensors));
  engine_options.device_bytes = 64 * MIB;
  engine_options.pinned_bytes = MIB;
  options.recorded_events = 4096;
  check(sluice_engine_create(&engine_options, &engine));
  check(sluice_allocator_create(engine, &options, &allocator));
  check(sluice_allocator_site(allocator, "lend_memory.c: activations", &site));
  for (round = 0; round < ROUNDS; ++round) {
    const int at = round % TENSORS;
    random = random * 1664525u + 1013904223u;
    check(sluice_allocator_free(allocator, tensors[at])); /* NULL the first time */
    check(sluice_allocator_alloc(allocator, (1 + (random >> 29)) * MIB, NULL, site, &tensors[at]));
  }
  check(sluice_allocator_get_stats(allocator, &stats));
  printf("%lu allocations, live at most %lu MiB, reserved at most %lu MiB\n",
         (unsigned long)stats.allocations, (unsigned long)(stats.peak_live_bytes / MIB),
         (unsigned long)(stats.peak_reserved_bytes / MIB));

  status = sluice_allocator_alloc(allocator, 64 * MIB, NULL, site, &refused);
  if (status != SLUICE_E_MEMORY) return 1;
  check(sluice_error(&info));
  printf("refused: %lu MiB asked, %lu MiB there\n", (unsigned long)(info.requested_bytes / MIB),
         (unsigned long)(info.available_bytes / MIB));
  check(sluice_allocator_report(allocator, 0, &report));
  printf("the report has %s\n", strstr(report, "activations") != NULL ? "the site" : "no site");
  if (argc > 1) check(sluice_allocator_snapshot(allocator, argv[1], SLUICE_FORMAT_TORCH));
  sluice_allocator_destroy(allocator);
  sluice_engine_destroy(engine);
  return 0;
}
